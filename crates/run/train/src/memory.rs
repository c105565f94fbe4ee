//! What a run will allocate, known before it allocates anything, and the nearest setting that fits where this does not.

use std::cell::Cell;
use std::fmt;

use bedplate_kernels::Bf16;
use bedplate_layout::Sharding;
use bedplate_network::{Block, LogitsAtOnce, Network, Section, Workspace, WorkspaceShape};
use bedplate_serve::FreeMemory;
use bedplate_transformer::Transformer;
use bedplate_transformer::workspace::{self, Make, Recompute, Rooms, Stage, Widths, packed};
use bedplate_units::Bytes;

use crate::adapter;
use crate::pipeline::in_flight;
use crate::ranks::RunRanks;
use crate::store::{splits_gradients, splits_weights};
use crate::trainer::micro_batches;
use crate::{AdapterConfig, Precision, TrainConfig, TrainError};

/// Bytes of a run by purpose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Needs {
    /// Weights, gradients and moments.
    pub state: Bytes,
    /// Everything that grows with the tokens of a micro-batch.
    pub activations: Bytes,
    /// Panels of the largest product; code, stacks of threads, batches that wait.
    pub program: Bytes,
    /// Of the state of another rank, where ranks survive each other.
    pub copies: Bytes,
}

const PROGRAM: f64 = 32e6;
/// Bytes for each number that a rank learns, by the steps between copies: the master weight and both moments of the rank before with
/// their gradient; or twice without it, and the rank's own as it was.
fn copy_bytes(every: u64) -> f64 {
    match every {
        0 => 0.0,
        1 => 16.0,
        _ => 36.0,
    }
}

/// Numbers that a rank has.
#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    /// In the buffers of all its blocks.
    weights: f64,
    /// What it owns of them: all, or its share.
    owned: f64,
    /// Split blocks that are here at once.
    gathered: f64,
    largest_block: f64,
    /// Of all adapters, and of the `B` of the largest.
    adapters: f64,
    largest_adapter: f64,
}

impl Sizes {
    fn of(network: &Network, config: &TrainConfig, ranks: &RunRanks) -> Result<Self, TrainError> {
        let (adapters, largest_adapter) = match &config.adapter {
            Some(given) => adapter::numbers(network, given)?,
            None => (0, 0),
        };
        let stage = ranks.stage();
        let chunks = (0..stage.chunks).flat_map(|chunk| stage.blocks(chunk, network.layer_count()));
        let blocks: Vec<&Block> = chunks.map(|block| &network.blocks()[block]).collect();
        let owned = |block: &&Block| {
            let share = |section: &Section| section.range.len() / ranks.sharers(section.is_expert).share().1;
            block.sections.iter().map(share).sum::<usize>() as f64
        };
        let mut lengths: Vec<usize> = blocks.iter().map(|block| block.len).collect();
        lengths.sort_unstable();
        // One is computed while the next one of its size comes.
        let gathered = lengths.chunk_by(|a, b| a == b).map(|same| same[0] * same.len().min(2)).sum::<usize>();
        Ok(Self {
            weights: lengths.iter().sum::<usize>() as f64,
            owned: blocks.iter().map(owned).sum(),
            gathered: gathered as f64,
            largest_block: lengths.last().map_or(0.0, |len| *len as f64),
            adapters: adapters as f64,
            largest_adapter: largest_adapter as f64,
        })
    }

    /// Bytes of weights, gradients and moments.
    fn state(&self, config: &TrainConfig, sharding: Sharding) -> f64 {
        let (element, master) = match config.training.precision {
            Precision::F32 => (4.0, 0.0),
            Precision::Bf16 | Precision::Fp8 => (2.0, 4.0),
        };
        let working = match splits_weights(sharding) {
            true => element * (self.owned + self.gathered),
            false => element * self.weights,
        };
        if config.adapter.is_some() {
            // The frozen weights, and all that is trained with its gradient and moments.
            let frozen = if splits_weights(sharding) { 0.0 } else { element * self.weights };
            let trained = 16.0 * self.adapters + 4.0 * (self.largest_block + self.largest_adapter);
            return working + frozen + trained;
        }
        let gradients = match splits_gradients(sharding) {
            // What is added up arrives in parts beside the sums.
            true => 4.0 * (self.owned + self.gathered * (1.0 + self.owned / self.weights.max(1.0))),
            false => 4.0 * self.weights,
        };
        working + gradients + (master + 8.0) * self.owned
    }
}

