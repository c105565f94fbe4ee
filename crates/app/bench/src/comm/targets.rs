//! What the collectives are to reach, beside what was measured.

use bedplate_comm::Operation;
use serde_json::{Value, json};

use super::peers::{Peer, Transport};
use super::question::{Case, size_text};
use super::row::{Row, Statistic};

/// One thing to reach, and the measured figure of the row that is furthest from it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    pub(super) what: String,
    pub(super) wanted: Bound,
    /// By the best samples, and by the median ones.
    pub(super) best: f64,
    pub(super) median: f64,
    /// The size of that row.
    pub(super) at: String,
    unit: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    pub(super) fn of_share(what: &str, wanted: Bound, share: f64, at: String) -> Self {
        let figure = share * 100.0;
        Self { what: what.to_owned(), wanted, best: figure, median: figure, at, unit: " %" }
    }

    pub(super) fn of_ratio(what: &str, wanted: Bound, ratio: f64, at: String) -> Self {
        Self { what: what.to_owned(), wanted, best: ratio, median: ratio, at, unit: "x" }
    }

    pub(super) fn is_met(&self) -> bool {
        match self.wanted {
            Bound::AtLeast(least) => self.best >= least,
            Bound::AtMost(most) => self.best <= most,
        }
    }

    pub(super) fn wanted_text(&self) -> String {
        match self.wanted {
            Bound::AtLeast(least) => format!("≥ {least}{}", self.unit),
            Bound::AtMost(most) => format!("≤ {most}{}", self.unit),
        }
    }

    pub(super) fn figure_text(&self, figure: f64) -> String {
        let digits = if self.unit == "x" { 2 } else { 0 };
        format!("{figure:.digits$}{}", self.unit)
    }

    /// `met`, or by how much it is missed.
    pub(super) fn verdict(&self) -> String {
        if self.is_met() {
            return "met".to_owned();
        }
        let (Bound::AtLeast(wanted) | Bound::AtMost(wanted)) = self.wanted;
        format!("short by {:.0} %", 100.0 * (self.best / wanted - 1.0).abs())
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "target": self.what,
            "wanted": self.wanted_text(),
            "measured": self.best,
            "measured_median": self.median,
            "at": self.at,
            "met": self.is_met(),
        })
    }
}

/// From here on a call counts as large.
const LARGE: u64 = 4 << 20;
const SMALL: u64 = 1 << 10;
const OVER_TCP: u64 = 64 << 20;

/// Every target that these rows can say something about.
pub(super) fn targets(rows: &[Row], copy_bytes_per_s: f64) -> Vec<Target> {
    let mut ranks: Vec<u32> = rows.iter().map(|row| row.case.ranks).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut found = Vec::new();
    for ranks in ranks {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.case.ranks == ranks).collect();
        found.extend(LARGE_CALLS.iter().filter_map(|(operation, least)| large(&rows, *operation, *least)));
        found.extend(LARGE_CALLS.iter().filter_map(|(operation, _)| latency(&rows, *operation)));
        found.extend(moved(&rows, copy_bytes_per_s));
        found.extend(over_tcp(&rows));
    }
    found
}

/// How many times as fast as the better peer large calls are to be.
const LARGE_CALLS: [(Operation, f64); 5] = [
    (Operation::AllReduce, 2.0),
    (Operation::ReduceScatter, 2.0),
    (Operation::Broadcast, 2.0),
    (Operation::AllGather, 1.2),
    (Operation::AllToAll, 1.2),
];

fn in_memory<'a>(rows: &[&'a Row], operation: Operation) -> impl Iterator<Item = &'a Row> {
    let is_it = move |row: &&Row| row.case.operation == operation && row.transport == Transport::Auto;
    rows.iter().copied().filter(is_it)
}

fn large(rows: &[&Row], operation: Operation, least: f64) -> Option<Target> {
    let rows = in_memory(rows, operation).filter(|row| row.case.bytes >= LARGE);
    let ratios = rows.filter_map(|row| Some((row, row.ratio_to_better(Statistic::Best)?)));
    let (row, best) = ratios.min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Target {
        what: format!("{operation}, {} ranks, 4M and more, to the better peer", row.case.ranks),
        wanted: Bound::AtLeast(least),
        best,
        median: row.ratio_to_better(Statistic::Median)?,
        at: size_text(row.case.bytes),
        unit: "x",
    })
}

