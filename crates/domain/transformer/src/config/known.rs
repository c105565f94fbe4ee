//! Every key that a family's configurations may have, and what becomes of it: a key that is read and ignored is a bug.
//!
//! The rows follow the configuration classes of transformers; `tests/keys.rs` holds them against the lists that
//! `tests/oracle/walk.py` takes from two major versions of it.

use crate::Family;

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Part of the shape; this crate reads it.
    Shape,
    /// Part of the arithmetic and not of the shape; it is read where a model is computed.
    Arithmetic,
    /// Changes nothing that this program computes.
    Harmless,
    /// A feature that this program does not compute unless the key has this value, in JSON.
    Only(&'static str),
    /// Something that this program leaves out of training unless the key has this value, in JSON.
    LeftOut(&'static str),
}

use Fate::{Arithmetic, Harmless, LeftOut, Only, Shape};

type Rows = &'static [(&'static str, Fate)];

/// The fate of a key; `None` where configurations of the family have no such key.
pub(super) fn fate(family: Family, key: &str) -> Option<Fate> {
    let rows = rows(family).iter().chain([&EVERY]);
    rows.flat_map(|rows| rows.iter()).find(|(known, _)| *known == key).map(|(_, fate)| *fate)
}

/// Every key of a family, with its fate.
pub(super) fn keys(family: Family) -> impl Iterator<Item = (&'static str, Fate)> {
    rows(family).iter().chain([&EVERY]).flat_map(|rows| rows.iter().copied())
}

/// Other names of a key, by which transformers reads it too.
pub(super) fn aliases(family: Family) -> &'static [(&'static str, &'static str)] {
    match family {
        Family::Gpt2 => &[
            ("n_embd", "hidden_size"),
            ("n_head", "num_attention_heads"),
            ("n_layer", "num_hidden_layers"),
            ("n_positions", "max_position_embeddings"),
        ],
        Family::Bloom => {
            &[("hidden_size", "n_embed"), ("n_head", "num_attention_heads"), ("n_layer", "num_hidden_layers")]
        }
        Family::Mpt => &[
            ("d_model", "hidden_size"),
            ("n_heads", "num_attention_heads"),
            ("n_layers", "num_hidden_layers"),
        ],
        Family::Mixtral | Family::Llama4 => &[("num_local_experts", "num_experts")],
        Family::GptOss => {
            &[("num_local_experts", "num_experts"), ("num_experts_per_tok", "experts_per_token")]
        }
        // transformers 5 writes the number of experts under Mixtral's key.
        Family::Qwen2Moe | Family::Qwen3Moe | Family::Olmoe => &[("num_experts", "num_local_experts")],
        Family::DeepseekV2 => {
            &[("n_routed_experts", "num_experts"), ("n_routed_experts", "num_local_experts")]
        }
        Family::DeepseekV3 | Family::DeepseekV32 | Family::Glm4Moe => &[
            ("n_routed_experts", "num_local_experts"),
            ("n_routed_experts", "num_experts"),
            ("num_nextn_predict_layers", "num_mtp_layers"),
        ],
        _ => &[],
    }
}

