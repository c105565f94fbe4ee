//! Whole runs on a corpus of our own making: they learn, resume to the bit, adapt, and say what is wrong.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_data::{CorpusOptions, CorpusWriter, Kind, Packing, TrainingOptions, generate, train_tokenizer};
use bedplate_diag::Diagnostic;
use bedplate_kernels::Device;
use bedplate_network::{Network, SafetensorsFile, Weights, load};
use bedplate_record::{EvaluationRecord, StepRecord};
use bedplate_train::{
    AdapterConfig, Observer, Precision, Published, Resume, RunOptions, Summary, TrainConfig, TrainError,
    read_architecture, run,
};

/// A folder that goes away with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bedplate-train-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let place = Self(folder);
        place.write_corpus("corpus", 0..150);
        place.write_corpus("held", 1000..1020);
        fs::write(place.path("config.json"), config_json(512)).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write_corpus(&self, name: &str, documents: std::ops::Range<u64>) {
        let sample: Vec<String> = (0..150).map(|number| generate(Kind::Stories, 1, number)).collect();
        let options = TrainingOptions { vocabulary: 512, ..TrainingOptions::default() };
        let tokenizer = train_tokenizer(sample.iter().map(String::as_str), &options).unwrap();
        let options = CorpusOptions::text(&tokenizer);
        let mut writer = CorpusWriter::create(&self.path(name), &tokenizer, options).unwrap();
        for number in documents {
            let text = generate(Kind::Stories, 1, number);
            writer.push_text(&tokenizer.encode(&text).unwrap(), text.len() as u64).unwrap();
        }
        writer.finish().unwrap();
    }

    fn config(&self, output: &str) -> TrainConfig {
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

fn config_json(vocab: usize) -> String {
    format!(
        r#"{{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": {vocab},
            "max_position_embeddings": 64, "tie_word_embeddings": false}}"#
    )
}

