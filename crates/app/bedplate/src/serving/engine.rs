//! How a model is loaded and run: the options of `serve` and `generate`.

use std::path::PathBuf;

use bedplate_batching::PreemptionMode;
use bedplate_data::Tokenizer;
use bedplate_kernels::{DeviceChoice, WeightFormat};
use bedplate_serve::{
    Activations, AdapterFolder, Engine, EngineMemory, EngineOptions, Model, WorkerGroup, free_memory,
};
use bedplate_terminal::formats::{KvName, weight_format};
use bedplate_terminal::{CliError, ProgramError};
use bedplate_train::SETTINGS_FILE;
use bedplate_units::Bytes;

use super::seed;

/// How a model is loaded and run.
#[derive(clap::Args, Clone)]
pub(crate) struct EngineArguments {
    /// A model's folder in Hugging Face's format, or the folder of a training run that has ended
    #[arg(value_name = "MODEL_DIR")]
    pub(crate) folder: PathBuf,
    /// The format of matrices in memory [default: that of the files]
    #[arg(long, value_name = "FORMAT", value_parser = weight_format(), help_heading = "Engine")]
    weights: Option<WeightFormat>,
    /// Make weights from this seed instead of reading files, for measurements of a shape: the folder needs `config.json` and `tokenizer.json` only
    #[arg(long, value_name = "SEED", help_heading = "Engine")]
    random_weights: Option<u64>,
    /// The format of activations, and without `--kv` of keys and values
    #[arg(long, value_name = "FORMAT", default_value = "auto", help_heading = "Engine")]
    precision: Precision,
    /// The format of keys and values in memory [default: that of activations]
    #[arg(long, value_name = "FORMAT", help_heading = "Engine")]
    kv: Option<KvName>,
    /// Most tokens of prompt and answer together [default: the model's own limit, at most 32768]
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    context: Option<u32>,
    /// Memory for keys and values [default: a third of the free memory, on a GPU all that the weights leave; at most what all sequences can use]
    #[arg(long, value_name = "BYTES", help_heading = "Engine")]
    kv_memory: Option<Bytes>,
    /// What computes: `cpu`, a GPU such as `cuda:0`, or `auto`: the first GPU, or the processor if there is none
    #[arg(long, value_name = "DEVICE", default_value_t, help_heading = "Engine")]
    device: DeviceChoice,
    /// Threads of the processor [default: all cores]
    #[arg(long, value_name = "N", help_heading = "Engine")]
    pub(crate) threads: Option<usize>,
    /// Most sequences that run at once [default: 64; on a GPU as many as its memory has room for, at most 256]
    #[arg(long, alias = "seats", value_name = "N", help_heading = "Engine")]
    max_seqs: Option<u32>,
    /// Most tokens of a step [default: 512; on a GPU 2048]
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    token_budget: Option<u32>,
    /// Most tokens of one prompt in a step [default: 512; on a GPU 2048]
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    chunk: Option<u32>,
    /// Tokens of a block of keys and values
    #[arg(long, value_name = "TOKENS", default_value_t = 16, help_heading = "Engine")]
    block: u32,
    /// Compute every prompt anew, even if it begins like another one
    #[arg(long, help_heading = "Engine")]
    no_prefix_cache: bool,
    /// Memory for preempted sequences; without it they are computed again
    #[arg(long, value_name = "BYTES", help_heading = "Engine")]
    swap_memory: Option<Bytes>,
    /// Memory for prefixes evicted from the cache
    #[arg(long, value_name = "BYTES", help_heading = "Engine")]
    spill_memory: Option<Bytes>,
    /// A folder for prefixes evicted from that memory
    #[arg(long, value_name = "FOLDER", requires = "spill_disk", help_heading = "Engine")]
    spill_folder: Option<PathBuf>,
    /// How much of that folder's disk they may take
    #[arg(long, value_name = "BYTES", requires = "spill_folder", help_heading = "Engine")]
    spill_disk: Option<Bytes>,
    /// Speculate on this many tokens from the text itself [default: 0; 4 with --draft]
    #[arg(
        long,
        alias = "guess",
        value_name = "TOKENS",
        conflicts_with = "swap_memory",
        help_heading = "Engine"
    )]
    speculative_tokens: Option<u32>,
    /// Speculate with a smaller model of the same vocabulary instead
    #[arg(long, value_name = "MODEL_DIR", conflicts_with = "swap_memory", help_heading = "Engine")]
    draft: Option<PathBuf>,
    /// A LoRA adapter that requests may name as their model: NAME=FOLDER; may be repeated
    #[arg(long, value_name = "NAME=FOLDER", value_parser = adapter, help_heading = "Engine")]
    adapter: Vec<AdapterFolder>,
    /// How many processes share this machine, this one included
    #[arg(skip = 1u32)]
    pub(crate) sharers: u32,
}

