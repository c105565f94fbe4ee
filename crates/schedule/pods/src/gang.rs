//! What is remembered of a gang between decisions, and where its pods stand now.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_gangs::{JobId, Span, Time};

use crate::growth::Growth;
use crate::{Pod, PodPhase, Waiting};

/// How long a gang that is being bound may be bound in part.
const PATIENCE: Span = Span::seconds(5);
/// How long a gang that was whole, or was found in parts after a start, may be: what controls its pods needs time to make a lost one
/// again.
const PATIENCE_FOR_RETURN: Span = Span::seconds(25);

#[derive(Debug, Clone)]
pub(crate) struct PodGang {
    number: u64,
    /// Places of pods whose binding has not been seen yet.
    pub(crate) assumed: BTreeMap<String, Assumed>,
    /// Since when it is bound in part.
    broken_since: Option<Time>,
    /// It was bound whole once, or was there before this scheduler.
    was_whole: bool,
    /// All of it goes; nothing of it starts until it is gone.
    pub(crate) goes: Option<String>,
    /// Nothing of it is placed before: the server has just refused a binding.
    pub(crate) not_before: Time,
    /// Gangs that stop for it.
    pub(crate) victims: Vec<JobId>,
    pub(crate) growth: Growth,
    pub(crate) told: Option<(Time, Waiting)>,
    pub(crate) told_pods: BTreeSet<String>,
}

/// A place that was given to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assumed {
    pub(crate) node: String,
    pub(crate) progress: GangProgress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GangProgress {
    /// Asked for and not answered.
    Asked,
    /// Done; the pod will be seen on its node.
    Done(Time),
    /// Nobody knows; asked again at this time.
    Again(Time),
}

impl PodGang {
    pub(crate) fn new(number: u64, was_there: bool) -> Self {
        Self {
            number,
            assumed: BTreeMap::new(),
            broken_since: None,
            was_whole: was_there,
            goes: None,
            not_before: Time::ZERO,
            victims: Vec::new(),
            growth: Growth::default(),
            told: None,
            told_pods: BTreeSet::new(),
        }
    }

    /// Nothing of it stands any more: it waits like any other.
    pub(crate) fn begin_anew(&mut self) {
        if self.goes.take().is_some() {
            self.was_whole = false;
        }
    }

    /// Its number for what it holds.
    pub(crate) fn holds_as(&self) -> JobId {
        JobId(self.number * 2)
    }

    /// Its number for what it waits for.
    pub(crate) fn waits_as(&self) -> JobId {
        JobId(self.number * 2 + 1)
    }

    /// Notes whether the gang is bound in part, and says whether that has lasted too long.
    pub(crate) fn watch_parts(&mut self, members: &Members<'_>, now: Time) -> bool {
        if members.is_whole() {
            self.was_whole = true;
        }
        if !members.is_in_parts(self.assumed.len()) {
            self.broken_since = None;
            return false;
        }
        let longest = self.patience();
        let since = *self.broken_since.get_or_insert_with(|| members.in_parts_since(longest, now));
        now.since(since) >= self.patience()
    }

    fn patience(&self) -> Span {
        if self.was_whole { PATIENCE_FOR_RETURN } else { PATIENCE }
    }

    /// When a gang that is bound in part must have become whole.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.broken_since.map(|since| since + self.patience())
    }
}

/// The pods of a gang by where they stand.
#[derive(Debug, Default)]
pub(crate) struct Members<'p> {
    pub(crate) size: Option<u32>,
    /// On nodes, in order of rank.
    pub(crate) bound: Vec<&'p Pod>,
    /// Without a node, in order of rank.
    pub(crate) pending: Vec<&'p Pod>,
    /// On nodes, and told to go.
    pub(crate) leaving: Vec<&'p Pod>,
    pub(crate) succeeded: u32,
    failed: u32,
}

impl<'p> Members<'p> {
    pub(crate) fn of(pods: impl Iterator<Item = &'p Pod>) -> Self {
        let mut pods: Vec<&Pod> = pods.collect();
        pods.sort_by_key(|pod| (pod.rank, &pod.name));
        let mut members = Self::default();
        for pod in pods {
            match (pod.phase, &pod.node) {
                (PodPhase::Succeeded, _) => members.succeeded += 1,
                (PodPhase::Failed, _) if pod.is_leaving => continue,
                (PodPhase::Failed, _) => members.failed += 1,
                (_, Some(_)) if pod.is_leaving => members.leaving.push(pod),
                (_, Some(_)) => members.bound.push(pod),
                (_, None) if pod.is_leaving => continue,
                (_, None) => members.pending.push(pod),
            }
            members.size = members.size.or(pod.gang_size);
        }
        members
    }

    /// How many pods have not come yet; nothing where the size is not known.
    pub(crate) fn missing(&self) -> Option<u32> {
        let here = self.bound.len() as u32 + self.pending.len() as u32 + self.succeeded;
        self.size.map(|size| size.saturating_sub(here))
    }

    pub(crate) fn is_whole(&self) -> bool {
        !self.bound.is_empty() && self.pending.is_empty() && self.missing() == Some(0)
    }

    /// Whether some of it stands on nodes and some should. A pod that failed by itself leaves the gang as it is.
    fn is_in_parts(&self, assumed: usize) -> bool {
        let lost = self.missing().unwrap_or(0) > self.failed;
        !self.bound.is_empty() && (!self.pending.is_empty() || lost || assumed > 0)
    }

    /// Since when it is in parts, by what its pods say; a scheduler that has just started has time to complete it.
    fn in_parts_since(&self, longest: Span, now: Time) -> Time {
        let stands = self.bound.iter().filter_map(|pod| pod.bound_at).min();
        let lacks = self.pending.iter().map(|pod| pod.created).min();
        let since = stands.zip(lacks).map_or(now, |(stands, lacks)| stands.max(lacks));
        since.clamp(now - Span(longest.0 - PATIENCE.0), now)
    }

    /// The pod that speaks for the gang.
    pub(crate) fn first(&self) -> Option<&'p Pod> {
        self.bound.first().or(self.pending.first()).or(self.leaving.first()).copied()
    }
}
