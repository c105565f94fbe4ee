//! Adapters against PEFT's: same beginning, same data, same losses and the same adapters in the end.
//!
//! Made by the network crate's `tests/reference/make`.

use std::fs;
use std::path::PathBuf;

use bedplate_data::Batch;
use bedplate_diag::Source;
use bedplate_network::Architecture;
use serde_json::Value;

use super::*;
use crate::trainer::Trainer;
use crate::{Decay, TrainConfig};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../network/tests/reference").join(name)
}

fn network(device: &Device, name: &str, sequence: usize) -> Network {
    let text = fs::read_to_string(folder(name).join("config.json")).unwrap();
    Network::new(device, Architecture::from_config(Source::new("config.json", &text)).unwrap(), sequence)
        .unwrap()
}

fn adapter(targets: &[&str]) -> AdapterConfig {
    AdapterConfig {
        rank: 2,
        alpha: 6.0,
        targets: targets.iter().map(|target| (*target).to_owned()).collect(),
    }
}

fn config(curve: &Value) -> TrainConfig {
    let setting = |key: &str| curve["settings"][key].as_f64().unwrap();
    let mut config = TrainConfig::new("config.json", "corpus");
    config.optimizer.learning_rate = setting("learning_rate");
    config.optimizer.decay = Decay::Constant;
    config.optimizer.warmup = setting("warmup") as u64;
    config.optimizer.beta2 = setting("beta2");
    config.optimizer.weight_decay = setting("weight_decay");
    config.optimizer.clip = setting("clip");
    config.training.steps = 100;
    config.training.batch = 2;
    config.training.micro_batch = 2;
    config
}

fn batch(sequences: &[Vec<u32>]) -> Batch {
    let length = sequences[0].len() - 1;
    Batch {
        tokens: sequences.iter().flat_map(|sequence| sequence[..length].to_vec()).collect(),
        targets: sequences.iter().flat_map(|sequence| sequence[1..].to_vec()).collect(),
        first_keys: vec![0; sequences.len() * length],
        positions: sequences.iter().flat_map(|_| 0..length as u32).collect(),
        rows: sequences.len(),
        counted: sequences.len() * length,
        ..Batch::default()
    }
}

fn adapters(trainer: &mut Trainer<f32>) -> &mut Adapters<f32> {
    trainer.adapters.as_mut().expect("the configuration asks for adapters")
}

fn check(name: &str) {
    let own = folder(name).join("adapter");
    let curve: Value = serde_json::from_str(&fs::read_to_string(own.join("curve.json")).unwrap()).unwrap();
    let steps: Vec<Vec<Vec<u32>>> = serde_json::from_value(curve["tokens"].clone()).unwrap();
    let losses: Vec<f64> = serde_json::from_value(curve["losses"].clone()).unwrap();
    let targets: Vec<String> = serde_json::from_value(curve["targets"].clone()).unwrap();
    let mut config = config(&curve);
    config.data.sequence = steps[0][0].len() - 1;
    config.model.weights = Some(folder(name));
    config.adapter = Some(AdapterConfig { rank: 2, alpha: 6.0, targets });
    let device = Device::cpu(2);
    let network = network(&device, name, config.data.sequence);
    let mut trainer = Trainer::<f32>::new(network, device, config).unwrap();
    let device = Device::cpu(1);
    adapters(&mut trainer).load(&device, &own).unwrap();
    for (step, (sequences, expected)) in steps.iter().zip(&losses).enumerate() {
        let loss = trainer.step(&[batch(sequences)]).unwrap().loss;
        assert!((loss - expected).abs() < 1e-4, "{name}, step {step}: loss {loss}, PEFT's {expected}");
    }
    let saved = std::env::temp_dir().join(format!("bedplate-adapter-{}-{name}", std::process::id()));
    adapters(&mut trainer).save(&device, &saved).unwrap();
    let [ours, theirs] = [saved.join(ADAPTER_FILE), own.join("trained.safetensors")]
        .map(|path| SafetensorsFile::open(&path).unwrap());
    let names = |file: &SafetensorsFile| file.tensors().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&theirs));
    for tensor in names(&ours) {
        assert_eq!(ours.tensors()[&tensor].shape, theirs.tensors()[&tensor].shape);
        let [found, expected] = [&ours, &theirs].map(|file| file.read(&tensor).unwrap().unwrap());
        let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-3, "{tensor} is {apart} apart");
    }
    fs::remove_dir_all(saved).unwrap();
}

#[test]
fn adapters_on_embedding_and_head_learn_what_they_learn_in_peft() {
    check("llama");
}

#[test]
fn adapters_on_joint_queries_and_positions_learn_what_they_learn_in_peft() {
    check("gpt2");
}

#[test]
fn without_targets_the_usual_ones_of_the_family_get_adapters() {
    let device = Device::cpu(1);
    for (name, expected) in
        [("gpt2", vec!["c_attn"]), ("qwen3", vec!["q_proj", "k_proj", "v_proj", "o_proj"])]
    {
        let network = network(&device, name, 8);
        let found = targets(&network, &adapter(&[]));
        assert_eq!(found, expected);
        assert!(entries(&network, &adapter(&[]), &|_| true).is_ok());
    }
}

#[test]
fn a_matrix_that_is_both_embedding_and_head_is_refused() {
    let device = Device::cpu(1);
    for (name, target) in
        [("gpt2", "wte"), ("gpt2", "lm_head"), ("qwen3", "embed_tokens"), ("qwen3", "lm_head")]
    {
        let network = network(&device, name, 8);
        let found = entries(&network, &adapter(&[target]), &|_| true).err();
        assert!(matches!(found, Some(TrainError::TiedTarget { .. })), "{name} {target}: {found:?}");
    }
    let network = network(&device, "llama", 8);
    let found = entries(&network, &adapter(&["wpe"]), &|_| true).err();
    assert!(matches!(found, Some(TrainError::NoSuchTarget { .. })), "{found:?}");
}
