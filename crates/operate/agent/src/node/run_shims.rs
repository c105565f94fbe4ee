//! What the node tells its fork server and its run shims and hears from them, and what happens when one dies or stands still.
//!
//! Agent, fork server and run shims watch each other: a run shim kills its run when the agent does not renew the lease, the agent
//! kills a run shim that does not answer, and the fork server kills what outlives the lease where both stand still. An order to
//! start says until when it may be obeyed, because whoever hands it on may stand still. So no two of them can let a run live on, or
//! begin, that the control plane has given up. A fork server that dies or stands still is replaced, and its run shims go on.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use bedplate_control::agent::Happened;
use bedplate_control::wire::{RankEnd, RunId};
use bedplate_gangs::{Span, Time};
use bedplate_job::rank_environment::MARK;
use nix::sys::signal::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tracing::warn;

use super::clean::Cleaning;
use super::{FORK_SERVER_OF, Local, Node, Purpose, agent_variable};
use crate::clock::now;
use crate::error::AgentError;
use crate::event::AgentEvent;
use crate::fork_client::ForkClient;
use crate::fork_server::orders::{
    FromForkServer, FromRunShim, PID_NAMESPACES, ProcessStart, ToForkServer, ToRunShim, node_group,
};
use crate::processes;

/// One that has not answered for this long is taken for dead; a run shim that shall end its run gets less.
const SILENCE: Span = Span::seconds(5);
const SILENCE_AFTER_LEASE: Span = Span(400);
/// How often a run shim that needs no lease is asked whether it is there.
const ASK_AGAIN: Span = Span(500);

/// Questions that were not answered yet, and since when.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    count: u32,
    since: Option<Time>,
}

impl Unanswered {
    fn ask(&mut self) {
        self.count += 1;
        self.since.get_or_insert_with(now);
    }

    fn answer(&mut self) {
        self.count = self.count.saturating_sub(1);
        self.since = (self.count > 0).then(now);
    }

    fn is_longer_than(&self, patience: Span) -> bool {
        self.since.is_some_and(|since| now().since(since) >= patience)
    }
}

/// What a fork server knows of the lease.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ForkServerLease {
    until: Option<Time>,
    unleased: Vec<u64>,
}

/// The run shim of a group.
pub(super) struct RunShim {
    number: u64,
    orders: UnboundedSender<ToRunShim>,
    /// Which fork server forked it, and will see to what it leaves behind.
    fork_server: u32,
    /// Unknown until the fork server has forked it.
    pid: Option<i32>,
    lease: Option<Time>,
    asked: Time,
    leases: Unanswered,
    /// Whether an unanswered lease came after the one before it had ended: the run must go at once.
    is_urgent: bool,
    /// Since when it is as good as gone: its link has closed, or it was killed for standing still.
    given_up: Option<Time>,
    /// It was killed by us.
    stood_still: bool,
}

impl RunShim {
    fn renew(&mut self, until: Option<Time>) {
        let is_due = until.is_none() && now().since(self.asked) >= ASK_AGAIN;
        if until != self.lease || is_due {
            self.is_urgent |= self.is_over();
            self.lease = until;
            self.asked = now();
            self.leases.ask();
            let _ = self.orders.send(ToRunShim::Lease { until_ms: until.map(|until| until.0) });
        }
    }

    /// `must_be_gone`: no process of its run may live any more.
    fn stands_still(&self, must_be_gone: bool) -> bool {
        let is_urgent = must_be_gone || self.is_urgent || self.is_over();
        self.leases.is_longer_than(if is_urgent { SILENCE_AFTER_LEASE } else { SILENCE })
    }

    fn is_over(&self) -> bool {
        self.lease.is_some_and(|until| until <= now())
    }

    fn answered(&mut self) {
        self.leases.answer();
        self.is_urgent &= self.leases.count > 0;
    }
}

impl Node {
    /// Tells run shims how long their runs may live, if that has changed. The node's own commands need no lease.
    pub(super) fn renew_lease(&mut self) {
        let until = self.agent.lease();
        let over = self.groups_past_job();
        let own = node_group(&self.options.node);
        let (mut leased, mut unleased) = (0, Vec::new());
        for (group, shim) in self.run_shims.iter_mut().filter(|(group, _)| **group != own) {
            let is_over = over.contains(group);
            shim.renew(until.filter(|_| !is_over));
            if is_over { unleased.push(shim.number) } else { leased += 1 }
        }
        let until = (leased > 0).then(|| self.agent.lease_ends());
        if until.is_some() || !unleased.is_empty() {
            self.tell_fork_server(ForkServerLease { until, unleased });
        }
    }

