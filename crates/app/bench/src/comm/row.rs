//! One row of the table: a case, our time and the peers'.

use bedplate_comm::Operation;
use serde_json::{Value, json};

use super::peers::{Peer, Transport};
use super::question::Case;
use super::rank_set::Answer;

/// Times of one rank set for one case, in microseconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Times {
    pub(super) best: f64,
    pub(super) median: f64,
    pub(super) algorithm: String,
    pub(super) wrong: u64,
    samples: Vec<f64>,
}

impl Times {
    /// The answers of several rounds together; none when the rank set has no such operation.
    pub(super) fn of(answers: Vec<Answer>) -> Option<Self> {
        let mut times =
            Self { best: 0.0, median: 0.0, algorithm: String::new(), wrong: 0, samples: Vec::new() };
        for answer in answers {
            let Answer::Measured { algorithm, wrong, nanoseconds } = answer else { return None };
            times.algorithm = algorithm;
            times.wrong += wrong;
            times.samples.extend(nanoseconds.iter().map(|time| time / 1e3));
        }
        times.samples.sort_by(f64::total_cmp);
        times.best = *times.samples.first()?;
        times.median = times.samples[times.samples.len() / 2];
        Some(times)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) transport: Transport,
    pub(super) ours: Times,
    pub(super) peers: Vec<(Peer, Option<Times>)>,
}

/// Which of the times a ratio compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statistic {
    Best,
    Median,
}

impl Statistic {
    pub(super) fn of(self, times: &Times) -> f64 {
        match self {
            Statistic::Best => times.best,
            Statistic::Median => times.median,
        }
    }
}

impl Row {
    pub(super) fn peer(&self, peer: Peer) -> Option<&Times> {
        self.peers.iter().find(|(known, _)| *known == peer)?.1.as_ref()
    }

    /// How many times as fast as a peer.
    pub(super) fn ratio(&self, peer: Peer, by: Statistic) -> Option<f64> {
        Some(by.of(self.peer(peer)?) / by.of(&self.ours))
    }

    /// How many times as fast as the fastest peer.
    pub(super) fn ratio_to_better(&self, by: Statistic) -> Option<f64> {
        let ratios = self.peers.iter().filter_map(|(peer, _)| self.ratio(*peer, by));
        ratios.reduce(f64::min)
    }

    /// GB/s of the algorithm and of the bus, as nccl-tests computes them.
    pub(super) fn bandwidths(&self, times: &Times, by: Statistic) -> (f64, f64) {
        bandwidths(&self.case, by.of(times))
    }

    /// Bytes that an all-reduce reads and writes in all: every buffer once each.
    pub(super) fn bytes_moved(&self) -> Option<f64> {
        let is_whole = self.case.operation == Operation::AllReduce && self.transport == Transport::Auto;
        is_whole.then(|| 2.0 * f64::from(self.case.ranks) * self.case.moved() as f64)
    }

    pub(super) fn json(&self) -> Value {
        let times = |times: &Times| {
            let (algorithm, bus) = self.bandwidths(times, Statistic::Best);
            json!({
                "time_us": times.best,
                "median_us": times.median,
                "alg_gb_s": algorithm,
                "bus_gb_s": bus,
                "bus_gb_s_median": self.bandwidths(times, Statistic::Median).1,
                "samples": times.samples.len(),
                "wrong": times.wrong,
            })
        };
        let peer = |(peer, found): &(Peer, Option<Times>)| {
            let mut value = found.as_ref().map_or(json!({}), times);
            value["peer"] = json!(peer.name());
            value["ratio"] = json!(self.ratio(*peer, Statistic::Best));
            value["ratio_median"] = json!(self.ratio(*peer, Statistic::Median));
            value
        };
        let mut row = times(&self.ours);
        row["op"] = json!(self.case.operation.name());
        row["ranks"] = json!(self.case.ranks);
        row["bytes"] = json!(self.case.moved());
        row["count"] = json!(self.case.count());
        row["type"] = json!(self.case.format.name());
        row["transport"] = json!(self.transport.name());
        row["algorithm"] = json!(self.ours.algorithm);
        row["peers"] = self.peers.iter().map(peer).collect();
        row
    }
}

fn bandwidths(case: &Case, microseconds: f64) -> (f64, f64) {
    let algorithm = case.moved() as f64 / microseconds / 1e3;
    (algorithm, algorithm * case.operation.bus_factor(case.ranks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_comm::ElementFormat;

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let case =
            Case { operation: Operation::AllReduce, format: ElementFormat::F32, ranks: 4, bytes: 1 << 30 };
        let (algorithm, bus) = bandwidths(&case, 1e6);
        assert!((algorithm - 1.073741824).abs() < 1e-9 && (bus - 1.5 * algorithm).abs() < 1e-9);
        let gather = Case { operation: Operation::AllGather, ..case };
        let (algorithm, bus) = bandwidths(&gather, 1e6);
        assert!((bus - 0.75 * algorithm).abs() < 1e-9);
    }

    #[test]
    fn rounds_are_one_set_of_samples() {
        let answer = |nanoseconds: &[f64], wrong| Answer::Measured {
            algorithm: "shared".into(),
            wrong,
            nanoseconds: nanoseconds.to_vec(),
        };
        let times = Times::of(vec![answer(&[3e3, 9e3], 0), answer(&[1e3], 2)]).unwrap();
        assert_eq!((times.best, times.median, times.wrong), (1.0, 3.0, 2));
        assert_eq!(Times::of(vec![Answer::Lacking("no type".into())]), None);
    }
}
