//! The order of a full cycle where queues of a site share quotas: the queue's, but that within a tier gangs that must borrow come after those
//! that need not, and of them the queue that has borrowed the smallest share first.
//!
//! It is worked out gang by gang, so that the order of a long queue can be made in slices, between which other events are decided. A gang
//! that comes or goes meanwhile is in its place in the next order; quotas hold whatever the order is.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::accounting::Accounting;
use crate::jobs::Jobs;
use crate::priority::Rank;
use crate::quota::Asked;
use crate::{JobId, QueueId, Queues, Settings};

/// An order that is being worked out.
#[derive(Debug, Clone)]
pub(crate) struct BorrowOrder {
    /// With what the gangs take that come before.
    queues: Queues,
    /// The last of the queue that was looked at, and its tier.
    after: Option<(Rank, JobId)>,
    tier: Option<u16>,
    /// Those of this tier that must borrow.
    borrowers: Borrowers,
    /// The rest of its tier has been looked at: they come now.
    is_their_turn: bool,
    order: Vec<JobId>,
    shares: BTreeMap<JobId, f64>,
}

impl BorrowOrder {
    pub(crate) fn new(queues: &Queues) -> Self {
        Self {
            queues: queues.clone(),
            after: None,
            tier: None,
            borrowers: Borrowers::default(),
            is_their_turn: false,
            order: Vec::new(),
            shares: BTreeMap::new(),
        }
    }

    /// Looks at no more than `most` gangs; true when all have been looked at.
    pub(crate) fn go_on(
        &mut self,
        accounting: &Accounting,
        jobs: &Jobs,
        settings: &Settings,
        most: usize,
    ) -> bool {
        for _ in 0..most {
            if self.is_their_turn {
                self.place_borrower();
                continue;
            }
            let Some((rank, job)) = jobs.queue().after(self.after) else {
                if self.borrowers.is_empty() {
                    return true;
                }
                self.let_borrowers_in();
                continue;
            };
            let request = &jobs[job].request;
            let tier = Some(settings.partition(request).tier);
            if tier != self.tier && !self.borrowers.is_empty() {
                self.let_borrowers_in();
                continue;
            }
            (self.tier, self.after) = (tier, Some((rank, job)));
            match accounting.asked(request) {
                Some(asked) if asked.borrows(&self.queues) => self.borrowers.add(job, asked),
                Some(asked) => {
                    self.queues.take(asked.queue, &asked.kind, asked.gpus);
                    self.order.push(job);
                }
                None => self.order.push(job),
            }
        }
        false
    }

    fn let_borrowers_in(&mut self) {
        self.borrowers.begin(&self.queues);
        self.is_their_turn = true;
    }

    fn place_borrower(&mut self) {
        match self.borrowers.next(&mut self.queues) {
            Some((job, share)) => {
                self.shares.insert(job, share);
                self.order.push(job);
            }
            None => (self.borrowers, self.is_their_turn) = (Borrowers::default(), false),
        }
    }

    /// The order, and the shares of those that must borrow.
    pub(crate) fn end(self) -> (Vec<JobId>, BTreeMap<JobId, f64>) {
        (self.order, self.shares)
    }
}

/// Gangs that must borrow, from the smallest share on. A gang's share follows from its size and from what its own queue
/// uses, so only the smallest gang of each queue and kind can be next, and only its own queue changes by it.
#[derive(Debug, Clone, Default)]
struct Borrowers {
    /// By queue and kind: gangs from the smallest on, in the order of the queue.
    groups: BTreeMap<(QueueId, String), BTreeMap<(u64, usize), JobId>>,
    /// The first gang of each group by the share it would have, and its place in the queue.
    next: BTreeSet<(Share, usize, QueueId, String)>,
    count: usize,
}

