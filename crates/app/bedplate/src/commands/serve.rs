//! `bedplate serve`: a model behind an OpenAI-compatible API.

pub(crate) mod ending;
mod ranks;
pub(crate) mod replicas;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use bedplate_batching::PreemptionMode;
use bedplate_data::Tokenizer;
use bedplate_diag::Page;
use bedplate_gateway::{Bounds, GatewayOptions, ServedModel as Served};
use bedplate_kernels::{DeviceChoice, WeightFormat};
use bedplate_serve::{
    Activations, AdapterFolder, Disaggregated, Engine, EngineMemory, EngineOptions, KvServer, Model, Replica,
    Secret, ServeError, WorkerGroup, free_memory,
};
use bedplate_terminal::formats::{FormatName, KvName};
use bedplate_terminal::{CliError, Console, ProgramError, files};
use bedplate_units::{Bytes, Seconds};
use serde_json::json;

use ending::Told;

#[derive(clap::Args, Clone)]
#[command(after_help = "\
Examples:
  bedplate serve runs/first/model                 http://127.0.0.1:8000, until Ctrl-C
  bedplate serve ./Qwen3-0.6B --weights int8       about half the memory of bf16
  bedplate serve ./Llama-3.2-1B --adapter sql=./lora-sql --speculative-tokens 4
  bedplate serve ./Llama-3.2-1B --replicas 4       four processes behind a router; SIGHUP replaces them
  bedplate serve ./Llama-3.1-8B --ranks 2          one model, each of two processes with half of every matrix
  bedplate serve ./Llama-3.2-1B --listen 0.0.0.0:8000 --public --api-key-file keys.txt

The folder is in Hugging Face's format: config.json, safetensors, tokenizer.json and its chat
template. A browser finds a chat page at the address itself; docs/serving.md has the API.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Where it listens; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Let other machines reach it; give API keys, or everybody may use it
    #[arg(long)]
    public: bool,
    /// The model's name in requests [default: the folder's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A file of API keys, one on a line; requests must show one of them
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Web pages from this origin may send requests; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// A file that gets a line for each request, for `bedplate replay requests`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Most requests that wait or run; more are refused
    #[arg(long, value_name = "N", default_value_t = 1024)]
    requests: usize,
    /// Also compute prompts for other servers, which find it at this address
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "kv_secret_file",
        help_heading = "Prefill and decode apart"
    )]
    kv_listen: Option<SocketAddr>,
    /// Have long prompts computed by a server with --kv-listen; may be repeated
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "kv_secret_file",
        help_heading = "Prefill and decode apart"
    )]
    prefill: Vec<SocketAddr>,
    /// A file with the secret that both know
    #[arg(long, value_name = "FILE", help_heading = "Prefill and decode apart")]
    kv_secret_file: Option<PathBuf>,
    /// Prompts with fewer tokens are computed here
    #[arg(long, value_name = "TOKENS", default_value_t = 256, help_heading = "Prefill and decode apart")]
    prefill_least: usize,
    /// How long running requests may take to finish at the end
    #[arg(long, value_name = "TIME", default_value = "60s")]
    grace: Seconds,
    /// Run this many processes behind a router; cores and memory are shared out where nothing is said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256), conflicts_with_all = ["trace", "kv_listen"])]
    replicas: Option<u32>,
    /// Cut every matrix over this many ranks: those that the environment names (a cluster, srun, torchrun), or processes started here
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with_all = ["replicas", "kv_listen", "prefill", "draft", "adapter", "swap_memory", "spill_memory", "spill_folder"])]
    ranks: Option<u32>,
    /// Replace the replicas one after the other when the model's files change
    #[arg(long, requires = "replicas")]
    watch: bool,
    /// Set for a replica of a router, which alone knows it
    #[arg(skip)]
    replica_key: Option<String>,
}

