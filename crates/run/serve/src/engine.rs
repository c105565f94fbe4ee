//! A model that answers on this machine: its weights and memory, and the thread that runs its steps.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bedplate_batching::{Request, Scheduler};
use bedplate_host::{panics, spawn_within};
use bedplate_kernels::{Bf16, Device, Element, KvFormat, WeightFormat};
use bedplate_network::{Adapter, KvPool, Network, PackedWeights, ServingRoom, ServingShape};
use bedplate_units::Bytes;

use crate::compose::Composed;
use crate::core::{Adopted, Core, EngineParts, MOST_SPECULATED, StepLog, StepRecord};
use crate::draft::DraftModel;
use crate::events;
use crate::free_memory::FreeMemory;
use crate::keys::EngineKeys;
use crate::spill::Spill;
use crate::transfer::KvKind;
use crate::worker_group::{WorkerGroup, WorkerOrder};
use crate::{
    About, Activations, Answer, Ask, EngineOptions, EngineState, Model, Refusal, Replica, SampleEvent,
    ServeError, Teller, Wants,
};

/// An adapter to serve beside the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterFolder {
    pub name: String,
    pub folder: PathBuf,
}

/// The handle of a running engine. Dropping it ends the engine, and with it what is unfinished.
pub struct Engine {
    about: About,
    kind: KvKind,
    limits: Limits,
    commands: Sender<Command>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the handle and the engine's thread both see.
#[derive(Default)]
struct Shared {
    state: Arc<Mutex<EngineState>>,
    /// Requests that were sent and are not finished.
    requests: AtomicU32,
    is_draining: AtomicBool,
    stopped: Mutex<Option<String>>,
    log: StepLog,
}

/// What a request is checked against before it is sent.
struct Limits {
    scheduler: Scheduler,
    waiting: u32,
    next: AtomicU64,
}

enum Command {
    Ask { id: u64, ask: Box<Ask>, adapter: Option<usize>, teller: Teller },
    Adopt(Adopted),
    Stop,
}

/// What was allocated, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineMemory {
    pub weights: u64,
    /// What decoding one token reads of the weights.
    pub product: u64,
    pub kv: u64,
    pub room: u64,
    /// Most sequences that run at once.
    pub max_seqs: u32,
    pub weight_format: &'static str,
    pub activations: &'static str,
    pub kv_format: &'static str,
    pub is_on_gpu: bool,
    pub threads: usize,
    pub instructions: String,
}

impl Engine {
    /// Loads a model and starts its thread.
    pub fn start(
        model: &Model,
        draft: Option<&Model>,
        adapters: &[AdapterFolder],
        options: &EngineOptions,
    ) -> Result<(Self, EngineMemory), ServeError> {
        match options.activations {
            Activations::F32 => Self::start_as::<f32>(model, draft, adapters, options),
            Activations::Bf16 => Self::start_as::<Bf16>(model, draft, adapters, options),
        }
    }

    fn start_as<E: Element>(
        model: &Model,
        draft: Option<&Model>,
        adapters: &[AdapterFolder],
        options: &EngineOptions,
    ) -> Result<(Self, EngineMemory), ServeError> {
        let (LoadedModel { device, network, weights }, options) =
            LoadedModel::<E>::new(model, options, None)?;
        let (context, options) = (network.longest(), &options);
        let adapters = adapters
            .iter()
            .map(|adapter| Ok((adapter.name.clone(), Adapter::load(&network, &device, &adapter.folder)?)))
            .collect::<Result<Vec<_>, ServeError>>()?;
        let load = |draft: &Model| -> Result<_, ServeError> {
            let network = Network::new(&device, draft.architecture.clone(), context)?;
            let format = options.weights.unwrap_or_else(|| format_of(draft));
            let weights = PackedWeights::<E>::load(&network, &device, &draft.folder, format)?;
            Ok((network, weights))
        };
        let draft = draft.map(load).transpose()?;
        let kv_bytes = match &draft {
            Some((of, _)) => kv_bytes_beside::<E>(&device, &network, of, options),
            None => options.kv_bytes,
        };
        let options = &EngineOptions { kv_bytes, ..options.clone() };
        Self::with_weights(device, network, weights, draft, adapters, &model.end_tokens, options)
    }

