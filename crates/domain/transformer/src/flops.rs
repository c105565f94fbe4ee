//! Floating-point operations per token, counted from the shapes of the matrix products.
//!
//! A product of `m x k` by `k x n` counts `2mkn`; biases, norms, softmax and the embedding lookup count
//! nothing. Published figures follow different conventions, so a count always names its own: Megatron
//! Bridge halves the causal scores, NeMo 24.07, MosaicML and the PaLM paper do not.

use std::iter::Sum;
use std::ops::{Add, Mul};

use bedplate_units::Flops;

use crate::{Layer, ParameterPart, Transformer};

/// How the scores of causal attention are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttentionFlops {
    /// Only what the mask lets through: half of the square, or the band of a window.
    #[default]
    CausalHalved,
    /// As if every query saw the whole sequence, or its whole window.
    Full,
}

/// Whether the forward pass that full activation recomputation repeats is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecomputeFlops {
    /// Model FLOPs, the basis of MFU.
    #[default]
    NotCounted,
    /// Hardware FLOPs (HFU): the layers' forward pass once more, without the logits.
    Counted,
}

/// Whether multi-token prediction modules are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prediction {
    #[default]
    LeftOut,
    Counted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlopsConvention {
    pub attention: AttentionFlops,
    pub recompute: RecomputeFlops,
    pub prediction: Prediction,
}

/// FLOPs of one token by what they are spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlopsByPart {
    pub attention_projections: Flops,
    pub attention_scores: Flops,
    pub dense_mlp: Flops,
    /// The routed experts that the token visits.
    pub experts: Flops,
    pub shared_experts: Flops,
    pub router: Flops,
    pub logits: Flops,
    /// Multi-token prediction: projections, layers and logits together.
    pub prediction: Flops,
}

/// FLOPs of one token in a forward and backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlopsPerToken {
    pub forward: FlopsByPart,
    pub backward: FlopsByPart,
    /// The repeated forward pass; zero unless the convention counts it.
    pub recomputed: FlopsByPart,
}

impl FlopsPerToken {
    /// Everything a training step spends on one token.
    pub fn training(&self) -> Flops {
        self.forward.total() + self.backward.total() + self.recomputed.total()
    }
}

impl Transformer {
    /// FLOPs per token of sequences of `sequence` tokens, averaged over the sequence.
    pub fn flops_per_token(&self, sequence: u64, convention: FlopsConvention) -> FlopsPerToken {
        let layers: FlopsByPart = self
            .runs
            .iter()
            .map(|run| self.layer_flops(&run.layer, sequence, convention.attention) * run.count as f64)
            .sum();
        let forward = FlopsByPart {
            logits: self.logits_flops(),
            prediction: self.prediction_flops(sequence, convention),
            ..layers
        };
        let recomputed = match convention.recompute {
            RecomputeFlops::NotCounted => FlopsByPart::default(),
            RecomputeFlops::Counted => layers,
        };
        // The backward pass multiplies twice: once for the inputs, once for the weights.
        FlopsPerToken { forward, backward: forward * 2.0, recomputed }
    }

    /// Forward FLOPs of one token in one layer.
    pub fn layer_flops(&self, layer: &Layer, sequence: u64, attention: AttentionFlops) -> FlopsByPart {
        let keys = layer.reach.mean_keys(sequence, attention);
        let scores = layer.attention.score_flops_per_key() * keys + layer.attention.state_flops();
        FlopsByPart { attention_scores: Flops::new(scores), ..self.matrix_flops(layer) }
    }

    /// Forward FLOPs of the output projection for one token.
    pub fn logits_flops(&self) -> Flops {
        Flops::new(2.0 * self.hidden as f64 * self.vocab as f64)
    }

    /// The classic estimate of training FLOPs per token: six for each active parameter.
    pub fn six_n_flops(&self) -> Flops {
        Flops::new(6.0 * self.parameters().active as f64)
    }

    fn matrix_flops(&self, layer: &Layer) -> FlopsByPart {
        layer.matrices(self.hidden).iter().fold(FlopsByPart::default(), |mut sum, matrix| {
            *sum.of_part(matrix.part) += Flops::new(matrix.flops_per_token());
            sum
        })
    }

    fn prediction_flops(&self, sequence: u64, convention: FlopsConvention) -> Flops {
        let (Prediction::Counted, Some(run)) = (convention.prediction, self.runs.last()) else {
            return Flops::ZERO;
        };
        // Each module joins the last hidden state with the next embedding: a product of 2h by h.
        let projection = Flops::new(4.0 * (self.hidden as f64).powi(2));
        let layer = self.layer_flops(&run.layer, sequence, convention.attention).total();
        (projection + layer + self.logits_flops()) * self.prediction_layers as f64
    }
}

impl FlopsByPart {
    pub fn total(&self) -> Flops {
        self.parts().into_iter().map(|(_, flops)| flops).sum()
    }

    /// Every part under its name, including those that are zero.
    pub fn parts(&self) -> [(&'static str, Flops); 8] {
        [
            ("attention projections", self.attention_projections),
            ("attention scores", self.attention_scores),
            ("dense mlp", self.dense_mlp),
            ("experts", self.experts),
            ("shared experts", self.shared_experts),
            ("router", self.router),
            ("logits", self.logits),
            ("prediction", self.prediction),
        ]
    }

    /// The field in which the matrices of a part are counted.
    fn of_part(&mut self, part: ParameterPart) -> &mut Flops {
        match part {
            ParameterPart::DenseMlp => &mut self.dense_mlp,
            ParameterPart::Experts => &mut self.experts,
            ParameterPart::SharedExperts => &mut self.shared_experts,
            ParameterPart::Router => &mut self.router,
            ParameterPart::Head | ParameterPart::Embedding => &mut self.logits,
            ParameterPart::Attention | ParameterPart::Norms => &mut self.attention_projections,
        }
    }
}

impl Add for FlopsByPart {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            attention_projections: self.attention_projections + other.attention_projections,
            attention_scores: self.attention_scores + other.attention_scores,
            dense_mlp: self.dense_mlp + other.dense_mlp,
            experts: self.experts + other.experts,
            shared_experts: self.shared_experts + other.shared_experts,
            router: self.router + other.router,
            logits: self.logits + other.logits,
            prediction: self.prediction + other.prediction,
        }
    }
}

impl Mul<f64> for FlopsByPart {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        Self {
            attention_projections: self.attention_projections * factor,
            attention_scores: self.attention_scores * factor,
            dense_mlp: self.dense_mlp * factor,
            experts: self.experts * factor,
            shared_experts: self.shared_experts * factor,
            router: self.router * factor,
            logits: self.logits * factor,
            prediction: self.prediction * factor,
        }
    }
}

impl Sum for FlopsByPart {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::default(), Add::add)
    }
}
