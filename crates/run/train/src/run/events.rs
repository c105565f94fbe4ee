//! What a run logs, all of it here: where it stands at `info`, each step at `debug`, what it survives at `warn`, what ends it at `error`.
//!
//! The job, the run, the node and the rank are fields of the span that the program enters. Of the configuration only figures are logged.

use bedplate_checkpoint::Published;
use bedplate_comm::World;
use bedplate_diag::Diagnostic;
use bedplate_kernels::{CudaError, DeviceChoice};
use bedplate_record::{EvaluationRecord, StepRecord};
use tracing::{debug, error, info, warn};

use super::{RunSummary, Setup};
use crate::TrainError;

pub(super) fn began(setup: &Setup, device: DeviceChoice) {
    let Setup { step, steps, ranks, layout, parameters, threads, .. } = setup;
    info!(step, steps, ranks, %layout, %device, parameters, threads, "training begins");
    if *step > 0 {
        info!(step, is_taken_over = setup.is_taken_over, "resumed from a checkpoint");
    }
}

pub(super) fn met(world: &World) {
    info!(epoch = world.epoch(), ranks = world.size(), of = world.rank(), "the ranks have met");
}

pub(super) fn went_on(setup: &Setup) {
    info!(step = setup.step, ranks = setup.ranks, layout = %setup.layout, "the ranks go on in another world");
}

/// The world ended, and the ranks that are left make another.
pub(super) fn survived(error: &TrainError, world: &World) {
    let lost = world.fault().and_then(|fault| fault.lost_rank());
    warn!(epoch = world.epoch(), lost, why = %error, "a rank was lost; those that are left meet again");
}

pub(super) fn step(record: &StepRecord) {
    let StepRecord { step, loss, gradient_norm, seconds, tokens_per_second, .. } = record;
    debug!(step, loss, gradient_norm, seconds, tokens_per_second, "a step is done");
}

pub(super) fn evaluated(record: &EvaluationRecord) {
    info!(step = record.step, loss = record.loss, "evaluated");
}

pub(super) fn checkpoint_begun(step: u64) {
    info!(step, "a checkpoint is begun");
}

pub(super) fn checkpoint_published(checkpoint: &Published) {
    info!(step = checkpoint.step, path = %checkpoint.path.display(), "a checkpoint is published");
}

pub(super) fn checkpoint_failed(step: u64, why: &TrainError) {
    warn!(step, %why, "a checkpoint has failed");
}

/// How the run ended on this rank.
pub(super) fn ended(outcome: &Result<RunSummary, TrainError>) {
    match outcome {
        Ok(summary) if !summary.had_place => info!("the run ended without a place for this process"),
        Ok(summary) => {
            let RunSummary { steps, loss, was_stopped, .. } = summary;
            info!(steps, loss, was_stopped, "training ends");
        }
        Err(TrainError::Device(CudaError::Fault(fault))) => {
            let gpu = &fault.gpu;
            error!(
                gpu = gpu.uuid,
                address = gpu.address,
                what = fault.what,
                why = fault.why,
                "the GPU failed"
            );
        }
        Err(TrainError::NotFinite { step, loss, gradient_norm, block, .. }) => {
            error!(step, loss, gradient_norm, block, "the loss is not finite");
        }
        Err(why) => error!(code = why.page().code, %why, "training has failed"),
    }
}
