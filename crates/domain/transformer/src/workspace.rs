//! The buffers of a training step beside weights and gradients of weights, described once: `run/network` allocates them and
//! `plan/perf` adds them up.
//!
//! A struct is a lifetime, a field is a buffer with its format and length. The same structs hold memory of a device or
//! nothing but sizes, as [`Hold`] says. Buffers that a model has no use for have the length 0.

use crate::{Attention, Latent, Layer, Mlp, NormPlacement, QkNorm, Shape};

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
        /// Queries and keys before their norms; of latent attention, what is projected down.
        unnormed,
        attended,
        /// Of latent attention: what is projected down, where it has gradients of its own; the same behind its norms; keys and values before
        /// they are put beside each other; and values or queries without what fills heads up to one size.
        down,
        latent,
        expanded,
        narrow,
        /// What a half of the layer adds, where that goes through a norm of its own.
        branch,
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
    /// Of a layer of a model, or of a rank's part of one.
    pub fn of(model: &Shape, layer: &Layer) -> Self {
        let hidden = model.hidden;
        let has_branch = model.norm_placement != NormPlacement::Before;
        let attention = &layer.attention;
        let (heads, kv_heads) = (attention.heads() as usize, attention.kv_heads() as usize);
        let head_dim = attention.query_dim().max(attention.value_dim()) as usize;
        let has_norms =
            matches!(attention, Attention::GroupedQuery(grouped) if grouped.qk_norm != QkNorm::Absent);
        let plain = Self {
            hidden: hidden as usize,
            heads,
            kv_heads,
            head_dim,
            qkv: (heads + 2 * kv_heads) * head_dim,
            unnormed: if has_norms { (heads + kv_heads) * head_dim } else { 0 },
            attended: heads * head_dim,
            branch: if has_branch { hidden as usize } else { 0 },
            ..Self::default()
        };
        let plain = match attention {
            Attention::Latent(latent) => plain.with_latent(latent),
            _ => plain,
        };
        let (plain, dense) = match &layer.mlp {
            Mlp::Dense(dense) => (plain, Some(*dense)),
            Mlp::Absent => (plain, None),
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

    fn with_latent(self, latent: &Latent) -> Self {
        let Latent { heads, nope_dim, rope_dim, value_dim, kv_rank, .. } = *latent;
        let queries = latent.query_rank.unwrap_or(heads * (nope_dim + rope_dim));
        let down = (queries + kv_rank + rope_dim) as usize;
        Self {
            unnormed: down,
            down,
            latent: (latent.query_rank.unwrap_or(0) + kv_rank) as usize,
            expanded: (heads * (nope_dim + value_dim)) as usize,
            narrow: (heads * (nope_dim + rope_dim).max(value_dim)) as usize,
            ..self
        }
    }

    /// Columns of queries and keys, which rotary positions turn.
    pub fn queries_and_keys(&self) -> usize {
        (self.heads + self.kv_heads) * self.head_dim
    }

    /// Columns of keys and values.
    pub fn keys_values(&self) -> usize {
        2 * self.kv_heads * self.head_dim
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
    Kept(stage: &Stage<'_>, w: &Widths) {
        inverse_attention: wide[2 * stage.own_rows()],
        /// Queries and keys before their norms.
        unnormed: element[stage.rows * w.unnormed],
        query_inverses: wide[if w.unnormed > 0 { stage.rows * w.heads } else { 0 }],
        key_inverses: wide[if w.unnormed > 0 { stage.rows * w.kv_heads } else { 0 }],
        latent: element[stage.rows * w.latent],
        qkv: element[stage.rows * w.qkv],
        attended: element[stage.rows * w.attended],
        log_sums: wide[stage.rows * w.heads],
        /// The residual stream between attention and MLP.
        middle: element[stage.own_rows() * w.hidden],
        inverse_mlp: wide[2 * stage.own_rows()],
        /// What attention and MLP add, before the norms behind them.
        attention_out: element[stage.own_rows() * w.branch],
        inverse_attention_out: wide[if w.branch > 0 { 2 * stage.own_rows() } else { 0 }],
        mlp_out: element[stage.own_rows() * w.branch],
        inverse_mlp_out: wide[if w.branch > 0 { 2 * stage.own_rows() } else { 0 }],
        /// Of a dense MLP or of the shared expert.
        gate_up: element[stage.rows * w.gate_up],
        router_logits: wide[stage.rows * w.experts],
        probabilities: wide[stage.rows * w.experts],
        experts: index[stage.rows * w.choices],
        choice_weights: wide[stage.rows * w.choices],
        order: index[stage.rows * w.choices],
        slots: index[stage.rows * w.choices],
        offsets: index[if w.experts > 0 { w.experts + 1 } else { 0 }],
        expert_gate_up: element[stage.visits(w) * 2 * w.expert],
        expert_outputs: element[stage.rows * w.choices * w.hidden],
        shared_outputs: element[stage.rows * w.shared * w.hidden],
        shared_logits: wide[stage.rows * w.shared],
        /// How many rows come from each rank to each expert that is here.
        arrivals: index[stage.if_experts_are_cut(w.experts)],
        visit_offsets: index[stage.if_experts_are_cut(if w.experts > 0 { stage.experts_here(w) + 1 } else { 0 })],
        /// Which row, of those that came, visits an expert in a place of the order by expert; and the place of each row.
        visit_order: index[stage.if_experts_are_cut(stage.visits(w))],
        visit_slots: index[stage.if_experts_are_cut(stage.visits(w))],
    }

    /// The rest of what it needs: norms and activations.
    Cheap(stage: &Stage<'_>, w: &Widths) {
        before_attention: element[stage.own_rows() * w.hidden],
        before_mlp: element[stage.own_rows() * w.hidden],
        activated: element[stage.rows * w.activated],
        /// Tokens in the order of the experts that are here.
        gathered: element[stage.visits(w) * w.hidden],
        expert_activated: element[stage.visits(w) * w.expert],
    }

    /// Gradients that are passed from block to block, and through a layer's norms.
    StreamGradients(stage: &Stage<'_>) {
        /// Of the residual stream; turned in place from the gradient of a block's output into that of its input.
        stream: element[stage.own_rows() * stage.hidden],
        normed: element[stage.own_rows() * stage.hidden],
        /// Of what a half of a layer adds, where that goes through a norm of its own.
        branch: element[stage.own_rows() * stage.layers.iter().map(|layer| layer.branch).max().unwrap_or(0)],
    }

    /// Gradients of what one layer computes inside.
    InnerGradients(stage: &Stage<'_>, w: &Widths) {
        attended: element[stage.rows * w.attended],
        unnormed: element[stage.rows * w.down],
        qkv: element[stage.rows * w.qkv],
        activated: element[stage.rows * w.activated],
        gate_up: element[stage.rows * w.gate_up],
        expert_outputs: element[stage.rows * w.choices * w.hidden],
        expert_activated: element[stage.visits(w) * w.expert],
        expert_gate_up: element[stage.visits(w) * 2 * w.expert],
        gathered: element[stage.visits(w) * w.hidden],
        choice_weights: wide[stage.rows * w.choices],
        router_logits: wide[stage.rows * w.experts],
        shared_outputs: element[stage.rows * w.shared * w.hidden],
        shared_logits: wide[stage.rows * w.shared],
    }

    /// Sums that a rank of a tensor-parallel group has only its share of.
    Partial(stage: &Stage<'_>, w: &Widths) {
        /// Of a product whose inputs are cut over ranks, or of the gradient of one whose outputs are.
        sums: wide[stage.rows * w.hidden],
        /// The same of own rows, added up, where rows are cut.
        own_sums: wide[stage.if_rows_are_cut(stage.own_rows() * w.hidden)],
        /// Gradients of the norms over heads.
        head_norms: wide[if w.unnormed > 0 { 2 * w.head_dim } else { 0 }],
    }

    /// Rows of all tensor ranks, gathered where each has its own.
    Gathered(stage: &Stage<'_>) {
        /// A normed input.
        normed: element[stage.if_rows_are_cut(stage.rows * stage.hidden)],
        /// The gradient of the residual stream.
        gradient: element[stage.if_rows_are_cut(if stage.has_gradients { stage.rows * stage.hidden } else { 0 })],
    }

    /// Tokens on their way to experts of other ranks and back.
    Travel(stage: &Stage<'_>, w: &Widths) {
        /// Rows for each expert, to be sent.
        counts: index[w.experts],
        /// In the order of all experts, as a rank sends them.
        leaving: element[stage.rows * w.choices * w.hidden],
        /// In the order of the ranks they come from.
        arrived: element[stage.visits(w) * w.hidden],
        /// What experts give for them, or gradients of that, in the order of the experts.
        visiting: element[stage.visits(w) * w.hidden],
    }

    /// Keys and values that go round the ranks of a context group, and what each adds to attention.
    Ring(stage: &Stage<'_>, w: &Widths) {
        here: element[stage.rows * w.keys_values()],
        incoming: element[stage.rows * w.keys_values()],
        /// Of the queries over one rank's keys; also the gradient of queries.
        attended: element[stage.rows * w.attended],
        log_sums: wide[stage.rows * w.heads],
        /// Over all ranks so far.
        sums: wide[stage.rows * w.attended],
    }

    /// The gradients of keys and values that go round with them.
    RingGradients(stage: &Stage<'_>, w: &Widths) {
        /// What this rank's queries add.
        own: element[stage.rows * w.keys_values()],
        here: wide[stage.rows * w.keys_values()],
        incoming: wide[stage.rows * w.keys_values()],
    }

    /// What latent attention expands, and gradients of that, in turn.
    Expanded(stage: &Stage<'_>, w: &Widths) {
        keys_values: element[stage.rows * w.expanded],
        heads: element[stage.rows * w.narrow],
    }

    Head(stage: &Stage<'_>) {
        normed: element[stage.own_rows() * stage.hidden],
        inverses: wide[2 * stage.own_rows()],
        /// Of some rows at a time.
        logits: wide[stage.logits_at_once() * stage.vocab],
        losses: wide[stage.own_rows()],
    }

    /// A micro-batch as data gives it, and where its tokens go.
    Given(stage: &Stage<'_>) {
        tokens: index[if stage.has_embedding { stage.rows } else { 0 }],
        targets: index[if stage.has_head { stage.rows } else { 0 }],
        positions: index[stage.rows],
        /// 1 for each token of a mixture that is not padding.
        counted: index[if stage.experts() > 0 { stage.rows } else { 0 }],
        /// The share of choices that each expert has in each layer of the model.
        shares: wide[stage.model_layers * stage.experts()],
        /// The gradient of the embedding's row of padding, which is not learned.
        padding_gradient: wide[if stage.has_embedding && stage.has_gradients { stage.hidden } else { 0 }],
        /// A position behind all keys, for queries over an earlier rank's.
        behind: index[if stage.ranks.context > 1 { 1 } else { 0 }],
    }
}

impl Stage<'_> {
    /// Experts of a layer, at most.
    pub fn experts(&self) -> usize {
        self.layers.iter().map(|layer| layer.experts).max().unwrap_or(0)
    }

    /// Rows whose residual stream a rank has.
    pub fn own_rows(&self) -> usize {
        if self.ranks.has_cut_rows { self.rows / self.ranks.tensor } else { self.rows }
    }

    /// Rows whose logits are made at once.
    fn logits_at_once(&self) -> usize {
        self.logits.rows(self.vocab, self.own_rows())
    }

    /// Routed experts of a layer that a rank has.
    pub fn experts_here(&self, widths: &Widths) -> usize {
        widths.experts / self.ranks.experts
    }

    /// Rows that visit the experts of a rank, at most: no token is dropped, so all ranks' tokens may come, each once to an expert.
    pub fn visits(&self, widths: &Widths) -> usize {
        widths.choices.min(self.experts_here(widths)) * self.rows * self.ranks.experts
    }

    fn if_rows_are_cut(&self, len: usize) -> usize {
        if self.ranks.has_cut_rows { len } else { 0 }
    }

    fn if_experts_are_cut(&self, len: usize) -> usize {
        if self.ranks.experts > 1 { len } else { 0 }
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
    pub logits: LogitsAtOnce,
    pub ranks: Ranks,
}

/// Rows whose logits exist at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogitsAtOnce {
    /// About 16 MB of them, which a processor's last-level cache holds.
    #[default]
    Cached,
    /// 2,048 rows, for a GPU: the gradient of the matrix is read and written once for all of them, which takes less time than their products.
    Many,
}

impl LogitsAtOnce {
    pub fn rows(self, vocab: usize, rows: usize) -> usize {
        let wanted = match self {
            LogitsAtOnce::Cached => (4 << 20) / vocab,
            LogitsAtOnce::Many => 2048,
        };
        wanted.clamp(1, rows)
    }
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
    /// First keys that the queries see, for each reach: among those of each rank of the context group in turn.
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
    pub gathered: Gathered<H>,
    pub travel: Option<Travel<H>>,
    /// Present where layers have latent attention.
    pub expanded: Option<Expanded<H>>,
    pub ring: Option<Ring<H>>,
    pub ring_gradients: Option<RingGradients<H>>,
    pub head: Option<Head<H>>,
}

impl<H: Hold> Rooms<H> {
    pub fn new(make: &Make<'_, H>, stage: &Stage<'_>) -> Self {
        let Stage { layers, ranks, .. } = *stage;
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
            given: Given::new(make, stage),
            first_keys: (0..stage.reaches).map(|_| (make.index)(stage.rows * ranks.context)).collect(),
            streams: (0..streams).map(|_| (make.element)(stage.own_rows() * stage.hidden)).collect(),
            kept: own(own_kept).iter().map(|widths| Kept::new(make, stage, widths)).collect(),
            cheap: own(own_cheap).iter().map(|widths| Cheap::new(make, stage, widths)).collect(),
        };
        let has_ring = ranks.context > 1;
        Self {
            batches: (0..stage.in_flight).map(batch).collect(),
            shared: SharedRoom {
                kept: shared(own_kept).into_iter().map(|widths| Kept::new(make, stage, widths)).collect(),
                cheap: shared(own_cheap).into_iter().map(|widths| Cheap::new(make, stage, widths)).collect(),
                gradients: stage.has_gradients.then(|| StreamGradients::new(make, stage)),
                inner: stage.has_gradients.then(|| InnerGradients::new(make, stage, &widest)),
                partial: (ranks.tensor > 1).then(|| Partial::new(make, stage, &widest)),
                gathered: Gathered::new(make, stage),
                travel: (ranks.experts > 1).then(|| Travel::new(make, stage, &widest)),
                expanded: (widest.expanded > 0).then(|| Expanded::new(make, stage, &widest)),
                ring: has_ring.then(|| Ring::new(make, stage, &widest)),
                ring_gradients: (has_ring && stage.has_gradients)
                    .then(|| RingGradients::new(make, stage, &widest)),
                head: stage.has_head.then(|| Head::new(make, stage)),
            },
        }
    }
}

