//! The gangs that wait for nothing but resources, in order and by class.

use std::collections::{BTreeMap, BTreeSet};

use crate::JobId;
use crate::priority::{Rank, Turn};
use crate::view::RequestClass;

#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    order: BTreeSet<(Rank, JobId)>,
    turns: BTreeSet<(Turn, JobId)>,
    by_class: BTreeMap<RequestClass, BTreeSet<(Rank, JobId)>>,
    /// Gangs of several roles, which have no single class.
    mixed: BTreeSet<(Rank, JobId)>,
}

impl Queue {
    pub(crate) fn insert(&mut self, rank: Rank, job: JobId, classes: &[RequestClass]) {
        self.order.insert((rank, job));
        self.turns.insert((rank.turn(), job));
        match classes {
            [class] => self.by_class.entry(*class).or_default().insert((rank, job)),
            _ => self.mixed.insert((rank, job)),
        };
    }

    pub(crate) fn remove(&mut self, rank: Rank, job: JobId, classes: &[RequestClass]) {
        self.order.remove(&(rank, job));
        self.turns.remove(&(rank.turn(), job));
        match classes {
            [class] => {
                if let Some(gangs) = self.by_class.get_mut(class) {
                    gangs.remove(&(rank, job));
                    if gangs.is_empty() {
                        self.by_class.remove(class);
                    }
                }
            }
            _ => drop(self.mixed.remove(&(rank, job))),
        }
    }

    /// Forgets the order, to be made anew. Turns hardly ever change.
    pub(crate) fn clear(&mut self) {
        *self = Self { turns: std::mem::take(&mut self.turns), ..Self::default() };
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
        self.order.iter().map(|(_, job)| *job)
    }

    /// By tier, points and turn, whatever their size.
    pub(crate) fn by_turn(&self) -> impl Iterator<Item = JobId> + '_ {
        self.turns.iter().map(|(_, job)| *job)
    }

    pub(crate) fn first(&self) -> Option<JobId> {
        self.order.first().map(|(_, job)| *job)
    }

    pub(crate) fn classes(&self) -> impl Iterator<Item = &RequestClass> {
        self.by_class.keys()
    }

    pub(crate) fn of_class(&self, class: &RequestClass) -> impl Iterator<Item = (Rank, JobId)> + '_ {
        self.by_class.get(class).into_iter().flatten().copied()
    }

    pub(crate) fn mixed(&self) -> impl Iterator<Item = (Rank, JobId)> + '_ {
        self.mixed.iter().copied()
    }
}
