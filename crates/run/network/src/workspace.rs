//! Everything a micro-batch needs beside weights and gradients, allocated once.
//!
//! What a layer's forward pass leaves for its backward pass is in two halves: `Kept` is costly to make again (products and
//! attention), `Cheap` is norms and activations. How much recomputation is chosen decides which of them every layer has
//! for itself and which all layers share.

use bedplate_kernels::{Buffer, Device, Element};
use bedplate_transformer::{Reach, Transformer};

use crate::Network;
use crate::table::{LayerParts, MixtureParts, MlpParts, Parts};

/// What the backward pass computes again instead of keeping it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recompute {
    #[default]
    None,
    /// Norms and activation functions.
    Selective,
    /// Whole layers; only their inputs are kept.
    Full,
}

/// How many tokens a workspace holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceShape {
    /// Sequences of a micro-batch.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    pub recompute: Recompute,
    /// Without gradients there is one layer's room for all and none for gradients.
    pub has_gradients: bool,
}

impl WorkspaceShape {
    pub fn rows(&self) -> usize {
        self.sequences * self.sequence
    }
}

/// A micro-batch as data gives it; each slice has an entry per row.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    pub tokens: &'a [u32],
    /// What is to be predicted; `u32::MAX` where nothing is.
    pub targets: &'a [u32],
    pub positions: &'a [u32],
    /// The first key of its sequence that a row may see.
    pub first_keys: &'a [u32],
}

/// Buffers for one micro-batch.
pub struct Workspace<E: Element> {
    pub(crate) shape: WorkspaceShape,
    pub(crate) tokens: Buffer<u32>,
    pub(crate) targets: Buffer<u32>,
    pub(crate) positions: Buffer<u32>,
    /// One buffer per distinct reach, in order of first appearance.
    pub(crate) first_keys: Vec<(Reach, Buffer<u32>)>,
    /// The residual stream before each layer, and before the head.
    pub(crate) streams: Vec<Buffer<E>>,
    pub(crate) kept: Vec<Kept<E>>,
    pub(crate) cheap: Vec<Cheap<E>>,
    pub(crate) head: HeadRoom<E>,
    pub(crate) gradients: Option<GradientRoom<E>>,
    pub(crate) losses: Buffer<f32>,
    /// First keys on their way to the device.
    staged: Vec<u32>,
}

pub(crate) struct Kept<E: Element> {
    pub(crate) inverse_attention: Buffer<f32>,
    /// Queries and keys before their norms; empty without such norms.
    pub(crate) unnormed: Buffer<E>,
    pub(crate) head_inverses: [Buffer<f32>; 2],
    pub(crate) qkv: Buffer<E>,
    pub(crate) attended: Buffer<E>,
    pub(crate) log_sums: Buffer<f32>,
    /// The residual stream between attention and MLP.
    pub(crate) middle: Buffer<E>,
    pub(crate) inverse_mlp: Buffer<f32>,
    /// Of a dense MLP or of the shared expert; empty when there is neither.
    pub(crate) gate_up: Buffer<E>,
    pub(crate) mixture: Option<KeptMixture<E>>,
}

pub(crate) struct KeptMixture<E: Element> {
    pub(crate) logits: Buffer<f32>,
    pub(crate) probabilities: Buffer<f32>,
    pub(crate) experts: Buffer<u32>,
    pub(crate) weights: Buffer<f32>,
    pub(crate) order: Buffer<u32>,
    pub(crate) slots: Buffer<u32>,
    pub(crate) offsets: Buffer<u32>,
    pub(crate) gate_up: Buffer<E>,
    pub(crate) outputs: Buffer<E>,
    pub(crate) shared_outputs: Buffer<E>,
    pub(crate) shared_logits: Buffer<f32>,
}

pub(crate) struct Cheap<E: Element> {
    pub(crate) before_attention: Buffer<E>,
    pub(crate) before_mlp: Buffer<E>,
    pub(crate) activated: Buffer<E>,
    /// Tokens in the order of their experts.
    pub(crate) gathered: Buffer<E>,
    pub(crate) expert_activated: Buffer<E>,
}

pub(crate) struct HeadRoom<E: Element> {
    pub(crate) normed: Buffer<E>,
    pub(crate) inverses: Buffer<f32>,
    /// Logits of some rows at a time.
    pub(crate) logits: Buffer<f32>,
}

