//! What training on a host allocates on a rank: weights and their state, and the runtime's workspace buffer by buffer.

use std::cell::Cell;

use bedplate_layout::{PipelineStage, Recompute, Sharding, in_flight};
use bedplate_transformer::workspace::{self, Make, Rooms, Stage, Widths};
use bedplate_units::Bytes;

use super::part::{self, BlockWeights, ModelBlocks, Sharers, splits_gradients, splits_weights};
use super::{HostModel, WIDE, element_bytes};
use crate::{Grid, LayerKey, MemoryUse, PeerCopies};

/// Bytes of the workspace.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Buffers {
    pub(super) activations: f64,
    logits: f64,
    panels: f64,
}

/// Numbers that a rank holds of the blocks of its stage.
struct Sizes {
    all: f64,
    /// What it owns of them: all, or its share.
    owned: f64,
    /// Split blocks that are here at once, and this rank's shares of as many.
    gathered: f64,
    parts: f64,
}

impl Sizes {
    fn of(blocks: &[BlockWeights], [dense, expert]: [Sharers; 2]) -> Self {
        let share = |block: &BlockWeights| {
            block.dense / f64::from(dense.split) + block.expert / f64::from(expert.split)
        };
        let mut lengths: Vec<(f64, f64)> =
            blocks.iter().map(|block| (block.numbers(), share(block))).collect();
        lengths.sort_by(|a, b| a.0.total_cmp(&b.0));
        // One is computed while the next one of its size comes.
        let at_once = |of: fn(&(f64, f64)) -> f64| {
            let same = lengths.chunk_by(|a, b| a.0 == b.0);
            same.map(|same| of(&same[0]) * same.len().min(2) as f64).sum::<f64>()
        };
        Self {
            all: lengths.iter().map(|length| length.0).sum(),
            owned: blocks.iter().map(share).sum(),
            gathered: at_once(|length| length.0),
            parts: at_once(|length| length.1),
        }
    }
}

impl HostModel {
    /// Of the rank that needs most.
    pub(crate) fn memory(&self, key: &LayerKey, grid: &Grid, micro_batches: f64) -> MemoryUse {
        let (widths, blocks) = (part::widths(&self.model, key.tensor), ModelBlocks::of(&self.model, key));
        let of = |stage| self.stage_memory(key, grid, &widths, &blocks.of_stage(stage), stage, micro_batches);
        let largest = part::stages(grid).map(of).max_by(|a, b| a.total().get().total_cmp(&b.total().get()));
        largest.expect("a layout has a stage")
    }

    fn stage_memory(
        &self,
        key: &LayerKey,
        grid: &Grid,
        widths: &[Widths],
        blocks: &[BlockWeights],
        stage: PipelineStage,
        micro_batches: f64,
    ) -> MemoryUse {
        let element = element_bytes(key.precision);
        let sharers = part::sharers(key, grid);
        let sizes = Sizes::of(blocks, sharers);
        let state = self.state(element, grid.sharding, &sizes, key);
        // What several ranks hold needs no copy.
        let is_copied = sharers.iter().all(|sharers| sharers.copies > 1);
        let copies = if self.ranks > 1.0 && !is_copied { copy_bytes(self.copies) } else { 0.0 };
        let buffers = self.stage_buffers(key, widths, stage, micro_batches);
        MemoryUse {
            weights: Bytes::new(state.weights),
            gradients: Bytes::new(state.gradients),
            optimizer: Bytes::new(state.optimizer),
            activations: Bytes::new(buffers.activations),
            logits: Bytes::new(buffers.logits),
            communication: Bytes::new(state.gathered),
            workspace: Bytes::new(PROGRAM + buffers.panels),
            copies: Bytes::new(copies * state.learned),
        }
    }

    /// Tokens of a micro-batch that a rank has.
    pub(super) fn rows(&self, key: &LayerKey) -> usize {
        key.micro_batch as usize * self.sequence / key.context as usize
    }

