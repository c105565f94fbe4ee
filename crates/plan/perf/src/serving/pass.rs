//! One pass of a replica through all layers, folded into seconds per token, per key and per sequence.
//!
//! Weight reads and arithmetic combine as a smooth maximum; attention, kernel latency, collectives and host
//! work add up, as kernels of one stream do. With pipeline stages each processes one micro-batch of the
//! step, so a step takes one pass with a share of its tokens.

use bedplate_transformer::{Attention, Dense, Layer, ParameterPart, Precision, Reach};

use super::adapters::LowRank;
use super::experts::{Touched, largest_of};
use super::formats::Arithmetic;
use super::wires::Wires;
use super::{Deployment, Engine, HostWork, ServingConstants, StepShape};
use crate::kernel::rounded_max;
use crate::{Generation, Hardware};

/// The coefficients of a step's time, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepPass {
    /// Micro-batches into which the stages divide a step.
    stages: f64,
    /// Attention data ranks.
    ranks: f64,
    /// Tokens that a decoding sequence puts into a step: one and its drafts.
    tokens_per_decode: f64,
    dense_read: f64,
    dense_per_token: f64,
    head_per_token: f64,
    experts: Option<Experts>,
    adapters: Option<LowRank>,
    /// Encoding of images, per prompt token.
    encoding: f64,
    /// Per cached token of decoding sequences, in layers without a window.
    key: f64,
    /// Layers that read at most a fixed number of tokens.
    windows: Vec<Window>,
    state_per_decode: f64,
    pair: f64,
    ramp: f64,
    latency: f64,
    /// What the host takes to launch the kernels of a step that holds prompts, where the engine has not captured it: the GPU may wait for it.
    launches: f64,
    /// Seconds of one draft, without experts and collectives.
    draft: f64,
    layers: f64,
    pub(crate) wires: Wires,
    host_per_sequence: f64,
    /// What an engine never hides of a step's host work.
    executor: f64,
    host_per_step: f64,
    /// Measured over predicted, where a site has measured it.
    adjustment: f64,
}

#[derive(Debug, Clone, PartialEq)]
struct Experts {
    read: f64,
    touched: Touched,
    per_token: f64,
    /// Uneven load of ranks: seconds per square root of tokens.
    uneven: f64,
    /// Seconds that padding every expert to whole tiles adds to the arithmetic.
    padding: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    tokens: f64,
    key: f64,
    pair: f64,
}

/// The seconds of one step by cause.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Seconds {
    /// Reads and arithmetic of weights: what each takes alone, and both together.
    pub(crate) read: f64,
    pub(crate) arithmetic: f64,
    pub(crate) products: f64,
    pub(crate) expert_read: f64,
    pub(crate) expert_arithmetic: f64,
    pub(crate) expert_products: f64,
    /// With the encoding of images.
    pub(crate) prefill_attention: f64,
    pub(crate) decode_attention: f64,
    pub(crate) latency: f64,
    pub(crate) scale_up: f64,
    pub(crate) scale_out: f64,
    pub(crate) scale_up_hidden: f64,
    pub(crate) scale_out_hidden: f64,
    pub(crate) host: f64,
    pub(crate) host_hidden: f64,
}

impl Seconds {
    fn times(mut self, factor: f64) -> Self {
        for seconds in [
            &mut self.read,
            &mut self.arithmetic,
            &mut self.products,
            &mut self.expert_read,
            &mut self.expert_arithmetic,
            &mut self.expert_products,
            &mut self.prefill_attention,
            &mut self.decode_attention,
            &mut self.latency,
            &mut self.scale_up,
            &mut self.scale_out,
            &mut self.scale_up_hidden,
            &mut self.scale_out_hidden,
            &mut self.host,
            &mut self.host_hidden,
        ] {
            *seconds *= factor;
        }
        self
    }

    pub(crate) fn total(&self) -> f64 {
        self.products
            + self.expert_products
            + self.prefill_attention
            + self.decode_attention
            + self.latency
            + self.scale_up
            + self.scale_out
            + self.host
    }
}

/// Seconds of a decode-only step at a fixed number of sequences: `base + slope * context`, for contexts up
/// to `until` tokens in total, where a window fills up and the slope falls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeLine {
    pub base: f64,
    pub slope: f64,
    pub until: u64,
}

impl DecodeLine {
    pub fn seconds(&self, context: u64) -> f64 {
        self.base + self.slope * context as f64
    }
}