    /// It sees to what agent and run shim would both let live.
    fn tell_fork_server(&mut self, lease: ForkServerLease) {
        if let Some(fork_server) = self.fork_server.as_ref().filter(|_| lease != self.fork_server_lease) {
            let (until_ms, unleased) = (lease.until.map(|until| until.0), lease.unleased.clone());
            fork_server.order(ToForkServer::Lease { until_ms, unleased });
            self.fork_server_lease = lease;
        }
    }

    /// Those of whose jobs no process is left: their epilogs have their time.
    fn groups_past_job(&self) -> BTreeSet<String> {
        let is_past = |local: &&Local| local.cleaning.is_some_and(Cleaning::is_past_job);
        self.runs.values().filter(is_past).map(|local| local.group.clone()).collect()
    }

    /// Kills run shims that stand still, and replaces a fork server that does: runs could neither be stopped nor started.
    pub(super) fn watch_run_shims(&mut self) -> Result<(), AgentError> {
        let fork_server = self.fork_server.as_ref().map_or(0, |fork_server| fork_server.number);
        let mut is_fork_server_slow = self.unanswered.is_longer_than(SILENCE);
        let is_lease_over = now() >= self.agent.lease_ends();
        let over = self.groups_past_job();
        let own = node_group(&self.options.node);
        for (group, shim) in &mut self.run_shims {
            let must_be_gone = is_lease_over && *group != own && !over.contains(group);
            match shim.given_up {
                None if shim.stands_still(must_be_gone) => {
                    warn!(
                        node = self.options.node,
                        run = group,
                        "the run shim of {group} does not answer; killing it"
                    );
                    shim.given_up = Some(now());
                    shim.stood_still = true;
                    shim.pid.into_iter().for_each(kill_own);
                }
                Some(since) => {
                    let patience = if must_be_gone { SILENCE_AFTER_LEASE } else { SILENCE };
                    is_fork_server_slow |= shim.fork_server == fork_server && now().since(since) >= patience
                }
                None => {}
            }
        }
        if is_fork_server_slow {
            warn!(node = self.options.node, "the fork server of this node's processes does not answer");
            self.replace_fork_server()?;
        }
        Ok(())
    }

    pub(super) fn start_fork_server(&mut self) -> io::Result<()> {
        self.fork_servers_started += 1;
        let mark = (FORK_SERVER_OF, self.places.socket.as_path());
        let fork_server = ForkClient::start(&self.program, self.fork_servers_started, mark, &self.events)?;
        self.unanswered = Unanswered::default();
        self.fork_server_lease = ForkServerLease::default();
        fork_server.order(ToForkServer::Begin {
            node: self.options.node.clone(),
            cores: self.options.cores.clone(),
        });
        self.fork_server = Some(fork_server);
        Ok(())
    }

    /// The first thing heard is what the fork server found on this host; it is told in the greeting.
    pub(super) async fn await_fork_server(
        &mut self,
        incoming: &mut UnboundedReceiver<AgentEvent>,
    ) -> Result<(), AgentError> {
        match incoming.recv().await {
            Some(AgentEvent::ForkServerSays { notice, .. }) => {
                self.fork_server_says(notice);
                Ok(())
            }
            _ => Err(AgentError::ForkServer { source: io::ErrorKind::BrokenPipe.into() }),
        }
    }

    pub(super) fn is_current(&self, number: u32) -> bool {
        self.fork_server.as_ref().is_some_and(|fork_server| fork_server.number == number)
    }

    /// To the run shim of a group; a group without one has no process.
    pub(super) fn order(&mut self, group: &str, order: ToRunShim) {
        match self.run_shims.get(group) {
            // When the run shim is gone, its end is told as an event.
            Some(shim) => drop(shim.orders.send(order)),
            None if order == ToRunShim::Finish => self.finished(group, 0, 0),
            None => {}
        }
    }

    /// Starts a process; its end comes as a notice.
    pub(super) fn start_process(&mut self, purpose: Purpose, start: ProcessStart) -> u64 {
        self.last_process += 1;
        let id = self.last_process;
        let until_ms = purpose.needs_lease().then(|| self.agent.lease_ends().0);
        self.processes.insert(id, purpose);
        let group = self.group_of(purpose);
        match self.ensure_run_shim(&group) {
            Ok(()) => self.order(&group, ToRunShim::Start(Box::new(ProcessStart { id, until_ms, ..start }))),
            // As if it had ended: the loop that asked for it goes on first.
            Err(error) => {
                let error = error.raw_os_error().unwrap_or(libc::EIO);
                let notice = FromRunShim::NotStarted { id, error };
                let _ = self.events.send(AgentEvent::RunShimSays { run_shim: 0, notice });
            }
        }
        id
    }

