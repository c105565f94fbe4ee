//! The buffers of a training step beside weights and gradients of weights, described once: `run/network` allocates them and
//! `plan/perf` adds them up.
//!
//! A struct is a lifetime, a field is a buffer with its format and length. The same structs hold memory of a device or
//! nothing but sizes, as [`Hold`] says. Buffers that a model has no use for have the length 0.

use crate::{Attention, Layer, Mlp};

/// What the backward pass of this program's runtime computes again instead of keeping it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recompute {
    #[default]
    None,
    /// Norms and activation functions, which cost little arithmetic. Attention and products are kept, unlike in
    /// Megatron's selective recomputation.
    Cheap,
    /// Whole layers; only their inputs are kept.
    Full,
}

/// What stands for the buffers of each format: memory of a device, or sizes.
pub trait Hold {
    /// Numbers in the format that the model is computed in.
    type Element;
    /// f32, whatever the model is computed in.
    type Wide;
    /// u32
    type Index;
}

/// Sizes in bytes.
impl Hold for usize {
    type Element = usize;
    type Wide = usize;
    type Index = usize;
}

/// Makes buffers of a number of numbers.
pub struct Make<'a, H: Hold> {
    pub element: &'a dyn Fn(usize) -> H::Element,
    pub wide: &'a dyn Fn(usize) -> H::Wide,
    pub index: &'a dyn Fn(usize) -> H::Index,
}

/// Declares sizes with the larger of each of two.
macro_rules! widths {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$about])* pub $field: usize,)* }

        impl $name {
            /// Room that serves either of two layers.
            fn max(self, other: Self) -> Self {
                Self { $($field: self.$field.max(other.$field),)* }
            }
        }
    };
}

widths! {
    /// Numbers per row of everything that a layer computes. Zero means that a layer has no such part.
    Widths {
        hidden,
        heads,
        kv_heads,
        head_dim,
        /// Queries, keys and values side by side.
        qkv,
        /// Queries and keys before their norms.
        unnormed,
        attended,
        /// Of a dense MLP or of the shared expert: gate and up, or up alone.
        gate_up,
        activated,
        /// Experts that a token visits.
        choices,
        experts,
        /// Width of one routed expert.
        expert,
        /// 1 where there is a shared expert.
        shared,
        /// 1 where the shared expert has a gate.
        shared_gate,
    }
}

impl Widths {
    pub fn of(hidden: u64, layer: &Layer) -> Self {
        let attention = &layer.attention;
        let (heads, kv_heads) = (attention.heads() as usize, attention.kv_heads() as usize);
        let head_dim = attention.query_dim() as usize;
        let has_norms = matches!(attention, Attention::GroupedQuery(grouped) if grouped.has_qk_norm);
        let plain = Self {
            hidden: hidden as usize,
            heads,
            kv_heads,
            head_dim,
            qkv: (heads + 2 * kv_heads) * head_dim,
            unnormed: if has_norms { (heads + kv_heads) * head_dim } else { 0 },
            attended: heads * head_dim,
            ..Self::default()
        };
        let (plain, dense) = match &layer.mlp {
            Mlp::Dense(dense) => (plain, Some(*dense)),
            Mlp::Mixture(mixture) => {
                let routed = Self {
                    choices: mixture.per_token as usize,
                    experts: mixture.experts as usize,
                    expert: mixture.expert.width as usize,
                    shared: usize::from(mixture.shared.is_some()),
                    shared_gate: usize::from(mixture.has_shared_gate),
                    ..plain
                };
                (routed, mixture.shared)
            }
        };
        let Some(dense) = dense else { return plain };
        let width = dense.width as usize;
        Self { gate_up: if dense.is_gated { 2 * width } else { width }, activated: width, ..plain }
    }

    /// Columns of queries and keys, which rotary positions turn.
    pub fn queries_and_keys(&self) -> usize {
        (self.heads + self.kv_heads) * self.head_dim
    }

    /// Gate and up of all experts that a token visits.
    pub fn expert_gate_up(&self) -> usize {
        2 * self.expert_activated()
    }

    pub fn expert_activated(&self) -> usize {
        self.choices * self.expert
    }
}

