//! What one request took: its times and tokens, for the metrics and the trace once it has ended.

use std::sync::Arc;
use std::time::Instant;

use bedplate_batching::TenantId;

use crate::generation::Generation;
use crate::metrics::ModelMetrics;
use crate::trace::{MeasuredRequest, Trace, TraceLine};

/// Counts while a request runs and books everything when it is dropped, however it ended.
pub(crate) struct Account {
    metrics: Arc<ModelMetrics>,
    trace: Option<Arc<Trace>>,
    line: TraceLine,
    prompts: Vec<Vec<u32>>,
    samples: usize,
    arrived: Instant,
    admitted: Option<Instant>,
    first: Option<Instant>,
    /// When each choice had its last token, and how many it has.
    last: Vec<(Option<Instant>, u32)>,
    finishes: Vec<Option<&'static str>>,
    cached_tokens: u64,
}

impl Account {
    pub(crate) fn open(
        generation: &Generation,
        tenant: TenantId,
        arrived: Instant,
        metrics: Arc<ModelMetrics>,
        trace: Option<Arc<Trace>>,
    ) -> Self {
        let samples = usize::from(generation.continuation.samples);
        let choices = generation.prompts.len() * samples;
        let line = TraceLine {
            tenant: tenant.0,
            priority: generation.priority,
            samples: generation.continuation.samples,
            block_tokens: generation.model.about().block_tokens,
        };
        Self {
            metrics,
            prompts: generation.prompts.clone(),
            line,
            trace,
            samples,
            arrived,
            admitted: None,
            first: None,
            last: vec![(None, 0); choices],
            finishes: vec![None; choices],
            cached_tokens: 0,
        }
    }

    pub(crate) fn cached_tokens(&self) -> u64 {
        self.cached_tokens
    }

    pub(crate) fn admitted(&mut self, cached_tokens: u32, now: Instant) {
        self.cached_tokens += u64::from(cached_tokens);
        if self.admitted.is_none() {
            self.admitted = Some(now);
            self.metrics.queue_time.observe(now - self.arrived);
        }
    }

    pub(crate) fn token(&mut self, choice: usize, now: Instant) {
        if self.first.is_none() {
            self.first = Some(now);
            self.metrics.first_token.observe(now - self.arrived);
        }
        let (last, count) = &mut self.last[choice];
        if let Some(last) = last {
            self.metrics.between_tokens.observe(now - *last);
        }
        *last = Some(now);
        *count += 1;
        self.metrics.generation_tokens.add(1);
    }

    pub(crate) fn ended(&mut self, choice: usize, finish: &'static str) {
        self.finishes[choice] = Some(finish);
    }

    fn measured(&self, end: Instant) -> MeasuredRequest {
        let milliseconds = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        MeasuredRequest {
            queue_ms: self.admitted.map(|admitted| milliseconds(self.arrived, admitted)),
            first_token_ms: self.first.map(|first| milliseconds(self.arrived, first)),
            end_ms: milliseconds(self.arrived, end),
            cached_tokens: self.cached_tokens,
            is_complete: self.finishes.iter().all(Option::is_some),
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let now = Instant::now();
        let prompt_tokens: usize = self.prompts.iter().map(Vec::len).sum();
        let finishes = self.finishes.iter().map(|finish| finish.unwrap_or("abort"));
        self.metrics.book_end(now - self.arrived, prompt_tokens, finishes);
        for (_, count) in &self.last {
            self.metrics.output_lengths.observe_number(f64::from(*count));
        }
        if let (Some(admitted), Some(first)) = (self.admitted, self.first) {
            self.metrics.prefill_time.observe(first - admitted);
            self.metrics.decode_time.observe(now - first);
        }
        let Some(trace) = &self.trace else { return };
        let measured = self.measured(now);
        for (prompt, lasts) in self.prompts.iter().zip(self.last.chunks(self.samples.max(1))) {
            let longest = lasts.iter().map(|(_, count)| *count).max().unwrap_or(0);
            trace.write(&self.line, self.arrived, prompt, longest, &measured);
        }
    }
}