impl Needs {
    /// Of a rank's part of a network, to the byte where it is all of it.
    pub fn of(
        network: &Network,
        config: &TrainConfig,
        ranks: &RunRanks,
        logits: LogitsAtOnce,
    ) -> Result<Self, TrainError> {
        let sizes = Sizes::of(network, config, ranks)?;
        let shape = WorkspaceShape {
            sequences: config.training.micro_batch as usize,
            sequence: config.data.sequence,
            recompute: config.training.recompute,
            has_gradients: true,
        };
        network.check_shape(&shape)?;
        let stage = ranks.stage();
        let passes = stage.passes(micro_batches(config, ranks));
        let workspace = |chunk: usize| {
            let blocks = stage.blocks(chunk, network.layer_count());
            let in_flight = in_flight(&passes, chunk);
            match config.training.precision {
                Precision::F32 => {
                    Workspace::<f32>::bytes_of_stage(network, blocks, in_flight, &shape, logits)
                }
                Precision::Bf16 | Precision::Fp8 => {
                    Workspace::<Bf16>::bytes_of_stage(network, blocks, in_flight, &shape, logits)
                }
            }
        };
        let whole = Self::of_shape(&network.architecture().transformer, config, logits);
        let activations = match ranks.count() {
            1 => whole.activations,
            _ => Bytes::new((0..stage.chunks).map(workspace).sum::<usize>() as f64),
        };
        let state = Bytes::new(sizes.state(config, ranks.layout().sharding));
        let learned = if config.adapter.is_some() { sizes.adapters } else { sizes.owned };
        let each = if ranks.keeps_copies() { copy_bytes(config.training.copy_every) } else { 0.0 };
        Ok(Self { state, activations, copies: Bytes::new(each * learned), ..whole })
    }

    /// Of a model of which there is only the shape: slightly less than it will be.
    fn of_shape(model: &Transformer, config: &TrainConfig, logits: LogitsAtOnce) -> Self {
        let weights = model.parameters().total as f64;
        let sizes = Sizes { weights, owned: weights, ..Sizes::default() };
        let element = if config.training.precision == Precision::F32 { 4.0 } else { 2.0 };
        let Workspaces { buffers, panels } = workspaces(model, config, element, logits);
        Self {
            state: Bytes::new(sizes.state(config, Sharding::None)),
            activations: Bytes::new(buffers),
            program: Bytes::new(PROGRAM + panels + batches(config)),
            copies: Bytes::ZERO,
        }
    }

    pub fn total(&self) -> Bytes {
        self.state + self.activations + self.program + self.copies
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, activations, program, .. } = self;
        write!(
            f,
            "{} of memory: {state} for weights, gradients and moments, {activations} for activations, {program} for the \
             program, its products and batches",
            self.total()
        )?;
        match self.copies.is_zero() {
            true => Ok(()),
            false => write!(f, ", {} for copies that survive lost ranks", self.copies),
        }
    }
}

/// Bytes of the samples that are read ahead: those of a step and of the next micro-batch, each token with its target, position,
/// beginning and mark.
fn batches(config: &TrainConfig) -> f64 {
    const TOKEN: f64 = 20.0;
    let training = &config.training;
    TOKEN * (training.batch as f64 + training.micro_batch as f64) * config.data.sequence as f64
}

/// Bytes of buffers, and of the panels that products use in turn.
struct Workspaces {
    buffers: f64,
    panels: f64,
}

