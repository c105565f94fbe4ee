//! Gangs that lack room ask for more nodes, each for all that it needs at once, so that an autoscaler adds all of them or none.

use bedplate_gangs::{Span, Time};

use crate::action::UNSCHEDULABLE;
use crate::scheduler::PodScheduler;
use crate::{Action, Pod};

/// How long a gang lacks room before it asks.
const ASKED_AFTER: Span = Span::seconds(5);
/// When it asks again: what was asked for may have been refused, or given and taken back.
const ASKED_AGAIN: Span = Span::seconds(600);

/// What a gang has asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Since when it lacks room that new nodes would give.
    lacks_since: Option<Time>,
    asked: Option<Time>,
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
            self.lacks_since = None;
            return self.asked.take().map(|_| Word::AskNoMore);
        }
        let since = *self.lacks_since.get_or_insert(now);
        let is_due = self.due(since) <= now;
        is_due.then(|| {
            self.asked = Some(now);
            Word::Ask
        })
    }

    fn due(&self, since: Time) -> Time {
        self.asked.map_or(since + ASKED_AFTER, |asked| asked + ASKED_AGAIN)
    }

    fn deadline(&self) -> Option<Time> {
        self.lacks_since.map(|since| self.due(since))
    }
}

impl PodScheduler {
    /// Those that have lacked room for a while ask for nodes; those that have found it ask no more.
    pub(crate) fn ask_for_nodes(&mut self, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        for (key, uids) in &self.members {
            let Some(gang) = self.gangs.get_mut(key) else { continue };
            let is_open = |pod: &&Pod| pod.node.is_none() && !pod.has_ended() && !pod.is_leaving;
            let pending = || uids.iter().map(|uid| &self.pods[uid]).filter(is_open);
            let told = gang.told.as_ref().map(|(_, waiting)| waiting.reason);
            let lacks = told == Some(UNSCHEDULABLE) && gang.assumed.is_empty() && pending().next().is_some();
            let Some(word) = gang.growth.follow(lacks, now) else { continue };
            let Some(first) = uids.first().map(|uid| &self.pods[uid]) else { continue };
            let (gang, namespace) = (key.clone(), first.namespace.clone());
            actions.push(match word {
                Word::Ask => Action::AskForNodes { gang, namespace, kinds: kinds_of(pending()) },
                Word::AskNoMore => Action::AskNoMore { gang, namespace },
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
