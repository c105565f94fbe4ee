//! What the node tells its keeper and hears from it, and what happens when the keeper dies or stands still.
//!
//! The two watch each other: the keeper kills all runs when the agent does not renew their lease, and the agent replaces a
//! keeper that does not answer. So neither can let a run live on that the control plane has given up.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use bedplate_control::agent::Happened;
use bedplate_control::wire::{RankEnd, RunId};
use bedplate_gangs::{Span, Time};

use tokio::sync::mpsc::UnboundedReceiver;

use super::{Node, Purpose, agent_variable};
use crate::clock::now;
use crate::error::AgentError;
use crate::event::Event;
use crate::keeper::orders::{Notice, Order, Start};
use crate::kept::Kept;
use crate::processes;

/// A keeper that has not answered for this long is taken for dead; one that shall end runs whose lease is over gets less.
const SILENCE: Span = Span::seconds(5);
const SILENCE_AFTER_LEASE: Span = Span(400);

/// The lease that the keeper was told last, and what it has said to that.
#[derive(Debug, Default)]
pub(super) struct Leased {
    until: Option<Time>,
    /// Orders that were not answered yet, and since when.
    unanswered: u32,
    asked: Option<Time>,
    /// Whether one of them came after the lease before it had ended: runs must go at once.
    is_urgent: bool,
}

impl Leased {
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= now())
    }
}

impl Node {
    /// Tells the keeper how long runs may live, if that has changed.
    pub(super) fn renew_lease(&mut self) {
        let until = self.agent.lease();
        if until == self.leased.until || self.keeper.is_none() {
            return;
        }
        self.leased.is_urgent |= self.leased.is_over();
        self.leased.until = until;
        self.leased.unanswered += 1;
        self.leased.asked.get_or_insert_with(now);
        self.order(Order::Lease { until_ms: until.map(|until| until.0) });
    }

    /// Replaces a keeper that stands still: runs could neither be started nor stopped.
    pub(super) fn watch_keeper(&mut self) {
        let Some(asked) = self.leased.asked else { return };
        let is_urgent = self.leased.is_urgent || self.leased.is_over();
        let patience = if is_urgent { SILENCE_AFTER_LEASE } else { SILENCE };
        if self.keeper.is_some() && now().since(asked) >= patience {
            (self.options.remark)("the keeper of this node's processes does not answer");
            self.lose_keeper();
        }
    }

    fn keeper_answered(&mut self) {
        self.leased.unanswered = self.leased.unanswered.saturating_sub(1);
        self.leased.asked = (self.leased.unanswered > 0).then(now);
        self.leased.is_urgent &= self.leased.unanswered > 0;
    }

    pub(super) fn start_keeper(&mut self) -> io::Result<()> {
        self.keepers_started += 1;
        let keeper = Kept::start(&self.program, self.keepers_started, &self.events)?;
        self.leased = Leased::default();
        keeper.order(Order::Begin { node: self.options.node.clone(), cores: self.options.cores.clone() });
        for order in self.waiting_orders.drain(..) {
            keeper.order(order);
        }
        self.keeper = Some(keeper);
        Ok(())
    }

    /// The first thing heard is what the keeper found on this host; it is told in the greeting.
    pub(super) async fn await_keeper(
        &mut self,
        incoming: &mut UnboundedReceiver<Event>,
    ) -> Result<(), AgentError> {
        match incoming.recv().await {
            Some(Event::Noticed { notice, .. }) => {
                self.noticed(notice);
                Ok(())
            }
            _ => Err(AgentError::Keeper { source: io::ErrorKind::BrokenPipe.into() }),
        }
    }

    pub(super) fn is_current(&self, number: u32) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.number == number)
    }

    pub(super) fn order(&mut self, order: Order) {
        match &self.keeper {
            Some(keeper) => keeper.order(order),
            None => self.waiting_orders.push(order),
        }
    }

    /// Starts a process; its end comes as a notice.
    pub(super) fn start_process(&mut self, purpose: Purpose, start: Start) -> u64 {
        self.last_process += 1;
        let id = self.last_process;
        self.processes.insert(id, purpose);
        self.order(Order::Start(Box::new(Start { id, ..start })));
        id
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
        if self.processes.contains_key(&id) {
            self.order(Order::KillSession { id });
        }
    }

    pub(super) fn noticed(&mut self, notice: Notice) {
        match notice {
            Notice::Ready { enforced } => self.enforced = enforced,
            Notice::NotStarted { id, error } => self.ended(id, RankEnd::NotStarted(error)),
            Notice::Ended { id, end } => self.ended(id, end),
            Notice::Gone { group, cpu_ms, peak_memory_mib } => self.gone(&group, cpu_ms, peak_memory_mib),
            Notice::Leased => self.keeper_answered(),
            Notice::LeaseEnded => self.happened(Happened::LeaseEnded),
        }
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

    /// Everything the keeper left must go before anything new may start; other threads do that.
    pub(super) fn lose_keeper(&mut self) {
        (self.options.remark)("the keeper of this node's processes has died; killing what it left");
        self.leased = Leased::default();
        if let Some(keeper) = self.keeper.take() {
            keeper.bury();
        }
        let variable = agent_variable(&self.places);
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            let _ = events.send(Event::Swept { killed: processes::kill_marked(&variable) });
        });
    }

    pub(super) fn replace_keeper(&mut self, killed: usize) -> Result<(), AgentError> {
        (self.options.remark)(&format!("{killed} processes were killed after the keeper's death"));
        // Those that were ordered meanwhile wait for the new keeper.
        let waits = |id: &u64| {
            let mut orders = self.waiting_orders.iter();
            orders.any(|order| matches!(order, Order::Start(start) if start.id == *id))
        };
        let lost: Vec<u64> = self.processes.keys().filter(|id| !waits(id)).copied().collect();
        self.start_keeper().map_err(|source| AgentError::Keeper { source })?;
        let mut lost_runs: BTreeSet<RunId> = BTreeSet::new();
        for id in lost {
            match self.processes.get(&id) {
                Some(Purpose::Prolog(run) | Purpose::Rank(run, _)) => {
                    lost_runs.insert(*run);
                    self.processes.remove(&id);
                }
                _ => self.ended(id, RankEnd::Signal(libc::SIGKILL)),
            }
        }
        for run in lost_runs {
            self.happened(Happened::Lost { run });
        }
        self.finish_again();
        Ok(())
    }
}
