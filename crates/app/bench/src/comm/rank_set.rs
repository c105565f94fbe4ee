//! A rank set: processes that measure collectives together, ours or those of a peer.
//!
//! Every rank connects to a socket of this command and then does what each line says, so rank sets can take turns size by size: a
//! rank set whose turn it is not waits for a line and uses no processor. The end of the connection is the end of a rank.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_diag::{Diagnostic, Page};
use bedplate_terminal::benchmarks::RANKS_FAILED;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::question::{Case, Effort};

/// Importing a large library on a busy machine takes long.
const START: Duration = Duration::from_secs(240);
/// Of one size; the slowest peer takes a minute for the largest one.
const ANSWER: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(10);
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(in super::super) enum RankSetError {
    #[error("cannot start {what}")]
    Start { what: String, source: io::Error },
    #[error("the ranks of {rank_set} {what}{}", said(log))]
    Failed { rank_set: String, what: String, log: String },
    #[error("cannot make a folder for the ranks' socket")]
    Folder { source: io::Error },
}

fn said(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; the last they said: {log}") }
}

impl Diagnostic for RankSetError {
    fn page(&self) -> &'static Page {
        &RANKS_FAILED
    }
}

/// A folder of this run that only its user reaches; gone with its owner.
pub(in super::super) struct Folder(PathBuf);

impl Folder {
    pub(in super::super) fn make() -> Result<Self, RankSetError> {
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("bedplate-comm-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(|source| RankSetError::Folder { source })?;
        Ok(Self(path))
    }

    pub(in super::super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Processes that have all connected.
pub(in super::super) struct RankSet {
    name: String,
    folder: Folder,
    processes: Vec<Child>,
    pids: Vec<i32>,
    /// By rank.
    links: Vec<BufReader<UnixStream>>,
}

/// What the ranks found for one case.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    Measured {
        algorithm: String,
        wrong: u64,
        /// Of the slowest rank, one for each sample.
        nanoseconds: Vec<f64>,
    },
    /// The rank set has no such operation on this format.
    Lacking(String),
}

impl RankSet {
    /// Starts what `commands` gives for a socket's path and waits until all ranks have connected and are ready.
    pub(in super::super) fn start(
        name: &str,
        ranks: u32,
        commands: impl FnOnce(&Path) -> Result<Vec<Command>, RankSetError>,
    ) -> Result<Self, RankSetError> {
        let folder = Folder::make()?;
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|source| RankSetError::Folder { source })?;
        let commands = commands(&socket)?;
        let (processes, pids, links) = (Vec::new(), Vec::new(), Vec::new());
        let mut rank_set = Self { name: name.to_owned(), folder, processes, pids, links };
        for command in commands {
            rank_set.spawn(command)?;
        }
        rank_set.gather(&listener, ranks)?;
        for rank in 0..rank_set.links.len() {
            let line = rank_set.line(rank, START)?;
            if line != "ready" {
                return Err(rank_set.failed(format!("said `{line}` before they were ready")));
            }
        }
        Ok(rank_set)
    }

    fn spawn(&mut self, mut command: Command) -> Result<(), RankSetError> {
        let start = |source| RankSetError::Start { what: self.name.clone(), source };
        let log = File::options().create(true).append(true).open(self.log_path()).map_err(start)?;
        let same = log.try_clone().map_err(start)?;
        command.stdin(Stdio::null()).stdout(same).stderr(log);
        self.processes.push(command.spawn().map_err(start)?);
        Ok(())
    }

    fn gather(&mut self, listener: &UnixListener, ranks: u32) -> Result<(), RankSetError> {
        let began = Instant::now();
        let mut arrived: Vec<Option<BufReader<UnixStream>>> = (0..ranks).map(|_| None).collect();
        while arrived.iter().any(Option::is_none) {
            if let Some((rank, link)) = self.accepted(listener)? {
                match arrived.get_mut(rank) {
                    Some(place) if place.is_none() => *place = Some(link),
                    _ => return Err(self.failed(format!("include a rank {rank} too many"))),
                }
            } else if self.has_ended() {
                return Err(self.failed("ended before they had connected".to_owned()));
            } else if began.elapsed() > START {
                return Err(self.failed(format!("did not connect within {} s", START.as_secs())));
            } else {
                thread::sleep(PAUSE);
            }
        }
        self.links = arrived.into_iter().flatten().collect();
        Ok(())
    }

