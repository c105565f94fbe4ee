//! Runs learn, adapt, and say what is wrong.

use std::fs;
use std::path::PathBuf;

use bedplate_data::{CorpusOptions, CorpusWriter, Packing, TrainingOptions, train_tokenizer};
use bedplate_diag::{Class, Diagnostic};
use bedplate_kernels::Device;
use bedplate_network::{Network, SafetensorsFile, Weights, load};
use bedplate_report::Phase;
use bedplate_train::{AdapterConfig, Resume, RunOptions, TrainConfig, TrainError, read_architecture, run};
use bedplate_units::Bytes;

use crate::place::{Notes, Place, code, config_json, go};

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
    let place = Place::new("overflow");
    let mut config = place.config("broken");
    config.model.weights = Some(spoilt_weights(&place, f32::MAX));
    config.evaluation.every = 0;
    let error = go(&config, Resume::No).0.unwrap_err();
    let TrainError::NotFinite { step, block, sample, .. } = &error else { panic!("{error}") };
    assert_eq!((*step, block.as_deref()), (0, Some("layer 1")));
    let sample = sample.filter(|sample| *sample < config.training.batch).unwrap();
    assert!(error.to_string().contains(&format!("it began in layer 1, with sample {sample}")), "{error}");
}

#[test]
fn given_weights_that_are_no_numbers_are_refused_by_name() {
    let place = Place::new("nan");
    for spoilt in [f32::NAN, f32::NEG_INFINITY] {
        let mut config = place.config("broken");
        config.model.weights = Some(spoilt_weights(&place, spoilt));
        let error = go(&config, Resume::No).0.unwrap_err();
        assert_eq!(error.page().code, "network/weights-not-finite");
        assert!(
            error.to_string().contains("number 0 of tensor `model.layers.1.mlp.down_proj.weight`"),
            "{error}"
        );
    }
}

/// The weights of a finished run with one tensor replaced.
fn spoilt_weights(place: &Place, spoilt: f32) -> PathBuf {
    let base = place.config(&format!("base {spoilt}"));
    let weights = go(&base, Resume::No).0.unwrap().weights.unwrap();
    let file = weights.join("model.safetensors");
    let stored = SafetensorsFile::open(&file).unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = stored
        .tensors()
        .iter()
        .map(|(name, tensor)| {
            let mut values = stored.read(name).unwrap().unwrap();
            if name == "model.layers.1.mlp.down_proj.weight" {
                values.fill(spoilt);
            }
            (name.clone(), tensor.shape.clone(), values)
        })
        .collect();
    bedplate_network::write_tensors(&file, bedplate_network::TensorFormat::F32, stored.metadata(), &tensors)
        .unwrap();
    weights
}

#[test]
fn mistakes_are_told_before_anything_is_computed() {
    let place = Place::new("mistakes");
    let config = place.config("out");
    assert_eq!(code(go(&config, Resume::Newest).0), "train/nothing-to-resume");
    go(&config, Resume::No).0.unwrap();
    assert_eq!(code(go(&config, Resume::No).0), "train/folder-in-use");

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
    for rank in [17, usize::MAX] {
        // Keys have two heads of eight.
        other.adapter = Some(AdapterConfig { rank, alpha: 8.0, targets: vec!["k_proj".into()] });
        assert_eq!(code(go(&other, Resume::No).0), "train/rank-too-large");
    }
    assert!(!other.output.folder.exists(), "nothing is left behind");

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
fn a_run_that_does_not_fit_is_refused_before_anything_is_written() {
    let place = Place::new("memory");
    let config = place.config("out");
    let options = RunOptions { free_memory: Some(Bytes::new(1e6)), ..RunOptions::default() };
    let error = run(&config, &options, &mut Notes::default()).unwrap_err();
    assert_eq!(error.page().code, "train/too-large");
    assert!(!config.output.folder.exists());
}

#[test]
fn what_cannot_be_written_there_is_not_called_transient() {
    let place = Place::new("unusable");
    fs::write(place.path("file"), "in the way").unwrap();
    for folder in ["file", "file/below"] {
        let error = go(&place.config(folder), Resume::No).0.unwrap_err();
        assert_eq!(error.page().code, "train/unusable-output", "{error}");
        assert_eq!(error.page().class, Class::User);
    }
}

#[test]
fn a_run_says_what_it_does() {
    let place = Place::new("phases");
    let mut config = place.config("out");
    config.training.steps = 10;
    let (_, notes) = go(&config, Resume::No);
    let evaluation = [Phase::Evaluating, Phase::Training];
    let expected = [evaluation, evaluation, [Phase::Saving, Phase::Training]].concat();
    assert_eq!(notes.phases, expected);
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
