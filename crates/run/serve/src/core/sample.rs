//! Tokens from logits, and the ends of samples.

use bedplate_batching::SequenceId;
use bedplate_kernels::{Element, NONE, SampleParams};

use super::{Core, Logits};
use crate::ask::{Continuation, Wants};
use crate::compose::TokenRun;
use crate::live::{LiveRequest, LiveSequence};
use crate::sampler::Sampler;
use crate::{EndReason, Logprobs, SampleEvent, sampler};

/// What became of the next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sampled {
    Token(u32),
    /// A token after which the sample has ended.
    Last(u32),
    /// The sample has ended without another token.
    Ended,
}

impl<E: Element> Core<E> {
    /// What a GPU samples, by the places of wanted rows: the next tokens of sequences whose logits it can use as they are.
    pub(super) fn samples(&mut self, runs: &[TokenRun]) -> Vec<(usize, SampleParams)> {
        let Self { parts, jobs, slots, logits, composed, .. } = self;
        logits.sampled_for.clear();
        if parts.device.is_cpu() {
            return Vec::new();
        }
        logits.sampled_for.resize(composed.wanted(), None);
        let mut samples = Vec::new();
        for run in runs.iter().filter(|run| run.wanted == 1) {
            let Some(live) = slots[run.sequence.0 as usize].as_ref() else { continue };
            let Some(text) = jobs.get(&live.request).and_then(LiveRequest::continuation) else { continue };
            let is_plain = live.parser.is_none()
                && text.allowed.is_none()
                && text.logprobs.is_none()
                && forbidden(live, text, ends(text, &parts.end_tokens)).is_empty();
            let sample = live.sampler.as_ref().filter(|_| is_plain).and_then(Sampler::next_sample);
            if let (Some(sample), Some(place)) = (sample, composed.place(run.sequence)) {
                logits.sampled_for[place] = Some(run.sequence);
                samples.push((place, sample));
            }
        }
        samples
    }

    /// A token more for a sequence. Whether it has ended.
    pub(super) fn advance(&mut self, sequence: SequenceId, origin: SequenceId, runs: &[TokenRun]) -> bool {
        let live = self.live(sequence);
        if live.ahead > 0 {
            live.ahead -= 1;
            live.is_behind &= live.ahead > 0;
            return false;
        }
        let request = live.request;
        let run = runs.iter().find(|run| run.sequence == sequence);
        let speculated: &[u32] =
            run.map_or(&[], |run| &run.tokens[run.tokens.len() + 1 - run.wanted.max(1)..]);
        let Some(place) = self.composed.place(origin) else { return true };
        if self.jobs.get(&request).is_none_or(|job| job.continuation().is_none()) {
            self.tell_end_of_prompt(request, place);
            return true;
        }
        for at in 0..=speculated.len() {
            let sampled = self.sample(sequence, place + at);
            if at > 0 && sampled != Sampled::Ended {
                self.live(sequence).ahead += 1;
                self.state.accepted_tokens += 1;
            }
            match sampled {
                Sampled::Token(token) if speculated.get(at) == Some(&token) => {}
                Sampled::Token(_) => break,
                Sampled::Last(_) | Sampled::Ended => return true,
            }
        }
        false
    }

    /// Whether only the prompt of a sequence was to be computed.
    fn wants_nothing(&self, sequence: SequenceId) -> bool {
        let job = self.slots[sequence.0 as usize].as_ref().and_then(|live| self.jobs.get(&live.request));
        job.and_then(LiveRequest::continuation).is_some_and(|text| text.most == 0)
    }

