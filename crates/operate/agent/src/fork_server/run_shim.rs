//! The run shim of a run: the parent of all its ranks on this node, between them and the fork server.
//!
//! It adopts whatever its ranks leave behind (`PR_SET_CHILD_SUBREAPER`), so the processes of a run are what descends from
//! its run shim, however often they forked and whatever session they opened. Where the host permits, it is the first
//! process of a pid namespace: the run can then neither see nor signal anything outside, nor its run shim. Elsewhere a
//! rank can kill its run shim, and ends its own run with it and no other.
//!
//! When the agent closes the socket, or stands still and does not renew the lease, everything here is killed. Nothing begins after
//! that, whatever orders are still to be read: this process may itself have stood still while the control plane gave the run up.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bedplate_control::wire::RankEnd;
use bedplate_gangs::{Span, Time};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::channel::{Channel, Heard};
use super::orders::{FromRunShim, ProcessStart, ToRunShim};
use super::start::{self, NotBegun, Reaped, Started};
use crate::cgroup::{self, Cgroups, Limited};
use crate::clock::now;
use crate::processes;

/// How often processes that were killed and are not gone are checked.
pub(super) const LOOK_AGAIN_MS: u16 = 5;
/// How long killed processes may take to go when a run shim or fork server ends.
pub(super) const LAST_LOOKS: u32 = 2000;
/// A kill for want of memory this long before the end of a process has caused that end.
const KILLS_AGO: Span = Span::seconds(5);

/// Supervises the processes of `group` by order of the socket on standard input, until its other end closes.
pub(super) fn serve(group: String, cgroups: Cgroups) -> io::Result<()> {
    set_child_subreaper(true)?;
    limit_processes(cgroups.most_processes_of_user)?;
    let children = children_signals()?;
    let kills = Kills { of_run: 0, of_host: cgroup::memory_kills_of_host() };
    let mut run_shim = RunShim {
        channel: Channel::on_stdin()?,
        group,
        cgroups,
        limited: None,
        entrances: Arc::default(),
        alive: BTreeMap::new(),
        lease: None,
        is_lease_lifted: false,
        kills,
        kills_taken: now(),
        earlier_kills: kills,
        want: None,
        cpu_us: 0,
        peak_memory_kib: 0,
        is_stopped: false,
        dying: Dying::No,
    };
    let outcome = run_shim.attend(&children);
    run_shim.kill_everything();
    outcome
}

/// The kernel counts the processes of a user, of whatever run; root's are not counted. Ranks inherit the limit and cannot raise it.
fn limit_processes(most: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NPROC)?;
    let most = hard.min(most);
    Ok(setrlimit(Resource::RLIMIT_NPROC, most, most)?)
}

/// Tells of children that end. An interrupt at the agent's terminal is not for the ranks; the agent says when they end.
pub(super) fn children_signals() -> io::Result<SignalFd> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

