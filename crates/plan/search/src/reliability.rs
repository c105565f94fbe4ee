//! A searched step as a whole run, by `goodput`.

use bedplate_catalog::Catalog;
use bedplate_goodput::{
    Assumptions, CheckpointCost, CheckpointStore, GoodputError, Published, Recovery, RunOutlook, RunSpec,
    checkpoint_bytes, interruptions,
};
use bedplate_transformer::{Optimizer, Transformer};
use bedplate_units::{Bytes, Seconds};

/// A step of a run whose machines are still open, which is how often peers copy its state.
const USUAL_STEP: Seconds = Seconds::new(10.0);

/// Failures and checkpoints of a run whose number of nodes is still open.
#[derive(Debug, Clone, PartialEq)]
pub struct Reliability {
    pub failures_per_gpu_day: f64,
    /// How often a provider takes a spot machine away.
    pub taken_per_node_day: f64,
    pub store: CheckpointStore,
    /// Work stalls this long for a checkpoint; the rest overlaps with it.
    pub stall: Seconds,
    pub recovery: Recovery,
}

/// A run on a number of nodes.
#[derive(Debug, Clone, Copy)]
pub struct NodesJob<'a> {
    pub model: &'a Transformer,
    pub optimizer: Optimizer,
    pub step: Seconds,
    pub steps: f64,
    pub nodes: u32,
    pub gpus_per_node: u32,
}

impl Reliability {
    /// Of a run with checkpoints of `bytes`.
    pub fn assumed(assumptions: &Assumptions, bytes: Bytes, catalog: &Catalog) -> Result<Self, GoodputError> {
        let published = Published::builtin();
        let purchase = assumptions.purchase.unwrap_or_default();
        Ok(Self {
            failures_per_gpu_day: assumptions.failures_per_gpu_day(&published)?,
            taken_per_node_day: interruptions(0.0, purchase, assumptions.spot_per_node_day, "any machine")?,
            store: assumptions.store(bytes, catalog, &published)?,
            stall: assumptions.stall,
            recovery: assumptions.open_recovery(USUAL_STEP, &published)?,
        })
    }

    /// Days, interruptions, goodput and the best checkpoint interval of a job.
    pub fn outlook(&self, job: &NodesJob<'_>) -> Result<RunOutlook, GoodputError> {
        self.run(job)?.outlook()
    }

    /// The job as `goodput` sees it, for callers who change a figure or simulate it.
    pub fn run(&self, job: &NodesJob<'_>) -> Result<RunSpec, GoodputError> {
        let bytes = checkpoint_bytes(job.model, job.optimizer);
        Ok(RunSpec {
            step: job.step,
            steps: job.steps,
            nodes: job.nodes,
            gpus_per_node: job.gpus_per_node,
            failures_per_node_day: self.failures_per_gpu_day * f64::from(job.gpus_per_node)
                + self.taken_per_node_day,
            checkpoint: CheckpointCost::asynchronous(bytes, &self.store, job.nodes, self.stall)?,
            recovery: self.recovery,
            interval: None,
        })
    }
}
