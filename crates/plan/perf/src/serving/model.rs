//! The model as serving sees it: its layers, plus what a configuration of grouped or latent attention leaves
//! out: the state of linear attention and how many keys an indexer lets through.

use bedplate_transformer::{
    Attention, Dense, Family, GroupedQuery, Latent, Layer, LayerRun, Mixture, Mlp, ModelError, Norm,
    NormPlacement, Positions, QkNorm, Reach, Shape, Transformer, Vision, builtin,
};

/// A model that is served.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedModel {
    /// Represents layers with linear attention as layers with a window of one token.
    pub transformer: Transformer,
    pub linear: Option<LinearAttention>,
    /// Keys that a query attends after an indexer chose them (DeepSeek sparse attention).
    pub sparse_keys: Option<u64>,
    pub vision: Option<Vision>,
}

/// Layers that keep a state of fixed size instead of keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearAttention {
    pub layers: u64,
    /// Bytes of a layer's state for one sequence; each step reads and writes it.
    pub state_bytes: f64,
    /// Parameters of a layer beyond those of the layer that represents it.
    pub more_parameters: u64,
}

impl From<Transformer> for ServedModel {
    fn from(transformer: Transformer) -> Self {
        let linear = LinearAttention::of(&transformer);
        let sparse_keys = transformer.layers().find_map(|layer| match layer.attention {
            Attention::Latent(latent) => Some(latent.indexer?.keys),
            _ => None,
        });
        Self { transformer, linear, sparse_keys, vision: None }
    }
}

impl LinearAttention {
    /// The layers of a model that carry a state, which is kept in fp32.
    fn of(model: &Transformer) -> Option<Self> {
        let states = model.layers().filter_map(|layer| match layer.attention {
            Attention::Recurrent(recurrent) => Some(recurrent.state_values() as f64),
            _ => None,
        });
        let (layers, values) = states.fold((0, 0.0), |(layers, sum), values| (layers + 1, sum + values));
        (layers > 0).then(|| Self { layers, state_bytes: 4.0 * values / layers as f64, more_parameters: 0 })
    }
}

impl ServedModel {
    /// A model by name: those of [`bedplate_transformer::builtin`], and some that only serving knows.
    pub fn named(name: &str) -> Result<Self, ModelError> {
        let squeezed: String = name
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|letter| letter.to_ascii_lowercase())
            .collect();
        let is = |part: &str| squeezed.contains(part);
        if is("minimaxm2") {
            return minimax_m2().map(Self::from);
        }
        if is("glm5") {
            return Ok(Self { sparse_keys: Some(2048), ..Self::from(glm_5()?) });
        }
        if is("qwen35397b") {
            return qwen_3_5();
        }
        if is("kimik2") {
            return builtin("kimi-k2").map(Self::from);
        }
        if is("deepseekv32") {
            return Ok(Self { sparse_keys: Some(2048), ..Self::from(builtin("deepseek-v3")?) });
        }
        if is("deepseekv3") || is("deepseekr1") {
            return builtin("deepseek-v3").map(Self::from);
        }
        builtin(name).map(Self::from)
    }

    /// Names that [`ServedModel::named`] knows beyond the built-in models.
    pub const NAMES: [&'static str; 5] =
        ["minimax-m2.5", "glm-5", "qwen3.5-397b-a17b", "kimi-k2.5", "deepseek-v3.2"];
}

/// MiniMax-M2 and its successors of the same shape: 229 B parameters, 10 B active.
fn minimax_m2() -> Result<Transformer, ModelError> {
    let attention = GroupedQuery {
        heads: 48,
        kv_heads: 8,
        head_dim: 128,
        has_qkv_bias: false,
        has_output_bias: false,
        qk_norm: QkNorm::Head,
        has_sinks: false,
        has_gate: false,
    };
    let layer = Layer {
        attention: Attention::GroupedQuery(attention),
        reach: Reach::Full,
        mlp: Mlp::Mixture(mixture(256, 8, 1536, None)),
    };
    Transformer::new(shape(
        "minimax-m2.5",
        Family::Mixtral,
        200_064,
        3072,
        vec![LayerRun { count: 62, layer }],
    ))
}