/// Bytes that the largest product of a step copies into panels first: its weights, or what their gradient is made from, in a format of
/// `element` bytes. Those of f32 take six where a tile unit multiplies their parts; this counts as many everywhere.
pub fn packed(stage: &Stage<'_>, element: f64) -> f64 {
    let element = if element == 4.0 { 6.0 } else { element };
    let (rows, hidden) = (stage.rows as f64, stage.hidden as f64);
    let product = |rows: f64, outputs: f64, inputs: f64| inputs * outputs.max(rows);
    let head = product(stage.logits_at_once() as f64, stage.vocab as f64, hidden);
    let layer = |widths: &Widths| {
        let dense = product(rows, (widths.qkv as f64).max(widths.gate_up as f64), hidden);
        let output = product(rows, hidden, widths.attended as f64);
        // Slots are spread evenly over experts, of which few are visited where there are few slots. Ranks that share the experts
        // also send each other their slots.
        let slots = rows * widths.choices as f64;
        let per_expert = (slots / (stage.experts_here(widths) as f64).max(1.0)).max(1.0);
        let (groups, expert) = (slots / per_expert, widths.expert as f64);
        let up = groups * product(per_expert, 2.0 * expert, hidden);
        let down = groups * product(per_expert, hidden, expert);
        [dense, output, up, down].into_iter().fold(0.0, f64::max)
    };
    element * stage.layers.iter().map(layer).fold(head, f64::max)
}
