//! Quotas as a tree of queues: what each is entitled to, may borrow and lends, per kind of GPU.
//!
//! The algebra is Kueue's. A queue keeps `nominal − lending limit` for itself and hands the rest to its
//! parent; usage goes up to the parent only past what the queue keeps. What a queue may have is what it
//! kept and did not use, plus what its parent still has, bounded by its borrowing limit. The tree has no
//! clock and no jobs: it says how much there is and who borrowed most.
//!
//! What follows from grants alone is worked out once for the whole tree, so that every question about usage costs no more
//! than the way from a queue to the root.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use crate::QueueId;

/// The tree of queues; empty where a site has no quotas.
#[derive(Debug, Clone, Default)]
pub struct Queues {
    queues: Vec<Queue>,
    /// By kind and queue; made anew after grants change.
    entitlements: OnceLock<BTreeMap<String, Vec<Entitlement>>>,
}

impl PartialEq for Queues {
    fn eq(&self, other: &Self) -> bool {
        self.queues == other.queues
    }
}

/// What a queue has of one kind by grants alone.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Entitlement {
    /// What the queue and its children hold and hand on: its own nominal quota and what children store here.
    subtree: i64,
    /// What it keeps for itself.
    kept: i64,
    /// What it could have if nothing were in use.
    most: i64,
}

#[derive(Debug, Clone, PartialEq)]
struct Queue {
    name: String,
    parent: Option<usize>,
    /// Among siblings, for the fair sharing of what is borrowed.
    weight: f64,
    grants: BTreeMap<String, Grant>,
    usage: BTreeMap<String, u64>,
}

/// What a queue is entitled to of one kind of GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grant {
    pub nominal: u64,
    /// How much more it may have while others leave it idle; no bound when absent.
    pub borrowing: Option<u64>,
    /// How much of its own others may have; all when absent.
    pub lending: Option<u64>,
}

/// The kind under which GPUs count when a site does not tell its GPU types apart.
pub const ANY_GPU: &str = "gpu";

impl Queues {
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Adds a queue below another; without one it is a tree of its own.
    pub fn add(&mut self, name: impl Into<String>, parent: Option<QueueId>, weight: f64) -> QueueId {
        self.entitlements.take();
        let id = QueueId(self.queues.len() as u16);
        assert!(parent.is_none_or(|parent| parent < id), "the parent queue exists");
        self.queues.push(Queue {
            name: name.into(),
            parent: parent.map(|parent| usize::from(parent.0)),
            weight: if weight > 0.0 { weight } else { 1.0 },
            grants: BTreeMap::new(),
            usage: BTreeMap::new(),
        });
        id
    }

    pub fn grant(&mut self, queue: QueueId, kind: impl Into<String>, grant: Grant) {
        self.entitlements.take();
        self.queues[usize::from(queue.0)].grants.insert(kind.into(), grant);
    }

    pub fn find(&self, name: &str) -> Option<QueueId> {
        self.queues.iter().position(|queue| queue.name == name).map(|at| QueueId(at as u16))
    }

    pub fn name(&self, id: QueueId) -> &str {
        &self.queues[usize::from(id.0)].name
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.queues.iter().map(|queue| queue.name.as_str())
    }

