//! Tokens from logits, and the ends of samples.

use bedplate_batching::SequenceId;
use bedplate_kernels::{Element, NONE};

use super::{Core, Logits};
use crate::ask::Wants;
use crate::compose::Run;
use crate::live::Job;
use crate::{EndReason, Event, Logprobs, draw};

/// What became of a draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drawn {
    Token(u32),
    /// A token after which the sample has ended.
    Last(u32),
    /// The sample has ended without another token.
    Ended,
}

impl<E: Element> Core<E> {
    /// A token more for a sequence. Whether it has ended.
    pub(super) fn advance(&mut self, sequence: SequenceId, origin: SequenceId, runs: &[Run]) -> bool {
        let live = self.live(sequence);
        if live.ahead > 0 {
            live.ahead -= 1;
            return false;
        }
        let request = live.request;
        let run = runs.iter().find(|run| run.sequence == sequence);
        let guessed: &[u32] = run.map_or(&[], |run| &run.tokens[run.tokens.len() + 1 - run.wanted.max(1)..]);
        let Some(place) = self.composed.place(origin) else { return true };
        if self.jobs.get(&request).is_none_or(|job| job.continuation().is_none()) {
            self.tell_end_of_prompt(request, place);
            return true;
        }
        for at in 0..=guessed.len() {
            let drawn = self.draw(sequence, place + at);
            if at > 0 && drawn != Drawn::Ended {
                self.live(sequence).ahead += 1;
                self.state.accepted_tokens += 1;
            }
            match drawn {
                Drawn::Token(token) if guessed.get(at) == Some(&token) => {}
                Drawn::Token(_) => break,
                Drawn::Last(_) | Drawn::Ended => return true,
            }
        }
        false
    }

    /// Draws and tells the next token of a sequence.
    fn draw(&mut self, sequence: SequenceId, place: usize) -> Drawn {
        let outcome = self.outcome(sequence, place);
        let Some(live) = self.slots[sequence.0 as usize].as_mut() else { return Drawn::Ended };
        let Some(job) = self.jobs.get_mut(&live.request) else { return Drawn::Ended };
        let (token, reason) = match outcome {
            Ok(Some((token, logprobs))) => {
                live.tokens.push(token);
                self.state.generated_tokens += 1;
                job.tell(Event::Token { sample: live.sample, token, logprobs });
                let most = job.continuation().map_or(0, |text| text.most as usize);
                if live.generated() < most {
                    return Drawn::Token(token);
                }
                (Some(token), EndReason::Length)
            }
            Ok(None) => (None, EndReason::Stop),
            Err(reason) => {
                job.tell(Event::Failed(format!("the grammar cannot be followed: {reason}")));
                (None, EndReason::Stop)
            }
        };
        job.tell(Event::End { sample: live.sample, reason });
        job.left -= 1;
        if job.left == 0 {
            let request = live.request;
            self.close(request);
        }
        token.map_or(Drawn::Ended, Drawn::Last)
    }

    /// The next token of a sequence; none where its text ends instead.
    fn outcome(
        &mut self,
        sequence: SequenceId,
        place: usize,
    ) -> Result<Option<(u32, Option<Logprobs>)>, String> {
        let Self { parts, jobs, slots, logits: Logits { row, changed, mask, likeliest }, .. } = self;
        let Some(live) = slots[sequence.0 as usize].as_mut() else { return Ok(None) };
        let Some(text) = jobs.get(&live.request).and_then(Job::continuation) else { return Ok(None) };
        let ends = if text.ignores_end { &[][..] } else { &parts.end_tokens[..] };
        let is_early = live.generated() < text.least as usize;
        let forbidden: Vec<u32> = match is_early {
            true => ends.iter().chain(&text.stop_tokens).copied().collect(),
            false => Vec::new(),
        };
        let mut allowed = None;
        if let Some(parser) = &mut live.parser {
            mask.fill(0);
            parser.allow(mask)?;
            allowed = Some(&mask[..]);
        }
        let Some(drawer) = live.drawer.as_mut() else { return Ok(None) };
        let is_end = |token: &u32| ends.contains(token) || text.stop_tokens.contains(token);
        let found = likeliest.get(place).filter(|_| allowed.is_none() && forbidden.is_empty());
        if let Some(token) = found.filter(|_| drawer.takes_likeliest() && text.logprobs.is_none()) {
            let token = Some(*token).filter(|token| *token != NONE && !is_end(token));
            return Ok(token.map(|token| (token, None)));
        }
        let row: &[f32] = match parts.room.lend_logits(&parts.device, place) {
            Some(row) => row,
            None => {
                parts.room.read_logits(&parts.device, place, row);
                row
            }
        };
        let drawn = drawer.draw(row, allowed, &forbidden, changed);
        let Some(token) = drawn.filter(|token| !is_end(token)) else { return Ok(None) };
        if let Some(parser) = &mut live.parser {
            parser.accept(token)?;
        }
        Ok(Some((token, text.logprobs.map(|top| draw::logprobs(row, token, top)))))
    }

    /// A prompt that is not continued has been computed.
    fn tell_end_of_prompt(&mut self, request: u64, place: usize) {
        let Some(job) = self.close(request) else { return };
        if let Wants::Blocks = job.ask.wants {
            return job.tell(Event::End { sample: 0, reason: EndReason::Stop });
        }
        let hidden = self.parts.network.architecture().transformer.hidden as usize;
        let mut row = vec![E::default(); hidden];
        self.parts.room.read_hidden(&self.parts.device, place, &mut row);
        let row: Vec<f32> = row.into_iter().map(Element::widen).collect();
        let length = row.iter().map(|number| number * number).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
        job.tell(Event::Embedding(row.into_iter().map(|number| number / length).collect()));
    }
}
