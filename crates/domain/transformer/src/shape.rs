//! The architecture as plain data. [`Transformer::new`](crate::Transformer::new) checks it.

use std::fmt;

use crate::{Attention, Family, Mlp, Reach};

/// A decoder-only language model. Sizes are counts of elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    pub name: String,
    pub family: Family,
    pub vocab: u64,
    pub hidden: u64,
    /// The layers from first to last.
    pub runs: Vec<LayerRun>,
    pub norm: Norm,
    pub norm_placement: NormPlacement,
    /// A norm straight after the embedding (BLOOM).
    pub has_embedding_norm: bool,
    pub positions: Positions,
    /// The output projection is the transposed input embedding.
    pub has_tied_embeddings: bool,
    pub max_context: u64,
    /// Multi-token prediction modules. Counted only on request.
    pub prediction_layers: u64,
    /// What the configuration describes besides the language model.
    pub left_out: Vec<LeftOut>,
}

/// Consecutive identical layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerRun {
    pub count: u64,
    pub layer: Layer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    pub attention: Attention,
    pub reach: Reach,
    pub mlp: Mlp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norm {
    Rms,
    /// Weight and bias.
    LayerNorm,
    LayerNormWithoutBias,
}

impl Norm {
    /// Parameters of one norm over `width` elements.
    pub fn parameters(self, width: u64) -> u64 {
        match self {
            Norm::LayerNorm => 2 * width,
            Norm::Rms | Norm::LayerNormWithoutBias => width,
        }
    }
}

/// Where the norms of a layer are: around the attention and around the MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    Before,
    /// The residual stream goes in as it is (OLMo 2).
    After,
    BeforeAndAfter,
}

impl NormPlacement {
    pub fn norms_per_half(self) -> u64 {
        match self {
            NormPlacement::Before | NormPlacement::After => 1,
            NormPlacement::BeforeAndAfter => 2,
        }
    }
}

impl Layer {
    /// Of mixing tokens and of the MLP, how many it has.
    pub fn halves(&self) -> u64 {
        u64::from(self.attention != Attention::Absent) + u64::from(self.mlp != Mlp::Absent)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// A learned vector for each of `count` positions.
    Learned {
        count: u64,
    },
    Rotary,
    Alibi,
    Absent,
}

/// A part of a multimodal model that this crate does not describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOut {
    Vision,
    Audio,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LeftOut::Vision => "the vision encoder",
            LeftOut::Audio => "the audio encoder",
        })
    }
}

impl LayerRun {
    /// Layers one by one, gathered into runs of equal neighbours.
    pub fn gather(layers: impl IntoIterator<Item = Layer>) -> Vec<LayerRun> {
        Self::join(layers.into_iter().map(|layer| LayerRun { count: 1, layer }))
    }

    /// Merges neighbouring runs of equal layers.
    pub(crate) fn join(runs: impl IntoIterator<Item = LayerRun>) -> Vec<LayerRun> {
        let mut joined: Vec<LayerRun> = Vec::new();
        for run in runs {
            match joined.last_mut() {
                Some(last) if last.layer == run.layer => last.count = last.count.saturating_add(run.count),
                _ => joined.push(run),
            }
        }
        joined
    }
}
