//! Speculating on the next tokens with a smaller model of the same vocabulary.
//!
//! The draft model has a pool of its own in which a sequence has the blocks with the same numbers, so its keys and values need no tables of their
//! own. It computes what it has not seen of a sequence when it is asked for speculative tokens; where a block holds something else than it thinks, its tokens are
//! bad and nothing worse.

use bedplate_batching::{Scheduler, SequenceId};
use bedplate_kernels::{Device, Element};
use bedplate_network::{KvPool, Network, PackedWeights, RowAdapters, ServingRoom};

use crate::compose::{Composed, TokenRun};
use crate::sampler::argmax;

/// The draft model.
pub(crate) struct DraftModel<E: Element> {
    pub(crate) network: Network,
    pub(crate) weights: PackedWeights<E>,
    pub(crate) pool: KvPool<E>,
    pub(crate) room: ServingRoom<E>,
    pub(crate) composed: Composed,
    pub(crate) logits: Vec<f32>,
    /// Most rows of a step of it.
    pub(crate) rows: usize,
}

/// The speculative tokens of a sequence.
#[derive(Debug, Clone)]
pub(crate) struct Speculation {
    pub(crate) sequence: SequenceId,
    /// The text that it has.
    pub(crate) text: Vec<u32>,
    /// Tokens of the text that the draft model has seen.
    pub(crate) seen: usize,
    /// A block behind the sequence's own.
    pub(crate) spare: Option<u32>,
    pub(crate) most: usize,
    pub(crate) tokens: Vec<u32>,
}

impl<E: Element> DraftModel<E> {
    /// Speculates for all sequences together, token by token.
    pub(crate) fn speculate(
        &mut self,
        device: &Device,
        scheduler: &Scheduler,
        speculations: &mut [Speculation],
    ) {
        while let Some(runs) = self.next_runs(speculations) {
            let is_last = |run: &TokenRun| run.wanted > 0;
            let mut runs = runs;
            self.composed.fill(scheduler, &mut runs);
            let Self { network, weights, pool, room, composed, logits, .. } = self;
            network.answer(device, weights, pool, &composed.rows(), RowAdapters::NONE, room);
            for speculation in speculations.iter_mut() {
                let Some(run) = runs.iter().find(|run| run.sequence == speculation.sequence) else {
                    continue;
                };
                speculation.seen = run.first + run.tokens.len();
                let Some(place) = composed.place(run.sequence).filter(|_| is_last(run)) else { continue };
                room.read_logits(device, place, logits);
                match argmax(logits) {
                    Some((token, _)) => speculation.tokens.push(token),
                    None => speculation.most = speculation.tokens.len(),
                }
            }
        }
    }

    /// The rows of the next step: of each sequence what the model has not seen, as much as fits.
    fn next_runs(&self, speculations: &[Speculation]) -> Option<Vec<TokenRun>> {
        let mut left = self.rows;
        let mut runs = Vec::new();
        for speculation in
            speculations.iter().filter(|speculation| speculation.tokens.len() < speculation.most)
        {
            let known = speculation.text.len() + speculation.tokens.len();
            let end = known.min(speculation.seen + left);
            if end == speculation.seen {
                break;
            }
            left -= end - speculation.seen;
            let all = || speculation.text.iter().chain(&speculation.tokens).copied();
            runs.push(TokenRun {
                sequence: speculation.sequence,
                first: speculation.seen,
                tokens: all().skip(speculation.seen).take(end - speculation.seen).collect(),
                wanted: usize::from(end == known),
                adapter: None,
                spare: speculation.spare,
            });
        }
        (!runs.is_empty()).then_some(runs)
    }
}
