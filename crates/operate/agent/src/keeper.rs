//! The keeper of a node: the parent of all its ranks, and nothing else.
//!
//! It has one thread and little memory, so that a fork is cheap, and it adopts whatever its ranks leave behind
//! (`PR_SET_CHILD_SUBREAPER`): every process of every run descends from it, however often it forked and whatever
//! session it opened. When the agent dies, its end of the socket closes, and the keeper kills them all and ends. When the
//! agent stands still, it does not renew the lease of its runs, and the keeper kills them and waits for it.

mod group;
pub(crate) mod orders;
mod start;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use bedplate_gangs::Time;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::cgroup::Cgroups;
use crate::clock::now;
use crate::processes;
use group::Group;
use orders::{Notice, Order, Start, node_group};
use start::Started;

/// How often processes that were killed and are not gone are checked.
const LOOK_AGAIN_MS: u16 = 5;
/// How long killed processes may take to go when the keeper ends.
const LAST_LOOKS: u32 = 2000;

/// Runs the keeper on the socket that is its standard input, until the other end closes.
pub fn main() -> ExitCode {
    match keep() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn keep() -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    set_child_subreaper(true)?;
    // An interrupt at the agent's terminal is not for the ranks; the agent says when they end.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let children = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut keeper = Keeper::new(socket);
    let outcome = keeper.attend(&children);
    keeper.kill_everything();
    keeper.cgroups.end();
    outcome
}

struct Keeper {
    socket: UnixStream,
    received: Vec<u8>,
    /// Notices that have not been written yet.
    notices: Vec<u8>,
    cgroups: Cgroups,
    groups: BTreeMap<String, Group>,
    /// The processes that were started and have not ended.
    alive: BTreeMap<i32, Alive>,
    /// The group of the node's own commands, which need no lease.
    node_group: String,
    /// When all runs die, unless the agent says otherwise.
    lease: Option<Time>,
}

/// A process that was started.
struct Alive {
    group: String,
    /// Its number with the agent.
    id: u64,
    started: Started,
}

