//! What the node tells its keeper and its guardians and hears from them, and what happens when one dies or stands still.
//!
//! Agent and guardians watch each other: a guardian kills its run when the agent does not renew the lease, and the agent
//! kills a guardian that does not answer. So none can let a run live on that the control plane has given up. A keeper
//! that dies or stands still is replaced, and its guardians go on.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use bedplate_control::agent::Happened;
use bedplate_control::wire::{RankEnd, RunId};
use bedplate_gangs::{Span, Time};
use bedplate_job::rank_environment::MARK;
use nix::sys::signal::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::{Node, Purpose};
use crate::clock::now;
use crate::error::AgentError;
use crate::event::Event;
use crate::keeper::orders::{FromGuardian, FromKeeper, Start, ToGuardian, ToKeeper, node_group};
use crate::kept::Kept;
use crate::processes;

/// One that has not answered for this long is taken for dead; a guardian that shall end its run gets less.
const SILENCE: Span = Span::seconds(5);
const SILENCE_AFTER_LEASE: Span = Span(400);

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

/// The guardian of a group.
pub(super) struct Guard {
    number: u64,
    orders: UnboundedSender<ToGuardian>,
    /// Which keeper forked it, and will see to what it leaves behind.
    keeper: u32,
    /// Unknown until the keeper has forked it.
    pid: Option<i32>,
    lease: Option<Time>,
    leases: Unanswered,
    /// Whether an unanswered lease came after the one before it had ended: the run must go at once.
    is_urgent: bool,
    /// Since when it is as good as gone: its link has closed, or it was killed for standing still.
    given_up: Option<Time>,
    /// It was killed by us.
    stood_still: bool,
}

impl Guard {
    fn renew(&mut self, until: Option<Time>) {
        if until != self.lease {
            self.is_urgent |= self.is_over();
            self.lease = until;
            self.leases.ask();
            let _ = self.orders.send(ToGuardian::Lease { until_ms: until.map(|until| until.0) });
        }
    }