/// Remembers what it is told, and may end the run.
#[derive(Default)]
struct Notes {
    steps: Vec<StepRecord>,
    evaluations: Vec<EvaluationRecord>,
    checkpoints: Vec<Published>,
    stop: Option<(u64, &'static AtomicBool)>,
}

impl Observer for Notes {
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

fn go(config: &TrainConfig, resume: Resume) -> (Result<Summary, TrainError>, Notes) {
    let mut notes = Notes::default();
    let summary = run(config, &RunOptions { resume, ..RunOptions::default() }, &mut notes);
    (summary, notes)
}

fn code(result: Result<Summary, TrainError>) -> &'static str {
    result.unwrap_err().page().code
}

fn state(folder: &Path, step: u64) -> Vec<u8> {
    fs::read(folder.join(format!("checkpoints/step-{step:08}/state.safetensors"))).unwrap()
}

#[test]
fn a_run_learns_and_leaves_weights_that_load() {
    let place = Place::new("learns");
    let mut config = place.config("out");
    config.evaluation.prompt = "The".into();
    let (summary, notes) = go(&config, Resume::No);
    let summary = summary.unwrap();
    let losses: Vec<f64> = notes.evaluations.iter().map(|record| record.loss.unwrap()).collect();
    assert_eq!(notes.evaluations.iter().map(|record| record.step).collect::<Vec<_>>(), [0, 10, 20, 30]);
    assert!(losses[3] < 0.7 * losses[0], "{losses:?}");
    assert!(notes.evaluations.iter().all(|record| record.sample.as_ref().unwrap().starts_with("The")));
    assert_eq!(notes.steps.len(), 30);
    let last = notes.steps.last().unwrap();
    assert!((last.breakdown.total().get() / last.seconds - 1.0).abs() < 0.05, "parts add up to the step");
    assert_eq!(fs::read_dir(config.output.folder.join("checkpoints")).unwrap().count(), 2, "two are kept");

    let folder = summary.weights.unwrap();
    let device = Device::cpu(1);
    let network = Network::new(&device, read_architecture(&folder.to_string_lossy()).unwrap(), 48).unwrap();
    let mut weights = Weights::<f32>::zeros(&device, &network);
    assert!(load(&network, &device, &folder, &mut weights).unwrap().unused.is_empty());
    assert!(folder.join("tokenizer.json").exists());
}

#[test]
fn a_run_that_was_stopped_goes_on_to_the_same_bits() {
    for precision in [Precision::F32, Precision::Bf16] {
        let place = Place::new(&format!("resume-{}", precision.name()));
        let [mut whole, mut broken] = ["whole", "broken"].map(|name| place.config(name));
        whole.training.precision = precision;
        broken.training.precision = precision;
        let (_, told) = go(&whole, Resume::No);
        static STOP: AtomicBool = AtomicBool::new(false);
        STOP.store(false, Ordering::Relaxed);
        let mut notes = Notes { stop: Some((17, &STOP)), ..Notes::default() };
        let options = RunOptions { stop: Some(&STOP), ..RunOptions::default() };
        let summary = run(&broken, &options, &mut notes).unwrap();
        assert!(summary.was_stopped && summary.steps == 17 && summary.weights.is_none());
        let (summary, rest) = go(&broken, Resume::Newest);
        assert_eq!(summary.unwrap().steps, 30);
        let losses = |steps: &[StepRecord]| steps.iter().map(|record| record.loss).collect::<Vec<_>>();
        assert_eq!(losses(&told.steps[17..]), losses(&rest.steps));
        assert!(state(&whole.output.folder, 30) == state(&broken.output.folder, 30));
    }
}

#[test]
fn adapters_learn_while_the_weights_stay_and_merge_into_them() {
    let place = Place::new("adapter");
    let base = place.config("base");
    let weights = go(&base, Resume::No).0.unwrap().weights.unwrap();
    let mut config = place.config("tuned");
    config.model.weights = Some(weights.clone());
    let targets = ["q_proj", "down_proj"].map(str::to_owned).to_vec();
    config.adapter = Some(AdapterConfig { rank: 4, alpha: 8.0, targets });
    config.optimizer.weight_decay = 0.0;
    let (summary, notes) = go(&config, Resume::No);
    let tuned = SafetensorsFile::open(&summary.unwrap().weights.unwrap().join("model.safetensors")).unwrap();
    let first = notes.evaluations[0].loss.unwrap();
    assert!(notes.evaluations.last().unwrap().loss.unwrap() < first - 0.01, "adapters learn");

    let before = SafetensorsFile::open(&weights.join("model.safetensors")).unwrap();
    let adapters =
        SafetensorsFile::open(&config.output.folder.join("adapter/adapter_model.safetensors")).unwrap();
    let read = |file: &SafetensorsFile, name: &str| file.read(name).unwrap().unwrap();
    for (name, stored) in before.tensors() {
        let (old, new) = (read(&before, name), read(&tuned, name));
        let stem = format!("base_model.model.{}", name.trim_end_matches(".weight"));
        if !adapters.tensors().contains_key(&format!("{stem}.lora_A.weight")) {
            assert_eq!(old, new, "{name} is frozen");
            continue;
        }
        let (a, b) = (
            read(&adapters, &format!("{stem}.lora_A.weight")),
            read(&adapters, &format!("{stem}.lora_B.weight")),
        );
        let [outputs, inputs] = stored.shape[..] else { panic!("a matrix") };
        for (output, input) in [(0, 0), (outputs - 1, inputs - 1), (outputs / 2, 1)] {
            let update: f32 = (0..4).map(|rank| b[output * 4 + rank] * a[rank * inputs + input]).sum();
            let place = output * inputs + input;
            assert!((new[place] - old[place] - 2.0 * update).abs() < 1e-5, "{name}");
        }
    }
    assert_eq!(adapters.tensors().len(), 2 * 2 * 2);
    let (again, _) = go(&TrainConfig { output: config.output.clone(), ..config.clone() }, Resume::Newest);
    assert_eq!(again.unwrap().steps, 30, "a finished run has nothing left to do");
}

#[test]
fn a_number_that_is_not_finite_is_traced_to_its_layer() {
    let place = Place::new("nan");
    let weights = go(&place.config("base"), Resume::No).0.unwrap().weights.unwrap();
    let file = weights.join("model.safetensors");
    let stored = SafetensorsFile::open(&file).unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = stored
        .tensors()
        .iter()
        .map(|(name, tensor)| {
            let mut values = stored.read(name).unwrap().unwrap();
            if name == "model.layers.1.mlp.down_proj.weight" {
                values[5] = f32::NAN;
            }
            (name.clone(), tensor.shape.clone(), values)
        })
        .collect();
    bedplate_network::write_tensors(&file, bedplate_network::Format::F32, stored.metadata(), &tensors)
        .unwrap();
    let mut config = place.config("broken");
    config.model.weights = Some(weights);
    config.evaluation.every = 0;
    let error = go(&config, Resume::No).0.unwrap_err();
    let TrainError::NotFinite { step, block, sample, .. } = &error else { panic!("{error}") };
    assert_eq!((*step, block.as_deref(), *sample), (0, Some("layer 1"), Some(0)));
    assert!(error.to_string().contains("it began in layer 1, with sample 0"), "{error}");
}

#[test]
fn mistakes_are_told_before_anything_is_computed() {
    let place = Place::new("mistakes");
    let config = place.config("out");
    assert_eq!(code(go(&config, Resume::Newest).0), "train/nothing-to-resume");
    go(&config, Resume::No).0.unwrap();
    assert_eq!(code(go(&config, Resume::No).0), "train/folder-in-use");
    let mut other = config.clone();
    other.data.seed = 2;
    assert_eq!(code(go(&other, Resume::Newest).0), "train/other-checkpoint");

    let mut other = place.config("other");
    fs::write(place.path("small.json"), config_json(300)).unwrap();
    other.model.config = place.path("small.json").to_string_lossy().into_owned();
    let error = go(&other, Resume::No).0.unwrap_err();
    assert!(error.to_string().contains("300"), "the tokenizer does not fit: {error}");

    let mut other = place.config("other");
    other.model.config = "no-such-model".into();
    assert_eq!(code(go(&other, Resume::No).0), "train/cannot-read-model");

    let mut other = place.config("other");
    other.adapter = Some(AdapterConfig { rank: 4, alpha: 8.0, targets: vec!["query".into()] });
    assert_eq!(code(go(&other, Resume::No).0), "train/no-such-target");

    let mut other = place.config("other");
    other.model.weights = Some(place.path("corpus"));
    assert_eq!(code(go(&other, Resume::No).0), "network/cannot-read-weights");
}

#[test]
fn whole_documents_are_trained_on_without_seeing_each_other() {
    let place = Place::new("whole");
    let mut config = place.config("out");
    config.data.packing = Packing::Whole;
    config.data.sequence = 64;
    let (summary, notes) = go(&config, Resume::No);
    summary.unwrap();
    assert!(notes.evaluations.last().unwrap().loss < notes.evaluations[0].loss);
}

#[test]
fn an_evaluation_corpus_of_another_tokenizer_is_refused() {
    let place = Place::new("other-tokenizer");
    let tokenizer =
        train_tokenizer([], &TrainingOptions { vocabulary: 300, ..TrainingOptions::default() }).unwrap();
    let options = CorpusOptions::text(&tokenizer);
    let mut writer = CorpusWriter::create(&place.path("foreign"), &tokenizer, options).unwrap();
    writer.push_text(&[65; 500], 500).unwrap();
    writer.finish().unwrap();
    let mut config = place.config("out");
    config.evaluation.corpus = Some(place.path("foreign"));
    assert_eq!(code(go(&config, Resume::No).0), "data/mixed-tokenizers");
}
