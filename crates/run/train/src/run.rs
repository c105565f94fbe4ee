//! A whole run: from the configuration to finished weights, on one rank or many, in one world or several.

mod regroup;
mod start;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bedplate_breakdown::{Breakdown, Part, Predicted, Span};
use bedplate_checkpoint::{Checkpoints, Published};
use bedplate_comm::World;
use bedplate_data::Batches;
use bedplate_kernels::Bf16;
use bedplate_layout::Layout;
use bedplate_network::Sampler;
use bedplate_record::{EvaluationRecord, StepRecord};
use bedplate_report::Phase;
use bedplate_units::{Bytes, Seconds};

use crate::carry::Carried;
use crate::checkpoint::{MODEL_FOLDER, Settings};
use crate::export;
use crate::generate::Generator;
use crate::output_lock::OutputLock;
use crate::setup::Data;
use crate::trained::Trained;
use crate::trainer::{StepOutcome, Trainer};
use crate::{Precision, Roster, TrainConfig, TrainError};

/// Receives the events of a run as they happen.
pub trait Observer {
    fn began(&mut self, _setup: &Setup) -> Result<(), TrainError> {
        Ok(())
    }

    /// The run turns to something else.
    fn turned_to(&mut self, _phase: Phase) {}

    fn step(&mut self, _record: &StepRecord) -> Result<(), TrainError> {
        Ok(())
    }

    fn evaluated(&mut self, _record: &EvaluationRecord) -> Result<(), TrainError> {
        Ok(())
    }

    fn published(&mut self, _checkpoint: &Published) -> Result<(), TrainError> {
        Ok(())
    }
}

/// What a run is about to do.
#[derive(Debug, Clone)]
pub struct Setup {
    pub parameters: usize,
    /// Numbers that are trained: all, or those of adapters.
    pub trained: usize,
    /// Steps done already; above 0 where a run is resumed.
    pub step: u64,
    pub steps: u64,
    pub tokens_per_step: u64,
    pub memory: Bytes,
    pub threads: usize,
    /// The instructions that operators use.
    pub instructions: String,
    /// What a person should know: what the model's configuration asks for and is not done, checkpoints that were not used,
    /// settings that have changed.
    pub remarks: Vec<String>,
    /// Where the later part of the history lies that this run leaves.
    pub abandoned: Option<PathBuf>,
    /// The history of this folder is not that of the checkpoint.
    pub is_taken_over: bool,
    /// Ranks that train together, and how they share the work.
    pub ranks: usize,
    pub layout: Layout,
}

/// Whether to continue an earlier run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Resume {
    /// A new run; a folder that holds one already is refused.
    #[default]
    No,
    /// From the newest checkpoint of the output folder; from the start when there is none.
    IfPossible,
    /// From the newest checkpoint of the output folder that is good.
    Newest,
    /// From this one: a folder, or the name or step of one of this run. What came after it is set aside.
    From(PathBuf),
}

#[derive(Default)]
pub struct RunOptions<'a> {
    pub resume: Resume,
    /// What a step was predicted to take.
    pub predicted: Option<Breakdown<Predicted>>,
    /// The machine's peak in FLOP/s, for the share that is used.
    pub peak: Option<f64>,
    /// Set to end the run early; it writes a checkpoint first.
    pub stop: Option<&'a AtomicBool>,
    /// Resume although settings have changed that shape the loss curve.
    pub accepts_changes: bool,
    /// Memory that is free; as the system says where this is absent.
    pub free_memory: Option<Bytes>,
    /// Where ranks that come later are found; with it a run goes on when ranks are lost.
    pub roster: Option<Roster>,
    /// Ranks that the run was begun with.
    pub ranks: Option<u32>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Summary {
    pub steps: u64,
    /// Asked to stop before the last step.
    pub was_stopped: bool,
    pub loss: Option<f64>,
    pub evaluation_loss: Option<f64>,
    pub checkpoint: Option<Published>,
    /// The finished weights; absent when the run was stopped.
    pub weights: Option<PathBuf>,
    /// What a person should know of how the run was set up and resumed.
    pub remarks: Vec<String>,
    /// Whether this rank speaks for the run.
    pub is_first: bool,
}

