//! What a plan says of a step on what computes it, before the first one is taken.
//!
//! The prediction is for the device that the ranks really use: a node that pretends to be another machine, or has no GPU, is
//! predicted as the host that it is. Nothing is predicted of a device that was not measured and is not in the catalog, of ranks
//! on several machines, and of several GPUs, for which the model of this program's runtime was never checked; then the job's
//! own first steps are what it is compared with.

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_catalog::Accelerator;
use bedplate_comm::World;
use bedplate_kernels::{Device, DeviceChoice};
use bedplate_layout::Layout;
use bedplate_local::host::host_entry;
use bedplate_local::host_run;
use bedplate_perf::{PredictedStep, predict_on_host};
use bedplate_terminal::Context;
use bedplate_train::{Precision, StepPlan, TrainConfig, TrainError, read_architecture};
use bedplate_units::Bytes;

/// A step as predicted, and the peak of what computes it in FLOP/s.
pub(crate) struct RankPrediction {
    pub(crate) breakdown: Breakdown<Predicted>,
    pub(crate) memory: Bytes,
    pub(crate) peak: Option<f64>,
    source: String,
    /// Whether the processor computes.
    pub(crate) is_host: bool,
}

impl RankPrediction {
    pub(crate) fn plan(&self) -> StepPlan {
        StepPlan { breakdown: self.breakdown, source: Some(self.source.clone()) }
    }
}

/// What computes the steps.
struct Chip {
    entry: Accelerator,
    is_host: bool,
}

pub(super) fn predict(
    config: &TrainConfig,
    context: &Context,
    world: Option<&World>,
    survives: bool,
) -> Result<Option<RankPrediction>, TrainError> {
    let ranks = world.map_or(1, World::size);
    if world.is_some_and(|world| world.host_ranks().len() != ranks as usize) {
        return Ok(None);
    }
    let Some(chip) = chip(config.training.device, ranks, context) else { return Ok(None) };
    let precision = config.training.precision;
    // A processor imitates fp8.
    if chip.is_host && precision == Precision::Fp8 {
        return Ok(None);
    }
    let model = read_architecture(&config.model.config)?.transformer;
    let run = host_run(config, ranks, survives);
    let Ok(PredictedStep { time: breakdown, memory, .. }) = predict_on_host(&model, &chip.entry, &run) else {
        return Ok(None);
    };
    Ok(Some(RankPrediction {
        breakdown,
        memory: memory.total(),
        peak: peak(&chip.entry, precision),
        source: source(&run.layout, ranks, &chip),
        is_host: chip.is_host,
    }))
}

fn chip(device: DeviceChoice, ranks: u32, context: &Context) -> Option<Chip> {
    let catalog = context.load_catalog().ok();
    let has_gpus = || Device::gpus().is_ok_and(|gpus| !gpus.is_empty());
    match device {
        DeviceChoice::Auto if !has_gpus() => {}
        DeviceChoice::Cpu => {}
        // What cannot be opened is told when the run begins.
        gpu if ranks == 1 => {
            let opened = gpu.open(1).ok()?;
            let entry = catalog?.accelerator(opened.gpu_name()?).ok()?.clone();
            return Some(Chip { entry, is_host: false });
        }
        _ => return None,
    }
    Some(Chip { entry: host_entry(catalog.as_ref())?, is_host: true })
}

fn source(layout: &Layout, ranks: u32, chip: &Chip) -> String {
    let by = match chip.is_host {
        true => "the measured rates of its host".to_owned(),
        false => format!("the catalog's {}", chip.entry.name),
    };
    match ranks {
        1 => format!("the plan by {by}"),
        _ => format!("the plan of {layout} by {by}"),
    }
}

fn peak(chip: &Accelerator, precision: Precision) -> Option<f64> {
    let peak = match precision {
        Precision::F32 => chip.peaks.fp32,
        Precision::Bf16 | Precision::Fp8 => chip.peaks.bf16,
    };
    peak.map(|rate| rate.get())
}
