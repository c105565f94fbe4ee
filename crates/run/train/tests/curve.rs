//! Fifty steps of training against PyTorch's AdamW: same weights, same data, same loss.
//!
//! The curves were made by the network crate's `tests/reference/make`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::fs;
use std::path::PathBuf;

use bedplate_data::Batch;
use bedplate_diag::Source;
use bedplate_kernels::{Bf16, Device};
use bedplate_network::{Architecture, Network, Recompute};
use bedplate_train::{AdapterConfig, Decay, Precision, TrainConfig, Trained, Trainer};
use serde_json::Value;

struct Curve {
    folder: PathBuf,
    steps: Vec<Vec<Vec<u32>>>,
    losses: Vec<f64>,
    norms: Vec<f64>,
    settings: Value,
}

impl Curve {
    fn read(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../network/tests/reference").join(name);
        let text = fs::read_to_string(folder.join("curve.json")).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        Self {
            steps: serde_json::from_value(value["tokens"].clone()).unwrap(),
            losses: serde_json::from_value(value["losses"].clone()).unwrap(),
            norms: serde_json::from_value(value["norms"].clone()).unwrap(),
            settings: value["settings"].clone(),
            folder,
        }
    }

    fn config(&self) -> TrainConfig {
        let setting = |key: &str| self.settings[key].as_f64().unwrap();
        let mut config = TrainConfig::new("config.json", "corpus");
        config.model.weights = Some(self.folder.clone());
        config.data.sequence = self.steps[0][0].len() - 1;
        config.training.steps = self.steps.len() as u64;
        config.optimizer.learning_rate = setting("learning_rate");
        config.optimizer.decay = Decay::Constant;
        config.optimizer.warmup = setting("warmup") as u64;
        config.optimizer.beta1 = setting("beta1");
        config.optimizer.beta2 = setting("beta2");
        config.optimizer.epsilon = setting("epsilon");
        config.optimizer.weight_decay = setting("weight_decay");
        config.optimizer.clip = setting("clip");
        config
    }

    fn trainer<E: Trained>(&self, config: TrainConfig, device: Device) -> Trainer<E> {
        let text = fs::read_to_string(self.folder.join("config.json")).unwrap();
        let mut architecture = Architecture::from_config(Source::new("config.json", &text)).unwrap();
        // transformers adds the load-balancing loss only where it is asked to return router logits.
        architecture.numerics.balance_coefficient = 0.0;
        let network = Network::new(&device, architecture, config.data.sequence).unwrap();
        Trainer::new(network, device, config).unwrap()
    }

    /// Loss and norm of every step, sequences cut into micro-batches of `rows`.
    fn train<E: Trained>(&self, mut config: TrainConfig, rows: usize, device: Device) -> Vec<(f64, f64)> {
        config.training.micro_batch = rows as u64;
        config.training.batch = self.steps[0].len() as u64;
        let mut trainer = self.trainer::<E>(config, device);
        let step = |sequences: &Vec<Vec<u32>>| -> (f64, f64) {
            let batches: Vec<Batch> = sequences.chunks(rows).map(batch).collect();
            let outcome = trainer.step(&batches).unwrap();
            (outcome.loss, outcome.gradient_norm)
        };
        self.steps.iter().map(step).collect()
    }
}

fn batch(sequences: &[Vec<u32>]) -> Batch {
    let length = sequences[0].len() - 1;
    let each = |part: fn(&Vec<u32>) -> &[u32]| sequences.iter().flat_map(part).copied().collect::<Vec<u32>>();
    Batch {
        tokens: each(|sequence| &sequence[..sequence.len() - 1]),
        targets: each(|sequence| &sequence[1..]),
        first_keys: vec![0; sequences.len() * length],
        padding: Vec::new(),
        positions: sequences.iter().flat_map(|_| 0..length as u32).collect(),
        first_sample: 0,
        rows: sequences.len(),
        counted: sequences.len() * length,
    }
}