/// Declares a room: its fields are buffers, and its constructor makes them in the order of the fields.
macro_rules! rooms {
    ($($(#[$doc:meta])* $name:ident($($given:ident: $type:ty),*) {
        $($(#[$about:meta])* $field:ident: $format:ident[$len:expr],)*
    })*) => {$(
        $(#[$doc])*
        pub struct $name<H: Hold> { $($(#[$about])* pub $field: rooms!(@ H $format),)* }

        impl<H: Hold> $name<H> {
            fn new(make: &Make<'_, H>, $($given: $type),*) -> Self {
                Self { $($field: (make.$format)($len),)* }
            }
        }
    )*};
    (@ $h:ident element) => { $h::Element };
    (@ $h:ident wide) => { $h::Wide };
    (@ $h:ident index) => { $h::Index };
}

rooms! {
    /// What a layer's backward pass needs of its forward pass and is costly to make again: products and attention.
    Kept(rows: usize, w: &Widths) {
        inverse_attention: wide[2 * rows],
        /// Queries and keys before their norms.
        unnormed: element[rows * w.unnormed],
        query_inverses: wide[if w.unnormed > 0 { rows * w.heads } else { 0 }],
        key_inverses: wide[if w.unnormed > 0 { rows * w.kv_heads } else { 0 }],
        qkv: element[rows * w.qkv],
        attended: element[rows * w.attended],
        log_sums: wide[rows * w.heads],
        /// The residual stream between attention and MLP.
        middle: element[rows * w.hidden],
        inverse_mlp: wide[2 * rows],
        /// Of a dense MLP or of the shared expert.
        gate_up: element[rows * w.gate_up],
        router_logits: wide[rows * w.experts],
        probabilities: wide[rows * w.experts],
        experts: index[rows * w.choices],
        choice_weights: wide[rows * w.choices],
        order: index[rows * w.choices],
        slots: index[rows * w.choices],
        offsets: index[if w.experts > 0 { w.experts + 1 } else { 0 }],
        expert_gate_up: element[rows * w.expert_gate_up()],
        expert_outputs: element[rows * w.choices * w.hidden],
        shared_outputs: element[rows * w.shared * w.hidden],
        shared_logits: wide[rows * w.shared],
    }

    /// The rest of what it needs: norms and activations.
    Cheap(rows: usize, w: &Widths) {
        before_attention: element[rows * w.hidden],
        before_mlp: element[rows * w.hidden],
        activated: element[rows * w.activated],
        /// Tokens in the order of their experts.
        gathered: element[rows * w.choices * w.hidden],
        expert_activated: element[rows * w.expert_activated()],
    }

    /// Gradients that are passed from block to block, and through a layer's norms.
    StreamGradients(rows: usize, hidden: usize) {
        /// Of the residual stream; turned in place from the gradient of a block's output into that of its input.
        stream: element[rows * hidden],
        normed: element[rows * hidden],
    }

    /// Gradients of what one layer computes inside.
    InnerGradients(rows: usize, w: &Widths) {
        attended: element[rows * w.attended],
        qkv: element[rows * w.qkv],
        activated: element[rows * w.activated],
        gate_up: element[rows * w.gate_up],
        expert_outputs: element[rows * w.choices * w.hidden],
        expert_activated: element[rows * w.expert_activated()],
        expert_gate_up: element[rows * w.expert_gate_up()],
        gathered: element[rows * w.choices * w.hidden],
        choice_weights: wide[rows * w.choices],
        router_logits: wide[rows * w.experts],
        shared_outputs: element[rows * w.shared * w.hidden],
        shared_logits: wide[rows * w.shared],
    }

    /// Sums that a rank of a tensor-parallel group has only its share of.
    Partial(rows: usize, w: &Widths) {
        /// Of a product whose inputs are cut over ranks, or of the gradient of one whose outputs are.
        sums: wide[rows * w.hidden],
        /// Gradients of the norms over heads.
        head_norms: wide[if w.unnormed > 0 { 2 * w.head_dim } else { 0 }],
    }

    Head(rows: usize, stage: &Stage<'_>) {
        normed: element[rows * stage.hidden],
        inverses: wide[2 * rows],
        /// Of some rows at a time.
        logits: wide[logits_at_once(stage.vocab, rows) * stage.vocab],
        losses: wide[rows],
    }

    /// A micro-batch as data gives it, and where its tokens go.
    Given(rows: usize, stage: &Stage<'_>) {
        tokens: index[if stage.has_embedding { rows } else { 0 }],
        targets: index[if stage.has_head { rows } else { 0 }],
        positions: index[rows],
        /// 1 for each token of a mixture that is not padding.
        counted: index[if stage.experts() > 0 { rows } else { 0 }],
        /// The share of choices that each expert has in each layer of the model.
        shares: wide[stage.model_layers * stage.experts()],
    }
}

impl Stage<'_> {
    /// Experts of a layer, at most.
    pub fn experts(&self) -> usize {
        self.layers.iter().map(|layer| layer.experts).max().unwrap_or(0)
    }
}

/// Some consecutive blocks of a model and how they are computed: a pipeline stage, or the whole model.
#[derive(Debug, Clone, Copy)]
pub struct Stage<'a> {
    pub hidden: usize,
    pub vocab: usize,
    /// Its layers, from first to last.
    pub layers: &'a [Widths],
    /// Layers of the whole model.
    pub model_layers: usize,
    /// Distinct reaches of the model's attention.
    pub reaches: usize,
    /// Tokens of a micro-batch that a rank has: with context parallelism its share of all.
    pub rows: usize,
    /// Micro-batches whose backward pass is still to come, at most.
    pub in_flight: usize,
    pub recompute: Recompute,
    /// Without gradients, nothing is kept and all layers share one room.
    pub has_gradients: bool,
    pub has_embedding: bool,
    pub has_head: bool,
    pub ranks: Ranks,
}

/// Over how many ranks a stage is cut, by what is divided among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// The matrices.
    pub tensor: usize,
    /// Whether each tensor rank has a share of the rows of residual streams and norms.
    pub has_cut_rows: bool,
    /// The rows of sequences.
    pub context: usize,
    /// The routed experts.
    pub experts: usize,
}

impl Ranks {
    pub const ONE: Self = Self { tensor: 1, has_cut_rows: false, context: 1, experts: 1 };
}

/// All buffers of a stage.
pub struct Rooms<H: Hold> {
    /// One for each micro-batch in flight.
    pub batches: Vec<BatchRoom<H>>,
    pub shared: SharedRoom<H>,
}

/// What a micro-batch has for itself.
pub struct BatchRoom<H: Hold> {
    pub given: Given<H>,
    /// First keys that the queries see, for each reach.
    pub first_keys: Vec<H::Index>,
    /// The residual stream before each layer, and after the last.
    pub streams: Vec<H::Element>,
    /// One per layer, or none where all share one.
    pub kept: Vec<Kept<H>>,
    pub cheap: Vec<Cheap<H>>,
}

/// What micro-batches and layers use in turn.
pub struct SharedRoom<H: Hold> {
    /// One where layers have none of their own.
    pub kept: Vec<Kept<H>>,
    pub cheap: Vec<Cheap<H>>,
    pub gradients: Option<StreamGradients<H>>,
    pub inner: Option<InnerGradients<H>>,
    pub partial: Option<Partial<H>>,
    pub head: Option<Head<H>>,
}

impl<H: Hold> Rooms<H> {
    pub fn new(make: &Make<'_, H>, stage: &Stage<'_>) -> Self {
        let Stage { rows, layers, .. } = *stage;
        let widest = Widths { hidden: stage.hidden, ..Widths::default() };
        let widest = layers.iter().fold(widest, |widest, layer| widest.max(*layer));
        let (own_kept, own_cheap) = match stage.recompute {
            _ if !stage.has_gradients => (false, false),
            Recompute::None => (true, true),
            Recompute::Cheap => (true, false),
            Recompute::Full => (false, false),
        };
        let own = |is_own: bool| if is_own { layers } else { &[] };
        let shared = |is_own: bool| if is_own { None } else { Some(&widest) };
        let streams = if stage.has_gradients { layers.len() + 1 } else { 2 };
        let batch = |_| BatchRoom {
            given: Given::new(make, rows, stage),
            first_keys: (0..stage.reaches).map(|_| (make.index)(rows)).collect(),
            streams: (0..streams).map(|_| (make.element)(rows * stage.hidden)).collect(),
            kept: own(own_kept).iter().map(|widths| Kept::new(make, rows, widths)).collect(),
            cheap: own(own_cheap).iter().map(|widths| Cheap::new(make, rows, widths)).collect(),
        };
        Self {
            batches: (0..stage.in_flight).map(batch).collect(),
            shared: SharedRoom {
                kept: shared(own_kept).into_iter().map(|widths| Kept::new(make, rows, widths)).collect(),
                cheap: shared(own_cheap).into_iter().map(|widths| Cheap::new(make, rows, widths)).collect(),
                gradients: stage.has_gradients.then(|| StreamGradients::new(make, rows, stage.hidden)),
                inner: stage.has_gradients.then(|| InnerGradients::new(make, rows, &widest)),
                partial: (stage.ranks.tensor > 1).then(|| Partial::new(make, rows, &widest)),
                head: stage.has_head.then(|| Head::new(make, rows, stage)),
            },
        }
    }
}

/// Numbers that the largest product of a step copies into panels first: its weights, or what their gradient is made from.
pub fn packed(stage: &Stage<'_>) -> f64 {
    let (rows, hidden) = (stage.rows as f64, stage.hidden as f64);
    let product = |rows: f64, outputs: f64, inputs: f64| inputs * outputs.max(rows);
    let head = product(logits_at_once(stage.vocab, stage.rows) as f64, stage.vocab as f64, hidden);
    let layer = |widths: &Widths| {
        let dense = product(rows, (widths.qkv as f64).max(widths.gate_up as f64), hidden);
        let output = product(rows, hidden, widths.attended as f64);
        // Slots are spread evenly over experts, of which few are visited where there are few slots.
        let slots = rows * widths.choices as f64;
        let per_expert = (slots / (widths.experts as f64).max(1.0)).max(1.0);
        let (groups, expert) = (slots / per_expert, widths.expert as f64);
        let up = groups * product(per_expert, 2.0 * expert, hidden);
        let down = groups * product(per_expert, hidden, expert);
        [dense, output, up, down].into_iter().fold(0.0, f64::max)
    };
    stage.layers.iter().map(layer).fold(head, f64::max)
}

/// Rows whose logits are made at once: about 16 MB of them, which the last-level cache holds.
pub fn logits_at_once(vocab: usize, rows: usize) -> usize {
    ((4 << 20) / vocab).clamp(1, rows)
}
