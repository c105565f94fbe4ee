//! The ranks of this machine: started, watched, started again when they are killed, and ended together.

use std::fmt;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use bedplate_comm::LocalRendezvous;
use bedplate_diag::{Diagnostic, pages};
use bedplate_layout::Layout;
use bedplate_terminal::{CliError, Console, ProgramError};
use bedplate_train::Membership;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::ranks::Variables;

/// Set for processes that this program started as ranks of a run.
pub(super) const LAUNCHED: &str = "BEDPLATE_TRAIN_LAUNCHED";
/// Set for a process that waits for a place.
pub(super) const SPARE: &str = "BEDPLATE_TRAIN_SPARE";
/// The exit code of a rank that ended because another one failed.
pub(super) const ANOTHER_FAILED: u8 = 75;
/// How long ranks have to end after one of them has failed, or has reached the end.
const GRACE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);
/// The note of the ranks is read this seldom.
const LOOKS_PER_NOTE: u32 = 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum RanksError {
    #[error("rank {rank} was killed by {signal}")]
    Killed { rank: u32, signal: String },
    #[error("cannot start the ranks")]
    Start { source: std::io::Error },
}

pages! { pub(crate) PAGES "ranks":
    KILLED "killed" Transient
        "Ranks of the run were killed from outside: by a person, or by the system where memory ran out. No rank was left that could go on."
        "look at `dmesg` for the kernel's out-of-memory killer; then start the run again with `--resume`"
    START "cannot-start" Transient
        "The processes of the ranks could not be started, or no port was free for them to meet."
        "check the limits of processes and open files (`ulimit -a`), then try again"
}

impl Diagnostic for RanksError {
    fn page(&self) -> &'static bedplate_diag::Page {
        match self {
            RanksError::Killed { .. } => &KILLED,
            RanksError::Start { .. } => &START,
        }
    }
}

/// What is to be started.
pub(super) struct Launch<'a> {
    pub(super) ranks: u32,
    pub(super) spares: u32,
    /// How often ranks that were killed are started again.
    pub(super) restarts: u32,
    /// What `--layout auto` came to.
    pub(super) layout: Option<Layout>,
    /// Where those who wait leave a sign.
    pub(super) output: PathBuf,
    pub(super) stop: &'a AtomicBool,
}

impl Launch<'_> {
    /// Runs to the end of all ranks.
    pub(super) fn run(&self, console: &mut Console) -> Result<(), CliError> {
        let mut watch = Watch::begin(self)?;
        while !watch.is_over() {
            std::thread::sleep(LOOK);
            watch.pass_on_the_wish_to_stop();
            let lost = watch.look();
            watch.replace(lost, console)?;
            watch.tell_who_is_waited_for(console);
            watch.end_those_who_stand_still();
        }
        watch.end(console)
    }
}

/// One process that was started.
struct Started {
    rank: u32,
    child: Child,
    is_spare: bool,
    ended: Option<ExitStatus>,
    /// What a rank other than the first says on standard error, which only matters if it fails first.
    said: Option<JoinHandle<Vec<u8>>>,
}

impl Started {
    fn send(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
        }
    }

    /// The exit code of an error of its own.
    fn failure(&self) -> Option<u8> {
        let code = self.ended?.code()?;
        (code != 0 && code != i32::from(ANOTHER_FAILED)).then_some(code.clamp(1, 255) as u8)
    }

    fn has_ended_well(&self) -> bool {
        self.ended.is_some_and(|status| status.success())
    }

    /// Whether it ended just now.
    fn ends(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
            return self.ended.is_some();
        }
        false
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

impl From<Lost> for CliError {
    fn from(Lost { rank, signal }: Lost) -> Self {
        RanksError::Killed { rank, signal }.into()
    }
}