/// A share that can be ordered.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Share(f64);

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Borrowers {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The next in the order of the queue.
    fn add(&mut self, job: JobId, asked: Asked) {
        let group = self.groups.entry((asked.queue, asked.kind)).or_default();
        group.insert((asked.gpus, self.count), job);
        self.count += 1;
    }

    /// All have been added.
    fn begin(&mut self, queues: &Queues) {
        let keys: Vec<(QueueId, String)> = self.groups.keys().cloned().collect();
        keys.into_iter().for_each(|(queue, kind)| self.enter(queue, &kind, queues));
    }

    /// The gang with the smallest share, which takes what it asks for.
    fn next(&mut self, queues: &mut Queues) -> Option<(JobId, f64)> {
        let (share, _, queue, kind) = self.next.first()?.clone();
        // Usage changes in the queue and, past what it keeps, above it.
        let changed: Vec<(QueueId, String)> =
            queues.path(queue).flat_map(|queue| self.kinds_of(queue)).collect();
        changed.iter().for_each(|(queue, kind)| self.leave(*queue, kind, queues));
        let group = self.groups.get_mut(&(queue, kind.clone())).expect("a gang that is next has a group");
        let ((gpus, _), job) = group.pop_first().expect("a gang that is next is the first of its group");
        queues.take(queue, &kind, gpus);
        changed.iter().for_each(|(queue, kind)| self.enter(*queue, kind, queues));
        Some((job, share.0))
    }

    fn kinds_of(&self, queue: QueueId) -> Vec<(QueueId, String)> {
        let of_queue = self.groups.range((queue, String::new())..);
        of_queue.take_while(|((of, _), _)| *of == queue).map(|(key, _)| key.clone()).collect()
    }

    fn enter(&mut self, queue: QueueId, kind: &str, queues: &Queues) {
        self.next.extend(self.first(queue, kind, queues));
    }

    fn leave(&mut self, queue: QueueId, kind: &str, queues: &Queues) {
        if let Some(first) = self.first(queue, kind, queues) {
            self.next.remove(&first);
        }
    }

    fn first(&self, queue: QueueId, kind: &str, queues: &Queues) -> Option<(Share, usize, QueueId, String)> {
        let ((gpus, place), _) = self.groups.get(&(queue, kind.to_owned()))?.first_key_value()?;
        let share = Share(queues.dominant_share(queue, kind, *gpus));
        Some((share, *place, queue, kind.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Grant;
    use crate::quota::ANY_GPU;
    use proptest::prelude::*;

    /// The gang with the least share again and again, all of them looked at each time.
    fn one_by_one(mut waiting: Vec<(JobId, Asked)>, queues: &mut Queues) -> Vec<(JobId, f64)> {
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let shares: Vec<f64> = waiting.iter().map(|(_, asked)| asked.share(queues)).collect();
            let least =
                (0..shares.len()).min_by(|a, b| shares[*a].total_cmp(&shares[*b])).expect("not empty");
            let (job, asked) = waiting.remove(least);
            order.push((job, shares[least]));
            queues.take(asked.queue, &asked.kind, asked.gpus);
        }
        order
    }

    proptest! {
        #[test]
        fn borrowers_come_in_the_order_of_their_shares(
            used in prop::collection::vec((0u16..6, 0u64..20), 0..10),
            asked in prop::collection::vec((0u16..6, 1u64..9), 0..40),
        ) {
            let mut queues = Queues::default();
            let root = queues.add("root", None, 1.0);
            for number in 1..6 {
                let parent = if number > 3 { QueueId(number - 2) } else { root };
                let queue = queues.add(format!("q{number}"), Some(parent), f64::from(number));
                let grant = Grant { nominal: u64::from(number) * 4, borrowing: None, lending: (number == 2).then_some(3) };
                queues.grant(queue, ANY_GPU, grant);
            }
            used.into_iter().for_each(|(queue, gpus)| queues.take(QueueId(queue), ANY_GPU, gpus));
            let asked = asked.into_iter().enumerate().map(|(job, (queue, gpus))| {
                (JobId(job as u64), Asked { queue: QueueId(queue), kind: ANY_GPU.to_owned(), gpus })
            });
            let waiting: Vec<_> = asked.filter(|(_, asked)| asked.borrows(&queues)).collect();
            let expected = one_by_one(waiting.clone(), &mut queues.clone());
            let mut borrowers = Borrowers::default();
            waiting.into_iter().for_each(|(job, asked)| borrowers.add(job, asked));
            borrowers.begin(&queues);
            let order: Vec<_> = std::iter::from_fn(|| borrowers.next(&mut queues)).collect();
            prop_assert_eq!(order, expected);
        }
    }
}
