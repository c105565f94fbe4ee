//! What a run allocates is what the plan says it needs.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use bedplate_catalog::{Accelerator, Catalog};
use bedplate_diag::Source;
use bedplate_kernels::{Bf16, Device};
use bedplate_layout::{ComputePrecision, Layout};
use bedplate_network::{Architecture, Network, Recompute};
use bedplate_perf::{HostRun, MemoryUse, PeerCopies, Task, predict_on_host};
use bedplate_testkit::PLAIN_HOST;
use bedplate_train::{TrainConfig, Trained, Trainer};

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 128, "intermediate_size": 352, "vocab_size": 1024,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}"#;
const QWEN3: &str = r#"{"model_type": "qwen3", "hidden_size": 96, "intermediate_size": 256, "vocab_size": 5000,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32,
    "max_position_embeddings": 128, "tie_word_embeddings": true}"#;
const MIXTRAL: &str = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 128}"#;

fn host() -> Accelerator {
    // Memory does not depend on rates, so any will do.
    let catalog = Catalog::with_overlays(&[Source::new("host.toml", PLAIN_HOST)]).unwrap();
    catalog.accelerator("host").unwrap().clone()
}

fn planned(network: &Network, config: &TrainConfig, precision: ComputePrecision) -> MemoryUse {
    let run = HostRun {
        sequence: config.data.sequence as u64,
        global_batch: config.training.batch,
        micro_batch: config.training.micro_batch as u32,
        precision,
        recompute: match config.training.recompute {
            Recompute::None => bedplate_layout::Recompute::None,
            Recompute::Cheap => bedplate_layout::Recompute::Selective,
            Recompute::Full => bedplate_layout::Recompute::Full,
        },
        task: Task::Pretrain,
        copies: PeerCopies::None,
        layout: Layout::ONE,
    };
    predict_on_host(&network.architecture().transformer, &host(), &run).unwrap().memory
}

fn check<E: Trained>(model: &str, recompute: Recompute, precision: ComputePrecision) {
    let mut config = TrainConfig::new("config.json", "corpus");
    config.data.sequence = 96;
    config.training.micro_batch = 3;
    config.training.batch = 6;
    config.training.recompute = recompute;
    let architecture = Architecture::from_config(Source::new("config.json", model)).unwrap();
    let device = Device::cpu(1);
    let network = Network::new(&device, architecture, 96).unwrap();
    let plan = planned(&network, &config, precision);
    // Tensors begin at cache lines; weights, gradients and moments have the same gaps between them.
    let padding = network.blocks().iter().map(|block| block.len).sum::<usize>() - network.parameters();
    let copies = if precision == ComputePrecision::Fp32 { 4 * 4 } else { 4 * 4 + 2 };
    let buffers = (plan.total() - plan.workspace).get() + (padding * copies) as f64;
    let trainer = Trainer::<E>::new(network, device, config).unwrap();
    assert_eq!(trainer.memory().get(), buffers, "{model}, {recompute:?}, {precision:?}");
}

#[test]
fn buffers_are_those_of_the_plan() {
    for model in [LLAMA, QWEN3, MIXTRAL] {
        for recompute in [Recompute::None, Recompute::Cheap, Recompute::Full] {
            check::<f32>(model, recompute, ComputePrecision::Fp32);
            check::<Bf16>(model, recompute, ComputePrecision::Bf16);
        }
    }
}
