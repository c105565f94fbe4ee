//! Log-probabilities of a prompt's own tokens.
//!
//! All rows of such a prompt need logits, and a step has room for those of a few rows. Its chunk is computed in pieces before the others' rows,
//! and its last row together with them. What was told before a preemption is computed again and not told again.

use bedplate_batching::SequenceId;
use bedplate_kernels::Element;
use bedplate_network::RowAdapters;

use super::{Core, EngineParts, Logits};
use crate::compose::TokenRun;
use crate::worker_group::WorkerOrder;
use crate::{SampleEvent, sampler};

impl<E: Element> Core<E> {
    /// Takes all rows but the last from the chunks of prompts whose log-probabilities are wanted and not told yet.
    pub(super) fn take_pieces(&self, runs: &mut [TokenRun]) -> Vec<TokenRun> {
        let mut pieces = Vec::new();
        for run in runs {
            if !self.has_untold(run.sequence) {
                continue;
            }
            let last = run.tokens.len() - 1;
            let before: Vec<u32> = run.tokens.drain(..last).collect();
            for (at, tokens) in before.chunks(self.parts.wanted).enumerate() {
                let first = run.first + at * self.parts.wanted;
                pieces.push(TokenRun { first, tokens: tokens.to_vec(), wanted: tokens.len(), ..run.clone() });
            }
            run.first += last;
            run.wanted = 1;
        }
        pieces
    }

    /// Whether log-probabilities of the sequence's prompt are yet to be told.
    fn has_untold(&self, sequence: SequenceId) -> bool {
        let live = self.slots[sequence.0 as usize].as_ref();
        let job = live.and_then(|live| self.jobs.get(&live.request));
        job.is_some_and(|job| job.ask.wants_prompt().is_some() && job.told_prompt < job.ask.prompt.len())
    }

    pub(super) fn compute_pieces(&mut self, pieces: Vec<TokenRun>) {
        for mut piece in pieces {
            self.piece.fill(&self.parts.scheduler, std::slice::from_mut(&mut piece));
            let EngineParts { device, network, weights, pool, room, adapters, group, .. } = &mut self.parts;
            let step = self.piece.rows();
            if let Some(group) = group {
                group.say(&WorkerOrder::step(&step));
            }
            let rows: Vec<_> =
                self.piece.adapted.iter().map(|(rows, at)| (rows.clone(), &adapters[*at].1)).collect();
            network.answer(device, weights, pool, &step, RowAdapters { rows: &rows }, room);
            if self.trouble().is_err() {
                return;
            }
            self.tell_prompt(piece.sequence, piece.first, piece.tokens.len(), 0);
        }
    }

    /// The same for the rows that were computed with the rest of the step.
    pub(super) fn tell_last_of_pieces(&mut self, runs: &[TokenRun]) {
        for run in runs.iter().filter(|run| run.wanted == 1) {
            if let Some(place) = self.composed.place(run.sequence).filter(|_| self.has_untold(run.sequence)) {
                self.tell_prompt(run.sequence, run.first, 1, place);
            }
        }
    }

    /// Tells the log-probabilities of the tokens behind some rows of a prompt, whose logits lie from `place` on.
    fn tell_prompt(&mut self, sequence: SequenceId, first: usize, rows: usize, place: usize) {
        let Self { parts, jobs, slots, logits: Logits { row, .. }, .. } = self;
        let Some(live) = slots[sequence.0 as usize].as_ref() else { return };
        let Some(job) = jobs.get_mut(&live.request) else { return };
        let Some(top) = job.ask.wants_prompt() else { return };
        let told = job.told_prompt;
        let mut logprobs = Vec::new();
        for at in 0..rows {
            let number = first + at + 1;
            let Some(token) = job.ask.prompt.get(number).filter(|_| number >= told) else { continue };
            let row: &[f32] = match parts.room.lend_logits(&parts.device, place + at) {
                Some(row) => row,
                None => {
                    parts.room.read_logits(&parts.device, place + at, row);
                    row
                }
            };
            logprobs.push(sampler::logprobs(row, *token, top));
        }
        if !logprobs.is_empty() {
            job.told_prompt += logprobs.len();
            job.tell(SampleEvent::Prompt { first: told, logprobs });
        }
    }
}