    /// A queue and those above it.
    pub(crate) fn path(&self, id: QueueId) -> impl Iterator<Item = QueueId> + use<'_> {
        let parent = |queue: &QueueId| self.queues[usize::from(queue.0)].parent.map(|at| QueueId(at as u16));
        std::iter::successors(Some(id), parent)
    }

    pub(crate) fn holds(&self, id: QueueId) -> bool {
        usize::from(id.0) < self.queues.len()
    }

    /// The kind that counts for an accelerator: its own where any queue is granted it, else [`ANY_GPU`].
    pub(crate) fn kind_of<'a>(&self, accelerator: &'a str) -> &'a str {
        if self.entitlements().contains_key(accelerator) { accelerator } else { ANY_GPU }
    }

    /// How many more GPUs of a kind the queue may take now.
    pub fn available(&self, queue: QueueId, kind: &str) -> u64 {
        self.available_at(usize::from(queue.0), kind).max(0) as u64
    }

    /// How many GPUs of a kind the queue could have if none were in use.
    pub fn most(&self, queue: QueueId, kind: &str) -> u64 {
        self.entitled(usize::from(queue.0), kind).most.max(0) as u64
    }

    pub fn used(&self, queue: QueueId, kind: &str) -> u64 {
        self.queues[usize::from(queue.0)].usage.get(kind).copied().unwrap_or(0)
    }

    /// Whether taking `more` goes past the queue's own nominal quota.
    pub fn borrows(&self, queue: QueueId, kind: &str, more: u64) -> bool {
        self.used(queue, kind) + more > self.queues[usize::from(queue.0)].nominal(kind)
    }

    /// Counts GPUs as taken, up the tree past what each queue keeps.
    pub(crate) fn take(&mut self, queue: QueueId, kind: &str, count: u64) {
        let mut rest = count;
        let mut at = Some(usize::from(queue.0));
        while let Some(index) = at.filter(|_| rest > 0) {
            let kept = self.entitled(index, kind).kept as u64;
            let used = self.queues[index].used_mut(kind);
            let kept_free = kept.saturating_sub(*used);
            *used += rest;
            rest = rest.saturating_sub(kept_free);
            at = self.queues[index].parent;
        }
    }

    /// The reverse of [`take`](Self::take).
    pub(crate) fn give(&mut self, queue: QueueId, kind: &str, count: u64) {
        let mut rest = count;
        let mut at = Some(usize::from(queue.0));
        while let Some(index) = at.filter(|_| rest > 0) {
            let kept = self.entitled(index, kind).kept as u64;
            let used = self.queues[index].used_mut(kind);
            let passed_up = used.saturating_sub(kept);
            *used = used.checked_sub(rest).expect("no more is given back than was taken");
            rest = rest.min(passed_up);
            at = self.queues[index].parent;
        }
    }

    /// The dominant share of what is borrowed: the largest over kinds of borrowed over lendable, in
    /// thousandths, divided by the weight. Who has the least borrows next, who has the most is reclaimed first.
    pub fn dominant_share(&self, queue: QueueId, kind: &str, more: u64) -> f64 {
        let index = usize::from(queue.0);
        let own = &self.queues[index];
        let kinds = own.usage.keys().map(String::as_str).chain([kind]);
        let share = |each: &str| {
            let extra = if each == kind { more } else { 0 };
            let borrowed = (self.used(queue, each) + extra).saturating_sub(own.nominal(each));
            let lendable = own.parent.map_or(0, |parent| self.entitled(parent, each).most.max(0)) as f64;
            if borrowed == 0 { 0.0 } else { borrowed as f64 * 1000.0 / lendable.max(1.0) }
        };
        kinds.map(share).fold(0.0, f64::max) / own.weight
    }

    /// Whether usage is within every queue's bounds; for assertions and tests.
    pub fn is_within_bounds(&self) -> bool {
        (0..self.queues.len()).all(|index| {
            self.queues[index].usage.iter().all(|(kind, used)| {
                let subtree = self.entitled(index, kind).subtree;
                let bound = match self.queues[index].parent {
                    None => Some(subtree),
                    Some(_) => self.queues[index].borrowing(kind).map(|limit| subtree + limit),
                };
                bound.is_none_or(|bound| *used as i64 <= bound)
            })
        })
    }

    fn available_at(&self, index: usize, kind: &str) -> i64 {
        let queue = &self.queues[index];
        let Entitlement { subtree, kept, .. } = self.entitled(index, kind);
        let used = queue.used(kind);
        let Some(parent) = queue.parent else {
            return subtree - used;
        };
        let from_parent = self.available_at(parent, kind);
        let borrowable = match queue.borrowing(kind) {
            None => from_parent,
            Some(limit) => {
                let stored_in_parent = subtree - kept;
                let used_in_parent = (used - kept).max(0);
                from_parent.min(stored_in_parent - used_in_parent + limit)
            }
        };
        (kept - used).max(0) + borrowable.max(0)
    }

    fn entitled(&self, index: usize, kind: &str) -> Entitlement {
        self.entitlements().get(kind).map_or(Entitlement::default(), |by_queue| by_queue[index])
    }

    fn entitlements(&self) -> &BTreeMap<String, Vec<Entitlement>> {
        self.entitlements.get_or_init(|| {
            let kinds: BTreeSet<&String> = self.queues.iter().flat_map(|queue| queue.grants.keys()).collect();
            kinds.into_iter().map(|kind| (kind.clone(), self.entitlements_of(kind))).collect()
        })
    }

    /// Children come after their parents, so one pass up and one down suffice.
    fn entitlements_of(&self, kind: &str) -> Vec<Entitlement> {
        let mut all = vec![Entitlement::default(); self.queues.len()];
        for (index, queue) in self.queues.iter().enumerate().rev() {
            all[index].subtree += queue.nominal(kind) as i64;
            let Some(parent) = queue.parent else { continue };
            if let Some(limit) = queue.grants.get(kind).and_then(|grant| grant.lending) {
                all[index].kept = (all[index].subtree - limit as i64).max(0);
            }
            all[parent].subtree += all[index].subtree - all[index].kept;
        }
        for (index, queue) in self.queues.iter().enumerate() {
            let Entitlement { subtree, kept, .. } = all[index];
            all[index].most = match queue.parent {
                None => subtree,
                Some(parent) => {
                    let bound = queue.borrowing(kind).map_or(i64::MAX, |limit| subtree + limit);
                    (kept + all[parent].most).min(bound)
                }
            };
        }
        all
    }
}