    fn group_of(&self, purpose: Purpose) -> String {
        let of_run = |run| self.runs.get(&run).map_or_else(|| self.mark(run), |local| local.group.clone());
        match purpose {
            Purpose::Prolog(run) | Purpose::Rank(run, _) | Purpose::Task { run, .. } => of_run(run),
            Purpose::Epilog(run) | Purpose::Probe(Some(run)) => of_run(run),
            Purpose::Probe(None) | Purpose::Check => node_group(&self.options.node),
        }
    }

    /// Makes sure that a group has its run shim.
    fn ensure_run_shim(&mut self, group: &str) -> io::Result<()> {
        if self.run_shims.contains_key(group) {
            return Ok(());
        }
        let fork_server = self.fork_server.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        self.last_run_shim += 1;
        let number = self.last_run_shim;
        let is_run = group != node_group(&self.options.node);
        let shim = RunShim {
            number,
            orders: fork_server.fork_run_shim(number, group, is_run, &self.events)?,
            fork_server: fork_server.number,
            pid: None,
            lease: None,
            asked: now(),
            leases: Unanswered::default(),
            is_urgent: false,
            given_up: None,
            stood_still: false,
        };
        self.unanswered.ask();
        self.run_shims.insert(group.to_owned(), shim);
        // Before it hears of anything to start.
        self.renew_lease();
        Ok(())
    }

