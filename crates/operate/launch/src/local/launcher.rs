//! The ranks of a training run: started, watched, started again when they are killed, and ended together.

use std::fmt;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use bedplate_comm::LocalRendezvous;
use bedplate_supervise::{ChildProcess, RestartBackoff, RestartPolicy, end_all};
use bedplate_train::Membership;
use nix::sys::signal::Signal;

use super::{ANOTHER_FAILED, LAUNCHED, RanksError, SPARE, cannot_start};

/// How long ranks have to end after one of them has failed, or has reached the end.
const GRACE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);
/// The note of the ranks is read this seldom.
const LOOKS_PER_NOTE: u32 = 10;

/// What is to be started.
pub struct LocalLaunch<'a> {
    pub ranks: u32,
    pub spares: u32,
    /// How often ranks that were killed are started again.
    pub restarts: u32,
    /// Makes the process of a rank, without what it is told of the others.
    pub command: &'a dyn Fn() -> Command,
    /// Where ranks that wait leave a sign.
    pub output: PathBuf,
    pub stop: &'a AtomicBool,
    /// Hears what becomes of the ranks.
    pub remark: &'a dyn Fn(&str),
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalEnd {
    Well,
    /// A rank failed with this exit code, and has said why.
    Failed(u8),
}

impl LocalLaunch<'_> {
    /// Runs to the end of all ranks.
    pub fn run(&self) -> Result<LocalEnd, RanksError> {
        let mut watch = Watch::begin(self)?;
        while !watch.is_over() {
            std::thread::sleep(LOOK);
            watch.pass_on_the_wish_to_stop();
            let lost = watch.look();
            watch.replace(lost)?;
            watch.tell_who_is_waited_for();
            watch.end_those_who_stand_still();
        }
        watch.end()
    }
}

/// One process that was started.
struct Started {
    rank: u32,
    process: ChildProcess,
    is_spare: bool,
    /// What a rank other than the first says on standard error, which only matters if it fails first.
    said: Option<JoinHandle<Vec<u8>>>,
}

impl Started {
    /// The exit code of an error of its own.
    fn failure(&self) -> Option<u8> {
        let code = self.process.ended()?.code()?;
        (code != 0 && code != i32::from(ANOTHER_FAILED)).then_some(code.clamp(1, 255) as u8)
    }

    /// Whether it has no work: it has ended, or waits for a place.
    fn is_idle(&self, membership: &Membership) -> bool {
        self.process.ended().is_some() || membership.waits(self.process.id())
    }
}

/// A rank that was killed from outside.
#[derive(Clone)]
struct Lost {
    rank: u32,
    signal: String,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} was killed by {}", self.rank, self.signal)
    }
}

impl From<Lost> for RanksError {
    fn from(Lost { rank, signal }: Lost) -> Self {
        RanksError::Killed { rank, signal }
    }
}

/// Why a run fails.
enum Failure {
    Code(u8),
    Lost(Lost),
}

/// The processes of a run while it runs.
struct Watch<'a> {
    launch: &'a LocalLaunch<'a>,
    meeting: LocalRendezvous,
    membership: Membership,
    began: SystemTime,
    all: Vec<Started>,
    restarts: RestartBackoff,
    is_told_to_stop: bool,
    /// Why the run fails, and since when that is known.
    failed: Option<(Instant, Failure)>,
    first_failed: Option<u32>,
    first_lost: Option<Lost>,
    /// Since when a rank has reached the end of the run.
    done: Option<Instant>,
    /// When a rank was last seen that does not only wait for a place.
    last_work: Instant,
    /// Ranks that must come before the run goes on, as was last told, and how often it was looked.
    missing: u32,
    looks: u32,
}

impl<'a> Watch<'a> {
    fn begin(launch: &'a LocalLaunch<'a>) -> Result<Self, RanksError> {
        let mut watch = Self {
            launch,
            meeting: LocalRendezvous::here().map_err(cannot_start)?,
            membership: Membership::of(&launch.output),
            began: SystemTime::now(),
            all: Vec::new(),
            restarts: RestartBackoff::new(RestartPolicy::at_once(launch.restarts)),
            is_told_to_stop: false,
            failed: None,
            first_failed: None,
            first_lost: None,
            done: None,
            last_work: Instant::now(),
            missing: 0,
            looks: 0,
        };
        watch.start_all()?;
        Ok(watch)
    }