    /// An engine over weights that are packed already.
    pub fn with_weights<E: Element>(
        device: Device,
        network: Network,
        weights: PackedWeights<E>,
        draft: Option<(Network, PackedWeights<E>)>,
        adapters: Vec<(String, Adapter)>,
        end_tokens: &[u32],
        options: &EngineOptions,
    ) -> Result<(Self, EngineMemory), ServeError> {
        let loaded = LoadedModel { device, network, weights };
        Self::assemble(loaded, draft, adapters, end_tokens, options, None)
    }

    /// Rank 0 of a model that is cut over ranks. Nothing is swapped or spilled.
    pub fn lead(
        model: &Model,
        group: WorkerGroup,
        options: &EngineOptions,
    ) -> Result<(Self, EngineMemory), ServeError> {
        match options.activations {
            Activations::F32 => Self::lead_as::<f32>(model, group, options),
            Activations::Bf16 => Self::lead_as::<Bf16>(model, group, options),
        }
    }

    fn lead_as<E: Element>(
        model: &Model,
        group: WorkerGroup,
        options: &EngineOptions,
    ) -> Result<(Self, EngineMemory), ServeError> {
        let options = EngineOptions {
            preemption: bedplate_batching::PreemptionMode::Recompute,
            swap_bytes: 0,
            spill_bytes: 0,
            spill_folder: None,
            ..options.clone()
        };
        let (loaded, options) = LoadedModel::<E>::new(model, &options, Some(&group))?;
        Self::assemble(loaded, None, Vec::new(), &model.end_tokens, &options, Some(group))
    }

    fn assemble<E: Element>(
        loaded: LoadedModel<E>,
        draft: Option<(Network, PackedWeights<E>)>,
        adapters: Vec<(String, Adapter)>,
        end_tokens: &[u32],
        options: &EngineOptions,
        group: Option<WorkerGroup>,
    ) -> Result<(Self, EngineMemory), ServeError> {
        let prepared = Prepared::new(loaded, draft, adapters, end_tokens, options, group)?;
        let memory = prepared.memory.clone();
        events::loaded(&prepared.about, &memory);
        Ok((Self::run(prepared), memory))
    }

    fn run<E: Element>(prepared: Prepared<E>) -> Self {
        let Prepared { parts, about, kind, limits, .. } = prepared;
        let (commands, received) = channel();
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        let thread = spawn_within("engine", move || {
            let mut core = Core::new(parts, seen.state.clone(), seen.log.clone());
            let ended = panics::caught(|| serve(&mut core, &received, &seen));
            let reason = match ended {
                Ok(Ok(())) => None,
                Ok(Err(trouble)) => Some(trouble),
                // A device that has failed gives numbers that nothing is prepared for.
                Err(what) => Some(core.trouble().err().unwrap_or(format!("a bug in its engine: {what}"))),
            };
            core.tell_fault();
            reason.as_deref().map_or_else(events::ended, events::stopped);
            let reason = reason.unwrap_or_else(|| "it was ended".to_owned());
            *seen.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.clone());
            core.fail(&reason);
            for command in received.try_iter() {
                if let Command::Ask { teller, .. } = command {
                    teller.tell(SampleEvent::Failed(reason.clone()));
                }
            }
        });
        let thread = thread.expect("a thread can be started");
        Self { about, kind, limits, commands, shared, thread: Some(thread) }
    }

    /// Takes over keys and values of a prompt that another engine of the same model computed. A request that is asked afterwards finds
    /// them as a cached prefix, as far as there was room.
    pub fn adopt(&self, prompt: Vec<u32>, adapter: Option<&str>, first: usize, blocks: Vec<Box<[u8]>>) {
        let adapter = adapter.and_then(|name| self.about.adapters.iter().position(|known| known == name));
        // An engine that has stopped needs none.
        let _ = self.commands.send(Command::Adopt(Adopted { prompt, adapter, first, blocks }));
    }

    /// The steps since this was last asked, or since the first time.
    pub fn take_steps(&self) -> Vec<StepRecord> {
        let mut log = self.shared.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.replace(Vec::new()).unwrap_or_default()
    }

    /// What engines must have in common to take over each other's blocks.
    pub fn kind(&self) -> &KvKind {
        &self.kind
    }

    /// The adapter that a request names, or why it is refused.
    /// Takes a request, which counts from now on: it is answered, or given up. Gives its adapter.
    pub(crate) fn take(&self, ask: &Ask) -> Result<Option<usize>, Refusal> {
        let adapter = self.can_answer(ask)?;
        self.shared.requests.fetch_add(1, Ordering::AcqRel);
        Ok(adapter)
    }

    /// Gives up a request that was taken.
    pub(crate) fn give_up(&self) {
        self.shared.requests.fetch_sub(1, Ordering::AcqRel);
    }

    /// Answers a request that was taken, also where no more are.
    pub(crate) fn answer(&self, ask: Ask, adapter: Option<usize>) -> Result<Answer, Refusal> {
        let (teller, answer) = Answer::new();
        let id = self.limits.next.fetch_add(1, Ordering::Relaxed);
        let command = Command::Ask { id, ask: Box::new(ask), adapter, teller };
        match self.commands.send(command) {
            Ok(()) => Ok(answer),
            Err(_) => Err(self.stopped().unwrap_or(Refusal::Draining)),
        }
    }

    fn can_answer(&self, ask: &Ask) -> Result<Option<usize>, Refusal> {
        if let Some(refusal) = self.stopped() {
            return Err(refusal);
        }
        if self.shared.is_draining.load(Ordering::Acquire) {
            return Err(Refusal::Draining);
        }
        let limit = self.limits.waiting;
        if self.shared.requests.load(Ordering::Acquire) >= limit {
            return Err(Refusal::Full { limit });
        }
        self.check(ask)
    }

    fn check(&self, ask: &Ask) -> Result<Option<usize>, Refusal> {
        let vocabulary = self.about.vocabulary;
        if let Some(token) = ask.prompt.iter().find(|token| **token >= vocabulary) {
            return Err(Refusal::NoSuchToken { token: *token, vocabulary });
        }
        let adapter = match &ask.adapter {
            None => None,
            Some(name) => match self.about.adapters.iter().position(|known| known == name) {
                Some(adapter) => Some(adapter),
                None => return Err(Refusal::NoSuchAdapter { name: name.clone() }),
            },
        };
        match self.limits.scheduler.refusal(&to_request(ask)) {
            Some(refusal) => Err(Refusal::Never(refusal)),
            None => Ok(adapter),
        }
    }

    fn stopped(&self) -> Option<Refusal> {
        let stopped = self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.clone().map(|reason| Refusal::Stopped { reason })
    }
}

