//! What one rank of a layout has of a model: blocks by their numbers, layers by their widths.

use bedplate_layout::{PipelineStage, Sharding};
use bedplate_transformer::workspace::{self, Widths};
use bedplate_transformer::{Attention, Dense, GroupedQuery, Layer, Mixture, Mlp, Transformer};

use crate::{Grid, LayerKey};

/// Numbers of a block's weights on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct BlockWeights {
    pub(super) dense: f64,
    /// Of routed experts, which other ranks share.
    pub(super) expert: f64,
    /// How often a micro-batch computes with it: split weights are gathered as often.
    pub(super) uses: f64,
    /// Whether tensor ranks with rows of their own each have only a part of its gradient.
    pub(super) is_partial: bool,
}

impl BlockWeights {
    pub(super) fn numbers(&self) -> f64 {
        self.dense + self.expert
    }
}

/// The ranks that learn the same numbers: those that split them, and those that hold the same part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sharers {
    pub(super) split: u32,
    pub(super) copies: u32,
}

/// Who shares dense weights, and routed experts.
pub(super) fn sharers(key: &LayerKey, grid: &Grid) -> [Sharers; 2] {
    let dense = grid.data * key.context;
    let of = |ranks: u32, sharding: Sharding| {
        let split = match sharding {
            Sharding::None => 1,
            Sharding::WeightsWithin(group) => group.min(ranks),
            Sharding::Optimizer | Sharding::Gradients | Sharding::Weights => ranks,
        };
        Sharers { split, copies: ranks / split.max(1) }
    };
    if key.expert == 1 {
        return [of(dense, grid.sharding); 2];
    }
    let expert = (dense * key.tensor / (key.expert * key.expert_tensor)).max(1);
    let sharding = match grid.sharding {
        Sharding::WeightsWithin(_) => Sharding::Weights,
        other => other,
    };
    [of(dense, grid.sharding), of(expert, sharding)]
}

pub(super) fn splits_weights(sharding: Sharding) -> bool {
    matches!(sharding, Sharding::Weights | Sharding::WeightsWithin(_))
}

pub(super) fn splits_gradients(sharding: Sharding) -> bool {
    splits_weights(sharding) || sharding == Sharding::Gradients
}

/// By how many ranks buffers are cut.
pub(super) fn ranks(key: &LayerKey) -> workspace::Ranks {
    workspace::Ranks {
        tensor: key.tensor as usize,
        has_cut_rows: key.is_sequence_parallel,
        context: key.context as usize,
        experts: key.expert as usize,
    }
}

/// A layer as a rank of a tensor-parallel group has it.
pub(super) fn cut(layer: &Layer, tensor: u32) -> Layer {
    let share = |count: u64| (count / u64::from(tensor)).max(1);
    let narrower = |dense: Dense| Dense { width: share(dense.width), ..dense };
    let attention = match layer.attention {
        Attention::GroupedQuery(grouped) => Attention::GroupedQuery(GroupedQuery {
            heads: share(grouped.heads),
            kv_heads: share(grouped.kv_heads),
            ..grouped
        }),
        other => other,
    };
    let mlp = match layer.mlp {
        Mlp::Dense(dense) => Mlp::Dense(narrower(dense)),
        Mlp::Mixture(mixture) => Mlp::Mixture(Mixture {
            expert: narrower(mixture.expert),
            shared: mixture.shared.map(narrower),
            ..mixture
        }),
        Mlp::Absent => Mlp::Absent,
    };
    Layer { attention, mlp, ..*layer }
}

/// The widths of all layers on one rank.
pub(super) fn widths(model: &Transformer, tensor: u32) -> Vec<Widths> {
    model.layers().map(|layer| Widths::of(model, &cut(layer, tensor))).collect()
}

fn layer_block(model: &Transformer, layer: &Layer, key: &LayerKey) -> BlockWeights {
    let here = cut(layer, key.tensor);
    let all = model.layer_parameters(&here) as f64;
    let is_expert =
        |matrix: &bedplate_transformer::Matrix| matrix.part == bedplate_transformer::ParameterPart::Experts;
    let experts: f64 = here
        .matrices(model.hidden)
        .iter()
        .filter(|matrix| is_expert(matrix))
        .map(|matrix| (matrix.inputs * matrix.outputs * matrix.copies) as f64)
        .sum();
    let (dense, expert) = (all - experts, experts / f64::from(key.expert));
    match key.expert {
        1 => BlockWeights { dense: all, expert: 0.0, uses: 2.0, is_partial: false },
        _ => BlockWeights { dense, expert, uses: 2.0, is_partial: false },
    }
}

/// The blocks of a model on a rank that had all stages, and the numbers of the table that embedding and head may share.
#[derive(Debug, Clone)]
pub(super) struct ModelBlocks {
    embedding: BlockWeights,
    layers: Vec<BlockWeights>,
    head: BlockWeights,
    is_tied: bool,
}

impl ModelBlocks {
    pub(super) fn of(model: &Transformer, key: &LayerKey) -> Self {
        let layers: Vec<BlockWeights> = model.layers().map(|layer| layer_block(model, layer, key)).collect();
        let table = (model.vocab * model.hidden) as f64;
        let counted = model.layers().map(|layer| model.layer_parameters(layer) as f64).sum::<f64>();
        let is_tied = model.has_tied_embeddings;
        let norm = model.norm.parameters(model.hidden) as f64;
        let head = norm + if is_tied { 0.0 } else { table };
        let is_partial = key.is_sequence_parallel;
        // What is neither a layer's nor the head's: the table, learned positions and a norm after them.
        let embedding = model.parameters().total as f64 - counted - head;
        Self {
            embedding: BlockWeights { dense: embedding, expert: 0.0, uses: 2.0, is_partial },
            layers,
            head: BlockWeights { dense: head, expert: 0.0, uses: 1.0, is_partial },
            is_tied,
        }
    }

    /// Those of a stage, each once.
    pub(super) fn of_stage(&self, stage: PipelineStage) -> Vec<BlockWeights> {
        let count = self.layers.len();
        let mut found = Vec::new();
        for number in (0..stage.chunks).flat_map(|chunk| stage.blocks(chunk, count)) {
            found.push(match number {
                0 => self.embedding,
                number if number > count => self.head,
                number => self.layers[number - 1],
            });
        }
        if self.is_tied && stage.is_last(stage.chunks - 1) {
            // The embedding's table serves as the head's matrix.
            match stage.stages {
                1 => found[0].uses += 1.0,
                _ => found.push(BlockWeights { uses: 1.0, ..self.embedding }),
            }
        }
        found
    }

    /// Numbers that first and last stage both learn.
    pub(super) fn tied(&self, grid: &Grid) -> f64 {
        if self.is_tied && grid.pipeline > 1 { self.embedding.dense } else { 0.0 }
    }
}

/// The stages of a layout.
pub(super) fn stages(grid: &Grid) -> impl Iterator<Item = PipelineStage> + use<> {
    let (stages, chunks) = (grid.pipeline as usize, grid.virtual_stages as usize);
    (0..stages).map(move |stage| PipelineStage { stage, stages, chunks })
}
