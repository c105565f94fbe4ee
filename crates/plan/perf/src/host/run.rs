//! The question of `bedplate train`: how long will a step of this run take on this host?

use bedplate_catalog::{Accelerator, Catalog, MeasuredRates};
use bedplate_layout::{ComputePrecision, Layout, Recompute};
use bedplate_transformer::Transformer;
use bedplate_units::{Bandwidth, Bytes, Seconds};

use super::HostModel;
use crate::{
    Constants, Grid, Hardware, LayerKey, MemoryUse, PeerCopies, PerfError, PredictedStep, Stack, Task,
    Workload, predict,
};

/// A training run on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostRun {
    /// Tokens per sequence.
    pub sequence: u64,
    /// Sequences per optimizer step.
    pub global_batch: u64,
    /// Sequences computed at once.
    pub micro_batch: u32,
    pub precision: ComputePrecision,
    pub recompute: Recompute,
    pub task: Task,
    /// Ranks keep copies of each other's state where no other rank has it.
    pub copies: PeerCopies,
    /// How its ranks share the work; what is computed at once, and how, is above.
    pub layout: Layout,
}

/// What the rank that needs most holds, which does not depend on how fast a host is.
pub fn memory_on_host(model: &Transformer, run: &HostRun) -> MemoryUse {
    let one = Bandwidth::new(1.0);
    let rates = MeasuredRates {
        threads: 1,
        fp32: None,
        bf16: None,
        copy: one,
        cache: Bytes::ZERO,
        losses: one,
        optimizer: one,
        operator: Seconds::ZERO,
    };
    let (layout, workload) = (layout(run), workload(run));
    let at_once = f64::from(layout.data) * f64::from(layout.micro_batch);
    let micro_batches = (run.global_batch as f64 / at_once).max(1.0);
    let host = HostModel { ranks: layout.world() as f64, ..HostModel::new(model, rates, &workload) };
    host.memory(&LayerKey::of(&layout), &Grid::of(&layout), micro_batches)
}

fn workload(run: &HostRun) -> Workload {
    Workload {
        sequence: run.sequence,
        global_batch: run.global_batch,
        task: run.task,
        stack: Stack::Bedplate,
        copies: run.copies,
        ..Workload::default()
    }
}

fn layout(run: &HostRun) -> Layout {
    Layout { micro_batch: run.micro_batch, precision: run.precision, recompute: run.recompute, ..run.layout }
}

/// Time and memory of one step of a run on a host, as [`predict`] gives them for its layout.
pub fn predict_on_host(
    model: &Transformer,
    host: &Accelerator,
    run: &HostRun,
) -> Result<PredictedStep, PerfError> {
    // A host has no links, so the catalog is not needed.
    let gpus = u32::try_from(run.layout.world()).unwrap_or(u32::MAX);
    let alone = Hardware::from_accelerator(host, &Catalog::default())?;
    let hardware = match gpus {
        1 => alone,
        _ => Hardware { gpus, ..alone }.among_local_ranks(Some(host)),
    };
    let (layout, workload) = (layout(run), workload(run));
    predict(model, &hardware, &layout, &workload, &Constants::builtin())
}