    fn say(&self, remark: &str) {
        (self.launch.remark)(remark);
    }

    fn send_all(&self, signal: Signal) {
        self.all.iter().for_each(|started| started.process.send(signal));
    }

    fn start_all(&mut self) -> Result<(), RanksError> {
        // A folder that cannot be written to is the ranks' to tell.
        let _ = self.membership.set_closed(false);
        let LocalLaunch { ranks, spares, .. } = *self.launch;
        (0..ranks + spares).try_for_each(|rank| self.start(rank, rank >= ranks))
    }

    /// Ranks that have not met yet have nothing to lose: all begin again, at another place.
    fn start_over(&mut self) -> Result<(), RanksError> {
        self.all.clear();
        self.meeting = LocalRendezvous::here().map_err(cannot_start)?;
        self.began = SystemTime::now();
        self.start_all()
    }

    fn start(&mut self, rank: u32, is_spare: bool) -> Result<(), RanksError> {
        let mut command = (self.launch.command)();
        let ranks = self.launch.ranks;
        self.meeting.tell(&mut command, rank.min(ranks - 1), ranks);
        command.env(LAUNCHED, "1").env("LOCAL_RANK", rank.to_string()).stdin(Stdio::piped());
        match is_spare {
            true => command.env(SPARE, "1"),
            false => command.env_remove(SPARE),
        };
        if rank > 0 && !is_spare {
            command.stderr(Stdio::piped());
        }
        let mut process = ChildProcess::start(&mut command).map_err(cannot_start)?;
        let said = listen(&mut process);
        self.all.push(Started { rank, process, is_spare, said });
        Ok(())
    }

    fn pass_on_the_wish_to_stop(&mut self) {
        if self.launch.stop.load(Ordering::Relaxed) && !self.is_told_to_stop {
            self.send_all(Signal::SIGTERM);
            self.is_told_to_stop = true;
        }
    }

    /// Sees which have ended, and gives those that were killed.
    fn look(&mut self) -> Vec<Lost> {
        let mut killed = Vec::new();
        for started in &mut self.all {
            let Some(status) = started.process.ends() else { continue };
            if let Some(code) = started.failure() {
                self.first_failed.get_or_insert(started.rank);
                self.failed.get_or_insert((Instant::now(), Failure::Code(code)));
            }
            if status.success() {
                self.done.get_or_insert_with(Instant::now);
            }
            if let Some(signal) = status.signal() {
                let signal = Signal::try_from(signal).map_or(format!("signal {signal}"), |is| is.to_string());
                killed.push(Lost { rank: started.rank, signal });
            }
        }
        killed
    }

    fn replace(&mut self, lost: Vec<Lost>) -> Result<(), RanksError> {
        for lost in lost {
            if self.done.is_some() || self.is_told_to_stop || self.failed.is_some() {
                return Ok(());
            }
            self.first_lost.get_or_insert(lost.clone());
            let has_met = self.membership.has_met_since(self.began);
            match self.restarts.dies(Instant::now()) {
                None if !has_met => self.failed = Some((Instant::now(), Failure::Lost(lost))),
                None => {
                    self.say(&format!("{lost}; the others go on without it"));
                    // Those that are too few without it need not wait for another.
                    self.membership.set_closed(true).map_err(cannot_start)?;
                }
                Some(_) => {
                    self.say(&format!("{lost}; it is started again"));
                    if !has_met {
                        return self.start_over();
                    }
                    self.start(lost.rank, true)?;
                }
            }
        }
        Ok(())
    }

    fn tell_who_is_waited_for(&mut self) {
        let missing =
            if self.looks.is_multiple_of(LOOKS_PER_NOTE) { self.membership.missing() } else { self.missing };
        self.looks = self.looks.wrapping_add(1);
        if missing > self.missing {
            self.say(&format!(
                "the remaining ranks are not a whole replica; the run waits for {missing} more (training.wait_seconds)"
            ));
        }
        self.missing = missing;
    }

