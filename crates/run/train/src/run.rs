//! A whole run: from the configuration to finished weights.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bedplate_breakdown::{Breakdown, Part, Predicted, Span};
use bedplate_checkpoint::{Attempt, Checkpoint, CheckpointError, Checkpoints, Facts, PartEntry, Published};
use bedplate_data::Batches;
use bedplate_kernels::{Bf16, Device};
use bedplate_network::{Network, Sampler};
use bedplate_record::{EvaluationRecord, StepRecord};
use bedplate_report::Phase;
use bedplate_transformer::FlopsConvention;
use bedplate_units::{Bytes, Seconds};

use crate::checkpoint::{self, METRICS_FILE, MODEL_FOLDER, Settings};
use crate::export;
use crate::free_memory::free_memory;
use crate::generate::Generator;
use crate::memory;
use crate::output_lock::OutputLock;
use crate::parameters::Trained;
use crate::setup::{Data, read_architecture};
use crate::trainer::{Learner, StepOutcome, Trainer};
use crate::{Precision, TrainConfig, TrainError};

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
}

/// Runs a configuration to its end.
pub fn run(
    config: &TrainConfig,
    options: &RunOptions<'_>,
    observer: &mut dyn Observer,
) -> Result<Summary, TrainError> {
    match config.training.precision {
        Precision::F32 => Run::<f32>::prepare(config, options)?.go(observer),
        Precision::Bf16 => Run::<Bf16>::prepare(config, options)?.go(observer),
    }
}

struct Run<'a, E: Trained> {
    config: &'a TrainConfig,
    options: &'a RunOptions<'a>,
    data: Data,
    trainer: Trainer<E>,
    checkpoints: Checkpoints,
    settings: Settings,
    generator: Option<Generator<E>>,
    flops_per_token: f64,
    newest: Option<Published>,
    remarks: Vec<String>,
    abandoned: Option<PathBuf>,
    /// The checkpoint was not one of this folder.
    is_taken_over: bool,
    loss: Option<f64>,
    evaluation_loss: Option<f64>,
    /// Nobody else writes to the output while the run lasts.
    _lock: OutputLock,
}

impl<'a, E: Trained> Run<'a, E> {
    fn prepare(config: &'a TrainConfig, options: &'a RunOptions<'a>) -> Result<Self, TrainError> {
        let architecture = read_architecture(&config.model.config)?;
        let free = options.free_memory.or_else(free_memory);
        memory::check_shape(&architecture.transformer, config, free)?;
        let model = &architecture.transformer;
        let data = Data::open(config, model.vocab)?;
        let flops = model.flops_per_token(config.data.sequence as u64, FlopsConvention::default());
        let flops_per_token = flops.training().get();
        let device = Device::cpu(threads(config.training.threads));
        let network = Network::new(&device, architecture, config.data.sequence)?;
        memory::check(&network, config, free)?;
        let lock = OutputLock::take(&config.output.folder)?;
        let checkpoints = checkpoint::checkpoints(config)?;
        let (from, of_resuming) = starting_point(&checkpoints, config, &options.resume)?;
        let mut remarks = network.remarks();
        remarks.extend(of_resuming);
        let mut trainer = Trainer::new(network, device, config.clone())?;
        let architecture = trainer.network.architecture();
        let settings = Settings::of(config, architecture, &data, trainer.given_weights);
        let (mut newest, mut abandoned, mut is_taken_over) = (None, None, false);
        if let Some(checkpoint) = from {
            remarks.extend(changes(&checkpoint, &settings, options.accepts_changes)?);
            trainer.restore(&checkpoint)?;
            is_taken_over = !checkpoints.holds(&checkpoint);
            let (model, metrics) =
                (config.output.folder.join(MODEL_FOLDER), config.output.folder.join(METRICS_FILE));
            // Records move with the telemetry that writes them; here they only count as something that is left.
            let along = [model.as_path(), metrics.as_path()];
            let (own, aside) = match is_taken_over {
                true => {
                    trainer.begin_snapshot(&checkpoints, &settings)?;
                    publish(&mut trainer, &checkpoints, true, |attempt, parts, facts| {
                        checkpoints.publish_taken_over(attempt, parts, facts, &along)
                    })?
                    .expect("a checkpoint was begun")
                }
                false => {
                    let own = checkpoint.published();
                    let aside = checkpoints.branch_off(&own, false, &along)?;
                    (own, aside)
                }
            };
            (newest, abandoned) = (Some(own), aside);
        }
        if let Some(first) = trainer.unused.first() {
            let count = trainer.unused.len();
            remarks.push(format!(
                "the model does not use {count} tensors of the given weights, first `{first}`"
            ));
        }
        remarks.extend(abandoned.iter().map(|to| format!("what came after it is now in {}", to.display())));
        Ok(Self {
            config,
            options,
            data,
            trainer,
            checkpoints,
            settings,
            generator: None,
            flops_per_token,
            newest,
            remarks,
            abandoned,
            is_taken_over,
            loss: None,
            evaluation_loss: None,
            _lock: lock,
        })
    }