/// GLM-5: 744 B parameters, 40 B active; latent attention with an indexer.
fn glm_5() -> Result<Transformer, ModelError> {
    let attention = Attention::Latent(Latent {
        heads: 64,
        query_rank: Some(2048),
        kv_rank: 512,
        nope_dim: 192,
        rope_dim: 64,
        value_dim: 256,
        has_bias: false,
        indexer: None,
    });
    let dense = Mlp::Dense(Dense { width: 12_288, is_gated: true, has_bias: false });
    let experts = Mlp::Mixture(mixture(256, 8, 2048, Some(2048)));
    let layer = |mlp| Layer { attention, reach: Reach::Full, mlp };
    let runs =
        vec![LayerRun { count: 3, layer: layer(dense) }, LayerRun { count: 75, layer: layer(experts) }];
    Transformer::new(shape("glm-5", Family::DeepseekV3, 154_880, 6144, runs))
}

/// Qwen3.5-397B-A17B: every fourth layer attends in full, the others are gated delta nets.
fn qwen_3_5() -> Result<ServedModel, ModelError> {
    let grouped = |heads, kv_heads, head_dim| {
        Attention::GroupedQuery(GroupedQuery {
            heads,
            kv_heads,
            head_dim,
            has_qkv_bias: false,
            has_output_bias: false,
            qk_norm: QkNorm::Head,
            has_sinks: false,
            has_gate: false,
        })
    };
    let mlp = Mlp::Mixture(mixture(512, 10, 1024, Some(1024)));
    let linear = Layer { attention: grouped(64, 16, 128), reach: Reach::Window(1), mlp };
    let full = Layer { attention: grouped(32, 2, 256), reach: Reach::Full, mlp };
    let four = [linear, linear, linear, full];
    let runs = LayerRun::gather((0..60).map(|layer| four[layer % 4]));
    let transformer = Transformer::new(shape("qwen3.5-397b-a17b", Family::Qwen2Moe, 248_320, 4096, runs))?;
    // 64 value heads of 128 x 128 in fp32; the output gate is one more projection of 4096 by 8192.
    let linear =
        LinearAttention { layers: 45, state_bytes: 64.0 * 128.0 * 128.0 * 4.0, more_parameters: 4096 * 8192 };
    Ok(ServedModel { transformer, linear: Some(linear), sparse_keys: None, vision: None })
}

fn mixture(experts: u64, per_token: u64, width: u64, shared: Option<u64>) -> Mixture {
    let dense = |width| Dense { width, is_gated: true, has_bias: false };
    Mixture {
        experts,
        per_token,
        expert: dense(width),
        shared: shared.map(dense),
        has_shared_gate: false,
        has_router_bias: false,
        has_correction_bias: true,
    }
}

fn shape(name: &str, family: Family, vocab: u64, hidden: u64, runs: Vec<LayerRun>) -> Shape {
    Shape {
        name: name.to_owned(),
        family,
        vocab,
        hidden,
        runs,
        norm: Norm::Rms,
        norm_placement: NormPlacement::Before,
        has_embedding_norm: false,
        positions: Positions::Rotary,
        has_tied_embeddings: false,
        max_context: 196_608,
        prediction_layers: 0,
        left_out: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sizes_of_models_that_only_serving_knows() {
        for (name, total, active) in
            [("minimax-m2.5", 229.0, 10.0), ("glm-5", 744.0, 40.0), ("Qwen3.5-397B-A17B", 397.0, 17.0)]
        {
            let model = ServedModel::named(name).unwrap();
            let more = model.linear.map_or(0, |linear| linear.layers * linear.more_parameters);
            let counted = model.transformer.parameters();
            let billions = |count: u64| (count + more) as f64 / 1e9;
            assert!(
                (billions(counted.total) / total - 1.0).abs() < 0.02,
                "{name}: {}",
                billions(counted.total)
            );
            // Published counts leave out the input embedding.
            let visited = billions(counted.active_without_embedding);
            assert!((visited / active - 1.0).abs() < 0.1, "{name}: {visited}");
        }
    }

    #[test]
    fn every_listed_name_is_known() {
        for name in ServedModel::NAMES {
            assert!(ServedModel::named(name).is_ok(), "{name}");
        }
    }
}