    /// Ranks end together; one that does not stands still. Processes that all wait for a place wait in vain.
    fn end_those_who_stand_still(&mut self) {
        let since = self.failed.as_ref().map(|(since, _)| *since).or(self.done);
        if since.is_some_and(|since| since.elapsed() > GRACE) {
            self.send_all(Signal::SIGKILL);
        }
        if !self.all.iter().all(|started| started.is_idle(&self.membership)) {
            self.last_work = Instant::now();
        } else if since.is_none() && self.last_work.elapsed() > GRACE {
            let lost = self.first_lost.clone().unwrap_or(Lost { rank: 0, signal: "a signal".to_owned() });
            self.failed = Some((Instant::now(), Failure::Lost(lost)));
        }
    }

    /// Ranks that were spares may be all that is left of a run; they end with it.
    fn is_over(&self) -> bool {
        let is_at_work = |started: &Started| {
            let is_spare_or_idle = started.is_spare || started.is_idle(&self.membership);
            started.process.ended().is_none() && !is_spare_or_idle
        };
        let is_decided = self.failed.is_some() || self.done.is_some();
        let has_ended = |started: &Started| started.process.ended().is_some();
        !self.all.iter().any(is_at_work) && (is_decided || self.all.iter().all(has_ended))
    }

    /// Ends those that still wait, and tells what the rank said that failed first.
    fn end(mut self) -> Result<LocalEnd, RanksError> {
        self.send_all(Signal::SIGTERM);
        end_all(self.all.iter_mut().map(|started| &mut started.process), GRACE);
        let spoke = self.all.iter().any(|started| started.said.is_none() && started.failure().is_some());
        for started in &mut self.all {
            let said = started.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            if self.first_failed == Some(started.rank) && !spoke && !said.trim_end().is_empty() {
                (self.launch.remark)(said.trim_end());
            }
        }
        match (self.done, self.failed, self.first_lost) {
            // A rank that has reached the end has left when all had done their work.
            (Some(_), _, _) | (None, None, None) => Ok(LocalEnd::Well),
            (None, Some((_, Failure::Code(code))), _) => Ok(LocalEnd::Failed(code)),
            (None, Some((_, Failure::Lost(lost))), _) => Err(lost.into()),
            (None, None, Some(_)) if self.is_told_to_stop => Ok(LocalEnd::Well),
            (None, None, Some(lost)) => Err(lost.into()),
        }
    }
}

/// More than any error has.
const LONGEST_ERROR: u64 = 1 << 16;

fn listen(process: &mut ChildProcess) -> Option<JoinHandle<Vec<u8>>> {
    let mut pipe = process.stderr()?;
    let listen = move || {
        let mut said = Vec::new();
        let _ = pipe.by_ref().take(LONGEST_ERROR).read_to_end(&mut said);
        // The rest is read and forgotten, so that the rank does not wait.
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        said
    };
    std::thread::Builder::new().name("stderr".into()).spawn(listen).ok()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn launched(script: &str, restarts: u32) -> (Result<LocalEnd, RanksError>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let remarks = RefCell::new(Vec::new());
        let command = || {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            command
        };
        let launch = LocalLaunch {
            ranks: 2,
            spares: 0,
            restarts,
            command: &command,
            output: folder.path().to_owned(),
            stop: &AtomicBool::new(false),
            remark: &|remark| remarks.borrow_mut().push(remark.to_owned()),
        };
        let end = launch.run();
        (end, remarks.into_inner())
    }

    #[test]
    fn a_run_ends_as_its_ranks_do_and_the_failed_one_is_heard() {
        assert_eq!(launched("exit 0", 0).0.unwrap(), LocalEnd::Well);
        let (end, remarks) = launched("[ $RANK = 0 ] && exit 75; echo why >&2; exit 3", 0);
        assert_eq!((end.unwrap(), remarks), (LocalEnd::Failed(3), vec!["why".to_owned()]));
    }

    #[test]
    fn killed_ranks_that_have_not_met_begin_again_as_often_as_allowed() {
        let (end, remarks) = launched("[ $RANK = 1 ] && kill -9 $$; sleep 600", 1);
        assert!(matches!(end, Err(RanksError::Killed { rank: 1, .. })), "{end:?}");
        assert_eq!(remarks, ["rank 1 was killed by SIGKILL; it is started again"]);
    }
}