/// How a model is loaded and run.
#[derive(clap::Args, Clone)]
pub(crate) struct EngineArguments {
    /// A model's folder in Hugging Face's format
    #[arg(value_name = "MODEL_DIR")]
    pub(crate) folder: PathBuf,
    /// The format of matrices in memory [default: that of the files]
    #[arg(long, value_name = "FORMAT", help_heading = "Engine")]
    weights: Option<FormatName>,
    /// Make weights from this seed instead of reading files, for measurements of a shape: the folder needs `config.json` and `tokenizer.json` only
    #[arg(long, value_name = "SEED", help_heading = "Engine")]
    random_weights: Option<u64>,
    /// The format of activations, and of keys and values where `--kv` says nothing
    #[arg(long, value_name = "FORMAT", default_value = "auto", help_heading = "Engine")]
    precision: Precision,
    /// The format of keys and values in memory [default: that of activations]
    #[arg(long, value_name = "FORMAT", help_heading = "Engine")]
    kv: Option<KvName>,
    /// Most tokens of prompt and answer together [default: what the model was made for, at most 32768]
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    context: Option<u32>,
    /// Memory for keys and values [default: a third of what is free, at most what all sequences can use]
    #[arg(long, value_name = "BYTES", help_heading = "Engine")]
    kv_memory: Option<Bytes>,
    /// What computes: `cpu`, a GPU such as `cuda:0`, or `auto`, which takes the first GPU that there is
    #[arg(long, value_name = "DEVICE", default_value_t, help_heading = "Engine")]
    device: DeviceChoice,
    /// Threads of the processor [default: all cores]
    #[arg(long, value_name = "N", help_heading = "Engine")]
    threads: Option<usize>,
    /// Most sequences that run at once
    #[arg(long, alias = "seats", value_name = "N", default_value_t = 64, help_heading = "Engine")]
    max_seqs: u32,
    /// Most tokens of a step [default: 512; on a GPU 2048]
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    token_budget: Option<u32>,
    /// Most tokens of one prompt in a step [default: 512; on a GPU 2048]
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    chunk: Option<u32>,
    /// Tokens of a block of keys and values
    #[arg(long, value_name = "TOKENS", default_value_t = 16, help_heading = "Engine")]
    block: u32,
    /// Compute every prompt anew, also where it begins like another one
    #[arg(long, help_heading = "Engine")]
    no_prefix_cache: bool,
    /// Memory for sequences that have to make room; without it they are computed again
    #[arg(long, value_name = "BYTES", help_heading = "Engine")]
    swap_memory: Option<Bytes>,
    /// Memory for prefixes that fell out of the cache
    #[arg(long, value_name = "BYTES", help_heading = "Engine")]
    spill_memory: Option<Bytes>,
    /// A folder for prefixes that fell out of memory
    #[arg(long, value_name = "FOLDER", requires = "spill_disk", help_heading = "Engine")]
    spill_folder: Option<PathBuf>,
    /// How much of that folder's disk they may take
    #[arg(long, value_name = "BYTES", requires = "spill_folder", help_heading = "Engine")]
    spill_disk: Option<Bytes>,
    /// Speculate on so many tokens from the text itself [default: 0; 4 with --draft]
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
    sharers: u32,
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

/// How often a server looks whether its engine goes on.
const LOOK: Duration = Duration::from_millis(500);

/// Tokens that a draft model speculates on by default.
const DRAFTED: u32 = 4;

/// Tokens of a step on a GPU where nobody says: fewer leave it idle, and more make those wait who decode.
const TOKENS_ON_GPU: u32 = 2048;

/// The context that is served where nobody says: longer ones take memory that few need.
const USUAL_CONTEXT: u64 = 32_768;

impl EngineArguments {
    pub(crate) fn options(&self, model: &Model) -> EngineOptions {
        let bytes = |bytes: Option<Bytes>| bytes.map_or(0, |bytes| bytes.get() as u64);
        let weights = self.weights.map(FormatName::format);
        let stays_f32 = match weights {
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
            weights,
            random_weights: self.random_weights,
            context_limit: context,
            block_tokens: self.block,
            kv: KvName::format(self.kv),
            token_budget: self.token_budget.unwrap_or(usual.token_budget),
            chunk_tokens: self.chunk.unwrap_or(usual.chunk_tokens),
            token_budget_on_gpu: self.token_budget.is_none().then_some(TOKENS_ON_GPU),
            chunk_tokens_on_gpu: self.chunk.is_none().then_some(TOKENS_ON_GPU),
            max_seqs: self.max_seqs,
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
        let on_gpu = all_kv_bytes(model, &options);
        EngineOptions { kv_bytes, kv_bytes_on_gpu: self.kv_memory.is_none().then_some(on_gpu), ..options }
    }

    /// The model and its settings on one of several ranks, with its share of the cores and of the memory.
    fn on_ranks(&self, group: &WorkerGroup) -> Result<(Model, EngineOptions), CliError> {
        let model = Model::open(&self.folder)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or((cores / group.ranks_here()).max(1));
        let sharers = group.ranks_here() as u32;
        let options = Self { threads: Some(threads), sharers, ..self.clone() }.options(&model);
        Ok((model, options))
    }

    /// The engine, and the tokenizer of its model.
    pub(crate) fn start(&self) -> Result<(Engine, EngineMemory, Tokenizer), CliError> {
        let model = Model::open(&self.folder)?;
        let options = self.options(&model);
        let tokenizer = Tokenizer::load(&self.folder.join("tokenizer.json"))?;
        let draft = self.draft.as_deref().map(Model::open).transpose()?;
        let (engine, memory) = Engine::start(&model, draft.as_ref(), &self.adapter, &options)?;
        Ok((engine, memory, tokenizer))
    }
}

/// A third of the free memory, or this process's share of it, and at most what all sequences can use.
fn usual_kv_bytes(model: &Model, options: &EngineOptions, sharers: u32) -> u64 {
    let all = all_kv_bytes(model, options);
    let one = u64::from(options.context_limit + options.block_tokens) * options.kv_bytes_per_token(model);
    let third = free_memory().map_or(1 << 30, |free| free.get() as u64 / 3) / u64::from(sharers.max(1));
    all.min(third.max(one))
}

/// What all sequence slots can use.
fn all_kv_bytes(model: &Model, options: &EngineOptions) -> u64 {
    let blocks = u64::from(options.context_limit).div_ceil(u64::from(options.block_tokens.max(1)));
    let tokens = u64::from(options.max_seqs) * blocks * u64::from(options.block_tokens.max(1));
    tokens.saturating_mul(options.kv_bytes_per_token(model))
}

/// Different in every process: it also keeps keys of prefixes from being guessed.
pub(crate) fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    bedplate_random::mix(now.map_or(0, |since| since.as_nanos() as u64) ^ u64::from(std::process::id()) << 32)
}

pub(crate) const PAGES: &[&Page] = replicas::PAGES;

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    if let Some(arguments) = arguments.of_replica() {
        return serve(&arguments, console);
    }
    for address in std::iter::once(arguments.listen).chain(arguments.kv_listen) {
        check_exposure(address, arguments.public)?;
    }
    match arguments.replicas {
        Some(count) => replicas::run(arguments, count, console),
        None => serve(arguments, console),
    }
}

