//! The question of `bedplate train`: how long will a step of this run take on this host?

use bedplate_catalog::{Accelerator, Catalog};
use bedplate_layout::{ComputePrecision, Layout, Recompute};
use bedplate_transformer::Transformer;

use crate::{Constants, Hardware, PerfError, Stack, Step, Task, Workload, predict};

/// A training run in one process.
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
}

/// Time and memory of one step of a run on a host, as [`predict`] gives them for its only layout.
pub fn predict_on_host(model: &Transformer, host: &Accelerator, run: &HostRun) -> Result<Step, PerfError> {
    // A host has no links, so the catalog is not needed.
    let hardware = Hardware::from_accelerator(host, &Catalog::default())?;
    let workload = Workload {
        sequence: run.sequence,
        global_batch: run.global_batch,
        task: run.task,
        stack: Stack::Bedplate,
        ..Workload::default()
    };
    let layout = Layout {
        micro_batch: run.micro_batch,
        precision: run.precision,
        recompute: run.recompute,
        ..Layout::default()
    };
    predict(model, &hardware, &layout, &workload, &Constants::builtin())
}
