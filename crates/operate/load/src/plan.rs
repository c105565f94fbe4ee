//! What is sent, and when.

use std::time::Duration;

use bedplate_replay::requests::Planned;

/// Requests, and when each is sent.
#[derive(Debug, Clone)]
pub struct Plan {
    pub requests: Vec<Planned>,
    pub pace: LoadPace,
    pub api: Api,
    /// Tokens of prompts have numbers from the first up to the second, which is left out.
    pub tokens: (u32, u32),
    /// Whether answers have the length that was planned, whatever the model would do.
    pub has_exact_lengths: bool,
    pub temperature: f64,
    pub seed: u64,
    /// How long one request may take.
    pub patience: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LoadPace {
    /// So many users, each of whom sends the next request when the last is answered.
    Closed { users: u32 },
    /// Each at its own time, divided by `speed`, whatever has become of the others.
    Open { speed: f64 },
}

/// How prompts are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// As tokens, to `/v1/completions`: their lengths are exact.
    Completions,
    /// As words of a user, to `/v1/chat/completions`: about a token each.
    Chat,
}

impl Plan {
    pub fn closed(requests: Vec<Planned>, users: u32) -> Self {
        Self::new(requests, LoadPace::Closed { users })
    }

    pub fn open(requests: Vec<Planned>, speed: f64) -> Self {
        Self::new(requests, LoadPace::Open { speed })
    }

    fn new(requests: Vec<Planned>, pace: LoadPace) -> Self {
        Self {
            requests,
            pace,
            api: Api::Completions,
            // Ordinary tokens in every vocabulary that we know of.
            tokens: (32, 256),
            has_exact_lengths: true,
            temperature: 0.0,
            seed: 0,
            patience: Duration::from_secs(600),
        }
    }
}