fn serve(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    // Blocked before threads are started, which inherit it.
    let (told, loading) = ending::block_while_loading();
    let part = ranks::Part::of(arguments.ranks.unwrap_or(1))?;
    if let ranks::Part::Other(group) = part {
        loading.done();
        ending::end_with_first_rank(told);
        let (model, options) = arguments.engine.on_ranks(&group)?;
        return Ok(bedplate_serve::follow(&model, *group, &options)?);
    }
    console.say(&format!("loads {}", arguments.engine.folder.display()));
    let (engine, memory, tokenizer, _others) = match part {
        ranks::Part::First(group, others) => {
            let (model, options) = arguments.engine.on_ranks(&group)?;
            let tokenizer = Tokenizer::load(&arguments.engine.folder.join("tokenizer.json"))?;
            let (engine, memory) = Engine::lead(&model, *group, &options)?;
            (engine, memory, tokenizer, Some(others))
        }
        _ => {
            let (engine, memory, tokenizer) = arguments.engine.start()?;
            (engine, memory, tokenizer, None)
        }
    };
    let name = arguments.name.clone().unwrap_or_else(|| name_of(&arguments.engine.folder));
    describe(&engine, &memory, console);
    let (replica, kv) = arguments.apart(Arc::new(engine))?;
    if let Some(kv) = &kv {
        console.say(&format!("computes prompts for others at {}", kv.address()));
    }
    let watched = replica.clone();
    let model = Served::new(name.clone(), vec![replica], Arc::new(tokenizer))?;
    let options = GatewayOptions {
        listen: arguments.listen,
        keys: arguments.replica_key.iter().cloned().collect(),
        key_file: arguments.api_key_file.clone(),
        origins: arguments.cors_origin.clone(),
        bounds: Bounds { requests: arguments.requests, ..Bounds::default() },
        trace: arguments.trace.clone(),
        grace: Duration::from_secs_f64(arguments.grace.get().clamp(0.0, 86_400.0)),
    };
    let running = bedplate_gateway::start(vec![model], options)?;
    loading.done();
    let url = format!("http://{}", running.address());
    match console.is_json() && arguments.replica_key.is_none() {
        true => console.json(&json!({ "url": url, "model": name }))?,
        false => console.line(&url)?,
    }
    loop {
        match told.recv_timeout(LOOK) {
            // A single process has nothing to update.
            Ok(Told::Update) => {}
            Err(RecvTimeoutError::Timeout) => {
                if let Some(reason) = watched.state().stopped {
                    running.stop();
                    return Err(ServeError::Stopped { reason }.into());
                }
            }
            Ok(Told::End) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    match arguments.replica_key {
        Some(_) => running.stop(),
        None => ending::end(told, console, move || running.stop()),
    }
    Ok(())
}

impl Arguments {
    /// The replica that answers, and what computes prompts for others.
    fn apart(&self, engine: Arc<Engine>) -> Result<(Arc<dyn Replica>, Option<KvServer>), CliError> {
        let Some(path) = &self.kv_secret_file else { return Ok((engine, None)) };
        let secret = files::read_text(&path.display().to_string())?;
        if secret.trim().len() < 16 {
            let message = "the secret between prefill and decode has fewer than 16 characters".to_owned();
            return Err(ProgramError::Usage { message }.into());
        }
        let secret = Secret::new(secret.trim().as_bytes());
        let start = |address| {
            let started = KvServer::start(address, engine.clone(), secret.clone());
            started.map_err(|error| ProgramError::Usage {
                message: format!("cannot listen on {address}: {error}"),
            })
        };
        let server = self.kv_listen.map(start).transpose()?;
        if self.prefill.is_empty() {
            return Ok((engine, server));
        }
        let apart = Disaggregated::new(engine, self.prefill.clone(), secret, self.prefill_least);
        Ok((Arc::new(apart), server))
    }
}

pub(crate) fn check_exposure(listen: SocketAddr, is_public: bool) -> Result<(), CliError> {
    let is_loopback = match listen.ip() {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => address.is_loopback(),
    };
    if is_loopback || is_public {
        return Ok(());
    }
    let message = format!(
        "{} can be reached from other machines; say --public if that is meant, and give --api-key-file",
        listen.ip()
    );
    Err(ProgramError::Usage { message }.into())
}

/// The folder's own name.
fn name_of(folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    folder.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn describe(engine: &Engine, memory: &EngineMemory, console: &Console) {
    let about = engine.about();
    let bytes = |bytes: u64| Bytes::new(bytes as f64).to_string();
    console.say(&format!(
        "weights {} in {}, keys and values {} in {} for {} tokens, {}{}",
        bytes(memory.weights),
        memory.weight_format,
        bytes(memory.kv),
        memory.kv_format,
        u64::from(about.blocks) * u64::from(about.block_tokens),
        if memory.is_on_gpu { String::new() } else { format!("{} threads with ", memory.threads) },
        memory.instructions,
    ));
}