fn rows(family: Family) -> &'static [Rows] {
    match family {
        Family::Gpt2 => &[GPT2],
        Family::Bloom => &[BLOOM],
        Family::Mpt => &[MPT],
        Family::Llama => &[ROTARY, GROUPED, ATTENTION_BIAS, &[("mlp_bias", Shape)]],
        Family::Llama4 => &[LLAMA4, ROTARY, GROUPED, ATTENTION_BIAS, EXPERTS],
        Family::Mistral => &[ROTARY, GROUPED, WINDOW],
        Family::Mixtral => &[ROTARY, GROUPED, WINDOW, EXPERTS],
        Family::Qwen2 => &[ROTARY, GROUPED, WINDOW, UPPER_WINDOWS],
        Family::Qwen2Moe => &[QWEN2_MOE, ROTARY, GROUPED, WINDOW, UPPER_WINDOWS, EXPERTS, SPARSE_STEPS],
        Family::Qwen3 => &[ROTARY, GROUPED, ATTENTION_BIAS, WINDOW, UPPER_WINDOWS],
        Family::Qwen3Moe => &[QWEN3_MOE, ROTARY, GROUPED, ATTENTION_BIAS, WINDOW, EXPERTS, SPARSE_STEPS],
        Family::Qwen3Next => &[QWEN3_NEXT, QWEN2_MOE, ROTARY, GROUPED, ATTENTION_BIAS, EXPERTS, SPARSE_STEPS],
        Family::NemotronH => &[NEMOTRON_H],
        Family::DeepseekV2 => &[&[("mlp_bias", Only("false"))], DEEPSEEK, ROTARY, ATTENTION_BIAS],
        Family::DeepseekV3 => &[DEEPSEEK, ROTARY, ATTENTION_BIAS],
        Family::DeepseekV32 => &[INDEXER, DEEPSEEK, ROTARY, ATTENTION_BIAS],
        Family::GptOss => &[GPT_OSS, ROTARY, GROUPED, ATTENTION_BIAS, WINDOW, LAYER_TYPES, EXPERTS],
        Family::Gemma => &[GEMMA, ROTARY, GROUPED, ATTENTION_BIAS],
        Family::Gemma2 => &[GEMMA2, ROTARY, GROUPED, ATTENTION_BIAS, WINDOW, LAYER_TYPES, PATTERN],
        Family::Gemma3 => &[GEMMA3, GEMMA2, ROTARY, GROUPED, ATTENTION_BIAS, WINDOW, LAYER_TYPES, PATTERN],
        Family::Phi3 => &[PHI3, ROTARY, GROUPED, WINDOW],
        Family::Olmo2 => &[ROTARY, GROUPED, ATTENTION_BIAS],
        Family::Olmo3 => &[ROTARY, GROUPED, ATTENTION_BIAS, WINDOW, LAYER_TYPES],
        Family::Olmoe => &[OLMOE, ROTARY, GROUPED, ATTENTION_BIAS, EXPERTS],
        Family::Glm4Moe => &[GLM4_MOE, ROTARY, GROUPED, ATTENTION_BIAS],
        Family::Glm | Family::Glm4 => &[ROTARY, GROUPED, ATTENTION_BIAS],
        Family::SmolLm3 => &[SMOLLM3, ROTARY, GROUPED, ATTENTION_BIAS],
        Family::Granite => &[GRANITE, ROTARY, GROUPED, ATTENTION_BIAS],
        Family::Ministral => &[ROTARY, GROUPED, WINDOW, LAYER_TYPES],
        Family::Nemotron => &[NEMOTRON, ROTARY, GROUPED, ATTENTION_BIAS],
        Family::Grok1 => &[GROK1, ROTARY, GROUPED],
    }
}

