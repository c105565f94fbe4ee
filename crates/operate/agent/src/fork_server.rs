//! The fork server of a node: it forks a run shim for each run, and nothing else.
//!
//! It has one thread and little memory, so that a fork is cheap. Run shims talk with the agent directly and outlive the
//! fork server, so its death or standing still harms no run: the agent starts another. A run shim that is killed leaves its
//! processes to the fork server (`PR_SET_CHILD_SUBREAPER`), which kills all that it has not forked itself. A run shim that stands
//! still when the lease of its run ends, or when the agent is gone, is killed with its run.

mod channel;
pub(crate) mod orders;
mod run_shim;
mod start;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use bedplate_gangs::{Span, Time};
use nix::poll::PollTimeout;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::cgroup::Cgroups;
use crate::clock::now;
use crate::processes;
use channel::{Channel, Heard};
use orders::{FromForkServer, ToForkServer};
use run_shim::{LAST_LOOKS, LOOK_AGAIN_MS};

/// Looks that run shims get to end by themselves, when the agent is gone, before they are killed. The control plane gives a node up one
/// second after its agent has closed the connection.
const PATIENT_LOOKS: u32 = 40;
/// How long after the end of a lease run shims have to end their runs by themselves. The control plane waits longer.
const AFTER_LEASE: Span = Span(250);

/// Runs the fork server on the socket that is its standard input, until the other end closes.
pub fn main() -> ExitCode {
    match keep() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn keep() -> io::Result<()> {
    set_child_subreaper(true)?;
    let children = run_shim::children_signals()?;
    let mut fork_server = ForkServer {
        channel: Channel::on_stdin()?,
        cgroups: Cgroups::default(),
        can_isolate: false,
        run_shims: BTreeMap::new(),
        gone: Vec::new(),
        lease: None,
        unleased: Vec::new(),
    };
    let outcome = fork_server.attend(&children);
    fork_server.see_run_shims_off();
    fork_server.cgroups.end();
    outcome
}

struct ForkServer {
    channel: Channel,
    cgroups: Cgroups,
    /// Whether run shims can have a pid namespace.
    can_isolate: bool,
    /// By their pids.
    run_shims: BTreeMap<i32, Forked>,
    /// Run shims that have ended while something they left behind may live.
    gone: Vec<u64>,
    /// When runs end, until that has been seen to.
    lease: Option<Time>,
    /// Run shims whose runs are over.
    unleased: Vec<u64>,
}

/// A run shim.
struct Forked {
    /// Its number with the agent.
    number: u64,
    is_of_run: bool,
}

impl ForkServer {
    fn attend(&mut self, children: &SignalFd) -> io::Result<()> {
        loop {
            run_shim::wait(&self.channel, children, self.patience())?;
            let Heard { messages, is_open } = self.channel.hear()?;
            if !is_open {
                // Its last orders are those of an agent that is gone.
                return Ok(());
            }
            messages.into_iter().for_each(|order| self.obey(order));
            self.enforce_lease();
            self.reap();
            self.sweep();
            self.channel.tell();
        }
    }

    fn patience(&self) -> PollTimeout {
        let look_again = u64::from(LOOK_AGAIN_MS);
        let end = self.lease.map(|until| (until + AFTER_LEASE).since(now()).0.max(look_again));
        let look = (!self.gone.is_empty()).then_some(look_again);
        match end.into_iter().chain(look).min() {
            Some(ms) => PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        }
    }

    fn obey(&mut self, order: ToForkServer) {
        match order {
            ToForkServer::Begin { node, cores } => self.begin(&node, &cores),
            ToForkServer::Fork { run_shim, group, is_isolated } => {
                if let Some(socket) = self.channel.take_file() {
                    self.fork_run_shim(run_shim, group, is_isolated, socket);
                }
            }
            ToForkServer::Lease { until_ms, unleased } => {
                self.lease = until_ms.map(Time);
                self.unleased = unleased;
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
        enforced.push(format!("{} processes of each user", self.cgroups.most_processes_of_user));
        self.can_isolate = can_isolate();
        if self.can_isolate {
            enforced.push(orders::PID_NAMESPACES.to_owned());
        }
        self.channel.say(&FromForkServer::Ready { enforced });
    }

    fn fork_run_shim(&mut self, number: u64, group: String, is_of_run: bool, socket: OwnedFd) {
        let cgroups = self.cgroups.clone();
        let is_isolated = is_of_run && self.can_isolate;
        let forked = start::fork_run_shim(socket, is_isolated, || run_shim::serve(group, cgroups));
        match forked {
            Ok(pid) => {
                self.run_shims.insert(pid, Forked { number, is_of_run });
                self.channel.say(&FromForkServer::Forked { run_shim: number, pid });
            }
            Err(_) => self.gone.push(number),
        }
    }

    fn reap(&mut self) {
        while let Some(reaped) = start::reap() {
            self.gone.extend(self.run_shims.remove(&reaped.pid).map(|shim| shim.number));
        }
    }

    /// A run shim ends its run when the lease ends, and one that does not is killed by the agent: where both stand still, this is who
    /// is left. One without processes does no harm, for none begins any more.
    fn enforce_lease(&mut self) {
        if self.lease.is_none_or(|until| now() < until + AFTER_LEASE) {
            return;
        }
        let processes = processes::all();
        let is_leased = |shim: &Forked| shim.is_of_run && !self.unleased.contains(&shim.number);
        let mut is_any_left = false;
        for (pid, _) in self.run_shims.iter().filter(|(_, shim)| is_leased(shim)) {
            let below = processes::descendants(*pid, &processes);
            if !below.is_empty() {
                is_any_left = true;
                processes::kill_one(*pid, Signal::SIGKILL);
                below.iter().for_each(|process| processes::kill_one(process.pid, Signal::SIGKILL));
            }
        }
        // Otherwise it is looked at again at once, when those that were killed have been reaped.
        self.lease = self.lease.filter(|_| is_any_left);
    }

    /// Only run shims that ended before their processes leave children here, so all of these may be killed.
    fn sweep(&mut self) {
        if self.gone.is_empty() || self.kill_strays() {
            return;
        }
        for run_shim in std::mem::take(&mut self.gone) {
            self.channel.say(&FromForkServer::Gone { run_shim });
        }
    }

    /// True when there were any.
    fn kill_strays(&self) -> bool {
        let is_run_shim = |pid: &i32| self.run_shims.contains_key(pid);
        if processes::own_children().is_some_and(|children| children.iter().all(is_run_shim)) {
            return false;
        }
        let own = std::process::id() as i32;
        processes::kill_below(own, is_run_shim)
    }

    /// The agent is gone. Run shims notice that too; what stands still is killed.
    fn see_run_shims_off(&mut self) {
        for look in 0..LAST_LOOKS {
            self.reap();
            let is_any_left = match look < PATIENT_LOOKS {
                true => self.kill_strays() || !self.run_shims.is_empty(),
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
    let Ok(pid) = start::fork_run_shim(theirs.into(), true, || Ok(())) else { return false };
    drop(ours);
    matches!(waitpid(Pid::from_raw(pid), None), Ok(WaitStatus::Exited(_, 0)))
}
