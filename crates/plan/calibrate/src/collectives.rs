//! Collectives measured by themselves: read, predicted, fitted and scored with node counts held out.
//!
//! Columns of `data/training/collectives.csv`: machine, fabric, operation, library, nodes, gpus, bytes, time_us or alg_gb_s, and
//! for experts tokens_per_gpu, hidden and top_k. A row that cannot be right is excluded by name and reason, never by its error.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_catalog::Catalog;
use bedplate_perf::{
    CollectiveCall, Constants, Field, Hardware, Initiator, Network, Origin, collective_seconds,
};
use bedplate_topology::Cluster;

use crate::report::Score;
use crate::{CalibrateError, record};

/// One measured collective.
#[derive(Debug, Clone)]
pub struct CollectiveRow {
    /// Fabric, operation, library, nodes and size, for lists.
    pub name: String,
    /// Operation and library.
    pub kind: String,
    pub nodes: u32,
    pub hardware: Hardware,
    pub call: CollectiveCall,
    pub seconds: f64,
}

/// The rows of a file, and those left out with their reasons.
#[derive(Debug, Clone)]
pub struct CollectiveRows {
    pub used: Vec<CollectiveRow>,
    pub excluded: Vec<(String, String)>,
}

/// Rows of the built-in table that cannot be right.
const EXCLUDED: [(&str, &str); 2] = [
    (
        "connectx-7 expert combine (prefill) pplx 2 nodes",
        "faster than the cards: 235 MB leave each GPU, which takes 4.7 ms at 50 GB/s, not 1.1",
    ),
    (
        "connectx-7 expert dispatch (prefill) pplx 1 nodes",
        "the figure of DeepEP on eight nodes; inside a node the network is not used, and the twin row takes 1.1 ms, not 5.1",
    ),
];

/// Scores of predictions by kind of collective.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveReport {
    pub total: Score,
    pub by_kind: BTreeMap<String, Score>,
    /// Names with predicted and measured seconds.
    pub outcomes: Vec<(String, f64, f64)>,
}

impl CollectiveRows {
    pub fn read(text: &str, catalog: &Catalog) -> Result<Self, CalibrateError> {
        let mut lines = record::lines(text)?.into_iter();
        let header = lines.next().ok_or(CalibrateError::Empty)?;
        let columns: Vec<String> = header.iter().map(|name| name.trim().to_ascii_lowercase()).collect();
        for column in ["machine", "fabric", "operation", "library", "nodes", "gpus"] {
            if !columns.iter().any(|name| name == column) {
                return Err(CalibrateError::MissingColumn { column });
            }
        }
        let mut rows = CollectiveRows { used: Vec::new(), excluded: Vec::new() };
        for cells in lines {
            let line = Line { columns: &columns, cells: &cells };
            let name = line.name();
            match EXCLUDED.iter().find(|(excluded, _)| *excluded == name) {
                Some((_, reason)) => rows.excluded.push((name, (*reason).to_owned())),
                None => match line.row(catalog) {
                    Ok(row) => rows.used.push(row),
                    Err(reason) => rows.excluded.push((name, reason.to_owned())),
                },
            }
        }
        if rows.used.is_empty() {
            let reason =
                rows.excluded.first().map_or("there is nothing below the header", |(_, reason)| reason);
            return Err(CalibrateError::NothingUsable {
                rows: rows.excluded.len(),
                reason: reason.to_owned(),
            });
        }
        Ok(rows)
    }

    pub fn report(&self, constants: &Constants) -> CollectiveReport {
        self.report_by(|_| *constants)
    }

    /// Each node count predicted by constants fitted to the others.
    pub fn holdout_report(&self, start: &Constants) -> CollectiveReport {
        let nodes: BTreeSet<u32> = self.used.iter().map(|row| row.nodes).collect();
        let fits: BTreeMap<u32, Constants> = nodes
            .into_iter()
            .map(|nodes| {
                let others: Vec<&CollectiveRow> = self.used.iter().filter(|row| row.nodes != nodes).collect();
                (nodes, fit_collectives(&others, start))
            })
            .collect();
        self.report_by(|row| fits[&row.nodes])
    }

    fn report_by(&self, constants: impl Fn(&CollectiveRow) -> Constants) -> CollectiveReport {
        let outcomes: Vec<(String, f64, f64)> = self
            .used
            .iter()
            .map(|row| (row.name.clone(), row.predicted(&constants(row)), row.seconds))
            .collect();
        let errors: Vec<f64> =
            outcomes.iter().map(|(_, predicted, measured)| predicted / measured - 1.0).collect();
        let mut kinds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (row, error) in self.used.iter().zip(&errors) {
            kinds.entry(row.kind.clone()).or_default().push(*error);
        }
        CollectiveReport {
            total: Score::of(&errors),
            by_kind: kinds.into_iter().map(|(kind, errors)| (kind, Score::of(&errors))).collect(),
            outcomes,
        }
    }
}