/// Runs a configuration to its end in this process.
pub fn run(
    config: &TrainConfig,
    options: &RunOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<Summary, TrainError> {
    run_on(None, config, options, observer)
}

/// Runs a configuration to its end as a rank of a world. Only the first rank tells its observer anything.
pub fn run_on(
    world: Option<World>,
    config: &TrainConfig,
    options: &RunOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<Summary, TrainError> {
    match config.training.precision {
        Precision::F32 => drive::<f32>(world, config, options, observer),
        Precision::Bf16 => drive::<Bf16>(world, config, options, observer),
    }
}

/// Runs until the end, in as many worlds as it takes.
fn drive<E: Trained>(
    mut world: Option<World>,
    config: &TrainConfig,
    options: &RunOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<Summary, TrainError> {
    let mut past = Past::default();
    loop {
        let mut run = Run::<E>::prepare(world.take(), config, options, &mut past)?;
        match run.go(observer) {
            Ok(Some(summary)) => return Ok(summary),
            // Ranks wait that make the run larger.
            Ok(None) => {}
            Err(error) if run.survives(&error) => {}
            Err(error) => {
                run.tell_others(&error);
                return Err(error);
            }
        }
        world = Some(run.regroup(&mut past)?);
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
    carried: Carried,
    /// Nobody else writes to the output while the run lasts.
    lock: Option<OutputLock>,
    /// The last step that was told.
    told: Option<u64>,
    newest: Option<Published>,
}

struct Run<'a, E: Trained> {
    config: &'a TrainConfig,
    options: &'a RunOptions<'a>,
    data: Data,
    trainer: Trainer<E>,
    checkpoints: Checkpoints,
    settings: Settings,
    generator: Option<Generator<E>>,
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
    lock: Option<OutputLock>,
}

impl<E: Trained> Run<'_, E> {
    /// Trains to the end; gives nothing where the run is to go on in a larger world.
    fn go(&mut self, observer: &mut dyn Observer) -> Result<Option<Summary>, TrainError> {
        let is_first = self.trainer.ranks().is_first();
        if is_first && self.told.is_none() {
            observer.began(&self.setup())?;
            self.told = Some(self.trainer.step);
            if let Some(newest) = self.newest.as_ref().filter(|_| self.is_taken_over) {
                observer.published(newest)?;
            }
        }
        if self.trainer.step == 0 {
            self.evaluate(observer)?;
        }
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
        let outcome = self.trainer.step(&taken)?;
        taken.into_iter().for_each(|batch| batches.recycle(batch));
        self.loss = Some(outcome.loss);
        // After a loss of ranks a step may be done again, with the same result.
        let is_news = self.told.is_none_or(|told| self.trainer.step > told);
        if !self.trainer.ranks().is_first() || !is_news {
            return Ok(());
        }
        self.told = Some(self.trainer.step);
        observer.step(&self.record(&outcome, waited, Seconds::new(began.elapsed().as_secs_f64())))
    }

    fn record(&self, outcome: &StepOutcome, waited: Seconds, seconds: Seconds) -> StepRecord {
        let mut breakdown = outcome.breakdown;
        breakdown[Part::Storage] = breakdown[Part::Storage] + Span::exposed(waited);
        let tokens_per_second = outcome.tokens as f64 / seconds.get();
        StepRecord {
            step: self.trainer.step,
            tokens: self.trainer.samples * self.config.data.sequence as u64,
            loss: outcome.loss,
            gradient_norm: outcome.gradient_norm,
            learning_rate: outcome.learning_rate,
            tokens_per_second,
            mfu: self.options.peak.map(|peak| self.flops_per_token * tokens_per_second / peak),
            memory: resident_memory().unwrap_or_else(|| self.trainer.memory()),
            breakdown,
            predicted: self.options.predicted,
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
        self.evaluation_loss = loss;
        if !is_first || loss.is_none() && sample.is_none() {
            return Ok(());
        }
        let perplexity = loss.map(f64::exp);
        observer.evaluated(&EvaluationRecord { step: self.trainer.step, loss, perplexity, sample })
    }

    /// How the network continues the prompt; every sample uses the same random draws, so that samples can be compared. Ranks with a
    /// part of the network write it together; otherwise the first does.
    fn sample(&mut self) -> Result<Option<String>, TrainError> {
        let evaluation = &self.config.evaluation;
        if evaluation.prompt.is_empty() {
            return Ok(None);
        }
        let prompt = self.data.tokenizer.encode(&evaluation.prompt)?;
        let mut sampler = Sampler::new(evaluation.temperature, 0.95, self.config.data.seed);
        let (count, end) = (evaluation.sample_tokens, self.data.tokenizer.end());
        let tokens = if !self.trainer.has_whole_network() {
            self.trainer.write_together(&prompt, count, end, &mut sampler)?
        } else if self.trainer.ranks().is_first() {
            let Trainer { device, network, .. } = &self.trainer;
            let longest = self.config.data.sequence.min(prompt.len() + count);
            let generator = self.generator.get_or_insert_with(|| Generator::new(device, network, longest));
            generator.generate(device, network, self.trainer.weights(), &prompt, count, end, &mut sampler)
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
        if let Some(checkpoint) = trainer.publish_snapshot(checkpoints, waits, publishing)? {
            observer.published(&checkpoint)?;
            self.newest = Some(checkpoint);
        }
        Ok(())
    }

    fn finish(&mut self, observer: &mut dyn Observer) -> Result<Summary, TrainError> {
        let was_stopped = self.trainer.step < self.config.training.steps;
        let is_first = self.trainer.ranks().is_first();
        self.settle(observer, true)?;
        if !self.is_published()? {
            self.publish(observer)?;
            self.settle(observer, true)?;
        }
        let weights = if was_stopped || !is_first { None } else { Some(self.export()?) };
        self.trainer.ranks.part(&self.trainer.device)?;
        Ok(Summary {
            steps: self.trainer.step,
            was_stopped,
            loss: self.loss,
            evaluation_loss: self.evaluation_loss,
            checkpoint: self.newest.clone(),
            weights,
            remarks: self.remarks.clone(),
            is_first,
        })
    }

    /// Whether the newest checkpoint is of the state as it is; the first rank knows.
    fn is_published(&self) -> Result<bool, TrainError> {
        let is_it = self.newest.as_ref().is_some_and(|newest| newest.step == self.trainer.step);
        let told = self.trainer.ranks.broadcast(&self.trainer.device, vec![u8::from(is_it)])?;
        Ok(told == [1])
    }

    /// Weights, configuration and tokenizer as other tools read them; adapters also on their own.
    fn export(&self) -> Result<PathBuf, TrainError> {
        let folder = self.config.output.folder.join(MODEL_FOLDER);
        let Trainer { device, network, .. } = &self.trainer;
        if self.trainer.has_whole_network() {
            bedplate_network::save(network, device, self.trainer.weights(), &folder)?;
            if let Some(adapters) = &self.trainer.adapters {
                adapters.save(device, &self.config.output.folder.join("adapter"))?;
            }
        } else {
            self.export_checkpoint(&folder)?;
        }
        let longest = network.architecture().transformer.max_context;
        export::save_tokenizer(&self.data.tokenizer, self.data.is_chat(), longest, &folder)?;
        Ok(folder)
    }
}

fn is_due(step: u64, every: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}

/// What the process holds in memory, as the system counts it.
fn resident_memory() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Bytes::new(pages * 4096.0))
}
