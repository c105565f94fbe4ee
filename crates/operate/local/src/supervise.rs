//! The process of a cluster that starts daemon and agents again when they die or stand still.
//!
//! It is the parent of none of them and keeps no list: it looks at the processes of the machine and asks the daemon, so
//! it may itself die and be started again at any time. Whoever starts a process of the cluster holds a lock meanwhile, so
//! that no two start the same one.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Driver, Local, NodeId, NodeSummary, StateDirectory};
use bedplate_supervise::{RestartBackoff, RestartPolicy};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::launch::{self, Launcher};
use crate::machine;
use crate::{Joined, LocalError, Shape};

const PAUSE: Duration = Duration::from_millis(500);

/// How patient a supervisor is.
#[derive(Debug, Clone, Copy)]
pub struct Supervision {
    /// A daemon that has not answered, or an agent that has not been linked to a daemon that answers, for this long is
    /// replaced. A run of such an agent has lost its lease long before.
    pub silence: Duration,
    /// The longest wait before something that died again is started again.
    pub longest_delay: Duration,
}

impl Launcher {
    /// Keeps the cluster of a directory running; returns when there is none to look after any more.
    pub fn supervise(&self, state: StateDirectory, patience: Supervision) {
        let mut supervisor = Supervisor { state, patience, launcher: self, watches: BTreeMap::new() };
        while supervisor.look() {
            thread::sleep(PAUSE);
        }
    }
}

struct Supervisor<'a> {
    state: StateDirectory,
    patience: Supervision,
    launcher: &'a Launcher,
    /// By what is watched.
    watches: BTreeMap<String, Watch>,
}

const DAEMON: &str = "the daemon";

impl Supervisor<'_> {
    /// Mends what is broken; false when there is no cluster to look after any more.
    fn look(&mut self) -> bool {
        reap();
        let Ok(_held) = launch::hold(&self.state) else { return false };
        if let Some(joined) = Joined::find(&self.state) {
            self.look_at_agent(&joined);
            return true;
        }
        let Ok(Some(shape)) = Shape::find(&self.state) else { return false };
        match self.state.beacon() {
            // A daemon that ended in good order has taken its beacon away.
            Ok(None) => false,
            Ok(Some(beacon)) if machine::is_alive(beacon.pid) => {
                self.ask_daemon(beacon.pid, &shape);
                true
            }
            _ => {
                self.start_daemon(&shape);
                true
            }
        }
    }

    /// Of a machine that has joined a cluster elsewhere; whether the control plane hears it is known there alone.
    fn look_at_agent(&mut self, joined: &Joined) {
        let name = joined.node.as_str();
        match launch::find_agent(&self.state, &NodeId::from(name)) {
            Some(_) => self.watch(name).is_well(Instant::now()),
            None if self.watch(name).may_start(Instant::now()) => {
                (self.launcher.say)(&format!("the agent of {name} is gone; starting it again"));
                let started = joined.start_agent(&self.state, self.launcher);
                self.tell_failure(started);
            }
            None => {}
        }
    }

    fn start_daemon(&mut self, shape: &Shape) {
        if self.watch(DAEMON).may_start(Instant::now()) {
            (self.launcher.say)("the daemon is gone; starting it again");
            let started = self.launcher.start_daemon(&self.state, shape);
            self.tell_failure(started.map(drop));
        }
    }

    fn ask_daemon(&mut self, pid: u32, shape: &Shape) {
        let asked = Instant::now();
        let driver = self.state.place().map(|place| Local::new(place).with_patience(Duration::ZERO));
        match driver.and_then(|driver| Ok((driver.nodes()?, driver))) {
            Ok((nodes, driver)) => {
                self.watch(DAEMON).is_well(Instant::now());
                for node in nodes.iter().filter(|node| shape.share(node.name.as_str()).is_some()) {
                    self.look_at_node(node, &driver, shape);
                }
            }
            // It is busy, opens its journal, or stands still.
            Err(error) if self.watch(DAEMON).silent_for(asked) >= self.patience.silence => {
                (self.launcher.say)(&format!("the daemon does not answer, replacing it: {error}"));
                kill_now(pid);
            }
            Err(_) => {}
        }
    }

    fn look_at_node(&mut self, node: &NodeSummary, driver: &Local, shape: &Shape) {
        let (name, now) = (node.name.as_str(), Instant::now());
        let agent = launch::find_agent(&self.state, &node.name);
        match agent {
            _ if node.is_linked => self.watch(name).is_well(now),
            Some(pid) if self.watch(name).silent_for(now) >= self.patience.silence => {
                (self.launcher.say)(&format!("the agent of {name} does not join; replacing it"));
                kill_now(pid);
            }
            Some(_) => {}
            None if self.watch(name).may_start(now) => {
                (self.launcher.say)(&format!("the agent of {name} is gone; starting it again"));
                let started = self.launcher.start_agent(&self.state, driver, shape, &NodeId::from(name));
                self.tell_failure(started);
            }
            None => {}
        }
    }

    fn watch(&mut self, what: &str) -> &mut Watch {
        let longest_delay = self.patience.longest_delay;
        let new = || Watch::new(longest_delay);
        self.watches.entry(what.to_owned()).or_insert_with(new)
    }

    fn tell_failure(&self, outcome: Result<(), LocalError>) {
        if let Err(error) = outcome {
            (self.launcher.say)(&format!("that failed and is tried again later: {error}"));
        }
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
    silent_since: Option<Instant>,
}

impl Watch {
    fn new(longest_delay: Duration) -> Self {
        let policy =
            RestartPolicy { longest_delay, recovered_after: longest_delay, ..RestartPolicy::default() };
        Self { restarts: RestartBackoff::new(policy), silent_since: None }
    }

    fn is_well(&mut self, now: Instant) {
        self.silent_since = None;
        self.restarts.is_well(now);
    }

    /// Whether it may be started now; each time takes twice as long as the one before.
    fn may_start(&mut self, now: Instant) -> bool {
        self.silent_since = None;
        self.restarts.may_start(now)
    }

    /// Nothing was heard of it though it was asked at `asked`.
    fn silent_for(&mut self, asked: Instant) -> Duration {
        self.restarts.is_unwell();
        self.silent_since.get_or_insert(asked).elapsed()
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