impl StepPass {
    pub(crate) fn new(deployment: &Deployment, constants: &ServingConstants) -> Self {
        let Deployment { model, hardware, parallel, .. } = deployment;
        let rates = Rates::new(hardware, constants);
        let stage = f64::from(parallel.stage_gpus());
        let tensor = f64::from(parallel.tensor);
        let layers = model.transformer.layer_count() as f64;
        let (mut dense, mut head) = (Work::default(), Work::default());
        for (part, parameters) in parameters(deployment) {
            let work = rates.work(part, parameters, deployment);
            match part {
                ParameterPart::Experts | ParameterPart::Embedding => {}
                ParameterPart::Head => head.add(&work),
                _ => dense.add(&work),
            }
        }
        let latency = latency(deployment, constants);
        let tokens_per_decode = 1.0 + deployment.speculation.map_or(0.0, |s| f64::from(s.drafts));
        let read = (dense.read + head.read) / tensor;
        let draft = latency / layers + (dense.read / layers + head.read) / tensor;
        let attention = AttentionCosts::new(deployment, &rates, tokens_per_decode);
        let (host_per_sequence, executor) = match deployment.engine {
            Engine::TensorRtLlm => (constants.sequence_host_trtllm, constants.step_host_trtllm),
            _ => (constants.sequence_host, 0.0),
        };
        // Negative while hidden behind the GPU's work.
        let host_per_step = match deployment.host {
            HostWork::Overlapped => -constants.serial_host,
            HostWork::Serial => constants.serial_host,
        };
        Self {
            stages: f64::from(parallel.pipeline),
            ranks: f64::from(parallel.attention_data),
            tokens_per_decode,
            dense_read: read,
            dense_per_token: dense.seconds_per_token / stage,
            head_per_token: head.seconds_per_token / stage,
            experts: Experts::new(deployment, constants, &rates),
            encoding: super::images::seconds_per_token(deployment, constants, rates.bf16, rates.attention),
            adapters: LowRank::new(deployment, constants, rates.dense_read, rates.bf16),
            key: attention.key,
            windows: attention.windows,
            state_per_decode: attention.state_per_decode,
            pair: attention.pair,
            ramp: constants.attention_ramp,
            latency,
            launches: match deployment.settings.captures_prompts {
                true => 0.0,
                false => layers * constants.eager_latency,
            },
            draft,
            layers,
            wires: Wires::new(deployment, constants),
            host_per_sequence,
            executor,
            host_per_step,
            adjustment: deployment.adjustment.step,
        }
    }

    pub(crate) fn seconds(&self, shape: &StepShape) -> Seconds {
        self.seconds_with(shape, self.encoding(shape))
    }

    /// A step whose prompts pass the stages one after the other: with fewer prompts than stages they take longer by that factor than if
    /// all stages shared them. Images are encoded by the first stage alone, once.
    pub(crate) fn in_sequence(&self, shape: &StepShape) -> Seconds {
        let stages = self.stages as u64;
        let sharing = u64::from(shape.prefill_sequences).clamp(1, stages);
        let longer = StepShape {
            prefill_tokens: shape.prefill_tokens * stages / sharing,
            prefill_pairs: shape.prefill_pairs.saturating_mul(stages) / sharing,
            ..*shape
        };
        self.seconds_with(&longer, self.encoding(shape))
    }

    fn encoding(&self, shape: &StepShape) -> f64 {
        self.encoding * shape.prefill_tokens as f64 * self.unshared(shape) / self.ranks
    }

    fn seconds_with(&self, shape: &StepShape, encoding: f64) -> Seconds {
        let decodes = f64::from(shape.decodes) / self.stages;
        let prefill = shape.prefill_tokens as f64 / self.stages;
        let tokens = decodes * self.tokens_per_decode + prefill;
        let sampled = decodes * self.tokens_per_decode + f64::from(shape.prefill_sequences) / self.stages;
        let is_prefill = shape.prefill_tokens > 0;
        let unshared = self.unshared(shape);
        let ranked = tokens + prefill * (unshared - 1.0);
        let arithmetic = ranked * self.dense_per_token + sampled * self.head_per_token;
        let experts = self.experts.as_ref().map_or(Pair::default(), |experts| experts.seconds(tokens));
        let sequences = decodes + f64::from(shape.prefill_sequences) / self.stages;
        let adapters = self.adapters.as_ref();
        let read = self.dense_read + adapters.map_or(0.0, |adapters| adapters.read(sequences));
        let arithmetic = arithmetic + adapters.map_or(0.0, |adapters| adapters.arithmetic(ranked));
        let low_rank = adapters.map_or(0.0, |adapters| adapters.latency);
        let drafting = if shape.decodes > 0 { self.drafting(decodes) } else { 0.0 };
        let host = self.host_per_sequence * f64::from(shape.decodes) * self.tokens_per_decode / self.ranks;
        let mut seconds = Seconds {
            read,
            arithmetic,
            products: rounded_max(read, arithmetic),
            expert_read: experts.read,
            expert_arithmetic: experts.arithmetic,
            expert_products: rounded_max(experts.read, experts.arithmetic),
            prefill_attention: unshared * self.prefill_attention(shape) + encoding,
            decode_attention: self.decode_attention(decodes, shape.decode_context as f64 / self.stages),
            latency: self.latency + low_rank + drafting,
            host: host + self.executor + self.host_per_step.max(0.0),
            host_hidden: (-self.host_per_step).max(0.0),
            ..Seconds::default()
        };
        self.add_wires(&mut seconds, tokens, prefill);
        if is_prefill {
            let total = seconds.total();
            seconds.latency += rounded_max(total, self.launches) - total;
        }
        seconds.times(self.adjustment)
    }

