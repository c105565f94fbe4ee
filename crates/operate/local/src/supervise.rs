//! The process of a cluster that starts daemon and agents again when they die or stand still, and that holds the daemon's port.
//!
//! It is the parent of none of them and keeps no list: it looks at the processes of the machine and asks the daemon, so
//! it may itself die and be started again at any time. Whoever starts a process of the cluster holds a lock meanwhile, so
//! that no two start the same one. It ends when the daemon was told to end, or when the state directory is gone, and for no other reason: what
//! fails is tried again for ever with growing pauses, and is said in its log, in `supervisor.json` and to systemd.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Beacon, Driver, DriverError, Local, NodeId, NodeSummary, StateDirectory};
use bedplate_host::{clock, tell_systemd};
use bedplate_http::HeldPort;
use bedplate_supervise::{RestartBackoff, RestartPolicy};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::launch::{self, Launcher};
use crate::note::{SupervisorNote, Trouble};
use crate::progress::{self, Judgement, Silence};
use crate::{Joined, LocalError, Shape};

const PAUSE: Duration = Duration::from_millis(500);
/// How long one answer of the daemon is waited for, so that it is looked at many times before it counts as dead.
const ANSWER: Duration = Duration::from_secs(5);

/// How patient a supervisor is.
#[derive(Debug, Clone, Copy)]
pub struct Supervision {
    /// A daemon that has not answered and does no work, or an agent that has not been linked to a daemon that answers, for this long is
    /// replaced. A run of such an agent has lost its lease long before.
    pub silence: Duration,
    /// The longest wait before something that died again is started again.
    pub longest_delay: Duration,
}

impl Launcher {
    /// Keeps the cluster of a directory running; returns when it has ended in good order, or its directory is gone.
    pub fn supervise(&self, state: StateDirectory, patience: Supervision) {
        let address = SupervisorNote::read(&state).and_then(|note| note.address);
        let note = SupervisorNote { pid: std::process::id(), address, troubles: Vec::new() };
        let mut supervisor =
            Supervisor { state, patience, launcher: self, watches: BTreeMap::new(), held: None, note };
        supervisor.write_note();
        tell_systemd("READY=1");
        while supervisor.look() {
            thread::sleep(PAUSE);
        }
    }
}

/// Between two looks of a daemon at its supervisor. Two must miss it: who takes a cluster down ends the supervisor first.
const GUARD: Duration = Duration::from_secs(5);

impl Launcher {
    /// For the daemon: starts its supervisor again when that was killed, so that both must die at once to be gone. A cluster that
    /// never had one gets none.
    pub fn guard_supervisor(self, state: StateDirectory) -> io::Result<()> {
        let guard = move || {
            let mut missed = 0;
            loop {
                thread::sleep(GUARD);
                reap();
                missed = if self.misses_supervisor(&state) { missed + 1 } else { 0 };
                if missed == 2 {
                    (self.say)("the supervisor is gone; starting it again");
                    if let Err(error) = self.start_supervisor(&state) {
                        (self.say)(&format!("the supervisor cannot be started: {error}"));
                    }
                    missed = 0;
                }
            }
        };
        thread::Builder::new().name("guard".into()).spawn(guard).map(drop)
    }

    fn misses_supervisor(&self, state: &StateDirectory) -> bool {
        let had_one = SupervisorNote::read(state).filter(|note| !launch::is_of_cluster(state, note.pid));
        had_one.is_some() && !is_gone(state) && !state.has_concluded() && !launch::has_supervisor(state)
    }
}

struct Supervisor<'a> {
    state: StateDirectory,
    patience: Supervision,
    launcher: &'a Launcher,
    /// By what is watched.
    watches: BTreeMap<String, Watch>,
    /// The daemon's port, which nobody else may take while it is away.
    held: Option<HeldPort>,
    note: SupervisorNote,
}

const DAEMON: &str = "the daemon";
const DIRECTORY: &str = "the state directory";
const PORT: &str = "the port";

