//! The result of a replay: every request's times, and their summary.

use bedplate_batching::RequestRefusal;

use super::engine::{Picoseconds, seconds};
use super::fleet::Objectives;
use super::histogram::ReplayHistogram;
use super::series::WindowSeries;

/// The outcome of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// In progress; after a replay, one that did not end within the virtual clock's 213 days.
    Underway,
    Finished,
    /// No replica can ever run it.
    Refused(RequestRefusal),
    /// Its deadline passed while it waited.
    Dropped,
}

/// One request of a replay, in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRecord {
    pub fate: Fate,
    pub arrived: Picoseconds,
    /// When its first token was generated, of any sample.
    pub first_token: Picoseconds,
    /// When the last token of its last sample was generated.
    pub finished: Picoseconds,
    pub prompt_tokens: u32,
    /// Tokens generated, over all samples.
    pub generated_tokens: u32,
    /// Tokens of the longest sample.
    pub longest_tokens: u32,
    /// Prompt tokens found in a prefix tree.
    pub cached_tokens: u32,
}

impl RequestRecord {
    pub fn ttft(&self) -> Picoseconds {
        self.first_token - self.arrived
    }

    pub fn end_to_end(&self) -> Picoseconds {
        self.finished - self.arrived
    }

    /// Mean time between its tokens, or `None` if it has just one.
    pub fn itl(&self) -> Option<Picoseconds> {
        (self.finished - self.first_token).checked_div(u64::from(self.longest_tokens) - 1)
    }

    /// Whether it is finished and meets the objectives.
    pub fn is_good(&self, objectives: &Objectives) -> bool {
        let within =
            |value: Picoseconds, limit: Option<Picoseconds>| limit.is_none_or(|limit| value <= limit);
        self.fate == Fate::Finished
            && within(self.ttft(), objectives.ttft)
            && within(self.itl().unwrap_or(0), objectives.itl)
            && within(self.end_to_end(), objectives.end_to_end)
    }
}

/// The distribution of durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spread {
    pub count: u64,
    pub mean: Picoseconds,
    pub p50: Picoseconds,
    pub p90: Picoseconds,
    pub p95: Picoseconds,
    pub p99: Picoseconds,
    pub longest: Picoseconds,
}

impl Spread {
    /// Of these values, exactly. A quantile is the smallest value that the given share does not exceed.
    pub fn of(mut values: Vec<Picoseconds>) -> Self {
        let Some(longest) = values.iter().copied().max() else { return Self::default() };
        let sum: u128 = values.iter().copied().map(u128::from).sum();
        let count = values.len();
        let mut quantile = |share: f64| {
            let rank = ((count as f64 * share).ceil() as usize).clamp(1, count);
            *values.select_nth_unstable(rank - 1).1
        };
        let (p50, p90, p95, p99) = (quantile(0.5), quantile(0.9), quantile(0.95), quantile(0.99));
        Self { count: count as u64, mean: (sum / count as u128) as u64, p50, p90, p95, p99, longest }
    }

    pub(crate) fn of_histogram(histogram: &ReplayHistogram) -> Self {
        Self {
            count: histogram.count(),
            mean: histogram.mean(),
            p50: histogram.quantile(0.5),
            p90: histogram.quantile(0.9),
            p95: histogram.quantile(0.95),
            p99: histogram.quantile(0.99),
            longest: histogram.longest(),
        }
    }
}

/// Counts kept while a replay runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayTally {
    pub(crate) gaps: ReplayHistogram,
    pub(crate) steps: u64,
    pub(crate) events: u64,
    pub(crate) preemptions: u64,
    /// Share of KV blocks in use, times picoseconds, over all replicas.
    pub(crate) kv_integral: f64,
    pub(crate) kv_highest: f64,
    /// Sums over replicas may exceed what the clock holds.
    pub(crate) busy: u128,
    /// Replica time that is paid for, and its price.
    pub(crate) replica_time: u128,
    pub(crate) dollars: f64,
}

