//! A Redis Cluster for one test: masters, and a replica of each, on loopback ports.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use redis::Value;
use tempfile::TempDir;

use crate::{Watched, free_port};

/// Waits this long for the nodes to start, to meet, and to agree.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const SLOTS: usize = 16_384;

/// A cluster. It ends with this value, or with the test's process.
pub struct RedisCluster {
    masters: usize,
    nodes: Vec<Node>,
}

struct Node {
    port: u16,
    folder: TempDir,
    process: Option<Watched>,
}

impl RedisCluster {
    /// Starts empty masters, each with a replica or without; node `masters + n` is the replica of node `n`.
    ///
    /// # Panics
    /// When redis-server is not installed: `make setup` installs it.
    pub fn start(masters: usize, with_replicas: bool) -> Self {
        let count = if with_replicas { masters * 2 } else { masters };
        let node = |_| Node { port: free_port(), folder: TempDir::new().expect("a temporary folder"), process: None };
        let mut cluster = Self { masters, nodes: (0..count).map(node).collect() };
        for n in 0..count {
            cluster.launch(n);
        }
        for n in 0..masters {
            // Without epochs of their own they could not settle who has a slot.
            cluster.run(n, &format!("CLUSTER SET-CONFIG-EPOCH {}", n + 1));
            let slots: Vec<String> =
                (SLOTS * n / masters..SLOTS * (n + 1) / masters).map(|slot| slot.to_string()).collect();
            cluster.run(n, &format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
        }
        for n in 1..count {
            cluster.run(0, &format!("CLUSTER MEET 127.0.0.1 {}", cluster.nodes[n].port));
        }
        let known = format!("cluster_known_nodes:{count}");
        for n in 0..count {
            cluster.wait_for(n, "CLUSTER INFO", &["cluster_state:ok", &known]);
        }
        for n in masters..count {
            cluster.run(n, &format!("CLUSTER REPLICATE {}", cluster.id(n - masters)));
            cluster.wait_for(n, "INFO replication", &["master_link_status:up"]);
        }
        cluster
    }

    /// The masters' URLs.
    pub fn urls(&self) -> Vec<String> {
        self.nodes[..self.masters].iter().map(|node| format!("redis://127.0.0.1:{}", node.port)).collect()
    }

    /// Runs one command on a node, its words separated by spaces; `Err` when the node refuses.
    pub fn try_run(&self, node: usize, command: &str) -> redis::RedisResult<Value> {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().expect("a command"));
        words.for_each(|word| {
            cmd.arg(word);
        });
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.nodes[node].port))?;
        cmd.query(&mut client.get_connection_with_timeout(Duration::from_secs(5))?)
    }

    /// The same with a node that must not refuse.
    pub fn run(&self, node: usize, command: &str) -> Value {
        self.try_run(node, command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// What a command answers as text.
    pub fn text(&self, node: usize, command: &str) -> String {
        redis::from_redis_value(self.run(node, command)).expect("text")
    }

    /// Starts a node that does not run; it has forgotten its data, and remembers the cluster.
    pub fn launch(&mut self, node: usize) {
        let started = Instant::now();
        let is_new = self.log(node).is_empty();
        self.spawn(node);
        while self.try_run(node, "PING").is_err() {
            if self.nodes[node].process.as_mut().is_some_and(Watched::has_ended) {
                // Somebody else took the port since it was found free, or has not given it back yet.
                if is_new {
                    self.nodes[node].port = free_port();
                }
                self.spawn(node);
            }
            let log = self.log(node);
            assert!(started.elapsed() < START_TIMEOUT, "redis-server does not start; `make setup` installs it\n{log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn spawn(&mut self, node: usize) {
        let Node { port, folder, process } = &mut self.nodes[node];
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .args(["--logfile", "log", "--cluster-enabled", "yes", "--cluster-node-timeout", "1000"])
            // Only a test promotes, when it is time.
            .args(["--cluster-replica-no-failover", "yes", "--repl-diskless-sync-delay", "0", "--dir"])
            .arg(folder.path());
        *process = Some(Watched::start(&command, Stdio::null()));
    }

    /// What a node has logged.
    fn log(&self, node: usize) -> String {
        std::fs::read_to_string(self.nodes[node].folder.path().join("log")).unwrap_or_default()
    }

    /// Kills a node.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].process = None;
    }

    /// Waits until all other masters have noticed that a node is gone, and serve no more.
    pub fn wait_until_missed(&self, gone: usize) {
        for node in (0..self.masters).filter(|node| *node != gone) {
            self.wait_for(node, "CLUSTER INFO", &["cluster_state:fail"]);
        }
    }

    /// Makes a replica hear no more from its master, so that a failover to it loses what is written from now on.
    pub fn cut_off(&self, replica: usize) {
        self.run(replica, "CONFIG SET masteruser nobody");
        self.run(replica, "CONFIG SET masterauth wrong");
        self.run(replica, "CLIENT KILL TYPE master");
        self.wait_for(replica, "INFO replication", &["master_link_status:down"]);
    }

    /// Makes a replica the master, whatever it has and whoever agrees, and waits until it serves.
    pub fn promote(&self, replica: usize) {
        self.run(replica, "CLUSTER FAILOVER TAKEOVER");
        self.wait_for(replica, "INFO replication", &["role:master"]);
        self.wait_for(replica, "CLUSTER INFO", &["cluster_state:ok"]);
    }

    /// The master that has `key`.
    pub fn owner(&self, key: &str) -> usize {
        let mut nodes = 0..self.nodes.len();
        nodes.find(|n| self.try_run(*n, &format!("EXISTS {key}")).is_ok()).expect("a master has each key")
    }

    /// Moves the slot of `key` to another master key by key, with a pause after each, as a resharding does.
    pub fn move_slot(&self, key: &str, to: usize, pause: Duration) {
        let from = self.owner(key);
        let slot = self.text(from, &format!("CLUSTER KEYSLOT {key}"));
        self.run(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.id(from)));
        self.run(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.id(to)));
        loop {
            std::thread::sleep(pause);
            let keys: Vec<String> =
                redis::from_redis_value(self.run(from, &format!("CLUSTER GETKEYSINSLOT {slot} 1"))).expect("keys");
            let Some(key) = keys.first() else { break };
            self.run(from, &format!("MIGRATE 127.0.0.1 {} {key} 0 5000", self.nodes[to].port));
        }
        for node in [to, from] {
            self.run(node, &format!("CLUSTER SETSLOT {slot} NODE {}", self.id(to)));
        }
    }

    /// All keys of the masters that begin with `prefix`, by node.
    pub fn keys(&self, prefix: &str) -> Vec<Vec<String>> {
        let keys = |n| redis::from_redis_value(self.run(n, &format!("KEYS {prefix}*"))).expect("keys");
        (0..self.masters).map(keys).collect()
    }

    /// How many ids stand in the sorted sets `future` or `lease`, or in the lists `topic`, on the masters.
    pub fn count(&self, kind: &str) -> usize {
        let command = if kind == "topic" { "LLEN" } else { "ZCARD" };
        let keys = self.keys(&format!("{kind}:"));
        let on = |(n, keys): (usize, Vec<String>)| -> usize {
            keys.iter()
                .map(|key| redis::from_redis_value::<usize>(self.run(n, &format!("{command} {key}"))).expect("a count"))
                .sum()
        };
        keys.into_iter().enumerate().map(on).sum()
    }

    /// How many connections a node has taken since its start, this one too.
    pub fn connections(&self, node: usize) -> usize {
        let stats = self.text(node, "INFO stats");
        let value = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        value.expect("a count").trim().parse().expect("a number")
    }

    /// How often the masters have answered with this error.
    pub fn errors(&self, word: &str) -> usize {
        let name = format!("errorstat_{word}:count=");
        let of = |n| {
            let stats = self.text(n, "INFO errorstats");
            stats.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse().ok()).unwrap_or(0)
        };
        (0..self.masters).map(of).sum()
    }

    fn id(&self, node: usize) -> String {
        self.text(node, "CLUSTER MYID")
    }

    fn wait_for(&self, node: usize, command: &str, wanted: &[&str]) {
        let started = Instant::now();
        loop {
            let text = self.text(node, command);
            if wanted.iter().all(|wanted| text.lines().any(|line| line.trim() == *wanted)) {
                return;
            }
            assert!(started.elapsed() < START_TIMEOUT, "{command} of node {node} never says {wanted:?}:\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
