//! Recorded requests as the load of a plan: what they say about it, and replays drawn from them.

use std::collections::BTreeMap;

use bedplate_random::{Random, mix};

use super::engine::{Picoseconds, picoseconds, seconds};
use super::load::Lengths;
use super::planned::{Planned, Prefix};

/// Requests of a trace, at least one, with what they say about a load.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedLoad {
    requests: Vec<Planned>,
    pub prompt: TokenLengths,
    pub output: TokenLengths,
    /// Tokens of the longest request, its prompt and its answer.
    pub longest_request: u64,
    /// `None` where the trace has no hashes of prompts.
    pub shared: Option<SharedPrefixes>,
    /// `None` where all requests came within a second, which says nothing about a rate.
    pub per_second: Option<f64>,
    /// The rate of the busiest minute, where the trace is longer than that.
    pub busiest_minute: Option<f64>,
}

/// How long the prompts or the answers are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLengths {
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
    pub median: u32,
    pub p90: u32,
    pub longest: u32,
}

/// What prompts have in common with earlier ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SharedPrefixes {
    /// Of all prompt tokens, the share that an earlier prompt began with too.
    pub share: f64,
    /// Tokens of these beginnings, each counted once.
    pub tokens: u64,
}

impl TracedLoad {
    /// `None` without requests. They may be in any order.
    pub fn new(mut requests: Vec<Planned>) -> Option<Self> {
        // Stable: requests of the same moment stay in the order of the file.
        requests.sort_by_key(|planned| planned.at);
        let longest = |planned: &Planned| u64::from(planned.prompt_tokens) + u64::from(planned.output_tokens);
        Some(Self {
            prompt: TokenLengths::of(requests.iter().map(|planned| planned.prompt_tokens))?,
            output: TokenLengths::of(requests.iter().map(|planned| planned.output_tokens))?,
            longest_request: requests.iter().map(longest).max()?,
            shared: SharedPrefixes::of(&requests),
            per_second: rate(&requests),
            busiest_minute: busiest_minute(&requests),
            requests,
        })
    }

    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Never: it has at least one request.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// How many requests are longer than this, prompt and answer together.
    pub fn longer_than(&self, tokens: u64) -> usize {
        let is_longer = |it: &&Planned| u64::from(it.prompt_tokens) + u64::from(it.output_tokens) > tokens;
        self.requests.iter().filter(is_longer).count()
    }

    /// Requests like the recorded ones, arriving independently at a rate.
    ///
    /// Where prompts share beginnings they follow each other as recorded, from a place that the seed decides; after the last
    /// one they begin anew with other beginnings, because the same prompts again would all be cached. Otherwise
    /// each is drawn from all.
    pub fn drawn(&self, requests: u32, per_second: f64, seed: u64) -> Vec<Planned> {
        let mut random = Random::new(mix(seed));
        let start = random.below(self.requests.len());
        let mut clock = 0.0;
        let draw = |at: usize| {
            clock += random.exponential(1.0 / per_second);
            let place = match self.shared {
                Some(_) => start + at,
                None => random.below(self.requests.len()),
            };
            let lap = (place / self.requests.len()) as u64;
            let recorded = &self.requests[place % self.requests.len()];
            Planned { at: picoseconds(clock), prefix: recorded.prefix.in_lap(lap), ..recorded.clone() }
        };
        (0..requests as usize).map(draw).collect()
    }
}

impl Prefix {
    /// Hashes that differ from those of other laps.
    fn in_lap(&self, lap: u64) -> Prefix {
        match self {
            Prefix::Hashes { block_tokens, hashes } if lap > 0 => Prefix::Hashes {
                block_tokens: *block_tokens,
                hashes: hashes.iter().map(|hash| hash ^ mix(lap)).collect(),
            },
            other => other.clone(),
        }
    }
}

impl TokenLengths {
    fn of(tokens: impl Iterator<Item = u32>) -> Option<Self> {
        let mut sorted: Vec<u32> = tokens.collect();
        sorted.sort_unstable();
        let count = sorted.len() as f64;
        let mean = sorted.iter().map(|tokens| f64::from(*tokens)).sum::<f64>() / count;
        let squares = sorted.iter().map(|tokens| (f64::from(*tokens) - mean).powi(2)).sum::<f64>();
        let at = |share: f64| sorted[((share * count).ceil() as usize).saturating_sub(1)];
        Some(Self {
            longest: *sorted.last()?,
            mean,
            deviation: (squares / count).sqrt(),
            median: at(0.5),
            p90: at(0.9),
        })
    }

    /// Lengths spread evenly with the same mean and, as far as none becomes negative, the same deviation.
    pub fn spread_evenly(&self) -> Lengths {
        let mean = self.mean.round().max(1.0);
        let half = (3f64.sqrt() * self.deviation).min(mean - 1.0).round();
        match half > 0.0 {
            true => Lengths::Between((mean - half) as u32, (mean + half) as u32),
            false => Lengths::Fixed(mean as u32),
        }
    }
}

impl SharedPrefixes {
    fn of(requests: &[Planned]) -> Option<Self> {
        // Blocks by everything up to their end, and whether they came again.
        let mut seen: BTreeMap<u64, bool> = BTreeMap::new();
        let (mut prompts, mut found, mut tokens, mut has_hashes) = (0.0, 0.0, 0, false);
        for planned in requests {
            prompts += f64::from(planned.prompt_tokens);
            let Prefix::Hashes { block_tokens, hashes } = &planned.prefix else { continue };
            has_hashes = true;
            let (mut begins_alike, mut cached) = (true, 0u64);
            let mut key = mix(u64::from(*block_tokens));
            for hash in hashes {
                key = mix(key ^ mix(*hash));
                begins_alike &= seen.contains_key(&key);
                let came_again = seen.entry(key).or_insert(false);
                if begins_alike {
                    cached += u64::from(*block_tokens);
                    tokens += if *came_again { 0 } else { u64::from(*block_tokens) };
                    *came_again = true;
                }
            }
            // The last token of a prompt is always computed.
            found += cached.min(u64::from(planned.prompt_tokens.saturating_sub(1))) as f64;
        }
        has_hashes.then_some(Self { share: found / prompts, tokens })
    }
}

fn span(requests: &[Planned]) -> Picoseconds {
    match (requests.first(), requests.last()) {
        (Some(first), Some(last)) => last.at - first.at,
        _ => 0,
    }
}

fn rate(requests: &[Planned]) -> Option<f64> {
    let span = seconds(span(requests));
    (span >= 1.0).then(|| (requests.len() - 1) as f64 / span)
}

const MINUTE: Picoseconds = 60_000_000_000_000;

fn busiest_minute(requests: &[Planned]) -> Option<f64> {
    if span(requests) <= MINUTE {
        return None;
    }
    let (mut first, mut most) = (0, 0);
    for (last, planned) in requests.iter().enumerate() {
        while planned.at - requests[first].at >= MINUTE {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    Some(most as f64 / 60.0)
}