/// Keys of every configuration.
const EVERY: Rows = &[
    ("model_type", Shape),
    ("_name_or_path", Shape),
    ("vocab_size", Shape),
    ("tie_word_embeddings", Shape),
    ("initializer_range", Arithmetic),
    ("is_encoder_decoder", Only("false")),
    ("add_cross_attention", Only("false")),
    ("pruned_heads", Only("{}")),
    ("quantization_config", Only("null")),
    // Models that make vectors may see what follows; published code reads this key.
    ("is_causal", Only("true")),
    // What a model is for, and who made it.
    ("_commit_hash", Harmless),
    ("_source", Harmless),
    ("architectures", Harmless),
    ("auto_map", Harmless),
    ("finetuning_task", Harmless),
    ("id2label", Harmless),
    ("label2id", Harmless),
    ("num_labels", Harmless),
    ("problem_type", Harmless),
    ("task_specific_params", Harmless),
    ("transformers_version", Harmless),
    // How transformers computes it, to the same result.
    ("_attn_implementation_autoset", Harmless),
    ("attn_implementation", Harmless),
    ("chunk_size_feed_forward", Harmless),
    ("gradient_checkpointing", Harmless),
    ("pretraining_tp", Harmless),
    ("tf_legacy_loss", Harmless),
    ("torchscript", Harmless),
    ("use_bfloat16", Harmless),
    ("use_cache", Harmless),
    // What its outputs are; formats follow from the weights and from `training.precision`.
    ("dtype", Harmless),
    ("torch_dtype", Harmless),
    ("output_attentions", Harmless),
    ("output_hidden_states", Harmless),
    ("output_router_logits", Harmless),
    ("output_scores", Harmless),
    ("return_dict", Harmless),
    ("return_dict_in_generate", Harmless),
    // Encoders and decoders of other models; a decoder's flag alone changes nothing in these families.
    ("cross_attention_hidden_size", Harmless),
    ("is_decoder", Harmless),
    ("tie_encoder_decoder", Harmless),
    // Which tokens stand for images and videos.
    ("image_token_id", Harmless),
    ("video_token_id", Harmless),
    ("vision_end_token_id", Harmless),
    ("vision_start_token_id", Harmless),
    ("vision_token_id", Harmless),
    // Text and its generation.
    ("bad_words_ids", Harmless),
    ("begin_suppress_tokens", Harmless),
    ("bos_token_id", Harmless),
    ("decoder_start_token_id", Harmless),
    ("diversity_penalty", Harmless),
    ("do_sample", Harmless),
    ("early_stopping", Harmless),
    ("encoder_no_repeat_ngram_size", Harmless),
    ("eos_token_id", Harmless),
    ("exponential_decay_length_penalty", Harmless),
    ("forced_bos_token_id", Harmless),
    ("forced_eos_token_id", Harmless),
    ("length_penalty", Harmless),
    ("max_length", Harmless),
    ("min_length", Harmless),
    ("no_repeat_ngram_size", Harmless),
    ("num_beam_groups", Harmless),
    ("num_beams", Harmless),
    ("num_return_sequences", Harmless),
    ("pad_token_id", Arithmetic),
    ("prefix", Harmless),
    ("remove_invalid_values", Harmless),
    ("repetition_penalty", Harmless),
    ("sep_token_id", Harmless),
    ("suppress_tokens", Harmless),
    ("temperature", Harmless),
    ("tokenizer_class", Harmless),
    ("top_k", Harmless),
    ("top_p", Harmless),
    ("typical_p", Harmless),
    ("unk_token_id", Harmless),
];

const GPT2: Rows = &[
    ("n_embd", Shape),
    ("hidden_size", Shape),
    ("n_head", Shape),
    ("num_attention_heads", Shape),
    ("n_layer", Shape),
    ("num_hidden_layers", Shape),
    ("n_positions", Shape),
    ("max_position_embeddings", Shape),
    ("n_inner", Shape),
    ("activation_function", Arithmetic),
    ("layer_norm_epsilon", Arithmetic),
    ("scale_attn_weights", Arithmetic),
    ("scale_attn_by_inverse_layer_idx", Arithmetic),
    ("resid_pdrop", LeftOut("0")),
    ("embd_pdrop", LeftOut("0")),
    ("attn_pdrop", LeftOut("0")),
    // The order of a product and its format, which in f32 is the same.
    ("reorder_and_upcast_attn", Harmless),
    // The older name of `n_positions`, written beside it.
    ("n_ctx", Harmless),
    // Its row of the embedding is learned as any other.
    ("pad_token_id", Harmless),
    // A head for choosing among texts, which language models do not have.
    ("summary_type", Harmless),
    ("summary_use_proj", Harmless),
    ("summary_activation", Harmless),
    ("summary_first_dropout", Harmless),
    ("summary_proj_to_labels", Harmless),
];