impl CollectiveRow {
    pub fn predicted(&self, constants: &Constants) -> f64 {
        collective_seconds(&self.hardware, constants, &self.call)
    }
}

/// Fits the constants of [`Origin::Collectives`]: the mean absolute log error, up to 50 % each, and their priors.
pub fn fit_collectives(rows: &[&CollectiveRow], start: &Constants) -> Constants {
    let loss = |constants: &Constants| -> f64 {
        let error = |row: &&CollectiveRow| (row.predicted(constants) / row.seconds).ln().abs().min(0.5);
        let prior = |(value, field): (f64, &Field)| {
            let is_free = field.origin == Origin::Collectives;
            if is_free { ((value.ln() - field.prior.ln()) / field.spread).powi(2) } else { 0.0 }
        };
        let priors: f64 = constants.values().into_iter().zip(Constants::FIELDS).map(prior).sum();
        rows.iter().map(error).sum::<f64>() + 0.1 * priors
    };
    crate::fit::descend(start, Origin::Collectives, loss)
}

struct Line<'a> {
    columns: &'a [String],
    cells: &'a [String],
}

impl Line<'_> {
    fn text(&self, column: &str) -> &str {
        let at = self.columns.iter().position(|name| name == column);
        at.and_then(|at| self.cells.get(at)).map_or("", |cell| cell.trim())
    }

    fn number(&self, column: &str) -> Option<f64> {
        self.text(column).parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)
    }

    fn name(&self) -> String {
        let size = self.number("bytes").map_or(String::new(), |bytes| format!(" {} KiB", bytes / 1024.0));
        let [fabric, operation, library] = ["fabric", "operation", "library"].map(|column| self.text(column));
        format!("{fabric} {operation} {library} {} nodes{size}", self.text("nodes"))
    }

    fn row(&self, catalog: &Catalog) -> Result<CollectiveRow, &'static str> {
        let nodes =
            self.number("nodes").filter(|nodes| *nodes < 1e5).ok_or("`nodes` is not a positive number")?
                as u32;
        let hardware = self.hardware(nodes, catalog).ok_or("the machine is not in the catalog")?;
        let by_rate = || Some(self.number("bytes")? / (self.number("alg_gb_s")? * 1e9));
        let seconds = self.number("time_us").map(|microseconds| microseconds * 1e-6).or_else(by_rate);
        Ok(CollectiveRow {
            name: self.name(),
            kind: format!("{} {}", self.text("operation"), self.text("library")),
            nodes,
            hardware,
            call: self.call().ok_or("the operation, or a figure that it needs, is missing")?,
            seconds: seconds.ok_or("neither `time_us` nor `bytes` and `alg_gb_s` are given")?,
        })
    }

    /// An instance of the catalog, or H200 nodes with eight 400 Gbit/s cards.
    fn hardware(&self, nodes: u32, catalog: &Catalog) -> Option<Hardware> {
        let machine = self.text("machine");
        let kind = if machine.starts_with("h200") { "p5en.48xlarge" } else { machine };
        let cluster = Cluster::from_spec(&format!("{kind}:{nodes}"), catalog).ok()?;
        let hardware = Hardware::from_cluster(&cluster, catalog).ok()?;
        let is_rdma = self.text("fabric").starts_with("connectx");
        Some(if is_rdma { Hardware { network: Network::Rdma, ..hardware } } else { hardware })
    }

    fn call(&self) -> Option<CollectiveCall> {
        let operation = self.text("operation");
        if operation.starts_with("expert") {
            let is_dispatch = operation.contains("dispatch");
            let hidden = self.number("hidden")?;
            // fp8 with a scale for each 128 numbers on the way out, bf16 on the way back.
            let bytes_per_token = if is_dispatch { hidden * (1.0 + 4.0 / 128.0) } else { 2.0 * hidden };
            let (tokens, visits) = (self.number("tokens_per_gpu")?, self.number("top_k")?);
            // DeepEP's kernels for few tokens send a copy to each expert.
            let is_deduplicated = self.text("library") == "deepep" && operation.contains("prefill");
            return Some(CollectiveCall::Experts { tokens, visits, bytes_per_token, is_deduplicated });
        }
        let bytes = self.number("bytes")?;
        Some(match (operation, self.text("library")) {
            ("all-gather", _) => CollectiveCall::AllGather { bytes },
            ("all-reduce", _) => CollectiveCall::AllReduce { bytes },
            ("all-to-all", "nccl") => CollectiveCall::AllToAll { bytes, by: Initiator::Nccl },
            ("all-to-all", "nvshmem-host") => CollectiveCall::AllToAll { bytes, by: Initiator::Host },
            ("all-to-all", "nvshmem-device") => CollectiveCall::AllToAll { bytes, by: Initiator::Device },
            _ => return None,
        })
    }
}
