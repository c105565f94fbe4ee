//! Rules, by source, for what a row leaves blank or states in its own way.

use bedplate_catalog::Catalog;
use bedplate_diag::shown;
use bedplate_perf::serving::{
    ClosedLoop, Engine, EngineSettings, KvLink, Parallel, ServedModel, WeightFormat,
};
use bedplate_perf::{Generation, Hardware};
use bedplate_transformer::{Family, Precision};

use super::skip::ServingSkip;
use crate::record::MeasuredRow;

/// Who measured, as far as it determines settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Campaign {
    /// InferenceX (InferenceMAX): prompts and answers of 80 to 100 % of the nominal length, ten requests per
    /// user, engines set by scripts whose settings the rows state.
    InferenceX,
    /// Fixed lengths and small chunks, engines with their defaults otherwise.
    GapAnalysis,
    /// Everything else: fixed lengths, default settings.
    Other,
}

impl Campaign {
    pub(super) fn of(record: &MeasuredRow) -> Self {
        let source = record.text("source").to_ascii_lowercase();
        if source.contains("inferencex") || source.contains("inferencemax") {
            Campaign::InferenceX
        } else if source.contains("gap-analysis") {
            Campaign::GapAnalysis
        } else {
            Campaign::Other
        }
    }

    /// Shortest length as a share of the nominal one. Gap-analysis runs of SGLang 0.5.6 are not in lockstep,
    /// as those of 0.5.1 are.
    pub(super) fn shortest_share(self, record: &MeasuredRow) -> f64 {
        match self {
            Campaign::InferenceX => 0.8,
            Campaign::GapAnalysis
                if engine(record) == Ok(Engine::Sglang) && version(record) == Some([0, 5, 6]) =>
            {
                0.97
            }
            _ => 1.0,
        }
    }
}

pub(super) fn model(record: &MeasuredRow) -> Result<ServedModel, ServingSkip> {
    let name = record.text("model");
    ServedModel::named(name).map_err(|_| ServingSkip::UnknownModel { name: shown(name) })
}

pub(super) fn engine(record: &MeasuredRow) -> Result<Engine, ServingSkip> {
    let name = record.text("engine");
    Engine::find(name).ok_or_else(|| ServingSkip::UnknownEngine { name: shown(name) })
}

/// Blank means bf16: an 8B model on one H100 takes 7.4 ms per token, which fits 15 GB of weights and not 8.
pub(super) fn format(record: &MeasuredRow) -> Result<WeightFormat, ServingSkip> {
    let name = record.text("precision");
    match name {
        "" => Ok(WeightFormat::Bf16),
        _ => WeightFormat::find(name).ok_or_else(|| ServingSkip::UnknownPrecision { name: shown(name) }),
    }
}

pub(super) fn hardware(record: &MeasuredRow, catalog: &Catalog) -> Result<Hardware, ServingSkip> {
    let name = record.text("accelerator");
    let unknown = || ServingSkip::UnknownAccelerator { name: shown(name) };
    let accelerator = catalog.accelerator(name).map_err(|_| unknown())?;
    let chip = Hardware::from_accelerator(accelerator, catalog).map_err(|_| unknown())?;
    let domain = if accelerator.name.starts_with("gb") { 72 } else { 8 };
    Ok(Hardware { domain, gpus: domain, ..chip })
}

/// fp8 where weights are quantised and the engine or the chip makes it the default, and in checkpoints of
/// ModelOpt, which carry scales for it; bf16 elsewhere.
pub(super) fn kv(
    record: &MeasuredRow,
    format: WeightFormat,
    engine: Engine,
    hardware: &Hardware,
) -> Precision {
    let is_quantised = matches!(format, WeightFormat::Fp8 | WeightFormat::Fp4);
    let by_default = engine == Engine::TensorRtLlm || is_blackwell(hardware);
    let is_model_opt = record.text("id").contains("nvidia_") && format == WeightFormat::Fp8;
    if is_quantised && (by_default || is_model_opt) { Precision::Fp8 } else { Precision::Bf16 }
}

fn is_blackwell(hardware: &Hardware) -> bool {
    matches!(hardware.generation, Generation::Blackwell | Generation::BlackwellUltra)
}

