//! What a `config.json` says beyond the shape: the constants that the arithmetic needs.

use std::ops::RangeInclusive;

use bedplate_diag::Source;
use bedplate_kernels::Gelu;
use bedplate_transformer::{
    Attention, Configuration, Family, Keys, Mlp, ModelError, NormPlacement, Positions, Reach, RemarkReason,
    Transformer,
};

use crate::NetworkError;

/// A model that can be computed: its shape, the constants of its arithmetic, and the configuration it came from.
#[derive(Debug, Clone)]
pub struct Architecture {
    pub transformer: Transformer,
    pub numerics: Numerics,
    /// What the configuration asks for and is not done.
    pub remarks: Vec<String>,
    config: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Numerics {
    pub norm_epsilon: f32,
    pub activation: Activation,
    pub attention_scale: AttentionScale,
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

/// What the product of a query and a key is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionScale {
    /// One over the root of the head size; otherwise one.
    pub by_head_size: bool,
    /// Also one over the layer's number, counted from 1 (a setting of GPT-2).
    pub by_layer: bool,
}

impl AttentionScale {
    /// Of a layer, counted from 0.
    pub(crate) fn of(self, head_dim: usize, layer: usize) -> f32 {
        let by_head_size = if self.by_head_size { (head_dim as f32).sqrt().recip() } else { 1.0 };
        if self.by_layer { by_head_size / (layer + 1) as f32 } else { by_head_size }
    }
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
    /// Reads a `config.json` and checks that every feature in it can be computed. Of a multimodal model it takes the language
    /// model.
    pub fn from_config(source: Source<'_>) -> Result<Self, NetworkError> {
        let configuration = Configuration::parse(source)?;
        let transformer = configuration.transformer()?;
        refuse_unsupported(&transformer)?;
        let (_, keys) = configuration.language_model()?;
        let mut remarks = Vec::new();
        for remark in configuration.remarks()? {
            if let RemarkReason::NotComputed { .. } = remark.reason {
                return Err(NetworkError::NotComputed(Box::new(remark)));
            }
            remarks.push(remark.to_string());
        }
        let numerics = Numerics::read(&keys, &transformer, &mut remarks)?;
        Ok(Self { transformer, numerics, remarks, config: configuration.standalone_json()? })
    }

    /// A built-in shape with the default constants of its family.
    pub fn from_shape(transformer: Transformer) -> Result<Self, NetworkError> {
        let config = bedplate_transformer::to_config_json(&transformer)?;
        Self::from_config(Source::new(&transformer.name, &config))
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
            Attention::Recurrent(_) | Attention::Absent => return refuse("layers without attention".into()),
            Attention::GroupedQuery(grouped) if grouped.has_gate => return refuse("gated attention".into()),
            Attention::GroupedQuery(grouped) if grouped.has_sinks => return refuse("attention sinks".into()),
            Attention::GroupedQuery(_) => {}
        }
        if layer.mlp == Mlp::Absent {
            return refuse("layers without an MLP".into());
        }
        let head_dim = layer.attention.query_dim();
        if model.positions == Positions::Rotary && head_dim % 2 == 1 {
            return refuse(format!("rotary positions of heads of an odd size, {head_dim}"));
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
    fn read(keys: &Keys<'_>, model: &Transformer, remarks: &mut Vec<String>) -> Result<Self, NetworkError> {
        let is_gpt2 = model.family == Family::Gpt2;
        let (epsilon_key, epsilon) = match model.family {
            Family::Gpt2 => ("layer_norm_epsilon", 1e-5),
            Family::Mixtral => ("rms_norm_eps", 1e-5),
            _ => ("rms_norm_eps", 1e-6),
        };
        let balance = keys.number_within("router_aux_loss_coef", 0.001, 0.0..=1e6)?;
        Ok(Self {
            norm_epsilon: keys.number_within(epsilon_key, epsilon, 0.0..=1.0)? as f32,
            activation: activation(keys, model)?,
            attention_scale: AttentionScale {
                by_head_size: !is_gpt2 || keys.flag("scale_attn_weights", true)?,
                by_layer: is_gpt2 && keys.flag("scale_attn_by_inverse_layer_idx", false)?,
            },
            rotary: match model.positions {
                Positions::Rotary => Some(rotary(keys, model, remarks)?),
                _ => None,
            },
            normalises_experts: match model.family {
                Family::Mixtral => true,
                _ => keys.flag("norm_topk_prob", false)?,
            },
            balance_coefficient: if model.is_mixture() { balance as f32 } else { 0.0 },
            initial_deviation: keys.number_within("initializer_range", 0.02, 0.0..=100.0)?,
        })
    }
}

fn activation(keys: &Keys<'_>, model: &Transformer) -> Result<Activation, NetworkError> {
    let is_gated = model.layers().all(|layer| match &layer.mlp {
        Mlp::Dense(dense) => dense.is_gated,
        Mlp::Absent => true,
        Mlp::Mixture(mixture) => mixture.expert.is_gated,
    });
    let key = if model.family == Family::Gpt2 { "activation_function" } else { "hidden_act" };
    let named = keys.word(key)?.unwrap_or(if is_gated { "silu" } else { "gelu_new" });
    match (is_gated, named) {
        (true, "silu" | "swish") => Ok(Activation::SwiGlu),
        (false, "gelu_new" | "gelu_pytorch_tanh") => Ok(Activation::Gelu(Gelu::Tanh)),
        (false, "gelu") => Ok(Activation::Gelu(Gelu::Exact)),
        (_, other) => Err(NetworkError::Unsupported { feature: format!("the activation `{other}`") }),
    }
}

/// Frequencies `theta^(-2i/d)`, stretched as `rope_scaling` (or `rope_parameters`, since transformers 5) says.
fn rotary(
    keys: &Keys<'_>,
    model: &Transformer,
    remarks: &mut Vec<String>,
) -> Result<RotaryScheme, NetworkError> {
    let head_dim = model.layers().next().map_or(0, |layer| layer.attention.query_dim());
    let scheme = Scheme::read(keys)?;
    let usual = if model.family == Family::Mixtral { 1e6 } else { 1e4 };
    let theta = scheme.theta(keys.number_within("rope_theta", usual, THETAS)?)?;
    let stretch = scheme.stretch()?;
    remarks.extend(scheme.ignored());
    let plain = (0..head_dim / 2).map(|pair| theta.powf(-2.0 * pair as f64 / head_dim as f64));
    let frequencies = plain.map(|frequency| stretch.apply(frequency)).collect();
    Ok(RotaryScheme { frequencies })
}

/// The section on rotary positions, where there is one.
struct Scheme<'a> {
    name: &'static str,
    section: Option<Keys<'a>>,
    kind: &'a str,
}

const THETAS: RangeInclusive<f64> = 1.0..=1e12;

impl<'a> Scheme<'a> {
    fn read(keys: &Keys<'a>) -> Result<Self, NetworkError> {
        // Where both are given, transformers 5 takes the older one, and version 4 knows no other.
        let (name, section) = match keys.section("rope_scaling")? {
            Some(older) => ("rope_scaling", Some(older)),
            None => ("rope_parameters", keys.section("rope_parameters")?),
        };
        let kind = match &section {
            Some(section) => section.word("rope_type")?.or(section.word("type")?),
            None => None,
        };
        Ok(Self { name, section, kind: kind.unwrap_or("default") })
    }

