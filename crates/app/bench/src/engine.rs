//! `bedplate bench engine`: a model that answers on this host, without HTTP.
//!
//! Weights are random where only a shape is named: speed does not depend on what they say. Every figure is a ratio to a limit of this machine
//! or to another figure of the same run.

mod load;
mod peers;
mod planned;
mod predict;

use std::path::PathBuf;
use std::time::Instant;

use bedplate_kernels::{Bf16, Device, DeviceChoice, Element, WeightFormat};
use bedplate_network::{Architecture, Network, PackedWeights};
use bedplate_serve::{Activations, Engine, EngineMemory, EngineOptions, Model, Replica, check_memory};
use bedplate_terminal::formats::{KvName, weight_format};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, Context, ProgramError};
use bedplate_transformer::Precision;
use bedplate_units::Bytes;
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench engine
  bedplate bench engine --model llama-3.2-1b --weights int4
  bedplate bench engine ./Qwen3-0.6B --threads 8 --requests 200
  bedplate bench engine --device cuda:0 --model llama-3.1-8b --sequences 1,64,128 --prompt 2048
  bedplate bench engine --device cpu --peer llama.cpp,torch --requests 0

A token of one sequence reads all weights, so the memory's bandwidth limits it.
The last part runs a load, fits the time of a step to it, and then `replay`,
which runs the same scheduler, predicts another load before it is measured.

Peers have random weights of the same shape and bits (int8 is llama.cpp's Q8_0,
int4 its Q4_0) and the same threads, and are measured in turn with the engine.
They are installed by package name on demand.")]
pub(super) struct Arguments {
    /// A model's folder in Hugging Face's format
    #[arg(value_name = "MODEL_DIR", conflicts_with = "model")]
    folder: Option<PathBuf>,
    /// A built-in shape with random weights
    #[arg(long, value_name = "NAME", default_value = "qwen2.5-0.5b")]
    model: String,
    /// The format of matrices in memory
    #[arg(long, value_name = "FORMAT", default_value = "bf16", value_parser = weight_format())]
    weights: WeightFormat,
    /// The format of keys and values in memory [default: that of activations]
    #[arg(long, value_name = "FORMAT")]
    kv: Option<KvName>,
    /// What computes: `cpu`, a GPU such as `cuda:0`, or `auto`: the first GPU, or the processor if there is none
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: DeviceChoice,
    /// Threads of the processor [default: all cores]
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// How many sequences are decoded at once, one measurement after the other
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = [1, 4, 16, 32], value_parser = clap::value_parser!(u32).range(1..=1024))]
    sequences: Vec<u32>,
    /// Tokens of the prompts in front of what is decoded
    #[arg(long, value_name = "TOKENS", default_value_t = load::PROMPT, value_parser = clap::value_parser!(u32).range(1..=2048))]
    prompt: u32,
    /// Requests of each load of the prediction; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 60)]
    requests: u32,
    /// Other programs to measure in turn with the engine
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PEERS")]
    peer: Vec<peers::Peer>,
    /// A Python that has what the peers need
    #[arg(long, value_name = "PATH", requires = "peer")]
    peer_python: Option<PathBuf>,
}

/// The longest prompt that is measured, and its answer.
const LEAST_CONTEXT: u32 = 2_001;

/// Tokens of prompt and answer together.
const CONTEXT: u32 = 4096;

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let device = arguments.device.open(threads(arguments))?;
    if !device.is_cpu() && !arguments.peer.is_empty() {
        let message = "peers compute on the processor: compare with them by --device cpu".to_owned();
        return Err(ProgramError::Usage { message }.into());
    }
    let architecture = architecture(arguments)?;
    let options = options(arguments, &device, &architecture);
    let bandwidth = copy_bandwidth(&device);
    let (engine, memory) = start(arguments, device, &architecture, &options)?;
    console.say(&format!(
        "weights {} in {}, activations {}, keys and values in {}, {} threads with {}",
        Bytes::new(memory.weights as f64),
        memory.weight_format,
        memory.activations,
        memory.kv_format,
        memory.threads,
        memory.instructions
    ));
    let longest = engine.about().context_limit;
    if longest < LEAST_CONTEXT {
        let message =
            format!("the measurements need a context of {LEAST_CONTEXT} tokens, and the model has {longest}");
        return Err(ProgramError::Usage { message }.into());
    }
    let shape = match arguments.peer.is_empty() {
        true => Value::Null,
        false => peers::shape(&architecture, memory.weight_format, memory.threads, &arguments.peer)?,
    };
    let planned = planned::Planned::new(&architecture, &memory, context);
    let speed =
        load::Speed::measure(&engine, &arguments.sequences, arguments.prompt, options.token_budget, console);
    let prediction =
        (arguments.requests > 0).then(|| predict::compare(&engine, &options, arguments.requests, console));
    let python = arguments.peer_python.as_deref();
    let compared = peers::compare(&arguments.peer, python, &engine, &shape, console)?;
    if console.is_json() {
        return console.json(&json!({
            "copy_bytes_per_s": bandwidth,
            "weight_bytes": memory.product,
            "weights": memory.weight_format,
            "kv": memory.kv_format,
            "speed": speed.json(),
            "planned": planned.as_ref().map(|planned| planned.json(&speed)),
            "peers": peers::json(&compared),
            "prediction": prediction.as_ref().map(predict::Comparison::json),
        }));
    }
    show(&speed, bandwidth, &memory, console)?;
    match &planned {
        Some(planned) => planned.show(&speed, console)?,
        None => console.say("run `bedplate bench machine` to see what the plan predicts for this host"),
    }
    if !compared.is_empty() {
        peers::show(&compared, console)?;
    }
    match prediction {
        None => Ok(()),
        Some(prediction) => prediction.show(console),
    }
}