/// GPUs of a kind, asked of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) queue: QueueId,
    pub(crate) kind: String,
    pub(crate) gpus: u64,
}

impl Asked {
    pub(crate) fn borrows(&self, queues: &Queues) -> bool {
        queues.borrows(self.queue, &self.kind, self.gpus)
    }

    /// What share of the lendable its queue would have borrowed.
    pub(crate) fn share(&self, queues: &Queues) -> f64 {
        queues.dominant_share(self.queue, &self.kind, self.gpus)
    }
}

impl Queue {
    fn nominal(&self, kind: &str) -> u64 {
        self.grants.get(kind).map_or(0, |grant| grant.nominal)
    }

    fn used(&self, kind: &str) -> i64 {
        self.usage.get(kind).copied().unwrap_or(0) as i64
    }

    fn used_mut(&mut self, kind: &str) -> &mut u64 {
        if !self.usage.contains_key(kind) {
            self.usage.insert(kind.to_owned(), 0);
        }
        self.usage.get_mut(kind).expect("it is there by now")
    }

    /// How much more than its own it may have; no bound when absent.
    fn borrowing(&self, kind: &str) -> Option<i64> {
        Some(self.grants.get(kind)?.borrowing? as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cohort(borrowing: Option<u64>, lending: Option<u64>) -> (Queues, QueueId, QueueId) {
        let mut queues = Queues::default();
        let cohort = queues.add("cohort", None, 1.0);
        let a = queues.add("a", Some(cohort), 1.0);
        let b = queues.add("b", Some(cohort), 1.0);
        queues.grant(a, ANY_GPU, Grant { nominal: 10, borrowing, lending: None });
        queues.grant(b, ANY_GPU, Grant { nominal: 20, borrowing: None, lending });
        (queues, a, b)
    }

    #[test]
    fn a_queue_borrows_what_the_cohort_leaves_idle() {
        let (mut queues, a, b) = cohort(None, None);
        assert_eq!(queues.available(a, ANY_GPU), 30);
        queues.take(b, ANY_GPU, 15);
        assert_eq!(queues.available(a, ANY_GPU), 15);
        assert!(queues.borrows(a, ANY_GPU, 11) && !queues.borrows(a, ANY_GPU, 10));
    }

    #[test]
    fn borrowing_and_lending_limits_hold() {
        let (queues, a, _) = cohort(Some(5), None);
        assert_eq!(queues.available(a, ANY_GPU), 15);
        assert_eq!(queues.most(a, ANY_GPU), 15);
        let (mut queues, a, b) = cohort(None, Some(8));
        assert_eq!(queues.available(a, ANY_GPU), 18);
        queues.take(b, ANY_GPU, 12);
        assert_eq!(queues.available(a, ANY_GPU), 18, "b used only what it keeps for itself");
        queues.take(b, ANY_GPU, 1);
        assert_eq!(queues.available(a, ANY_GPU), 17);
        queues.give(b, ANY_GPU, 13);
        assert_eq!(queues.available(a, ANY_GPU), 18);
    }

    #[test]
    fn who_borrowed_more_of_the_lendable_has_the_larger_share() {
        let (mut queues, a, b) = cohort(None, None);
        queues.take(a, ANY_GPU, 16);
        assert_eq!(queues.dominant_share(a, ANY_GPU, 0), 200.0);
        assert_eq!(queues.dominant_share(b, ANY_GPU, 0), 0.0);
        assert!(queues.dominant_share(b, ANY_GPU, 23) < queues.dominant_share(a, ANY_GPU, 0));
    }

    #[test]
    fn taking_and_giving_back_leaves_nothing() {
        let (mut queues, a, b) = cohort(Some(7), Some(3));
        for (queue, count) in [(a, 4), (b, 9), (a, 6), (b, 2)] {
            queues.take(queue, ANY_GPU, count);
            assert!(queues.is_within_bounds());
        }
        for (queue, count) in [(b, 9), (a, 6), (b, 2), (a, 4)] {
            queues.give(queue, ANY_GPU, count);
        }
        assert_eq!((queues.used(a, ANY_GPU), queues.used(b, ANY_GPU)), (0, 0));
        assert_eq!(queues.used(QueueId(0), ANY_GPU), 0);
    }
}