    /// The buffers of all chunks of a stage.
    fn stage_buffers(
        &self,
        key: &LayerKey,
        widths: &[Widths],
        at: PipelineStage,
        micro_batches: f64,
    ) -> Buffers {
        let passes = at.passes(micro_batches.ceil() as usize);
        let mut all = Buffers::default();
        for chunk in 0..at.chunks {
            let blocks = at.blocks(chunk, widths.len());
            let layers = &widths[blocks.start.max(1) - 1..(blocks.end - 1).min(widths.len())];
            let stage = Stage {
                hidden: self.hidden,
                vocab: self.vocab,
                layers,
                model_layers: widths.len(),
                reaches: self.reaches,
                rows: self.rows(key),
                in_flight: in_flight(&passes, chunk),
                recompute: match key.recompute {
                    Recompute::None => workspace::Recompute::None,
                    // What the runtime has between all and nothing.
                    Recompute::Selective => workspace::Recompute::Cheap,
                    Recompute::Full => workspace::Recompute::Full,
                },
                has_gradients: true,
                has_embedding: at.is_first(chunk),
                has_head: at.is_last(chunk),
                logits: workspace::LogitsAtOnce::Cached,
                ranks: part::ranks(key),
            };
            let buffers = buffers(&stage, element_bytes(key.precision) as usize);
            all.activations += buffers.activations;
            all.logits += buffers.logits;
            all.panels = all.panels.max(buffers.panels);
        }
        all
    }

    /// Of a rank that has all layers, among which those of one layer lie until its backward pass.
    pub(super) fn held(&self, key: &LayerKey, widths: &[Widths]) -> f64 {
        let whole = PipelineStage { stage: 0, stages: 1, chunks: 1 };
        self.stage_buffers(key, widths, whole, 1.0).activations
    }

    /// Weights, gradients and what the optimizer keeps.
    fn state(&self, element: f64, sharding: Sharding, sizes: &Sizes, key: &LayerKey) -> State {
        let Sizes { all, owned, gathered, parts } = *sizes;
        let (is_split, has_split_gradients) = (splits_weights(sharding), splits_gradients(sharding));
        let weights = element * if is_split { owned } else { all };
        let coming = if is_split { element * gathered } else { 0.0 };
        if let Some(adapters) = &self.adapters {
            let trained = adapters.parameters / f64::from(key.tensor);
            // The weights before adaptation stay beside the merged ones, unless those come and go.
            let frozen = if is_split { 0.0 } else { element * all };
            let largest = adapters.largest_block.min(all);
            return State {
                weights,
                gradients: (trained + largest) * WIDE,
                optimizer: frozen + trained * (WIDE + self.moments),
                gathered: coming,
                learned: trained,
            };
        }
        // In fp32 the weights to compute with are the master weights.
        let master = if element < WIDE { WIDE } else { 0.0 };
        State {
            weights,
            gradients: WIDE * if has_split_gradients { owned } else { all },
            optimizer: (master + self.moments) * owned,
            gathered: coming + if has_split_gradients { WIDE * (gathered + parts) } else { 0.0 },
            learned: owned,
        }
    }
}

fn buffers(stage: &Stage<'_>, element: usize) -> Buffers {
    let total = Cell::new(0);
    let add = |bytes: usize| {
        total.set(total.get() + bytes);
        bytes
    };
    let wide = |len| add(WIDE as usize * len);
    let make = Make::<usize> { element: &|len| add(element * len), wide: &wide, index: &wide };
    let logits = Rooms::new(&make, stage).shared.head.map_or(0, |head| head.logits);
    let activations = (total.get() - logits) as f64;
    Buffers { activations, logits: logits as f64, panels: workspace::packed(stage, element as f64) }
}

struct State {
    weights: f64,
    gradients: f64,
    optimizer: f64,
    /// Split weights and gradients on their way.
    gathered: f64,
    /// Numbers whose master weights and moments this rank has.
    learned: f64,
}

/// Bytes of copies for each number that a rank learns: the master weight and both moments of the rank before, with their gradient;
/// where the state is copied every few steps, twice, and the rank's own as it was.
fn copy_bytes(copies: PeerCopies) -> f64 {
    WIDE * match copies {
        PeerCopies::None => 0.0,
        PeerCopies::EveryStep => 4.0,
        PeerCopies::EveryFewSteps => 9.0,
    }
}

/// Code, stacks of threads, batches that wait.
const PROGRAM: f64 = 32e6;
