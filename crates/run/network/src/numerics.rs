//! What a `config.json` says beyond the shape: the constants that the arithmetic needs.

use bedplate_diag::Source;
use bedplate_kernels::{Gate, Gelu, GroupScore, LimitedGate, Pairing, RouteGroups, RouteRule, RouteScores};
use bedplate_transformer::{
    Attention, Configuration, Family, Keys, Layer, Mlp, ModelError, NormPlacement, Positions, Reach,
    RemarkReason, Transformer,
};
use serde_json::Value;

use crate::family::{ExpertWeights, Multipliers, Padding, Scale, page};
use crate::rotary::{score_factor, turned_dim};
use crate::{NetworkError, RotaryPlan, quantised};

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
    /// Added to the weights of norms, which are kept less it.
    pub norm_offset: f32,
    pub activation: Activation,
    pub attention_scale: AttentionScale,
    /// What scores of attention are bent to stay below; 0 where they are not.
    pub attention_cap: f32,
    /// The same of logits.
    pub logit_cap: f32,
    /// What the rows of the embedding are multiplied by before the first layer.
    pub embedding_scale: f32,
    /// What logits are multiplied by.
    pub logit_scale: f32,
    pub rotary: RotaryPlan,
    /// The token whose row of the embedding is not learned where it is put in.
    pub padding: Option<u32>,
    /// How experts are chosen and weighed.
    pub routing: RouteRule,
    /// Weight of the load-balancing loss of mixtures.
    pub balance_coefficient: f32,
    /// Standard deviation of freshly drawn weights.
    pub initial_deviation: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `gate(g) * up`
    Gated(Gate),
    Gelu(Gelu),
}

/// What the product of a query and a key is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionScale {
    /// This, or one over the root of the head size.
    pub factor: Option<f32>,
    /// Also one over the layer's number, counted from 1 (a setting of GPT-2).
    pub by_layer: bool,
}

impl AttentionScale {
    /// Of a layer, counted from 0.
    pub(crate) fn of(self, head_dim: usize, layer: usize) -> f32 {
        let factor = self.factor.unwrap_or_else(|| (head_dim as f32).sqrt().recip());
        if self.by_layer { factor / (layer + 1) as f32 } else { factor }
    }
}

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
            if remark.key == QUANTISED
                && let Some(section) = keys.section(QUANTISED)?
                && quantised::is_read(&section)?
            {
                remarks.push(
                    "weights of few bits are read as what they stand for; activations are not rounded as well, as some engines round them"
                        .to_owned(),
                );
                continue;
            }
            if let RemarkReason::NotComputed { .. } = remark.reason {
                return Err(NetworkError::NotComputed(Box::new(remark)));
            }
            remarks.push(remark.to_string());
        }
        if transformer.prediction_layers > 0 {
            remarks.push(format!(
                "layers that predict several tokens (`num_nextn_predict_layers` = {}) are neither computed nor trained, and their tensors are skipped: answers do not need them",
                transformer.prediction_layers
            ));
        }
        let numerics = Numerics::read(&keys, &transformer, &mut remarks)?;
        Ok(Self { transformer, numerics, remarks, config: plain(configuration.standalone_json()?) })
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

/// The key that says in what format other than plain numbers weights are.
const QUANTISED: &str = "quantization_config";

/// The configuration without what it says about quantised weights: those that are saved beside it are plain.
fn plain(config: String) -> String {
    match serde_json::from_str::<Value>(&config) {
        Ok(Value::Object(mut keys)) if keys.contains_key(QUANTISED) => {
            keys.shift_remove(QUANTISED);
            format!("{:#}\n", Value::Object(keys))
        }
        _ => config,
    }
}

fn refuse_unsupported(model: &Transformer) -> Result<(), NetworkError> {
    let refuse = |feature: String| Err(NetworkError::Unsupported { feature });
    if page(model.family).is_none() {
        return refuse(format!("the family `{}`", model.family));
    }
    if model.has_embedding_norm {
        return refuse("a norm after the embedding".into());
    }
    if model.norm_placement != NormPlacement::Before && model.is_mixture() {
        return refuse("norms after a mixture of experts".into());
    }
    if matches!(model.positions, Positions::Alibi | Positions::Absent) {
        return refuse("positions that are neither rotary nor learned".into());
    }
    for layer in model.layers() {
        match &layer.attention {
            Attention::Latent(latent) if latent.indexer.is_some() => {
                return refuse("sparse attention".into());
            }
            Attention::Latent(latent) if latent.has_bias && latent.query_rank.is_none() => {
                return refuse("biases of latent attention without `q_lora_rank`".into());
            }
            Attention::Latent(_) => {}
            Attention::Recurrent(_) | Attention::Absent => return refuse("layers without attention".into()),
            Attention::GroupedQuery(grouped) if grouped.has_gate => return refuse("gated attention".into()),
            Attention::GroupedQuery(_) => {}
        }
        if layer.mlp == Mlp::Absent {
            return refuse("layers without an MLP".into());
        }
        let head_dim = turned_dim(&layer.attention);
        if model.positions == Positions::Rotary && head_dim % 2 == 1 {
            return refuse(format!("rotary positions of heads of an odd size, {head_dim}"));
        }
        if matches!(layer.reach, Reach::Chunk(_)) {
            return refuse("chunked attention".into());
        }
    }
    Ok(())
}