fn check(name: &str) {
    check_on(name, Device::cpu(2));
    match Device::cuda(0) {
        Ok(device) => check_on(name, device),
        Err(error) => println!("SKIPPED: {name} on a GPU: {error}"),
    }
}

fn check_on(name: &str, device: Device) {
    let curve = Curve::read(name);
    let found = curve.train::<f32>(curve.config(), 2, device);
    for (step, ((loss, norm), (expected, expected_norm))) in
        found.iter().zip(curve.losses.iter().zip(&curve.norms)).enumerate()
    {
        assert!((loss - expected).abs() < 1e-3, "{name}, step {step}: loss {loss}, PyTorch's {expected}");
        assert!(
            (norm / expected_norm - 1.0).abs() < 1e-2,
            "{name}, step {step}: norm {norm}, {expected_norm}"
        );
    }
}

#[test]
fn fifty_steps_of_llama_lose_what_pytorch_loses() {
    check("llama");
}

#[test]
fn fifty_steps_of_mixtral_lose_what_pytorch_loses() {
    check("mixtral");
}

#[test]
fn accumulation_recomputation_and_threads_change_nothing_but_rounding() {
    let curve = Curve::read("llama");
    let plain = curve.train::<f32>(curve.config(), 2, Device::cpu(1));
    assert_eq!(plain, curve.train::<f32>(curve.config(), 2, Device::cpu(3)), "threads change no bit");
    assert_eq!(plain, curve.train::<f32>(curve.config(), 2, Device::apart(1)), "nor where memory lies");
    for recompute in [Recompute::Cheap, Recompute::Full] {
        let mut config = curve.config();
        config.training.recompute = recompute;
        assert_eq!(plain, curve.train::<f32>(config, 2, Device::cpu(1)), "{recompute:?} changes no bit");
    }
    for ((loss, _), (accumulated, _)) in
        plain.iter().zip(curve.train::<f32>(curve.config(), 1, Device::cpu(1)))
    {
        assert!((loss - accumulated).abs() < 1e-4);
    }
}

#[test]
fn adapters_learn_the_same_bits_wherever_memory_lies() {
    let curve = Curve::read("llama");
    let mut config = curve.config();
    let targets = ["q_proj", "down_proj"].map(String::from).to_vec();
    config.adapter = Some(AdapterConfig { rank: 4, alpha: 8.0, targets });
    let losses = |device| curve.train::<f32>(config.clone(), 2, device);
    assert_eq!(losses(Device::cpu(2)), losses(Device::apart(1)));
}

#[test]
fn mixed_precision_follows_the_curve_within_its_rounding() {
    let curve = Curve::read("llama");
    // A number of e4m3 has five bits less than one of bf16.
    for (precision, most) in [(Precision::Bf16, 0.03), (Precision::Fp8, 0.06)] {
        for device in [Some(Device::apart(2)), Device::cuda(0).ok()].into_iter().flatten() {
            let mut config = curve.config();
            config.training.precision = precision;
            let rough = curve.train::<Bf16>(config, 2, device);
            for ((loss, _), expected) in rough.iter().zip(&curve.losses) {
                let off = (loss / expected - 1.0).abs();
                assert!(off < most, "{}: loss {loss}, in f32 {expected}", precision.name());
            }
        }
    }
}

/// What fp8 changes is seen: it is not bf16 under another name.
#[test]
fn fp8_changes_the_losses_of_bf16_a_little() {
    let curve = Curve::read("llama");
    let losses = |precision| {
        let mut config = curve.config();
        config.training.precision = precision;
        curve.train::<Bf16>(config, 2, Device::cpu(2))
    };
    let [bf16, fp8] = [losses(Precision::Bf16), losses(Precision::Fp8)];
    assert!(bf16.iter().zip(&fp8).all(|(bf16, fp8)| bf16 != fp8));
}
