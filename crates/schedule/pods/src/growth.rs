//! Gangs that lack room ask for more nodes, each for all that it needs at once, so that an autoscaler adds all of them or none.

use bedplate_gangs::{Span, Time};

use crate::action::{ASKS_FOR_NODES, UNSCHEDULABLE};
use crate::scheduler::PodScheduler;
use crate::{Pod, PodAction, Waiting};

/// How long a gang lacks room before it asks.
const ASKED_AFTER: Span = Span::seconds(5);
/// When it asks again: what was asked for may have been refused, or given and taken back.
const ASKED_AGAIN: Span = Span::seconds(600);
/// When it asks again where it could not be asked for.
const ASKED_AFTER_FAILURE: Span = Span::seconds(30);

/// What a gang has asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Since when it lacks room that new nodes would give.
    lacks_since: Option<Time>,
    asked: Option<Time>,
    /// The request is there, or cannot be made: now the pods may say that they lack room.
    is_answered: bool,
    has_failed: bool,
}

/// What a gang says to the autoscaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Ask,
    AskNoMore,
}

impl Growth {
    /// Notes whether room is lacking; gives what is to be said about it now.
    fn follow(&mut self, lacks: bool, now: Time) -> Option<Word> {
        if !lacks {
            return std::mem::take(self).asked.map(|_| Word::AskNoMore);
        }
        let since = *self.lacks_since.get_or_insert(now);
        let is_due = self.due(since) <= now;
        is_due.then(|| {
            self.asked = Some(now);
            Word::Ask
        })
    }

    fn due(&self, since: Time) -> Time {
        let again = if self.has_failed { ASKED_AFTER_FAILURE } else { ASKED_AGAIN };
        self.asked.map_or(since + ASKED_AFTER, |asked| asked + again)
    }

    fn deadline(&self) -> Option<Time> {
        self.lacks_since.map(|since| self.due(since))
    }
}

impl Waiting {
    /// The same, as it is said where nobody asks for nodes.
    pub(crate) fn for_all(&self) -> Waiting {
        let reason = if self.reason == ASKS_FOR_NODES { UNSCHEDULABLE } else { self.reason };
        Waiting { reason, ..self.clone() }
    }
}

impl PodScheduler {
    /// Somebody makes requests of [`PodAction::AskForNodes`]: pods that lack room say so only once theirs is there, so that no autoscaler
    /// adds nodes for some of them.
    pub fn with_requests_for_nodes(mut self) -> Self {
        self.asks_for_nodes = true;
        self
    }

    /// What came of asking for nodes.
    pub fn asked_for_nodes(&mut self, gang: &str, is_done: bool) {
        if let Some(gang) = self.gangs.get_mut(gang) {
            (gang.growth.is_answered, gang.growth.has_failed) = (true, !is_done);
        }
    }

    /// What a pod of a gang is told: that it lacks room only where autoscalers may hear it.
    pub(crate) fn for_autoscalers(&self, gang: &str, waiting: &Waiting) -> Waiting {
        let is_answered = self.gangs.get(gang).is_some_and(|gang| gang.growth.is_answered);
        let is_early = self.asks_for_nodes && waiting.reason == UNSCHEDULABLE && !is_answered;
        Waiting { reason: if is_early { ASKS_FOR_NODES } else { waiting.reason }, ..waiting.clone() }
    }

    /// Those that have lacked room for a while ask for nodes; those that have found it ask no more.
    pub(crate) fn ask_for_nodes(&mut self, now: Time) -> Vec<PodAction> {
        let mut actions = Vec::new();
        for (key, uids) in &self.members {
            let Some(gang) = self.gangs.get_mut(key) else { continue };
            let is_open = |pod: &&Pod| pod.node.is_none() && !pod.has_ended() && !pod.is_leaving;
            let pending = || uids.iter().map(|uid| &self.pods[uid]).filter(is_open);
            let told = gang.told.as_ref().map(|(_, waiting)| waiting.reason);
            let lacks = told.is_some_and(|told| [UNSCHEDULABLE, ASKS_FOR_NODES].contains(&told));
            let lacks = lacks && gang.assumed.is_empty() && pending().next().is_some();
            let Some(word) = gang.growth.follow(lacks, now) else { continue };
            let Some(first) = uids.first().map(|uid| &self.pods[uid]) else { continue };
            let (gang, namespace) = (key.clone(), first.namespace.clone());
            actions.push(match word {
                Word::Ask => PodAction::AskForNodes { gang, namespace, kinds: kinds_of(pending()) },
                Word::AskNoMore => PodAction::AskNoMore { gang, namespace },
            });
        }
        let deadline = self.gangs.values().filter_map(|gang| gang.growth.deadline()).min();
        self.wake_at(deadline.filter(|at| *at > now));
        actions
    }
}

/// The names of pods, equal ones together: they need the same and may stand on the same nodes.
fn kinds_of<'p>(pods: impl Iterator<Item = &'p Pod>) -> Vec<Vec<String>> {
    let mut kinds: Vec<(&Pod, Vec<String>)> = Vec::new();
    for pod in pods {
        let is_equal = |(known, _): &&mut (&Pod, Vec<String>)| {
            (&known.needs, &known.constraints) == (&pod.needs, &pod.constraints)
        };
        match kinds.iter_mut().find(is_equal) {
            Some((_, names)) => names.push(pod.name.clone()),
            None => kinds.push((pod, vec![pod.name.clone()])),
        }
    }
    kinds.into_iter().map(|(_, names)| names).collect()
}