impl Numerics {
    fn read(keys: &Keys<'_>, model: &Transformer, remarks: &mut Vec<String>) -> Result<Self, NetworkError> {
        let page = page(model.family).expect("families without a page were refused before");
        let (epsilon, usual) = page.epsilon;
        let factors = Factors::read(keys, model, page.multipliers)?;
        let balance = keys.number_within("router_aux_loss_coef", page.balance, 0.0..=1e6)?;
        // A stream that is kept less the factor of what layers add has the same norms with another epsilon.
        let epsilon = keys.number_within(epsilon, usual, 0.0..=1.0)? / (factors.residual * factors.residual);
        Ok(Self {
            norm_epsilon: epsilon as f32,
            norm_offset: page.norm_offset,
            activation: match page.gate_limits {
                None => activation(keys, model, page.activation)?,
                Some(limits) => limited_gate(keys, model, page.activation, limits)?,
            },
            attention_scale: attention_scale(keys, model, page.attention_scale)?,
            attention_cap: cap(keys, page.attention_cap)?,
            logit_cap: cap(keys, page.logit_cap)?,
            embedding_scale: (factors.embedding / factors.residual) as f32,
            logit_scale: factors.logits.recip() as f32,
            rotary: match model.positions {
                Positions::Rotary => RotaryPlan::read(keys, model, &page.rotary, remarks)?,
                _ => RotaryPlan::none(model),
            },
            padding: padding(keys, model, page.padding)?,
            routing: routing(keys, model, page.expert_weights, remarks)?,
            balance_coefficient: if model.is_mixture() && page.balance > 0.0 { balance as f32 } else { 0.0 },
            initial_deviation: keys.number_within("initializer_range", 0.02, 0.0..=100.0)?,
        })
    }

    /// What gates of experts go through.
    pub(crate) fn gate(&self) -> Gate {
        match self.activation {
            Activation::Gated(gate) => gate,
            Activation::Gelu(_) => unreachable!("experts are gated"),
        }
    }

    /// What a GPU has no kernel for.
    pub(crate) fn only_on_a_processor(&self, model: &Transformer) -> Option<&'static str> {
        let has_sinks =
            |layer: &Layer| matches!(layer.attention, Attention::GroupedQuery(grouped) if grouped.has_sinks);
        let has_biases = |layer: &Layer| matches!(layer.mlp, Mlp::Mixture(mixture) if mixture.expert.has_bias || mixture.has_router_bias);
        let has_neighbours = self.rotary.schemes.iter().any(|scheme| scheme.pairing == Pairing::Neighbours);
        let odd = [
            (self.norm_offset != 0.0, "norms whose weights are kept less one"),
            (matches!(self.activation, Activation::Gated(Gate::Gelu(_))), "gates with GELU"),
            (matches!(self.activation, Activation::Gated(Gate::Limited(_))), "gates with limits"),
            (model.layers().any(has_sinks), "attention sinks"),
            (model.layers().any(has_biases), "biases in a mixture of experts"),
            (model.layers().any(|layer| matches!(layer.attention, Attention::Latent(_))), "latent attention"),
            (!self.routing.is_plain(), "routing by groups or by sigmoids"),
            (
                self.attention_cap > 0.0 || self.logit_cap > 0.0,
                "scores and logits that are bent (`softcapping`)",
            ),
            (self.embedding_scale != 1.0 || self.logit_scale != 1.0, "factors of embeddings and logits"),
            (has_neighbours, "rotary positions that turn neighbours"),
        ];
        odd.into_iter().find(|(is_needed, _)| *is_needed).map(|(_, what)| what)
    }
}

/// Factors around the layers.
struct Factors {
    embedding: f64,
    residual: f64,
    logits: f64,
}

