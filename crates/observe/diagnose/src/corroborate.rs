//! A verdict beside what counters of the job's nodes did around its onset.

use bedplate_finding::Layer;
use bedplate_health::counters::{CounterKind, CounterMove};

use crate::verdict::{Cause, Culprit, JobVerdict, Observation};
use crate::weigh::weigh;

/// What moved on a node of the job.
#[derive(Debug, Clone, Copy)]
pub struct NodeMove<'a> {
    pub node: &'a str,
    pub moved: CounterMove,
}

/// On more than this share of the nodes at once, hardware is not the reason.
const MOST_BROKEN: f64 = 0.5;
/// Observations that are added.
const MOST: usize = 8;

impl JobVerdict {
    /// Adds what moved on its nodes, of which there are so many, and weighs again.
    pub fn corroborate(&mut self, moves: &[NodeMove<'_>], nodes: usize) {
        let before = self.evidence.len();
        for each in moves.iter().take(MOST) {
            let NodeMove { node, moved } = each;
            let with =
                moves.iter().filter(|other| other.moved.counter.metric == moved.counter.metric).count();
            let is_common = nodes > 2 && with as f64 > MOST_BROKEN * nodes as f64;
            if is_common && moved.counter.layer == Layer::Hardware {
                continue;
            }
            self.evidence.push(Observation {
                what: words(node, moved),
                source: moved.counter.metric.to_owned(),
                speaks_for: Some(cause(moved.counter.layer)),
                // A node that is not the slow one says less.
                weight: moved.counter.weight * if self.is_elsewhere(node) { 0.25 } else { 1.0 },
            });
        }
        if self.evidence.len() == before {
            return;
        }
        let weighed = weigh(&self.evidence);
        (self.cause, self.confidence, self.alternatives) =
            (weighed.cause, weighed.confidence, weighed.alternatives);
    }

    fn is_elsewhere(&self, node: &str) -> bool {
        let mut named = self.culprits.iter().filter_map(|culprit| match culprit {
            Culprit::Node(name) => Some(name),
            _ => None,
        });
        let first = named.next();
        first.is_some_and(|first| first != node && named.all(|name| name != node))
    }
}

fn words(node: &str, moved: &CounterMove) -> String {
    let CounterMove { counter, before, since } = moved;
    match counter.kind {
        CounterKind::Rate => {
            format!("{node}: {}: {since:.3e} a second since then, {before:.3e} before", counter.words)
        }
        CounterKind::Low => format!("{node}: {}: {since:.0} since then, {before:.0} before", counter.words),
    }
}

fn cause(layer: Layer) -> Cause {
    match layer {
        Layer::Hardware => Cause::Hardware,
        Layer::Network => Cause::Network,
        Layer::Storage => Cause::Storage,
        Layer::Software | Layer::Application => Cause::Application,
    }
}

#[cfg(test)]
mod tests {
    use bedplate_health::counters::COUNTERS;

    use super::*;
    use crate::verdict::ProblemKind;

    fn moved(metric: &str) -> CounterMove {
        let counter = COUNTERS.iter().find(|counter| counter.metric == metric).unwrap();
        CounterMove { counter, before: 1.0, since: 500.0 }
    }

    #[test]
    fn retransmits_name_the_network_of_a_slowdown_without_a_cause() {
        let mut verdict = JobVerdict::new(ProblemKind::SlowSince, Cause::Unknown, 0.0);
        let retransmits = moved("node_amazonefa_retrans_pkts");
        verdict.corroborate(&[NodeMove { node: "n3", moved: retransmits }], 4);
        assert_eq!(verdict.cause, Cause::Network);
        assert!(
            verdict.evidence[0].what.starts_with("n3: retransmitted packets of EFA: 5.000e2 a second"),
            "{verdict:?}"
        );
    }

    #[test]
    fn a_clock_that_falls_everywhere_or_elsewhere_says_little() {
        let clock = moved("DCGM_FI_DEV_SM_CLOCK");
        let mut verdict = JobVerdict::new(ProblemKind::SlowSince, Cause::Unknown, 0.0);
        let everywhere = ["n1", "n2", "n3"].map(|node| NodeMove { node, moved: clock });
        verdict.corroborate(&everywhere, 3);
        assert_eq!(verdict.evidence, []);
        verdict.culprits = vec![Culprit::Rank(1), Culprit::Node("n2".into())];
        verdict.corroborate(&[NodeMove { node: "n1", moved: clock }], 3);
        assert!(verdict.evidence[0].weight < 0.6);
        verdict.corroborate(&[NodeMove { node: "n2", moved: clock }], 3);
        assert_eq!(verdict.cause, Cause::Hardware);
    }
}