/// Those of steps and of samples.
fn workspaces(model: &Transformer, config: &TrainConfig, element: f64, logits: LogitsAtOnce) -> Workspaces {
    let layers: Vec<Widths> = model.layers().map(|layer| Widths::of(model, layer)).collect();
    let mut all = workspace(model, config, &layers, element, logits);
    if !config.evaluation.prompt.is_empty() {
        let tokens = (model.max_context as usize).min(config.data.sequence + config.evaluation.sample_tokens);
        all.buffers += crate::written::bytes(model, tokens, element);
    }
    all
}

/// Sizes that no machine has are estimated from below: counted exactly they would overflow.
fn workspace(
    model: &Transformer,
    config: &TrainConfig,
    layers: &[Widths],
    element: f64,
    logits: LogitsAtOnce,
) -> Workspaces {
    const COUNTABLE: f64 = 1e17;
    let rows = config.training.micro_batch as f64 * config.data.sequence as f64;
    let widest = layers.iter().map(widest).fold(model.vocab as f64, f64::max);
    if rows * widest * layers.len() as f64 > COUNTABLE {
        return Workspaces {
            buffers: element * rows * model.hidden as f64 * layers.len() as f64,
            panels: 0.0,
        };
    }
    let stage = Stage {
        hidden: model.hidden as usize,
        vocab: model.vocab as usize,
        layers,
        model_layers: layers.len(),
        reaches: model.reaches().len(),
        rows: rows as usize,
        in_flight: 1,
        recompute: config.training.recompute,
        has_gradients: true,
        has_embedding: true,
        has_head: true,
        logits,
        ranks: workspace::Ranks::ONE,
    };
    let total = Cell::new(0.0);
    let add = |bytes: f64| -> usize {
        total.set(total.get() + bytes);
        0
    };
    let wide = |len: usize| add(4.0 * len as f64);
    let make = Make::<usize> { element: &|len| add(element * len as f64), wide: &wide, index: &wide };
    drop(Rooms::new(&make, &stage));
    Workspaces { buffers: total.get(), panels: packed(&stage, element) }
}

/// At least the width of each buffer of a layer.
fn widest(widths: &Widths) -> f64 {
    let Widths { hidden, qkv, gate_up, choices, experts, expert, .. } = *widths;
    let (choices, expert) = (choices as f64, expert as f64);
    hidden as f64 + qkv as f64 + gate_up as f64 + experts as f64 + choices * (hidden as f64 + 2.0 * expert)
}

/// Refuses a run that is too large for the memory that is free, judged by the shape of its model alone. Of a run on several ranks
/// only what it needs in all is known yet.
pub(crate) fn check_shape(
    model: &Transformer,
    config: &TrainConfig,
    ranks: &RunRanks,
    free: Option<FreeMemory>,
    logits: LogitsAtOnce,
) -> Result<(), TrainError> {
    if ranks.count() > 1 {
        return Ok(());
    }
    let needs = |config: &TrainConfig| Needs::of_shape(model, config, logits);
    refuse_too_large(needs(config), free, || nearest_fit(config, free, &needs))
}

/// The same to the byte.
pub(crate) fn check(
    network: &Network,
    config: &TrainConfig,
    ranks: &RunRanks,
    free: Option<FreeMemory>,
    logits: LogitsAtOnce,
) -> Result<(), TrainError> {
    let model = &network.architecture().transformer;
    let others = |config: &TrainConfig| Needs::of_shape(model, config, logits);
    let nearest = || if ranks.count() == 1 { nearest_fit(config, free, &others) } else { None };
    refuse_too_large(Needs::of(network, config, ranks, logits)?, free, nearest)
}

fn refuse_too_large(
    needs: Needs,
    free: Option<FreeMemory>,
    nearest: impl FnOnce() -> Option<String>,
) -> Result<(), TrainError> {
    match free {
        Some(free) if needs.total() > free.free => {
            Err(TrainError::TooLarge { needs: Box::new(needs), free, fits: nearest() })
        }
        _ => Ok(()),
    }
}

/// The first of some changes, those first that change least, with which a run fits: as options of the command line.
fn nearest_fit(
    config: &TrainConfig,
    free: Option<FreeMemory>,
    needs: &dyn Fn(&TrainConfig) -> Needs,
) -> Option<String> {
    let free = free?.free;
    let fits = candidates(config).into_iter().find(|other| needs(other).total() <= free)?;
    Some(format!("{} ({} in all)", difference(config, &fits), needs(&fits).total()))
}