impl Supervisor<'_> {
    /// Mends what is broken; false when there is no cluster to look after any more.
    fn look(&mut self) -> bool {
        reap();
        if is_gone(&self.state) || self.state.has_concluded() {
            return false;
        }
        match self.look_at_all() {
            Ok(()) => self.is_well(DIRECTORY),
            // A full disk, a file that cannot be read: it may be mended at any time.
            Err(error) => self.is_in_trouble(DIRECTORY, &error.to_string()),
        }
        true
    }

    fn look_at_all(&mut self) -> Result<(), LocalError> {
        let _held = launch::hold(&self.state)?;
        if let Some(joined) = Joined::find(&self.state) {
            self.look_at_agent(&joined);
            return Ok(());
        }
        let shape = Shape::load(&self.state)?;
        // A beacon that is missing or unreadable says nothing about the daemon.
        let beacon = self.state.beacon().ok().flatten();
        match beacon.filter(|beacon| launch::is_of_cluster(&self.state, beacon.pid)) {
            Some(beacon) => {
                self.hold_port(&beacon);
                self.ask_daemon(&beacon, &shape);
            }
            // It reads its journal, or lost its beacon and writes a new one.
            None => match launch::find_daemon(&self.state) {
                Some(pid) => self.judge_daemon(pid, Instant::now(), "it has not said where it listens"),
                None => self.start_daemon(&shape),
            },
        }
        Ok(())
    }

    /// Of a machine that has joined a cluster elsewhere; whether the control plane hears it is known there alone.
    fn look_at_agent(&mut self, joined: &Joined) {
        let name = joined.node.as_str();
        match launch::find_agent(&self.state, &NodeId::from(name)) {
            Some(_) => self.is_well(name),
            None if self.watch(name).may_start(Instant::now()) => {
                (self.launcher.say)(&format!("the agent of {name} is gone; starting it again"));
                let started = joined.start_agent(&self.state, self.launcher);
                self.tell_failure(name, started);
            }
            None => {}
        }
    }

    fn start_daemon(&mut self, shape: &Shape) {
        if self.watch(DAEMON).may_start(Instant::now()) {
            (self.launcher.say)("the daemon is gone; starting it again");
            // One that works longer than that is judged as any other.
            let slow = |_| ControlFlow::Break(());
            let started = self.launcher.start_daemon_at(&self.state, shape, self.note.address, slow);
            self.tell_failure(DAEMON, started.map(drop));
        }
    }

    /// Others may not have the port when the daemon dies.
    fn hold_port(&mut self, beacon: &Beacon) {
        let Ok(address) = beacon.socket().parse::<SocketAddr>() else { return };
        if self.note.address != Some(address) {
            self.note.address = Some(address);
            self.write_note();
        }
        if self.held.as_ref().is_some_and(|held| held.address() == address) {
            return;
        }
        match HeldPort::hold(address) {
            Ok(held) => {
                self.held = Some(held);
                self.is_well(PORT);
            }
            Err(error) => {
                self.is_in_trouble(PORT, &format!("{address} cannot be kept from others: {error}"));
            }
        }
    }

    fn ask_daemon(&mut self, beacon: &Beacon, shape: &Shape) {
        let asked = Instant::now();
        let within = ANSWER.min(self.patience.silence / 4);
        let ask = |place| Local::new(place).with_patience(Duration::ZERO).with_answer_within(within);
        let driver = self.state.place().map(ask);
        match driver.and_then(|driver| Ok((driver.nodes()?, driver))) {
            Ok((nodes, driver)) => {
                self.is_well(DAEMON);
                for node in nodes.iter().filter(|node| shape.share(node.name.as_str()).is_some()) {
                    self.look_at_node(node, &driver, shape);
                }
            }
            // It is not silent: nothing is to be gained by killing it.
            Err(error) if error.is_answer() || is_our_own_fault(&error) => {
                self.watch(DAEMON).silence = None;
                self.is_in_trouble(DAEMON, &error.to_string());
            }
            Err(error) => self.judge_daemon(beacon.pid, asked, &error.to_string()),
        }
    }

    /// It is busy, opens its journal, or stands still.
    fn judge_daemon(&mut self, pid: u32, asked: Instant, error: &str) {
        let (silence, is_at_work) = (self.patience.silence, progress::is_at_work(pid));
        match self.watch(DAEMON).look(asked, is_at_work, silence) {
            Judgement::Early => {}
            Judgement::Slow(silent) => {
                let seconds = silent.as_secs();
                self.is_in_trouble(
                    DAEMON,
                    &format!("it is slow: no answer for {seconds} s, but it works ({error})"),
                );
            }
            Judgement::Dead => {
                (self.launcher.say)(&format!(
                    "the daemon does not answer and does nothing, replacing it: {error}"
                ));
                self.watch(DAEMON).silence = None;
                kill_now(pid);
            }
        }
    }

    fn look_at_node(&mut self, node: &NodeSummary, driver: &Local, shape: &Shape) {
        let (name, now) = (node.name.as_str(), Instant::now());
        let agent = launch::find_agent(&self.state, &node.name);
        match agent {
            _ if node.is_linked => self.is_well(name),
            Some(pid) if self.watch(name).silent_for(now) >= self.patience.silence => {
                (self.launcher.say)(&format!("the agent of {name} does not join; replacing it"));
                kill_now(pid);
            }
            Some(_) => {}
            None if self.watch(name).may_start(now) => {
                (self.launcher.say)(&format!("the agent of {name} is gone; starting it again"));
                let started = self.launcher.start_agent(&self.state, driver, shape, &NodeId::from(name));
                self.tell_failure(name, started);
            }
            None => {}
        }
    }

    fn watch(&mut self, what: &str) -> &mut Watch {
        let longest_delay = self.patience.longest_delay;
        let new = || Watch::new(longest_delay);
        self.watches.entry(what.to_owned()).or_insert_with(new)
    }

    fn is_well(&mut self, what: &str) {
        self.watch(what).is_well(Instant::now());
        let count = self.note.troubles.len();
        self.note.troubles.retain(|trouble| trouble.what != what);
        if self.note.troubles.len() < count {
            (self.launcher.say)(&format!("{what} is well again"));
            self.write_note();
        }
    }

    /// What is wrong is said whenever it changes.
    fn is_in_trouble(&mut self, what: &str, why: &str) {
        self.note_trouble(what, why, 0);
    }

    fn tell_failure(&mut self, what: &str, outcome: Result<(), LocalError>) {
        if let Err(error) = outcome {
            let why = match io_cause(&error) {
                Some(cause) => format!("{error}: {cause}"),
                None => error.to_string(),
            };
            self.note_trouble(what, &why, 1);
        }
    }

    fn note_trouble(&mut self, what: &str, why: &str, failures: u32) {
        let known = self.note.troubles.iter_mut().find(|trouble| trouble.what == what);
        let trouble = match known {
            Some(known) if known.why == why && failures == 0 => return,
            Some(known) => known,
            None => {
                let new = Trouble {
                    what: what.into(),
                    why: String::new(),
                    since_ms: clock::unix_ms(),
                    failures: 0,
                };
                self.note.troubles.push(new);
                self.note.troubles.last_mut().expect("it was pushed")
            }
        };
        trouble.failures += failures;
        trouble.why = why.to_owned();
        let said = trouble.to_string();
        (self.launcher.say)(&said);
        self.write_note();
    }

    fn write_note(&self) {
        let troubles: Vec<String> = self.note.troubles.iter().map(Trouble::to_string).collect();
        let status = if troubles.is_empty() { "all is well".to_owned() } else { troubles.join("; ") };
        tell_systemd(&format!("STATUS={}", status.replace('\n', " ")));
        // On a disk without room the file that is there is written again; where even that fails the log and systemd say it.
        let _ = self.note.write(&self.state);
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        match self.failures {
            0 => Ok(()),
            1 => write!(f, " (1 start has failed; it is tried again)"),
            failures => write!(f, " ({failures} starts have failed; it is tried again)"),
        }
    }
}

