//! Nodes that fail and come back: drawn per node from a rate, and never from what runs there.
//!
//! So every policy meets the same failures. Times between failures of a node are exponential. A failure
//! either takes the machine away until it is repaired, or only ends what runs on it.

use std::collections::BinaryHeap;

use bedplate_gangs::{Span, Time};
use bedplate_topology::NodeId;

use bedplate_random::Random;

/// How often nodes fail and what follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Failures {
    pub per_node_day: f64,
    /// Share of failures that take the machine away.
    pub node_loss_share: f64,
    /// Until a machine that was taken away is back.
    pub repair: Span,
    /// Until a machine that stayed takes work again.
    pub reboot: Span,
}

impl Failures {
    /// A published rate and share of losses. That a repair takes half a day is an assumption: no published
    /// table says how long machines were away.
    pub fn published(per_node_day: f64, node_loss_share: f64) -> Self {
        Self { per_node_day, node_loss_share, repair: Span::hours(12), reboot: Span::minutes(20) }
    }
}

/// One failure of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeFailure {
    pub node: NodeId,
    pub at: Time,
    pub until: Time,
}

/// The failures of all nodes in the order of time, without end.
#[derive(Debug)]
pub(crate) struct FailureStream {
    failures: Failures,
    streams: Vec<Random>,
    /// The next failure of every node, the earliest on top.
    next: BinaryHeap<std::cmp::Reverse<(Time, u32)>>,
}

/// Keeps these draws apart from others of the same seed.
const STREAM: u64 = 0x6661_696c_7572_6573;

impl FailureStream {
    pub(crate) fn new(failures: Failures, nodes: u32, seed: u64) -> Self {
        let streams = (0..nodes).map(|node| Random::stream(seed ^ STREAM, u64::from(node))).collect();
        let mut stream = Self { failures, streams, next: BinaryHeap::new() };
        if failures.per_node_day > 0.0 {
            (0..nodes).for_each(|node| stream.draw(node, Time::ZERO));
        }
        stream
    }

    pub(crate) fn peek(&self) -> Option<Time> {
        self.next.peek().map(|std::cmp::Reverse((time, _))| *time)
    }

    pub(crate) fn pop(&mut self) -> Option<NodeFailure> {
        let std::cmp::Reverse((at, node)) = self.next.pop()?;
        let is_lost = self.streams[node as usize].unit() <= self.failures.node_loss_share;
        let until = at + if is_lost { self.failures.repair } else { self.failures.reboot };
        self.draw(node, until);
        Some(NodeFailure { node: NodeId(node), at, until })
    }

    fn draw(&mut self, node: u32, from: Time) {
        let mean = Span::days(1).0 as f64 / self.failures.per_node_day;
        let gap = Span(self.streams[node as usize].exponential(mean) as u64 + 1);
        self.next.push(std::cmp::Reverse((from + gap, node)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_come_in_order_at_the_rate_and_equal_for_equal_seeds() {
        let draw = |seed| {
            let mut stream = FailureStream::new(Failures::published(0.01, 0.75), 1000, seed);
            let mut failures = Vec::new();
            while stream.peek().is_some_and(|at| at < Time::ZERO + Span::days(100)) {
                failures.extend(stream.pop());
            }
            failures
        };
        let failures = draw(3);
        assert!(failures.windows(2).all(|pair| pair[0].at <= pair[1].at));
        assert!((950..1050).contains(&failures.len()), "{} of 1,000 expected", failures.len());
        let lost = failures.iter().filter(|each| each.until.since(each.at) == Span::hours(12)).count();
        assert!((650..850).contains(&lost), "{lost} of 750 expected");
        assert_eq!(failures, draw(3));
        assert_ne!(failures, draw(4));
    }
}