    /// Adds the collectives; those of prompts that are exchanged beside another batch are hidden behind its computing.
    fn add_wires(&self, seconds: &mut Seconds, tokens: f64, prefill: f64) {
        let (up, out) = self.wires.seconds(tokens);
        let (beside_up, beside_out) = self.wires.beside_prompts(tokens);
        let computing = seconds.products + seconds.expert_products + seconds.prefill_attention;
        let exchanging = (beside_up + beside_out) * prefill / tokens.max(1.0);
        let hidden =
            if exchanging > 0.0 { (computing / exchanging).min(1.0) * prefill / tokens } else { 0.0 };
        seconds.scale_up_hidden = hidden * beside_up;
        seconds.scale_out_hidden = hidden * beside_out;
        seconds.scale_up = up - seconds.scale_up_hidden;
        seconds.scale_out = out - seconds.scale_out_hidden;
    }

    /// A prompt is attended by one data rank: with fewer prompts than ranks, the factor by which they take longer
    /// than if all ranks shared them.
    fn unshared(&self, shape: &StepShape) -> f64 {
        self.ranks / self.ranks.min(f64::from(shape.prefill_sequences.max(1)))
    }

    /// Each draft passes one more layer, like the model's, and the head.
    fn drafting(&self, decodes: f64) -> f64 {
        if self.tokens_per_decode <= 1.0 {
            return 0.0;
        }
        let experts = self.experts.as_ref().map_or(Pair::default(), |experts| experts.seconds(decodes));
        let (up, out) = self.wires.seconds(decodes);
        let layers = rounded_max(experts.read, experts.arithmetic) + up + out;
        (self.tokens_per_decode - 1.0) * (self.draft + layers / self.layers)
    }

    fn prefill_attention(&self, shape: &StepShape) -> f64 {
        if shape.prefill_tokens == 0 {
            return 0.0;
        }
        let tokens = shape.prefill_tokens as f64 / self.stages;
        let pairs = shape.prefill_pairs as f64 / self.stages;
        let full = self.pair * (pairs + self.ramp * tokens);
        let windowed =
            |window: &Window| window.pair * (pairs.min(tokens * window.tokens) + self.ramp * tokens);
        full + self.windows.iter().map(windowed).sum::<f64>()
    }

    fn decode_attention(&self, decodes: f64, context: f64) -> f64 {
        let windowed = |window: &Window| window.key * context.min(decodes * window.tokens);
        self.key * context + decodes * self.state_per_decode + self.windows.iter().map(windowed).sum::<f64>()
    }

