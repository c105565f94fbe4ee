//! `bedplate serve`: a model behind an OpenAI-compatible API.

mod ranks;
mod replicas;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use bedplate_data::Tokenizer;
use bedplate_diag::Page;
use bedplate_gateway::{Bounds, GatewayOptions, ServedModel as Served};
use bedplate_serve::{
    Disaggregated, Engine, EngineMemory, EngineState, KvServer, Model, Replica, Sampling, Secret, ServeError,
    WorkerFlaw,
};
use bedplate_terminal::{CliError, Console, ProgramError, files, rank_span};
use bedplate_train::announce_fault;
use bedplate_units::{Bytes, Seconds};
use serde_json::json;

use crate::serving::ending::{self, Told};
use crate::serving::{EngineArguments, check_exposure, with_end};

#[derive(clap::Args, Clone)]
#[command(after_help = "\
Examples:
  bedplate serve runs/first/model                 http://127.0.0.1:8000, until Ctrl-C
  bedplate serve ./Qwen3-0.6B --weights int8       about half the memory of bf16
  bedplate serve ./Llama-3.2-1B --adapter sql=./lora-sql --speculative-tokens 4
  bedplate serve ./Llama-3.2-1B --replicas 4       four replicas behind a router
  bedplate serve ./Llama-3.1-8B --ranks 2          one model split over two processes
  bedplate serve ./Llama-3.2-1B --listen 0.0.0.0:8000 --public --api-key-file keys.txt

The folder is in Hugging Face's format: config.json, safetensors, tokenizer.json and its chat
template. A browser finds a chat page at the address itself; docs/serving.md has the API.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Where it listens; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Let other machines reach it; without API keys anyone may use it
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
    /// Sample as OpenAI does where a request does not say how, instead of as the model's generation_config.json says
    #[arg(long)]
    no_generation_config: bool,
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
    /// Run this many processes behind a router; by default they share cores and memory equally
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256), conflicts_with_all = ["trace", "kv_listen"])]
    replicas: Option<u32>,
    /// Split every matrix over this many ranks: those of the environment (a cluster, srun, torchrun), or processes started here
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with_all = ["replicas", "kv_listen", "prefill", "draft", "adapter", "swap_memory", "spill_memory", "spill_folder"])]
    ranks: Option<u32>,
    /// Replace the replicas one after the other when the model's files change
    #[arg(long, requires = "replicas")]
    watch: bool,
    /// Set for a replica of a router, which alone knows it
    #[arg(skip)]
    replica_key: Option<String>,
}

/// How often a server looks whether its engine goes on.
const LOOK: Duration = Duration::from_millis(500);

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
    let _around = rank_span().entered();
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
            let tokenizer = Tokenizer::load(&arguments.engine.model_folder()?.join("tokenizer.json"))?;
            let model = with_end(model, &tokenizer);
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
    let (replica, kv) = arguments.apart(Arc::new(engine), console)?;
    if let Some(kv) = &kv {
        console.say(&format!("computes prompts for others at {}", kv.address()));
    }
    let watched = replica.clone();
    let model = Served::new(name.clone(), vec![replica], Arc::new(tokenizer))?;
    let model = model.with_sampling(arguments.sampling()?);
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
                let EngineState { stopped, fault, .. } = watched.state();
                if let Some(reason) = stopped {
                    if let Some((fault, report)) = fault.zip(std::env::var_os("BEDPLATE_REPORT")) {
                        announce_fault(report.as_ref(), &fault);
                    }
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
    /// How is sampled where requests do not say.
    fn sampling(&self) -> Result<Sampling, CliError> {
        if self.no_generation_config {
            return Ok(Sampling::default());
        }
        Ok(Model::open(&self.engine.model_folder()?)?.sampling)
    }

    /// The replica that answers, and what computes prompts for others.
    fn apart(
        &self,
        engine: Arc<Engine>,
        console: &Console,
    ) -> Result<(Arc<dyn Replica>, Option<KvServer>), CliError> {
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
        for (worker, flaw) in apart.check() {
            let message = format!("the prefill worker {worker} computes nothing for this server: {flaw}");
            match flaw {
                WorkerFlaw::Away(_) => {
                    console.say(&format!("{message}; prompts are computed here until it can"))
                }
                _ => return Err(ProgramError::Usage { message }.into()),
            }
        }
        Ok((Arc::new(apart), server))
    }
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
        "weights {} in {}, keys and values {} in {} for {} tokens, at most {} sequences at once, {}{}",
        bytes(memory.weights),
        memory.weight_format,
        bytes(memory.kv),
        memory.kv_format,
        u64::from(about.blocks) * u64::from(about.block_tokens),
        memory.max_seqs,
        if memory.is_on_gpu { String::new() } else { format!("{} threads with ", memory.threads) },
        memory.instructions,
    ));
}
