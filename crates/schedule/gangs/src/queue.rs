//! The gangs that wait for nothing but resources, in order and by class.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::counted::CountedSet;
use crate::places::Places;
use crate::priority::{Rank, Turn};
use crate::request::{AccountId, JobId, QosId, UserId};
use crate::view::RequestClass;

#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    order: CountedSet<(Rank, JobId)>,
    turns: BTreeSet<(Turn, JobId)>,
    places: Places,
    /// By class, and within it by whose limits hold: where one of a group is limited, all are.
    by_class: BTreeMap<(RequestClass, LimitGroup), CountedSet<(Rank, JobId)>>,
    /// Gangs of several roles, which have no single class.
    mixed: CountedSet<(Rank, JobId)>,
}

/// Gangs that share their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LimitGroup {
    pub(crate) user: UserId,
    pub(crate) account: AccountId,
    pub(crate) qos: QosId,
    /// Of an array that limits how many of its tasks run at once.
    pub(crate) array: Option<JobId>,
}

/// What decides about a gang's place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing<'a> {
    pub(crate) rank: Rank,
    pub(crate) job: JobId,
    pub(crate) classes: &'a [RequestClass],
    pub(crate) group: LimitGroup,
}

impl Queue {
    pub(crate) fn insert(&mut self, standing: Standing<'_>) {
        let Standing { rank, job, classes, group } = standing;
        self.order.insert((rank, job), ());
        self.turns.insert((rank.turn(), job));
        self.places.insert((rank, job));
        match classes {
            [class] => self.by_class.entry((*class, group)).or_default().insert((rank, job), ()),
            _ => self.mixed.insert((rank, job), ()),
        };
    }

    pub(crate) fn remove(&mut self, standing: Standing<'_>) {
        let Standing { rank, job, classes, group } = standing;
        self.order.remove(&(rank, job));
        self.turns.remove(&(rank.turn(), job));
        self.places.remove(&(rank, job));
        let [class] = classes else {
            self.mixed.remove(&(rank, job));
            return;
        };
        let Some(gangs) = self.by_class.get_mut(&(*class, group)) else { return };
        gangs.remove(&(rank, job));
        if gangs.is_empty() {
            self.by_class.remove(&(*class, group));
        }
    }

    /// Forgets the order, to be made anew. Turns hardly ever change.
    pub(crate) fn clear(&mut self) {
        let (mut places, turns) = (std::mem::take(&mut self.places), std::mem::take(&mut self.turns));
        places.clear();
        *self = Self { places, turns, ..Self::default() };
    }

    /// The turn of a gang changes from the one to the other rank.
    pub(crate) fn change_turn(&mut self, before: Rank, after: Rank, job: JobId) {
        if before.turn() != after.turn() {
            self.turns.remove(&(before.turn(), job));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = JobId> + '_ {
        self.order.keys().map(|(_, job)| *job)
    }

    /// The first after a place in the order.
    pub(crate) fn after(&self, place: Option<(Rank, JobId)>) -> Option<(Rank, JobId)> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        self.order.range((from, Bound::Unbounded)).next().map(|(next, ())| *next)
    }

    /// By tier, points and turn, whatever their size.
    pub(crate) fn by_turn(&self) -> impl Iterator<Item = JobId> + '_ {
        self.turns.iter().map(|(_, job)| *job)
    }

    pub(crate) fn first(&self) -> Option<JobId> {
        self.order.first().map(|((_, job), ())| *job)
    }

    /// How many come before a gang.
    pub(crate) fn before(&self, rank: Rank, job: JobId) -> usize {
        self.places.before(&(rank, job))
    }

    /// The first gang of each class and group, class by class.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (&RequestClass, (Rank, JobId))> {
        let first = |gangs: &CountedSet<(Rank, JobId)>| gangs.first().map(|(first, ())| *first);
        self.by_class.iter().filter_map(move |((class, _), gangs)| Some((class, first(gangs)?)))
    }

    /// The next gang of a class and group.
    pub(crate) fn next(
        &self,
        class: &RequestClass,
        group: LimitGroup,
        after: (Rank, JobId),
    ) -> Option<(Rank, JobId)> {
        let gangs = self.by_class.get(&(*class, group))?;
        gangs.range((Bound::Excluded(after), Bound::Unbounded)).next().map(|(next, ())| *next)
    }

    pub(crate) fn mixed(&self) -> impl Iterator<Item = (Rank, JobId)> + '_ {
        self.mixed.keys().copied()
    }
}
