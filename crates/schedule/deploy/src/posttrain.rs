//! Post-training by reinforcement learning: a step is rollouts, rewards, training and weight synchronisation.
//!
//! *Colocated*, all GPUs roll out, then all train; weights stay in their memory, and training state waits in
//! host memory where both do not fit. *Separate*, some GPUs roll out the next step while the others train on the
//! last, and new weights travel over the network. Rollouts are replayed request by request, so that the wait
//! for the longest answer counts; training is the best layout that `search` finds.

mod rollout;
mod sync;

use bedplate_layout::Layout;
use bedplate_perf::serving::{Engine, ServedModel, ServingConstants, WeightFormat};
use bedplate_perf::{Constants, Hardware, MemoryUse, Task, Workload};
use bedplate_replay::requests::Lengths;
use bedplate_search::{Axes, Setup, search};
use bedplate_units::Seconds;

use crate::{DeployError, ServingLayout, Supply};

/// The batch of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutBatch {
    pub prompts: u32,
    /// Answers to each prompt.
    pub samples: u16,
    pub input: u32,
    pub output: Lengths,
}

impl RolloutBatch {
    pub fn sequences(&self) -> u64 {
        u64::from(self.prompts) * u64::from(self.samples)
    }

    fn mean_output(&self) -> u32 {
        match self.output {
            Lengths::Fixed(tokens) => tokens,
            Lengths::Between(low, high) => low / 2 + high / 2,
        }
    }

    fn longest_output(&self) -> u32 {
        match self.output {
            Lengths::Fixed(tokens) | Lengths::Between(_, tokens) => tokens,
        }
    }
}

/// The whole question.
#[derive(Debug, Clone)]
pub struct PostTraining<'a> {
    pub model: &'a ServedModel,
    pub batch: RolloutBatch,
    pub engine: Engine,
    /// Formats of rollout weights to choose from; training is in bf16.
    pub weights: Vec<WeightFormat>,
    /// The time to judge all answers of a step, on separate machines.
    pub reward: Seconds,
    /// Extra forward passes over every answer: old and reference policy.
    pub passes: u32,
    /// Optimizer steps that share one batch of rollouts.
    pub updates: u32,
    pub serving: &'a ServingConstants,
    pub training: &'a Constants,
    pub seed: u64,
}

/// How GPUs are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All GPUs do both in turn. Training state stays during rollouts, or is moved to the host.
    Colocated { is_offloaded: bool },
    /// Separate pools, one step apart.
    Separate,
}

/// One step and where its time goes.
#[derive(Debug, Clone, PartialEq)]
pub struct RlStep {
    pub sharing: Sharing,
    pub rollout_gpus: u32,
    pub training_gpus: u32,
    pub rollout_layout: ServingLayout,
    pub replicas: u32,
    pub layout: Layout,
    pub rollout: Seconds,
    pub reward: Seconds,
    pub training: Seconds,
    /// New weights to the rollout replicas, and training state out and in again.
    pub sync: Seconds,
    pub total: Seconds,
}

impl RlStep {
    /// Share of GPU time in which GPUs roll out or train.
    pub fn busy(&self) -> f64 {
        let gpus = f64::from(match self.sharing {
            Sharing::Colocated { .. } => self.rollout_gpus,
            Sharing::Separate => self.rollout_gpus + self.training_gpus,
        });
        let work = self.rollout.get() * f64::from(self.rollout_gpus)
            + self.training.get() * f64::from(self.training_gpus);
        work / (gpus * self.total.get())
    }
}

/// Every split that works, fastest first.
#[derive(Debug, Clone, PartialEq)]
pub struct RlAnswer {
    pub steps: Vec<RlStep>,
    /// Splits that do not work, by GPUs that roll out, with the reason; all GPUs means colocated.
    pub refused: Vec<(u32, String)>,
}

impl RlAnswer {
    pub fn best(&self) -> &RlStep {
        &self.steps[0]
    }
}

/// Plans a step on all GPUs of a supply.
pub fn posttrain(question: &PostTraining<'_>, supply: &Supply) -> Result<RlAnswer, DeployError> {
    check(question, supply)?;
    let mut answer = RlAnswer { steps: Vec::new(), refused: Vec::new() };
    let gpus = supply.gpus();
    let mut note = |rollout_gpus: u32, found: Result<RlStep, DeployError>| match found {
        Ok(step) => answer.steps.push(step),
        Err(error) => answer.refused.push((rollout_gpus, reason(&error))),
    };
    let training = train(question, supply, gpus);
    match &training {
        Ok(trained) => {
            for is_offloaded in [false, true] {
                note(gpus, colocated(question, supply, trained, is_offloaded));
            }
        }
        Err(error) => note(gpus, Err(error.clone())),
    }
    for rollout_gpus in splits(supply) {
        note(rollout_gpus, separate(question, supply, rollout_gpus));
    }
    answer.steps.sort_by_key(|step| step.total);
    if answer.steps.is_empty() {
        let first = answer.refused.first().map(|(_, reason)| reason.clone()).unwrap_or_default();
        return Err(DeployError::NoSplit { gpus, what: "rollouts and training", reason: first });
    }
    Ok(answer)
}