    /// Samples and tells the next token of a sequence.
    fn sample(&mut self, sequence: SequenceId, place: usize) -> Sampled {
        let outcome = if self.wants_nothing(sequence) { Ok(None) } else { self.outcome(sequence, place) };
        if self.parts.device.check().is_err() {
            // The request hears why when the engine stops.
            return Sampled::Ended;
        }
        let Some(live) = self.slots[sequence.0 as usize].as_mut() else { return Sampled::Ended };
        let Some(job) = self.jobs.get_mut(&live.request) else { return Sampled::Ended };
        let (token, reason) = match outcome {
            Ok(Some((token, logprobs))) => {
                live.tokens.push(token);
                self.state.generated_tokens += 1;
                job.tell(SampleEvent::Token { sample: live.sample, token, logprobs });
                let most = job.continuation().map_or(0, |text| text.most as usize);
                if live.generated() < most {
                    return Sampled::Token(token);
                }
                (Some(token), EndReason::Length)
            }
            Ok(None) if job.continuation().is_some_and(|text| text.most == 0) => (None, EndReason::Length),
            Ok(None) => (None, EndReason::Stop),
            Err(reason) => {
                job.tell(SampleEvent::Failed(format!("the grammar cannot be followed: {reason}")));
                (None, EndReason::Stop)
            }
        };
        job.tell(SampleEvent::End { sample: live.sample, reason });
        job.left -= 1;
        if job.left == 0 {
            let request = live.request;
            self.finish(request);
        }
        token.map_or(Sampled::Ended, Sampled::Last)
    }

    /// The next token of a sequence; none where its text ends instead.
    fn outcome(
        &mut self,
        sequence: SequenceId,
        place: usize,
    ) -> Result<Option<(u32, Option<Logprobs>)>, String> {
        let Self { parts, jobs, slots, logits: Logits { row, changed, mask, found, sampled_for }, .. } = self;
        let Some(live) = slots[sequence.0 as usize].as_mut() else { return Ok(None) };
        let Some(text) = jobs.get(&live.request).and_then(LiveRequest::continuation) else { return Ok(None) };
        let ends = ends(text, &parts.end_tokens);
        let forbidden = forbidden(live, text, ends);
        let mut allowed = None;
        if let Some(parser) = &mut live.parser {
            mask.fill(0);
            parser.allow(mask)?;
            if let Some(only) = &text.allowed {
                mask.iter_mut().zip(only.iter()).for_each(|(word, only)| *word &= only);
            }
            allowed = Some(&mask[..]);
        } else if let Some(only) = &text.allowed {
            allowed = Some(&only[..]);
        }
        let Some(sampler) = live.sampler.as_mut() else { return Ok(None) };
        let is_end = |token: &u32| ends.contains(token) || text.stop_tokens.contains(token);
        let is_sampled = sampled_for.get(place) == Some(&Some(sequence));
        if is_sampled {
            sampler.skip();
        }
        let is_plain = allowed.is_none() && forbidden.is_empty() && text.logprobs.is_none();
        let is_found = is_sampled || (is_plain && sampler.takes_argmax());
        if let Some(token) = found.get(place).filter(|_| is_found) {
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
        let sampled = sampler.sample(row, allowed, &forbidden, changed);
        let Some(token) = sampled.filter(|token| !is_end(token)) else { return Ok(None) };
        if let Some(parser) = &mut live.parser {
            parser.accept(token)?;
        }
        Ok(Some((token, text.logprobs.map(|top| sampler::logprobs(row, token, top)))))
    }

    /// A prompt that is not continued has been computed.
    fn tell_end_of_prompt(&mut self, request: u64, place: usize) {
        let hidden = self.parts.network.architecture().transformer.hidden as usize;
        let mut row = vec![E::default(); hidden];
        self.parts.room.read_hidden(&self.parts.device, place, &mut row);
        if self.parts.device.check().is_err() {
            return;
        }
        let Some(job) = self.finish(request) else { return };
        if let Wants::Blocks = job.ask.wants {
            return job.tell(SampleEvent::End { sample: 0, reason: EndReason::Stop });
        }
        let row: Vec<f32> = row.into_iter().map(Element::widen).collect();
        let length = row.iter().map(|number| number * number).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
        job.tell(SampleEvent::Embedding(row.into_iter().map(|number| number / length).collect()));
    }
}

/// Tokens that end a text.
fn ends<'a>(text: &Continuation, of_model: &'a [u32]) -> &'a [u32] {
    if text.ignores_end { &[] } else { of_model }
}

/// Tokens that may not be sampled next.
fn forbidden(live: &LiveSequence, text: &Continuation, ends: &[u32]) -> Vec<u32> {
    let is_early = live.generated() < text.least as usize;
    let early = ends.iter().chain(&text.stop_tokens).filter(|_| is_early);
    let answer = &live.tokens[live.prompt..];
    let bad = text.bad_words.iter().filter_map(|word| word.split_last());
    let bad = bad.filter(|(_, before)| answer.ends_with(before)).map(|(last, _)| last);
    early.chain(bad).copied().collect()
}
