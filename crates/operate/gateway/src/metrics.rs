//! What the gateway counts, under vLLM's names where it has one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bedplate_record::{Counter, Exposition, Histogram};
use bedplate_serve::EngineState;

use crate::model::ServedModel;

/// vLLM's own bounds, in seconds.
const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN_TOKENS: [f64; 19] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0,
    80.0,
];
const REQUEST: [f64; 21] = [
    0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0,
];
const LENGTHS: [f64; 18] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5];

/// What is counted for one model.
#[derive(Debug)]
pub(crate) struct ModelMetrics {
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
    pub(crate) queue_time: Histogram,
    pub(crate) prefill_time: Histogram,
    pub(crate) decode_time: Histogram,
    whole: Histogram,
    prompt_lengths: Histogram,
    pub(crate) output_lengths: Histogram,
    prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    finishes: Mutex<BTreeMap<&'static str, u64>>,
}

impl ModelMetrics {
    pub(crate) fn new() -> Self {
        let finishes = ["stop", "length", "abort", "tool_calls"].map(|finish| (finish, 0));
        Self {
            first_token: Histogram::of(&FIRST_TOKEN),
            between_tokens: Histogram::of(&BETWEEN_TOKENS),
            queue_time: Histogram::of(&REQUEST),
            prefill_time: Histogram::of(&REQUEST),
            decode_time: Histogram::of(&REQUEST),
            whole: Histogram::of(&REQUEST),
            prompt_lengths: Histogram::of(&LENGTHS),
            output_lengths: Histogram::of(&LENGTHS),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            finishes: Mutex::new(finishes.into_iter().collect()),
        }
    }

    /// A request has ended, or was given up.
    pub(crate) fn book_end(
        &self,
        took: Duration,
        prompt_tokens: usize,
        finishes: impl Iterator<Item = &'static str>,
    ) {
        self.whole.observe(took);
        self.prompt_lengths.observe_number(prompt_tokens as f64);
        self.prompt_tokens.add(prompt_tokens as u64);
        let mut counts = self.finishes.lock().unwrap_or_else(PoisonError::into_inner);
        for finish in finishes {
            *counts.entry(finish).or_default() += 1;
        }
    }
}

/// What is counted for the server.
#[derive(Debug, Default)]
pub(crate) struct GatewayMetrics {
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl GatewayMetrics {
    pub(crate) fn answered(&self, path: &'static str, status: u16) {
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner).entry((path, status)).or_default() += 1;
    }

    pub(crate) fn write(&self, text: &mut Exposition) {
        text.head("bedplate_gateway_requests_total", "counter", "Requests answered, by path and status.");
        for ((path, status), count) in self.answers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            text.sample(
                "bedplate_gateway_requests_total",
                &format!("path=\"{path}\",status=\"{status}\""),
                *count as f64,
            );
        }
    }
}

type OfState = fn(&EngineState) -> f64;

/// Name, kind, help and value of what the engine knows, added up over replicas.
const OF_STATES: [(&str, &str, &str, OfState); 11] = [
    ("vllm:num_requests_running", "gauge", "Sequences that run.", |state| state.running.into()),
    ("vllm:num_requests_waiting", "gauge", "Sequences that wait.", |state| state.waiting.into()),
    (
        "vllm:prefix_cache_queries_total",
        "counter",
        "Prompt tokens looked for among computed ones.",
        |state| (state.prompt_tokens) as f64,
    ),
    ("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found computed.", |state| {
        state.cached_tokens as f64
    }),
    ("vllm:num_preemptions_total", "counter", "Sequences that made room for others.", |state| {
        state.preemptions as f64
    }),
    ("vllm:spec_decode_num_draft_tokens_total", "counter", "Speculative tokens.", |state| {
        state.drafted_tokens as f64
    }),
    (
        "vllm:spec_decode_num_accepted_tokens_total",
        "counter",
        "Speculative tokens that were right.",
        |state| state.accepted_tokens as f64,
    ),
    ("bedplate_serve_steps_total", "counter", "Steps of the engine.", |state| state.steps as f64),
    ("bedplate_serve_step_seconds_total", "counter", "Time of all steps.", |state| {
        state.step_nanoseconds as f64 / 1e9
    }),
    (
        "bedplate_serve_host_seconds_total",
        "counter",
        "Time of steps spent in scheduling, preparing and sampling.",
        |state| state.host_nanoseconds as f64 / 1e9,
    ),
    ("bedplate_serve_blocks_idle", "gauge", "Blocks kept for later prompts only.", |state| {
        state.idle_blocks.into()
    }),
];

