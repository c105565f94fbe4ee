//! The speculative tokens of a sequence, and the rows that check them.

use bedplate_batching::SequenceId;
use bedplate_kernels::Element;

use super::{Core, IS_HERE};
use crate::compose::TokenRun;
use crate::draft::Speculation;
use crate::live::{LiveRequest, Spare};

impl<E: Element> Core<E> {
    pub(super) fn ahead_of(&self, sequence: SequenceId) -> usize {
        self.slots[sequence.0 as usize].as_ref().map_or(0, |live| live.ahead)
    }

    /// The next token whose keys and values were lost: after a preemption the scheduler counts one of those that were speculative in each
    /// step, and has a row and a place for it.
    pub(super) fn lost_run(&self, sequence: SequenceId) -> Option<TokenRun> {
        let live =
            self.slots[sequence.0 as usize].as_ref().filter(|live| live.is_behind && live.ahead > 0)?;
        let first = live.counted() - 1;
        let tokens = vec![live.tokens[first]];
        Some(TokenRun { sequence, first, tokens, wanted: 0, adapter: live.adapter, spare: None })
    }

    /// How many speculative tokens there may be for a sequence: those for which it has blocks, or a spare one.
    pub(super) fn room_to_speculate(&mut self, sequence: SequenceId, speculative: usize) -> Speculation {
        let block_tokens = self.parts.scheduler.options().block_tokens as usize;
        let limit = self.parts.network.longest();
        let blocks = if speculative > 0 { self.parts.scheduler.table(sequence).len() } else { 0 };
        let request = self.live(sequence).request;
        let most =
            self.jobs.get(&request).and_then(LiveRequest::continuation).map_or(1, |text| text.most as usize);
        let live = self.slots[sequence.0 as usize].as_mut().expect(IS_HERE);
        let left = most.saturating_sub(live.generated() + 1).min(limit - live.tokens.len());
        let mut most = speculative.min(left);
        let mut room = (blocks * block_tokens).saturating_sub(live.tokens.len());
        if most > room
            && let Some(block) = self.spares.pop()
        {
            live.spare = Some(Spare { index: blocks, block });
            room += block_tokens;
        }
        most = most.min(room);
        let spare = live.spare.map(|spare| spare.block);
        Speculation { sequence, text: live.tokens.clone(), seen: live.seen, spare, most, tokens: Vec::new() }
    }

    /// The last token of a sequence, and the speculative tokens behind it.
    pub(super) fn decode_run(&mut self, speculation: Speculation) -> TokenRun {
        let Speculation { sequence, text, seen, spare, tokens: speculated, .. } = speculation;
        let first = text.len() - 1;
        self.state.drafted_tokens += speculated.len() as u64;
        let live = self.live(sequence);
        // Speculative tokens that turn out wrong are not part of the text that was seen.
        live.seen = seen.min(text.len());
        let tokens: Vec<u32> = text[first..].iter().chain(&speculated).copied().collect();
        TokenRun { sequence, first, wanted: tokens.len(), tokens, adapter: live.adapter, spare }
    }
}
