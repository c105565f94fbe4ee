//! Gangs that lack room ask for more nodes, each for all that it needs at once, so that an autoscaler adds all of them or none.

use std::collections::BTreeMap;

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

impl Growth {
    /// Notes whether room is lacking; says when to ask, and whether to ask no more.
    fn follow(&mut self, lacks: bool, now: Time) -> (bool, bool) {
        if !lacks {
            self.lacks_since = None;
            return (false, self.asked.take().is_some());
        }
        let since = *self.lacks_since.get_or_insert(now);
        let due = self.due(since);
        if due <= now {
            self.asked = Some(now);
        }
        (due <= now, false)
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
            let (asks, asks_no_more) = gang.growth.follow(lacks, now);
            let Some(first) = uids.first().map(|uid| &self.pods[uid]) else { continue };
            let namespace = first.namespace.clone();
            if asks {
                let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for pod in pending() {
                    // Equal pods are one kind; what they may stand on is part of what they ask for.
                    let kind = format!("{:?} {:?}", pod.needs, pod.constraints);
                    kinds.entry(kind).or_default().push(pod.name.clone());
                }
                let kinds = kinds.into_values().collect();
                actions.push(Action::AskForNodes { gang: key.clone(), namespace, kinds });
            } else if asks_no_more {
                actions.push(Action::AskNoMore { gang: key.clone(), namespace });
            }
        }
        let deadline = self.gangs.values().filter_map(|gang| gang.growth.deadline()).min();
        self.wake_at(deadline.filter(|at| *at > now));
        actions
    }
}