pub(crate) struct GradientRoom<E: Element> {
    /// Of the residual stream; turned in place from the gradient of a block's output into that of its input.
    pub(crate) stream: Buffer<E>,
    pub(crate) normed: Buffer<E>,
    pub(crate) attended: Buffer<E>,
    pub(crate) qkv: Buffer<E>,
    pub(crate) activated: Buffer<E>,
    pub(crate) gate_up: Buffer<E>,
    pub(crate) mixture: Option<MixtureGradients<E>>,
}

pub(crate) struct MixtureGradients<E: Element> {
    pub(crate) outputs: Buffer<E>,
    pub(crate) activated: Buffer<E>,
    pub(crate) gate_up: Buffer<E>,
    pub(crate) gathered: Buffer<E>,
    pub(crate) weights: Buffer<f32>,
    pub(crate) logits: Buffer<f32>,
    pub(crate) shared_outputs: Buffer<E>,
    pub(crate) shared_logits: Buffer<f32>,
}

/// Logits are made for about this many numbers at a time: 16 MB, which the last-level cache holds.
const LOGITS_AT_ONCE: usize = 4 << 20;

impl<E: Element> Workspace<E> {
    pub fn new(network: &Network, shape: WorkspaceShape) -> Self {
        let model = &network.architecture().transformer;
        let rows = shape.rows();
        let hidden = model.hidden as usize;
        let layers: Vec<&LayerParts> = network.layers().collect();
        let widest = Widths::over(&layers);
        let own = |is_own: bool| if is_own { layers.len() } else { 1 };
        let (own_kept, own_cheap) = match shape.recompute {
            _ if !shape.has_gradients => (false, false),
            Recompute::None => (true, true),
            Recompute::Selective => (true, false),
            Recompute::Full => (false, false),
        };
        let widths_of = |index: usize, is_own: bool| if is_own { Widths::of(layers[index]) } else { widest };
        let streams = if shape.has_gradients { layers.len() + 1 } else { 2 };
        let at_once = (LOGITS_AT_ONCE / model.vocab as usize).clamp(1, rows);
        Self {
            shape,
            tokens: Buffer::zeros(rows),
            targets: Buffer::zeros(rows),
            positions: Buffer::zeros(rows),
            first_keys: reaches(model).into_iter().map(|reach| (reach, Buffer::zeros(rows))).collect(),
            streams: (0..streams).map(|_| Buffer::zeros(rows * hidden)).collect(),
            kept: (0..own(own_kept)).map(|i| Kept::new(rows, hidden, &widths_of(i, own_kept))).collect(),
            cheap: (0..own(own_cheap)).map(|i| Cheap::new(rows, hidden, &widths_of(i, own_cheap))).collect(),
            head: HeadRoom {
                normed: Buffer::zeros(rows * hidden),
                inverses: Buffer::zeros(2 * rows),
                logits: Buffer::zeros(at_once * model.vocab as usize),
            },
            gradients: shape.has_gradients.then(|| GradientRoom::new(rows, hidden, &widest)),
            losses: Buffer::zeros(rows),
            staged: Vec::with_capacity(rows),
        }
    }

    pub fn shape(&self) -> WorkspaceShape {
        self.shape
    }

    /// Puts a micro-batch in place. Panics when it has another number of rows.
    pub fn load(&mut self, device: &Device, batch: Tokens<'_>) {
        device.write(self.tokens.view_mut(), batch.tokens);
        device.write(self.targets.view_mut(), batch.targets);
        device.write(self.positions.view_mut(), batch.positions);
        let sequence = self.shape.sequence;
        for (reach, first_keys) in &mut self.first_keys {
            let window = match reach {
                Reach::Window(size) => (*size).min(sequence as u64) as usize,
                Reach::Full | Reach::Chunk(_) => sequence,
            };
            let first_seen = |row: usize| (row % sequence + 1).saturating_sub(window) as u32;
            self.staged.clear();
            let given = batch.first_keys.iter().enumerate();
            self.staged.extend(given.map(|(row, first)| (*first).max(first_seen(row))));
            device.write(first_keys.view_mut(), &self.staged);
        }
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        let tokens = (3 + self.first_keys.len()) * self.tokens.bytes();
        let streams: usize = self.streams.iter().map(Buffer::bytes).sum();
        let kept: usize = self.kept.iter().map(Kept::bytes).sum();
        let cheap: usize = self.cheap.iter().map(Cheap::bytes).sum();
        let head = self.head.normed.bytes() + self.head.inverses.bytes() + self.head.logits.bytes();
        let gradients = self.gradients.as_ref().map_or(0, GradientRoom::bytes);
        tokens + streams + kept + cheap + head + gradients + self.losses.bytes()
    }

