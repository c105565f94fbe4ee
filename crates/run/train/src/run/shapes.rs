//! Which layout a run has on some number of ranks.
//!
//! It begins with the one that was asked for. When ranks are lost or come, only the number of data ranks changes: the largest number
//! of ranks that makes whole replicas goes on.

use bedplate_layout::{Batch, Ends, Layout, LayoutRefusal, Schedule};
use bedplate_transformer::Transformer;

use crate::{TrainConfig, TrainError};

/// The layouts that a run may have.
pub(super) struct Shapes<'a> {
    config: &'a TrainConfig,
    model: Transformer,
    /// Ranks that the run was begun with.
    asked: u32,
}

impl<'a> Shapes<'a> {
    pub(super) fn new(config: &'a TrainConfig, model: Transformer, begun_with: Option<u32>) -> Self {
        let asked = config.training.layout.map(|layout| layout.world() as u32).or(begun_with);
        Self { config, model, asked: asked.unwrap_or(1) }
    }

    /// The layout that the run begins with on this many ranks.
    pub(super) fn first(&self, ranks: u32) -> Result<Layout, TrainError> {
        let training = &self.config.training;
        let layout = Layout { data: ranks, ..Layout::default() };
        let layout = Layout { micro_batch: training.micro_batch as u32, ..training.layout.unwrap_or(layout) };
        let batch = Batch { sequence: self.config.data.sequence as u64, global_batch: training.batch };
        let mut reasons = layout.refusals(&self.model, Some(ranks.into()), Some(batch));
        // Ranks with fewer micro-batches wait for the others.
        reasons.retain(|reason| !matches!(reason, LayoutRefusal::BatchDoesNotDivide { .. }));
        if !reasons.is_empty() {
            return Err(TrainError::Layout { reasons });
        }
        self.supported(layout)
    }

    /// Refuses what the runtime does not do.
    fn supported(&self, layout: Layout) -> Result<Layout, TrainError> {
        let no = |why: &str| Err(TrainError::UnsupportedLayout { layout, why: why.to_owned() });
        if self.model.is_mixture() && layout.tensor != layout.expert_tensor && layout.tensor > 1 {
            return no(
                "experts are cut over the same ranks as the other matrices: give `etp` the value of `tp`",
            );
        }
        if layout.expert_tensor > 1 && layout.tensor == 1 {
            return no("experts are cut over the same ranks as the other matrices: `etp` needs `tp`");
        }
        if layout.schedule != Schedule::Alternating || layout.ends != Ends::default() {
            return no("stages alternate forward and backward passes and share the layers evenly");
        }
        let micro_batches = self.micro_batches();
        if micro_batches < u64::from(layout.data) {
            return no(&format!("a step has {micro_batches} micro-batches, fewer than data ranks"));
        }
        Ok(layout)
    }

    fn micro_batches(&self) -> u64 {
        self.config.training.batch / self.config.training.micro_batch
    }

    /// The layout on exactly this many ranks, if they are whole replicas.
    pub(super) fn on(&self, ranks: u32) -> Option<Layout> {
        let asked = self.asked_layout();
        let layout = Layout { data: ranks / replica(&asked), ..asked };
        let is_whole = layout.data > 0 && layout.world() == u64::from(ranks);
        let is_enough = u64::from(layout.data) <= self.micro_batches();
        let is_legal = is_whole && layout.refusals(&self.model, None, None).is_empty();
        (is_legal && is_enough).then_some(layout)
    }

    /// The layout on as many of these ranks as make whole replicas; never more than the run was begun with.
    pub(super) fn largest(&self, ranks: u32) -> Option<Layout> {
        (1..=ranks.min(self.asked)).rev().find_map(|ranks| self.on(ranks))
    }

    /// The fewest ranks with which the run can go on.
    pub(super) fn fewest(&self) -> u32 {
        (1..=self.asked).find(|ranks| self.on(*ranks).is_some()).unwrap_or(self.asked)
    }

    /// Whether embedding and head are one matrix.
    pub(super) fn has_tied_ends(&self) -> bool {
        self.model.has_tied_embeddings
    }

    /// Ranks that the run was begun with.
    pub(super) fn asked(&self) -> u32 {
        self.asked
    }

    pub(super) fn asked_layout(&self) -> Layout {
        let training = &self.config.training;
        let layout = training.layout.unwrap_or(Layout { data: self.asked, ..Layout::default() });
        Layout { micro_batch: training.micro_batch as u32, ..layout }
    }
}

/// Ranks of one whole replica.
fn replica(layout: &Layout) -> u32 {
    layout.tensor * layout.context * layout.pipeline
}

#[cfg(test)]
mod tests {
    use bedplate_diag::Source;
    use bedplate_network::Architecture;

    use super::*;

    const MIXTRAL: &str = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 8,
        "num_experts_per_tok": 2, "max_position_embeddings": 64}"#;

    /// Ranks that go on of each number that is left, up to all.
    fn going_on(layout: &str) -> Vec<u32> {
        let mut config = TrainConfig::new("config.json", "corpus");
        (config.training.batch, config.training.micro_batch) = (8, 1);
        config.training.layout = Some(layout.parse().unwrap());
        let model = Architecture::from_config(Source::new("config.json", MIXTRAL)).unwrap().transformer;
        let shapes = Shapes::new(&config, model, None);
        let all = shapes.asked_layout().world() as u32;
        (1..=all).map(|left| shapes.largest(left).map_or(0, |layout| layout.world() as u32)).collect()
    }

    #[test]
    fn whole_replicas_go_on() {
        assert_eq!(going_on("dp4"), [1, 2, 3, 4]);
        assert_eq!(going_on("dp4.zero3"), [1, 2, 3, 4]);
        assert_eq!(going_on("dp2.pp2"), [0, 2, 2, 4]);
        assert_eq!(going_on("pp4"), [0, 0, 0, 4]);
        assert_eq!(going_on("dp4.ep2"), [0, 2, 2, 4]);
        assert_eq!(going_on("dp4.hsdp2"), [0, 2, 2, 4]);
    }
}
