//! The shape of a model as flags of Megatron-LM's `pretrain_gpt.py`.

use bedplate_transformer::{Attention, Family, Mixture, Mlp, Norm, Positions, QkNorm, Reach, Transformer};

use super::Lacks;

/// One group of flags a line.
pub(super) fn flags(model: &Transformer, sequence: u64) -> Result<Vec<String>, Lacks> {
    if model.is_hybrid() {
        return Err(Lacks::Hybrid);
    }
    if model.family == Family::DeepseekV32 {
        return Err(Lacks::Indexer);
    }
    let mut lines = vec![
        format!("--num-layers {} --hidden-size {}", model.layer_count(), model.hidden),
        format!("--max-position-embeddings {}", model.max_context.max(sequence)),
    ];
    lines.extend(attention(model));
    lines.push(feed_forward(model));
    if let Some(mixture) = model.layers().find_map(|layer| layer.mlp.mixture()) {
        lines.push(experts(model, mixture));
    }
    lines.push(norms_and_positions(model)?);
    Ok(lines)
}

fn attention(model: &Transformer) -> Vec<String> {
    let Some(layer) = model.layers().next() else { return Vec::new() };
    match &layer.attention {
        Attention::GroupedQuery(heads) => {
            let mut line = format!("--num-attention-heads {} --kv-channels {}", heads.heads, heads.head_dim);
            if heads.kv_heads != heads.heads {
                line += &format!(" --group-query-attention --num-query-groups {}", heads.kv_heads);
            }
            line += if heads.has_qkv_bias { " --add-qkv-bias" } else { "" };
            line += if heads.qk_norm == QkNorm::Head { " --qk-layernorm" } else { "" };
            line += if heads.has_sinks { " --softmax-type learnable" } else { "" };
            vec![line]
        }
        Attention::Latent(latent) => {
            let mut line = format!(
                "--multi-latent-attention --num-attention-heads {} --kv-lora-rank {}",
                latent.heads, latent.kv_rank
            );
            if let Some(rank) = latent.query_rank {
                line += &format!(" --q-lora-rank {rank}");
            }
            let widths = format!(
                "--qk-head-dim {} --qk-pos-emb-head-dim {} --v-head-dim {}",
                latent.nope_dim, latent.rope_dim, latent.value_dim
            );
            vec![line, widths]
        }
        // Refused before.
        Attention::Recurrent(_) | Attention::Absent => Vec::new(),
    }
}

fn feed_forward(model: &Transformer) -> String {
    let dense = model.layers().find_map(|layer| match layer.mlp {
        Mlp::Dense(dense) => Some(dense),
        Mlp::Mixture(_) | Mlp::Absent => None,
    });
    let routed = model.layers().find_map(|layer| layer.mlp.mixture()).map(|mixture| mixture.expert);
    let Some(mlp) = dense.or(routed) else { return String::new() };
    let mut line = format!("--ffn-hidden-size {}", mlp.width);
    line += if mlp.is_gated { " --swiglu" } else { "" };
    line += if mlp.has_bias { "" } else { " --disable-bias-linear" };
    line
}

fn experts(model: &Transformer, mixture: &Mixture) -> String {
    let mut line = format!(
        "--num-experts {} --moe-router-topk {} --moe-ffn-hidden-size {}",
        mixture.experts, mixture.per_token, mixture.expert.width
    );
    if let Some(shared) = &mixture.shared {
        line += &format!(" --moe-shared-expert-intermediate-size {}", shared.width);
    }
    line += if mixture.has_shared_gate { " --moe-shared-expert-gate" } else { "" };
    if mixture.has_correction_bias {
        line += " --moe-router-score-function sigmoid --moe-router-enable-expert-bias";
    }
    if model.layers().any(|layer| layer.mlp.mixture().is_none()) {
        line += &format!(" --moe-layer-freq '{}'", layer_pattern(model));
    }
    line
}

/// Which layers have experts, as Megatron writes it: `([0]*3+[1]*58)`.
fn layer_pattern(model: &Transformer) -> String {
    let has_experts: Vec<bool> = model.layers().map(|layer| layer.mlp.mixture().is_some()).collect();
    let runs = has_experts.chunk_by(|a, b| a == b);
    let runs: Vec<String> = runs.map(|run| format!("[{}]*{}", u8::from(run[0]), run.len())).collect();
    format!("({})", runs.join("+"))
}

fn norms_and_positions(model: &Transformer) -> Result<String, Lacks> {
    let norm = match model.norm {
        Norm::Rms => "RMSNorm",
        Norm::LayerNorm | Norm::LayerNormWithoutBias => "LayerNorm",
    };
    let positions = match model.positions {
        Positions::Rotary => "rope",
        Positions::Learned { .. } => "learned_absolute",
        Positions::Absent => "none",
        Positions::Alibi => return Err(Lacks::Alibi),
    };
    let mut line = format!("--normalization {norm} --position-embedding-type {positions}");
    line += if model.has_tied_embeddings { "" } else { " --untie-embeddings-and-output-weights" };
    Ok(line)
}

/// What these flags do not say about a model.
pub(super) fn remarks(model: &Transformer) -> Vec<&'static str> {
    let mut remarks = Vec::new();
    if model.positions == Positions::Rotary {
        remarks.push("# from your config.json: --rotary-base, and the scaling of positions if there is one");
    }
    if model.reaches().iter().any(|reach| *reach != Reach::Full) {
        remarks.push("# layers with a window of attention: add --window-size and --window-attn-skip-freq");
    }
    remarks
}