impl Factors {
    fn read(keys: &Keys<'_>, model: &Transformer, multipliers: Multipliers) -> Result<Self, ModelError> {
        let of = |key| keys.number_within(key, 1.0, 1e-6..=1e6);
        Ok(match multipliers {
            Multipliers::None => Self { embedding: 1.0, residual: 1.0, logits: 1.0 },
            Multipliers::RootOfHidden => {
                Self { embedding: (model.hidden as f64).sqrt(), residual: 1.0, logits: 1.0 }
            }
            Multipliers::Keys => Self {
                embedding: of("embedding_multiplier")?,
                residual: of("residual_multiplier")?,
                logits: of("logits_scaling")?,
            },
        })
    }
}

/// `pad_token_id`, which counts from the end where it is below 0.
fn padding(keys: &Keys<'_>, model: &Transformer, padding: Padding) -> Result<Option<u32>, ModelError> {
    let vocab = model.vocab as f64;
    let usual = match padding {
        Padding::Learned => return Ok(None),
        Padding::Kept(usual) => usual.filter(|token| u64::from(*token) < model.vocab),
    };
    let found = match keys.number("pad_token_id")? {
        None if keys.is_null("pad_token_id") => return Ok(None),
        None => return Ok(usual),
        Some(found) => found,
    };
    let token = if found < 0.0 { vocab + found } else { found };
    if (0.0..vocab).contains(&token) && token.fract() == 0.0 {
        Ok(Some(token as u32))
    } else {
        Err(keys.wrong("pad_token_id", format!("a token of the vocabulary, which has {}", model.vocab)))
    }
}

/// What something is bent to stay below; 0 where it is not.
fn cap(keys: &Keys<'_>, key: Option<(&'static str, f64)>) -> Result<f32, ModelError> {
    match key {
        Some((key, _)) if keys.is_null(key) => Ok(0.0),
        Some((key, usual)) => Ok(keys.number_within(key, usual, 0.0..=1e6)? as f32),
        None => Ok(0.0),
    }
}

/// How experts are chosen.
fn routing(
    keys: &Keys<'_>,
    model: &Transformer,
    weights: ExpertWeights,
    remarks: &mut Vec<String>,
) -> Result<RouteRule, NetworkError> {
    let scale =
        |usual| keys.number_within("routed_scaling_factor", usual, 1e-6..=1e6).map(|found| found as f32);
    if matches!(weights, ExpertWeights::Scaled | ExpertWeights::Sigmoid { .. }) {
        let loss = keys.number_within("aux_loss_alpha", 0.0, 0.0..=1e6)?;
        keys.flag("seq_aux", true)?;
        if loss > 0.0 {
            remarks.push(format!("`aux_loss_alpha` = {loss} is left out of training, as in transformers"));
        }
    }
    Ok(match weights {
        ExpertWeights::SumToOne => RouteRule::softmax(true),
        ExpertWeights::ByKey => RouteRule::softmax(keys.flag("norm_topk_prob", false)?),
        ExpertWeights::Scaled => {
            is_first_of(keys, "scoring_func", "softmax", &["softmax"])?;
            let by_group = is_first_of(keys, "topk_method", "greedy", &["group_limited_greedy", "greedy"])?;
            // transformers does not read it, published code does.
            if keys.flag("norm_topk_prob", false)? {
                return Err(NetworkError::Unsupported {
                    feature: "`norm_topk_prob` = true in this family".into(),
                });
            }
            let groups = route_groups(keys, model, [1, 1], GroupScore::Best)?.filter(|_| by_group);
            RouteRule { groups, scale: scale(1.0)?, ..RouteRule::softmax(false) }
        }
        ExpertWeights::Sigmoid { scale: usual, groups, normalise } => {
            is_first_of(keys, "scoring_func", "sigmoid", &["sigmoid"])?;
            is_first_of(keys, "topk_method", "noaux_tc", &["noaux_tc"])?;
            RouteRule {
                scores: RouteScores::Sigmoid,
                groups: route_groups(keys, model, groups, GroupScore::BestTwo)?,
                normalise: keys.flag("norm_topk_prob", normalise)?,
                scale: scale(usual)?,
            }
        }
    })
}

/// Whether a word is the first of those that are known; an error where it is none of them.
fn is_first_of(
    keys: &Keys<'_>,
    key: &'static str,
    usual: &str,
    known: &[&str],
) -> Result<bool, NetworkError> {
    match keys.word(key)?.unwrap_or(usual) {
        found if known.contains(&found) => Ok(found == known[0]),
        found => Err(NetworkError::Unsupported { feature: format!("`{key}` = `{found}`") }),
    }
}