/// The result of a replay.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub requests: u64,
    pub finished: u64,
    pub refused: u64,
    pub dropped: u64,
    /// Those that the virtual clock was too short for.
    pub unfinished: u64,
    /// From the first arrival to the last event.
    pub duration: Picoseconds,
    pub ttft: Spread,
    /// Between two tokens of one sequence, over all tokens; quantiles to 1.6 %.
    pub token_gap: Spread,
    /// Mean time between the tokens of a request, over requests with two or more.
    pub itl: Spread,
    pub end_to_end: Spread,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    /// Finished requests that meet the objectives.
    pub good: u64,
    pub preemptions: u64,
    /// Engine steps of all replicas.
    pub steps: u64,
    /// Steps and stretches of steps that were played.
    pub events: u64,
    /// Share of KV blocks that running sequences used, over the time replicas were paid for.
    pub kv_mean: f64,
    pub kv_highest: f64,
    /// Share of the paid time in which replicas ran a step.
    pub busy: f64,
    /// Time that replicas were paid for, in seconds.
    pub replica_seconds: f64,
    pub dollars: f64,
    pub series: WindowSeries,
    pub records: Vec<RequestRecord>,
}

impl Outcome {
    pub(crate) fn new(
        records: Vec<RequestRecord>,
        series: WindowSeries,
        tally: &ReplayTally,
        objectives: &Objectives,
        ended: Picoseconds,
    ) -> Self {
        let count = |is: fn(&Fate) -> bool| records.iter().filter(|record| is(&record.fate)).count() as u64;
        let finished = || records.iter().filter(|record| record.fate == Fate::Finished);
        let began = records.iter().map(|record| record.arrived).min().unwrap_or(0);
        let sum =
            |tokens: fn(&RequestRecord) -> u32| finished().map(|record| u64::from(tokens(record))).sum();
        let paid = (tally.replica_time as f64).max(1.0);
        Self {
            requests: records.len() as u64,
            finished: count(|fate| *fate == Fate::Finished),
            refused: count(|fate| matches!(fate, Fate::Refused(_))),
            dropped: count(|fate| *fate == Fate::Dropped),
            unfinished: count(|fate| *fate == Fate::Underway),
            duration: ended.saturating_sub(began),
            ttft: Spread::of(finished().map(RequestRecord::ttft).collect()),
            token_gap: Spread::of_histogram(&tally.gaps),
            itl: Spread::of(finished().filter_map(RequestRecord::itl).collect()),
            end_to_end: Spread::of(finished().map(RequestRecord::end_to_end).collect()),
            prompt_tokens: sum(|record| record.prompt_tokens),
            cached_tokens: sum(|record| record.cached_tokens),
            output_tokens: sum(|record| record.generated_tokens),
            good: finished().filter(|record| record.is_good(objectives)).count() as u64,
            preemptions: tally.preemptions,
            steps: tally.steps,
            events: tally.events,
            kv_mean: tally.kv_integral / paid,
            kv_highest: tally.kv_highest,
            busy: tally.busy as f64 / paid,
            replica_seconds: tally.replica_time as f64 / 1e12,
            dollars: tally.dollars,
            series,
            records,
        }
    }

    fn per_second(&self, amount: u64) -> f64 {
        if self.duration == 0 { 0.0 } else { amount as f64 / seconds(self.duration) }
    }

    pub fn requests_per_second(&self) -> f64 {
        self.per_second(self.finished)
    }

    pub fn output_tokens_per_second(&self) -> f64 {
        self.per_second(self.output_tokens)
    }

    /// Requests within the objectives, per second.
    pub fn goodput(&self) -> f64 {
        self.per_second(self.good)
    }

    /// Share of all requests that are within the objectives.
    pub fn good_share(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.good as f64 / self.requests as f64 }
    }

    /// Share of the prompt tokens found in a prefix tree.
    pub fn hit_rate(&self) -> f64 {
        if self.prompt_tokens == 0 { 0.0 } else { self.cached_tokens as f64 / self.prompt_tokens as f64 }
    }

    pub fn dollars_per_million_output_tokens(&self) -> Option<f64> {
        (self.output_tokens > 0 && self.dollars > 0.0).then(|| self.dollars / self.output_tokens as f64 * 1e6)
    }
}
