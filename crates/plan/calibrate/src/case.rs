//! A measured row as an input to the model: what was run, and how fast it was.

use bedplate_catalog::Catalog;
use bedplate_layout::{Batch, ComputePrecision, Layout, Recompute};
use bedplate_perf::{Constants, Hardware, Offload, PerfError, PredictedStep, Stack, Workload, predict};
use bedplate_transformer::{AttentionFlops, FlopsConvention, Prediction, RecomputeFlops, Transformer};

use crate::record::{MeasuredRow, read};
use crate::{CalibrateError, Skip, architecture, fill};

/// One usable row.
#[derive(Debug, Clone)]
pub struct Case {
    pub id: String,
    /// Shared by the rows of one publication, which are held out together.
    pub source: String,
    pub accelerator: String,
    pub model: Transformer,
    pub hardware: Hardware,
    pub layout: Layout,
    pub workload: Workload,
    /// Measured tokens per second and GPU.
    pub tokens_per_second: f64,
    /// Measured memory of a GPU in GB, where printed.
    pub memory_gb: Option<f64>,
    /// Whether the publication presents the layout as a recipe. Others vary something else at a fixed layout, explore, or
    /// show a baseline.
    pub is_recipe: bool,
}

/// A skipped row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub id: String,
    pub reason: Skip,
}

/// The rows of a file: those that can be predicted and those that cannot.
#[derive(Debug, Clone)]
pub struct Cases {
    pub used: Vec<Case>,
    pub skipped: Vec<Skipped>,
}

impl Cases {
    pub fn read(text: &str, catalog: &Catalog) -> Result<Self, CalibrateError> {
        let mut cases = Cases { used: Vec::new(), skipped: Vec::new() };
        for record in read(text)? {
            match Case::new(&record, catalog) {
                Ok(case) => cases.used.push(case),
                Err(reason) => cases.skipped.push(Skipped { id: record.text("id").to_owned(), reason }),
            }
        }
        if !cases.used.is_empty() {
            return Ok(cases);
        }
        let reason = match cases.skipped.first() {
            Some(first) => format!("the first says: {}", first.reason),
            None => "there is nothing below the header".to_owned(),
        };
        Err(CalibrateError::NothingUsable { rows: cases.skipped.len(), reason })
    }
}

impl Case {
    fn new(record: &MeasuredRow, catalog: &Catalog) -> Result<Self, Skip> {
        if let Some((column, value)) = record.not_positive() {
            return Err(Skip::NotPositive { column, value });
        }
        let model = architecture::model(record)?;
        let stack = fill::stack(record, &model);
        let hardware = fill::hardware(record, stack, catalog)?;
        let workload = fill::workload(record, stack)?;
        let layout = fill::layout(record, &model, &workload, &hardware)?;
        let (layout, workload) = if fill::says_recompute(record, &model, &workload) {
            (layout, workload)
        } else {
            least_that_fits(&model, &hardware, layout, workload)
        };
        let tokens_per_second =
            measured(record, &model, &workload, &layout, &hardware).ok_or(Skip::NoThroughput)?;
        let case = Self {
            id: record.text("id").to_owned(),
            source: record.publication(),
            accelerator: record.text("accelerator").to_owned(),
            model,
            hardware,
            layout,
            workload,
            tokens_per_second,
            memory_gb: record.number("mem_gb"),
            is_recipe: record.text("layout_is") != "fixed",
        };
        case.predict(&Constants::priors()).map_err(|error| Skip::NotPriced { reason: error.to_string() })?;
        Ok(case)
    }

    pub fn predict(&self, constants: &Constants) -> Result<PredictedStep, PerfError> {
        predict(&self.model, &self.hardware, &self.layout, &self.workload, constants)
    }

    /// Natural logarithm of predicted over measured throughput.
    pub fn log_error(&self, constants: &Constants) -> f64 {
        let predicted = self.predict(constants).map_or(f64::NAN, |step| step.tokens_per_second_per_gpu());
        (predicted / self.tokens_per_second).ln()
    }

    /// Natural logarithm of predicted over measured memory, if the row prints it.
    pub fn memory_log_error(&self, constants: &Constants) -> Option<f64> {
        let predicted = self.predict(constants).ok()?.memory.total().get() / GIB;
        Some((predicted / self.memory_gb?).ln())
    }

    /// By how much predicted memory exceeds what the GPU has, as a logarithm; zero where it fits.
    pub fn memory_over(&self, constants: &Constants) -> f64 {
        let needed = self.predict(constants).map_or(0.0, |step| step.memory.total().get());
        (needed / self.hardware.memory).ln().max(0.0)
    }