/// Other configurations: first those with the same loss curve, then lower precision, shorter sequences, and adapters.
fn candidates(config: &TrainConfig) -> Vec<TrainConfig> {
    let mut found = with_smaller_steps(config);
    let mut rounded = config.clone();
    if rounded.training.precision == Precision::F32 {
        rounded.training.precision = Precision::Bf16;
    }
    found.extend(with_smaller_steps(&rounded));
    let mut smallest = rounded;
    smallest.training.micro_batch = 1;
    smallest.training.recompute = Recompute::Full;
    found.extend(with_shorter_sequences(&smallest));
    if config.adapter.is_none() {
        let mut adapted = config.clone();
        adapted.adapter = Some(AdapterConfig::usual());
        found.extend(with_smaller_steps(&adapted));
        smallest.adapter = adapted.adapter;
        found.push(smallest.clone());
        found.extend(with_shorter_sequences(&smallest));
    }
    found
}

/// The configuration itself, smaller micro-batches, and each of them with more recomputation.
fn with_smaller_steps(config: &TrainConfig) -> Vec<TrainConfig> {
    let mut found = Vec::new();
    let least = config.training.recompute as u8;
    for recompute in [Recompute::None, Recompute::Cheap, Recompute::Full] {
        let mut micro_batch = config.training.micro_batch;
        while recompute as u8 >= least && micro_batch > 0 {
            if config.training.batch.is_multiple_of(micro_batch) {
                let mut other = config.clone();
                (other.training.recompute, other.training.micro_batch) = (recompute, micro_batch);
                found.push(other);
            }
            micro_batch /= 2;
        }
    }
    found
}

fn with_shorter_sequences(config: &TrainConfig) -> Vec<TrainConfig> {
    const SHORTEST: usize = 32;
    let lengths = std::iter::successors(Some(config.data.sequence / 2), |length| Some(length / 2));
    lengths
        .take_while(|length| *length >= SHORTEST)
        .map(|sequence| {
            let mut other = config.clone();
            other.data.sequence = sequence;
            other
        })
        .collect()
}

