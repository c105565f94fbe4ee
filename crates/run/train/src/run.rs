//! A whole run: from the configuration to finished weights, on one rank or many, in one world or several.

mod events;
mod finish;
mod regroup;
mod shapes;
mod start;
mod told;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bedplate_breakdown::{Part, Span};
use bedplate_checkpoint::{Checkpoints, Published};
use bedplate_comm::World;
use bedplate_data::Batches;
use bedplate_host::FolderLock;
use bedplate_host::memory::own_resident_bytes;
use bedplate_kernels::{Bf16, DeviceChoice};
use bedplate_network::Sampler;
use bedplate_record::{EvaluationRecord, StepRecord};
use bedplate_report::Phase;
use bedplate_units::{Bytes, Seconds};

use crate::checkpoint::CurveSettings;
use crate::ranks::RunRanks;
use crate::recovered_state::RecoveredState;
use crate::setup::{Data, read_architecture};
use crate::trained::Trained;
use crate::trainer::{StepOutcome, Trainer};
use crate::written::Text;
use crate::{Precision, TrainConfig, TrainError};
use regroup::{Next, Regrouping, is_survived, tell_others};
use shapes::Shapes;

pub use told::{Observer, Place, Resume, RunOptions, RunSummary, Setup, StepPlan};

/// Runs a configuration to its end in this process.
pub fn run(
    config: &TrainConfig,
    options: &RunOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<RunSummary, TrainError> {
    run_on(None, config, options, observer)
}

/// Runs a configuration to its end as a rank of a world. Only the first rank tells its observer anything.
pub fn run_on(
    world: Option<World>,
    config: &TrainConfig,
    options: &RunOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<RunSummary, TrainError> {
    let outcome = match config.training.precision {
        Precision::F32 => drive::<f32>(world, config, options, observer),
        Precision::Bf16 | Precision::Fp8 => drive::<Bf16>(world, config, options, observer),
    };
    events::ended(&outcome);
    outcome
}

/// Runs until the end, in as many worlds as it takes.
fn drive<E: Trained>(
    mut world: Option<World>,
    config: &TrainConfig,
    options: &RunOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<RunSummary, TrainError> {
    let model = read_architecture(&config.model.config)?.transformer;
    let shapes = Shapes::new(config, model, options.ranks);
    let regrouping = Regrouping { config, options, shapes: &shapes };
    let mut past =
        Past { is_fresh: world.as_ref().is_none_or(|world| world.epoch() == 0), ..Past::default() };
    loop {
        let (outcome, parted) = live::<E>(world, config, options, &shapes, observer, &mut past);
        let parted = match (outcome, parted) {
            (Ok(Some(summary)), _) => return Ok(summary),
            (Ok(None), Some(parted)) => parted,
            (Err(error), Some(parted)) if is_survived(&error, &parted, options) => {
                events::survived(&error, &parted);
                parted
            }
            (Err(error), parted) => return Err(fatal(error, parted.as_ref(), options)),
            (Ok(None), None) => unreachable!("only a world grows"),
        };
        match regrouping.next(parted, &mut past, observer)? {
            Next::World(next) => world = Some(next),
            Next::NotNeeded => return Ok(RunSummary::not_needed()),
        }
    }
}

/// One world of a run, and that world, for the next one to be made of it.
fn live<E: Trained>(
    world: Option<World>,
    config: &TrainConfig,
    options: &RunOptions<'_>,
    shapes: &Shapes<'_>,
    observer: &mut dyn Observer,
    past: &mut Past,
) -> (Result<Option<RunSummary>, TrainError>, Option<World>) {
    let ranks = match world {
        None => RunRanks::alone(),
        Some(world) => match start::meet(&world, config, options, shapes) {
            Ok(ranks) => {
                events::met(&world);
                ranks.in_world(world)
            }
            Err(error) => return (Err(error), Some(world)),
        },
    };
    let ranks = Arc::new(ranks);
    let prepared = Run::<E>::prepare(Arc::clone(&ranks), config, options, shapes, past);
    let outcome = prepared.and_then(|run| run.live(observer, past));
    let ranks = Arc::into_inner(ranks).expect("nobody else works with ranks that part");
    (outcome, ranks.into_world())
}

/// What all ranks find together, one of them says.
fn fatal(error: TrainError, world: Option<&World>, options: &RunOptions<'_>) -> TrainError {
    let Some(world) = world else { return error };
    tell_others(world, &error, options);
    match error {
        TrainError::StateLost { .. } if world.rank() > 0 => TrainError::Elsewhere { rank: 0 },
        error => error,
    }
}

/// What the ranks want before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    GoOn,
    Stop,
    Grow,
}

/// What outlives a world.
#[derive(Default)]
struct Past {
    recovered: RecoveredState,
    /// What this rank computes on, once it has been opened.
    device: Option<DeviceChoice>,
    /// One of the ranks that the run was begun with, which never had a state: while there is one, no step was done.
    is_fresh: bool,
    /// Nobody else writes to the output while the run lasts.
    lock: Option<FolderLock>,
    /// The last step that was told.
    told: Option<u64>,
    /// The record of the last step, told or not.
    last: Option<StepRecord>,
    newest: Option<Published>,
}

struct Run<'a, E: Trained> {
    config: &'a TrainConfig,
    options: &'a RunOptions<'a>,
    shapes: &'a Shapes<'a>,
    data: Data,
    trainer: Trainer<E>,
    /// What this rank held in the world before, until the ranks of this one have copies of each other.
    older: Option<RecoveredState>,
    /// Whether ranks were lost or came.
    is_anew: bool,
    checkpoints: Checkpoints,
    settings: CurveSettings,
    /// Of the whole network.
    parameters: usize,
    flops_per_token: f64,
    newest: Option<Published>,
    remarks: Vec<String>,
    abandoned: Option<PathBuf>,
    /// The checkpoint was not one of this folder.
    is_taken_over: bool,
    loss: Option<f64>,
    evaluation_loss: Option<f64>,
    told: Option<u64>,
    last: Option<StepRecord>,
    lock: Option<FolderLock>,
}

impl<E: Trained> Run<'_, E> {
    /// Trains until the run or its world ends; then what outlives the world is in `past`.
    fn live(
        mut self,
        observer: &mut dyn Observer,
        past: &mut Past,
    ) -> Result<Option<RunSummary>, TrainError> {
        // What a device that has failed did to the ranks, and to numbers, is a consequence.
        let outcome = self
            .go(observer)
            .map_err(|error| self.trainer.device.check().err().map_or(error, TrainError::Device));
        let survives = |error: &TrainError| {
            self.trainer.ranks().world().is_some_and(|world| is_survived(error, world, self.options))
        };
        if matches!(outcome, Ok(None)) || outcome.as_ref().is_err_and(survives) {
            self.leave(past);
        }
        outcome
    }

    fn leave(self, past: &mut Past) {
        let Self { trainer, older, newest, told, last, lock, .. } = self;
        (past.newest, past.told, past.last, past.lock) = (newest, told, last, lock);
        past.recovered = trainer.into_recovered_state();
        if let Some(older) = older {
            past.recovered.add(older);
        }
    }

    /// Trains to the end; gives nothing where the run is to go on in a larger world.
    fn go(&mut self, observer: &mut dyn Observer) -> Result<Option<RunSummary>, TrainError> {
        self.begin(observer)?;
        let mut batches = self.data.batches(self.config, self.trainer.ranks(), self.trainer.samples)?;
        while self.trainer.step < self.config.training.steps {
            match self.agree()? {
                Wish::GoOn => {}
                Wish::Stop => break,
                Wish::Grow => return Ok(None),
            }
            if let Err(error) = self.step(&mut batches, observer) {
                // The state is still that of the checkpoint that is being made, and other ranks may be gone.
                if self.trainer.ranks().count() == 1 {
                    let _ = self.settle(observer, true);
                }
                return Err(error);
            }
            self.settle(observer, false)?;
            let is_last = self.trainer.step == self.config.training.steps;
            if is_last || is_due(self.trainer.step, self.config.evaluation.every) {
                self.evaluate(observer)?;
            }
            if is_last || is_due(self.trainer.step, self.config.checkpoint.every) {
                self.publish(observer)?;
            }
        }
        self.finish(observer).map(Some)
    }

    /// Tells that the run begins or goes on, and does what is due at its step.
    fn begin(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let ranks = self.trainer.ranks();
        let is_first = ranks.is_first();
        observer.took_place(&Place {
            stage: (ranks.layout().pipeline > 1).then_some(ranks.at().pipeline),
            predicted: self.options.predicted.as_ref().filter(|_| is_first),
        });
        if is_first && self.told.is_none() {
            let setup = self.setup();
            events::began(&setup, self.config.training.device);
            observer.began(&setup)?;
            self.told = Some(self.trainer.step);
            if let Some(newest) = self.newest.as_ref().filter(|_| self.is_taken_over) {
                observer.published(newest)?;
            }
        }
        if self.trainer.step == 0 {
            self.evaluate(observer)?;
        }
        if self.is_anew { self.go_on(observer) } else { Ok(()) }
    }

    /// Completes the records, and repeats what the ranks were doing after the last step.
    fn go_on(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let own = self.last.as_ref().filter(|last| last.step <= self.trainer.step);
        let own = own.map(StepRecord::to_line).unwrap_or_default();
        let all = self.trainer.ranks.gather_bytes(&self.trainer.device, own.as_bytes())?;
        if self.trainer.ranks().is_first() {
            let lines: Vec<String> =
                all.into_iter().filter_map(|line| String::from_utf8(line).ok()).collect();
            let setup = self.setup();
            events::went_on(&setup);
            observer.went_on(&setup, &lines)?;
        }
        let (step, steps) = (self.trainer.step, self.config.training.steps);
        if step > 0 && (step == steps || is_due(step, self.config.evaluation.every)) {
            self.evaluate(observer)?;
        }
        if step > 0 && step < steps && is_due(step, self.config.checkpoint.every) && !self.is_published()? {
            self.publish(observer)?;
        }
        Ok(())
    }

    fn setup(&self) -> Setup {
        let training = &self.config.training;
        Setup {
            parameters: self.parameters,
            trained: match &self.trainer.adapters {
                None => self.parameters,
                Some(adapters) => adapters.len(),
            },
            step: self.trainer.step,
            steps: training.steps,
            tokens_per_step: training.batch * self.config.data.sequence as u64,
            memory: self.trainer.memory(),
            threads: self.trainer.device.threads(),
            instructions: self.trainer.device.instructions(),
            remarks: self.remarks.clone(),
            abandoned: self.abandoned.clone(),
            is_taken_over: self.is_taken_over,
            ranks: self.trainer.ranks().count(),
            layout: *self.trainer.ranks().layout(),
        }
    }

    fn step(&mut self, batches: &mut Batches, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let began = Instant::now();
        let count = self.data.schedule(self.config, self.trainer.ranks(), 0).micro_batches();
        let waited = batches.waited();
        let taken = (0..count).map(|_| batches.next()).collect::<Result<Vec<_>, _>>()?;
        let waited = Seconds::new((batches.waited() - waited).as_secs_f64());
        let before = self.trainer.step;
        let outcome = self.trainer.step(&taken).inspect_err(|_| {
            // This rank's numbers have changed, and what failed came after that.
            let done = self.trainer.done.take().filter(|_| self.trainer.step > before);
            let record = done.map(|done| self.record(&done, waited, done.seconds));
            self.last = record.or(self.last.take());
        })?;
        self.older = None;
        taken.into_iter().for_each(|batch| batches.recycle(batch));
        self.loss = Some(outcome.loss);
        let record = self.record(&outcome, waited, Seconds::new(began.elapsed().as_secs_f64()));
        let record = &*self.last.insert(record);
        // After a loss of ranks a step may be done again, with the same result.
        let is_news = self.told.is_none_or(|told| self.trainer.step > told);
        if !is_news {
            return Ok(());
        }
        if !self.trainer.ranks().is_first() {
            observer.own_step(record);
            return Ok(());
        }
        self.told = Some(self.trainer.step);
        events::step(record);
        observer.step(record)
    }

    fn record(&self, outcome: &StepOutcome, waited: Seconds, seconds: Seconds) -> StepRecord {
        let mut breakdown = outcome.breakdown;
        breakdown[Part::Storage] = breakdown[Part::Storage] + Span::exposed(waited);
        let tokens_per_second = outcome.tokens as f64 / seconds.get();
        StepRecord {
            step: self.trainer.step,
            samples: outcome.samples.clone(),
            tokens: self.trainer.samples * self.config.data.sequence as u64,
            loss: outcome.loss,
            gradient_norm: outcome.gradient_norm,
            learning_rate: outcome.learning_rate,
            tokens_per_second,
            mfu: self.options.peak.map(|peak| self.flops_per_token * tokens_per_second / peak),
            memory: resident_memory().unwrap_or_else(|| self.trainer.memory()),
            breakdown,
            predicted: self.options.predicted.as_ref().map(|plan| plan.breakdown),
            seconds: seconds.get(),
            ranks: outcome.ranks,
        }
    }

    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if self.config.evaluation.every == 0 {
            return Ok(());
        }
        let is_first = self.trainer.ranks().is_first();
        if is_first {
            observer.turned_to(Phase::Evaluating);
        }
        let ranks = Arc::clone(&self.trainer.ranks);
        let batches = self.data.evaluation(self.config, &ranks);
        let loss = batches.map(|batches| self.trainer.evaluate(batches)).transpose()?;
        let sample = self.sample()?;
        if is_first {
            observer.turned_to(Phase::Training);
        }
        self.trainer.device.check()?;
        self.evaluation_loss = loss;
        if !is_first || loss.is_none() && sample.is_none() {
            return Ok(());
        }
        let perplexity = loss.map(f64::exp);
        let record = EvaluationRecord { step: self.trainer.step, loss, perplexity, sample };
        events::evaluated(&record);
        observer.evaluated(&record)
    }

    /// How the network continues the prompt; every sample uses the same random draws, so that samples can be compared. Ranks with a
    /// part of the network, or with it on a GPU, write it together; otherwise the first does.
    fn sample(&mut self) -> Result<Option<String>, TrainError> {
        let evaluation = &self.config.evaluation;
        if evaluation.prompt.is_empty() {
            return Ok(None);
        }
        let prompt = self.data.tokenizer.encode(&evaluation.prompt)?;
        let text = Text {
            prompt: &prompt,
            count: evaluation.sample_tokens,
            end: self.data.tokenizer.end(),
            temperature: evaluation.temperature,
            seed: self.config.data.seed,
        };
        let tokens = if !self.trainer.has_whole_network() || !self.trainer.device.is_cpu() {
            let mut sampler = Sampler::new(text.temperature, 0.95, text.seed);
            self.trainer.write_together(&prompt, text.count, text.end, &mut sampler)?
        } else if self.trainer.ranks().is_first() {
            let Trainer { device, network, .. } = &self.trainer;
            text.write(device, network, self.trainer.weights())?
        } else {
            return Ok(None);
        };
        Ok(Some(format!("{}{}", evaluation.prompt, self.data.tokenizer.decode(&tokens)?)))
    }

    /// Begins a checkpoint, once the one before it is finished; the next steps write it.
    fn publish(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.settle(observer, true)?;
        let is_first = self.trainer.ranks().is_first();
        if is_first {
            observer.turned_to(Phase::Saving);
            events::checkpoint_begun(self.trainer.step);
        }
        self.trainer.begin_snapshot(&self.checkpoints, &self.settings)?;
        if is_first {
            observer.turned_to(Phase::Training);
        }
        Ok(())
    }

    /// Publishes the checkpoint that is being made, if it is all written or is to be waited for.
    fn settle(&mut self, observer: &mut dyn Observer, waits: bool) -> Result<(), TrainError> {
        let Self { trainer, checkpoints, .. } = self;
        let publishing = |attempt: &_, parts, facts| checkpoints.publish(attempt, parts, facts);
        let step = trainer.step;
        let published = trainer.publish_snapshot(checkpoints, waits, publishing);
        if let Some(checkpoint) = published.inspect_err(|error| events::checkpoint_failed(step, error))? {
            events::checkpoint_published(&checkpoint);
            observer.published(&checkpoint)?;
            self.newest = Some(checkpoint);
        }
        Ok(())
    }
}

fn is_due(step: u64, every: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}

/// What the process holds in memory, as the system counts it.
fn resident_memory() -> Option<Bytes> {
    own_resident_bytes().map(|bytes| Bytes::new(bytes as f64))
}