/// The engine settings of the campaign, with what the row's notes state of its script.
pub(super) fn settings(
    record: &MeasuredRow,
    campaign: Campaign,
    engine: Engine,
    hardware: &Hardware,
    load: &ClosedLoop,
    model: &ServedModel,
) -> EngineSettings {
    let usual = engine.settings(hardware);
    let concurrency = load.concurrency;
    let of_campaign = match (campaign, engine) {
        // DeepSeek's first tokens come nine steps late except with 1.2, as if the first piece of a stream were empty.
        (Campaign::InferenceX, Engine::TensorRtLlm)
            if model.transformer.family == Family::DeepseekV3 && !is_of(record, [1, 2]) =>
        {
            EngineSettings { late_stream: EMPTY_PIECE, ..usual }
        }
        (Campaign::GapAnalysis, Engine::TensorRtLlm) if is_of(record, [1, 0]) => {
            // Its dense runs admit one request fewer than there are users: the last waits for a completion.
            let limit = if model.transformer.is_mixture() { concurrency } else { concurrency - 1 };
            EngineSettings {
                chunk: 2048,
                visible_after: Some(0.0),
                max_sequences: limit.max(1),
                stream_limit: Some(OLD_STREAM),
                ..usual
            }
        }
        (Campaign::GapAnalysis, Engine::Vllm | Engine::TensorRtLlm) => {
            EngineSettings { chunk: 2048, visible_after: Some(0.0), ..usual }
        }
        (Campaign::GapAnalysis, _) => EngineSettings { visible_after: Some(0.0), ..usual },
        _ => usual,
    };
    let stated = |name: &str, otherwise: u32| {
        record.noted(name).and_then(|count| u32::try_from(count).ok()).unwrap_or(otherwise)
    };
    EngineSettings {
        receive_interval: stated("poll=", of_campaign.receive_interval),
        chunk: stated("chunk=", of_campaign.chunk),
        max_sequences: stated("seats=", of_campaign.max_sequences),
        batch_wait: stated("batch_wait=", of_campaign.batch_wait),
        captures_prompts: captures_prompts(record, engine),
        ..of_campaign
    }
}

/// Steps from the first token to the next piece of a stream that brings every tenth.
const EMPTY_PIECE: u32 = 9;

/// SGLang captures prompts from 0.5.10 on, vLLM does and TensorRT-LLM does not, unless a row states otherwise.
fn captures_prompts(record: &MeasuredRow, engine: Engine) -> bool {
    match record.notes().split_once("prompt_graphs=") {
        Some((_, stated)) => stated.starts_with("yes"),
        None => match engine {
            Engine::Sglang => version(record).is_some_and(|version| version >= [0, 5, 10]),
            Engine::Vllm => true,
            Engine::TensorRtLlm | Engine::Bedplate => false,
        },
    }
}

/// The engine's version, such as 0.5.10 of `sglang 0.5.10.post1`; `None` where a row states none, or a name.
fn version(record: &MeasuredRow) -> Option<[u32; 3]> {
    let (_, version) = record.text("engine").rsplit_once(' ')?;
    let mut parts = version.trim_start_matches('v').split('.').map(|part| {
        let digits = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse().ok()
    });
    let first = parts.next()??;
    let mut next = || parts.next().flatten().unwrap_or(0);
    Some([first, next(), next()])
}

fn is_of(record: &MeasuredRow, series: [u32; 2]) -> bool {
    version(record).is_some_and(|version| version[..2] == series)
}

/// Tokens per second at which the servers of TensorRT-LLM 1.0 saturate, whatever the number of GPUs.
const OLD_STREAM: f64 = 9200.0;

/// The layout of one engine.
///
/// Some rows state a product: `gpus` (and `tp` or `dp`) is `N * N` where the id says tp N and ep N; equal
/// layouts stated as N GPUs take the same time to 1 %. Where `tp` and `dp` are both N, the N ranks of an
/// engine attend to different sequences.
pub(super) fn parallel(record: &MeasuredRow, heads: u64) -> Result<Parallel, ServingSkip> {
    let gpus = record.degree("gpus").ok_or(ServingSkip::Blank { column: "gpus" })?;
    let tensor = record.degree("tp").ok_or(ServingSkip::Blank { column: "tp" })?;
    let pipeline = record.degree("pp").unwrap_or(1);
    let expert = record.degree("ep").unwrap_or(1);
    let data = record.degree("dp").unwrap_or(1);
    let squares = |root: u32| root.checked_mul(root) == Some(gpus);
    let (tensor, expert, data) = match (tensor, expert, data) {
        (tensor, expert, 1) if expert > 1 && tensor == gpus && squares(expert) => (expert, expert, 1),
        (1, expert, data) if expert > 1 && data == gpus && squares(expert) => (1, expert, expert),
        (tensor, expert, data) if tensor == data && tensor > 1 && squares(tensor) && expert == gpus => {
            (1, tensor, tensor)
        }
        stated => stated,
    };
    // A batch per rank that is a tensor-th of the users: the ranks attend to different sequences.
    let spread = spread_over(record);
    let (tensor, data) = if data == 1 && spread > 1 && tensor.is_multiple_of(spread) {
        (tensor / spread, spread)
    } else {
        (tensor, data)
    };
    if tensor > MOST_TENSOR || !heads.is_multiple_of(u64::from(tensor)) {
        return Err(ServingSkip::PoolTotal { tensor });
    }
    Ok(Parallel { tensor, pipeline, expert, attention_data: data })
}

/// The layouts of a row: one engine, or a pool of prompt workers before one of decode workers.
pub(super) struct Layouts {
    pub(super) prefill: Option<Parallel>,
    pub(super) prefill_workers: u32,
    pub(super) decode: Parallel,
    pub(super) decode_workers: u32,
}

