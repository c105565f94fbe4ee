//! A load as `replay` predicts it and as the engine then has it.

use bedplate_batching::SchedulerOptions;
use bedplate_random::Random;
use bedplate_replay::requests::{
    Fleet, LinearEngine, Planned, Pool, Traffic, picoseconds, seconds, simulate,
};
use bedplate_serve::{Engine, EngineOptions, Replica, StepRecord};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::statistics::nearest_rank;
use serde_json::{Value, json};

use super::load::{self, Times};
use super::prompt;

/// Percentiles of first tokens and of the time between tokens.
pub(super) struct Comparison {
    rows: Vec<(String, f64, f64)>,
    fitted: LinearEngine,
    /// What the steps of the measured load took, over what the fit says of the same steps: not 1 where the machine has changed its speed.
    drift: f64,
}

/// A request: when, prompt and answer.
type Due = (f64, Vec<u32>, u32);

pub(super) fn compare(
    engine: &Engine,
    options: &EngineOptions,
    requests: u32,
    console: &Console,
) -> Comparison {
    // Two requests alone say how much work there is, so that the load is neither nothing nor too much.
    console.say("a first load, to fit the time of a step");
    engine.take_steps();
    let alone = load::play(engine, &requests_at(engine, 1, 4, 1000.0));
    let service = alone.iter().map(|times| times.last).sum::<f64>() / alone.len() as f64;
    let rate = 2.5 / service;
    load::play(engine, &requests_at(engine, 2, requests, rate));
    let fitted = fit(&engine.take_steps());
    let due = requests_at(engine, 3, requests, rate);
    let predicted = predict(engine, options, &fitted, &due);
    console.say("another load, as predicted and as measured");
    let measured = load::play(engine, &due);
    let steps = engine.take_steps();
    let took: f64 = steps.iter().map(|step| step.took.as_secs_f64()).sum();
    let drift = took / steps.iter().map(|step| fitted_time(&fitted, step)).sum::<f64>().max(1e-9);
    let mut rows = Vec::new();
    for (name, of) in
        [("first token", first as fn(&Times) -> Option<f64>), ("between tokens", Times::between)]
    {
        for percent in [50_u8, 90, 99] {
            let at = |times: &[Times]| {
                percentile(times.iter().filter_map(of).collect(), f64::from(percent) / 100.0)
            };
            rows.push((format!("{name}, p{percent}"), at(&predicted), at(&measured)));
        }
    }
    Comparison { rows, fitted, drift }
}

fn first(times: &Times) -> Option<f64> {
    (times.tokens > 0).then_some(times.first)
}

/// Requests that arrive by chance, with prompts and answers of many lengths.
fn requests_at(engine: &Engine, seed: u64, count: u32, rate: f64) -> Vec<Due> {
    let mut random = Random::stream(seed, 0);
    let mut at = 0.0;
    (0..count)
        .map(|number| {
            at += random.exponential(1.0 / rate);
            let tokens = 32 + random.below(480) as u32;
            (at, prompt(engine, seed * 100_000 + u64::from(number), tokens), 16 + random.below(80) as u32)
        })
        .collect()
}

/// The load by `replay`, under the engine's own settings.
fn predict(engine: &Engine, options: &EngineOptions, fitted: &LinearEngine, due: &[Due]) -> Vec<Times> {
    let planned =
        due.iter().map(|(at, prompt, output)| Planned::new(picoseconds(*at), prompt.len() as u32, *output));
    let blocks = engine.about().blocks;
    let scheduler = SchedulerOptions {
        block_tokens: options.block_tokens,
        blocks,
        token_budget: options.token_budget,
        chunk_tokens: options.chunk_tokens,
        max_seqs: options.max_seqs,
        watermark_blocks: (blocks / 100).min(160),
        ..SchedulerOptions::default()
    };
    let fleet = Fleet::aggregated(Pool { scheduler, ..Pool::new(1, fitted) });
    let outcome =
        simulate(Traffic::Trace(planned.collect()), &fleet).expect("the engine runs with these settings");
    let times = outcome.records.iter().map(|record| Times {
        first: seconds(record.ttft()),
        last: seconds(record.end_to_end()),
        tokens: record.longest_tokens,
    });
    times.collect()
}

/// What the time of a step is a sum of.
fn terms(step: &StepRecord) -> [f64; 5] {
    let shape = step.shape;
    [
        1.0,
        shape.prefill_tokens as f64,
        shape.prefill_pairs as f64 / 1000.0,
        f64::from(shape.decodes),
        shape.decode_context as f64,
    ]
}