    /// Whether a search would accept the layout: rows and searches have one set of rules.
    pub fn is_legal(&self) -> bool {
        let batch = Batch { sequence: self.workload.sequence, global_batch: self.workload.global_batch };
        self.layout.refusals(&self.model, Some(self.hardware.gpus.into()), Some(batch)).is_empty()
    }

    pub fn is_mixture(&self) -> bool {
        self.model.is_mixture()
    }
}

/// The layout with the least recomputation that fits, by constants that no fit moves. Where the host is as near as on
/// Grace, activations are moved there before whole layers are computed again.
fn least_that_fits(
    model: &Transformer,
    hardware: &Hardware,
    layout: Layout,
    workload: Workload,
) -> (Layout, Workload) {
    let choices = [
        (Recompute::None, Offload::Nothing, true),
        (Recompute::Selective, Offload::Nothing, true),
        (Recompute::None, Offload::Activations, hardware.has_grace()),
        (Recompute::Full, Offload::Nothing, true),
    ];
    let choices = choices
        .into_iter()
        .filter(|(.., is_open)| *is_open)
        .map(|(recompute, offload, _)| (Layout { recompute, ..layout }, Workload { offload, ..workload }));
    let fits = |(layout, workload): &(Layout, Workload)| {
        let step = predict(model, hardware, layout, workload, &Constants::priors());
        step.is_ok_and(|step| step.memory.total().get() <= 0.97 * hardware.memory)
    };
    let full = (Layout { recompute: Recompute::Full, ..layout }, workload);
    choices.into_iter().find(fits).unwrap_or(full)
}

/// Publications print GB and mean GiB, as `nvidia-smi` does.
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// Tokens per second and GPU from the figure that the row's `trust` names, else from any figure there is.
///
/// TFLOP/s and MFU become tokens through the FLOPs of a token as `flops_rule` counts them. Publications of
/// causal-halved TFLOP/s round tokens to whole hundreds, so where both agree within 3 %, TFLOP/s win.
fn measured(
    record: &MeasuredRow,
    model: &Transformer,
    workload: &Workload,
    layout: &Layout,
    hardware: &Hardware,
) -> Option<f64> {
    let flops = flops_per_token(record.text("flops_rule"), model, workload);
    let by_flops = || Some(record.number("tflops_per_gpu")? * 1e12 / flops?);
    let by_share = || {
        let peak = match layout.precision {
            ComputePrecision::Fp4 => hardware.peak_fp4,
            ComputePrecision::Fp8 => hardware.peak_fp8,
            _ => hardware.peak_bf16,
        };
        Some(record.number("mfu")? * peak / flops?)
    };
    let by_time = || Some(workload.tokens() / (record.number("step_time_s")? * f64::from(hardware.gpus)));
    let printed = || record.number("tokens_per_s_per_gpu");
    let trusted = match record.text("trust") {
        "tokens" => {
            let is_causal = record.text("flops_rule") == "causal";
            let finer = by_flops().filter(|_| is_causal);
            match (printed(), finer) {
                (Some(printed), Some(finer)) if (finer / printed - 1.0).abs() < 0.03 => Some(finer),
                (printed, _) => printed,
            }
        }
        "step_time" => by_time(),
        "tflops" => by_flops(),
        "mfu" => by_share(),
        _ => None,
    };
    trusted
        .or_else(by_time)
        .or_else(printed)
        .or_else(by_flops)
        .or_else(by_share)
        .filter(|rate| rate.is_finite() && *rate > 0.0)
}

/// FLOPs of a token under a rule: `full` and `causal` count the model, `hfu_full` the recomputed pass too.
fn flops_per_token(rule: &str, model: &Transformer, workload: &Workload) -> Option<f64> {
    let (attention, recompute) = match rule {
        "full" => (AttentionFlops::Full, RecomputeFlops::NotCounted),
        "causal" => (AttentionFlops::CausalHalved, RecomputeFlops::NotCounted),
        "hfu_full" => (AttentionFlops::Full, RecomputeFlops::Counted),
        _ => return None,
    };
    let counts_prediction =
        workload.trains_prediction && !matches!(workload.stack, Stack::Fsdp | Stack::FsdpTe);
    let prediction = if counts_prediction { Prediction::Counted } else { Prediction::LeftOut };
    let convention = FlopsConvention { attention, recompute, prediction };
    Some(model.flops_per_token(workload.sequence, convention).training().get())
}