impl Layouts {
    pub(super) fn one(parallel: Parallel) -> Self {
        Self { prefill: None, prefill_workers: 0, decode: parallel, decode_workers: 1 }
    }

    pub(super) fn gpus(&self) -> u32 {
        let prefill = self.prefill.map_or(0, |parallel| parallel.gpus());
        let prefill = prefill.saturating_mul(self.prefill_workers);
        prefill.saturating_add(self.decode.gpus().saturating_mul(self.decode_workers))
    }
}

/// The pools that the notes describe as `prefill={n: 1, tp: 4, …} decode={…}`.
pub(super) fn pools(record: &MeasuredRow) -> Result<Layouts, ServingSkip> {
    let (prefill, prefill_workers) = pool(record.notes(), "prefill={")?;
    let (decode, decode_workers) = pool(record.notes(), "decode={")?;
    Ok(Layouts { prefill: Some(prefill), prefill_workers, decode, decode_workers })
}

fn pool(notes: &str, start: &str) -> Result<(Parallel, u32), ServingSkip> {
    let fields = notes.split_once(start).and_then(|(_, rest)| rest.split_once('}'));
    let fields = fields.ok_or(ServingSkip::NoWorkers)?.0;
    let field = |name: &str| {
        let of = |part: &str| part.trim().strip_prefix(name)?.trim().parse::<u32>().ok();
        fields.split(',').find_map(of).filter(|count| (1..=4096).contains(count))
    };
    let workers = field("n:").ok_or(ServingSkip::NoWorkers)?;
    let degree = |name: &str| field(name).unwrap_or(1);
    let (tensor, attention_data) = (degree("tp:"), degree("adp:"));
    let stage = tensor.saturating_mul(attention_data);
    // A worker with attention data ranks spreads its experts over all of them.
    let expert = if attention_data > 1 { stage } else { degree("ep:").min(stage) };
    Ok((Parallel { tensor, pipeline: degree("pp:"), expert, attention_data }, workers))
}

/// Pools within a rack share its scale-up fabric; others are connected by the network.
pub(super) fn link(hardware: &Hardware) -> KvLink {
    if hardware.domain > 8 { KvLink::ScaleUp } else { KvLink::ScaleOut }
}

/// Replicas over which the users of a row are divided.
pub(super) fn copies(record: &MeasuredRow, parallel: &Parallel) -> u32 {
    let spread = spread_over(record);
    if parallel.attention_data == 1 { spread } else { 1 }
}

/// Users over the batch of one engine or rank, where the notes of one engine state it.
fn spread_over(record: &MeasuredRow) -> u32 {
    if record.text("pools") == "disaggregated" {
        return 1;
    }
    let users = record.degree("concurrency_or_rate").unwrap_or(1);
    let batch = record.noted("batch_size=").and_then(|batch| u32::try_from(batch).ok()).unwrap_or(users);
    if batch > 0 && batch < users && users.is_multiple_of(batch) { users / batch } else { 1 }
}

/// No engine in the rows uses more tensor ranks than two nodes have.
const MOST_TENSOR: u32 = 16;

/// Drafts of multi-token prediction, which rows do not record.
///
/// InferenceX's dated exports hold runs with and without it. Those of DeepSeek-R1 are with it (three drafts,
/// or one under attention DP); the same image and layout under the name DeepSeek-V3 is 1.6 times as slow. So
/// are those of Qwen3.5 in fp8 on four tensor ranks without expert parallelism: twice as fast as eight
/// ranks at four users, slower at 256.
pub(super) fn drafts(record: &MeasuredRow, engine: Engine, format: WeightFormat, parallel: &Parallel) -> u32 {
    let is_dated = record.notes().contains("source_file=20");
    let model = record.text("model");
    let is_deepseek = model.eq_ignore_ascii_case("DeepSeek-R1")
        && (engine == Engine::TensorRtLlm || engine == Engine::Sglang && parallel.tensor == 8);
    let is_qwen = model.starts_with("Qwen3.5")
        && engine == Engine::Sglang
        && format == WeightFormat::Fp8
        && (parallel.tensor, parallel.expert) == (4, 1);
    match (is_dated && (is_deepseek || is_qwen), parallel.attention_data) {
        (false, _) => 0,
        (true, 1) => 3,
        (true, _) => 1,
    }
}

/// When the engine was built: the date of the measurement, else the start of 2026, as others are around that date.
pub(super) fn built(record: &MeasuredRow) -> f64 {
    record.notes().split_once("measured=").and_then(|(_, rest)| year(rest)).unwrap_or(2026.0)
}

/// `2026-02-25…` as a year with its fraction.
fn year(text: &str) -> Option<f64> {
    let mut parts = text.splitn(3, '-');
    let year: f64 = parts.next()?.parse().ok()?;
    let month: f64 = parts.next()?.parse().ok()?;
    ((2020.0..2100.0).contains(&year) && (1.0..=12.0).contains(&month)).then(|| year + (month - 0.5) / 12.0)
}
