//! How each rotary family spells its configuration, as a table: a new family is a new row.

use super::keys::Defaults;
use super::mixture::{MixtureKeys, Shared, Sparse};
use super::reach::Windows;
use crate::{Family, Norm, NormPlacement, QkNorm};

pub(super) struct Dialect {
    pub(super) qkv_bias: Switch,
    pub(super) output_bias: Switch,
    pub(super) mlp_bias: Switch,
    pub(super) qk_norm: QkNorm,
    /// A switch without which there are no such norms.
    pub(super) qk_norm_switch: Option<&'static str>,
    pub(super) has_sinks: bool,
    /// Attention has a gate, and other layers carry a state in its place.
    pub(super) is_hybrid: bool,
    /// Multi-head latent attention in place of grouped queries.
    pub(super) is_latent: bool,
    /// Which attends only to what an indexer chooses.
    pub(super) has_indexer: bool,
    pub(super) is_gated: bool,
    pub(super) norm: Norm,
    pub(super) norm_placement: NormPlacement,
    /// Whether embeddings are tied when the key is not given.
    pub(super) is_tied: bool,
    pub(super) windows: Windows,
    pub(super) mixture: Option<MixtureKeys>,
}

/// A feature that a family always has, never has, or has depending on a key.
#[derive(Clone, Copy)]
pub(super) enum Switch {
    Never,
    Always,
    Key { key: &'static str, default: bool },
}

const ATTENTION_BIAS: Switch = Switch::Key { key: "attention_bias", default: false };
const MLP_BIAS: Switch = Switch::Key { key: "mlp_bias", default: false };

/// What most families do: gated MLP, root-mean-square norms in front, no bias, untied.
const PLAIN: Dialect = Dialect {
    qkv_bias: Switch::Never,
    output_bias: Switch::Never,
    mlp_bias: Switch::Never,
    qk_norm: QkNorm::Absent,
    qk_norm_switch: None,
    has_sinks: false,
    is_hybrid: false,
    is_latent: false,
    has_indexer: false,
    is_gated: true,
    norm: Norm::Rms,
    norm_placement: NormPlacement::Before,
    is_tied: false,
    windows: Windows::Never,
    mixture: None,
};

const BIASED: Dialect = Dialect { qkv_bias: ATTENTION_BIAS, output_bias: ATTENTION_BIAS, ..PLAIN };

const MIXTRAL: MixtureKeys = MixtureKeys {
    experts: "num_local_experts",
    expert_width: "intermediate_size",
    dense_width: "intermediate_size",
    shared: Shared::Never,
    sparse: Sparse::Always,
    has_expert_bias: false,
    has_router_bias: false,
    has_correction_bias: false,
};

const QWEN: MixtureKeys = MixtureKeys {
    experts: "num_experts",
    expert_width: "moe_intermediate_size",
    sparse: Sparse::ByStep,
    ..MIXTRAL
};

const DEEPSEEK: MixtureKeys = MixtureKeys {
    experts: "n_routed_experts",
    expert_width: "moe_intermediate_size",
    shared: Shared::Number { key: "n_shared_experts" },
    sparse: Sparse::AfterFirst,
    ..MIXTRAL
};

pub(super) fn of(family: Family) -> Dialect {
    match family {
        // These have their own modules.
        Family::Gpt2 | Family::Bloom | Family::Mpt | Family::NemotronH => PLAIN,
        Family::Llama => Dialect { mlp_bias: MLP_BIAS, ..BIASED },
        Family::Llama4 => Dialect {
            windows: Windows::Chunks,
            mixture: Some(MixtureKeys {
                dense_width: "intermediate_size_mlp",
                shared: Shared::LikeExpert,
                sparse: Sparse::Interleaved,
                ..MIXTRAL
            }),
            ..BIASED
        },
        Family::Mistral => Dialect { windows: Windows::Everywhere, ..PLAIN },
        Family::Mixtral => Dialect { windows: Windows::Everywhere, mixture: Some(MIXTRAL), ..PLAIN },
        Family::Qwen2 => Dialect { qkv_bias: Switch::Always, windows: Windows::UpperLayers, ..PLAIN },
        Family::Qwen2Moe => Dialect {
            qkv_bias: Switch::Key { key: "qkv_bias", default: true },
            windows: Windows::Alternating,
            mixture: Some(MixtureKeys {
                shared: Shared::Gated { key: "shared_expert_intermediate_size" },
                ..QWEN
            }),
            ..PLAIN
        },
        Family::Qwen3 => Dialect { qk_norm: QkNorm::Head, windows: Windows::UpperLayers, ..BIASED },
        Family::Qwen3Moe => {
            Dialect { qk_norm: QkNorm::Head, windows: Windows::Switched, mixture: Some(QWEN), ..BIASED }
        }
        Family::Qwen3Next => Dialect {
            qk_norm: QkNorm::Head,
            is_hybrid: true,
            mixture: Some(MixtureKeys {
                shared: Shared::Gated { key: "shared_expert_intermediate_size" },
                ..QWEN
            }),
            ..BIASED
        },
        Family::DeepseekV2 => Dialect { is_latent: true, mixture: Some(DEEPSEEK), ..BIASED },
        Family::DeepseekV3 | Family::DeepseekV32 => Dialect {
            is_latent: true,
            has_indexer: family == Family::DeepseekV32,
            mixture: Some(MixtureKeys { has_correction_bias: true, ..DEEPSEEK }),
            ..BIASED
        },
        Family::GptOss => {
            let bias = Switch::Key { key: "attention_bias", default: true };
            Dialect {
                qkv_bias: bias,
                output_bias: bias,
                has_sinks: true,
                windows: Windows::AllBut { full_every: 2 },
                mixture: Some(MixtureKeys { has_expert_bias: true, has_router_bias: true, ..MIXTRAL }),
                ..PLAIN
            }
        }
        Family::Gemma => Dialect { is_tied: true, ..BIASED },
        Family::Gemma2 => Dialect {
            norm_placement: NormPlacement::BeforeAndAfter,
            is_tied: true,
            windows: Windows::AllBut { full_every: 2 },
            ..BIASED
        },
        Family::Gemma3 => Dialect {
            qk_norm: QkNorm::Head,
            norm_placement: NormPlacement::BeforeAndAfter,
            is_tied: true,
            windows: Windows::AllBut { full_every: 6 },
            ..BIASED
        },
        Family::Phi3 => Dialect { windows: Windows::Everywhere, ..PLAIN },
        Family::Olmo2 => {
            Dialect { qk_norm: QkNorm::AllHeads, norm_placement: NormPlacement::After, ..BIASED }
        }
        Family::Olmo3 => Dialect {
            qk_norm: QkNorm::AllHeads,
            norm_placement: NormPlacement::After,
            windows: Windows::AllBut { full_every: 4 },
            ..BIASED
        },
        Family::Olmoe => Dialect {
            qk_norm: QkNorm::AllHeads,
            mixture: Some(MixtureKeys { experts: "num_experts", ..MIXTRAL }),
            ..BIASED
        },
        Family::Glm => Dialect { qkv_bias: Switch::Key { key: "attention_bias", default: true }, ..PLAIN },
        Family::Glm4 => Dialect {
            qkv_bias: Switch::Key { key: "attention_bias", default: true },
            norm_placement: NormPlacement::BeforeAndAfter,
            ..PLAIN
        },
        Family::Glm4Moe => Dialect {
            qkv_bias: ATTENTION_BIAS,
            qk_norm: QkNorm::Head,
            qk_norm_switch: Some("use_qk_norm"),
            mixture: Some(MixtureKeys { has_correction_bias: true, ..DEEPSEEK }),
            ..PLAIN
        },
        Family::SmolLm3 => Dialect { mlp_bias: MLP_BIAS, is_tied: true, ..BIASED },
        Family::Granite => Dialect { mlp_bias: MLP_BIAS, ..BIASED },
        Family::Ministral => Dialect { windows: Windows::Listed, ..PLAIN },
        Family::Nemotron => Dialect { mlp_bias: MLP_BIAS, is_gated: false, norm: Norm::LayerNorm, ..BIASED },
        Family::Grok1 => Dialect {
            norm_placement: NormPlacement::BeforeAndAfter,
            is_tied: true,
            mixture: Some(MixtureKeys { experts: "num_experts", ..MIXTRAL }),
            ..PLAIN
        },
    }
}

/// Defaults of the transformers configuration classes, of keys without which a configuration still says what it describes.
pub(super) fn defaults(family: Family) -> Defaults {
    match family {
        Family::Mistral => &[("num_key_value_heads", 8), ("sliding_window", 4096)],
        Family::Mixtral => {
            &[("num_key_value_heads", 8), ("num_local_experts", 8), ("num_experts_per_tok", 2)]
        }
        Family::Llama4 => &[
            ("num_key_value_heads", 8),
            ("head_dim", 128),
            ("num_local_experts", 16),
            ("num_experts_per_tok", 1),
            ("attention_chunk_size", 8192),
        ],
        Family::Qwen2 => &[("num_key_value_heads", 32), ("sliding_window", 4096), ("max_window_layers", 28)],
        Family::Qwen2Moe => &[
            ("num_key_value_heads", 16),
            ("sliding_window", 4096),
            ("max_window_layers", 28),
            ("num_experts", 60),
            ("num_experts_per_tok", 4),
            ("moe_intermediate_size", 1408),
            ("shared_expert_intermediate_size", 5632),
        ],
        Family::Qwen3 => &[
            ("num_key_value_heads", 32),
            ("head_dim", 128),
            ("sliding_window", 4096),
            ("max_window_layers", 28),
        ],
        Family::Qwen3Moe => &[
            ("num_key_value_heads", 4),
            ("sliding_window", 4096),
            ("num_experts", 128),
            ("num_experts_per_tok", 8),
            ("moe_intermediate_size", 768),
        ],
        Family::Qwen3Next => &[
            ("num_key_value_heads", 2),
            ("head_dim", 256),
            ("linear_conv_kernel_dim", 4),
            ("linear_key_head_dim", 128),
            ("linear_value_head_dim", 128),
            ("linear_num_key_heads", 16),
            ("linear_num_value_heads", 32),
            ("num_experts", 512),
            ("num_experts_per_tok", 10),
            ("moe_intermediate_size", 512),
            ("shared_expert_intermediate_size", 512),
        ],
        Family::NemotronH => &[("n_shared_experts", 1), ("conv_kernel", 4), ("chunk_size", 128)],
        Family::DeepseekV2 => &[("n_routed_experts", 64), ("n_shared_experts", 2), ("q_lora_rank", 1536)],
        Family::DeepseekV3 | Family::DeepseekV32 => &[
            ("n_routed_experts", 256),
            ("n_shared_experts", 1),
            ("num_experts_per_tok", 8),
            ("first_k_dense_replace", 3),
            ("q_lora_rank", 1536),
            ("index_n_heads", 64),
            ("index_head_dim", 128),
            ("index_topk", 2048),
        ],
        Family::GptOss => &[
            ("num_key_value_heads", 8),
            ("head_dim", 64),
            ("sliding_window", 128),
            ("num_local_experts", 128),
            ("num_experts_per_tok", 4),
        ],
        Family::Olmoe => &[("num_experts", 64), ("num_experts_per_tok", 8)],
        Family::Glm | Family::Glm4 => &[("num_key_value_heads", 2), ("head_dim", 128)],
        Family::Glm4Moe => &[
            ("num_key_value_heads", 8),
            ("n_routed_experts", 128),
            ("n_shared_experts", 1),
            ("num_experts_per_tok", 8),
            ("first_k_dense_replace", 1),
            ("moe_intermediate_size", 1408),
        ],
        Family::SmolLm3 => &[("num_key_value_heads", 4)],
        Family::Ministral => &[("num_key_value_heads", 8), ("sliding_window", 4096)],
        Family::Olmo3 => &[("sliding_window", 4096)],
        Family::Gemma => &[("num_key_value_heads", 16), ("head_dim", 256)],
        Family::Gemma2 => &[("num_key_value_heads", 4), ("head_dim", 256), ("sliding_window", 4096)],
        Family::Gemma3 => &[
            ("vocab_size", 262_208),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("head_dim", 256),
            ("max_position_embeddings", 131_072),
            ("sliding_window", 4096),
        ],
        _ => &[],
    }
}
