//! The families that are computed: a page of declarations each.
//!
//! What a family computes in its layers (heads, norms, biases, windows, experts) is its shape, which `bedplate-transformer` reads. A page here
//! adds which keys of a configuration hold the constants of the arithmetic, and how the tensors are called in files. `docs/families.md` says
//! how to add one.

use bedplate_kernels::Pairing;
use bedplate_transformer::Family;

/// A family as it is computed.
pub(crate) struct Page {
    pub(crate) names: Names,
    /// The key of the number that norms add to the mean of squares, and its default.
    pub(crate) epsilon: (&'static str, f64),
    /// Added to the weights of norms.
    pub(crate) norm_offset: f32,
    /// The key of the activation, and its default.
    pub(crate) activation: (&'static str, &'static str),
    /// Keys of what a limited gate is multiplied by before its sigmoid, and of the limit, with their defaults.
    pub(crate) gate_limits: Option<[(&'static str, f64); 2]>,
    pub(crate) attention_scale: Scale,
    /// Keys of what scores of attention and logits are bent to stay below, and their defaults; 0 is none.
    pub(crate) attention_cap: Option<(&'static str, f64)>,
    pub(crate) logit_cap: Option<(&'static str, f64)>,
    pub(crate) multipliers: Multipliers,
    pub(crate) rotary: RotaryPage,
    pub(crate) padding: Padding,
    /// How weights of chosen experts are scaled.
    pub(crate) expert_weights: ExpertWeights,
    /// The default weight of the load-balancing loss.
    pub(crate) balance: f64,
}

/// What products of queries and keys are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// One over the root of the head size.
    HeadSize,
    /// As two switches of GPT-2 say.
    Switches,
    /// One over the root of a key, which is 256 where it is not given.
    RootOf(&'static str),
    /// A key, which is 1 where it is not given.
    Key(&'static str),
    /// One over the root of the head size, and more where positions are stretched with `mscale_all_dim` (DeepSeek).
    Latent,
}

/// Factors around the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Multipliers {
    None,
    /// Embeddings are multiplied by the root of the hidden size (Gemma).
    RootOfHidden,
    /// Keys for embeddings, for what layers add and for logits (Granite).
    Keys,
}

/// The row of the embedding for the token that fills texts up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Padding {
    /// It is learned as any other.
    Learned,
    /// That of `pad_token_id` is not learned where it is put in; here is its default.
    Kept(Option<u32>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ExpertWeights {
    SumToOne,
    /// They do where `norm_topk_prob` is set.
    ByKey,
    /// Times `routed_scaling_factor`; with `topk_method` they are chosen from the groups with the best experts (DeepSeek V2).
    Scaled,
    /// The same of scores that are sigmoids, corrected for the choice alone, from the groups whose two best are best (DeepSeek V3); the
    /// defaults of the factor, of groups, of groups to choose from, and of `norm_topk_prob`.
    Sigmoid {
        scale: f64,
        groups: [u64; 2],
        normalise: bool,
    },
}

/// Rotary positions of a family.
pub(crate) struct RotaryPage {
    /// The default of `rope_theta`, where versions of transformers agree on one.
    pub(crate) theta: Option<f64>,
    /// The default of `partial_rotary_factor`; without one, heads turn as a whole.
    pub(crate) partial: Option<f64>,
    pub(crate) pairing: Pairing,
    /// A switch without which neighbours do not make pairs, where there is one.
    pub(crate) pairing_switch: Option<&'static str>,
    pub(crate) layers: RotaryLayers,
    /// Other names of the scheme `longrope`.
    pub(crate) long_names: &'static [&'static str],
    /// How positions are stretched where no section says how.
    pub(crate) usual: Option<UsualYarn>,
}

/// YaRN as a family has it by default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct UsualYarn {
    pub(crate) factor: f64,
    pub(crate) original: f64,
    pub(crate) is_truncated: bool,
}

/// Which layers have which rotary positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RotaryLayers {
    Same,
    /// Layers with a window have their own, with a key for their base and its default. What stretches positions is for the others.
    ByReach {
        local: Option<(&'static str, f64)>,
    },
    /// Those that `no_rope_layers` lists with a 0, or every `no_rope_layer_interval`-th, have none.
    Listed,
}

/// Names of tensors; those of a layer are stems within it.
pub(crate) struct Names {
    pub(crate) embedding: &'static str,
    pub(crate) positions: &'static str,
    pub(crate) final_norm: &'static str,
    pub(crate) head: &'static str,
    /// A prefix that the names in files of a model saved without its head lack.
    pub(crate) prefix: &'static str,
    pub(crate) layers: &'static str,
    pub(crate) before_attention: &'static str,
    pub(crate) after_attention: &'static str,
    pub(crate) before_mlp: &'static str,
    pub(crate) after_mlp: &'static str,
    /// Queries, keys and values; one name where they are one matrix.
    pub(crate) qkv: &'static [&'static str],
    pub(crate) head_norms: [&'static str; 2],
    pub(crate) output: &'static str,
    pub(crate) mlp: MlpPage,
    /// One score of each head, of families that have sinks.
    pub(crate) sinks: &'static str,
    /// What the names of latent attention begin with.
    pub(crate) latent: &'static str,
    pub(crate) router: &'static str,
    /// What is added to the scores by which experts are chosen.
    pub(crate) correction: &'static str,
    /// What the names of routed experts begin with.
    pub(crate) experts: &'static str,
    pub(crate) expert: ExpertPage,
    pub(crate) shared: MlpPage,
    pub(crate) shared_gate: &'static str,
    /// Linear layers are stored as `inputs x outputs`.
    pub(crate) are_transposed: bool,
}

/// Names of a feed-forward part.
#[derive(Clone, Copy)]
pub(crate) struct MlpPage {
    /// Absent where gate and up are one matrix, or where there is no gate.
    pub(crate) gate: Option<&'static str>,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
}

/// Names of the routed experts of a layer, behind what they begin with.
#[derive(Clone, Copy)]
pub(crate) enum ExpertPage {
    /// Of each by itself, behind its number.
    Each(MlpPage),
    /// Of all in one tensor, as `experts x inputs x outputs`, the outputs of gate and up by turns; the names of biases end in `_bias`.
    Together { gate_up: &'static str, down: &'static str },
}

const GATED: MlpPage = MlpPage { gate: Some("gate_proj"), up: "up_proj", down: "down_proj" };
const MLP: MlpPage = MlpPage { gate: Some("mlp.gate_proj"), up: "mlp.up_proj", down: "mlp.down_proj" };
/// Gate and up in one matrix.
const FUSED_MLP: MlpPage = MlpPage { gate: None, up: "mlp.gate_up_proj", down: "mlp.down_proj" };

const LLAMA_NAMES: Names = Names {
    embedding: "model.embed_tokens.weight",
    positions: "",
    final_norm: "model.norm",
    head: "lm_head.weight",
    prefix: "model.",
    layers: "model.layers",
    before_attention: "input_layernorm",
    after_attention: "",
    before_mlp: "post_attention_layernorm",
    after_mlp: "",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    head_norms: ["self_attn.q_norm.weight", "self_attn.k_norm.weight"],
    output: "self_attn.o_proj",
    mlp: MLP,
    sinks: "self_attn.sinks",
    latent: "self_attn",
    router: "mlp.gate",
    correction: "mlp.gate.e_score_correction_bias",
    experts: "mlp.experts",
    expert: ExpertPage::Each(GATED),
    shared: MlpPage {
        gate: Some("mlp.shared_expert.gate_proj"),
        up: "mlp.shared_expert.up_proj",
        down: "mlp.shared_expert.down_proj",
    },
    shared_gate: "mlp.shared_expert_gate.weight",
    are_transposed: false,
};

/// Norms on both sides of attention and MLP, as Gemma calls them.
const SANDWICH_NAMES: Names = Names {
    after_attention: "post_attention_layernorm",
    before_mlp: "pre_feedforward_layernorm",
    after_mlp: "post_feedforward_layernorm",
    ..LLAMA_NAMES
};

const ROTARY: RotaryPage = RotaryPage {
    theta: Some(1e4),
    partial: None,
    pairing: Pairing::Halves,
    pairing_switch: None,
    layers: RotaryLayers::Same,
    long_names: &[],
    usual: None,
};

const LLAMA: Page = Page {
    names: LLAMA_NAMES,
    epsilon: ("rms_norm_eps", 1e-6),
    norm_offset: 0.0,
    activation: ("hidden_act", "silu"),
    gate_limits: None,
    attention_scale: Scale::HeadSize,
    attention_cap: None,
    logit_cap: None,
    multipliers: Multipliers::None,
    rotary: ROTARY,
    padding: Padding::Kept(None),
    expert_weights: ExpertWeights::ByKey,
    balance: 0.001,
};

const GEMMA: Page = Page {
    norm_offset: 1.0,
    padding: Padding::Kept(Some(0)),
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    attention_scale: Scale::RootOf("query_pre_attn_scalar"),
    multipliers: Multipliers::RootOfHidden,
    ..LLAMA
};

const GLM: Page = Page {
    names: Names { mlp: FUSED_MLP, ..LLAMA_NAMES },
    epsilon: ("rms_norm_eps", 1.5625e-7),
    rotary: RotaryPage { partial: Some(0.5), pairing: Pairing::Neighbours, ..ROTARY },
    padding: Padding::Kept(Some(151_329)),
    ..LLAMA
};

const OLMO: Page = Page {
    names: Names {
        after_attention: "post_attention_layernorm",
        after_mlp: "post_feedforward_layernorm",
        ..LLAMA_NAMES
    },
    epsilon: ("rms_norm_eps", 1e-5),
    padding: Padding::Kept(Some(1)),
    ..LLAMA
};

const SHARED_EXPERTS: MlpPage = MlpPage {
    gate: Some("mlp.shared_experts.gate_proj"),
    up: "mlp.shared_experts.up_proj",
    down: "mlp.shared_experts.down_proj",
};

const DEEPSEEK: Page = Page {
    names: Names { shared: SHARED_EXPERTS, ..LLAMA_NAMES },
    attention_scale: Scale::Latent,
    rotary: RotaryPage { pairing: Pairing::Neighbours, ..ROTARY },
    expert_weights: ExpertWeights::Scaled,
    balance: 0.0,
    ..LLAMA
};

/// The page of a family; `None` where it is not computed.
pub(crate) fn page(family: Family) -> Option<Page> {
    Some(match family {
        Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen2Moe | Family::Qwen3 => LLAMA,
        Family::Qwen3Moe | Family::Ministral => LLAMA,
        Family::Gpt2 => gpt2(),
        Family::Mixtral => mixtral(),
        Family::Gemma => Page {
            activation: ("hidden_act", "gelu_pytorch_tanh"),
            attention_scale: Scale::HeadSize,
            ..GEMMA
        },
        Family::Gemma2 => Page {
            names: SANDWICH_NAMES,
            attention_cap: Some(("attn_logit_softcapping", 50.0)),
            logit_cap: Some(("final_logit_softcapping", 30.0)),
            ..GEMMA
        },
        Family::Gemma3 => Page {
            names: SANDWICH_NAMES,
            attention_cap: Some(("attn_logit_softcapping", 0.0)),
            logit_cap: Some(("final_logit_softcapping", 0.0)),
            rotary: RotaryPage {
                theta: Some(1e6),
                layers: RotaryLayers::ByReach { local: Some(("rope_local_base_freq", 1e4)) },
                ..ROTARY
            },
            ..GEMMA
        },
        Family::Phi3 => Page {
            names: Names { qkv: &["self_attn.qkv_proj"], mlp: FUSED_MLP, ..LLAMA_NAMES },
            epsilon: ("rms_norm_eps", 1e-5),
            rotary: RotaryPage { partial: Some(1.0), long_names: &["su", "yarn"], ..ROTARY },
            padding: Padding::Kept(Some(32_000)),
            ..LLAMA
        },
        Family::Olmo2 => OLMO,
        Family::Olmo3 => Page {
            rotary: RotaryPage { layers: RotaryLayers::ByReach { local: None }, theta: None, ..ROTARY },
            ..OLMO
        },
        Family::Olmoe => {
            Page { epsilon: ("rms_norm_eps", 1e-5), padding: Padding::Kept(Some(1)), balance: 0.01, ..LLAMA }
        }
        Family::Glm => GLM,
        Family::Glm4 => Page {
            names: Names {
                after_attention: "post_self_attn_layernorm",
                after_mlp: "post_mlp_layernorm",
                mlp: FUSED_MLP,
                ..LLAMA_NAMES
            },
            ..GLM
        },
        // With the router of DeepSeek V3.
        Family::Glm4Moe => Page {
            names: Names { shared: SHARED_EXPERTS, ..LLAMA_NAMES },
            epsilon: ("rms_norm_eps", 1e-5),
            rotary: RotaryPage { partial: Some(0.5), ..ROTARY },
            expert_weights: ExpertWeights::Sigmoid { scale: 1.0, groups: [1, 1], normalise: true },
            balance: 0.0,
            ..LLAMA
        },
        Family::SmolLm3 => {
            let rotary = RotaryPage { theta: Some(2e6), layers: RotaryLayers::Listed, ..ROTARY };
            Page { rotary, padding: Padding::Kept(Some(128_004)), ..LLAMA }
        }
        Family::Granite => Page {
            attention_scale: Scale::Key("attention_multiplier"),
            multipliers: Multipliers::Keys,
            ..LLAMA
        },
        Family::GptOss => gpt_oss(),
        Family::DeepseekV2 => DEEPSEEK,
        Family::DeepseekV3 => Page {
            rotary: RotaryPage { pairing_switch: Some("rope_interleave"), ..DEEPSEEK.rotary },
            expert_weights: ExpertWeights::Sigmoid { scale: 2.5, groups: [8, 4], normalise: true },
            ..DEEPSEEK
        },
        _ => return None,
    })
}

fn gpt_oss() -> Page {
    let together = ExpertPage::Together { gate_up: "gate_up_proj", down: "down_proj" };
    Page {
        names: Names { router: "mlp.router", expert: together, ..LLAMA_NAMES },
        epsilon: ("rms_norm_eps", 1e-5),
        gate_limits: Some([("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)]),
        rotary: RotaryPage {
            theta: Some(150_000.0),
            usual: Some(UsualYarn { factor: 32.0, original: 4096.0, is_truncated: false }),
            ..ROTARY
        },
        expert_weights: ExpertWeights::SumToOne,
        ..LLAMA
    }
}

fn mixtral() -> Page {
    Page {
        names: Names {
            router: "block_sparse_moe.gate",
            experts: "block_sparse_moe.experts",
            expert: ExpertPage::Each(MlpPage { gate: Some("w1"), up: "w3", down: "w2" }),
            ..LLAMA_NAMES
        },
        epsilon: ("rms_norm_eps", 1e-5),
        rotary: RotaryPage { theta: Some(1e6), ..ROTARY },
        expert_weights: ExpertWeights::SumToOne,
        ..LLAMA
    }
}

fn gpt2() -> Page {
    Page {
        names: Names {
            embedding: "transformer.wte.weight",
            positions: "transformer.wpe.weight",
            final_norm: "transformer.ln_f",
            prefix: "transformer.",
            layers: "transformer.h",
            before_attention: "ln_1",
            before_mlp: "ln_2",
            qkv: &["attn.c_attn"],
            output: "attn.c_proj",
            mlp: MlpPage { gate: None, up: "mlp.c_fc", down: "mlp.c_proj" },
            are_transposed: true,
            ..LLAMA_NAMES
        },
        epsilon: ("layer_norm_epsilon", 1e-5),
        activation: ("activation_function", "gelu_new"),
        attention_scale: Scale::Switches,
        padding: Padding::Learned,
        ..LLAMA
    }
}
