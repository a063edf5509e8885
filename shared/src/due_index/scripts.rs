//! The Lua scripts, one file each, with their KEYS and ARGV told in its header.

use super::link::{Call, Script};

/// A script of this crate by its file's name.
macro_rules! script {
    ($file:literal) => {{
        const TEXT: &str = include_str!(concat!("../lua/", $file, ".lua"));
        Script::new($file, TEXT, || redis::Script::new(TEXT).get_hash().to_owned())
    }};
}

/// Takes what is due.
pub static LEASE_DUE: Script = script!("lease_due");
/// Puts ids where they belong.
pub static PLACE_IDS: Script = script!("place_ids");
/// Gives unused leases back.
pub static RETURN_IDS: Script = script!("return_ids");
/// Makes Redis know pending tasks.
pub static LOAD_IDS: Script = script!("load_ids");
/// Moves what is due into the list.
pub static PROMOTE_DUE: Script = script!("promote_due");
/// Releases a lock.
pub static RELEASE_LOCK: Script = script!("release_lock");

impl Script {
    /// A call of this script.
    pub fn call(&'static self, keys: impl IntoIterator<Item = String>, arguments: Vec<String>) -> Call {
        Call::Script { script: self, keys: keys.into_iter().collect(), arguments }
    }
}

#[cfg(test)]
mod tests {
    /// Each script's header names what the design asks for, and as many KEYS as the script uses.
    #[test]
    fn every_script_has_a_whole_header() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lua");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).expect("the folder of scripts") {
            let path = entry.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("a script");
            let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
            for part in ["Purpose:", "KEYS:", "ARGV:", "Returns:", "Atomicity:", "Repeat:"] {
                assert!(header.iter().any(|line| line.contains(part)), "{path:?} lacks {part}");
            }
            let told = header.iter().find(|line| line.contains("KEYS:")).expect("checked above");
            let told = told.trim_end_matches(" of one partition").split(',').count();
            let used = (1..9).filter(|n| text.contains(&format!("KEYS[{n}]"))).count();
            assert_eq!(told, used, "{path:?}");
            seen += 1;
        }
        assert_eq!(seen, 6);
    }
}