/// A request as the scheduler counts it.
fn to_request(ask: &Ask) -> Request {
    let (output_tokens, samples) = match &ask.wants {
        Wants::Text(text) => (text.counted_tokens(), text.samples),
        Wants::Embedding | Wants::Blocks => (1, 1),
    };
    let prompt = u32::try_from(ask.prompt.len()).unwrap_or(u32::MAX);
    Request { samples, ..Request::new(0, prompt, output_tokens) }
}

impl Replica for Engine {
    fn about(&self) -> &About {
        &self.about
    }

    fn ask(&self, ask: Ask) -> Result<Answer, Refusal> {
        let adapter = self.take(&ask)?;
        self.answer(ask, adapter)
    }

    fn state(&self) -> EngineState {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let stopped = self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone();
        EngineState { requests: self.shared.requests.load(Ordering::Acquire), stopped, ..state }
    }

    fn drain(&self) {
        if !self.shared.is_draining.swap(true, Ordering::AcqRel) {
            events::drains();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A rank of a model other than the first: computes what rank 0 says, until it ends.
pub fn follow(model: &Model, group: WorkerGroup, options: &EngineOptions) -> Result<(), ServeError> {
    match options.activations {
        Activations::F32 => follow_as::<f32>(model, group, options),
        Activations::Bf16 => follow_as::<Bf16>(model, group, options),
    }
}

fn follow_as<E: Element>(
    model: &Model,
    group: WorkerGroup,
    options: &EngineOptions,
) -> Result<(), ServeError> {
    let (LoadedModel { device, network, weights }, _) = LoadedModel::<E>::new(model, options, Some(&group))?;
    group.follow(&device, &network, &weights)
}

/// A model in memory, or this rank's part of it.
pub(crate) struct LoadedModel<E: Element> {
    pub(crate) device: Device,
    pub(crate) network: Network,
    pub(crate) weights: PackedWeights<E>,
}

impl<E: Element> LoadedModel<E> {
    /// With the settings as they are on the device.
    fn new(
        model: &Model,
        options: &EngineOptions,
        group: Option<&WorkerGroup>,
    ) -> Result<(Self, EngineOptions), ServeError> {
        let context = u64::from(options.context_limit).min(model.max_context()) as usize;
        let threads = match options.threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let choice = match group {
            Some(group) => group.choose_device(options.device)?,
            None => options.device,
        };
        let device = choice.open(threads)?;
        if let Some(group) = group {
            group.meet(&device)?;
        }
        let architecture = model.architecture.clone();
        let network = match group {
            None => Network::new(&device, architecture, context)?,
            Some(group) => {
                Network::sharded(&device, architecture, context, group.shard_spec(), group.peers())?
            }
        };
        check_kv::<E>(&device, &network, options)?;
        let format = options.weights.unwrap_or_else(|| format_of(model));
        let kv_bytes = kv_bytes(&device, network.parameters(), format, options);
        check_memory(&device, network.parameters(), format, kv_bytes)?;
        let weights = match options.random_weights {
            Some(seed) => PackedWeights::random(&network, &device, seed, format),
            None => PackedWeights::load(&network, &device, &model.folder, format)?,
        };
        let block_tokens = options.block_tokens.max(1) as usize;
        let block_bytes = KvPool::<E>::bytes_of_block(&network, block_tokens, options.kv) as u64;
        let options = options.on(&device, kv_bytes, block_bytes);
        Ok((Self { device, network, weights }, options))
    }
}

/// An engine that only needs a thread.
pub(crate) struct Prepared<E: Element> {
    pub(crate) parts: EngineParts<E>,
    about: About,
    kind: KvKind,
    limits: Limits,
    memory: EngineMemory,
}

impl<E: Element> Prepared<E> {
    pub(crate) fn new(
        LoadedModel { device, network, weights }: LoadedModel<E>,
        draft: Option<(Network, PackedWeights<E>)>,
        adapters: Vec<(String, Adapter)>,
        end_tokens: &[u32],
        options: &EngineOptions,
        group: Option<WorkerGroup>,
    ) -> Result<Self, ServeError> {
        let context = network.longest() as u32;
        check_kv::<E>(&device, &network, options)?;
        let block_bytes =
            KvPool::<E>::bytes_of_block(&network, options.block_tokens.max(1) as usize, options.kv) as u64;
        let blocks = blocks_for(options, context, block_bytes)?;
        let in_bytes = |bytes: u64| (bytes / block_bytes.max(1)) as usize;
        let scheduler = options.scheduler(blocks, in_bytes(options.swap_bytes) as u32, context);
        let mut scheduler = Scheduler::new(scheduler).map_err(ServeError::Options)?;
        let folder = options.spill_folder.as_ref();
        let on_disk = folder.map(|(folder, bytes)| (folder.clone(), in_bytes(*bytes)));
        let spill =
            Spill::new(in_bytes(options.spill_bytes), on_disk).map_err(|source| ServeError::SpillFolder {
                path: folder.map(|(folder, _)| folder.clone()).unwrap_or_default(),
                source,
            })?;
        if spill.is_used() {
            scheduler.watch_evictions();
        }
        let speculative = match options.preemption {
            // Speculative tokens that were right have keys and values that the scheduler does not know of, so they are not swapped.
            bedplate_batching::PreemptionMode::Swap => 0,
            bedplate_batching::PreemptionMode::Recompute => {
                options.draft_tokens.min(options.block_tokens.saturating_sub(1)) as usize
            }
        };
        let spares = if speculative > 0 { MOST_SPECULATED } else { 0 };
        let all_blocks = blocks as usize + spares;
        let draft = draft.filter(|_| speculative > 0);
        let draft = draft
            .map(|(of, weights)| draft_of(&device, &network, of, weights, options, all_blocks))
            .transpose()?;
        let shape = room_shape(options, context, speculative, &adapters);
        let block_tokens = options.block_tokens as usize;
        if let Some(group) = &group {
            group.say(&WorkerOrder::Start { blocks: all_blocks, block_tokens, shape });
        }
        let pool = KvPool::new(&device, &network, all_blocks, block_tokens, options.kv)
            .map_err(ServeError::NoMemory)?;
        let room = ServingRoom::new(&device, &network, shape);
        let about = About {
            context_limit: context,
            vocabulary: network.architecture().transformer.vocab as u32,
            end_tokens: end_tokens.to_vec(),
            adapters: adapters.iter().map(|(name, _)| name.clone()).collect(),
            hidden: network.architecture().transformer.hidden as u32,
            blocks,
            block_tokens: options.block_tokens,
        };
        let memory = EngineMemory {
            weights: weights.bytes() as u64,
            product: weights.product_bytes() as u64,
            kv: u64::from(blocks) * block_bytes,
            room: room.bytes() as u64,
            max_seqs: options.max_seqs,
            weight_format: weights.format().name(),
            activations: E::NAME,
            kv_format: if options.kv == KvFormat::Fp8 { "fp8" } else { E::NAME },
            is_on_gpu: !device.is_cpu(),
            threads: device.threads(),
            instructions: device.instructions(),
        };
        let parts = EngineParts {
            device,
            network,
            weights,
            pool,
            room,
            scheduler: scheduler.clone(),
            adapters,
            spill,
            keys: EngineKeys::new(options.seed, options.block_tokens as usize),
            end_tokens: end_tokens.to_vec(),
            draft,
            speculative,
            wanted: shape.wanted,
            seed: options.seed,
            group,
        };
        let kind = KvKind {
            config: parts.network.architecture().config_json().to_owned(),
            weights: memory.weight_format.to_owned(),
            activations: E::NAME.to_owned(),
            block_tokens: options.block_tokens,
            block_bytes,
        };
        let limits = Limits { scheduler, waiting: options.waiting_limit, next: 0.into() };
        Ok(Self { parts, about, kind, limits, memory })
    }
}

/// How long an idle engine sleeps before it looks for answers that nobody waits for.
const IDLE: Duration = Duration::from_millis(100);

/// Runs until it is told to stop, or until the device or the ranks of the model cannot go on.
fn serve<E: Element>(
    core: &mut Core<E>,
    commands: &Receiver<Command>,
    shared: &Shared,
) -> Result<(), String> {
    loop {
        let is_idle = core.is_empty();
        loop {
            let command = match is_idle && core.is_empty() {
                true => commands.recv_timeout(IDLE).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                }),
                false => commands.try_recv(),
            };
            match command {
                Ok(Command::Ask { id, ask, adapter, teller }) => core.submit(id, *ask, adapter, teller),
                Ok(Command::Adopt(adopted)) => core.adopt(adopted),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                    core.dismiss();
                    return Ok(());
                }
                Err(TryRecvError::Empty) => break,
            }
        }
        core.cancel_left();
        if core.is_empty() {
            core.rest();
        } else {
            core.step();
        }
        core.trouble()?;
        core.publish();
        shared.requests.fetch_sub(core.take_finished(), Ordering::AcqRel);
    }
}

