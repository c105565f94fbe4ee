//! The rollouts of one step on some GPUs: the best way to split a replica, replayed to the last answer.

use bedplate_perf::Hardware;
use bedplate_perf::serving::Replica;
use bedplate_replay::requests::{
    Arrivals, Fleet, GeneratedLoad, Objectives, Pool, Traffic, seconds, simulate,
};
use bedplate_transformer::Precision;
use bedplate_units::{Bytes, Seconds};

use super::PostTraining;
use crate::candidate::fit;
use crate::engine::TimedReplica;
use crate::estimate::Steady;
use crate::{DeployError, DeployOptions, Need, OfferedLoad, ServingLayout, Supply};

/// The rollouts of a step.
pub(super) struct Rolled {
    pub(super) layout: ServingLayout,
    pub(super) replicas: u32,
    pub(super) seconds: Seconds,
    /// Weights of one replica.
    pub(super) weights: Bytes,
}

/// How many of the best ways by the estimate are replayed.
const REPLAYED: usize = 3;

/// `kept` bytes of each GPU are not free.
pub(super) fn rollout(
    question: &PostTraining<'_>,
    supply: &Supply,
    gpus: u32,
    kept: f64,
) -> Result<Rolled, DeployError> {
    let memory = supply.hardware.memory - kept;
    let free = Supply { hardware: Hardware { gpus, memory, ..supply.hardware }, ..supply.clone() };
    let need = need(question);
    let mut sorted: Vec<(f64, ServingLayout, Replica)> = Vec::new();
    let mut refused = None;
    for layout in crate::space::layouts(&need, &free) {
        match fit(&need, &free, &layout) {
            Ok(replica) => {
                let estimate = estimate(question, &need, &replica, gpus / layout.gpus());
                sorted.push((estimate, layout, replica));
            }
            Err(refusal) => refused = Some(refusal),
        }
    }
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let played = sorted.into_iter().take(REPLAYED).map(|(_, layout, replica)| {
        let replicas = gpus / layout.gpus();
        let weights = replica.memory().weights_per_gpu * f64::from(layout.gpus());
        Rolled { layout, replicas, seconds: play(question, &need, replica, replicas), weights }
    });
    played.min_by(|a, b| a.seconds.cmp(&b.seconds)).ok_or_else(|| DeployError::NoSplit {
        gpus,
        what: "rollout replicas",
        reason: refused.map_or_else(|| "nothing was tried".into(), |refusal| refusal.to_string()),
    })
}

fn need<'a>(question: &PostTraining<'a>) -> Need<'a> {
    Need {
        model: question.model,
        load: OfferedLoad::new(question.batch.input, question.batch.longest_output(), 1.0),
        traced: None,
        objectives: Objectives::default(),
        constants: question.serving,
        site: None,
        errors: None,
        alternatives: &[],
        options: DeployOptions {
            engine: question.engine,
            weights: question.weights.clone(),
            kv: vec![Precision::Bf16],
            chunks: vec![8192],
            seed: question.seed,
            ..DeployOptions::default()
        },
    }
}

/// Seconds of all answers, at the rate of a full replica, and of the longest one.
fn estimate(question: &PostTraining<'_>, need: &Need<'_>, replica: &Replica, replicas: u32) -> f64 {
    let load = OfferedLoad { output: question.batch.mean_output(), ..need.load };
    let steady = Steady { replica, load };
    let each = (question.batch.sequences() as f64 / f64::from(replicas.max(1))).ceil();
    let batch = (each as u32).clamp(1, steady.most_sequences().max(1));
    let at = steady.at(batch);
    let longest = f64::from(question.batch.longest_output()) * steady.at(1).itl;
    (each / at.rate).max(longest)
}

/// All prompts at once, until the last answer is there.
fn play(question: &PostTraining<'_>, need: &Need<'_>, replica: Replica, replicas: u32) -> Seconds {
    let usual = u64::from(question.batch.input) + u64::from(question.batch.mean_output() / 2);
    let timed = TimedReplica::new(replica, usual);
    let steady = Steady { replica: timed.replica(), load: need.load };
    let pool = Pool {
        scheduler: timed.scheduler(steady.most_sequences().max(1), need.load.input),
        ..Pool::new(replicas, &timed)
    };
    let traffic = GeneratedLoad {
        requests: question.batch.prompts,
        arrivals: Arrivals::Closed { users: question.batch.prompts },
        prompt: bedplate_replay::requests::Lengths::Fixed(question.batch.input),
        output: question.batch.output,
        samples: question.batch.samples,
        seed: question.seed,
        ..GeneratedLoad::default()
    };
    let outcome = simulate(Traffic::Generated(traffic), &Fleet::aggregated(pool))
        .expect("a replica that fits has sound settings");
    match outcome.finished == outcome.requests {
        true => Seconds::new(seconds(outcome.duration)),
        false => Seconds::new(f64::INFINITY),
    }
}