    fn theta(&self, outside: f64) -> Result<f64, ModelError> {
        self.section
            .as_ref()
            .map_or(Ok(outside), |section| section.number_within("rope_theta", outside, THETAS))
    }

    fn stretch(&self) -> Result<Stretch, NetworkError> {
        let Some(section) = &self.section else { return Ok(Stretch::None) };
        if section.number("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
            return Err(section
                .wrong("partial_rotary_factor", "1, as a part of a head is not turned")
                .into());
        }
        match self.kind {
            "default" => Ok(Stretch::None),
            "linear" => Ok(Stretch::Linear { factor: required(section, "factor", 1.0..=1e6)? }),
            "llama3" => Stretch::llama3(section),
            other => Err(NetworkError::Unsupported { feature: format!("the rotary scheme `{other}`") }),
        }
    }

    /// The keys of the section that its kind does not have.
    fn ignored(&self) -> Vec<String> {
        let own: &[&str] = match self.kind {
            "linear" => &["factor"],
            "llama3" => {
                &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
            }
            _ => &[],
        };
        let every = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
        let is_read = |key: &&str| own.contains(key) || every.contains(key);
        let names = self.section.iter().flat_map(Keys::names).filter(|key| !is_read(key));
        let (name, kind) = (self.name, self.kind);
        names
            .map(|key| format!("`{key}` in `{name}` is not a key of the scheme `{kind}` and is ignored"))
            .collect()
    }
}

fn required(keys: &Keys<'_>, key: &'static str, range: RangeInclusive<f64>) -> Result<f64, ModelError> {
    if keys.number(key)?.is_none() {
        return Err(keys.missing(key));
    }
    keys.number_within(key, 0.0, range)
}

/// How frequencies are changed to reach further than the model was first trained for.
enum Stretch {
    None,
    /// All are slowed by a factor.
    Linear {
        factor: f64,
    },
    /// Llama 3.1: long waves are slowed by `factor`, short ones stay, those between are blended.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
}

impl Stretch {
    fn llama3(keys: &Keys<'_>) -> Result<Self, NetworkError> {
        let low = required(keys, "low_freq_factor", 0.0..=1e6)?;
        let high = required(keys, "high_freq_factor", 0.0..=1e6)?;
        if high <= low {
            return Err(keys.wrong("high_freq_factor", format!("above `low_freq_factor`, {low}")).into());
        }
        Ok(Self::Llama3 {
            factor: required(keys, "factor", 1.0..=1e6)?,
            low,
            high,
            original: required(keys, "original_max_position_embeddings", 1.0..=1e12)?,
        })
    }

    fn apply(&self, frequency: f64) -> f64 {
        match self {
            Stretch::None => frequency,
            Stretch::Linear { factor } => frequency / factor,
            Stretch::Llama3 { factor, low, high, original } => {
                let turns = original * frequency / std::f64::consts::TAU;
                let blend = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (blend + (1.0 - blend) / factor)
            }
        }
    }
}