const BLOOM: Rows = &[
    ("hidden_size", Shape),
    ("n_embed", Shape),
    ("n_head", Shape),
    ("num_attention_heads", Shape),
    ("n_layer", Shape),
    ("num_hidden_layers", Shape),
    ("seq_length", Shape),
    ("layer_norm_epsilon", Arithmetic),
    ("apply_residual_connection_post_layernorm", Arithmetic),
    ("hidden_dropout", LeftOut("0")),
    ("attention_dropout", LeftOut("0")),
    ("slow_but_exact", Harmless),
    ("attention_softmax_in_fp32", Harmless),
    ("bias_dropout_fusion", Harmless),
    ("masked_softmax_fusion", Harmless),
    ("offset_alibi", Harmless),
    ("skip_bias_add", Harmless),
    ("skip_bias_add_qkv", Harmless),
];

const MPT: Rows = &[
    ("d_model", Shape),
    ("hidden_size", Shape),
    ("n_heads", Shape),
    ("num_attention_heads", Shape),
    ("n_layers", Shape),
    ("num_hidden_layers", Shape),
    ("expansion_ratio", Shape),
    ("max_seq_len", Shape),
    ("attn_config", Shape),
    ("learned_pos_emb", Shape),
    ("no_bias", Shape),
    ("layer_norm_epsilon", Arithmetic),
    ("logit_scale", Arithmetic),
    ("norm_type", Arithmetic),
    ("resid_pdrop", LeftOut("0")),
    ("emb_pdrop", LeftOut("0")),
    ("embedding_fraction", Harmless),
    ("init_config", Harmless),
    ("init_device", Harmless),
    ("verbose", Harmless),
];

const ROTARY: Rows = &[
    ("hidden_size", Shape),
    ("intermediate_size", Shape),
    ("num_hidden_layers", Shape),
    ("num_attention_heads", Shape),
    ("max_position_embeddings", Shape),
    ("hidden_act", Arithmetic),
    ("rms_norm_eps", Arithmetic),
    ("rope_theta", Arithmetic),
    ("rope_scaling", Arithmetic),
    ("rope_parameters", Arithmetic),
    ("partial_rotary_factor", Arithmetic),
    // What `rope_scaling` stretches from; transformers reads it for every family.
    ("original_max_position_embeddings", Arithmetic),
    ("attention_dropout", LeftOut("0")),
];

const GROUPED: Rows = &[("num_key_value_heads", Shape), ("head_dim", Shape)];
const ATTENTION_BIAS: Rows = &[("attention_bias", Shape)];
const WINDOW: Rows = &[("sliding_window", Shape)];
const LAYER_TYPES: Rows = &[("layer_types", Shape)];
const PATTERN: Rows = &[("sliding_window_pattern", Shape), ("_sliding_window_pattern", Harmless)];

/// Windows that are switched on by a key of their own.
const UPPER_WINDOWS: Rows =
    &[("use_sliding_window", Shape), ("max_window_layers", Shape), ("layer_types", Shape)];

const EXPERTS: Rows = &[
    ("num_local_experts", Shape),
    ("num_experts", Shape),
    ("num_experts_per_tok", Shape),
    ("router_aux_loss_coef", Arithmetic),
    ("router_jitter_noise", LeftOut("0")),
];

const SPARSE_STEPS: Rows = &[
    ("moe_intermediate_size", Shape),
    ("decoder_sparse_step", Shape),
    ("mlp_only_layers", Shape),
    ("norm_topk_prob", Arithmetic),
];

const QWEN2_MOE: Rows = &[("qkv_bias", Shape), ("shared_expert_intermediate_size", Shape)];

/// `max_window_layers` stands in released files, and transformers reads it in no version.
const QWEN3_MOE: Rows = &[("use_sliding_window", Shape), ("max_window_layers", Harmless)];