    pub(crate) fn decode_line(&self, decodes: u32, context: u64) -> DecodeLine {
        let sequences = f64::from(decodes);
        let mut slope = self.key;
        let mut until = f64::INFINITY;
        for window in &self.windows {
            let full_at = sequences * window.tokens;
            if (context as f64) < full_at {
                slope += window.key;
                until = until.min(full_at);
            }
        }
        let slope = slope / self.stages * self.adjustment;
        let at = self.seconds(&StepShape::decode(decodes, context)).total();
        DecodeLine { base: at - slope * context as f64, slope, until: until as u64 }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Pair {
    read: f64,
    arithmetic: f64,
}

impl Experts {
    fn new(deployment: &Deployment, constants: &ServingConstants, rates: &Rates) -> Option<Self> {
        let model = &deployment.model.transformer;
        let mixture = *model.runs.iter().find_map(|run| run.layer.mlp.mixture())?;
        let stage = f64::from(deployment.parallel.stage_gpus());
        let ranks = f64::from(deployment.parallel.expert);
        let parameters = model.parameters().of(ParameterPart::Experts);
        let (experts, per_token) = (mixture.experts as f64, mixture.per_token as f64);
        let places = deployment.parallel.expert_places(mixture.experts) as f64;
        let bytes = parameters as f64 * deployment.weights.experts.bytes_per_value();
        let inner = mixture.expert.width as f64 * ranks / stage;
        let shallow = shallow(&mixture.expert, constants.expert_depth, model.hidden as f64, inner);
        let seconds =
            2.0 * parameters as f64 * per_token / experts / rates.experts(deployment) / stage * shallow;
        // Visits to a rank vary by the square root of their mean.
        let uneven = largest_of(ranks) * (ranks / per_token).sqrt();
        Some(Self {
            read: bytes * places / experts / stage / rates.expert_read,
            touched: Touched::new(experts, places, per_token, constants.expert_skew, ranks),
            per_token: seconds,
            uneven: seconds * uneven,
            padding: seconds * constants.expert_tile * places / per_token,
        })
    }

    fn seconds(&self, tokens: f64) -> Pair {
        let touched = self.touched.share(tokens);
        let arithmetic = self.per_token * tokens + self.uneven * tokens.sqrt() + self.padding * touched;
        Pair { read: self.read * touched, arithmetic }
    }
}

/// How much longer the products of an expert take for their depth: those into it sum over the width of the model, the one out of
/// it over as much of its own width as a rank has.
fn shallow(expert: &Dense, half_rate: f64, hidden: f64, inner: f64) -> f64 {
    let ups = if expert.is_gated { 2.0 } else { 1.0 };
    (ups * (1.0 + half_rate / hidden) + (1.0 + half_rate / inner)) / (ups + 1.0)
}

/// Parameters by part, those of linear attention included.
fn parameters(deployment: &Deployment) -> impl Iterator<Item = (ParameterPart, f64)> {
    let model = &deployment.model;
    let more = model.linear.map_or(0, |linear| linear.layers * linear.more_parameters) as f64;
    let counted = model.transformer.parameters();
    let is_tied = model.transformer.has_tied_embeddings;
    ParameterPart::ALL.into_iter().map(move |part| {
        let count = match part {
            ParameterPart::Head if is_tied => counted.of(ParameterPart::Embedding),
            part => counted.of(part),
        };
        (part, count as f64 + if part == ParameterPart::Attention { more } else { 0.0 })
    })
}

fn latency(deployment: &Deployment, constants: &ServingConstants) -> f64 {
    let model = &deployment.model;
    let matured = (-constants.maturity * deployment.maturity_years()).exp();
    let (every, block) = match deployment.engine {
        Engine::TensorRtLlm => (constants.layer_latency_trtllm, constants.block_latency_trtllm),
        _ => (constants.layer_latency, constants.block_latency),
    };
    let is_fused = deployment.engine == Engine::TensorRtLlm || is_blackwell(&deployment.hardware);
    let mixture = if is_fused { constants.mixture_latency_fused } else { constants.mixture_latency };
    let of = |layer: &Layer| {
        let mixture = if layer.mlp.mixture().is_some() { mixture } else { 0.0 };
        let is_latent = matches!(layer.attention, Attention::Latent(_));
        let latent = if is_latent { constants.latent_latency } else { 0.0 };
        let sparse = if model.sparse_keys.is_some() { constants.sparse_latency } else { 0.0 };
        let is_linear = matches!(layer.attention, Attention::Recurrent(_))
            || model.linear.is_some() && layer.reach == Reach::Window(1);
        let linear = if is_linear { constants.linear_latency } else { 0.0 };
        let block = if deployment.weights.casts_blocks(&model.transformer) { block } else { 0.0 };
        let seconds = every + mixture + latent + sparse + linear + block;
        if layer.mlp.mixture().is_some() { seconds * matured } else { seconds }
    };
    model.transformer.runs.iter().map(|run| run.count as f64 * of(&run.layer)).sum()
}

/// Seconds of reading some weights, and of arithmetic per token, as if one GPU held them all.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    read: f64,
    seconds_per_token: f64,
}

impl Work {
    fn add(&mut self, other: &Work) {
        self.read += other.read;
        self.seconds_per_token += other.seconds_per_token;
    }
}

/// The rates that a chip's kernels reach.
struct Rates {
    bf16: f64,
    fp8: f64,
    fp4: f64,
    dense_read: f64,
    fp4_read: f64,
    expert_read: f64,
    expert_rate: f64,
    expert_fp8_rate: f64,
    kv_read: f64,
    attention: f64,
}

impl Rates {
    fn new(hardware: &Hardware, constants: &ServingConstants) -> Self {
        let c = constants;
        let is_blackwell = is_blackwell(hardware);
        let by = |hopper: f64, blackwell: f64| if is_blackwell { blackwell } else { hopper };
        let bf16 =
            if hardware.generation == Generation::Ampere { c.bf16_rate_ampere } else { c.bf16_rate_hopper };
        let bandwidth = hardware.memory_bandwidth;
        Self {
            bf16: hardware.peak_bf16 * by(bf16, c.bf16_rate_blackwell),
            fp8: hardware.peak_fp8 * by(c.fp8_rate_hopper, c.fp8_rate_blackwell),
            fp4: hardware.peak_fp4 * c.fp4_rate_blackwell,
            dense_read: bandwidth * by(c.dense_read_hopper, c.dense_read_blackwell),
            fp4_read: bandwidth * by(c.dense_read_hopper, c.fp4_read_blackwell),
            expert_read: bandwidth * by(c.expert_read_hopper, c.expert_read_blackwell),
            expert_rate: by(c.expert_rate_hopper, c.expert_rate_blackwell),
            expert_fp8_rate: by(c.expert_fp8_rate_hopper, c.expert_fp8_rate_blackwell),
            kv_read: bandwidth * c.kv_read,
            attention: hardware.peak_bf16 * by(c.attention_rate_hopper, c.attention_rate_blackwell),
        }
    }