    /// Where the residual stream before a layer lies. Without gradients two buffers take turns.
    pub(crate) fn stream_index(&self, layer: usize) -> usize {
        if self.shape.has_gradients { layer } else { layer % 2 }
    }
}

/// The distinct reaches of a model's layers.
fn reaches(model: &Transformer) -> Vec<Reach> {
    let mut found: Vec<Reach> = Vec::new();
    for run in &model.runs {
        if !found.contains(&run.layer.reach) {
            found.push(run.layer.reach);
        }
    }
    found
}

/// Numbers per row of each buffer of a layer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Widths {
    heads: usize,
    kv_heads: usize,
    qkv: usize,
    unnormed: usize,
    attended: usize,
    gate_up: usize,
    activated: usize,
    choices: usize,
    experts: usize,
    expert_gate_up: usize,
    expert_activated: usize,
    has_shared: bool,
}

impl Widths {
    fn of(layer: &LayerParts) -> Self {
        let attention = &layer.attention;
        let dim = attention.head_dim as usize;
        let (heads, kv_heads) = (attention.heads as usize, attention.kv_heads as usize);
        let plain = Self {
            heads,
            kv_heads,
            qkv: (heads + 2 * kv_heads) * dim,
            unnormed: if layer.head_norms.is_some() { (heads + kv_heads) * dim } else { 0 },
            attended: heads * dim,
            ..Self::default()
        };
        match &layer.mlp {
            MlpParts::Dense(dense) => Self { gate_up: dense.outputs(), activated: dense.width, ..plain },
            MlpParts::Mixture(mixture) => plain.with_mixture(mixture),
        }
    }

    fn with_mixture(self, mixture: &MixtureParts) -> Self {
        let shared = mixture.shared.as_ref();
        Self {
            gate_up: shared.map_or(0, |shared| shared.outputs()),
            activated: shared.map_or(0, |shared| shared.width),
            choices: mixture.per_token,
            experts: mixture.experts,
            expert_gate_up: mixture.per_token * 2 * mixture.width,
            expert_activated: mixture.per_token * mixture.width,
            has_shared: shared.is_some(),
            ..self
        }
    }

    fn over(layers: &[&LayerParts]) -> Self {
        layers.iter().map(|layer| Self::of(layer)).fold(Self::default(), Self::max)
    }

    fn max(self, other: Self) -> Self {
        Self {
            heads: self.heads.max(other.heads),
            kv_heads: self.kv_heads.max(other.kv_heads),
            qkv: self.qkv.max(other.qkv),
            unnormed: self.unnormed.max(other.unnormed),
            attended: self.attended.max(other.attended),
            gate_up: self.gate_up.max(other.gate_up),
            activated: self.activated.max(other.activated),
            choices: self.choices.max(other.choices),
            experts: self.experts.max(other.experts),
            expert_gate_up: self.expert_gate_up.max(other.expert_gate_up),
            expert_activated: self.expert_activated.max(other.expert_activated),
            has_shared: self.has_shared || other.has_shared,
        }
    }
}

impl<E: Element> Kept<E> {
    fn new(rows: usize, hidden: usize, widths: &Widths) -> Self {
        let head_inverses = if widths.unnormed > 0 { [widths.heads, widths.kv_heads] } else { [0, 0] };
        Self {
            inverse_attention: Buffer::zeros(2 * rows),
            unnormed: Buffer::zeros(rows * widths.unnormed),
            head_inverses: head_inverses.map(|heads| Buffer::zeros(rows * heads)),
            qkv: Buffer::zeros(rows * widths.qkv),
            attended: Buffer::zeros(rows * widths.attended),
            log_sums: Buffer::zeros(rows * widths.heads),
            middle: Buffer::zeros(rows * hidden),
            inverse_mlp: Buffer::zeros(2 * rows),
            gate_up: Buffer::zeros(rows * widths.gate_up),
            mixture: (widths.experts > 0).then(|| KeptMixture::new(rows, hidden, widths)),
        }
    }

    fn bytes(&self) -> usize {
        let statistics = self.inverse_attention.bytes() + self.inverse_mlp.bytes() + self.log_sums.bytes();
        let heads: usize = self.head_inverses.iter().map(Buffer::bytes).sum();
        let activations =
            [&self.unnormed, &self.qkv, &self.attended, &self.middle, &self.gate_up].map(Buffer::bytes);
        let mixture = self.mixture.as_ref().map_or(0, KeptMixture::bytes);
        statistics + heads + activations.iter().sum::<usize>() + mixture
    }
}

