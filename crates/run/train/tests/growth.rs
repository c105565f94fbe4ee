//! A process of its own, so that its memory is the run's: it must not grow.

use bedplate_data::Batch;
use bedplate_diag::Source;
use bedplate_host::memory::own_resident_bytes;
use bedplate_kernels::Device;
use bedplate_network::{Architecture, Network};
use bedplate_train::{TrainConfig, Trainer};

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 64}"#;

#[test]
fn memory_does_not_grow_over_a_thousand_steps() {
    let architecture = Architecture::from_config(Source::new("config.json", CONFIG)).unwrap();
    let mut config = TrainConfig::new("config.json", "corpus");
    config.data.sequence = 16;
    config.training.micro_batch = 2;
    config.training.batch = 2;
    config.training.steps = 1100;
    let device = Device::cpu(1);
    let network = Network::new(&device, architecture, 16).unwrap();
    let mut trainer = Trainer::<f32>::new(network, device, config).unwrap();
    let batch = Batch {
        tokens: (0..32).collect(),
        targets: (1..33).collect(),
        first_keys: vec![0; 32],
        padding: Vec::new(),
        positions: (0..32).map(|row| row % 16).collect(),
        first_sample: 0,
        rows: 2,
        counted: 32,
    };
    let batches = [batch];
    let mut step = || trainer.step(&batches).unwrap();
    for _ in 0..100 {
        step();
    }
    let before = own_resident_bytes().unwrap();
    for _ in 0..1000 {
        step();
    }
    let grown = own_resident_bytes().unwrap().saturating_sub(before);
    assert!(grown <= 128 << 10, "a thousand steps grew the process by {grown} bytes");
}