fn adapter(text: &str) -> Result<AdapterFolder, String> {
    let (name, folder) = text.split_once('=').ok_or("it is NAME=FOLDER")?;
    if name.is_empty() || folder.is_empty() {
        return Err("it is NAME=FOLDER, and neither is empty".to_owned());
    }
    Ok(AdapterFolder { name: name.to_owned(), folder: folder.into() })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Precision {
    /// f32 for weights in f32, otherwise bf16
    Auto,
    F32,
    Bf16,
}

/// Tokens that a draft model speculates on by default.
const DRAFTED: u32 = 4;

/// Tokens of a step on a GPU where nobody says: fewer leave it idle, and more make those wait who decode.
const TOKENS_ON_GPU: u32 = 2048;

/// Sequences that run at once on a GPU with enough memory where nobody says. For 256 users on an H200, 24.0 requests a second where 64 sequences gave 18.9; more
/// was not measured.
const SEQUENCES_ON_GPU: u32 = 256;

/// The context that is served where nobody says: longer ones take memory that few need.
const USUAL_CONTEXT: u64 = 32_768;

/// Where a training run puts what it has made.
const MODEL_OF_A_RUN: &str = "model";
const ADAPTER_OF_A_RUN: &str = "adapter";

impl EngineArguments {
    /// The model's folder: of a training run the one beneath it.
    pub(crate) fn model_folder(&self) -> Result<PathBuf, CliError> {
        let folder = &self.folder;
        if folder.join("config.json").exists() || !folder.join(SETTINGS_FILE).exists() {
            return Ok(folder.clone());
        }
        let model = folder.join(MODEL_OF_A_RUN);
        if model.join("config.json").exists() {
            return Ok(model);
        }
        let shown = folder.display();
        let message = match folder.join(ADAPTER_OF_A_RUN).is_dir() {
            true => format!(
                "`{shown}` is a run that trained an adapter: name the folder of its base model, and `--adapter NAME={shown}/{ADAPTER_OF_A_RUN}`"
            ),
            false => format!(
                "`{shown}` is a run that has not ended, so it has no {MODEL_OF_A_RUN}/ yet; `bedplate train --resume {shown}` goes on, `bedplate train show {shown}` says how far it is"
            ),
        };
        Err(ProgramError::Usage { message }.into())
    }

    fn options(&self, model: &Model) -> EngineOptions {
        let bytes = |bytes: Option<Bytes>| bytes.map_or(0, |bytes| bytes.get() as u64);
        let stays_f32 = match self.weights {
            Some(format) => format == WeightFormat::F32,
            None => !matches!(model.dtype.as_deref(), Some("bfloat16" | "float16")),
        };
        let activations = match self.precision {
            Precision::F32 => Activations::F32,
            Precision::Bf16 => Activations::Bf16,
            Precision::Auto if stays_f32 => Activations::F32,
            Precision::Auto => Activations::Bf16,
        };
        let context = self.context.unwrap_or(model.max_context().min(USUAL_CONTEXT) as u32);
        let usual = EngineOptions::default();
        let options = EngineOptions {
            device: self.device,
            threads: self.threads.unwrap_or(0),
            activations,
            weights: self.weights,
            random_weights: self.random_weights,
            context_limit: context,
            block_tokens: self.block,
            kv: KvName::format(self.kv),
            token_budget: self.token_budget.unwrap_or(usual.token_budget),
            chunk_tokens: self.chunk.unwrap_or(usual.chunk_tokens),
            token_budget_on_gpu: self.token_budget.is_none().then_some(TOKENS_ON_GPU),
            chunk_tokens_on_gpu: self.chunk.is_none().then_some(TOKENS_ON_GPU),
            max_seqs: self.max_seqs.unwrap_or(usual.max_seqs),
            max_seqs_on_gpu: self.max_seqs.is_none().then_some(SEQUENCES_ON_GPU),
            keeps_prefixes: !self.no_prefix_cache,
            preemption: if self.swap_memory.is_some() {
                PreemptionMode::Swap
            } else {
                PreemptionMode::Recompute
            },
            swap_bytes: bytes(self.swap_memory),
            spill_bytes: bytes(self.spill_memory),
            spill_folder: self.spill_folder.clone().zip(self.spill_disk.map(|bytes| bytes.get() as u64)),
            draft_tokens: self.speculative_tokens.unwrap_or(if self.draft.is_some() { DRAFTED } else { 0 }),
            seed: seed(),
            ..usual
        };
        let kv_bytes = match self.kv_memory {
            Some(bytes) => bytes.get() as u64,
            None => usual_kv_bytes(model, &options, self.sharers),
        };
        let on_gpu = all_kv_bytes(model, &options, options.max_seqs_on_gpu.unwrap_or(options.max_seqs));
        EngineOptions { kv_bytes, kv_bytes_on_gpu: self.kv_memory.is_none().then_some(on_gpu), ..options }
    }

    /// The model and its settings on one of several ranks, with its share of the cores and of the memory.
    pub(crate) fn on_ranks(&self, group: &WorkerGroup) -> Result<(Model, EngineOptions), CliError> {
        let model = Model::open(&self.model_folder()?)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or((cores / group.ranks_here()).max(1));
        let sharers = group.ranks_here() as u32;
        let options = Self { threads: Some(threads), sharers, ..self.clone() }.options(&model);
        Ok((model, options))
    }

    /// The engine, and the tokenizer of its model.
    pub(crate) fn start(&self) -> Result<(Engine, EngineMemory, Tokenizer), CliError> {
        let folder = self.model_folder()?;
        let tokenizer = Tokenizer::load(&folder.join("tokenizer.json"))?;
        let model = with_end(Model::open(&folder)?, &tokenizer);
        let options = self.options(&model);
        let draft = self.draft.as_deref().map(Model::open).transpose()?;
        let (engine, memory) = Engine::start(&model, draft.as_ref(), &self.adapter, &options)?;
        Ok((engine, memory, tokenizer))
    }
}

/// Answers of a model whose files name no end do end where its tokenizer's texts do.
pub(crate) fn with_end(mut model: Model, tokenizer: &Tokenizer) -> Model {
    if model.end_tokens.is_empty() {
        model.end_tokens.extend(tokenizer.end());
    }
    model
}

/// A third of the free memory, or this process's share of it, and at most what all sequences can use.
fn usual_kv_bytes(model: &Model, options: &EngineOptions, sharers: u32) -> u64 {
    let all = all_kv_bytes(model, options, options.max_seqs);
    let one = u64::from(options.context_limit + options.block_tokens) * options.kv_bytes_per_token(model);
    let third = free_memory().map_or(1 << 30, |free| free.get() as u64 / 3) / u64::from(sharers.max(1));
    all.min(third.max(one))
}

/// What so many sequences can use.
fn all_kv_bytes(model: &Model, options: &EngineOptions, sequences: u32) -> u64 {
    let blocks = u64::from(options.context_limit).div_ceil(u64::from(options.block_tokens.max(1)));
    let tokens = u64::from(sequences) * blocks * u64::from(options.block_tokens.max(1));
    tokens.saturating_mul(options.kv_bytes_per_token(model))
}