/// Seconds of a step, as fitted.
fn fitted_time(fitted: &LinearEngine, step: &StepRecord) -> f64 {
    let LinearEngine { step: each, prefill_token, thousand_pairs, decode, context_token } = *fitted;
    let times = [each, prefill_token, thousand_pairs, decode, context_token].map(seconds);
    terms(step).iter().zip(times).map(|(amount, time)| amount * time).sum()
}

/// The time of a step as a sum of linear terms, by least squares over relative errors; no term is negative.
fn fit(steps: &[StepRecord]) -> LinearEngine {
    let mut used = [true; 5];
    loop {
        let found = solve(steps, &terms, used);
        let lowest = (0..5).filter(|at| used[*at]).min_by(|a, b| found[*a].total_cmp(&found[*b]));
        match lowest.filter(|at| found[*at] < 0.0) {
            Some(at) => used[at] = false,
            None => {
                let [step, prefill_token, thousand_pairs, decode, context_token] = found.map(picoseconds);
                return LinearEngine { step, prefill_token, thousand_pairs, decode, context_token };
            }
        }
    }
}

fn solve(steps: &[StepRecord], terms: &dyn Fn(&StepRecord) -> [f64; 5], used: [bool; 5]) -> [f64; 5] {
    let mut matrix = [[0.0f64; 6]; 5];
    for step in steps {
        let took = step.took.as_secs_f64().max(1e-9);
        let of = terms(step);
        for row in 0..5 {
            for column in 0..5 {
                matrix[row][column] += of[row] * of[column] / took / took;
            }
            matrix[row][5] += of[row] / took;
        }
    }
    let scale: [f64; 5] = std::array::from_fn(|at| matrix[at][at].sqrt().max(1e-30));
    for row in 0..5 {
        for column in 0..5 {
            matrix[row][column] /= scale[row] * scale[column];
        }
        matrix[row][5] /= scale[row];
        if !used[row] {
            matrix[row] = [0.0; 6];
            (0..5).for_each(|other| matrix[other][row] = 0.0);
        }
        matrix[row][row] += if used[row] { 1e-9 } else { 1.0 };
    }
    for pivot in 0..5 {
        let best = (pivot..5)
            .max_by(|a, b| matrix[*a][pivot].abs().total_cmp(&matrix[*b][pivot].abs()))
            .unwrap_or(pivot);
        matrix.swap(pivot, best);
        for row in 0..5 {
            if row != pivot {
                let factor = matrix[row][pivot] / matrix[pivot][pivot];
                let below = matrix[pivot];
                matrix[row].iter_mut().zip(below).for_each(|(number, under)| *number -= factor * under);
            }
        }
    }
    std::array::from_fn(|at| matrix[at][5] / matrix[at][at] / scale[at])
}

fn percentile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    nearest_rank(&values, share).unwrap_or(0.0)
}

impl Comparison {
    pub(super) fn show(&self, console: &mut Console) -> Result<(), CliError> {
        let columns = [
            Column::left("time", 0),
            Column::right("predicted, ms", 0),
            Column::right("measured, ms", 0),
            Column::right("error", 0),
        ];
        let mut table = Table::new(columns.into());
        for (name, predicted, measured) in &self.rows {
            let error = format!("{:+.0} %", 100.0 * (predicted / measured - 1.0));
            table.row(vec![
                name.clone(),
                format!("{:.1}", 1e3 * predicted),
                format!("{:.1}", 1e3 * measured),
                error,
            ]);
        }
        console.line("")?;
        console.table(&table)?;
        console.line(&format!(
            "steps of the measured load took {:.2} times what the fit says of them",
            self.drift
        ))?;
        let LinearEngine { step, prefill_token, thousand_pairs, decode, context_token } = self.fitted;
        let ns = |time| format!("{:.0}ns", 1e9 * seconds(time));
        console.line(&format!(
            "step time for `bedplate replay requests --step-time`:\n  step={},token={},kilopairs={},decode={},context={}",
            ns(step),
            ns(prefill_token),
            ns(thousand_pairs),
            ns(decode),
            ns(context_token)
        ))
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(name, predicted, measured)| {
            json!({"what": name, "predicted_s": predicted, "measured_s": measured})
        });
        json!({ "rows": rows.collect::<Vec<_>>(), "drift": self.drift })
    }
}
