//! `bedplate watch --follow`: a log that grows, judged again and again; what is wrong is said once, when it is sure.
//!
//! It ends when it is interrupted. A log that is cut or replaced by a new file is read from its beginning.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_diagnose::{Case, NamedLog, diagnose};
use bedplate_host::open_regular;
use bedplate_logs::{LogReader, Origin, Recognizer};
use bedplate_terminal::present::now_ms;
use bedplate_terminal::{CliError, Console, files};
use serde_json::json;

use super::say_steps;

const LOOK_EVERY: Duration = Duration::from_millis(250);
const JUDGE_EVERY: Duration = Duration::from_secs(2);
/// A new file stands for a new run.
const PIECE: usize = 1 << 16;

struct Followed<'a> {
    file: File,
    reader: LogReader<'a>,
    /// Steps that were printed.
    said: usize,
    read: u64,
}

pub(super) fn follow(path: &str, recognizer: &Recognizer, console: &mut Console) -> Result<(), CliError> {
    let failed = |source| files::FileError::Read { path: path.to_owned(), source };
    let mut followed = open(path, recognizer).map_err(failed)?;
    let mut told = BTreeSet::new();
    let mut judged = Instant::now();
    loop {
        let has_grown = followed.read_on().map_err(failed)?;
        followed.said = say_steps(followed.reader.so_far(), followed.said, recognizer, console)?;
        if judged.elapsed() >= JUDGE_EVERY {
            judged = Instant::now();
            judge(path, &followed.reader, recognizer, &mut told, console)?;
        }
        if !has_grown {
            thread::sleep(LOOK_EVERY);
            // A log that is being replaced is not there for a moment.
            if let Ok(true) = followed.is_replaced(path) {
                followed = open(path, recognizer).map_err(failed)?;
            }
        }
    }
}

fn open<'a>(path: &str, recognizer: &'a Recognizer) -> io::Result<Followed<'a>> {
    let file = open_regular(path.as_ref())?;
    let reader = LogReader::new(recognizer).of(Origin::of_path(path));
    Ok(Followed { file, reader, said: 0, read: 0 })
}

impl Followed<'_> {
    /// Takes what is there now; says whether that was anything.
    fn read_on(&mut self) -> io::Result<bool> {
        let mut piece = vec![0; PIECE];
        let before = self.read;
        loop {
            match self.file.read(&mut piece) {
                Ok(0) => return Ok(self.read > before),
                Ok(count) => {
                    self.read += count as u64;
                    self.reader.feed(&piece[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn is_replaced(&self, path: &str) -> io::Result<bool> {
        let (there, open) = (std::fs::metadata(path)?, self.file.metadata()?);
        let is_cut = there.len() < self.read;
        Ok(is_cut || (there.dev(), there.ino()) != (open.dev(), open.ino()))
    }
}

/// Says each firm verdict once; one that has passed is said again when it comes back.
fn judge(
    path: &str,
    reader: &LogReader<'_>,
    recognizer: &Recognizer,
    told: &mut BTreeSet<String>,
    console: &mut Console,
) -> Result<(), CliError> {
    let log = NamedLog { name: path.to_owned(), log: reader.so_far().clone() };
    let case = Case { logs: vec![log], now: Some(now_ms() as f64 / 1000.0), ..Case::default() };
    let firm: Vec<_> =
        diagnose(&case, recognizer).verdicts.into_iter().filter(|verdict| verdict.is_firm).collect();
    for verdict in firm.iter().filter(|verdict| !told.contains(&verdict.in_short())) {
        match console.is_json() {
            true => {
                console.line(&json!({ "verdict": verdict, "summary": verdict.to_string() }).to_string())?
            }
            false => {
                console.line(&verdict.to_string())?;
                if let Some(next) = verdict.next.first() {
                    console.line(&format!("  next: {next}"))?;
                }
            }
        }
    }
    *told = firm.iter().map(|verdict| verdict.in_short()).collect();
    Ok(())
}
