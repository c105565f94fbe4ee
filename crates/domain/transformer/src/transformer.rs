//! The checked shape and the ways to walk it.

use std::ops::Deref;

use crate::check::check;
use crate::{Attention, Layer, LayerRun, ModelError, Reach, Shape};

/// A [`Shape`] whose sizes have been checked, so that nothing computed from it overflows.
///
/// It reads like its shape (`model.hidden`, `model.runs`); to change one, edit a copy of the shape and
/// check it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transformer(Shape);

impl Transformer {
    /// Checks a shape and joins neighbouring runs of equal layers.
    pub fn new(mut shape: Shape) -> Result<Self, ModelError> {
        shape.runs = LayerRun::join(shape.runs);
        check(&shape).map_err(|flaw| ModelError::Inconsistent { flaw, place: None })?;
        Ok(Self(shape))
    }

    pub fn into_shape(self) -> Shape {
        self.0
    }

    pub fn layer_count(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// Every layer from first to last.
    pub fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.runs.iter().flat_map(|run| (0..run.count).map(move |_| &run.layer))
    }

    /// The kinds of layers, each with its total count, in order of first appearance.
    pub fn layer_kinds(&self) -> Vec<LayerRun> {
        let mut kinds: Vec<LayerRun> = Vec::new();
        for run in &self.runs {
            match kinds.iter_mut().find(|kind| kind.layer == run.layer) {
                Some(kind) => kind.count += run.count,
                None => kinds.push(*run),
            }
        }
        kinds
    }

    /// The distinct reaches of the layers, in order of first appearance.
    pub fn reaches(&self) -> Vec<Reach> {
        let mut found: Vec<Reach> = Vec::new();
        for run in &self.runs {
            if !found.contains(&run.layer.reach) {
                found.push(run.layer.reach);
            }
        }
        found
    }

    /// Whether any layer routes tokens to experts.
    pub fn is_mixture(&self) -> bool {
        self.runs.iter().any(|run| run.layer.mlp.mixture().is_some())
    }

    /// Whether layers differ in more than reach and experts: some carry a state, or only mix tokens, or only have an MLP.
    pub fn is_hybrid(&self) -> bool {
        let is_whole =
            |layer: &Layer| layer.halves() == 2 && !matches!(layer.attention, Attention::Recurrent(_));
        self.runs.iter().any(|run| !is_whole(&run.layer))
    }

    /// The same model with only its first `count` layers, as benchmarks shrink a model to fit.
    pub fn truncated(&self, count: u64) -> Result<Self, ModelError> {
        let mut left = count;
        let mut shape = self.0.clone();
        for run in &mut shape.runs {
            run.count = run.count.min(left);
            left -= run.count;
        }
        shape.runs.retain(|run| run.count > 0);
        Self::new(shape)
    }
}

impl Deref for Transformer {
    type Target = Shape;

    fn deref(&self) -> &Shape {
        &self.0
    }
}