/// Our time over Open MPI's.
fn latency(rows: &[&Row], operation: Operation) -> Option<Target> {
    let row = in_memory(rows, operation).find(|row| row.case.bytes == SMALL)?;
    let ranks = row.case.ranks;
    Some(Target {
        what: format!("{operation}, {ranks} ranks, 1K, time to Open MPI's"),
        wanted: Bound::AtMost(if ranks > 2 { 1.5 } else { 1.0 }),
        best: 1.0 / row.ratio(Peer::Openmpi, Statistic::Best)?,
        median: 1.0 / row.ratio(Peer::Openmpi, Statistic::Median)?,
        at: size_text(row.case.bytes),
        unit: "x",
    })
}

/// Bytes that the largest all-reduce moves, to those of a copy.
fn moved(rows: &[&Row], copy_bytes_per_s: f64) -> Option<Target> {
    let large = in_memory(rows, Operation::AllReduce).filter(|row| row.case.bytes >= LARGE);
    let row = large.max_by_key(|row| row.case.bytes)?;
    let share =
        |microseconds: f64| Some(100.0 * row.bytes_moved()? / (microseconds * 1e-6) / copy_bytes_per_s);
    Some(Target {
        what: format!("all_reduce, {} ranks, bytes moved to a copy's", row.case.ranks),
        wanted: Bound::AtLeast(70.0),
        best: share(row.ours.best)?,
        median: share(row.ours.median)?,
        at: size_text(row.case.bytes),
        unit: " %",
    })
}

fn over_tcp(rows: &[&Row]) -> Option<Target> {
    let is_it = |row: &&&Row| {
        let Case { operation, bytes, .. } = row.case;
        row.transport == Transport::Tcp && operation == Operation::AllReduce && bytes == OVER_TCP
    };
    let row = rows.iter().find(is_it)?;
    Some(Target {
        what: format!("all_reduce over TCP, {} ranks, to Gloo", row.case.ranks),
        wanted: Bound::AtLeast(1.5),
        best: row.ratio(Peer::Gloo, Statistic::Best)?,
        median: row.ratio(Peer::Gloo, Statistic::Median)?,
        at: size_text(row.case.bytes),
        unit: "x",
    })
}

#[cfg(test)]
mod tests {
    use super::super::rank_set::Answer;
    use super::super::row::Times;
    use super::*;
    use bedplate_comm::ElementFormat;

    fn row(operation: Operation, bytes: u64, transport: Transport, times: [f64; 3]) -> Row {
        let of = |microseconds: f64| {
            let nanoseconds = vec![microseconds * 1e3];
            Times::of(vec![Answer::Measured { algorithm: "shared".into(), wrong: 0, nanoseconds }])
        };
        let [ours, gloo, openmpi] = times;
        Row {
            case: Case { operation, format: ElementFormat::F32, ranks: 2, bytes },
            transport,
            ours: of(ours).unwrap(),
            peers: vec![(Peer::Gloo, of(gloo)), (Peer::Openmpi, of(openmpi))],
        }
    }

    #[test]
    fn the_worst_size_against_the_better_peer_decides() {
        let rows = [
            row(Operation::AllReduce, 4 << 20, Transport::Auto, [10.0, 50.0, 30.0]),
            row(Operation::AllReduce, 64 << 20, Transport::Auto, [10.0, 18.0, 90.0]),
            row(Operation::AllReduce, 64 << 20, Transport::Tcp, [10.0, 18.0, 90.0]),
            row(Operation::AllReduce, 1 << 10, Transport::Auto, [2.0, 50.0, 1.0]),
        ];
        // A copy moves as much as the all-reduce of 64 MB in 10 us.
        let found = targets(&rows, 4.0 * (64 << 20) as f64 / 10e-6);
        let shown: Vec<String> = found
            .iter()
            .map(|it| {
                format!("{} at {}: {} {}", it.wanted_text(), it.at, it.figure_text(it.best), it.verdict())
            })
            .collect();
        assert_eq!(
            shown,
            [
                "≥ 2x at 64M: 1.80x short by 10 %",
                "≤ 1x at 1K: 2.00x short by 100 %",
                "≥ 70 % at 64M: 100 % met",
                "≥ 1.5x at 64M: 1.80x met"
            ]
        );
    }
}
