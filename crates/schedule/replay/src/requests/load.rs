//! Generated load: how requests arrive, how long they are, what they share.

use std::fmt;

use super::engine::{Picoseconds, picoseconds};
use super::planned::{Planned, Prefix};
use bedplate_random::{Random, mix};

/// When requests arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Independently, at an average rate per second.
    Poisson { per_second: f64 },
    /// Poisson, with bursts: for the first `lasting` of every `period`, at the higher rate.
    Bursts { per_second: f64, burst_per_second: f64, period: Picoseconds, lasting: Picoseconds },
    /// A number of users, each of whom sends the next request when the last one is answered.
    Closed { users: u32 },
}

/// How long prompts or outputs are, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    Fixed(u32),
    /// Evenly between the two, both included.
    Between(u32, u32),
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Fixed(tokens) => write!(f, "{tokens}"),
            Lengths::Between(low, high) => write!(f, "{low} to {high}"),
        }
    }
}

impl Lengths {
    pub fn shortest(self) -> u32 {
        match self {
            Lengths::Fixed(tokens) | Lengths::Between(tokens, _) => tokens,
        }
    }

    pub fn longest(self) -> u32 {
        match self {
            Lengths::Fixed(tokens) | Lengths::Between(_, tokens) => tokens,
        }
    }

    pub fn mean(self) -> u32 {
        self.shortest().midpoint(self.longest())
    }

    fn draw(self, random: &mut Random) -> u32 {
        match self {
            Lengths::Fixed(tokens) => tokens,
            Lengths::Between(low, high) => random.whole(low, high),
        }
    }
}

/// The beginning that prompts have in common, such as a system prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPrefix {
    /// Share of each prompt, in percent.
    pub percent: u32,
    /// How many different ones there are.
    pub groups: u32,
}

/// Conversations: each turn's prompt is the whole conversation so far plus something new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turns {
    pub turns: u32,
    /// From an answer to the next turn, on average.
    pub pause: Picoseconds,
}

/// Requests with long thinking before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thinking {
    /// Percentage of requests that do.
    pub percent: u32,
    pub output: Lengths,
}

/// A load to be generated from a seed.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedLoad {
    /// Total requests, counting each turn.
    pub requests: u32,
    pub arrivals: Arrivals,
    pub prompt: Lengths,
    pub output: Lengths,
    pub shared: Option<SharedPrefix>,
    pub turns: Option<Turns>,
    pub thinking: Option<Thinking>,
    /// Sequences generated per request.
    pub samples: u16,
    /// Requests come from this many tenants in turn.
    pub tenants: u32,
    pub patience: Option<Picoseconds>,
    pub seed: u64,
}

impl Default for GeneratedLoad {
    fn default() -> Self {
        Self {
            requests: 1000,
            arrivals: Arrivals::Poisson { per_second: 10.0 },
            prompt: Lengths::Fixed(1024),
            output: Lengths::Fixed(128),
            shared: None,
            turns: None,
            thinking: None,
            samples: 1,
            tenants: 1,
            patience: None,
            seed: 0,
        }
    }
}

impl GeneratedLoad {
    /// All requests of a load without turns, for a server that is measured instead of simulated. Those of a closed loop have no times
    /// of their own.
    pub fn planned(&self) -> Vec<Planned> {
        let arrivals = match self.arrivals {
            Arrivals::Closed { .. } => Arrivals::Closed { users: self.requests },
            open => open,
        };
        let mut generator = Generator::new(Self { arrivals, turns: None, ..self.clone() });
        std::iter::from_fn(|| generator.arrival()).collect()
    }
}

/// Draws the requests of a load one by one.
#[derive(Debug, Clone)]
pub(crate) struct Generator {
    load: GeneratedLoad,
    random: Random,
    /// Arrival of the last request or conversation that was drawn.
    clock: f64,
    drawn: u32,
    conversations: u64,
}