fn difference(config: &TrainConfig, other: &TrainConfig) -> String {
    let (is, was) = (&other.training, &config.training);
    let recompute = match is.recompute {
        Recompute::None => "none",
        Recompute::Cheap => "cheap",
        Recompute::Full => "full",
    };
    let mut set = Vec::new();
    let mut change = |is_changed: bool, text: String| set.extend(is_changed.then(|| format!("--set {text}")));
    change(is.micro_batch != was.micro_batch, format!("training.micro_batch={}", is.micro_batch));
    change(is.recompute != was.recompute, format!("training.recompute={recompute}"));
    change(is.precision != was.precision, format!("training.precision={}", is.precision.name()));
    let sequence = other.data.sequence;
    change(sequence != config.data.sequence, format!("data.sequence={sequence}"));
    if let Some(adapter) = other.adapter.as_ref().filter(|_| config.adapter.is_none()) {
        change(true, format!("adapter.rank={}", adapter.rank));
    }
    set.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_diag::{Diagnostic, Source, render_text};
    use bedplate_kernels::{Bf16, Device};
    use bedplate_network::Architecture;

    use crate::{Trained, Trainer};

    const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 128, "intermediate_size": 352, "vocab_size": 1024,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}"#;
    const MIXTRAL: &str = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
        "num_experts_per_tok": 2, "max_position_embeddings": 128}"#;
    const LARGEST_LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248,
        "vocab_size": 128256, "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8,
        "max_position_embeddings": 131072}"#;

    fn architecture(model: &str) -> Architecture {
        Architecture::from_config(Source::new("config.json", model)).unwrap()
    }

    fn config() -> TrainConfig {
        let mut config = TrainConfig::new("config.json", "corpus");
        config.data.sequence = 96;
        config.training.micro_batch = 4;
        config
    }

    fn check_allocated<E: Trained>(model: &str, config: &TrainConfig) {
        let device = Device::cpu(1);
        let network = Network::new(&device, architecture(model), 96).unwrap();
        let needs = Needs::of(&network, config, &RunRanks::alone(), LogitsAtOnce::Cached).unwrap();
        let trainer = Trainer::<E>::new(network, device, config.clone()).unwrap();
        assert_eq!(trainer.memory(), needs.state + needs.activations, "{model} {config:?}");
    }

    #[test]
    fn what_is_needed_is_what_is_allocated() {
        for model in [LLAMA, MIXTRAL] {
            for recompute in [Recompute::None, Recompute::Cheap, Recompute::Full] {
                let mut config = config();
                config.training.recompute = recompute;
                check_allocated::<f32>(model, &config);
                config.adapter =
                    Some(AdapterConfig { targets: vec!["q_proj".into()], ..AdapterConfig::usual() });
                check_allocated::<f32>(model, &config);
                config.training.precision = Precision::Bf16;
                check_allocated::<Bf16>(model, &config);
                config.adapter = None;
                check_allocated::<Bf16>(model, &config);
            }
        }
    }

    fn check_small(
        model: &Transformer,
        config: &TrainConfig,
        free: Option<FreeMemory>,
    ) -> Result<(), TrainError> {
        check_shape(model, config, &RunRanks::alone(), free, LogitsAtOnce::Cached)
    }

    fn refusal(model: &str, config: &TrainConfig, free: f64) -> String {
        let model = architecture(model).transformer;
        let free = FreeMemory::of_host(Bytes::new(free));
        render_text(&check_small(&model, config, Some(free)).unwrap_err())
    }

    /// A refusal is made from the shape alone: nothing of the model is allocated.
    #[test]
    fn a_model_of_405_billion_parameters_is_refused_with_numbers() {
        let text = refusal(LARGEST_LLAMA, &config(), 64e9);
        assert!(text.contains("6.494 TB for weights, gradients and moments"), "{text}");
        assert!(text.contains("64 GB is free") && text.contains("no setting"), "{text}");
        let needs =
            Needs::of_shape(&architecture(LARGEST_LLAMA).transformer, &config(), LogitsAtOnce::Cached);
        assert!(
            text.contains(&format!("{} for the program, its products and batches", needs.program)),
            "{text}"
        );
        let free = FreeMemory::of_host(Bytes::new(64e9));
        let error = check_small(&architecture(LARGEST_LLAMA).transformer, &config(), Some(free));
        assert_eq!(error.unwrap_err().page().code, "train/too-large");
    }

    #[test]
    fn sizes_beyond_counting_are_refused_too() {
        let mut config = config();
        config.data.sequence = usize::MAX / 2;
        config.training.micro_batch = 1 << 40;
        assert!(refusal(LLAMA, &config, 64e9).contains("train/too-large"));
    }

    #[test]
    fn the_nearest_setting_that_fits_is_named() {
        let model = architecture(LLAMA).transformer;
        let config = config();
        let total = |change: &dyn Fn(&mut TrainConfig)| {
            let mut other = config.clone();
            change(&mut other);
            Needs::of_shape(&model, &other, LogitsAtOnce::Cached).total().get()
        };
        let said = |free: f64| refusal(LLAMA, &config, free);
        let halved = said(total(&|config| config.training.micro_batch = 2));
        assert!(halved.contains("--set training.micro_batch=2 ("), "{halved}");
        let recomputed = said(total(&|config| {
            config.training.micro_batch = 1;
            config.training.recompute = Recompute::Full;
        }));
        assert!(
            recomputed.contains("--set training.micro_batch=1 --set training.recompute=full ("),
            "{recomputed}"
        );
        let adapted = said(total(&|config| {
            config.training.micro_batch = 2;
            config.adapter = Some(AdapterConfig::usual());
        }));
        assert!(adapted.contains("--set adapter.rank=8"), "{adapted}");
        assert!(
            check_small(&model, &config, None).is_ok()
                && check_small(&model, &config, Some(FreeMemory::of_host(Bytes::new(1e12)))).is_ok()
        );
    }
}