/// Waits for news of the agent or of children, and forgets that the latter came.
pub(super) fn wait(channel: &Channel, children: &SignalFd, timeout: PollTimeout) -> io::Result<()> {
    let mut watched = [channel.watched(), PollFd::new(children.as_fd(), PollFlags::POLLIN)];
    match poll(&mut watched, timeout) {
        Ok(_) | Err(nix::Error::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    while children.read_signal()?.is_some() {}
    Ok(())
}

struct RunShim {
    channel: Channel,
    group: String,
    cgroups: Cgroups,
    limited: Option<Limited>,
    /// Files through which its processes enter their cgroup.
    entrances: Arc<Vec<OwnedFd>>,
    /// The processes that were started and have not ended.
    alive: BTreeMap<i32, Alive>,
    /// When everything dies, unless the agent says otherwise.
    lease: Option<Time>,
    /// No lease is needed once nothing is alive.
    is_lease_lifted: bool,
    /// As they were at the last count, when that was, and as they were at the one before.
    kills: Kills,
    kills_taken: Time,
    earlier_kills: Kills,
    /// Once memory was wanting.
    want: Option<Want>,
    cpu_us: u64,
    peak_memory_kib: u64,
    is_stopped: bool,
    dying: Dying,
}

/// A process that was started.
struct Alive {
    /// Its number with the agent.
    id: u64,
    started: Started,
}

/// How often the kernel has killed for want of memory.
#[derive(Debug, Clone, Copy)]
struct Kills {
    of_run: u64,
    of_host: u64,
}

/// What was wanting: the run's share of memory, or the host's.
#[derive(Debug, Clone, Copy)]
struct Want {
    limit_mib: Option<u64>,
}

/// Whether processes are killed until none is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dying {
    No,
    Yes,
    /// And then the agent is told.
    ToFinish,
}

impl RunShim {
    fn attend(&mut self, children: &SignalFd) -> io::Result<()> {
        loop {
            wait(&self.channel, children, self.patience())?;
            let Heard { messages, is_open } = self.channel.hear()?;
            if !is_open {
                // Its last orders are those of an agent that is gone.
                return Ok(());
            }
            // How long the run may live now, before what it was to do a while ago.
            let (leases, orders): (Vec<ToRunShim>, Vec<ToRunShim>) =
                messages.into_iter().partition(|order| matches!(order, ToRunShim::Lease { .. }));
            leases.into_iter().chain(orders).for_each(|order| self.obey(order));
            self.enforce_lease();
            self.reap();
            self.remember_kills();
            self.look_after_dying();
            self.channel.tell();
        }
    }

    fn patience(&self) -> PollTimeout {
        match self.lease {
            _ if self.dying != Dying::No => PollTimeout::from(LOOK_AGAIN_MS),
            Some(until) => PollTimeout::try_from(until.since(now()).0 + 1).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        }
    }

    fn obey(&mut self, order: ToRunShim) {
        match order {
            ToRunShim::Start(start) => self.start(&start),
            ToRunShim::Signal { signal } => self.signal(signal),
            ToRunShim::SignalOne { id, signal } => self.signal_one(id, signal),
            ToRunShim::KillSession { id } => self.kill_session(id),
            ToRunShim::Kill if self.dying == Dying::No => self.dying = Dying::Yes,
            ToRunShim::Kill => {}
            ToRunShim::Finish => self.dying = Dying::ToFinish,
            ToRunShim::Lease { until_ms } => {
                self.is_lease_lifted = until_ms.is_none();
                self.lease = until_ms.map(Time).or(self.lease.filter(|_| self.is_anything_alive()));
                self.channel.say(&FromRunShim::Leased);
            }
        }
    }

    /// The agent decides when a run ends; when it stands still, time decides.
    fn enforce_lease(&mut self) {
        if self.lease.is_none_or(|until| now() < until) {
            return;
        }
        self.lease = None;
        self.channel.say(&FromRunShim::LeaseEnded);
        if self.dying == Dying::No {
            self.dying = Dying::Yes;
        }
    }

    fn is_anything_alive(&self) -> bool {
        self.dying != Dying::No || !self.alive.is_empty()
    }

    fn start(&mut self, start: &ProcessStart) {
        let until =
            start.until_ms.map(|until| self.lease.map_or(Time(until), |lease| lease.max(Time(until))));
        if until.is_some_and(|until| now() >= until) {
            return self.say_too_late(start.id);
        }
        if start.memory_mib > 0 && self.limited.is_none() {
            self.limited = self.cgroups.limit(&self.group, start.memory_mib);
            self.entrances = Arc::new(self.limited.iter().filter_map(Limited::entrance).collect());
        }
        match start::start(start, until, &self.entrances) {
            Ok(started) => drop(self.alive.insert(started.pid, Alive { id: start.id, started })),
            Err(error) => {
                let error = error.raw_os_error().unwrap_or(libc::EIO);
                self.channel.say(&FromRunShim::NotStarted { id: start.id, error });
            }
        }
    }

    /// The run ends for its lease, and not because a process of it did not start.
    fn say_too_late(&mut self, id: u64) {
        self.channel.say(&FromRunShim::LeaseEnded);
        self.channel.say(&FromRunShim::NotStarted { id, error: libc::ECANCELED });
    }

    fn reap(&mut self) {
        while let Some(Reaped { pid, end, cpu_us, peak_memory_kib }) = start::reap() {
            let Some(Alive { id, started }) = self.alive.remove(&pid) else { continue };
            self.cpu_us += cpu_us;
            self.peak_memory_kib = self.peak_memory_kib.max(peak_memory_kib);
            let end = self.explain(end);
            match started.failure() {
                Some(NotBegun::TooLate) => self.say_too_late(id),
                Some(NotBegun::Failed(error)) => self.channel.say(&FromRunShim::NotStarted { id, error }),
                None => self.channel.say(&FromRunShim::Ended { id, end }),
            }
        }
    }

    /// Says whether what was killed was killed for want of memory: the kernel has killed for that a moment ago. A shell
    /// passes the death of its child on by its status, a little later.
    fn explain(&mut self, end: RankEnd) -> RankEnd {
        if end.is_success() || self.dying != Dying::No {
            return end;
        }
        let is_killed =
            matches!(end, RankEnd::Signal(libc::SIGKILL)) || end == RankEnd::Exit(128 + libc::SIGKILL);
        let kills = self.count_kills();
        let before = self.earlier_kills;
        if kills.of_run > before.of_run {
            self.want = self.limited.as_ref().map(|limited| Want { limit_mib: Some(limited.memory_mib) });
        } else if is_killed && self.limited.is_none() && kills.of_host > before.of_host {
            self.want = Some(Want { limit_mib: None });
        }
        self.want.map_or(end, |want| RankEnd::OutOfMemory { limit_mib: want.limit_mib })
    }

    /// Keeps counts that are at least [`KILLS_AGO`] old.
    fn remember_kills(&mut self) {
        if now().since(self.kills_taken) >= KILLS_AGO {
            self.earlier_kills = self.kills;
            self.kills = self.count_kills();
            self.kills_taken = now();
        }
    }

    fn count_kills(&self) -> Kills {
        Kills {
            of_run: self.limited.as_ref().map_or(0, Limited::memory_kills),
            of_host: cgroup::memory_kills_of_host(),
        }
    }

    fn signal(&mut self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        for pid in members() {
            processes::kill_one(pid, signal);
            // A stopped process would never learn of it; one that is to end may also have stopped itself.
            let is_end = signal == Signal::SIGTERM;
            if is_end || self.is_stopped && !matches!(signal, Signal::SIGSTOP | Signal::SIGTSTP) {
                processes::kill_one(pid, Signal::SIGCONT);
            }
        }
        self.is_stopped = match signal {
            Signal::SIGSTOP => true,
            Signal::SIGCONT | Signal::SIGTERM | Signal::SIGKILL => false,
            _ => self.is_stopped,
        };
    }

    fn signal_one(&self, id: u64, signal: i32) {
        if let (Some(pid), Ok(signal)) = (self.find(id), Signal::try_from(signal)) {
            processes::kill_one(pid, signal);
        }
    }

    fn kill_session(&self, id: u64) {
        let Some(session) = self.find(id) else { return };
        let everything = processes::all();
        let below = processes::descendants(session, &everything);
        let of_session = everything.iter().filter(|process| process.session == session);
        for process in below.iter().chain(of_session) {
            processes::kill_one(process.pid, Signal::SIGKILL);
        }
    }

    fn find(&self, id: u64) -> Option<i32> {
        self.alive.iter().find(|(_, alive)| alive.id == id).map(|(pid, _)| *pid)
    }

    fn look_after_dying(&mut self) {
        if self.dying == Dying::No {
            return;
        }
        if kill_members() || !self.alive.is_empty() {
            self.limited.iter().for_each(Limited::kill);
            return;
        }
        if self.dying == Dying::ToFinish {
            let (cpu_ms, peak_memory_mib) = (self.cpu_us / 1000, self.peak_memory_mib());
            self.channel.say(&FromRunShim::Finished { cpu_ms, peak_memory_mib });
        }
        self.dying = Dying::No;
        self.lease = self.lease.filter(|_| !self.is_lease_lifted);
    }

    /// Of the whole run where a cgroup counts it, otherwise of its largest process.
    fn peak_memory_mib(&self) -> u64 {
        let counted = self.limited.as_ref().map_or(0, Limited::peak_memory_mib);
        counted.max(self.peak_memory_kib / 1024)
    }

    fn kill_everything(&self) {
        for _ in 0..LAST_LOOKS {
            while start::reap().is_some() {}
            if !kill_members() {
                break;
            }
            std::thread::sleep(Duration::from_millis(LOOK_AGAIN_MS.into()));
        }
        self.limited.iter().for_each(Limited::remove);
    }
}

/// The processes of the group: all that descend from this one.
fn members() -> Vec<i32> {
    if processes::own_children().is_some_and(|children| children.is_empty()) {
        return Vec::new();
    }
    let own = std::process::id() as i32;
    processes::descendants(own, &processes::all()).iter().map(|process| process.pid).collect()
}

/// True when there was something to kill.
fn kill_members() -> bool {
    let members = members();
    members.iter().for_each(|pid| processes::kill_one(*pid, Signal::SIGKILL));
    !members.is_empty()
}
