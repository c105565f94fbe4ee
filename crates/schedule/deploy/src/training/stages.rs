//! How layers are dealt to pipeline stages where they do not divide evenly.

use bedplate_layout::{Ends, StageLayers};

use super::{Lacks, TrainingJob};

/// Layers of each chunk, in the order in which a micro-batch passes them. Chunk `c` belongs to stage `c mod stages`; a stage
/// deals its layers evenly, with the shorter chunks where the embedding and the head are. `None` where a chunk has no layer.
fn layers_per_chunk(stages: &[u64], chunks_per_stage: u64) -> Option<Vec<u64>> {
    let last = stages.len() - 1;
    let mut chunks = Vec::new();
    for round in 0..chunks_per_stage {
        for (stage, layers) in stages.iter().enumerate() {
            let (each, longer) = (layers / chunks_per_stage, layers % chunks_per_stage);
            let is_longer = if stage == last { round < longer } else { round >= chunks_per_stage - longer };
            chunks.push(each + u64::from(is_longer));
        }
    }
    chunks.iter().all(|layers| *layers > 0).then_some(chunks)
}

impl TrainingJob<'_> {
    /// Chunks of layers over all stages.
    pub(super) fn chunks(&self) -> u64 {
        u64::from(self.layout.pipeline) * u64::from(self.layout.virtual_stages)
    }

    /// Whether every chunk has as many layers as the others, so that nothing needs to be said about them.
    pub(super) fn divides_evenly(&self) -> bool {
        let is_plain = self.layout.ends == Ends::default() && self.prediction_layers() == 0;
        is_plain && self.model.layer_count().is_multiple_of(self.chunks())
    }

    /// Modules that predict further tokens and are trained with the model.
    pub(super) fn prediction_layers(&self) -> u64 {
        if self.workload.trains_prediction { self.model.prediction_layers } else { 0 }
    }

    /// The chunks as Megatron writes them, such as `Et*7|(t*8|)*14t*7L`, with `m` for each prediction module.
    pub(super) fn megatron_layout(&self) -> Result<String, Lacks> {
        if self.model.is_hybrid() {
            return Err(Lacks::Ends);
        }
        let layout = self.layout;
        let modules = self.prediction_layers();
        let ends = Ends { last: layout.ends.last.map(|last| last + modules as u32), ..layout.ends };
        let stages = StageLayers::of_each(self.model.layer_count() + modules, layout.pipeline, ends);
        let chunks = stages.and_then(|stages| layers_per_chunk(&stages, layout.virtual_stages.into()));
        let layers = chunks.filter(|chunks| chunks.last() >= Some(&modules)).ok_or(Lacks::Chunks)?;
        let (last, others) = layers.split_last().expect("a pipeline has a chunk");
        let mut text = String::from("E");
        for run in others.chunk_by(|a, b| a == b) {
            let chunk = format!("{}|", decoders(run[0]));
            // The embedding stands before the first chunk, which cannot be part of a repetition then.
            let (alone, repeated) = if text == "E" { (1, run.len() - 1) } else { (0, run.len()) };
            text += &chunk.repeat(alone);
            text += &match repeated {
                0..=2 => chunk.repeat(repeated),
                _ => format!("({chunk})*{repeated}"),
            };
        }
        Ok(text + &decoders(last - modules) + &"m".repeat(modules as usize) + "L")
    }
}

fn decoders(count: u64) -> String {
    match count {
        0..=3 => "t".repeat(count as usize),
        _ => format!("t*{count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_deals_its_layers_evenly_to_its_chunks() {
        assert_eq!(layers_per_chunk(&[2, 2, 2, 2], 1), Some(vec![2, 2, 2, 2]));
        assert_eq!(layers_per_chunk(&[3, 4, 4, 3], 2), Some(vec![1, 2, 2, 2, 2, 2, 2, 1]));
        assert_eq!(layers_per_chunk(&[2, 3, 3, 2], 2), Some(vec![1, 1, 1, 1, 1, 2, 2, 1]));
        assert_eq!(layers_per_chunk(&[1, 3, 2], 2), None);
    }
}
