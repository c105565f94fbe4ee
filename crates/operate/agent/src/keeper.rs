//! The keeper of a node: it forks a guardian for each run, and nothing else.
//!
//! It has one thread and little memory, so that a fork is cheap. Guardians talk with the agent directly and outlive the
//! keeper, so its death or standing still harms no run: the agent starts another. A guardian that is killed leaves its
//! processes to the keeper (`PR_SET_CHILD_SUBREAPER`), which kills all that it has not forked itself.

mod channel;
mod guardian;
pub(crate) mod orders;
mod start;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use nix::poll::PollTimeout;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::cgroup::Cgroups;
use crate::processes;
use channel::{Channel, Heard};
use guardian::{LAST_LOOKS, LOOK_AGAIN_MS};
use orders::{FromKeeper, ToKeeper};

/// Looks that guardians get to end by themselves, when the agent is gone, before they are killed.
const PATIENT_LOOKS: u32 = 400;

/// Runs the keeper on the socket that is its standard input, until the other end closes.
pub fn main() -> ExitCode {
    match keep() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn keep() -> io::Result<()> {
    set_child_subreaper(true)?;
    let children = guardian::children_signals()?;
    let mut keeper = Keeper {
        channel: Channel::on_stdin()?,
        cgroups: Cgroups::default(),
        can_isolate: false,
        guardians: BTreeMap::new(),
        gone: Vec::new(),
    };
    let outcome = keeper.attend(&children);
    keeper.see_guardians_off();
    keeper.cgroups.end();
    outcome
}

struct Keeper {
    channel: Channel,
    cgroups: Cgroups,
    /// Whether guardians can have a pid namespace.
    can_isolate: bool,
    /// Their numbers with the agent by their pids.
    guardians: BTreeMap<i32, u64>,
    /// Guardians that have ended while something they left behind may live.
    gone: Vec<u64>,
}

impl Keeper {
    fn attend(&mut self, children: &SignalFd) -> io::Result<()> {
        loop {
            let is_sweeping = !self.gone.is_empty();
            let timeout = if is_sweeping { PollTimeout::from(LOOK_AGAIN_MS) } else { PollTimeout::NONE };
            guardian::wait(&self.channel, children, timeout)?;
            let Heard { messages, is_open } = self.channel.hear()?;
            messages.into_iter().for_each(|order| self.obey(order));
            self.reap();
            self.sweep();
            self.channel.tell();
            if !is_open {
                return Ok(());
            }
        }
    }

    fn obey(&mut self, order: ToKeeper) {
        match order {
            ToKeeper::Begin { node, cores } => self.begin(&node, &cores),
            ToKeeper::Guard { guardian, group, is_isolated } => {
                if let Some(socket) = self.channel.take_file() {
                    self.fork_guardian(guardian, group, is_isolated && self.can_isolate, socket);
                }
            }
        }
    }

    fn begin(&mut self, node: &str, cores: &[u32]) {
        self.cgroups = Cgroups::begin(node, cores);
        let mut enforced = self.cgroups.enforced.clone();
        let mut set = CpuSet::new();
        let fits = cores.iter().all(|core| set.set(*core as usize).is_ok());
        // Inherited by every rank, so it costs nothing at its start.
        let is_bound = fits && !cores.is_empty() && sched_setaffinity(Pid::from_raw(0), &set).is_ok();
        if is_bound && !enforced.iter().any(|each| each.starts_with("cores")) {
            enforced.push("cores by affinity, which ranks can widen".to_owned());
        }
        self.can_isolate = can_isolate();
        if self.can_isolate {
            enforced.push("a pid namespace for each run".to_owned());
        }
        self.channel.say(&FromKeeper::Ready { enforced });
    }

    fn fork_guardian(&mut self, number: u64, group: String, is_isolated: bool, socket: OwnedFd) {
        let cgroups = self.cgroups.clone();
        let forked = start::fork_guardian(socket, is_isolated, || guardian::guard(group, cgroups));
        match forked {
            Ok(pid) => {
                self.guardians.insert(pid, number);
                self.channel.say(&FromKeeper::Guarding { guardian: number, pid });
            }
            Err(_) => self.gone.push(number),
        }
    }

    fn reap(&mut self) {
        while let Some(reaped) = start::reap() {
            self.gone.extend(self.guardians.remove(&reaped.pid));
        }
    }

    /// Only guardians that ended before their processes leave children here, so all of these may be killed.
    fn sweep(&mut self) {
        if self.gone.is_empty() || self.kill_strays() {
            return;
        }
        for guardian in std::mem::take(&mut self.gone) {
            self.channel.say(&FromKeeper::Gone { guardian });
        }
    }

    /// True when there were any.
    fn kill_strays(&self) -> bool {
        let is_guardian = |pid: &i32| self.guardians.contains_key(pid);
        if processes::own_children().is_some_and(|children| children.iter().all(is_guardian)) {
            return false;
        }
        let own = std::process::id() as i32;
        processes::kill_below(own, is_guardian)
    }

    /// The agent is gone. Guardians notice that too; what stands still is killed.
    fn see_guardians_off(&mut self) {
        for look in 0..LAST_LOOKS {
            self.reap();
            let is_any_left = match look < PATIENT_LOOKS {
                true => self.kill_strays() || !self.guardians.is_empty(),
                false => processes::kill_below(std::process::id() as i32, |_| false),
            };
            if !is_any_left {
                return;
            }
            std::thread::sleep(Duration::from_millis(LOOK_AGAIN_MS.into()));
        }
    }
}

/// Tries whether a process can be the first of a pid namespace here: root can on a host, not in every container.
fn can_isolate() -> bool {
    let Ok((ours, theirs)) = UnixStream::pair() else { return false };
    let Ok(pid) = start::fork_guardian(theirs.into(), true, || Ok(())) else { return false };
    drop(ours);
    matches!(waitpid(Pid::from_raw(pid), None), Ok(WaitStatus::Exited(_, 0)))
}