    /// A rank that has connected, by the first line it says: `rank RANK PROCESS`.
    fn accepted(
        &mut self,
        listener: &UnixListener,
    ) -> Result<Option<(usize, BufReader<UnixStream>)>, RankSetError> {
        let Ok((stream, _)) = listener.accept() else { return Ok(None) };
        let ready = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(START)));
        let mut link = BufReader::new(stream);
        let mut line = String::new();
        let read = ready.and_then(|()| link.read_line(&mut line));
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = match (read, &words[..]) {
            (Ok(_), ["rank", rank, process]) => rank.parse().ok().zip(process.parse().ok()),
            _ => None,
        };
        let Some((rank, process)) = found else {
            return Err(self.failed(format!("introduced themselves with `{}`", line.trim())));
        };
        self.pids.push(process);
        Ok(Some((rank, link)))
    }

    fn has_ended(&mut self) -> bool {
        self.processes.iter_mut().any(|process| !matches!(process.try_wait(), Ok(None)))
    }

    pub(super) fn measure(&mut self, case: &Case, effort: Effort) -> Result<Answer, RankSetError> {
        let Case { operation, format, bytes, .. } = case;
        let Effort { warmup, samples, calls } = effort;
        let answers =
            self.ask(&format!("measure {operation} {format} {bytes} {warmup} {samples} {calls}"))?;
        combined(&answers).map_err(|what| self.failed(what))
    }

    /// Gives every rank a line and takes their answers, by rank.
    pub(in super::super) fn ask(&mut self, line: &str) -> Result<Vec<String>, RankSetError> {
        for rank in 0..self.links.len() {
            let sent = self.links[rank].get_mut().write_all(format!("{line}\n").as_bytes());
            sent.map_err(|error| self.failed(format!("are gone: {error}")))?;
        }
        (0..self.links.len()).map(|rank| self.line(rank, ANSWER)).collect()
    }

    fn line(&mut self, rank: usize, at_most: Duration) -> Result<String, RankSetError> {
        let link = &mut self.links[rank];
        let mut line = String::new();
        let read = link.get_ref().set_read_timeout(Some(at_most)).and_then(|()| link.read_line(&mut line));
        match read {
            Ok(0) => Err(self.failed(format!("are not complete: rank {rank} ended"))),
            Ok(_) => Ok(line.trim().to_owned()),
            Err(error) => Err(self.failed(format!("gave no answer: rank {rank}: {error}"))),
        }
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    pub(in super::super) fn failed(&self, what: String) -> RankSetError {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let tail = String::from_utf8_lossy(&log[log.len().saturating_sub(4096)..]).into_owned();
        let last = tail.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        RankSetError::Failed { rank_set: self.name.clone(), what, log: last.to_owned() }
    }
}

impl Drop for RankSet {
    fn drop(&mut self) {
        self.links.clear();
        let began = Instant::now();
        let is_running = |process: &mut Child| matches!(process.try_wait(), Ok(None));
        while self.processes.iter_mut().any(is_running) && began.elapsed() < FAREWELL {
            thread::sleep(PAUSE);
        }
        if self.processes.iter_mut().any(is_running) {
            // Ranks may be children of a launcher, which does not end before them.
            for pid in &self.pids {
                let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
            }
        }
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What the ranks say together: the slowest of them is the time of a sample.
fn combined(answers: &[String]) -> Result<Answer, String> {
    let mut slowest: Vec<f64> = Vec::new();
    let (mut algorithm, mut wrong) = (String::new(), 0);
    for answer in answers {
        let bad = || format!("answered `{answer}`");
        let mut words = answer.split_whitespace();
        match words.next() {
            Some("ok") => {}
            Some("no") => return Ok(Answer::Lacking(words.collect::<Vec<_>>().join(" "))),
            _ => return Err(bad()),
        }
        algorithm = words.next().ok_or_else(bad)?.to_owned();
        wrong += words.next().and_then(|word| word.parse::<u64>().ok()).ok_or_else(bad)?;
        let times: Option<Vec<f64>> = words.map(|word| word.parse().ok()).collect();
        let times = times.filter(|times| !times.is_empty()).ok_or_else(bad)?;
        slowest.resize(times.len(), 0.0);
        for (slowest, time) in slowest.iter_mut().zip(times) {
            *slowest = slowest.max(time);
        }
    }
    Ok(Answer::Measured { algorithm, wrong, nanoseconds: slowest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn a_sample_takes_as_long_as_its_slowest_rank() {
        let answer = combined(&lines(&["ok ring 0 10 50", "ok ring 2 30 20"]));
        let expected = Answer::Measured { algorithm: "ring".into(), wrong: 2, nanoseconds: vec![30.0, 50.0] };
        assert_eq!(answer, Ok(expected));
        let lacking = combined(&lines(&["no such type", "no such type"]));
        assert_eq!(lacking, Ok(Answer::Lacking("such type".into())));
        assert!(combined(&lines(&["ok ring 0"])).is_err());
        assert!(combined(&lines(&["what"])).is_err());
    }

    #[test]
    fn ranks_that_end_early_are_an_error_with_their_last_words() {
        let start = RankSet::start("theirs", 2, |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo no such library >&2; exit 3"]);
            Ok(vec![command])
        });
        let error = start.err().map(|error| error.to_string());
        let expected =
            "the ranks of theirs ended before they had connected; the last they said: no such library";
        assert_eq!(error.as_deref(), Some(expected));
    }
}