/// Only what cannot be there any more ends a supervisor, not what cannot be read now.
fn is_gone(state: &StateDirectory) -> bool {
    state.path().symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The daemon could not even be asked: our own files are missing or say nothing.
fn is_our_own_fault(error: &DriverError) -> bool {
    matches!(error, DriverError::State { .. } | DriverError::NotRunning { .. } | DriverError::Unproven { .. })
}

fn io_cause(error: &LocalError) -> Option<&io::Error> {
    match error {
        LocalError::State { source, .. } | LocalError::Start { source, .. } => Some(source),
        _ => None,
    }
}

/// Processes that this one started and that have ended.
fn reap() {
    while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {}
}

fn kill_now(pid: u32) {
    // It may have ended meanwhile, which is as good.
    let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
}

/// How one process does: when it may be started again, and how long it has been silent.
#[derive(Debug)]
struct Watch {
    restarts: RestartBackoff,
    silence: Option<Silence>,
    silent_since: Option<Instant>,
}

impl Watch {
    fn new(longest_delay: Duration) -> Self {
        let policy =
            RestartPolicy { longest_delay, recovered_after: longest_delay, ..RestartPolicy::default() };
        Self { restarts: RestartBackoff::new(policy), silence: None, silent_since: None }
    }

    fn is_well(&mut self, now: Instant) {
        self.silence = None;
        self.silent_since = None;
        self.restarts.is_well(now);
    }

    /// Whether it may be started now; each time takes twice as long as the one before.
    fn may_start(&mut self, now: Instant) -> bool {
        self.silence = None;
        self.silent_since = None;
        self.restarts.may_start(now)
    }

    /// Nothing was heard of it though it was asked at `asked`.
    fn silent_for(&mut self, asked: Instant) -> Duration {
        self.restarts.is_unwell();
        self.silent_since.get_or_insert(asked).elapsed()
    }

    /// The same of a process whose work can be seen.
    fn look(&mut self, asked: Instant, is_at_work: bool, patience: Duration) -> Judgement {
        self.restarts.is_unwell();
        let silence = self.silence.get_or_insert_with(|| Silence::since(asked));
        silence.look(is_at_work, Instant::now(), patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_good_answer_ends_a_silence() {
        let mut watch = Watch::new(Duration::from_secs(60));
        let hour = Duration::from_secs(3600);
        assert!(watch.silent_for(Instant::now() - hour) >= hour && watch.silent_for(Instant::now()) >= hour);
        watch.is_well(Instant::now());
        assert!(watch.silent_for(Instant::now()) < hour);
    }
}
