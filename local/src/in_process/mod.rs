//! The SDK's way to the embedded DynamoDB: a call within the process where others have a connection.
//!
//! One thread has the database and runs one request after the other, of each caller in turn, so that one with a hundred
//! tasks in hand does not keep one with a single task waiting for long; what is to be written then shares a commit. A
//! second thread brings what was written to the disk and answers: all that was done during a flush shares the next.

mod operation;
mod shared_commit;
mod turns;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::auth::{Params, ResolveAuthScheme};
use aws_sdk_dynamodb::config::http::{HttpRequest, HttpResponse};
use aws_sdk_dynamodb::config::{ConfigBag, HttpClient, RuntimeComponents};
use aws_smithy_runtime_api::client::auth::AuthSchemeOptionsFuture;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use dynoxide::{Database, DynoxideError};
use punctual_core::table::connect_to;
use tokio::sync::oneshot;
use tokio::task;

use self::operation::{Answer, Operation};
use self::shared_commit::{SharedWrite, commit};
use self::turns::Turns;

/// What the SDK takes for the address.
const ENDPOINT: &str = "http://in.process";
/// Writes that share a commit at most. Twice as many bring about a fifth more tasks a second in batches of 100, but whoever
/// comes meanwhile waits for all of them.
const SHARING: usize = 8;

/// An HTTP client of the SDK that has the database at hand.
#[derive(Clone, Debug)]
pub struct InProcess(Sender<Job>);

struct Job {
    /// The task that asks: each request to the runner, each tick and each handler's run is one of its own.
    caller: Option<task::Id>,
    operation: Operation,
    answer: oneshot::Sender<Answer>,
}

/// A request that was run, and waits for the disk.
struct Done {
    answer: Answer,
    wrote: bool,
    to: oneshot::Sender<Answer>,
}

impl InProcess {
    /// Starts the threads of the database, whose write-ahead log is `log` if it has one. They end with the last client.
    pub fn new(database: Database, log: Option<PathBuf>) -> io::Result<Self> {
        let (sender, jobs) = channel();
        let (ran, done) = channel();
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        thread("dynamodb").spawn(move || work(&jobs, &database, &ran))?;
        thread("dynamodb-disk").spawn(move || answer(&done, Log::new(log)))?;
        Ok(Self(sender))
    }

    /// The SDK's client that takes this way.
    pub async fn client(self) -> Client {
        let config = connect_to(ENDPOINT).await.config().to_builder().http_client(self);
        // Nobody would check a signature.
        Client::from_conf(config.auth_scheme_resolver(Unsigned).allow_no_auth().build())
    }
}

/// Offers no way to sign a request.
#[derive(Debug)]
struct Unsigned;

impl ResolveAuthScheme for Unsigned {
    fn resolve_auth_scheme<'a>(
        &'a self,
        _: &'a Params,
        _: &'a ConfigBag,
        _: &'a RuntimeComponents,
    ) -> AuthSchemeOptionsFuture<'a> {
        AuthSchemeOptionsFuture::ready(Ok(Vec::new()))
    }
}

impl HttpClient for InProcess {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for InProcess {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let sent = Operation::read(&request).map(|operation| {
            let (answer, answered) = oneshot::channel();
            // A thread that has ended drops the job, and with it the answer's sender.
            let _ = self.0.send(Job { caller: task::try_id(), operation, answer });
            answered
        });
        HttpConnectorFuture::new(async move {
            let answer = match sent {
                Ok(answered) => answered.await.map_err(|gone| ConnectorError::io(gone.into()))?,
                Err(refused) => Err(refused),
            };
            let (status, body) = match answer.and_then(|body| body()) {
                Ok(body) => (200, body),
                Err(error) => (error.status_code(), error.to_json()),
            };
            let status = status.try_into().map_err(|wrong| ConnectorError::other(Box::new(wrong), None))?;
            Ok(HttpResponse::new(status, SdkBody::from(body)))
        })
    }
}

fn work(jobs: &Receiver<Job>, database: &Database, ran: &Sender<Done>) {
    let mut turns = Turns::default();
    while let Some(first) = turns.take().or_else(|| jobs.recv().ok()) {
        for waiting in jobs.try_iter() {
            turns.add(waiting.caller, waiting);
        }
        let next = std::iter::once(first).chain(std::iter::from_fn(|| turns.take())).take(SHARING);
        let (sharing, mut alone): (Vec<Job>, Vec<Job>) = next.partition(|job| job.operation.shared().is_some());
        alone.extend(share(sharing, database, ran));
        for Job { operation, answer, .. } in alone {
            let wrote = operation.writes();
            done(ran, answer, wrote, operation.run(database));
        }
    }
}

