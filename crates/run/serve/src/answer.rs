//! What a model answers: tokens as they are sampled, and how each sample ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The running answer to one request. Dropping it cancels what is not finished.
#[derive(Debug)]
pub struct Answer {
    events: UnboundedReceiver<SampleEvent>,
    wish: Arc<Wish>,
}

/// What is no longer wanted of an answer.
#[derive(Debug, Default)]
struct Wish {
    is_cancelled: AtomicBool,
    /// Whether some samples are to end, and which.
    has_ended: AtomicBool,
    ended: Mutex<Vec<u16>>,
}

/// Something that happened to a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleEvent {
    /// The request runs: its prompt's tokens that were found computed.
    Admitted {
        cached_tokens: u32,
    },
    /// Log-probabilities of the prompt's tokens from the one with this number on; the first token has none. All of them are told before the
    /// first sampled token.
    Prompt {
        first: usize,
        logprobs: Vec<Logprobs>,
    },
    Token {
        sample: u16,
        token: u32,
        logprobs: Option<Logprobs>,
    },
    /// The sample has no more tokens.
    End {
        sample: u16,
        reason: EndReason,
    },
    Embedding(Vec<f32>),
    /// What a layer has of neighbouring blocks of the prompt, from the one with this number on. Put together, an engine of the same model
    /// adopts them.
    Blocks {
        first: usize,
        /// Where these bytes lie in their block.
        offset: usize,
        blocks: Vec<Box<[u8]>>,
    },
    /// The request can not be finished.
    Failed(String),
}

/// Log-probabilities where a token was sampled or stands in the prompt; penalties and temperature have had no say in them.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    pub of_token: f32,
    /// How many tokens are more likely.
    pub above: u32,
    /// The most likely tokens first.
    pub top: Vec<(u32, f32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The model's end, a stop token, or a grammar that allows nothing more.
    Stop,
    /// As many tokens as were asked for.
    Length,
}

/// The engine's end of an [`Answer`].
#[derive(Debug, Clone)]
pub struct Teller {
    events: UnboundedSender<SampleEvent>,
    wish: Arc<Wish>,
}

impl Answer {
    /// An answer and the end that tells it.
    pub fn new() -> (Teller, Self) {
        let (sender, events) = unbounded_channel();
        let wish = Arc::new(Wish::default());
        (Teller { events: sender, wish: wish.clone() }, Self { events, wish })
    }

    /// The next event; none after the last sample has ended, or where the engine has gone.
    pub async fn next(&mut self) -> Option<SampleEvent> {
        self.events.recv().await
    }

    /// As [`next`](Self::next), for a thread that may wait.
    pub fn wait(&mut self) -> Option<SampleEvent> {
        self.events.blocking_recv()
    }

    /// An event that has come already.
    #[cfg(test)]
    pub(crate) fn try_next(&mut self) -> Option<SampleEvent> {
        self.events.try_recv().ok()
    }

    /// What ends single samples, wherever the answer is listened to.
    pub fn ender(&self) -> Ender {
        Ender(self.wish.clone())
    }
}

/// Ends samples of an answer while others go on.
#[derive(Debug, Clone)]
pub struct Ender(Arc<Wish>);

impl Ender {
    /// No more tokens of a sample that has begun are wanted. Tokens and an end that are on their way may still come.
    pub fn end(&self, sample: u16) {
        self.0.ended.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
        self.0.has_ended.store(true, Ordering::Release);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.wish.is_cancelled.store(true, Ordering::Relaxed);
    }
}

impl Teller {
    pub fn tell(&self, event: SampleEvent) {
        // Nobody listens any more where this fails, and that is found out by `is_cancelled`.
        let _ = self.events.send(event);
    }

    /// Whether nobody wants the answer any more.
    pub fn is_cancelled(&self) -> bool {
        self.wish.is_cancelled.load(Ordering::Relaxed)
    }

    /// Samples that were ended since this was last asked.
    pub fn take_ended(&self) -> Vec<u16> {
        match self.wish.has_ended.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut self.wish.ended.lock().unwrap_or_else(PoisonError::into_inner)),
            false => Vec::new(),
        }
    }
}
