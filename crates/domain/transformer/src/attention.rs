//! Attention: which heads a layer has, what it keeps per token, and how far back it looks.

use crate::flops::AttentionFlops;

/// The two ways of making queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    GroupedQuery(GroupedQuery),
    Latent(Latent),
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
    /// Learned norms over each head of the queries and of the keys.
    pub has_qk_norm: bool,
    /// One learned sink logit per head.
    pub has_sinks: bool,
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
}

impl Attention {
    /// Query heads.
    pub fn heads(&self) -> u64 {
        match self {
            Attention::GroupedQuery(grouped) => grouped.heads,
            Attention::Latent(latent) => latent.heads,
        }
    }

    /// Key and value heads as they take part in the score products; for a latent, one per query head.
    pub fn kv_heads(&self) -> u64 {
        match self {
            Attention::GroupedQuery(grouped) => grouped.kv_heads,
            Attention::Latent(latent) => latent.heads,
        }
    }

    /// Width of one query or key head.
    pub fn query_dim(&self) -> u64 {
        match self {
            Attention::GroupedQuery(grouped) => grouped.head_dim,
            Attention::Latent(latent) => latent.nope_dim + latent.rope_dim,
        }
    }

    /// Width of one value head.
    pub fn value_dim(&self) -> u64 {
        match self {
            Attention::GroupedQuery(grouped) => grouped.head_dim,
            Attention::Latent(latent) => latent.value_dim,
        }
    }

    /// Numbers that a layer keeps in the cache for each token.
    ///
    /// A latent has no heads to split: every rank of a tensor-parallel group keeps all of it.
    pub fn kv_values_per_token(&self) -> u64 {
        match self {
            Attention::GroupedQuery(grouped) => 2 * grouped.kv_heads * grouped.head_dim,
            Attention::Latent(latent) => latent.kv_rank + latent.rope_dim,
        }
    }

    /// FLOPs of one query against one key, and of its share of the value, over all heads.
    pub fn score_flops_per_key(&self) -> f64 {
        2.0 * self.heads() as f64 * (self.query_dim() + self.value_dim()) as f64
    }

    /// The same while decoding. A latent is then read as cached, by queries projected into its space.
    pub fn decode_flops_per_key(&self) -> f64 {
        match self {
            Attention::GroupedQuery(_) => self.score_flops_per_key(),
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