impl Generator {
    pub(crate) fn new(load: GeneratedLoad) -> Self {
        let random = Random::new(mix(load.seed));
        Self { load, random, clock: 0.0, drawn: 0, conversations: 0 }
    }

    /// The next independent request, as opposed to a follow-up.
    pub(crate) fn arrival(&mut self) -> Option<Planned> {
        if let Arrivals::Closed { users } = self.load.arrivals
            && self.conversations >= u64::from(users)
        {
            return None;
        }
        let at = self.next_time();
        self.conversation(at)
    }

    /// The follow-up of an answered request, if any.
    pub(crate) fn after(&mut self, answered: &Planned, now: Picoseconds) -> Option<Planned> {
        if let Some(turns) = self.load.turns
            && answered.turn + 1 < turns.turns
        {
            let pause = self.random.exponential(turns.pause as f64) as u64;
            return self.next_turn(answered, now.saturating_add(pause));
        }
        match self.load.arrivals {
            Arrivals::Closed { .. } => self.conversation(now),
            Arrivals::Poisson { .. } | Arrivals::Bursts { .. } => None,
        }
    }

    fn conversation(&mut self, at: Picoseconds) -> Option<Planned> {
        let prompt_tokens = self.load.prompt.draw(&mut self.random);
        let prefix = self.prefix(prompt_tokens);
        let planned = self.draw(at, prompt_tokens, prefix, 0)?;
        self.conversations += 1;
        Some(planned)
    }

    fn next_turn(&mut self, answered: &Planned, at: Picoseconds) -> Option<Planned> {
        let said = answered.prompt_tokens.saturating_add(answered.output_tokens);
        let prompt_tokens = said.saturating_add(self.load.prompt.draw(&mut self.random));
        self.draw(at, prompt_tokens, answered.prefix.clone(), answered.turn + 1)
    }

    fn draw(&mut self, at: Picoseconds, prompt_tokens: u32, prefix: Prefix, turn: u32) -> Option<Planned> {
        if self.drawn >= self.load.requests {
            return None;
        }
        let output_tokens = self.output_tokens();
        let planned = Planned {
            at,
            prompt_tokens,
            output_tokens,
            samples: self.load.samples,
            tenant: self.drawn % self.load.tenants.max(1),
            priority: 0,
            patience: self.load.patience,
            prefix,
            turn,
        };
        self.drawn += 1;
        Some(planned)
    }

    fn output_tokens(&mut self) -> u32 {
        match self.load.thinking {
            Some(thinking) if self.random.whole(1, 100) <= thinking.percent => {
                thinking.output.draw(&mut self.random)
            }
            _ => self.load.output.draw(&mut self.random),
        }
    }

    fn prefix(&mut self, prompt_tokens: u32) -> Prefix {
        let conversation = self.conversations;
        match self.load.shared {
            Some(SharedPrefix { percent, groups }) => Prefix::Conversation {
                group: self.random.whole(1, groups.max(1)).into(),
                group_tokens: (u64::from(prompt_tokens) * u64::from(percent.min(100)) / 100) as u32,
                conversation,
            },
            None if self.load.turns.is_some() => {
                Prefix::Conversation { group: 0, group_tokens: 0, conversation }
            }
            None => Prefix::Unknown,
        }
    }

    fn next_time(&mut self) -> Picoseconds {
        match self.load.arrivals {
            Arrivals::Closed { .. } => return 0,
            Arrivals::Poisson { per_second } => self.clock += self.random.exponential(1.0 / per_second),
            Arrivals::Bursts { per_second, burst_per_second, period, lasting } => {
                // Thinning: drawn at the higher rate, kept with the probability of the current rate.
                let highest = per_second.max(burst_per_second);
                loop {
                    self.clock += self.random.exponential(1.0 / highest);
                    let into_period = picoseconds(self.clock) % period.max(1);
                    let rate = if into_period < lasting { burst_per_second } else { per_second };
                    if self.random.unit() * highest <= rate {
                        break;
                    }
                }
            }
        }
        picoseconds(self.clock)
    }
}