impl<E: Element> KeptMixture<E> {
    fn new(rows: usize, hidden: usize, widths: &Widths) -> Self {
        let choices = rows * widths.choices;
        let shared = if widths.has_shared { rows } else { 0 };
        Self {
            logits: Buffer::zeros(rows * widths.experts),
            probabilities: Buffer::zeros(rows * widths.experts),
            experts: Buffer::zeros(choices),
            weights: Buffer::zeros(choices),
            order: Buffer::zeros(choices),
            slots: Buffer::zeros(choices),
            offsets: Buffer::zeros(widths.experts + 1),
            gate_up: Buffer::zeros(rows * widths.expert_gate_up),
            outputs: Buffer::zeros(choices * hidden),
            shared_outputs: Buffer::zeros(shared * hidden),
            shared_logits: Buffer::zeros(shared),
        }
    }

    fn bytes(&self) -> usize {
        let indices = [&self.experts, &self.order, &self.slots, &self.offsets].map(Buffer::bytes);
        let statistics =
            [&self.logits, &self.probabilities, &self.weights, &self.shared_logits].map(Buffer::bytes);
        let activations = [&self.gate_up, &self.outputs, &self.shared_outputs].map(Buffer::bytes);
        indices.iter().chain(&statistics).chain(&activations).sum()
    }
}

impl<E: Element> Cheap<E> {
    fn new(rows: usize, hidden: usize, widths: &Widths) -> Self {
        Self {
            before_attention: Buffer::zeros(rows * hidden),
            before_mlp: Buffer::zeros(rows * hidden),
            activated: Buffer::zeros(rows * widths.activated),
            gathered: Buffer::zeros(rows * widths.choices * hidden),
            expert_activated: Buffer::zeros(rows * widths.expert_activated),
        }
    }

    fn bytes(&self) -> usize {
        let Self { before_attention, before_mlp, activated, gathered, expert_activated } = self;
        [before_attention, before_mlp, activated, gathered, expert_activated].map(Buffer::bytes).iter().sum()
    }
}

impl<E: Element> GradientRoom<E> {
    fn new(rows: usize, hidden: usize, widths: &Widths) -> Self {
        Self {
            stream: Buffer::zeros(rows * hidden),
            normed: Buffer::zeros(rows * hidden),
            attended: Buffer::zeros(rows * widths.attended),
            qkv: Buffer::zeros(rows * widths.qkv),
            activated: Buffer::zeros(rows * widths.activated),
            gate_up: Buffer::zeros(rows * widths.gate_up),
            mixture: (widths.experts > 0).then(|| MixtureGradients::new(rows, hidden, widths)),
        }
    }

    fn bytes(&self) -> usize {
        let Self { stream, normed, attended, qkv, activated, gate_up, mixture } = self;
        let plain: usize =
            [stream, normed, attended, qkv, activated, gate_up].map(Buffer::bytes).iter().sum();
        plain + mixture.as_ref().map_or(0, MixtureGradients::bytes)
    }
}

impl<E: Element> MixtureGradients<E> {
    fn new(rows: usize, hidden: usize, widths: &Widths) -> Self {
        let choices = rows * widths.choices;
        let shared = if widths.has_shared { rows } else { 0 };
        Self {
            outputs: Buffer::zeros(choices * hidden),
            activated: Buffer::zeros(rows * widths.expert_activated),
            gate_up: Buffer::zeros(rows * widths.expert_gate_up),
            gathered: Buffer::zeros(choices * hidden),
            weights: Buffer::zeros(choices),
            logits: Buffer::zeros(rows * widths.experts),
            shared_outputs: Buffer::zeros(shared * hidden),
            shared_logits: Buffer::zeros(shared),
        }
    }

    fn bytes(&self) -> usize {
        let Self { outputs, activated, gate_up, gathered, weights, logits, shared_outputs, shared_logits } =
            self;
        let activations = [outputs, activated, gate_up, gathered, shared_outputs].map(Buffer::bytes);
        let statistics = [weights, logits, shared_logits].map(Buffer::bytes);
        activations.iter().chain(&statistics).sum()
    }
}

impl Network {
    /// The layers' parts, from first to last.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &LayerParts> {
        self.blocks().iter().filter_map(|block| match &block.parts {
            Parts::Layer(layer) => Some(&**layer),
            _ => None,
        })
    }
}
