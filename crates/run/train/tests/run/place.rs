//! A folder with corpora and a small model, and an observer that takes notes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_checkpoint::Checkpoint;
use bedplate_data::{CorpusKind, CorpusOptions, CorpusWriter, TrainingOptions, generate, train_tokenizer};
use bedplate_diag::Diagnostic;
use bedplate_record::{EvaluationRecord, StepRecord};
use bedplate_report::Phase;
use bedplate_train::{
    Observer, Published, Resume, RunOptions, RunSummary, Setup, TrainConfig, TrainError, run,
};

/// A folder that goes away with the test.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bedplate-train-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let place = Self(folder);
        place.write_corpus("corpus", 0..150);
        place.write_corpus("held", 1000..1020);
        fs::write(place.path("config.json"), config_json(512)).unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write_corpus(&self, name: &str, documents: std::ops::Range<u64>) {
        let sample: Vec<String> = (0..150).map(|number| generate(CorpusKind::Stories, 1, number)).collect();
        let options = TrainingOptions { vocabulary: 512, ..TrainingOptions::default() };
        let tokenizer = train_tokenizer(sample.iter().map(String::as_str), &options).unwrap();
        let options = CorpusOptions::text(&tokenizer);
        let mut writer = CorpusWriter::create(&self.path(name), &tokenizer, options).unwrap();
        for number in documents {
            let text = generate(CorpusKind::Stories, 1, number);
            writer.push_text(&tokenizer.encode(&text).unwrap(), text.len() as u64).unwrap();
        }
        writer.finish().unwrap();
    }

    pub(crate) fn config(&self, output: &str) -> TrainConfig {
        let text = |name: &str| self.path(name).to_string_lossy().into_owned();
        let mut config = TrainConfig::new(&text("config.json"), &text("corpus"));
        config.data.sequence = 48;
        config.training.steps = 30;
        config.training.batch = 4;
        config.training.micro_batch = 2;
        config.training.threads = 1;
        config.optimizer.learning_rate = 1e-2;
        config.optimizer.warmup = 5;
        config.evaluation.every = 10;
        config.evaluation.batches = 2;
        config.evaluation.corpus = Some(self.path("held"));
        config.checkpoint.every = 10;
        config.output.folder = self.path(output);
        config
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn config_json(vocab: usize) -> String {
    format!(
        r#"{{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": {vocab},
            "max_position_embeddings": 64, "tie_word_embeddings": false}}"#
    )
}

/// Remembers what it is told, and may end the run.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) steps: Vec<StepRecord>,
    pub(crate) evaluations: Vec<EvaluationRecord>,
    pub(crate) checkpoints: Vec<Published>,
    pub(crate) phases: Vec<Phase>,
    pub(crate) remarks: Vec<String>,
    pub(crate) abandoned: Option<PathBuf>,
    pub(crate) stop: Option<(u64, &'static AtomicBool)>,
}

impl Observer for Notes {
    fn began(&mut self, setup: &Setup) -> Result<(), TrainError> {
        (self.remarks, self.abandoned) = (setup.remarks.clone(), setup.abandoned.clone());
        Ok(())
    }

    fn turned_to(&mut self, phase: Phase) {
        self.phases.push(phase);
    }

    fn step(&mut self, record: &StepRecord) -> Result<(), TrainError> {
        if let Some((step, stop)) = self.stop
            && step == record.step
        {
            stop.store(true, Ordering::Relaxed);
        }
        self.steps.push(record.clone());
        Ok(())
    }

    fn evaluated(&mut self, record: &EvaluationRecord) -> Result<(), TrainError> {
        self.evaluations.push(record.clone());
        Ok(())
    }

    fn published(&mut self, checkpoint: &Published) -> Result<(), TrainError> {
        self.checkpoints.push(checkpoint.clone());
        Ok(())
    }
}

pub(crate) fn go(config: &TrainConfig, resume: Resume) -> (Result<RunSummary, TrainError>, Notes) {
    let mut notes = Notes::default();
    let summary = run(config, &RunOptions { resume, ..RunOptions::default() }, &mut notes);
    (summary, notes)
}

pub(crate) fn code(result: Result<RunSummary, TrainError>) -> &'static str {
    result.unwrap_err().page().code
}

/// Every number of a checkpoint's state, by tensor, as bits.
pub(crate) fn state(folder: &Path, step: u64) -> Vec<(String, Vec<u32>)> {
    state_in(&folder.join(format!("checkpoints/step-{step:08}")))
}

pub(crate) fn state_in(folder: &Path) -> Vec<(String, Vec<u32>)> {
    let checkpoint = Checkpoint::open(&folder.to_string_lossy()).unwrap();
    let bits = |name: &String| checkpoint.read(name).unwrap().into_iter().map(f32::to_bits).collect();
    checkpoint.manifest().tensors().keys().map(|name| (name.clone(), bits(name))).collect()
}
