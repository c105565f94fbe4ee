//! Attention and what stands in its place: which heads a layer has, what it keeps per token, and how far back it looks.

use crate::flops::AttentionFlops;

/// How a layer mixes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    GroupedQuery(GroupedQuery),
    Latent(Latent),
    Recurrent(Recurrent),
    /// It does not: the layer is an MLP alone (Nemotron-H).
    Absent,
}

/// Multi-head (`kv_heads == heads`), grouped-query or multi-query (`kv_heads == 1`) attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupedQuery {
    pub heads: u64,
    /// Divides `heads`.
    pub kv_heads: u64,
    pub head_dim: u64,
    pub has_qkv_bias: bool,
    pub has_output_bias: bool,
    /// Learned norms of queries and keys.
    pub qk_norm: QkNorm,
    /// One learned sink logit per head.
    pub has_sinks: bool,
    /// The output is weighed by a gate as wide as the queries (Qwen3-Next).
    pub has_gate: bool,
}

/// Learned norms of queries and keys, and over what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QkNorm {
    #[default]
    Absent,
    /// Over each head by itself, with the same weights.
    Head,
    /// Over all heads together (OLMo).
    AllHeads,
}

/// Multi-head latent attention (DeepSeek): keys and values are reconstructed from one small latent vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    pub heads: u64,
    /// Rank of the compressed query; `None` projects the query directly.
    pub query_rank: Option<u64>,
    /// Rank of the latent that is kept per token.
    pub kv_rank: u64,
    /// Part of each query and key head that carries no position.
    pub nope_dim: u64,
    /// Rotary part of each query head; the key's is shared by all heads.
    pub rope_dim: u64,
    pub value_dim: u64,
    /// A bias on the two down projections and on the output projection.
    pub has_bias: bool,
    /// What chooses the tokens that are attended to (DeepSeek sparse attention).
    pub indexer: Option<Indexer>,
}

/// Small heads that score all earlier tokens, so that attention reads only the best of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indexer {
    pub heads: u64,
    pub head_dim: u64,
    /// Tokens that a query attends to.
    pub keys: u64,
}

/// A state that is carried along the sequence in place of attention: Mamba-2 and gated delta networks.
///
/// It is computed in chunks: inside a chunk like attention, which is the layer's [`Reach`], between chunks through the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recurrent {
    /// Heads of values, each with a state of `key_dim` by `value_dim`.
    pub heads: u64,
    pub value_dim: u64,
    /// Heads of keys and queries, which Mamba calls groups. Divides `heads`.
    pub key_heads: u64,
    /// Width of keys and queries, which Mamba calls the size of the state.
    pub key_dim: u64,
    /// Tokens that the convolution before it sees.
    pub kernel: u64,
    pub has_kernel_bias: bool,
    pub has_bias: bool,
    pub rule: StateRule,
}

/// How a state is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateRule {
    /// A step size per head; a norm as wide as all values.
    Mamba2,
    /// A decay and a rate of writing per head; a norm as wide as one head.
    GatedDelta,
}

impl Recurrent {
    /// Width of all keys, and of all queries.
    pub fn keys_wide(&self) -> u64 {
        self.key_heads * self.key_dim
    }

    /// Width of all values, and of the gate of the output.
    pub fn values_wide(&self) -> u64 {
        self.heads * self.value_dim
    }

    /// Numbers per head and token that steer the state.
    pub(crate) fn steering(&self) -> u64 {
        match self.rule {
            StateRule::Mamba2 => 1,
            StateRule::GatedDelta => 2,
        }
    }

    /// Parameters outside matrices and norms: the convolution, and a few numbers per head.
    pub(crate) fn small_parameters(&self) -> u64 {
        let columns = 2 * self.keys_wide() + self.values_wide();
        let per_head = match self.rule {
            // Decay, step bias and a skip connection.
            StateRule::Mamba2 => 3,
            StateRule::GatedDelta => 2,
        };
        columns * (self.kernel + u64::from(self.has_kernel_bias)) + per_head * self.heads
    }

    pub(crate) fn norm_parameters(&self) -> u64 {
        match self.rule {
            StateRule::Mamba2 => self.values_wide(),
            StateRule::GatedDelta => self.value_dim,
        }
    }

    /// Numbers of the state of one sequence.
    pub fn state_values(&self) -> u64 {
        self.heads * self.key_dim * self.value_dim
    }
}