/// The groups of experts; none where all of them are chosen.
fn route_groups(
    keys: &Keys<'_>,
    model: &Transformer,
    usual: [u64; 2],
    by: GroupScore,
) -> Result<Option<RouteGroups>, NetworkError> {
    let of = |key, usual: u64| match keys.number(key)? {
        None if keys.is_null(key) => Ok(1),
        None => Ok(usual),
        Some(found) if found >= 1.0 && found.fract() == 0.0 && found <= 1e6 => Ok(found as u64),
        Some(_) => Err(keys.wrong(key, "a whole number of at least 1")),
    };
    let (count, chosen) = (of("n_group", usual[0])?, of("topk_group", usual[1])?);
    let Some(mixture) = model.layers().find_map(|layer| layer.mlp.mixture()) else { return Ok(None) };
    if count <= chosen {
        return Ok(None);
    }
    let least = if by == GroupScore::BestTwo { 2 } else { 1 };
    let size = mixture.experts / count;
    let is_fitting = mixture.experts.is_multiple_of(count)
        && count <= RouteGroups::MOST as u64
        && size >= least
        && size * chosen >= mixture.per_token;
    if !is_fitting {
        let expected = format!(
            "at most {} groups of equal size, at least {least}, of which {chosen} have the {} experts of a token",
            RouteGroups::MOST,
            mixture.per_token
        );
        return Err(keys.wrong("n_group", expected).into());
    }
    Ok(Some(RouteGroups { count: count as usize, chosen: chosen as usize, by }))
}

fn attention_scale(
    keys: &Keys<'_>,
    model: &Transformer,
    scale: Scale,
) -> Result<AttentionScale, NetworkError> {
    let fixed = |factor: f64| AttentionScale { factor: Some(factor as f32), by_layer: false };
    Ok(match scale {
        Scale::HeadSize => AttentionScale { factor: None, by_layer: false },
        Scale::Switches => AttentionScale {
            factor: (!keys.flag("scale_attn_weights", true)?).then_some(1.0),
            by_layer: keys.flag("scale_attn_by_inverse_layer_idx", false)?,
        },
        Scale::RootOf(key) => fixed(keys.number_within(key, 256.0, 1e-6..=1e9)?.sqrt().recip()),
        Scale::Key(key) => fixed(keys.number_within(key, 1.0, 0.0..=1e6)?),
        Scale::Latent => {
            let dim = model.layers().next().map_or(1, |layer| layer.attention.query_dim());
            fixed((dim as f64).sqrt().recip() * score_factor(keys)?)
        }
    })
}

/// SiLU with a factor and a limit.
fn limited_gate(
    keys: &Keys<'_>,
    model: &Transformer,
    named: (&'static str, &'static str),
    [alpha, limit]: [(&'static str, f64); 2],
) -> Result<Activation, NetworkError> {
    let plain = activation(keys, model, named)?;
    if plain != Activation::Gated(Gate::Silu) {
        return Err(NetworkError::Unsupported { feature: "limits of gates other than SiLU".into() });
    }
    let of = |(key, usual)| keys.number_within(key, usual, 0.0..=1e6).map(|found| found as f32);
    Ok(Activation::Gated(Gate::Limited(LimitedGate { alpha: of(alpha)?, limit: of(limit)? })))
}

fn activation(
    keys: &Keys<'_>,
    model: &Transformer,
    (key, usual): (&'static str, &'static str),
) -> Result<Activation, NetworkError> {
    let is_gated = model.layers().all(|layer| match &layer.mlp {
        Mlp::Dense(dense) => dense.is_gated,
        Mlp::Absent => true,
        Mlp::Mixture(mixture) => mixture.expert.is_gated,
    });
    let named = keys.word(key)?.unwrap_or(usual);
    let gelu = match named {
        // What the first files of Gemma call by the name of the exact one, and transformers takes for the other.
        "gelu" if model.family == Family::Gemma => Some(Gelu::Tanh),
        "gelu_new" | "gelu_pytorch_tanh" => Some(Gelu::Tanh),
        "gelu" => Some(Gelu::Exact),
        _ => None,
    };
    match (is_gated, gelu, named) {
        (true, _, "silu" | "swish") => Ok(Activation::Gated(Gate::Silu)),
        (true, Some(kind), _) if !model.is_mixture() => Ok(Activation::Gated(Gate::Gelu(kind))),
        (false, Some(kind), _) => Ok(Activation::Gelu(kind)),
        _ => Err(NetworkError::Unsupported { feature: format!("the activation `{named}`") }),
    }
}