/// All models' figures; each metric has its head once.
pub(crate) fn write_models(text: &mut Exposition, models: &[(Arc<ServedModel>, Arc<ModelMetrics>)]) {
    let labelled: Vec<(String, &Arc<ServedModel>, &Arc<ModelMetrics>)> = models
        .iter()
        .map(|(model, metrics)| {
            (format!("model_name=\"{}\"", Exposition::escape(model.name())), model, metrics)
        })
        .collect();
    let states: Vec<(&str, Vec<EngineState>)> =
        labelled.iter().map(|(labels, model, _)| (labels.as_str(), model.states())).collect();
    for (name, kind, help, value) in OF_STATES {
        text.head(name, kind, help);
        for (labels, states) in &states {
            text.sample(name, labels, states.iter().map(value).sum());
        }
    }
    write_cache(text, &states, &labelled);
    for (name, help, counter) in counters() {
        text.head(name, "counter", help);
        labelled
            .iter()
            .for_each(|(labels, _, metrics)| text.sample(name, labels, counter(metrics).get() as f64));
    }
    text.head("vllm:request_success_total", "counter", "Choices that ended, by how.");
    for (labels, _, metrics) in &labelled {
        for (finish, count) in metrics.finishes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let labels = format!("{labels},finished_reason=\"{finish}\"");
            text.sample("vllm:request_success_total", &labels, *count as f64);
        }
    }
    for (name, help, histogram) in histograms() {
        text.head(name, "histogram", help);
        for (labels, _, metrics) in &labelled {
            let histogram = histogram(metrics);
            text.histogram(name, labels, &histogram.cumulative(), histogram.sum());
        }
    }
}

fn write_cache(
    text: &mut Exposition,
    states: &[(&str, Vec<EngineState>)],
    labelled: &[(String, &Arc<ServedModel>, &Arc<ModelMetrics>)],
) {
    text.head("vllm:kv_cache_usage_perc", "gauge", "Share of blocks in use, from 0 to 1.");
    for (labels, states) in states {
        let used: u32 = states.iter().map(|state| state.used_blocks).sum();
        let total: u32 = states.iter().map(|state| state.total_blocks).sum();
        text.sample("vllm:kv_cache_usage_perc", labels, f64::from(used) / f64::from(total.max(1)));
    }
    text.head("vllm:cache_config_info", "gauge", "The cache of keys and values.");
    for (labels, model, _) in labelled {
        let about = model.about();
        let labels =
            format!("{labels},block_size=\"{}\",num_gpu_blocks=\"{}\"", about.block_tokens, about.blocks);
        text.sample("vllm:cache_config_info", &labels, 1.0);
    }
}

type OfMetrics<T> = (&'static str, &'static str, fn(&ModelMetrics) -> &T);

fn counters() -> [OfMetrics<Counter>; 2] {
    [
        ("vllm:prompt_tokens_total", "Tokens of prompts.", |metrics| &metrics.prompt_tokens),
        ("vllm:generation_tokens_total", "Tokens generated.", |metrics| &metrics.generation_tokens),
    ]
}

fn histograms() -> [OfMetrics<Histogram>; 9] {
    [
        ("vllm:time_to_first_token_seconds", "From arrival to the first token.", |metrics| {
            &metrics.first_token
        }),
        ("vllm:inter_token_latency_seconds", "Between tokens of a choice.", |metrics| {
            &metrics.between_tokens
        }),
        ("vllm:time_per_output_token_seconds", "The same under vLLM's older name.", |metrics| {
            &metrics.between_tokens
        }),
        ("vllm:e2e_request_latency_seconds", "From arrival to the end.", |metrics| &metrics.whole),
        ("vllm:request_queue_time_seconds", "From arrival until it ran.", |metrics| &metrics.queue_time),
        ("vllm:request_prefill_time_seconds", "From running to the first token.", |metrics| {
            &metrics.prefill_time
        }),
        ("vllm:request_decode_time_seconds", "From the first token to the end.", |metrics| {
            &metrics.decode_time
        }),
        ("vllm:request_prompt_tokens", "Tokens of the prompts of a request.", |metrics| {
            &metrics.prompt_lengths
        }),
        ("vllm:request_generation_tokens", "Tokens of a choice.", |metrics| &metrics.output_lengths),
    ]
}