impl Attention {
    /// Query heads, or heads of values with a state; none without either.
    pub fn heads(&self) -> u64 {
        match self {
            Attention::GroupedQuery(grouped) => grouped.heads,
            Attention::Latent(latent) => latent.heads,
            Attention::Recurrent(recurrent) => recurrent.heads,
            Attention::Absent => 0,
        }
    }

    /// Key and value heads as they take part in the score products; for a latent, one per query head.
    pub fn kv_heads(&self) -> u64 {
        match self {
            Attention::GroupedQuery(grouped) => grouped.kv_heads,
            Attention::Latent(latent) => latent.heads,
            Attention::Recurrent(recurrent) => recurrent.key_heads,
            Attention::Absent => 0,
        }
    }

    /// Width of one query or key head.
    pub fn query_dim(&self) -> u64 {
        match self {
            Attention::GroupedQuery(grouped) => grouped.head_dim,
            Attention::Latent(latent) => latent.nope_dim + latent.rope_dim,
            Attention::Recurrent(recurrent) => recurrent.key_dim,
            Attention::Absent => 0,
        }
    }

    /// Width of one value head.
    pub fn value_dim(&self) -> u64 {
        match self {
            Attention::GroupedQuery(grouped) => grouped.head_dim,
            Attention::Latent(latent) => latent.value_dim,
            Attention::Recurrent(recurrent) => recurrent.value_dim,
            Attention::Absent => 0,
        }
    }

    /// Numbers that a layer keeps in the cache for each token.
    ///
    /// A latent has no heads to split: every rank of a tensor-parallel group keeps all of it. A state does not grow.
    pub fn kv_values_per_token(&self) -> u64 {
        match self {
            Attention::GroupedQuery(grouped) => 2 * grouped.kv_heads * grouped.head_dim,
            Attention::Latent(latent) => latent.kv_rank + latent.rope_dim,
            Attention::Recurrent(_) | Attention::Absent => 0,
        }
    }

    /// FLOPs of one query against one key, and of its share of the value, over all heads.
    pub fn score_flops_per_key(&self) -> f64 {
        2.0 * self.heads() as f64 * (self.query_dim() + self.value_dim()) as f64
    }

    /// FLOPs of one token to write its key and value to the state and to read it.
    pub fn state_flops(&self) -> f64 {
        match self {
            Attention::Recurrent(recurrent) => 4.0 * recurrent.state_values() as f64,
            _ => 0.0,
        }
    }

    /// The same as `score_flops_per_key` while decoding. A latent is then read as cached, by queries projected into its space.
    pub fn decode_flops_per_key(&self) -> f64 {
        match self {
            Attention::GroupedQuery(_) => self.score_flops_per_key(),
            Attention::Recurrent(_) | Attention::Absent => 0.0,
            Attention::Latent(latent) => {
                2.0 * latent.heads as f64 * (2 * latent.kv_rank + latent.rope_dim) as f64
            }
        }
    }
}

/// Which earlier tokens a layer's queries see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Full,
    /// A window of the last tokens, itself included.
    Window(u64),
    /// The tokens of the same chunk; chunks do not overlap (Llama 4).
    Chunk(u64),
}

impl Reach {
    /// Keys per query, on average over a sequence of `sequence` tokens.
    pub fn mean_keys(self, sequence: u64, counting: AttentionFlops) -> f64 {
        match counting {
            AttentionFlops::Full => self.kept_tokens(sequence) as f64,
            AttentionFlops::CausalHalved => self.mean_causal_keys(sequence),
        }
    }

    /// Tokens of a context of `context` tokens whose keys and values a layer must keep.
    pub fn kept_tokens(self, context: u64) -> u64 {
        match self {
            Reach::Full => context,
            Reach::Window(size) | Reach::Chunk(size) => context.min(size),
        }
    }

    /// The area below the diagonal over its length: `s/2` for full attention, as Megatron counts it.
    fn mean_causal_keys(self, sequence: u64) -> f64 {
        if sequence == 0 {
            return 0.0;
        }
        let length = sequence as f64;
        let size = self.kept_tokens(sequence) as f64;
        match self {
            Reach::Full | Reach::Window(_) => size - size * size / (2.0 * length),
            Reach::Chunk(_) => {
                let whole = (length / size).floor();
                let rest = length - whole * size;
                (whole * size * size + rest * rest) / (2.0 * length)
            }
        }
    }
}
