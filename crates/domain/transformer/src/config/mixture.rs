//! The keys of mixtures of experts, and which layers are sparse.

use serde_json::json;

use super::Object;
use super::keys::Keys;
use crate::{Dense, Mixture, ModelError, Transformer};

/// How a family names the parts of its mixtures. Its experts are always gated.
#[derive(Clone, Copy)]
pub(super) struct MixtureKeys {
    pub(super) experts: &'static str,
    pub(super) expert_width: &'static str,
    /// Width of the MLP in layers without experts.
    pub(super) dense_width: &'static str,
    pub(super) shared: Shared,
    pub(super) sparse: Sparse,
    pub(super) has_expert_bias: bool,
    pub(super) has_router_bias: bool,
    pub(super) has_correction_bias: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Shared {
    Never,
    /// One shared expert, as wide as a routed one.
    LikeExpert,
    /// A number of shared experts, each as wide as a routed one.
    Number {
        key: &'static str,
    },
    /// A shared expert of its own width, weighted by a gate.
    Gated {
        key: &'static str,
    },
}

/// The rule that decides which layers have experts.
#[derive(Clone, Copy)]
pub(super) enum Sparse {
    Always,
    /// Every `decoder_sparse_step`-th layer, except those in `mlp_only_layers`.
    ByStep,
    /// From `first_k_dense_replace` on, every `moe_layer_freq`-th.
    AfterFirst,
    /// The layers in `moe_layers`, or every `interleave_moe_layer_step`-th.
    Interleaved,
}

/// The mixture of the sparse layers, or `None` when the configuration has no experts.
pub(super) fn read(keys: &Keys<'_>, names: &MixtureKeys) -> Result<Option<Mixture>, ModelError> {
    let experts = match names.sparse {
        Sparse::Always | Sparse::Interleaved => keys.size(names.experts)?,
        Sparse::ByStep | Sparse::AfterFirst => keys.count(names.experts)?,
    };
    if experts == 0 {
        return Ok(None);
    }
    let width = keys.size(names.expert_width)?;
    let shared = shared_width(keys, names.shared, width)?;
    let dense = |width, has_bias| Dense { width, is_gated: true, has_bias };
    Ok(Some(Mixture {
        experts,
        per_token: keys.size("num_experts_per_tok")?,
        expert: dense(width, names.has_expert_bias),
        shared: shared.map(|width| dense(width, false)),
        has_shared_gate: shared.is_some() && matches!(names.shared, Shared::Gated { .. }),
        has_router_bias: names.has_router_bias,
        has_correction_bias: names.has_correction_bias,
    }))
}

pub(super) fn write(object: &mut Object, names: &MixtureKeys, mixture: &Mixture) {
    let width = mixture.expert.width;
    object.insert(names.experts.into(), mixture.experts.into());
    object.insert("num_experts_per_tok".into(), mixture.per_token.into());
    object.insert(names.expert_width.into(), width.into());
    let shared = mixture.shared.map_or(0, |shared| shared.width);
    match names.shared {
        Shared::Never | Shared::LikeExpert => {}
        Shared::Number { key } => {
            object.insert(key.into(), (shared / width).into());
        }
        Shared::Gated { key } => {
            object.insert(key.into(), shared.into());
        }
    }
}

fn shared_width(keys: &Keys<'_>, shared: Shared, expert: u64) -> Result<Option<u64>, ModelError> {
    let width = match shared {
        Shared::Never => 0,
        Shared::LikeExpert => expert,
        Shared::Number { key } => keys.count(key)? * expert,
        Shared::Gated { key } => keys.count(key)?,
    };
    Ok((width > 0).then_some(width))
}

/// For each layer, whether it has experts.
pub(super) fn read_sparse(
    keys: &Keys<'_>,
    names: &MixtureKeys,
    layers: u64,
) -> Result<Vec<bool>, ModelError> {
    let is_sparse: Box<dyn Fn(u64) -> bool> = match names.sparse {
        Sparse::Always => Box::new(|_| true),
        Sparse::ByStep => {
            let step = keys.optional_size("decoder_sparse_step")?.unwrap_or(1);
            let dense = membership(&keys.numbers("mlp_only_layers")?.unwrap_or_default(), layers);
            Box::new(move |layer| !dense[layer as usize] && (layer + 1).is_multiple_of(step))
        }
        Sparse::AfterFirst => {
            let first = keys.count("first_k_dense_replace")?;
            let step = keys.optional_size("moe_layer_freq")?.unwrap_or(1);
            Box::new(move |layer| layer >= first && layer.is_multiple_of(step))
        }
        Sparse::Interleaved => match keys.numbers("moe_layers")? {
            Some(listed) => {
                let sparse = membership(&listed, layers);
                Box::new(move |layer| sparse[layer as usize])
            }
            None => {
                let step = keys.optional_size("interleave_moe_layer_step")?.unwrap_or(1);
                Box::new(move |layer| (layer + 1).is_multiple_of(step))
            }
        },
    };
    Ok((0..layers).map(is_sparse).collect())
}

pub(super) fn write_sparse(object: &mut Object, names: &MixtureKeys, model: &Transformer) {
    let sparse: Vec<bool> = model.layers().map(|layer| layer.mlp.mixture().is_some()).collect();
    let layers_that =
        |wanted: bool| -> Vec<usize> { (0..sparse.len()).filter(|layer| sparse[*layer] == wanted).collect() };
    if !sparse.contains(&true) && matches!(names.sparse, Sparse::ByStep | Sparse::AfterFirst) {
        object.insert(names.experts.into(), 0.into());
    }
    match names.sparse {
        Sparse::Always => {}
        Sparse::ByStep => {
            object.insert("decoder_sparse_step".into(), 1.into());
            object.insert("mlp_only_layers".into(), json!(layers_that(false)));
        }
        Sparse::AfterFirst => {
            let listed = layers_that(true);
            object.insert("first_k_dense_replace".into(), listed.first().copied().unwrap_or(0).into());
            object.insert("moe_layer_freq".into(), step(&listed).into());
        }
        Sparse::Interleaved => {
            object.insert("moe_layers".into(), json!(layers_that(true)));
        }
    }
}

/// The step of evenly spaced layers of which the first is a multiple of it. A single layer is its own
/// step: whatever the original step, its double is past the end.
fn step(listed: &[usize]) -> usize {
    match listed {
        [first, second, ..] => second - first,
        [only] => (*only).max(1),
        [] => 1,
    }
}

fn membership(listed: &[u64], layers: u64) -> Vec<bool> {
    let mut member = vec![false; layers as usize];
    for layer in listed.iter().filter(|layer| **layer < layers) {
        member[*layer as usize] = true;
    }
    member
}