fn check(question: &PostTraining<'_>, supply: &Supply) -> Result<(), DeployError> {
    let batch = &question.batch;
    let model = &question.model.transformer;
    let checks = [
        (supply.gpus() == 0, "the number of GPUs"),
        (batch.sequences() == 0, "the number of answers"),
        (batch.input == 0 || batch.mean_output() == 0, "the length of prompts and answers"),
        (question.updates == 0, "the number of updates"),
        (question.weights.is_empty(), "the number of weight formats"),
    ];
    if let Some((_, what)) = checks.into_iter().find(|(is_wrong, _)| *is_wrong) {
        return Err(DeployError::NothingAsked { what });
    }
    let asked = u64::from(batch.input) + u64::from(batch.longest_output());
    if model.max_context > 0 && asked > model.max_context {
        let (name, context) = (model.name.clone(), model.max_context);
        return Err(DeployError::ContextTooLong { model: name, asked, context, longer: None });
    }
    Ok(())
}

fn reason(error: &DeployError) -> String {
    match error {
        DeployError::Training { source, .. } => format!("training: {source}"),
        other => other.to_string(),
    }
}

/// GPUs that roll out: whole machines, at most sixteen splits; parts of a single machine.
fn splits(supply: &Supply) -> Vec<u32> {
    const MOST: u32 = 16;
    let (gpus, unit) = (supply.gpus(), supply.gpus_per_unit.max(1));
    let unit = if gpus > unit { unit } else { 1 };
    let units = gpus / unit;
    let every = units.div_ceil(MOST).max(1);
    (1..units).step_by(every as usize).map(|count| count * unit).collect()
}

/// A training step on some of the GPUs.
struct Trained {
    layout: Layout,
    seconds: Seconds,
    memory: MemoryUse,
}

fn train(question: &PostTraining<'_>, supply: &Supply, gpus: u32) -> Result<Trained, DeployError> {
    let batch = &question.batch;
    let model = &question.model.transformer;
    let setup = Setup {
        model,
        hardware: Hardware { gpus, ..supply.hardware },
        workload: Workload {
            sequence: u64::from(batch.input) + u64::from(batch.mean_output()),
            global_batch: (batch.sequences() / u64::from(question.updates)).max(1),
            task: Task::FineTune,
            ..Workload::default()
        },
        constants: question.training,
    };
    let failed = |source: Box<_>| DeployError::Training { model: model.name.clone(), gpus, source };
    let answer = search(&setup, &Axes::coarse(supply.hardware.domain), 1).map_err(|e| failed(Box::new(e)))?;
    let best = &answer.best[0];
    let memory = setup.predict(&best.layout)?.memory;
    // A forward pass is a third of forward and backward.
    let factor = f64::from(question.updates) + f64::from(question.passes) * f64::from(question.updates) / 3.0;
    Ok(Trained { layout: best.layout, seconds: best.seconds * factor, memory })
}

fn colocated(
    question: &PostTraining<'_>,
    supply: &Supply,
    trained: &Trained,
    is_offloaded: bool,
) -> Result<RlStep, DeployError> {
    let gpus = supply.gpus();
    let state = trained.memory.weights + trained.memory.gradients + trained.memory.optimizer;
    let kept = if is_offloaded { 0.0 } else { state.get() };
    let rolled = rollout::rollout(question, supply, gpus, kept)?;
    let moved = if is_offloaded { 2.0 * state.get() / supply.hardware.host_link } else { 0.0 };
    let sync = sync::within(&rolled, &supply.hardware, gpus) + Seconds::new(moved);
    let total = rolled.seconds + question.reward + trained.seconds + sync;
    Ok(step(question, Sharing::Colocated { is_offloaded }, (gpus, gpus), rolled, trained, sync, total))
}

fn separate(question: &PostTraining<'_>, supply: &Supply, rollout_gpus: u32) -> Result<RlStep, DeployError> {
    let training_gpus = supply.gpus() - rollout_gpus;
    let trained = train(question, supply, training_gpus)?;
    let rolled = rollout::rollout(question, supply, rollout_gpus, 0.0)?;
    let sync = sync::between(&rolled, &supply.hardware, training_gpus);
    let ahead = rolled.seconds + question.reward;
    let total = if ahead > trained.seconds { ahead } else { trained.seconds } + sync;
    Ok(step(question, Sharing::Separate, (rollout_gpus, training_gpus), rolled, &trained, sync, total))
}

fn step(
    question: &PostTraining<'_>,
    sharing: Sharing,
    (rollout_gpus, training_gpus): (u32, u32),
    rolled: rollout::Rolled,
    trained: &Trained,
    sync: Seconds,
    total: Seconds,
) -> RlStep {
    RlStep {
        sharing,
        rollout_gpus,
        training_gpus,
        rollout_layout: rolled.layout,
        replicas: rolled.replicas,
        layout: trained.layout,
        rollout: rolled.seconds,
        reward: question.reward,
        training: trained.seconds,
        sync,
        total,
    }
}
