//! What a `config.json` says beyond the shape: the constants that the arithmetic needs.

use bedplate_diag::Source;
use bedplate_kernels::Gelu;
use bedplate_transformer::{Attention, Family, Mlp, NormPlacement, Positions, Reach, Transformer};
use serde_json::{Map, Value};

use crate::NetworkError;

/// A model that can be computed: its shape, the constants of its arithmetic, and the configuration it came from.
#[derive(Debug, Clone)]
pub struct Architecture {
    pub transformer: Transformer,
    pub numerics: Numerics,
    config: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Numerics {
    pub norm_epsilon: f32,
    pub activation: Activation,
    pub rotary: Option<RotaryScheme>,
    /// Weights of the chosen experts are scaled to a sum of one.
    pub normalises_experts: bool,
    /// Weight of the load-balancing loss of mixtures.
    pub balance_coefficient: f32,
    /// Standard deviation of freshly drawn weights.
    pub initial_deviation: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `silu(gate) * up`
    SwiGlu,
    Gelu(Gelu),
}

/// Rotary positions: angular frequencies of the pairs of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryScheme {
    /// Radians per position, one for each pair of dimensions.
    pub frequencies: Vec<f64>,
}

const FAMILIES: [Family; 8] = [
    Family::Gpt2,
    Family::Llama,
    Family::Mistral,
    Family::Mixtral,
    Family::Qwen2,
    Family::Qwen2Moe,
    Family::Qwen3,
    Family::Qwen3Moe,
];

impl Architecture {
    /// Reads a `config.json` and checks that every feature in it can be computed.
    pub fn from_config(source: Source<'_>) -> Result<Self, NetworkError> {
        let transformer = bedplate_transformer::from_config(source)
            .map_err(|source| NetworkError::Model(Box::new(source)))?;
        Self::new(transformer, source.text)
    }

    /// A built-in shape with the default constants of its family.
    pub fn from_shape(transformer: Transformer) -> Result<Self, NetworkError> {
        let config = bedplate_transformer::to_config_json(&transformer)
            .map_err(|source| NetworkError::Model(Box::new(source)))?;
        Self::new(transformer, &config)
    }

    fn new(transformer: Transformer, config: &str) -> Result<Self, NetworkError> {
        refuse_unsupported(&transformer)?;
        let keys = Keys(serde_json::from_str(config).expect("the shape was read from the same text"));
        let numerics = Numerics::read(&keys, &transformer)?;
        Ok(Self { transformer, numerics, config: config.to_owned() })
    }

    /// The configuration as it was read, for saving beside weights.
    pub fn config_json(&self) -> &str {
        &self.config
    }
}

fn refuse_unsupported(model: &Transformer) -> Result<(), NetworkError> {
    let refuse = |feature: String| Err(NetworkError::Unsupported { feature });
    if !FAMILIES.contains(&model.family) {
        return refuse(format!("the family `{}`", model.family));
    }
    if model.norm_placement != NormPlacement::Before || model.has_embedding_norm {
        return refuse("norms after a layer's halves or after the embedding".into());
    }
    if matches!(model.positions, Positions::Alibi | Positions::Absent) {
        return refuse("positions that are neither rotary nor learned".into());
    }
    for layer in model.layers() {
        match &layer.attention {
            Attention::Latent(_) => return refuse("latent attention".into()),
            Attention::GroupedQuery(grouped) if grouped.has_sinks => return refuse("attention sinks".into()),
            Attention::GroupedQuery(_) => {}
        }
        if matches!(layer.reach, Reach::Chunk(_)) {
            return refuse("chunked attention".into());
        }
        if let Mlp::Mixture(mixture) = &layer.mlp
            && (mixture.has_router_bias || mixture.has_correction_bias || mixture.expert.has_bias)
        {
            return refuse("biases in a mixture of experts".into());
        }
    }
    Ok(())
}

impl Numerics {
    fn read(keys: &Keys, model: &Transformer) -> Result<Self, NetworkError> {
        let gpt2 = model.family == Family::Gpt2;
        let epsilon =
            if gpt2 { keys.number("layer_norm_epsilon", 1e-5)? } else { keys.number("rms_norm_eps", 1e-6)? };
        let balance = keys.number("router_aux_loss_coef", 0.001)?;
        Ok(Self {
            norm_epsilon: epsilon as f32,
            activation: activation(keys, model)?,
            rotary: (model.positions == Positions::Rotary).then(|| rotary(keys, model)).transpose()?,
            normalises_experts: match model.family {
                Family::Mixtral => true,
                _ => keys.flag("norm_topk_prob", false)?,
            },
            balance_coefficient: if model.is_mixture() { balance as f32 } else { 0.0 },
            initial_deviation: keys.number("initializer_range", 0.02)?,
        })
    }
}

