//! What a row leaves blank or states in its own way, settled by rules that hold for whole sources.

use bedplate_catalog::Catalog;
use bedplate_perf::serving::{
    Engine, EngineSettings, Parallel, ServedModel, WeightFormat,
};
use bedplate_perf::{Generation, Hardware};
use bedplate_transformer::Precision;

use super::skip::ServingSkip;
use crate::record::Record;

/// Who measured, as far as settings follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Campaign {
    /// InferenceX (InferenceMAX): prompts and answers of 80 to 100 % of the nominal length, ten requests per
    /// user, engines told to look for requests rarely.
    InferenceX,
    /// Fixed lengths and small chunks, engines with their defaults otherwise.
    GapAnalysis,
    /// Everything else: fixed lengths, default settings.
    Other,
}

impl Campaign {
    pub(super) fn of(record: &Record) -> Self {
        let source = record.text("source").to_ascii_lowercase();
        if source.contains("inferencex") || source.contains("inferencemax") {
            Campaign::InferenceX
        } else if source.contains("gap-analysis") {
            Campaign::GapAnalysis
        } else {
            Campaign::Other
        }
    }

    /// Shortest length as a share of the nominal one.
    pub(super) fn shortest_share(self) -> f64 {
        if self == Campaign::InferenceX { 0.8 } else { 1.0 }
    }
}

pub(super) fn model(record: &Record) -> Result<ServedModel, ServingSkip> {
    let name = record.text("model");
    ServedModel::named(name).map_err(|_| ServingSkip::UnknownModel { name: short(name) })
}

pub(super) fn engine(record: &Record) -> Result<Engine, ServingSkip> {
    let name = record.text("engine");
    Engine::find(name).ok_or_else(|| ServingSkip::UnknownEngine { name: short(name) })
}

/// Blank is bf16: an 8B model on one H100 takes 7.4 ms a token, which 15 GB of weights explain and 8 do not.
pub(super) fn format(record: &Record) -> Result<WeightFormat, ServingSkip> {
    let name = record.text("precision");
    match name {
        "" => Ok(WeightFormat::Bf16),
        _ => WeightFormat::find(name).ok_or_else(|| ServingSkip::UnknownPrecision { name: short(name) }),
    }
}

pub(super) fn hardware(record: &Record, catalog: &Catalog) -> Result<Hardware, ServingSkip> {
    let name = record.text("accelerator");
    let unknown = || ServingSkip::UnknownAccelerator { name: short(name) };
    let accelerator = catalog.accelerator(name).map_err(|_| unknown())?;
    let chip = Hardware::from_accelerator(accelerator, catalog).map_err(|_| unknown())?;
    let domain = if accelerator.name.starts_with("gb") { 72 } else { 8 };
    Ok(Hardware { domain, gpus: domain, ..chip })
}

/// fp8 where weights are quantised and the engine or the chip makes it the default, and in checkpoints of
/// ModelOpt, which carry scales for it; bf16 elsewhere.
pub(super) fn kv(record: &Record, format: WeightFormat, engine: Engine, hardware: &Hardware) -> Precision {
    let is_quantised = matches!(format, WeightFormat::Fp8 | WeightFormat::Fp4);
    let by_default = engine == Engine::TensorRtLlm || is_blackwell(hardware);
    let is_model_opt = record.text("id").contains("nvidia_") && format == WeightFormat::Fp8;
    if is_quantised && (by_default || is_model_opt) { Precision::Fp8 } else { Precision::Bf16 }
}

fn is_blackwell(hardware: &Hardware) -> bool {
    matches!(hardware.generation, Generation::Blackwell | Generation::BlackwellUltra)
}

/// How the campaign set the engine.
pub(super) fn settings(
    campaign: Campaign,
    engine: Engine,
    hardware: &Hardware,
    concurrency: u32,
) -> EngineSettings {
    let usual = engine.settings(hardware);
    match (campaign, engine) {
        (Campaign::InferenceX, Engine::Sglang) => {
            let interval = if is_blackwell(hardware) && concurrency >= 16 { 30.0 } else { 10.0 };
            EngineSettings { receive_interval: interval, ..usual }
        }
        (Campaign::GapAnalysis, Engine::Vllm | Engine::TensorRtLlm) => {
            EngineSettings { chunk: 2048, visible_after: Some(1.0), ..usual }
        }
        (Campaign::GapAnalysis, _) => EngineSettings { visible_after: Some(1.0), ..usual },
        _ => usual,
    }
}

/// The layout of one engine.
///
/// Some rows state a product: `gpus` (and `tp` or `dp`) is `N * N` where the id says tp N and ep N; equal
/// layouts stated as N GPUs take the same time to 1 %.
pub(super) fn parallel(record: &Record) -> Result<Parallel, ServingSkip> {
    let gpus = record.degree("gpus").ok_or(ServingSkip::Blank { column: "gpus" })?;
    let tensor = record.degree("tp").ok_or(ServingSkip::Blank { column: "tp" })?;
    let pipeline = record.degree("pp").unwrap_or(1);
    let expert = record.degree("ep").unwrap_or(1);
    let data = record.degree("dp").unwrap_or(1);
    let squares = |root: u32| root.checked_mul(root) == Some(gpus);
    let (tensor, expert, data) = match (tensor, expert, data) {
        (tensor, expert, 1) if expert > 1 && tensor == gpus && squares(expert) => (expert, expert, 1),
        (1, expert, data) if expert > 1 && data == gpus && squares(expert) => (1, expert, expert),
        (tensor, expert, data) if tensor == data && tensor > 2 && squares(tensor) && expert == gpus => {
            (tensor, tensor, 1)
        }
        stated => stated,
    };
    if tensor > MOST_TENSOR {
        return Err(ServingSkip::PoolTotal { tensor });
    }
    Ok(Parallel { tensor, pipeline, expert, attention_data: data })
}

/// No engine of the rows runs more tensor ranks than two nodes have.
const MOST_TENSOR: u32 = 16;

/// Drafts of multi-token prediction, which rows do not record.
///
/// DeepSeek-R1 rows of InferenceX's dated exports on TensorRT-LLM are served with three drafts, or one under
/// attention DP; DeepSeek-V3 rows of the same image and layout, 1.6 times as slow, are not.
pub(super) fn drafts(record: &Record, engine: Engine, attention_data: u32) -> u32 {
    let is_dated = record.notes().contains("source_file=20");
    let is_reasoning = record.text("model").eq_ignore_ascii_case("DeepSeek-R1");
    if engine != Engine::TensorRtLlm || !is_dated || !is_reasoning {
        return 0;
    }
    if attention_data > 1 { 1 } else { 3 }
}

pub(super) fn short(text: &str) -> String {
    text.chars().take(60).collect()
}