/// Of what the weights leave on a GPU: activations, logits and scratch memory take the rest.
const KV_SHARE: f64 = 0.8;

/// Bytes for keys and values: on a GPU most of what the weights leave, unless it was said.
fn kv_bytes(device: &Device, parameters: usize, format: WeightFormat, options: &EngineOptions) -> u64 {
    match (device.free_memory(), options.kv_bytes_on_gpu) {
        (Some(free), Some(most)) => {
            let left = free as f64 - weight_bytes(device, parameters, format);
            most.min((KV_SHARE * left).max(0.0) as u64)
        }
        _ => options.kv_bytes,
    }
}

/// The same once the weights of a model and of its draft are there: the draft has as many blocks of its own.
fn kv_bytes_beside<E: Element>(
    device: &Device,
    model: &Network,
    draft: &Network,
    options: &EngineOptions,
) -> u64 {
    let tokens = options.block_tokens.max(1) as usize;
    let block = |network: &Network| KvPool::<E>::bytes_of_block(network, tokens, options.kv) as f64;
    match (device.free_memory(), options.kv_bytes_on_gpu) {
        (Some(free), Some(_)) => {
            let share = block(model) / (block(model) + block(draft));
            options.kv_bytes.min((KV_SHARE * share * free as f64) as u64)
        }
        _ => options.kv_bytes,
    }
}