    fn of(&self, precision: Precision, hardware: &Hardware) -> f64 {
        match Arithmetic::of(precision, hardware) {
            Arithmetic::Bf16 => self.bf16,
            Arithmetic::Fp8 => self.fp8,
            Arithmetic::Fp4 => self.fp4,
        }
    }

    /// FLOP/s of grouped products that are large and deep.
    fn experts(&self, deployment: &Deployment) -> f64 {
        let weights = deployment.weights.experts;
        let arithmetic = self.of(weights, &deployment.hardware);
        arithmetic * if weights == Precision::Fp8 { self.expert_fp8_rate } else { self.expert_rate }
    }

    fn work(&self, part: ParameterPart, parameters: f64, deployment: &Deployment) -> Work {
        let precision = deployment.weights.of(part);
        let rate = self.of(precision, &deployment.hardware);
        let read = if precision == Precision::Nvfp4 { self.fp4_read } else { self.dense_read };
        let bytes = parameters * precision.bytes_per_value();
        Work { read: bytes / read, seconds_per_token: 2.0 * parameters / rate }
    }
}

fn is_blackwell(hardware: &Hardware) -> bool {
    matches!(hardware.generation, Generation::Blackwell | Generation::BlackwellUltra)
}

/// Bytes per token that a DSA indexer keeps in a layer: 128 values of fp8 and a scale.
const INDEXER_BYTES: f64 = 132.0;

struct AttentionCosts {
    key: f64,
    pair: f64,
    windows: Vec<Window>,
    state_per_decode: f64,
}

impl AttentionCosts {
    fn new(deployment: &Deployment, rates: &Rates, queries: f64) -> Self {
        let model = &deployment.model;
        let ranks = f64::from(deployment.parallel.attention_data);
        let tensor = f64::from(deployment.parallel.tensor);
        let mut costs = Self { key: 0.0, pair: 0.0, windows: Vec::new(), state_per_decode: 0.0 };
        for run in model.transformer.layer_kinds() {
            let count = run.count as f64;
            let attention = &run.layer.attention;
            let bytes = super::memory::kv_bytes_of_layer(deployment, attention);
            let flops = queries * attention.decode_flops_per_key() / tensor;
            let key = count * (bytes / rates.kv_read).max(flops / rates.attention) / ranks;
            let pair = count * attention.score_flops_per_key() / (tensor * ranks) / rates.attention;
            let bound = match run.layer.reach {
                Reach::Full => model.sparse_keys,
                Reach::Window(size) | Reach::Chunk(size) => Some(size),
            };
            match bound {
                Some(size) => costs.add_window(Window { tokens: size as f64, key, pair }),
                None => (costs.key, costs.pair) = (costs.key + key, costs.pair + pair),
            }
            if model.sparse_keys.is_some() {
                costs.key += count * INDEXER_BYTES / rates.kv_read / ranks;
            }
        }
        if let Some(linear) = model.linear {
            let bytes = 2.0 * linear.layers as f64 * linear.state_bytes / tensor;
            costs.state_per_decode = bytes / rates.kv_read / ranks;
        }
        costs
    }

    fn add_window(&mut self, window: Window) {
        match self.windows.iter_mut().find(|known| known.tokens == window.tokens) {
            Some(known) => (known.key, known.pair) = (known.key + window.key, known.pair + window.pair),
            None => self.windows.push(window),
        }
    }
}
