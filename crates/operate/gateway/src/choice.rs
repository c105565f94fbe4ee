//! One choice as it grows: tokens become text, text may end by a stop string or contain calls.

use bedplate_data::{Pieces, Tokenizer};
use bedplate_serve::{EndReason, Logprobs};

use crate::calls::{CallHead, CallPart, CallSearch};
use crate::generation::Generation;
use crate::stops::{StopSearch, Stops};

/// A token as clients see it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenShown {
    pub(crate) token: u32,
    /// Where its text begins in that of the choice, in characters.
    pub(crate) offset: usize,
    /// The first token of a prompt has none.
    pub(crate) logprobs: Option<Logprobs>,
}

/// How a choice ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finish {
    /// By the model, or by the stop string that is named.
    Stop(Option<String>),
    Length,
    Calls,
}

impl Finish {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Finish::Stop(_) => "stop",
            Finish::Length => "length",
            Finish::Calls => "tool_calls",
        }
    }
}

/// A call, or more of the arguments of the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// Where it begins here.
    pub(crate) head: Option<CallHead>,
    pub(crate) arguments: String,
}

/// What a choice has to show since it was last asked.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) text: String,
    pub(crate) calls: Vec<CallDelta>,
    pub(crate) tokens: Vec<TokenShown>,
    pub(crate) finish: Option<Finish>,
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.calls.is_empty() && self.finish.is_none()
    }

    /// What comes after it, so that both are one.
    pub(crate) fn extend(&mut self, later: Delta) {
        self.text.push_str(&later.text);
        for call in later.calls {
            self.add_call(call);
        }
        self.tokens.extend(later.tokens);
        self.finish = later.finish.or(self.finish.take());
    }

    fn add_call(&mut self, call: CallDelta) {
        match self.calls.last_mut() {
            Some(last) if call.head.is_none() => last.arguments.push_str(&call.arguments),
            _ => self.calls.push(call),
        }
    }
}

pub(crate) struct AnswerChoice<'a> {
    tokenizer: &'a Tokenizer,
    stops: &'a Stops,
    shows_special: bool,
    shows_logprobs: bool,
    least: u32,
    pieces: Pieces<'a>,
    search: StopSearch,
    calls: Option<CallSearch>,
    has_called: bool,
    /// Tokens whose text has not been shown yet.
    waiting: Vec<TokenShown>,
    /// Characters of the choice so far, with those of a prompt that is repeated.
    characters: usize,
    pub(crate) tokens: u32,
    logprob_sum: f64,
    pub(crate) has_ended: bool,
}

impl<'a> AnswerChoice<'a> {
    /// A choice after the prompt with this number.
    pub(crate) fn new(generation: &'a Generation, number: usize) -> Self {
        let prompt = &generation.prompts[number];
        let echo = generation.echoes.as_ref().map(|echoes| &echoes[number]);
        let tokenizer = generation.model.tokenizer();
        Self {
            tokenizer,
            stops: &generation.stops,
            shows_special: generation.shows_special,
            shows_logprobs: generation.logprobs.is_some(),
            least: generation.continuation.least,
            pieces: tokenizer.pieces_after(if generation.continues { prompt.as_slice() } else { &[] }),
            search: StopSearch::default(),
            calls: generation.calls.clone().map(CallSearch::new),
            has_called: false,
            waiting: Vec::new(),
            characters: echo.map_or(0, |echo| echo.text.chars().count()),
            tokens: 0,
            logprob_sum: 0.0,
            has_ended: false,
        }
    }

    /// Mean log-probability of its tokens, where they are known.
    pub(crate) fn score(&self) -> f64 {
        self.logprob_sum / f64::from(self.tokens.max(1))
    }

    /// Takes a token.
    pub(crate) fn push(&mut self, token: u32, logprobs: Option<Logprobs>) -> Delta {
        self.tokens += 1;
        self.logprob_sum += logprobs.as_ref().map_or(0.0, |logprobs| f64::from(logprobs.of_token));
        if let Some(logprobs) = logprobs.filter(|_| self.shows_logprobs) {
            let offset = self.characters;
            self.waiting.push(TokenShown { token, offset, logprobs: Some(logprobs) });
        }
        let is_shown = self.shows_special || !self.tokenizer.is_special(token);
        let piece = if is_shown { self.pieces.push(token) } else { String::new() };
        self.characters += piece.chars().count();
        let none = Stops::default();
        let stops = if self.tokens > self.least { self.stops } else { &none };
        let released = self.search.push(&piece, stops);
        let mut delta = self.show(&released.text);
        if let Some(stop) = released.stop {
            self.end(&mut delta, Finish::Stop(Some(self.stops.strings[stop].clone())));
        }
        delta
    }

    /// The engine has no more tokens.
    pub(crate) fn finish(&mut self, reason: EndReason) -> Delta {
        let rest = self.pieces.finish();
        let released = self.search.push(&rest, self.stops);
        let mut text = released.text;
        let finish = match (released.stop, reason) {
            (Some(stop), _) => Finish::Stop(Some(self.stops.strings[stop].clone())),
            (None, EndReason::Stop) => Finish::Stop(None),
            (None, EndReason::Length) => Finish::Length,
        };
        text.push_str(&self.search.finish());
        let mut delta = self.show(&text);
        self.end(&mut delta, finish);
        delta
    }

    fn end(&mut self, delta: &mut Delta, finish: Finish) {
        self.has_ended = true;
        let parts = self.calls.as_mut().map(CallSearch::finish).unwrap_or_default();
        self.take_parts(parts, delta);
        delta.tokens.append(&mut self.waiting);
        let has_called = self.has_called && finish != Finish::Length;
        delta.finish = Some(if has_called { Finish::Calls } else { finish });
    }

    fn show(&mut self, text: &str) -> Delta {
        let mut delta = Delta::default();
        let parts = match &mut self.calls {
            Some(calls) => calls.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![CallPart::Text(text.to_owned())],
        };
        self.take_parts(parts, &mut delta);
        if !delta.is_empty() {
            delta.tokens.append(&mut self.waiting);
        }
        delta
    }

    fn take_parts(&mut self, parts: Vec<CallPart>, delta: &mut Delta) {
        for part in parts {
            match part {
                CallPart::Text(text) => delta.text.push_str(&text),
                CallPart::Begin(head) => {
                    self.has_called = true;
                    delta.add_call(CallDelta { head: Some(head), arguments: String::new() });
                }
                CallPart::Arguments(arguments) => delta.add_call(CallDelta { head: None, arguments }),
            }
        }
    }
}