/// Does what it can of `jobs` in one commit; returns those that must be done alone.
fn share(mut jobs: Vec<Job>, database: &Database, ran: &Sender<Done>) -> Vec<Job> {
    let mut alone = Vec::new();
    while jobs.len() > 1 {
        let writes: Vec<&SharedWrite> = jobs.iter().filter_map(|job| job.operation.shared()).collect();
        match commit(database, &writes) {
            Ok(answers) => {
                for (job, answer) in jobs.into_iter().zip(answers) {
                    done(ran, job.answer, true, answer);
                }
                return alone;
            }
            Err(refused) => {
                let mut refused = refused.into_iter();
                let (refused, rest): (Vec<Job>, Vec<Job>) =
                    jobs.into_iter().partition(|_| refused.next() == Some(true));
                alone.extend(refused);
                jobs = rest;
            }
        }
    }
    alone.extend(jobs);
    alone
}

fn done(ran: &Sender<Done>, to: oneshot::Sender<Answer>, wrote: bool, answer: Answer) {
    // Without the other thread nobody is answered: as with a connection that is cut.
    let _ = ran.send(Done { answer, wrote, to });
}

/// Reads wait for the disk too: they may have seen what is not there yet.
fn answer(done: &Receiver<Done>, mut log: Log) {
    while let Ok(first) = done.recv() {
        let group: Vec<Done> = std::iter::once(first).chain(done.try_iter()).collect();
        let flushed = if group.iter().any(|done| done.wrote) { log.flush() } else { Ok(()) };
        for done in group {
            let answer = match &flushed {
                Ok(()) => done.answer,
                Err(error) => Err(DynoxideError::InternalServerError(format!("the disk: {error}"))),
            };
            // Nobody waits for it any more: as with an answer that is lost on the way.
            let _ = done.to.send(answer);
        }
    }
}

/// SQLite's write-ahead log, which has every commit.
struct Log {
    path: Option<PathBuf>,
    file: Option<File>,
}

impl Log {
    fn new(path: Option<PathBuf>) -> Self {
        Self { path, file: None }
    }

    /// Brings all commits so far to the disk.
    fn flush(&mut self) -> io::Result<()> {
        let file = match (&mut self.file, &self.path) {
            (Some(file), _) => file,
            // SQLite makes it with the first write, and keeps it until the database is closed.
            (file, Some(path)) => file.insert(File::open(path)?),
            (None, None) => return Ok(()),
        };
        file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_dynamodb::error::ProvideErrorMetadata;
    use aws_sdk_dynamodb::types::AttributeValue::S;
    use aws_sdk_dynamodb::types::{AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType};

    async fn client(database: Database, log: Option<PathBuf>) -> Client {
        let client = InProcess::new(database, log).expect("a thread").client().await;
        let id = AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S).build();
        let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build();
        let table = client.create_table().table_name("things").billing_mode(BillingMode::PayPerRequest);
        let table = table.attribute_definitions(id.expect("complete")).key_schema(key.expect("complete"));
        table.send().await.expect("a table");
        client
    }

    #[tokio::test]
    async fn conditions_that_fail_and_operations_that_are_unknown_are_told_apart() {
        let client = client(Database::memory().expect("a database"), None).await;
        let put = || client.put_item().table_name("things").item("id", S("a".to_owned()));
        put().send().await.expect("stored");
        let again = put().condition_expression("attribute_not_exists(id)").send().await.expect_err("refused");
        assert_eq!(again.code(), Some("ConditionalCheckFailedException"));
        let unknown = client.list_tables().send().await.expect_err("refused");
        assert!(unknown.message().is_some_and(|text| text.contains("ListTables")), "{unknown:?}");
    }

    #[tokio::test]
    async fn a_write_is_not_acknowledged_when_the_disk_does_not_take_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::memory().expect("a database");
        let put = |client: Client| client.put_item().table_name("things").item("id", S("a".to_owned())).send();
        put(client(database.clone(), None).await).await.expect("no disk, no doubt");

        let log = Some(folder.path().join("nowhere"));
        let client = InProcess::new(database, log).expect("a thread").client().await;
        let refused = put(client).await.expect_err("not brought to the disk");
        assert_eq!(refused.raw_response().map(|answer| answer.status().as_u16()), Some(500), "{refused:?}");
    }

    #[tokio::test]
    async fn writes_that_wait_together_are_all_answered() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file.sqlite3");
        let database = Database::new(path.to_str().expect("UTF-8")).expect("a database");
        let client = client(database, Some(folder.path().join("file.sqlite3-wal"))).await;
        let write = |number: i32| {
            let put = client.put_item().table_name("things").item("id", S((number / 2).to_string()));
            put.condition_expression("attribute_not_exists(id)").send()
        };
        let answers = futures::future::join_all((0..200).map(write)).await;
        let refused: Vec<Option<&str>> =
            answers.iter().filter_map(|answer| answer.as_ref().err()).map(ProvideErrorMetadata::code).collect();
        assert_eq!(refused, [Some("ConditionalCheckFailedException"); 100], "each id was asked for twice");
        let read = client.scan().table_name("things").send().await.expect("a scan");
        assert_eq!(read.count(), 100);
    }
}
