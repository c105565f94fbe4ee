//! What the saved table of this host predicts for the sizes that were just measured.

use bedplate_catalog::{CollectiveCurve, CollectiveTimes};
use bedplate_comm::ElementFormat;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::{Bytes, Seconds};
use serde_json::{Value, json};

use super::peers::Transport;
use super::question::size_text;
use super::row::Row;
use super::time_text;

/// Predicted and measured microseconds of one row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prediction {
    operation: String,
    ranks: u32,
    bytes: u64,
    predicted: f64,
    measured: f64,
}

impl Prediction {
    /// Positive when the prediction is too long.
    fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "op": self.operation,
            "ranks": self.ranks,
            "bytes": self.bytes,
            "predicted_us": self.predicted,
            "median_us": self.measured,
            "error": self.error(),
        })
    }
}

/// The rows that the table speaks of: in shared memory, of the format that it was measured in.
fn in_memory(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| row.transport == Transport::Auto && row.case.format == ElementFormat::F32)
}

pub(super) fn predictions(rows: &[Row], known: &[CollectiveTimes]) -> Vec<Prediction> {
    let of = |row: &Row| {
        let (operation, ranks) = (row.case.operation.name(), row.case.ranks);
        let times = known.iter().find(|times| times.operation == operation && times.ranks == ranks)?;
        let bytes = row.case.moved();
        Some(Prediction {
            operation: operation.to_owned(),
            ranks,
            bytes,
            predicted: times.curve.seconds(Bytes::new(bytes as f64)).get() * 1e6,
            measured: row.ours.median,
        })
    };
    in_memory(rows).filter_map(of).collect()
}

/// The table to be saved: the medians of every operation and number of ranks.
pub(super) fn table_of(rows: &[Row]) -> Vec<CollectiveTimes> {
    let mut kinds: Vec<(String, u32)> = Vec::new();
    for row in in_memory(rows).filter(|row| row.case.ranks > 1) {
        let kind = (row.case.operation.name().to_owned(), row.case.ranks);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let times = |(operation, ranks): (String, u32)| {
        let is_it = |row: &&Row| row.case.operation.name() == operation && row.case.ranks == ranks;
        let mut points: Vec<(u64, f64)> =
            in_memory(rows).filter(is_it).map(|row| (row.case.moved(), row.ours.median)).collect();
        points.sort_by_key(|point| point.0);
        points.dedup_by_key(|point| point.0);
        let sizes: Vec<Bytes> = points.iter().map(|point| Bytes::new(point.0 as f64)).collect();
        let times: Vec<Seconds> = points.iter().map(|point| Seconds::us(point.1)).collect();
        let curve = CollectiveCurve::new(&sizes, &times).ok()?;
        Some(CollectiveTimes { operation, ranks, curve })
    };
    kinds.into_iter().filter_map(times).collect()
}

pub(super) fn show(predictions: &[Prediction], console: &mut Console) -> Result<(), CliError> {
    if predictions.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::right("RANKS", 0),
        Column::left("OP", 0),
        Column::right("SIZE", 0),
        Column::right("PREDICTED", 0),
        Column::right("MEDIAN", 0),
        Column::right("ERROR", 0),
    ]);
    for it in predictions {
        table.row(vec![
            it.ranks.to_string(),
            it.operation.clone(),
            size_text(it.bytes),
            time_text(it.predicted),
            time_text(it.measured),
            format!("{:+.0} %", 100.0 * it.error()),
        ]);
    }
    console.line("\nWhat the saved table of this host predicts, and what was measured now, in us:")?;
    console.table(&table)?;
    let mut errors: Vec<f64> = predictions.iter().map(|it| it.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    console.line(&format!("median error {:.0} %", 100.0 * errors[errors.len() / 2]))
}

#[cfg(test)]
mod tests {
    use super::super::question::Case;
    use super::super::rank_set::Answer;
    use super::super::row::Times;
    use super::*;
    use bedplate_comm::Operation;

    #[test]
    fn a_saved_table_predicts_the_sizes_between_its_own() {
        let row = |bytes: u64, us: f64, transport| Row {
            case: Case { operation: Operation::AllReduce, format: ElementFormat::F32, ranks: 2, bytes },
            transport,
            ours: Times::of(vec![Answer::Measured {
                algorithm: "shared".into(),
                wrong: 0,
                nanoseconds: vec![us * 1e3],
            }])
            .unwrap(),
            peers: Vec::new(),
        };
        let saved = table_of(&[
            row(4 << 20, 400.0, Transport::Auto),
            row(1 << 20, 100.0, Transport::Auto),
            row(4 << 20, 9e3, Transport::Tcp),
        ]);
        assert_eq!(saved.len(), 1);
        let found = predictions(&[row(2 << 20, 160.0, Transport::Auto)], &saved);
        assert!((found[0].predicted - 200.0).abs() < 1e-6 && (found[0].error() - 0.25).abs() < 1e-9);
    }
}
