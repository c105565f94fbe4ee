//! A training run's configuration: one TOML file, every key with its default.

use std::net::SocketAddr;
use std::path::PathBuf;

use bedplate_data::Packing;
use bedplate_diag::Source;
use bedplate_document::{DocumentError, Table};
use bedplate_kernels::{DeviceChoice, NoSuchChoice};
use bedplate_layout::Layout;
use bedplate_network::{Products, Recompute};

use crate::schedule::{Decay, LearningRate};

mod write;

/// The configuration of a run as it is used, which a run leaves in its folder when it begins.
pub const SETTINGS_FILE: &str = "settings.toml";

/// Keys whose value is a list.
pub const LIST_KEYS: [&str; 3] = ["data.corpora", "data.weights", "adapter.targets"];

/// Everything that decides what a run computes. `docs/train.md` describes every key.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainConfig {
    pub model: ModelConfig,
    pub data: DataConfig,
    pub training: TrainingConfig,
    pub optimizer: OptimizerConfig,
    pub evaluation: EvaluationConfig,
    pub checkpoint: CheckpointConfig,
    /// Low-rank adapters instead of all weights.
    pub adapter: Option<AdapterConfig>,
    pub output: OutputConfig,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// A `config.json`, a folder with one, or the name of a built-in shape.
    pub config: String,
    /// Safetensors to start from; fresh weights otherwise.
    pub weights: Option<PathBuf>,
    /// Seed of fresh weights.
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DataConfig {
    pub corpora: Vec<CorpusConfig>,
    pub sequence: usize,
    pub packing: Packing,
    /// Tokens see only their own document.
    pub has_document_mask: bool,
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CorpusConfig {
    pub path: PathBuf,
    pub weight: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TrainingConfig {
    pub steps: u64,
    /// Sequences of an optimizer step.
    pub batch: u64,
    /// Sequences computed at once.
    pub micro_batch: u64,
    pub precision: Precision,
    pub recompute: Recompute,
    /// What computes; with several ranks `auto` is the processor.
    pub device: DeviceChoice,
    /// Threads of a rank; 0 stands for an equal share of the machine's processors.
    pub threads: usize,
    /// How the run is spread over ranks; none given: every rank is a data rank that holds everything.
    pub layout: Option<Layout>,
    /// Steps between copies of a rank's state in its neighbour's memory; 0 for none.
    pub copy_every: u64,
    /// How long ranks that are too few to go on wait for others to come.
    pub wait_seconds: u64,
    /// With split weights: whether gathered ones stay from the forward pass to the backward pass.
    pub keeps_gathered: bool,
}

/// The format of activations and of the weights that are computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    F32,
    /// With f32 master weights.
    Bf16,
    /// The same, with linear layers that multiply in fp8.
    Fp8,
}

impl Precision {
    pub const ALL: [(&'static str, Precision); 3] =
        [("f32", Precision::F32), ("bf16", Precision::Bf16), ("fp8", Precision::Fp8)];

    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Fp8 => "fp8",
        }
    }

    /// The format in which the products of layers meet.
    pub(crate) fn products(self) -> Products {
        if self == Precision::Fp8 { Products::Fp8 } else { Products::Stored }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerConfig {
    pub learning_rate: f64,
    pub decay: Decay,
    pub warmup: u64,
    pub final_share: f64,
    pub decay_share: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    /// Of matrices; norms and biases are not decayed.
    pub weight_decay: f64,
    /// Largest norm of the gradient; 0 leaves it as it is.
    pub clip: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationConfig {
    /// Steps between evaluations; 0 for none.
    pub every: u64,
    /// A corpus of its own; without one the loss of the training data is all there is.
    pub corpus: Option<PathBuf>,
    /// Micro-batches per evaluation.
    pub batches: u64,
    /// A text to go on from; empty for no sample.
    pub prompt: String,
    pub sample_tokens: usize,
    pub temperature: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointConfig {
    /// Steps between checkpoints; 0 for the last step only.
    pub every: u64,
    /// How many are kept.
    pub keep: usize,
    /// Younger ones are kept too.
    pub keep_hours: f64,
    /// A folder or `s3://bucket/prefix`; a folder of the output where this is absent.
    pub store: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    pub rank: usize,
    pub alpha: f64,
    /// Last words of the names of the matrices that get one; none named: the usual ones of the family.
    pub targets: Vec<String>,
}

impl AdapterConfig {
    pub fn usual() -> Self {
        Self { rank: 8, alpha: 16.0, targets: Vec::new() }
    }

    /// What the product of an adapter's two matrices is multiplied by.
    pub(crate) fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct OutputConfig {
    pub folder: PathBuf,
    pub has_tensorboard: bool,
    /// Where Prometheus may ask; absent for nowhere.
    pub metrics_address: Option<SocketAddr>,
    /// Other machines may ask too.
    pub has_public_metrics: bool,
}

impl TrainConfig {
    /// The configuration of a run of this model on this corpus, everything else as by default.
    pub fn new(model: &str, corpus: &str) -> Self {
        let text = format!("[model]\nconfig = {model:?}\n[data]\ncorpora = [{corpus:?}]\n");
        Self::from_toml(Source::new("defaults", &text)).expect("the defaults are complete")
    }

    pub fn from_toml(source: Source<'_>) -> Result<Self, DocumentError> {
        Self::from_toml_with(source, &[])
    }

    /// The same with some keys replaced: lines such as `training.steps = 20`.
    pub fn from_toml_with(source: Source<'_>, changes: &[String]) -> Result<Self, DocumentError> {
        let mut layers = vec![Table::parse(source)?];
        for change in changes {
            layers.push(Table::parse(Source::new("--set", change))?);
        }
        Self::read(&layers)
    }

    /// Reads layers of which each replaces keys of those before it.
    fn read(layers: &[Table]) -> Result<Self, DocumentError> {
        let config = Self {
            model: model(&section(layers, "model")?)?,
            data: data(&section(layers, "data")?)?,
            training: training(&section(layers, "training")?)?,
            optimizer: optimizer(&section(layers, "optimizer")?)?,
            evaluation: evaluation(&section(layers, "evaluation")?)?,
            checkpoint: checkpoint(&section(layers, "checkpoint")?)?,
            adapter: optional_section(layers, "adapter")?.map(|table| adapter(&table)).transpose()?,
            output: output(&section(layers, "output")?)?,
        };
        layers.iter().try_for_each(Table::finish)?;
        Ok(config)
    }

    /// The same from any working directory: every path that exists or will be written is absolute.
    pub fn rooted(&self) -> Self {
        let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let mut rooted = self.clone();
        let config = PathBuf::from(&self.model.config);
        if config.exists() {
            rooted.model.config = whole(&config).display().to_string();
        }
        rooted.model.weights = self.model.weights.as_ref().map(whole);
        rooted.data.corpora.iter_mut().for_each(|corpus| corpus.path = whole(&corpus.path));
        rooted.evaluation.corpus = self.evaluation.corpus.as_ref().map(whole);
        rooted.output.folder = whole(&self.output.folder);
        if let Some(store) = self.checkpoint.store.as_ref().filter(|store| !store.contains("://")) {
            rooted.checkpoint.store = Some(whole(&PathBuf::from(store)).display().to_string());
        }
        rooted
    }

    pub fn learning_rate(&self) -> LearningRate {
        let optimizer = &self.optimizer;
        LearningRate {
            peak: optimizer.learning_rate,
            decay: optimizer.decay,
            warmup: optimizer.warmup,
            final_share: optimizer.final_share,
            decay_share: optimizer.decay_share,
            steps: self.training.steps,
        }
    }
}

/// A section; an empty one where it is left out.
fn section(layers: &[Table], key: &str) -> Result<Table, DocumentError> {
    match optional_section(layers, key)? {
        Some(table) => Ok(table),
        None => Ok(Table::parse(Source::new(&layers[0].place().file, ""))?.titled(format!("[{key}]"))),
    }
}

/// A section as the layers have it, one over the other.
fn optional_section(layers: &[Table], key: &str) -> Result<Option<Table>, DocumentError> {
    let mut found: Option<Table> = None;
    for layer in layers {
        if let Some(table) = layer.table(key)? {
            found = Some(match found {
                Some(under) => under.overlay(table),
                None => table,
            });
        }
    }
    Ok(found.map(|table| table.titled(format!("[{key}]"))))
}

fn finished<T>(table: &Table, read: T) -> Result<T, DocumentError> {
    table.finish()?;
    Ok(read)
}

fn positive(table: &Table, key: &str, default: u64) -> Result<u64, DocumentError> {
    let value = table.or(key, default)?;
    if value == 0 { Err(table.bad_value(key, "it must be at least 1")) } else { Ok(value) }
}

/// Sequences or batches: more than anyone has, and few enough to be multiplied by a length.
fn counted(table: &Table, key: &str, default: u64) -> Result<u64, DocumentError> {
    const MOST: u64 = 1 << 30;
    let value = positive(table, key, default)?;
    if value > MOST { Err(table.bad_value(key, format!("it must be at most {MOST}"))) } else { Ok(value) }
}

/// A number from 0 up to `most`.
fn bounded(table: &Table, key: &str, default: f64, most: f64) -> Result<f64, DocumentError> {
    let value = table.or(key, default)?;
    if (0.0..=most).contains(&value) {
        return Ok(value);
    }
    Err(table.bad_value(key, format!("it must be between 0 and {most}")))
}

fn choice<T: Copy>(table: &Table, key: &str, choices: &[(&str, T)], default: T) -> Result<T, DocumentError> {
    if table.has(key) {
        return table.choice(key, choices);
    }
    table.allow(key);
    Ok(default)
}

fn path(table: &Table, key: &str) -> Result<Option<PathBuf>, DocumentError> {
    Ok(table.optional::<String>(key)?.map(PathBuf::from))
}

fn model(table: &Table) -> Result<ModelConfig, DocumentError> {
    let read = ModelConfig {
        config: table.required("config")?,
        weights: path(table, "weights")?,
        seed: table.or("seed", 1)?,
    };
    finished(table, read)
}

const PACKINGS: [(&str, Packing); 2] = [("windows", Packing::Windows), ("whole", Packing::Whole)];
/// `selective`, the earlier word for `cheap`, is still read.
const RECOMPUTES: [(&str, Recompute); 4] = [
    ("none", Recompute::None),
    ("cheap", Recompute::Cheap),
    ("full", Recompute::Full),
    ("selective", Recompute::Cheap),
];

fn data(table: &Table) -> Result<DataConfig, DocumentError> {
    let paths: Vec<String> = table.required("corpora")?;
    let weights: Vec<f64> = table.or("weights", vec![1.0; paths.len()])?;
    if paths.is_empty() {
        return Err(table.bad_value("corpora", "it names none"));
    }
    if weights.len() != paths.len() || weights.iter().any(|weight| !weight.is_finite() || *weight <= 0.0) {
        return Err(table.bad_value("weights", "there must be one weight above 0 for each corpus"));
    }
    let corpora = paths.into_iter().zip(weights);
    let read = DataConfig {
        corpora: corpora.map(|(path, weight)| CorpusConfig { path: path.into(), weight }).collect(),
        sequence: positive(table, "sequence", 512)? as usize,
        packing: choice(table, "packing", &PACKINGS, Packing::Windows)?,
        has_document_mask: table.or("document_mask", true)?,
        seed: table.or("seed", 1)?,
    };
    finished(table, read)
}

fn training(table: &Table) -> Result<TrainingConfig, DocumentError> {
    let read = TrainingConfig {
        steps: positive(table, "steps", 1000)?,
        batch: counted(table, "batch", 16)?,
        micro_batch: counted(table, "micro_batch", 4)?,
        precision: choice(table, "precision", &Precision::ALL, Precision::F32)?,
        recompute: choice(table, "recompute", &RECOMPUTES, Recompute::None)?,
        device: device(table)?,
        threads: threads(table)?,
        layout: layout(table)?,
        copy_every: table.or("copy_every", 1)?,
        wait_seconds: table.or("wait_seconds", 300)?,
        keeps_gathered: table.or("keep_gathered", false)?,
    };
    if !read.batch.is_multiple_of(read.micro_batch) {
        return Err(
            table.bad_value("batch", format!("it must be a multiple of micro_batch, {}", read.micro_batch))
        );
    }
    finished(table, read)
}

/// Zero means as many as there are processors.
/// Only how ranks share the work: what is computed at once, and how, are keys of their own.
fn layout(table: &Table) -> Result<Option<Layout>, DocumentError> {
    let Some(text) = table.optional::<String>("layout")? else { return Ok(None) };
    let layout: Layout = text.parse().map_err(|error| table.bad_value("layout", format!("{error}")))?;
    let plain = Layout::default();
    let others = [
        (layout.micro_batch != plain.micro_batch, "micro_batch"),
        (layout.recompute != plain.recompute, "recompute"),
        (layout.precision != plain.precision, "precision"),
    ];
    match others.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, key)) => Err(table.bad_value("layout", format!("give `{key}` as a key of its own"))),
        None => Ok(Some(layout)),
    }
}

fn device(table: &Table) -> Result<DeviceChoice, DocumentError> {
    let Some(text) = table.optional::<String>("device")? else { return Ok(DeviceChoice::Auto) };
    text.parse().map_err(|error: NoSuchChoice| table.bad_value("device", error.to_string()))
}

fn threads(table: &Table) -> Result<usize, DocumentError> {
    const MOST: usize = 1024;
    match table.or("threads", 0_u64)? as usize {
        threads if threads <= MOST => Ok(threads),
        _ => Err(table.bad_value("threads", format!("it must be at most {MOST}"))),
    }
}

fn optimizer(table: &Table) -> Result<OptimizerConfig, DocumentError> {
    let read = OptimizerConfig {
        learning_rate: bounded(table, "learning_rate", 3e-4, 100.0)?,
        decay: choice(table, "decay", &Decay::ALL, Decay::Cosine)?,
        warmup: table.or("warmup", 100)?,
        final_share: bounded(table, "final_share", 0.1, 1.0)?,
        decay_share: bounded(table, "decay_share", 0.2, 1.0)?,
        beta1: bounded(table, "beta1", 0.9, 0.999_999)?,
        beta2: bounded(table, "beta2", 0.95, 0.999_999)?,
        epsilon: bounded(table, "epsilon", 1e-8, 1.0)?,
        weight_decay: bounded(table, "weight_decay", 0.1, 100.0)?,
        clip: bounded(table, "clip", 1.0, 1e9)?,
    };
    finished(table, read)
}

fn evaluation(table: &Table) -> Result<EvaluationConfig, DocumentError> {
    let read = EvaluationConfig {
        every: table.or("every", 100)?,
        corpus: path(table, "corpus")?,
        batches: counted(table, "batches", 8)?,
        prompt: table.or("prompt", String::new())?,
        sample_tokens: positive(table, "sample_tokens", 48)? as usize,
        temperature: bounded(table, "temperature", 0.8, 10.0)?,
    };
    finished(table, read)
}

fn checkpoint(table: &Table) -> Result<CheckpointConfig, DocumentError> {
    let read = CheckpointConfig {
        every: table.or("every", 100)?,
        keep: positive(table, "keep", 2)? as usize,
        keep_hours: bounded(table, "keep_hours", 0.0, 1e6)?,
        store: table.optional("store")?,
    };
    finished(table, read)
}

fn adapter(table: &Table) -> Result<AdapterConfig, DocumentError> {
    let usual = AdapterConfig::usual();
    let rank = positive(table, "rank", usual.rank as u64)?;
    let read = AdapterConfig {
        rank: rank as usize,
        alpha: bounded(table, "alpha", 2.0 * rank as f64, 1e6)?,
        targets: table.or("targets", usual.targets)?,
    };
    finished(table, read)
}

const NO_ADDRESS: &str = "it must be an address and a port, such as 127.0.0.1:9400";

fn output(table: &Table) -> Result<OutputConfig, DocumentError> {
    let address: Option<String> = table.optional("metrics_address")?;
    let parse = |text: &String| text.parse().map_err(|_| table.bad_value("metrics_address", NO_ADDRESS));
    let read = OutputConfig {
        folder: path(table, "folder")?.unwrap_or_else(|| "run".into()),
        has_tensorboard: table.or("tensorboard", true)?,
        metrics_address: address.as_ref().map(parse).transpose()?,
        has_public_metrics: table.or("metrics_public", false)?,
    };
    finished(table, read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_diag::{Diagnostic, render_text};

    #[test]
    fn what_is_written_reads_back_the_same() {
        let mut config = TrainConfig::new("config.json", "corpus");
        assert_eq!(TrainConfig::from_toml(Source::new("x", &config.to_toml())).unwrap(), config);
        config.adapter = Some(AdapterConfig { rank: 4, alpha: 8.0, targets: vec!["q_proj".into()] });
        config.model.weights = Some("weights \"a\"".into());
        config.evaluation.corpus = Some("held".into());
        config.evaluation.prompt = "Anna has\na \"ball\"".into();
        config.output.metrics_address = Some("127.0.0.1:9400".parse().unwrap());
        assert_eq!(TrainConfig::from_toml(Source::new("x", &config.to_toml())).unwrap(), config);
    }

    #[test]
    fn changes_replace_single_keys() {
        let mut config = TrainConfig::new("config.json", "corpus");
        config.training.batch = 8;
        let text = config.to_toml();
        let changes = ["training.steps = 7".to_owned(), "optimizer.decay = \"linear\"".to_owned()];
        let config = TrainConfig::from_toml_with(Source::new("x", &text), &changes).unwrap();
        assert_eq!((config.training.steps, config.optimizer.decay), (7, Decay::Linear));
        assert_eq!(config.training.batch, 8, "other keys of the section stay");
        let stray = ["trainin.steps = 7".to_owned()];
        assert!(TrainConfig::from_toml_with(Source::new("x", &text), &stray).is_err());
    }

    #[test]
    fn slips_are_shown_where_they_are() {
        for (line, said) in [
            ("[training]\nstep = 5", "did you mean `steps`?"),
            ("[training]\nbatch = 5", "it must be a multiple of micro_batch, 4"),
            ("[optimizer]\nbeta1 = 1.0", "between 0 and 0.999999"),
            ("[optimizer]\ndecay = \"cosin\"", "cosine"),
            ("[data.x]\n", "x"),
            ("[adapter]\nrank = 0", "at least 1"),
            ("[training]\nthreads = 100000", "it must be at most 1024"),
            ("[output]\nmetrics_address = \"9400\"", "an address and a port"),
        ] {
            let text = format!("[model]\nconfig = \"c\"\n[data]\ncorpora = [\"c\"]\n{line}\n");
            let error = TrainConfig::from_toml(Source::new("config.toml", &text)).unwrap_err();
            let rendered = render_text(&error);
            assert!(rendered.contains(said), "{line}: {rendered}");
            assert!(error.place().is_some(), "{line}");
        }
    }
}