const QWEN3_NEXT: Rows = &[
    ("layer_types", Shape),
    ("full_attention_interval", Shape),
    ("linear_conv_kernel_dim", Shape),
    ("linear_key_head_dim", Shape),
    ("linear_value_head_dim", Shape),
    ("linear_num_key_heads", Shape),
    ("linear_num_value_heads", Shape),
    ("partial_rotary_factor", Arithmetic),
    ("mtp_num_hidden_layers", LeftOut("0")),
    ("mtp_use_dedicated_embeddings", Harmless),
    ("attn_output_gate", Only("true")),
];

const NEMOTRON_H: Rows = &[
    ("hidden_size", Shape),
    ("num_hidden_layers", Shape),
    ("hybrid_override_pattern", Shape),
    ("max_position_embeddings", Shape),
    ("mamba_num_heads", Shape),
    ("mamba_head_dim", Shape),
    ("n_groups", Shape),
    ("ssm_state_size", Shape),
    ("conv_kernel", Shape),
    ("chunk_size", Shape),
    ("use_conv_bias", Shape),
    ("use_bias", Shape),
    ("mamba_proj_bias", Only("false")),
    ("num_attention_heads", Shape),
    ("num_key_value_heads", Shape),
    ("attention_head_dim", Shape),
    ("head_dim", Shape),
    ("attention_bias", Shape),
    ("intermediate_size", Shape),
    ("mlp_bias", Shape),
    ("n_routed_experts", Shape),
    ("num_experts_per_tok", Shape),
    ("moe_intermediate_size", Shape),
    ("moe_shared_expert_intermediate_size", Shape),
    ("n_shared_experts", Shape),
    // Experts that work on a narrower copy of the token are not described.
    ("moe_latent_size", Only("null")),
    ("num_nextn_predict_layers", LeftOut("0")),
    ("mamba_hidden_act", Arithmetic),
    ("mlp_hidden_act", Arithmetic),
    ("hidden_act", Arithmetic),
    ("layer_norm_epsilon", Arithmetic),
    ("rms_norm_eps", Arithmetic),
    ("norm_eps", Arithmetic),
    ("expand", Harmless),
    ("n_group", Arithmetic),
    ("topk_group", Arithmetic),
    ("norm_topk_prob", Arithmetic),
    ("routed_scaling_factor", Arithmetic),
    ("attention_dropout", LeftOut("0")),
    ("hidden_dropout", LeftOut("0")),
    ("sliding_window", Only("null")),
    ("rope_theta", Harmless),
    ("partial_rotary_factor", Harmless),
    ("time_step_floor", Arithmetic),
    ("time_step_limit", Arithmetic),
    ("time_step_max", Arithmetic),
    ("time_step_min", Arithmetic),
    ("time_step_rank", Arithmetic),
    ("mamba_dt_init_floor", Arithmetic),
    ("num_logits_to_keep", Harmless),
    ("rescale_prenorm_residual", Harmless),
    ("residual_in_fp32", Harmless),
    ("use_mamba_kernels", Harmless),
];

const LLAMA4: Rows = &[
    ("intermediate_size_mlp", Shape),
    ("attention_chunk_size", Shape),
    ("interleave_moe_layer_step", Shape),
    ("layer_types", Shape),
    ("moe_layers", Shape),
    ("no_rope_layers", Shape),
    ("no_rope_layer_interval", Shape),
    ("attn_scale", Arithmetic),
    ("attn_temperature_tuning", Arithmetic),
    ("floor_scale", Arithmetic),
    ("use_qk_norm", Arithmetic),
    ("for_llm_compressor", Harmless),
];