fn threads(arguments: &Arguments) -> usize {
    match arguments.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

fn options(arguments: &Arguments, device: &Device, architecture: &Architecture) -> EngineOptions {
    let format = arguments.weights;
    let usual = EngineOptions::default();
    let most = arguments.sequences.iter().copied().max().unwrap_or(1);
    let precision = if format == WeightFormat::F32 { Precision::Fp32 } else { Precision::Bf16 };
    let answer = load::TOKENS + most * arguments.prompt / usual.token_budget;
    let tokens = f64::from(most * (arguments.prompt + answer + usual.block_tokens));
    let all = 1.1 * tokens * architecture.transformer.kv_bytes_per_token(precision).get();
    // A GPU has few steps for a prompt, as it reads all weights in each.
    let at_once = if device.is_cpu() { usual.token_budget } else { 2048 };
    EngineOptions {
        device: arguments.device,
        max_seqs: usual.max_seqs.max(most),
        token_budget: at_once,
        chunk_tokens: at_once,
        threads: arguments.threads,
        activations: if format == WeightFormat::F32 { Activations::F32 } else { Activations::Bf16 },
        weights: Some(format),
        context_limit: CONTEXT,
        kv: KvName::format(arguments.kv),
        kv_bytes: (2 << 30).max(all as u64),
        ..usual
    }
}

fn start(
    arguments: &Arguments,
    device: Device,
    architecture: &Architecture,
    options: &EngineOptions,
) -> Result<(Engine, EngineMemory), CliError> {
    if let Some(folder) = &arguments.folder {
        return Ok(Engine::start(&Model::open(folder)?, None, &[], options)?);
    }
    match options.activations {
        Activations::F32 => random::<f32>(device, architecture.clone(), options),
        Activations::Bf16 => random::<Bf16>(device, architecture.clone(), options),
    }
}

fn architecture(arguments: &Arguments) -> Result<Architecture, CliError> {
    match &arguments.folder {
        Some(folder) => Ok(Model::open(folder)?.architecture),
        None => Ok(Architecture::from_shape(bedplate_transformer::builtin(&arguments.model)?)?),
    }
}

/// An engine with random weights, a block at a time.
fn random<E: Element>(
    device: Device,
    architecture: Architecture,
    options: &EngineOptions,
) -> Result<(Engine, EngineMemory), CliError> {
    let network = Network::new(&device, architecture, CONTEXT as usize)?;
    let format = options.weights.unwrap_or(WeightFormat::Bf16);
    check_memory(&device, network.parameters(), format, options.kv_bytes)?;
    let packed = PackedWeights::<E>::random(&network, &device, 1, format);
    Ok(Engine::with_weights(device, network, packed, None, Vec::new(), &[], options)?)
}

/// Bytes read and written per second by a copy that fits no cache of one core.
fn copy_bandwidth(device: &Device) -> f64 {
    const NUMBERS: usize = 128 << 20;
    let (from, mut to) = (device.zeros::<f32>(NUMBERS), device.zeros::<f32>(NUMBERS));
    let mut best = 0.0f64;
    for _ in 0..5 {
        device.synchronize();
        let began = Instant::now();
        device.copy(from.view(), to.view_mut());
        device.synchronize();
        best = best.max(2.0 * from.bytes() as f64 / began.elapsed().as_secs_f64());
    }
    best
}

fn show(
    speed: &load::Speed,
    bandwidth: f64,
    memory: &EngineMemory,
    console: &mut Console,
) -> Result<(), CliError> {
    let (fewest, alone) = speed.decodes.first().copied().unwrap_or((1, f64::NAN));
    let bound = bandwidth / memory.product as f64;
    let columns = [
        Column::left("what", 0),
        Column::right("tokens/s", 0),
        Column::right("ratio", 0),
        Column::left("to", 1),
    ];
    let mut table = Table::new(columns.into());
    let mut row = |what: String, rate: f64, ratio: f64, to: &str| {
        table.row(vec![what, format!("{rate:.1}"), format!("{ratio:.2}"), to.to_owned()]);
    };
    let name = |sequences: u32| match sequences {
        1 => "one sequence".to_owned(),
        more => format!("{more} sequences"),
    };
    let first = name(fewest);
    row(first.clone(), alone, alone / f64::from(fewest) / bound, "copy bandwidth over bytes of weights");
    for (sequences, rate) in speed.decodes.iter().skip(1) {
        row(name(*sequences), *rate, rate / alone, &first);
    }
    row("a prompt of 1024".into(), speed.prefill, speed.prefill / alone, &first);
    console.table(&table)?;
    console.line(&format!(
        "first token of a prompt of 2,000 tokens that is cached: {:.3} of the time without\nscheduling, preparing and sampling: {:.1} % of steps",
        speed.cached_first / speed.cold_first,
        100.0 * speed.host_share
    ))
}

impl load::Speed {
    fn json(&self) -> Value {
        json!({
            "decode_tokens_per_s": self.decodes.iter().map(|(sequences, rate)| json!({"sequences": sequences, "rate": rate})).collect::<Vec<_>>(),
            "prefill_tokens_per_s": self.prefill,
            "cold_first_token_s": self.cold_first,
            "cached_first_token_s": self.cached_first,
            "host_share": self.host_share,
        })
    }
}

/// A prompt that shares nothing with another of a different number.
fn prompt(engine: &Engine, number: u64, tokens: u32) -> Vec<u32> {
    let vocabulary = u64::from(engine.about().vocabulary);
    let mut random = bedplate_random::Random::stream(7, number);
    (0..tokens).map(|_| random.remainder(vocabulary) as u32).collect()
}