fn activation(keys: &Keys, model: &Transformer) -> Result<Activation, NetworkError> {
    let is_gated = model.layers().all(|layer| match &layer.mlp {
        Mlp::Dense(dense) => dense.is_gated,
        Mlp::Mixture(mixture) => mixture.expert.is_gated,
    });
    let key = if model.family == Family::Gpt2 { "activation_function" } else { "hidden_act" };
    let named = keys.word(key, if is_gated { "silu" } else { "gelu_new" })?;
    match (is_gated, named.as_str()) {
        (true, "silu" | "swish") => Ok(Activation::SwiGlu),
        (false, "gelu_new" | "gelu_pytorch_tanh") => Ok(Activation::Gelu(Gelu::Tanh)),
        (false, "gelu") => Ok(Activation::Gelu(Gelu::Exact)),
        (_, other) => Err(NetworkError::Unsupported { feature: format!("the activation `{other}`") }),
    }
}

/// Frequencies `theta^(-2i/d)`, stretched as `rope_scaling` (or `rope_parameters`, since transformers 5) says.
fn rotary(keys: &Keys, model: &Transformer) -> Result<RotaryScheme, NetworkError> {
    let head_dim = model.layers().next().map_or(0, |layer| layer.attention.query_dim()) as f64;
    let scheme = keys.section("rope_parameters")?.or(keys.section("rope_scaling")?);
    let scheme = scheme.unwrap_or(Keys(Value::Object(Map::new())));
    let usual = if matches!(model.family, Family::Mixtral) { 1e6 } else { 1e4 };
    let theta = scheme.number("rope_theta", keys.number("rope_theta", usual)?)?;
    let rotated = (head_dim * keys.number("partial_rotary_factor", 1.0)?) as usize / 2 * 2;
    let plain = (0..rotated / 2).map(|pair| theta.powf(-2.0 * pair as f64 / rotated as f64));
    let kind = scheme.word("rope_type", &scheme.word("type", "default")?)?;
    let frequencies = match kind.as_str() {
        "default" => plain.collect(),
        "linear" => {
            let factor = scheme.number("factor", 1.0)?;
            plain.map(|frequency| frequency / factor).collect()
        }
        "llama3" => {
            let stretch = Stretch::read(&scheme)?;
            plain.map(|frequency| stretch.apply(frequency)).collect()
        }
        other => return Err(NetworkError::Unsupported { feature: format!("the rotary scheme `{other}`") }),
    };
    Ok(RotaryScheme { frequencies })
}

/// Llama 3.1's scheme: long waves are slowed by `factor`, short ones stay, those between are blended.
struct Stretch {
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
}

impl Stretch {
    fn read(keys: &Keys) -> Result<Self, NetworkError> {
        Ok(Self {
            factor: keys.number("factor", 8.0)?,
            low: keys.number("low_freq_factor", 1.0)?,
            high: keys.number("high_freq_factor", 4.0)?,
            original: keys.number("original_max_position_embeddings", 8192.0)?,
        })
    }

    fn apply(&self, frequency: f64) -> f64 {
        let turns = self.original * frequency / std::f64::consts::TAU;
        let blend = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        frequency * (blend + (1.0 - blend) / self.factor)
    }
}

/// Keys of a configuration with their defaults; `null` counts as absent.
struct Keys(Value);

impl Keys {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn wrong(key: &str, expected: &'static str, found: &Value) -> NetworkError {
        NetworkError::WrongKey { key: key.to_owned(), expected, found: found.to_string() }
    }

    fn number(&self, key: &str, default: f64) -> Result<f64, NetworkError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| Self::wrong(key, "a number", value)),
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, NetworkError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| Self::wrong(key, "true or false", value)),
        }
    }

    fn word(&self, key: &str, default: &str) -> Result<String, NetworkError> {
        match self.get(key) {
            None => Ok(default.to_owned()),
            Some(value) => value.as_str().map(str::to_owned).ok_or_else(|| Self::wrong(key, "a word", value)),
        }
    }

    fn section(&self, key: &str) -> Result<Option<Keys>, NetworkError> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Object(_)) => Ok(Some(Keys(value.clone()))),
            Some(value) => Err(Self::wrong(key, "an object", value)),
        }
    }
}
