//! How layers are dealt to pipeline stages where they do not divide evenly.

use super::Job;

/// Layers of each chunk, in the order in which a micro-batch passes them: as even as possible, the longer ones in the
/// middle, because the first has the embedding and the last the head.
pub(super) fn layers_per_chunk(layers: u64, chunks: u64) -> Vec<u64> {
    let (each, longer) = (layers / chunks, layers % chunks);
    let first_longer = (chunks - longer).div_ceil(2);
    (0..chunks)
        .map(|chunk| each + u64::from((first_longer..first_longer + longer).contains(&chunk)))
        .collect()
}

impl Job<'_> {
    /// Chunks of layers over all stages.
    pub(super) fn chunks(&self) -> u64 {
        u64::from(self.layout.pipeline) * u64::from(self.layout.virtual_stages)
    }

    pub(super) fn divides_evenly(&self) -> bool {
        self.model.layer_count().is_multiple_of(self.chunks())
    }

    /// The chunks as Megatron writes them, such as `Et*7|(t*8|)*14t*7L`.
    pub(super) fn megatron_layout(&self) -> String {
        let layers = layers_per_chunk(self.model.layer_count(), self.chunks());
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
        text + &decoders(*last) + "L"
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
    fn layers_are_dealt_evenly_with_the_longer_chunks_in_the_middle() {
        assert_eq!(layers_per_chunk(8, 4), [2, 2, 2, 2]);
        assert_eq!(layers_per_chunk(7, 4), [1, 2, 2, 2]);
        assert_eq!(layers_per_chunk(6, 4), [1, 2, 2, 1]);
        assert_eq!(layers_per_chunk(126, 16).iter().sum::<u64>(), 126);
        assert_eq!(layers_per_chunk(126, 16)[0], 7);
        assert_eq!(layers_per_chunk(126, 16)[15], 7);
    }
}