/// Refuses keys and values in a format that the device has no attention for.
fn check_kv<E: Element>(
    device: &Device,
    network: &Network,
    options: &EngineOptions,
) -> Result<(), ServeError> {
    let tokens = options.block_tokens.max(1) as usize;
    let is_possible = KvPool::<E>::is_possible(device, network, tokens, options.kv);
    if is_possible { Ok(()) } else { Err(ServeError::KvFormat) }
}

fn weight_bytes(device: &Device, parameters: usize, format: WeightFormat) -> f64 {
    let bits = match format {
        WeightFormat::F32 => 32.0,
        WeightFormat::Bf16 | WeightFormat::F16 => 16.0,
        WeightFormat::Fp8 if device.is_cpu() => 16.0,
        WeightFormat::Fp8 => 8.0,
        WeightFormat::Int8 => 8.5,
        WeightFormat::Int4 => 4.5,
    };
    parameters as f64 * bits / 8.0
}

/// Refuses a model that is larger than the memory that is left, before anything of it is read.
pub fn check_memory(
    device: &Device,
    parameters: usize,
    format: WeightFormat,
    kv_bytes: u64,
) -> Result<(), ServeError> {
    let (weights, kv) = (weight_bytes(device, parameters, format), kv_bytes as f64);
    let Some(free) = FreeMemory::on(device).filter(|free| weights + kv > free.free.get()) else {
        return Ok(());
    };
    let left = free.free.get();
    let smaller = WeightFormat::ALL.into_iter().find_map(|format| {
        let smaller = weight_bytes(device, parameters, format);
        (smaller < weights && smaller + kv <= left)
            .then(|| format!("`--weights {}` ({} of weights)", format.name(), Bytes::new(smaller)))
    });
    // Where the weights fit, less for keys and values does; one text of the whole length may still be refused then.
    let fewer = || {
        let size = Bytes::new(0.9 * (left - weights)).to_string().replace(' ', "");
        (weights < left).then(|| format!("`--kv-memory {size}`"))
    };
    Err(ServeError::TooLarge {
        needed: Bytes::new(weights + kv),
        free,
        weights: Bytes::new(weights),
        kv: Bytes::new(kv),
        fits: fewer().or(smaller),
    })
}