    fn stands_still(&self) -> bool {
        let is_urgent = self.is_urgent || self.is_over();
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
    /// Tells guardians how long their runs may live, if that has changed. The node's own commands need no lease.
    pub(super) fn renew_lease(&mut self) {
        let until = self.agent.lease();
        let own = node_group(&self.options.node);
        let guards = self.guards.iter_mut().filter(|(group, _)| **group != own);
        guards.for_each(|(_, guard)| guard.renew(until));
    }

    /// Kills guardians that stand still, and replaces a keeper that does: runs could neither be stopped nor started.
    pub(super) fn watch_guardians(&mut self) -> Result<(), AgentError> {
        let keeper = self.keeper.as_ref().map_or(0, |keeper| keeper.number);
        let mut is_keeper_slow = self.unanswered.is_longer_than(SILENCE);
        for (group, guard) in &mut self.guards {
            match guard.given_up {
                None if guard.stands_still() => {
                    (self.options.remark)(&format!("the guardian of {group} does not answer; killing it"));
                    guard.given_up = Some(now());
                    guard.stood_still = true;
                    guard.pid.into_iter().for_each(kill_own);
                }
                Some(since) => is_keeper_slow |= guard.keeper == keeper && now().since(since) >= SILENCE,
                None => {}
            }
        }
        if is_keeper_slow {
            (self.options.remark)("the keeper of this node's processes does not answer");
            self.replace_keeper()?;
        }
        Ok(())
    }

    pub(super) fn start_keeper(&mut self) -> io::Result<()> {
        self.keepers_started += 1;
        let keeper = Kept::start(&self.program, self.keepers_started, &self.events)?;
        self.unanswered = Unanswered::default();
        keeper.order(ToKeeper::Begin { node: self.options.node.clone(), cores: self.options.cores.clone() });
        self.keeper = Some(keeper);
        Ok(())
    }

    /// The first thing heard is what the keeper found on this host; it is told in the greeting.
    pub(super) async fn await_keeper(
        &mut self,
        incoming: &mut UnboundedReceiver<Event>,
    ) -> Result<(), AgentError> {
        match incoming.recv().await {
            Some(Event::Kept { notice, .. }) => {
                self.keeper_says(notice);
                Ok(())
            }
            _ => Err(AgentError::Keeper { source: io::ErrorKind::BrokenPipe.into() }),
        }
    }

    pub(super) fn is_current(&self, number: u32) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.number == number)
    }

    /// To the guardian of a group; a group without one has no process.
    pub(super) fn order(&mut self, group: &str, order: ToGuardian) {
        match self.guards.get(group) {
            // When the guardian is gone, its end is told as an event.
            Some(guard) => drop(guard.orders.send(order)),
            None if order == ToGuardian::Finish => self.finished(group, 0, 0),
            None => {}
        }
    }

    /// Starts a process; its end comes as a notice.
    pub(super) fn start_process(&mut self, purpose: Purpose, start: Start) -> u64 {
        self.last_process += 1;
        let id = self.last_process;
        self.processes.insert(id, purpose);
        let group = self.group_of(purpose);
        match self.guard(&group) {
            Ok(()) => self.order(&group, ToGuardian::Start(Box::new(Start { id, ..start }))),
            // As if it had ended: the loop that asked for it goes on first.
            Err(error) => {
                let error = error.raw_os_error().unwrap_or(libc::EIO);
                let notice = FromGuardian::NotStarted { id, error };
                let _ = self.events.send(Event::Guarded { guardian: 0, notice });
            }
        }
        id
    }

    fn group_of(&self, purpose: Purpose) -> String {
        let of_run = |run| self.runs.get(&run).map_or_else(|| self.mark(run), |local| local.group.clone());
        match purpose {
            Purpose::Prolog(run) | Purpose::Rank(run, _) | Purpose::Task { run, .. } => of_run(run),
            Purpose::Epilog(run) | Purpose::Probe(Some(run)) => of_run(run),
            Purpose::Probe(None) => node_group(&self.options.node),
        }
    }

    /// Makes sure that a group has its guardian.
    fn guard(&mut self, group: &str) -> io::Result<()> {
        if self.guards.contains_key(group) {
            return Ok(());
        }
        let keeper = self.keeper.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        self.last_guardian += 1;
        let number = self.last_guardian;
        let is_run = group != node_group(&self.options.node);
        let mut guard = Guard {
            number,
            orders: keeper.fork_guardian(number, group, is_run, &self.events)?,
            keeper: keeper.number,
            pid: None,
            lease: None,
            leases: Unanswered::default(),
            is_urgent: false,
            given_up: None,
            stood_still: false,
        };
        self.unanswered.ask();
        if is_run {
            guard.renew(self.agent.lease());
        }
        self.guards.insert(group.to_owned(), guard);
        Ok(())
    }

    /// Kills a process and its session when it is still there after `time`.
    pub(super) fn limit_time(&self, id: u64, time: Duration) {
        let events = self.events.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let _ = events.send(Event::Overdue { id });
        });
    }

    pub(super) fn overdue(&mut self, id: u64) {
        if let Some(purpose) = self.processes.get(&id) {
            self.order(&self.group_of(*purpose), ToGuardian::KillSession { id });
        }
    }

    pub(super) fn keeper_says(&mut self, notice: FromKeeper) {
        match notice {
            FromKeeper::Ready { enforced } => self.enforced = enforced,
            FromKeeper::Guarding { guardian, pid } => {
                self.unanswered.answer();
                if let Some((_, guard)) = self.find_guard(guardian) {
                    guard.pid = Some(pid);
                }
            }
            FromKeeper::Gone { guardian } => {
                if self.find_guard(guardian).is_some_and(|(_, guard)| guard.pid.is_none()) {
                    self.unanswered.answer();
                }
                self.lose_guardian(guardian);
            }
        }
    }

    pub(super) fn guardian_says(&mut self, guardian: u64, notice: FromGuardian) {
        match notice {
            FromGuardian::NotStarted { id, error } => self.ended(id, RankEnd::NotStarted(error)),
            FromGuardian::Ended { id, end } => self.ended(id, end),
            FromGuardian::Finished { cpu_ms, peak_memory_mib } => {
                // Closing its link ends it.
                let group = self.find_guard(guardian).map(|(group, _)| group.clone());
                let Some(group) = group else { return };
                self.guards.remove(&group);
                self.finished(&group, cpu_ms, peak_memory_mib);
            }
            FromGuardian::Leased => {
                if let Some((_, guard)) = self.find_guard(guardian) {
                    guard.answered();
                }
            }
            FromGuardian::LeaseEnded => self.happened(Happened::LeaseEnded),
        }
    }

    fn find_guard(&mut self, number: u64) -> Option<(&String, &mut Guard)> {
        self.guards.iter_mut().find(|(_, guard)| guard.number == number)
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
            None => {}
        }
    }

    /// The link to a guardian has closed. Its keeper tells when nothing is left of it; without that keeper, we look.
    pub(super) fn guardian_silent(&mut self, number: u64) {
        let keeper = self.keeper.as_ref().map_or(0, |keeper| keeper.number);
        let Some((_, guard)) = self.find_guard(number) else { return };
        guard.given_up.get_or_insert_with(now);
        if guard.keeper != keeper {
            self.sweep_after(number);
        }
    }

    /// Everything that a guardian left goes before its run counts as ended; another thread does that.
    fn sweep_after(&mut self, number: u64) {
        let known: BTreeSet<i32> = self
            .guards
            .values()
            .filter(|guard| guard.number != number)
            .filter_map(|guard| guard.pid)
            .collect();
        let keeper = self.keeper.as_ref().map(Kept::pid);
        let Some((group, _)) = self.find_guard(number) else { return };
        let variable = format!("{MARK}={group}");
        let events = self.events.clone();
        processes::kill_below(std::process::id() as i32, |pid| known.contains(pid) || Some(*pid) == keeper);
        tokio::task::spawn_blocking(move || {
            processes::kill_marked(&variable);
            let _ = events.send(Event::Swept { guardian: number });
        });
    }

    /// A guardian and all its processes are gone, though nobody asked for that.
    pub(super) fn lose_guardian(&mut self, number: u64) {
        let Some((group, _)) = self.find_guard(number) else { return };
        let group = group.clone();
        let Some(guard) = self.guards.remove(&group) else { return };
        (self.options.remark)(&format!("the guardian of {group} is gone"));
        let of_group = |(_, purpose): &(&u64, &Purpose)| self.group_of(**purpose) == group;
        let lost: Vec<u64> = self.processes.iter().filter(of_group).map(|(id, _)| *id).collect();
        // One that stood still, or never was, is nothing that its run did.
        let is_innocent = guard.stood_still || guard.pid.is_none();
        let mut lost_runs: BTreeSet<RunId> = BTreeSet::new();
        for id in lost {
            match self.processes.get(&id) {
                Some(Purpose::Prolog(run) | Purpose::Rank(run, _)) if is_innocent => {
                    lost_runs.insert(*run);
                    self.processes.remove(&id);
                }
                _ => self.ended(id, RankEnd::Unguarded),
            }
        }
        for run in lost_runs {
            self.happened(Happened::Lost { run });
        }
        self.finish_again(&group);
    }

    /// Another keeper forks from now on. Guardians of the old one stay; what was left by one that is gone is ours now.
    pub(super) fn replace_keeper(&mut self) -> Result<(), AgentError> {
        (self.options.remark)("starting another keeper of this node's processes");
        if let Some(keeper) = self.keeper.take() {
            keeper.bury();
        }
        self.start_keeper().map_err(|source| AgentError::Keeper { source })?;
        let given_up = self.guards.values().filter(|guard| guard.given_up.is_some());
        for number in given_up.map(|guard| guard.number).collect::<Vec<u64>>() {
            self.sweep_after(number);
        }
        Ok(())
    }
}

/// Kills a guardian, which is a child of ours or of our keeper; its number may belong to another process by now.
fn kill_own(pid: i32) {
    let own = std::process::id() as i32;
    let everything = processes::all();
    if processes::descendants(own, &everything).iter().any(|process| process.pid == pid) {
        processes::kill_one(pid, Signal::SIGKILL);
    }
}