    fn go(mut self, observer: &mut dyn Observer) -> Result<Summary, TrainError> {
        observer.began(&self.setup())?;
        if let Some(newest) = self.newest.as_ref().filter(|_| self.is_taken_over) {
            observer.published(newest)?;
        }
        if self.trainer.step == 0 {
            self.evaluate(observer)?;
        }
        let mut batches = self.data.batches(self.config, self.trainer.samples)?;
        while self.trainer.step < self.config.training.steps && !self.is_stopped() {
            if let Err(error) = self.step(&mut batches, observer) {
                // The state is still that of the checkpoint that is being made.
                let _ = self.settle(observer, true);
                return Err(error);
            }
            self.settle(observer, false)?;
            let is_last = self.trainer.step == self.config.training.steps;
            if is_last || is_due(self.trainer.step, self.config.evaluation.every) {
                self.evaluate(observer)?;
            }
            if is_last || is_due(self.trainer.step, self.config.checkpoint.every) {
                self.publish(observer, is_last)?;
            }
        }
        self.finish(observer)
    }

    fn setup(&self) -> Setup {
        let training = &self.config.training;
        Setup {
            parameters: self.trainer.network.parameters(),
            trained: self.trainer.trained(),
            step: self.trainer.step,
            steps: training.steps,
            tokens_per_step: training.batch * self.config.data.sequence as u64,
            memory: self.trainer.memory(),
            threads: self.trainer.device.threads(),
            instructions: self.trainer.device.instructions(),
            remarks: self.remarks.clone(),
            abandoned: self.abandoned.clone(),
            is_taken_over: self.is_taken_over,
        }
    }

    fn is_stopped(&self) -> bool {
        self.options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    fn step(&mut self, batches: &mut Batches, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let began = Instant::now();
        let training = &self.config.training;
        let count = training.batch / training.micro_batch;
        let waited = batches.waited();
        let taken = (0..count).map(|_| batches.next()).collect::<Result<Vec<_>, _>>()?;
        let waited = Seconds::new((batches.waited() - waited).as_secs_f64());
        let outcome = self.trainer.step(&taken)?;
        taken.into_iter().for_each(|batch| batches.recycle(batch));
        self.loss = Some(outcome.loss);
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
        }
    }

    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if self.config.evaluation.every == 0 {
            return Ok(());
        }
        observer.turned_to(Phase::Evaluating);
        let loss =
            self.data.evaluation(self.config).map(|batches| self.trainer.evaluate(batches)).transpose()?;
        let sample = self.sample()?;
        observer.turned_to(Phase::Training);
        if loss.is_none() && sample.is_none() {
            return Ok(());
        }
        self.evaluation_loss = loss;
        let perplexity = loss.map(f64::exp);
        observer.evaluated(&EvaluationRecord { step: self.trainer.step, loss, perplexity, sample })
    }

    /// How the network continues the prompt; every sample uses the same random draws, so that samples can be compared.
    fn sample(&mut self) -> Result<Option<String>, TrainError> {
        let evaluation = &self.config.evaluation;
        if evaluation.prompt.is_empty() {
            return Ok(None);
        }
        let prompt = self.data.tokenizer.encode(&evaluation.prompt)?;
        let Trainer { device, network, parameters, .. } = &self.trainer;
        let longest = self.config.data.sequence.min(prompt.len() + evaluation.sample_tokens);
        let generator = self.generator.get_or_insert_with(|| Generator::new(device, network, longest));
        let mut sampler = Sampler::new(evaluation.temperature, 0.95, self.config.data.seed);
        let tokens = generator.generate(
            device,
            network,
            E::working(parameters),
            &prompt,
            evaluation.sample_tokens,
            self.data.tokenizer.end(),
            &mut sampler,
        );
        Ok(Some(format!("{}{}", evaluation.prompt, self.data.tokenizer.decode(&tokens)?)))
    }

    /// Begins a checkpoint, once the one before it is finished. The next steps write it, unless this `waits` for it.
    fn publish(&mut self, observer: &mut dyn Observer, waits: bool) -> Result<(), TrainError> {
        observer.turned_to(Phase::Saving);
        self.settle(observer, true)?;
        self.trainer.begin_snapshot(&self.checkpoints, &self.settings)?;
        self.settle(observer, waits)?;
        observer.turned_to(Phase::Training);
        Ok(())
    }

    /// Publishes the checkpoint that is being made, if it is all written or is to be waited for.
    fn settle(&mut self, observer: &mut dyn Observer, waits: bool) -> Result<(), TrainError> {
        let Self { trainer, checkpoints, .. } = self;
        let publishing = |attempt: &_, parts, facts| checkpoints.publish(attempt, parts, facts);
        if let Some(checkpoint) = publish(trainer, checkpoints, waits, publishing)? {
            observer.published(&checkpoint)?;
            self.newest = Some(checkpoint);
        }
        Ok(())
    }

    fn finish(mut self, observer: &mut dyn Observer) -> Result<Summary, TrainError> {
        let was_stopped = self.trainer.step < self.config.training.steps;
        self.settle(observer, true)?;
        let is_published = self.newest.as_ref().is_some_and(|newest| newest.step == self.trainer.step);
        if !is_published {
            self.publish(observer, true)?;
        }
        let weights = if was_stopped { None } else { Some(self.export()?) };
        Ok(Summary {
            steps: self.trainer.step,
            was_stopped,
            loss: self.loss,
            evaluation_loss: self.evaluation_loss,
            checkpoint: self.newest,
            weights,
            remarks: self.remarks,
        })
    }

    /// Weights, configuration and tokenizer as other tools read them; adapters also on their own.
    fn export(&self) -> Result<PathBuf, TrainError> {
        let folder = self.config.output.folder.join(MODEL_FOLDER);
        let Trainer { device, network, .. } = &self.trainer;
        bedplate_network::save(network, device, self.trainer.weights(), &folder)?;
        let longest = network.architecture().transformer.max_context;
        export::save_tokenizer(&self.data.tokenizer, self.data.is_chat(), longest, &folder)?;
        if let Learner::Adapters(adapters) = &self.trainer.learner {
            adapters.save(device, &self.config.output.folder.join("adapter"))?;
        }
        Ok(folder)
    }
}