const DEEPSEEK: Rows = &[
    ("kv_lora_rank", Shape),
    ("q_lora_rank", Shape),
    ("qk_nope_head_dim", Shape),
    ("qk_rope_head_dim", Shape),
    ("v_head_dim", Shape),
    ("first_k_dense_replace", Shape),
    ("moe_intermediate_size", Shape),
    ("moe_layer_freq", Shape),
    ("n_routed_experts", Shape),
    ("num_experts", Shape),
    ("num_local_experts", Shape),
    ("n_shared_experts", Shape),
    ("num_experts_per_tok", Shape),
    ("num_nextn_predict_layers", Shape),
    ("num_mtp_layers", Shape),
    ("aux_loss_alpha", Arithmetic),
    ("n_group", Arithmetic),
    ("norm_topk_prob", Arithmetic),
    ("rope_interleave", Arithmetic),
    ("routed_scaling_factor", Arithmetic),
    ("scoring_func", Arithmetic),
    ("seq_aux", Arithmetic),
    ("topk_group", Arithmetic),
    ("topk_method", Arithmetic),
    // They follow from the sizes above.
    ("head_dim", Harmless),
    ("num_key_value_heads", Harmless),
    ("qk_head_dim", Harmless),
    ("ep_size", Harmless),
];

const GLM4_MOE: Rows = &[
    ("use_qk_norm", Shape),
    ("first_k_dense_replace", Shape),
    ("moe_intermediate_size", Shape),
    ("n_routed_experts", Shape),
    ("num_experts", Shape),
    ("num_local_experts", Shape),
    ("n_shared_experts", Shape),
    ("num_experts_per_tok", Shape),
    ("num_nextn_predict_layers", Shape),
    ("num_mtp_layers", Shape),
    ("n_group", Arithmetic),
    ("topk_group", Arithmetic),
    ("norm_topk_prob", Arithmetic),
    ("routed_scaling_factor", Arithmetic),
];

const INDEXER: Rows = &[("index_n_heads", Shape), ("index_head_dim", Shape), ("index_topk", Shape)];

const GPT_OSS: Rows = &[
    ("experts_per_token", Shape),
    ("swiglu_alpha", Arithmetic),
    ("swiglu_limit", Arithmetic),
    ("initial_context_length", Harmless),
];

/// The activation of the first Gemma stood under another key, which transformers reads in no version any more.
const GEMMA: Rows = &[
    ("hidden_activation", Harmless),
    ("use_bidirectional_attention", Only("false")),
    ("cache_implementation", Harmless),
];

const GEMMA2: Rows = &[
    ("hidden_activation", Arithmetic),
    // transformers reads the other one.
    ("hidden_act", Harmless),
    ("query_pre_attn_scalar", Arithmetic),
    ("final_logit_softcapping", Arithmetic),
    ("attn_logit_softcapping", Arithmetic),
    ("use_bidirectional_attention", Only("false")),
    ("cache_implementation", Harmless),
];

const GEMMA3: Rows = &[("rope_local_base_freq", Arithmetic)];

const PHI3: Rows = &[("resid_pdrop", LeftOut("0")), ("embd_pdrop", LeftOut("0"))];

const OLMOE: Rows = &[("norm_topk_prob", Arithmetic), ("clip_qkv", Only("null"))];

const SMOLLM3: Rows = &[
    ("mlp_bias", Shape),
    ("no_rope_layers", Arithmetic),
    ("no_rope_layer_interval", Arithmetic),
    ("use_sliding_window", Only("false")),
    // Without the switch no layer is bounded.
    ("sliding_window", Harmless),
    ("layer_types", Harmless),
];

const GRANITE: Rows = &[
    ("mlp_bias", Shape),
    ("embedding_multiplier", Arithmetic),
    ("attention_multiplier", Arithmetic),
    ("residual_multiplier", Arithmetic),
    ("logits_scaling", Arithmetic),
];

const NEMOTRON: Rows =
    &[("mlp_bias", Shape), ("norm_eps", Arithmetic), ("partial_rotary_factor", Arithmetic)];

const GROK1: Rows = &[
    ("num_experts", Shape),
    ("num_experts_per_tok", Shape),
    ("attn_output_multiplier", Arithmetic),
    ("embedding_multiplier_scale", Arithmetic),
    ("max_attn_value", Arithmetic),
    ("output_multiplier_scale", Arithmetic),
    ("router_aux_loss_coef", Arithmetic),
];