impl Keeper {
    fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            received: Vec::new(),
            notices: Vec::new(),
            cgroups: Cgroups::default(),
            groups: BTreeMap::new(),
            alive: BTreeMap::new(),
            node_group: String::new(),
            lease: None,
        }
    }

    fn attend(&mut self, children: &SignalFd) -> io::Result<()> {
        loop {
            self.wait(children)?;
            while children.read_signal()?.is_some() {}
            let is_open = self.receive()?;
            self.enforce_lease();
            self.reap();
            self.look_after_dying();
            self.tell()?;
            if !is_open {
                return Ok(());
            }
        }
    }

    fn wait(&self, children: &SignalFd) -> io::Result<()> {
        let is_any_dying = self.groups.values().any(|group| group.is_dying);
        let timeout = match self.lease {
            _ if is_any_dying => PollTimeout::from(LOOK_AGAIN_MS),
            Some(until) => PollTimeout::try_from(until.since(now()).0 + 1).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        let mut watched = [
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut watched, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads and obeys orders. False when the agent is gone.
    fn receive(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 65_536];
        let is_open = loop {
            match self.socket.read(&mut chunk) {
                Ok(0) => break false,
                Ok(length) => self.received.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
        };
        let received = std::mem::take(&mut self.received);
        let mut rest = received.as_slice();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let order = serde_json::from_slice(&rest[..end]).map_err(io::Error::from)?;
            self.obey(order);
            rest = &rest[end + 1..];
        }
        self.received = rest.to_vec();
        Ok(is_open)
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Begin { node, cores } => self.begin(&node, &cores),
            Order::Start(start) => self.start(&start),
            Order::Signal { group, signal } => self.signal_group(&group, signal),
            Order::SignalOne { id, signal } => self.signal_one(id, signal),
            Order::KillSession { id } => self.kill_session(id),
            Order::Kill { group } => self.group(&group).is_dying = true,
            Order::Finish { group } => {
                let group = self.group(&group);
                group.is_dying = true;
                group.is_finishing = true;
            }
            Order::Lease { until_ms } => {
                self.lease = until_ms.map(Time);
                self.say(&Notice::Leased);
            }
        }
    }

    /// The agent decides when a run ends; when it stands still, time decides.
    fn enforce_lease(&mut self) {
        if self.lease.is_none_or(|until| now() < until) {
            return;
        }
        self.lease = None;
        self.say(&Notice::LeaseEnded);
        let runs = self.groups.iter_mut().filter(|(name, _)| **name != self.node_group);
        runs.for_each(|(_, group)| group.is_dying = true);
    }

    fn begin(&mut self, node: &str, cores: &[u32]) {
        self.node_group = node_group(node);
        self.cgroups = Cgroups::begin(node, cores);
        let mut enforced = self.cgroups.enforced.clone();
        let mut set = CpuSet::new();
        let fits = cores.iter().all(|core| set.set(*core as usize).is_ok());
        // Inherited by every rank, so it costs nothing at its start.
        let is_bound = fits && !cores.is_empty() && sched_setaffinity(Pid::from_raw(0), &set).is_ok();
        if is_bound && !enforced.iter().any(|each| each.starts_with("cores")) {
            enforced.push("cores by affinity, which ranks can widen".to_owned());
        }
        self.say(&Notice::Ready { enforced });
    }

    fn start(&mut self, start: &Start) {
        let is_limited = self.groups.get(&start.group).is_some_and(Group::is_limited);
        let limited = match start.memory_mib {
            mib if mib > 0 && !is_limited => self.cgroups.limit(&start.group, mib),
            _ => None,
        };
        let group = self.group(&start.group);
        if let Some(limited) = limited {
            group.limit(limited);
        }
        match start::start(start, &group.entrances) {
            Ok(started) => {
                group.sessions.insert(started.pid);
                let alive = Alive { group: start.group.clone(), id: start.id, started };
                self.alive.insert(alive.started.pid, alive);
            }
            Err(error) => {
                let error = error.raw_os_error().unwrap_or(libc::EIO);
                self.say(&Notice::NotStarted { id: start.id, error });
            }
        }
    }

    fn reap(&mut self) {
        while let Some(reaped) = start::reap() {
            let Some(Alive { group, id, started }) = self.alive.remove(&reaped.pid) else { continue };
            let is_without_strays = self.is_without_strays();
            let group = self.group(&group);
            group.add(&reaped);
            if is_without_strays {
                // No process is left of its session, so the kernel may give its number to another.
                group.sessions.remove(&reaped.pid);
            }
            self.say(&match started.failure() {
                Some(error) => Notice::NotStarted { id, error },
                None => Notice::Ended { id, end: reaped.end },
            });
        }
    }

    fn signal_group(&mut self, group: &str, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        let is_stopped = self.groups.get(group).is_some_and(|group| group.is_stopped);
        for pid in self.members(group) {
            processes::kill_one(pid, signal);
            // A stopped process would never learn of it.
            if is_stopped && !matches!(signal, Signal::SIGSTOP | Signal::SIGTSTP) {
                processes::kill_one(pid, Signal::SIGCONT);
            }
        }
        if let Some(group) = self.groups.get_mut(group) {
            group.is_stopped = match signal {
                Signal::SIGSTOP => true,
                Signal::SIGCONT | Signal::SIGTERM | Signal::SIGKILL => false,
                _ => group.is_stopped,
            };
        }
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
        let dying = self.groups.iter().filter(|(_, group)| group.is_dying).map(|(name, _)| name.clone());
        for name in dying.collect::<Vec<String>>() {
            let members = self.members(&name);
            if members.is_empty() && !self.alive.values().any(|alive| alive.group == name) {
                self.bury(&name);
                continue;
            }
            self.group(&name).kill();
            for pid in members {
                processes::kill_one(pid, Signal::SIGKILL);
            }
        }
    }

    /// No process of the group is left.
    fn bury(&mut self, name: &str) {
        let group = self.group(name);
        group.is_dying = false;
        if group.is_finishing
            && let Some(group) = self.groups.remove(name)
        {
            let (cpu_ms, peak_memory_mib) = (group.cpu_us / 1000, group.peak_memory_mib());
            group.remove();
            self.say(&Notice::Gone { group: name.to_owned(), cpu_ms, peak_memory_mib });
        }
        if self.groups.is_empty() && !self.is_without_strays() {
            self.kill_below();
        }
    }

    /// Kills everything that descends from the keeper; true when there was something.
    fn kill_below(&self) -> bool {
        let left = processes::descendants(std::process::id() as i32, &processes::all());
        for process in &left {
            processes::kill_one(process.pid, Signal::SIGKILL);
        }
        !left.is_empty()
    }

    /// The processes of a group. Those that the keeper started are known; other descendants are recognised by their
    /// session, ancestors, cgroup or mark. A process that none of these identifies belongs to the last group.
    fn members(&self, name: &str) -> Vec<i32> {
        if self.is_without_strays() && !self.alive.values().any(|alive| alive.group == name) {
            return Vec::new();
        }
        let Some(group) = self.groups.get(name) else { return Vec::new() };
        let below = processes::descendants(std::process::id() as i32, &processes::all());
        let is_alone = self.groups.len() == 1;
        let inside = group.processes();
        let is_own = |process: &processes::Process| {
            let is_started = self.alive.get(&process.pid).is_some_and(|alive| alive.group == name);
            is_started || group.sessions.contains(&process.session) || inside.contains(&process.pid)
        };
        let mut members: Vec<i32> = Vec::new();
        for process in &below {
            let is_below_own = members.contains(&process.parent);
            let is_of_other = !is_own(process) && !is_below_own && self.is_of_other(name, process);
            if !is_of_other
                && (is_own(process) || is_below_own || is_alone || group::is_marked(name, process.pid))
            {
                members.push(process.pid);
            }
        }
        members
    }

    fn is_of_other(&self, name: &str, process: &processes::Process) -> bool {
        let mut others = self.groups.iter().filter(|(other, _)| *other != name);
        others.any(|(_, other)| other.sessions.contains(&process.session))
    }

    /// Whether the keeper has no children but those it started.
    fn is_without_strays(&self) -> bool {
        let children = processes::own_children();
        children.is_some_and(|children| children.iter().all(|pid| self.alive.contains_key(pid)))
    }

    fn group(&mut self, name: &str) -> &mut Group {
        self.groups.entry(name.to_owned()).or_default()
    }

    fn say(&mut self, notice: &Notice) {
        let text = serde_json::to_vec(notice).expect("a notice is plain data");
        self.notices.extend_from_slice(&text);
        self.notices.push(b'\n');
    }

    fn tell(&mut self) -> io::Result<()> {
        let notices = std::mem::take(&mut self.notices);
        let mut rest = notices.as_slice();
        while !rest.is_empty() {
            match self.socket.write(rest) {
                Ok(length) => rest = &rest[length..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut watched = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
                    let _ = poll(&mut watched, PollTimeout::NONE);
                }
                // The agent is gone, which the next read tells.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn kill_everything(&mut self) {
        for _ in 0..LAST_LOOKS {
            while start::reap().is_some() {}
            if !self.kill_below() {
                break;
            }
            std::thread::sleep(Duration::from_millis(LOOK_AGAIN_MS.into()));
        }
        for group in self.groups.values() {
            group.remove();
        }
    }
}