fn is_due(step: u64, every: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}

fn threads(asked: usize) -> usize {
    if asked > 0 { asked } else { std::thread::available_parallelism().map_or(1, |count| count.get()) }
}

/// The checkpoint to start from, and what is to be said about newer ones; an error when the folder holds a run that is not
/// to be resumed.
fn starting_point(
    checkpoints: &Checkpoints,
    config: &TrainConfig,
    resume: &Resume,
) -> Result<(Option<Checkpoint>, Vec<String>), TrainError> {
    let folder = || config.output.folder.clone();
    match resume {
        Resume::No => match checkpoints.newest_step()? {
            Some(step) => Err(TrainError::FolderInUse { folder: folder(), step }),
            None => Ok((None, Vec::new())),
        },
        Resume::From(named) => match checkpoints.named(named) {
            Err(CheckpointError::Nothing { .. }) => {
                Err(TrainError::NothingToResume { folder: named.clone() })
            }
            named => Ok((Some(named?), Vec::new())),
        },
        Resume::IfPossible | Resume::Newest => match checkpoints.newest_good()? {
            Some((newest, flaws)) => Ok((Some(newest), flaws)),
            None if *resume == Resume::Newest => Err(TrainError::NothingToResume { folder: folder() }),
            None => Ok((None, Vec::new())),
        },
    }
}

/// Remarks on settings that have changed since a checkpoint; an error unless they are accepted.
fn changes(
    checkpoint: &Checkpoint,
    settings: &Settings,
    is_accepted: bool,
) -> Result<Vec<String>, TrainError> {
    let changes = checkpoint::changes(checkpoint.facts(), settings);
    if changes.is_empty() || is_accepted {
        return Ok(changes.iter().map(|change| format!("changed and accepted: {change}")).collect());
    }
    Err(TrainError::ChangedSettings { path: checkpoint.published().path, changes })
}

/// Publishes the checkpoint that a trainer is making, if it is all written or is to be waited for.
fn publish<E: Trained, T>(
    trainer: &mut Trainer<E>,
    checkpoints: &Checkpoints,
    waits: bool,
    publishing: impl FnOnce(&Attempt, Vec<PartEntry>, Facts) -> Result<T, CheckpointError>,
) -> Result<Option<T>, TrainError> {
    let snapshot = trainer.take_snapshot(waits);
    snapshot.map(|snapshot| snapshot.publish(checkpoints, publishing)).transpose()
}

/// What the process holds in memory, as the system counts it.
fn resident_memory() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Bytes::new(pages * 4096.0))
}
