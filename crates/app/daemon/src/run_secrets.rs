//! What the ranks of a run know and strangers do not: by it they recognise each other when they meet.
//!
//! It follows from a key in the state directory and the run, so all nodes of a run get the same, also from a daemon that was
//! started again, and none of it is in the journal.

use bedplate_control::wire::{RunId, ToAgent};
use ring::hmac;

use crate::error::DaemonError;
use crate::state::StateDirectory;
use crate::tokens::{hexadecimal, random_bytes};

const FILE: &str = "run.key";
/// Where `bedplate-comm` looks for it.
const VARIABLE: &str = "BEDPLATE_SECRET";

#[derive(Debug)]
pub(crate) struct RunSecrets(hmac::Key);

impl RunSecrets {
    pub(crate) fn open(state: &StateDirectory) -> Result<Self, DaemonError> {
        let key = match state.read(FILE)?.filter(|key| key.len() >= 32) {
            Some(key) => key,
            None => {
                let key = random_bytes::<32>().to_vec();
                state.write(FILE, &key)?;
                key
            }
        };
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// Adds the secret to what a node is told of a run, unless the job has one of its own.
    pub(crate) fn add_to(&self, message: &mut ToAgent) {
        if let ToAgent::Prepare(launch) = message {
            // Newcomers know what those know whom they join.
            let number = launch.joins.unwrap_or(launch.run.number);
            let secret = self.of(&RunId { number, ..launch.run });
            launch.environment.entry(VARIABLE.to_owned()).or_insert(secret);
        }
    }

    fn of(&self, run: &RunId) -> String {
        hexadecimal(hmac::sign(&self.0, format!("{}.{}", run.job, run.number).as_bytes()).as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_one_secret_also_after_a_restart_and_other_runs_have_others() {
        let folder = std::env::temp_dir().join(format!("bedplate-secrets-{}", std::process::id()));
        let state = StateDirectory::open(&folder).unwrap();
        let open = || RunSecrets::open(&state).unwrap();
        let run = |job, number| RunId { job, number };
        assert_eq!(open().of(&run(7, 1)), open().of(&run(7, 1)));
        assert_ne!(open().of(&run(7, 1)), open().of(&run(7, 2)));
        assert_ne!(open().of(&run(7, 1)), open().of(&run(8, 1)));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
