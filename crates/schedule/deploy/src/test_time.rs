//! Test-time compute: what best-of-n and long thinking cost on a deployment, in dollars and in latency.
//!
//! Each effort is simulated as a closed loop that keeps the plan's sequence slots full, so dollars are those of
//! well-used machines. Samples of a request share their prompt's KV, as the scheduler shares it.

use bedplate_batching::OptionsFlaw;
use bedplate_replay::requests::{Arrivals, GeneratedLoad, Lengths, Traffic, seconds, simulate};
use bedplate_units::{Dollars, Seconds};

use crate::{Need, OfferedLoad, Plan, ReplayStage, Supply};

/// How much is computed for one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Answers generated in parallel, one of which is used.
    pub samples: u16,
    /// Thinking tokens before the answer.
    pub thinking: u32,
}

impl Effort {
    /// The plain answer, best of 4 and of 16, and thinking for 2,000 and 8,000 tokens.
    pub const USUAL: [Effort; 5] = [
        Effort { samples: 1, thinking: 0 },
        Effort { samples: 4, thinking: 0 },
        Effort { samples: 16, thinking: 0 },
        Effort { samples: 1, thinking: 2_000 },
        Effort { samples: 1, thinking: 8_000 },
    ];
}

impl std::fmt::Display for Effort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.samples, self.thinking) {
            (1, 0) => f.write_str("one answer"),
            (samples, 0) => write!(f, "best of {samples}"),
            (1, thinking) => write!(f, "thinking for {thinking} tokens"),
            (samples, thinking) => write!(f, "best of {samples}, thinking for {thinking} tokens"),
        }
    }
}

/// Cost and latency of an effort.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EffortPrice {
    pub effort: Effort,
    /// From the request to the end of its last answer.
    pub p50: Seconds,
    pub p95: Seconds,
    pub requests_per_second: f64,
    /// GPUs for the need's rate, by proportion.
    pub gpus_at_rate: f64,
    pub dollars_per_thousand: Option<Dollars>,
}

/// Requests for each user of the loop.
const ROUNDS: u32 = 4;

/// Prices efforts on a plan. An effort beyond the model's context or the replica's memory has no price.
pub fn test_time(
    need: &Need<'_>,
    supply: &Supply,
    plan: &Plan,
    efforts: &[Effort],
) -> Vec<(Effort, Option<EffortPrice>)> {
    efforts.iter().map(|effort| (*effort, price(need, supply, plan, effort).ok().flatten())).collect()
}

fn price(
    need: &Need<'_>,
    supply: &Supply,
    plan: &Plan,
    effort: &Effort,
) -> Result<Option<EffortPrice>, OptionsFlaw> {
    let output = need.load.output.saturating_add(effort.thinking);
    let load = OfferedLoad { output, ..need.load.uniform() };
    let longest = need.model.transformer.max_context;
    if longest > 0 && load.context() > longest {
        return Ok(None);
    }
    let need = Need { load, ..need.clone() };
    let Ok(stage) = ReplayStage::new(&need, supply, *plan) else { return Ok(None) };
    let workers = plan.decoders();
    let max_seqs = workers.max_seqs.saturating_mul(workers.replicas);
    let users = (max_seqs / u32::from(effort.samples)).max(1);
    let traffic = GeneratedLoad {
        requests: users * ROUNDS,
        arrivals: Arrivals::Closed { users },
        prompt: Lengths::Fixed(load.input),
        output: Lengths::Fixed(output),
        samples: effort.samples,
        seed: need.options.seed,
        ..GeneratedLoad::default()
    };
    let outcome = simulate(Traffic::Generated(traffic), &stage.fleet())?;
    if outcome.finished == 0 {
        return Ok(None);
    }
    let rate = outcome.requests_per_second();
    let each = |dollars: f64| Dollars::new(dollars / 3600.0 / rate * 1000.0);
    Ok(Some(EffortPrice {
        effort: *effort,
        p50: Seconds::new(seconds(outcome.end_to_end.p50)),
        p95: Seconds::new(seconds(outcome.end_to_end.p95)),
        requests_per_second: rate,
        gpus_at_rate: f64::from(plan.gpus()) * load.per_second / rate,
        dollars_per_thousand: supply.dollars_of(plan).map(each),
    }))
}
