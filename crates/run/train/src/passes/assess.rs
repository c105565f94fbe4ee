//! Passes that learn nothing: losses of held-out text, the next token of a text, and where numbers stopped being finite.

use bedplate_comm::CommError;
use bedplate_data::Batch;

use super::before_head;
use crate::pipeline::{Direction, Pass};
use crate::trained::Trained;
use crate::trainer::{Trainer, micro_batches};
use crate::{TrainError, adapter};

impl<E: Trained> Trainer<E> {
    /// The sum of the losses of this rank's rows of a micro-batch, without learning.
    pub(crate) fn assess(&mut self, batch: &Batch) -> Result<f64, TrainError> {
        let mut loss = 0.0;
        let head = self.network.blocks().len() - 1;
        for chunk in 0..self.chunks.chunks.len() {
            let pass = Pass { direction: Direction::Forward, chunk, micro_batch: 0 };
            let blocks: Vec<usize> =
                before_head(&self.chunks.chunks[chunk].blocks, &self.network).skip(1).collect();
            self.forward_pass(pass, Some(batch), None, &mut blocks.into_iter())?;
            if self.ranks.stage().is_last(chunk) {
                self.enter_head()?;
                let Self { device, network, store, chunks, .. } = self;
                let mut room = chunks.chunks[chunk].workspace.room(0);
                loss += network.head_loss(device, network.head_weights(store.working()), &mut room);
                store.release(head, false);
            }
        }
        // What was kept for a backward pass that does not come.
        self.release_all();
        self.ranks.check()?;
        let counts = self.network.part().has_cut_rows || self.ranks.at().tensor == 0;
        Ok(if counts { loss } else { 0.0 })
    }

    /// The logits after the last token of a text, on all ranks. A text that is too long loses its beginning.
    pub(crate) fn logits_after(&mut self, text: &[u32]) -> Result<Vec<f32>, TrainError> {
        let sequence = self.config.data.sequence;
        let context = if text.len() <= sequence { text } else { &text[text.len() - sequence / 2..] };
        let mut batch = self.chunks.idle.clone();
        batch.tokens[..context.len()].copy_from_slice(context);
        self.assess(&batch)?;
        let last = context.len().max(1) - 1;
        let vocab = self.network.architecture().transformer.vocab as usize;
        let mut logits = vec![0.0_f32; vocab];
        let chunk = self.chunks.chunks.len() - 1;
        if self.ranks.stage().is_last(chunk) {
            self.enter_head()?;
            let Self { device, network, store, chunks, .. } = self;
            let mut room = chunks.chunks[chunk].workspace.room(0);
            network.logits(device, network.head_weights(store.working()), &mut room, last, &mut logits);
        }
        self.release_all();
        // All ranks of the last stage have them; one tells the others.
        let at = self.ranks.at();
        let is_giver = self.ranks.stage().is_last(chunk) && [at.data, at.tensor, at.context] == [0; 3];
        let given = |logit: &f32| if is_giver { f64::from(*logit) } else { 0.0 };
        let mut sums: Vec<f64> = logits.iter().map(given).collect();
        self.ranks.sum_over_all(&self.device, &mut sums)?;
        Ok(sums.into_iter().map(|sum| sum as f32).collect())
    }

    fn enter_head(&mut self) -> Result<(), CommError> {
        let Self { device, network, store, adapters, ranks, .. } = self;
        let is_tied = network.architecture().transformer.has_tied_embeddings;
        for block in is_tied.then_some(0).into_iter().chain([network.blocks().len() - 1]) {
            adapter::enter(device, network, store, adapters.as_deref(), ranks, block, None)?;
        }
        Ok(())
    }

    fn release_all(&mut self) {
        (0..self.network.blocks().len()).for_each(|block| self.store.release(block, false));
    }

    /// Computes the micro-batches again and looks at the output of every block.
    pub(crate) fn explain_non_finite(
        &mut self,
        batches: &[Batch],
        loss: f64,
        gradient_norm: f64,
    ) -> Result<TrainError, TrainError> {
        let count = micro_batches(&self.config, &self.ranks).max(batches.len());
        let mut found = None;
        for number in 0..count {
            let batch = batches.get(number).cloned().unwrap_or_else(|| self.chunks.idle.clone());
            self.assess(&batch)?;
            found = found.or_else(|| self.first_non_finite(&batch));
        }
        // The first block of all ranks that has one; blocks and samples are small enough to be exact.
        let nothing = [f64::INFINITY, f64::INFINITY];
        let own = found.map_or(nothing, |(block, sample)| [block as f64, sample as f64]);
        let all = self.ranks.gather(&self.device, &own)?;
        let first = all.chunks(2).min_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
        let first = first.filter(|first| first[0].is_finite());
        Ok(TrainError::NotFinite {
            step: self.step,
            loss,
            gradient_norm,
            first_sample: self.samples,
            block: first.map(|first| self.network.blocks()[first[0] as usize].name.clone()),
            sample: first.map(|first| first[1] as u64),
        })
    }

    /// The first of this rank's blocks whose output is not finite, and the sample.
    fn first_non_finite(&mut self, batch: &Batch) -> Option<(usize, u64)> {
        let Self { device, network, chunks, .. } = self;
        let hidden = network.architecture().transformer.hidden as usize;
        let sequence = chunks.chunks[0].workspace.shape().sequence;
        let own = sequence / network.part().context.degree;
        for chunk in &mut chunks.chunks {
            let room = chunk.workspace.room(0);
            for block in before_head(&chunk.blocks, network) {
                if let Some(at) = device.first_non_finite(room.stream_after(block)) {
                    return Some((block, batch.first_sample + (at / hidden / own) as u64));
                }
            }
        }
        None
    }
}
