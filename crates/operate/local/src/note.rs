//! What the supervisor of a cluster has to say, for those who ask while no daemon answers.
//!
//! The file has one size and is written in place, so that it can be written on a full disk too.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use bedplate_drivers::StateDirectory;
use serde::{Deserialize, Serialize};

const FILE: &str = "supervisor.json";
const SIZE: usize = 4096;
/// Of each text, so that all fit.
const LONGEST: usize = 600;
const MOST: usize = 4;

/// `supervisor.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorNote {
    pub pid: u32,
    /// Where the daemon listens, or listened last; the supervisor holds that port.
    pub address: Option<SocketAddr>,
    pub troubles: Vec<Trouble>,
}

/// Something that does not run as it should.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// `the daemon`, or the name of a node.
    pub what: String,
    pub why: String,
    pub since_ms: u64,
    /// How often a new start has failed.
    pub failures: u32,
}

impl SupervisorNote {
    /// Of the directory's last supervisor; nothing where it left none that can be read.
    pub fn read(state: &StateDirectory) -> Option<Self> {
        let bytes = fs::read(state.path().join(FILE)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    pub(crate) fn write(&self, state: &StateDirectory) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file =
            options.write(true).create(true).truncate(false).mode(0o600).open(state.path().join(FILE))?;
        file.write_all_at(&self.padded(), 0)
    }

    fn padded(&self) -> Vec<u8> {
        let cut = |text: &str| text.chars().filter(|c| !c.is_control()).take(LONGEST).collect::<String>();
        let shown = |trouble: &Trouble| Trouble {
            what: cut(&trouble.what),
            why: cut(&trouble.why),
            ..trouble.clone()
        };
        let mut note =
            Self { troubles: self.troubles.iter().take(MOST).map(shown).collect(), ..self.clone() };
        loop {
            let mut bytes = serde_json::to_vec(&note).expect("it is plain data");
            if bytes.len() <= SIZE || note.troubles.pop().is_none() {
                bytes.resize(SIZE, b' ');
                return bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_any_length_takes_the_same_room_and_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory(folder.path().to_owned());
        assert_eq!(SupervisorNote::read(&state), None);
        let trouble = |why: &str| Trouble { what: "n".into(), why: why.into(), since_ms: 1, failures: 2 };
        for count in [0, 1, 3, 900] {
            let troubles = vec![trouble(&"\u{1f4a5}\"".repeat(count)); count];
            let note = SupervisorNote { pid: 7, address: "[::1]:9".parse().ok(), troubles };
            note.write(&state).unwrap();
            let read = SupervisorNote::read(&state).unwrap();
            assert_eq!((read.pid, read.address), (7, note.address));
            assert_eq!(read.troubles.is_empty(), count == 0, "{count}");
            assert_eq!(fs::metadata(state.path().join(FILE)).unwrap().len(), SIZE as u64);
        }
    }
}
