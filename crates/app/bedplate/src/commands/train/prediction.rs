//! What a plan says of a step on this machine, before the first one is taken.

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_catalog::Accelerator;
use bedplate_comm::World;
use bedplate_local::host::host_entry;
use bedplate_local::host_run;
use bedplate_perf::{PredictedStep, predict_on_host};
use bedplate_terminal::Context;
use bedplate_train::{Precision, TrainConfig, TrainError, read_architecture};
use bedplate_units::Bytes;

/// A step as predicted for this machine, and the machine's peak in FLOP/s.
pub(crate) struct HostPrediction {
    pub(crate) breakdown: Breakdown<Predicted>,
    pub(crate) memory: Bytes,
    pub(crate) peak: Option<f64>,
}

/// Absent when this machine has not been measured (`bedplate bench machine` and `bench comm --save`), for ranks on several
/// machines, and for fp8, which a processor imitates.
pub(super) fn predict(
    config: &TrainConfig,
    context: &Context,
    world: Option<&World>,
    survives: bool,
) -> Result<Option<HostPrediction>, TrainError> {
    let ranks = world.map_or(1, World::size);
    let is_imitated = config.training.precision == Precision::Fp8;
    if is_imitated || world.is_some_and(|world| world.host_ranks().len() != ranks as usize) {
        return Ok(None);
    }
    let Some(host) = host_entry(context.load_catalog().ok().as_ref()) else { return Ok(None) };
    let model = read_architecture(&config.model.config)?.transformer;
    let run = host_run(config, ranks, survives);
    let Ok(PredictedStep { time: breakdown, memory, .. }) = predict_on_host(&model, &host, &run) else {
        return Ok(None);
    };
    Ok(Some(HostPrediction {
        breakdown,
        memory: memory.total(),
        peak: peak(&host, config.training.precision),
    }))
}

fn peak(host: &Accelerator, precision: Precision) -> Option<f64> {
    let peak = match precision {
        Precision::F32 => host.peaks.fp32,
        Precision::Bf16 | Precision::Fp8 => host.peaks.bf16,
    };
    peak.map(|rate| rate.get())
}
