//! What happened when, in windows of equal length, for plots.
//!
//! The length of a replay is not known in advance, so windows start short and are merged in pairs
//! whenever there are too many.

use super::engine::{Picoseconds, seconds};

const MOST_WINDOWS: usize = 512;
const FIRST_WINDOW: Picoseconds = 1_000_000_000;

/// One window of a replay. Amounts are sums over the window; integrals are in replica-seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SeriesWindow {
    pub arrived: u32,
    pub finished: u32,
    /// Finished and within the objectives.
    pub good: u32,
    pub output_tokens: f64,
    pub prompt_tokens: f64,
    /// Sum and number of the times to the first token, of the first tokens in this window.
    pub ttft_seconds: f64,
    pub first_tokens: u32,
    /// Share of KV blocks in use, times the replicas, times seconds.
    pub kv_seconds: f64,
    /// Sequences that wait, times seconds.
    pub waiting_seconds: f64,
    /// Replicas with a step running, times seconds.
    pub busy_seconds: f64,
}

impl SeriesWindow {
    fn join(self, other: SeriesWindow) -> SeriesWindow {
        SeriesWindow {
            arrived: self.arrived + other.arrived,
            finished: self.finished + other.finished,
            good: self.good + other.good,
            output_tokens: self.output_tokens + other.output_tokens,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            ttft_seconds: self.ttft_seconds + other.ttft_seconds,
            first_tokens: self.first_tokens + other.first_tokens,
            kv_seconds: self.kv_seconds + other.kv_seconds,
            waiting_seconds: self.waiting_seconds + other.waiting_seconds,
            busy_seconds: self.busy_seconds + other.busy_seconds,
        }
    }
}

/// A replay in windows.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowSeries {
    pub window: Picoseconds,
    pub windows: Vec<SeriesWindow>,
}

impl Default for WindowSeries {
    fn default() -> Self {
        Self { window: FIRST_WINDOW, windows: Vec::with_capacity(MOST_WINDOWS) }
    }
}

/// What a replica's step adds to the windows it spans.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepSpan {
    pub(crate) output_tokens: u64,
    pub(crate) prompt_tokens: u64,
    /// Share of the replica's KV blocks in use.
    pub(crate) kv: f64,
    pub(crate) waiting: u32,
}

impl WindowSeries {
    /// The window of a time.
    pub(crate) fn at(&mut self, time: Picoseconds) -> &mut SeriesWindow {
        let mut index = (time / self.window) as usize;
        while index >= MOST_WINDOWS {
            self.coarsen();
            index = (time / self.window) as usize;
        }
        if self.windows.len() <= index {
            self.windows.resize(index + 1, SeriesWindow::default());
        }
        &mut self.windows[index]
    }

    /// Spreads a step evenly over the windows between its beginning and its end.
    pub(crate) fn spread(&mut self, began: Picoseconds, ended: Picoseconds, span: &StepSpan) {
        self.at(ended);
        let whole = (ended - began).max(1) as f64;
        let mut from = began;
        loop {
            let until = ended.min((from / self.window + 1).saturating_mul(self.window));
            let elapsed = seconds(until - from);
            let share = (until - from) as f64 / whole;
            let window = self.at(from);
            window.output_tokens += span.output_tokens as f64 * share;
            window.prompt_tokens += span.prompt_tokens as f64 * share;
            window.kv_seconds += span.kv * elapsed;
            window.waiting_seconds += f64::from(span.waiting) * elapsed;
            window.busy_seconds += elapsed;
            if until >= ended {
                return;
            }
            from = until;
        }
    }

    fn coarsen(&mut self) {
        self.window = self.window.saturating_mul(2);
        let joined = self.windows.chunks(2).map(|pair| match pair {
            [first, second] => first.join(*second),
            [first] => *first,
            _ => unreachable!("chunks of two have one or two"),
        });
        self.windows = joined.collect();
        self.windows.reserve(MOST_WINDOWS);
    }
}