    /// Kills a process and its session when it is still there after `time`.
    pub(super) fn limit_time(&self, id: u64, time: Duration) {
        let events = self.events.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let _ = events.send(AgentEvent::Overdue { id });
        });
    }

    pub(super) fn overdue(&mut self, id: u64) {
        if let Some(purpose) = self.processes.get(&id) {
            self.order(&self.group_of(*purpose), ToRunShim::KillSession { id });
        }
    }

    pub(super) fn fork_server_says(&mut self, notice: FromForkServer) {
        match notice {
            FromForkServer::Ready { enforced } => self.enforced = enforced,
            FromForkServer::Forked { run_shim, pid } => {
                self.unanswered.answer();
                if let Some((_, shim)) = self.find_run_shim(run_shim) {
                    shim.pid = Some(pid);
                }
            }
            FromForkServer::Gone { run_shim } => {
                if self.find_run_shim(run_shim).is_some_and(|(_, shim)| shim.pid.is_none()) {
                    self.unanswered.answer();
                }
                self.lose_run_shim(run_shim);
            }
        }
    }

    pub(super) fn run_shim_says(&mut self, run_shim: u64, notice: FromRunShim) {
        match notice {
            FromRunShim::NotStarted { id, error } => self.ended(id, RankEnd::NotStarted(error)),
            FromRunShim::Ended { id, end } => self.ended(id, end),
            FromRunShim::Finished { cpu_ms, peak_memory_mib } => {
                // Closing its link ends it.
                let group = self.find_run_shim(run_shim).map(|(group, _)| group.clone());
                let Some(group) = group else { return };
                self.run_shims.remove(&group);
                self.finished(&group, cpu_ms, peak_memory_mib);
            }
            FromRunShim::Leased => {
                if let Some((_, shim)) = self.find_run_shim(run_shim) {
                    shim.answered();
                }
            }
            FromRunShim::LeaseEnded => self.lease_ended(run_shim),
        }
    }

    fn lease_ended(&mut self, run_shim: u64) {
        let Some((group, _)) = self.find_run_shim(run_shim) else { return };
        let group = group.clone();
        let run = self.runs.iter().find(|(_, local)| local.group == group).map(|(run, _)| *run);
        run.into_iter().for_each(|run| self.happened(Happened::LeaseEnded { run }));
    }

    fn find_run_shim(&mut self, number: u64) -> Option<(&String, &mut RunShim)> {
        self.run_shims.iter_mut().find(|(_, shim)| shim.number == number)
    }

    fn ended(&mut self, id: u64, end: RankEnd) {
        match self.processes.remove(&id) {
            Some(Purpose::Prolog(run)) => self.prolog_ended(run, end),
            Some(Purpose::Rank(run, rank)) => {
                self.read_reports(run);
                self.happened(Happened::RankEnded { run, rank, end });
            }
            Some(Purpose::Task { run, step, task }) => self.task_ended(run, step, task, end),
            Some(Purpose::Epilog(run)) => self.epilog_ended(run, end),
            Some(Purpose::Probe(run)) => self.probe_ended(run, end),
            Some(Purpose::Check) => self.check_ended(end),
            None => {}
        }
    }

    /// The link to a run shim has closed. Its fork server tells when nothing is left of it; without that fork server, we look.
    pub(super) fn run_shim_silent(&mut self, number: u64) {
        let fork_server = self.fork_server.as_ref().map_or(0, |fork_server| fork_server.number);
        let Some((_, shim)) = self.find_run_shim(number) else { return };
        shim.given_up.get_or_insert_with(now);
        if shim.fork_server != fork_server {
            self.sweep_after(number);
        }
    }

    /// Everything that a run shim left goes before its run counts as ended; another thread does that.
    fn sweep_after(&mut self, number: u64) {
        let known: BTreeSet<i32> = self
            .run_shims
            .values()
            .filter(|shim| shim.number != number)
            .filter_map(|shim| shim.pid)
            .collect();
        let fork_server = self.fork_server.as_ref().map(ForkClient::pid);
        let Some((group, _)) = self.find_run_shim(number) else { return };
        // Another cluster's agent on this host may have a node of the same name with a run of the same number.
        let (of_group, of_agent) = (format!("{MARK}={group}"), agent_variable(&self.places));
        let events = self.events.clone();
        processes::kill_below(std::process::id() as i32, |pid| {
            known.contains(pid) || Some(*pid) == fork_server
        });
        tokio::task::spawn_blocking(move || {
            processes::kill_marked(&[&of_group, &of_agent]);
            let _ = events.send(AgentEvent::Swept { run_shim: number });
        });
    }

    /// Whether each run has a pid namespace of its own, from within which its run shim cannot be signalled.
    fn isolates_runs(&self) -> bool {
        self.enforced.iter().any(|each| each == PID_NAMESPACES)
    }

    /// A run shim and all its processes are gone, though nobody asked for that.
    pub(super) fn lose_run_shim(&mut self, number: u64) {
        let Some((group, _)) = self.find_run_shim(number) else { return };
        let group = group.clone();
        let Some(shim) = self.run_shims.remove(&group) else { return };
        warn!(node = self.options.node, run = group, "the run shim of {group} is gone");
        let of_group = |(_, purpose): &(&u64, &Purpose)| self.group_of(**purpose) == group;
        let lost: Vec<u64> = self.processes.iter().filter(of_group).map(|(id, _)| *id).collect();
        // One that stood still, or never was, is nothing that its run did; nor is the end of one that its run cannot reach, or whose
        // lease was over.
        let is_innocent = shim.stood_still || shim.pid.is_none() || shim.is_over() || self.isolates_runs();
        let mut lost_runs: BTreeSet<RunId> = BTreeSet::new();
        for id in lost {
            match self.processes.get(&id) {
                Some(Purpose::Prolog(run) | Purpose::Rank(run, _)) if is_innocent => {
                    lost_runs.insert(*run);
                    self.processes.remove(&id);
                }
                _ => self.ended(id, RankEnd::ShimKilled),
            }
        }
        for run in lost_runs {
            self.happened(Happened::Lost { run });
        }
        self.finish_again(&group);
    }

    /// Another fork server forks from now on. Run shims of the old one stay; what was left by one that is gone is ours now.
    pub(super) fn replace_fork_server(&mut self) -> Result<(), AgentError> {
        warn!(node = self.options.node, "starting another fork server of this node's processes");
        if let Some(fork_server) = self.fork_server.take() {
            fork_server.bury();
        }
        self.start_fork_server().map_err(|source| AgentError::ForkServer { source })?;
        let given_up = self.run_shims.values().filter(|shim| shim.given_up.is_some());
        for number in given_up.map(|shim| shim.number).collect::<Vec<u64>>() {
            self.sweep_after(number);
        }
        Ok(())
    }
}

/// Kills a run shim with its run. It is a child of ours or of our fork server; its number may belong to another process by now.
fn kill_own(pid: i32) {
    let own = std::process::id() as i32;
    let everything = processes::all();
    if processes::descendants(own, &everything).iter().any(|process| process.pid == pid) {
        processes::kill_one(pid, Signal::SIGKILL);
        let below = processes::descendants(pid, &everything);
        below.iter().for_each(|process| processes::kill_one(process.pid, Signal::SIGKILL));
    }
}