/// The processes of a run while it runs.
struct Watch<'a> {
    launch: &'a Launch<'a>,
    meeting: LocalRendezvous,
    membership: Membership,
    began: SystemTime,
    all: Vec<Started>,
    restarts: u32,
    is_told_to_stop: bool,
    /// Why the run fails, and since when that is known.
    failed: Option<(Instant, CliError)>,
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
    fn begin(launch: &'a Launch<'a>) -> Result<Self, CliError> {
        let mut watch = Self {
            launch,
            meeting: LocalRendezvous::here().map_err(|source| RanksError::Start { source })?,
            membership: Membership::of(&launch.output),
            began: SystemTime::now(),
            all: Vec::new(),
            restarts: launch.restarts,
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

    fn start_all(&mut self) -> Result<(), CliError> {
        // A folder that cannot be written to is the ranks' to tell.
        let _ = self.membership.set_closed(false);
        let Launch { ranks, spares, .. } = *self.launch;
        (0..ranks + spares).try_for_each(|rank| self.start(rank, rank >= ranks))
    }

    /// Ranks that have not met yet have nothing to lose: all begin again, at another place.
    fn start_over(&mut self) -> Result<(), CliError> {
        for mut started in self.all.drain(..) {
            started.send(Signal::SIGKILL);
            let _ = started.child.wait();
        }
        self.meeting = LocalRendezvous::here().map_err(|source| RanksError::Start { source })?;
        self.began = SystemTime::now();
        self.start_all()
    }

    fn start(&mut self, rank: u32, is_spare: bool) -> Result<(), CliError> {
        let program = std::env::current_exe().map_err(|source| RanksError::Start { source })?;
        let mut command = Command::new(program);
        let ranks = self.launch.ranks;
        self.meeting.tell(&mut command, rank.min(ranks - 1), ranks);
        command
            .args(own_arguments(self.launch.layout))
            .env(LAUNCHED, "1")
            .env("LOCAL_RANK", rank.to_string())
            .stdin(Stdio::piped());
        match is_spare {
            true => command.env(SPARE, "1"),
            false => command.env_remove(SPARE),
        };
        if rank > 0 && !is_spare {
            command.stderr(Stdio::piped());
        }
        let mut child = command.spawn().map_err(|source| RanksError::Start { source })?;
        let said = listen(&mut child);
        self.all.push(Started { rank, child, is_spare, ended: None, said });
        Ok(())
    }

    fn pass_on_the_wish_to_stop(&mut self) {
        if self.launch.stop.load(Ordering::Relaxed) && !self.is_told_to_stop {
            self.all.iter().for_each(|started| started.send(Signal::SIGTERM));
            self.is_told_to_stop = true;
        }
    }

    /// Sees who has ended, and gives those who were killed.
    fn look(&mut self) -> Vec<Lost> {
        let mut killed = Vec::new();
        for started in self.all.iter_mut().filter_map(|started| started.ends().then_some(&*started)) {
            if let Some(code) = started.failure() {
                self.first_failed.get_or_insert(started.rank);
                self.failed.get_or_insert((Instant::now(), CliError::Job(code)));
            }
            if started.has_ended_well() {
                self.done.get_or_insert_with(Instant::now);
            }
            if let Some(signal) = started.ended.and_then(|status| status.signal()) {
                let signal = Signal::try_from(signal).map_or(format!("signal {signal}"), |is| is.to_string());
                killed.push(Lost { rank: started.rank, signal });
            }
        }
        killed
    }

    fn replace(&mut self, lost: Vec<Lost>, console: &Console) -> Result<(), CliError> {
        for lost in lost {
            if self.done.is_some() || self.is_told_to_stop || self.failed.is_some() {
                return Ok(());
            }
            self.first_lost.get_or_insert(lost.clone());
            let has_met = self.membership.has_met_since(self.began);
            match self.restarts {
                0 if !has_met => self.failed = Some((Instant::now(), lost.into())),
                0 => {
                    console.say(&format!("{lost}; the others go on without it"));
                    // Those that are too few without it need not wait for another.
                    self.membership.set_closed(true).map_err(|source| RanksError::Start { source })?;
                }
                _ => {
                    self.restarts -= 1;
                    console.say(&format!("{lost}; it is started again"));
                    if !has_met {
                        return self.start_over();
                    }
                    self.start(lost.rank, true)?;
                }
            }
        }
        Ok(())
    }

    fn tell_who_is_waited_for(&mut self, console: &Console) {
        let missing =
            if self.looks.is_multiple_of(LOOKS_PER_NOTE) { self.membership.missing() } else { self.missing };
        self.looks = self.looks.wrapping_add(1);
        if missing > self.missing {
            console.say(&format!(
                "the ranks that are left are no whole replica; the run waits for {missing} more (training.wait_seconds)"
            ));
        }
        self.missing = missing;
    }

    /// Ranks end together; one that does not stands still. Processes that all wait for a place wait for nobody.
    fn end_those_who_stand_still(&mut self) {
        let since = self.failed.as_ref().map(|(since, _)| *since).or(self.done);
        if since.is_some_and(|since| since.elapsed() > GRACE) {
            self.all.iter().for_each(|started| started.send(Signal::SIGKILL));
        }
        let only_waits =
            |started: &Started| started.ended.is_some() || self.membership.waits(started.child.id());
        if !self.all.iter().all(only_waits) {
            self.last_work = Instant::now();
        } else if since.is_none() && self.last_work.elapsed() > GRACE {
            let lost = self.first_lost.clone().unwrap_or(Lost { rank: 0, signal: "a signal".to_owned() });
            self.failed = Some((Instant::now(), lost.into()));
        }
    }

    /// Ranks that were spares may be all that is left of a run; they end with it.
    fn is_over(&self) -> bool {
        let waits = |started: &Started| started.is_spare || self.membership.waits(started.child.id());
        let is_at_work = |started: &Started| started.ended.is_none() && !waits(started);
        let is_decided = self.failed.is_some() || self.done.is_some();
        let has_ended = |started: &Started| started.ended.is_some();
        !self.all.iter().any(is_at_work) && (is_decided || self.all.iter().all(has_ended))
    }

    /// Ends those who still wait, and tells what the rank said that failed first.
    fn end(mut self, console: &Console) -> Result<(), CliError> {
        self.all.iter().for_each(|started| started.send(Signal::SIGTERM));
        let told = Instant::now();
        while self.all.iter_mut().filter(|started| started.ended.is_none()).any(|started| !started.ends()) {
            if told.elapsed() > GRACE {
                self.all.iter().for_each(|started| started.send(Signal::SIGKILL));
            }
            std::thread::sleep(LOOK);
        }
        let spoke = self.all.iter().any(|started| started.said.is_none() && started.failure().is_some());
        for started in &mut self.all {
            let said = started.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            if self.first_failed == Some(started.rank) && !spoke && !said.trim_end().is_empty() {
                console.say(said.trim_end());
            }
        }
        match (self.done, self.failed, self.first_lost) {
            // A rank that has reached the end has left when all had done their work.
            (Some(_), _, _) | (None, None, None) => Ok(()),
            (None, Some((_, error)), _) => Err(error),
            (None, None, Some(_)) if self.is_told_to_stop => Ok(()),
            (None, None, Some(lost)) => Err(lost.into()),
        }
    }
}

/// More than any error has.
const LONGEST_ERROR: u64 = 1 << 16;

fn listen(child: &mut Child) -> Option<JoinHandle<Vec<u8>>> {
    let mut pipe = child.stderr.take()?;
    let listen = move || {
        let mut said = Vec::new();
        let _ = pipe.by_ref().take(LONGEST_ERROR).read_to_end(&mut said);
        // The rest is read and forgotten, so that the rank does not wait.
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        said
    };
    std::thread::Builder::new().name("stderr".into()).spawn(listen).ok()
}

/// The command line without what is the launcher's. A layout that was chosen replaces the wish to have one chosen, so that all
/// ranks have the same.
fn own_arguments(layout: Option<Layout>) -> Vec<String> {
    let mut left_out = vec!["--ranks", "--spares", "--restarts"];
    left_out.extend(layout.map(|_| "--layout"));
    let mut kept = Vec::new();
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let name = argument.split('=').next().unwrap_or_default();
        if left_out.contains(&name) {
            if !argument.contains('=') {
                given.next();
            }
        } else {
            kept.push(argument);
        }
    }
    kept.extend(layout.map(|layout| format!("--layout={layout}")));
    kept
}

/// Refuses what only a process that starts ranks can do.
pub(super) fn refuse_nested(ranks: u32, variables: &Variables) -> Result<(), CliError> {
    match variables.get("WORLD_SIZE").filter(|world| world.as_str() != "1") {
        Some(world) if ranks > 1 => {
            let message = format!(
                "--ranks starts ranks on this machine, but this process is one of {world} already (WORLD_SIZE); leave --ranks out"
            );
            Err(ProgramError::Usage { message }.into())
        }
        _ => Ok(()),
    }
}