/// The format in which the files have most of their numbers.
fn format_of(model: &Model) -> WeightFormat {
    match model.dtype.as_deref() {
        Some("bfloat16") => WeightFormat::Bf16,
        Some("float16") => WeightFormat::F16,
        _ => WeightFormat::F32,
    }
}

/// Blocks that fit into the memory given for them, at most as many as all sequence slots can use.
fn blocks_for(options: &EngineOptions, context: u32, block_bytes: u64) -> Result<u32, ServeError> {
    let needed = u64::from(context).div_ceil(u64::from(options.block_tokens.max(1)));
    let blocks = options.kv_bytes / block_bytes.max(1);
    if blocks < needed {
        return Err(ServeError::TooFewBlocks {
            given: Bytes::new(options.kv_bytes as f64),
            block: Bytes::new(block_bytes as f64),
            blocks,
            needed,
            context,
        });
    }
    Ok(blocks.min(u64::from(u32::MAX / 2)) as u32)
}

/// Rows of a step that have room for logits at least: a prompt whose log-probabilities are wanted is computed in pieces of as many.
const LEAST_WANTED: usize = 32;

fn room_shape(
    options: &EngineOptions,
    context: u32,
    speculative: usize,
    adapters: &[(String, Adapter)],
) -> ServingShape {
    let max_seqs = options.max_seqs as usize;
    let speculated = MOST_SPECULATED * speculative;
    ServingShape {
        rows: options.token_budget as usize + speculated,
        sequences: max_seqs,
        table_entries: max_seqs * (context.div_ceil(options.block_tokens) as usize + 1),
        wanted: (max_seqs + speculated).max(LEAST_WANTED),
        adapter_rank: adapters.iter().map(|(_, adapter)| adapter.rank()).max().unwrap_or(0),
    }
}

/// The draft model beside a model of the same vocabulary.
fn draft_of<E: Element>(
    device: &Device,
    model: &Network,
    network: Network,
    weights: PackedWeights<E>,
    options: &EngineOptions,
    blocks: usize,
) -> Result<DraftModel<E>, ServeError> {
    let vocabulary = |network: &Network| network.architecture().transformer.vocab;
    let (own, others) = (vocabulary(&network), vocabulary(model));
    if own != others {
        let reason = format!("its vocabulary has {own} tokens, the model's {others}");
        return Err(ServeError::Mismatch { part: "draft model", reason });
    }
    let (rows, tokens) = (options.token_budget as usize, options.block_tokens as usize);
    let has_format = KvPool::<E>::is_possible(device, &network, tokens, options.kv);
    let kv = if has_format { options.kv } else { KvFormat::Stored };
    let table = network.longest().div_ceil(tokens) + 1;
    let shape = ServingShape {
        rows,
        sequences: MOST_SPECULATED,
        table_entries: MOST_SPECULATED * table,
        wanted: MOST_SPECULATED,
        adapter_rank: 0,
    };
    Ok(DraftModel {
        pool: KvPool::new(device, &network, blocks, tokens, kv).map_err(ServeError::NoMemory)?,
        room: ServingRoom::new(device, &network, shape),
        weights,
        network,
        composed: Composed::default(),
        logits: vec![0.0; own as usize],
        rows,
    })
}
