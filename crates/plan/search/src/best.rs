//! The best few of many candidates, and the Pareto front of time and memory.
//!
//! Both hold the same candidates whatever the order they are offered in. Of twins, layouts with exactly the
//! same price, only the simplest is kept.

use bedplate_units::{Bytes, Seconds};

use crate::LayoutCandidate;

/// The `limit` best candidates in rank order.
#[derive(Debug, Clone)]
pub(crate) struct Best {
    limit: usize,
    candidates: Vec<LayoutCandidate>,
}

impl Best {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, candidates: Vec::with_capacity(limit.min(1 << 16) + 1) }
    }

    /// Whether a candidate of this time, with its handicap, could still enter.
    #[inline]
    pub(crate) fn admits(&self, weighted: Seconds) -> bool {
        self.candidates.len() < self.limit
            || self.candidates.last().is_some_and(|last| weighted <= last.weighted())
    }

    pub(crate) fn offer(&mut self, candidate: LayoutCandidate) {
        let twin = self.candidates.iter().position(|known| known.is_twin_of(&candidate));
        if let Some(place) = twin {
            if candidate.rank_order(&self.candidates[place]).is_lt() {
                self.candidates[place] = candidate;
            }
            return;
        }
        let place = self.candidates.partition_point(|known| known.rank_order(&candidate).is_lt());
        self.candidates.insert(place, candidate);
        self.candidates.truncate(self.limit);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        other.candidates.into_iter().for_each(|candidate| self.offer(candidate));
    }

    pub(crate) fn into_vec(self) -> Vec<LayoutCandidate> {
        self.candidates
    }
}

/// Candidates by rising time and falling memory: each further one is slower and smaller.
///
/// On one machine the cost of a step is its time at a fixed rate, so this is the front of time, memory and
/// cost too. Offers of different machines are compared by [`crate::pareto`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Front(Vec<LayoutCandidate>);

impl Front {
    /// Whether a candidate of this price would be on the front.
    #[inline]
    pub(crate) fn admits(&self, seconds: Seconds, memory: Bytes) -> bool {
        let place = self.0.partition_point(|known| known.seconds <= seconds);
        let Some(last) = place.checked_sub(1).map(|before| &self.0[before]) else { return true };
        memory < last.memory || (memory == last.memory && seconds == last.seconds)
    }

    pub(crate) fn offer(&mut self, candidate: LayoutCandidate) {
        if !self.admits(candidate.seconds, candidate.memory) {
            return;
        }
        let has_same_price = |known: &&mut LayoutCandidate| {
            known.seconds == candidate.seconds && known.memory == candidate.memory
        };
        if let Some(twin) = self.0.iter_mut().find(has_same_price) {
            if candidate.rank_order(twin).is_lt() {
                *twin = candidate;
            }
            return;
        }
        let place = self.0.partition_point(|known| known.seconds < candidate.seconds);
        let beaten = self.0[place..].partition_point(|known| known.memory >= candidate.memory);
        self.0.splice(place..place + beaten, [candidate]);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        other.0.into_iter().for_each(|candidate| self.offer(candidate));
    }

    pub(crate) fn into_vec(self) -> Vec<LayoutCandidate> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_layout::Layout;
    use bedplate_perf::Fit;
    use proptest::prelude::*;

    fn candidate(data: u32, seconds: u32, memory: u32) -> LayoutCandidate {
        LayoutCandidate {
            layout: Layout { data, ..Layout::default() },
            seconds: Seconds::new(f64::from(seconds)),
            memory: Bytes::new(f64::from(memory)),
            fit: Fit::Fits { spare: Bytes::ZERO },
            handicap: 1.0,
        }
    }

    fn shown(candidates: Vec<LayoutCandidate>) -> Vec<(u32, f64, f64)> {
        candidates.iter().map(|each| (each.layout.data, each.seconds.get(), each.memory.get())).collect()
    }

    /// Prices are drawn from few values, so that ties and twins are common.
    fn offers() -> impl Strategy<Value = Vec<LayoutCandidate>> {
        proptest::collection::vec((1..50u32, 1..8u32, 1..8u32), 0..60)
            .prop_map(|rows| rows.into_iter().map(|(data, s, m)| candidate(data, s, m)).collect())
    }

    proptest! {
        #[test]
        fn best_and_front_do_not_depend_on_the_order_of_offers(offers in offers(), split in 0..60usize) {
            let gather = |offers: &[LayoutCandidate]| {
                let (mut best, mut front) = (Best::new(5), Front::default());
                for offer in offers {
                    if best.admits(offer.seconds) { best.offer(*offer); }
                    front.offer(*offer);
                }
                (best, front)
            };
            let (best, front) = gather(&offers);
            let backwards: Vec<LayoutCandidate> = offers.iter().rev().copied().collect();
            let (best_backwards, front_backwards) = gather(&backwards);
            let (head, tail) = offers.split_at(split.min(offers.len()));
            let ((mut best_split, mut front_split), (best_tail, front_tail)) = (gather(head), gather(tail));
            best_split.merge(best_tail);
            front_split.merge(front_tail);
            let (best, front) = (shown(best.into_vec()), shown(front.into_vec()));
            prop_assert_eq!(&best, &shown(best_backwards.into_vec()));
            prop_assert_eq!(&best, &shown(best_split.into_vec()));
            prop_assert_eq!(&front, &shown(front_backwards.into_vec()));
            prop_assert_eq!(&front, &shown(front_split.into_vec()));
        }

        #[test]
        fn a_front_holds_what_nothing_beats_and_nothing_else(offers in offers()) {
            let mut front = Front::default();
            offers.iter().for_each(|offer| front.offer(*offer));
            let front = front.into_vec();
            let beats = |a: &LayoutCandidate, b: &LayoutCandidate| {
                a.seconds <= b.seconds && a.memory <= b.memory && !a.is_twin_of(b)
            };
            for offer in &offers {
                let is_beaten = offers.iter().any(|other| beats(other, offer));
                let stands = front.iter().any(|each| each.is_twin_of(offer));
                prop_assert_eq!(stands, !is_beaten);
            }
        }
    }
}
