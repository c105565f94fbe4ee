//! What each rank of a layout allocates is what the plan says it needs.
//!
//! Ranks are threads of the test that join a world as processes would.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bedplate_catalog::{Accelerator, Catalog};
use bedplate_comm::{Rendezvous, World, WorldOptions};
use bedplate_data::Batch;
use bedplate_diag::Source;
use bedplate_kernels::{Bf16, Device};
use bedplate_layout::{ComputePrecision, Layout};
use bedplate_network::Architecture;
use bedplate_perf::{Collective, HostRun, PeerCopies, Task, predict_on_host};
use bedplate_testkit::host_of_ranks;
use bedplate_train::{RunRanks, TrainConfig, Trained, Trainer};

const SEQUENCE: usize = 64;
const BATCH: usize = 8;
const WITHIN: f64 = 0.1;

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 128, "intermediate_size": 352, "vocab_size": 512,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "tie_word_embeddings": false}"#;
const QWEN3: &str = r#"{"model_type": "qwen3", "hidden_size": 96, "intermediate_size": 256, "vocab_size": 2000,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32,
    "max_position_embeddings": 64, "tie_word_embeddings": true}"#;
const MIXTRAL: &str = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "tie_word_embeddings": false}"#;

/// Memory does not depend on rates, so any will do; collectives only have to be known.
fn host() -> Accelerator {
    let all = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];
    let text = host_of_ranks(2, &all.map(|operation| operation.name()));
    let catalog = Catalog::with_overlays(&[Source::new("host.toml", &text)]).unwrap();
    catalog.accelerator("host").unwrap().clone()
}

fn architecture(config: &str) -> Architecture {
    Architecture::from_config(Source::new("config.json", config)).unwrap()
}

fn planned(
    model: &str,
    layout: Layout,
    precision: ComputePrecision,
    micro_batch: usize,
    survives: bool,
) -> f64 {
    let run = HostRun {
        sequence: SEQUENCE as u64,
        global_batch: BATCH as u64,
        micro_batch: micro_batch as u32,
        precision,
        recompute: bedplate_layout::Recompute::None,
        task: Task::Pretrain,
        copies: if survives { PeerCopies::EveryStep } else { PeerCopies::None },
        layout,
    };
    let memory = predict_on_host(&architecture(model).transformer, &host(), &run).unwrap().memory;
    (memory.total() - memory.workspace).get()
}

fn micro_batch(rows: usize) -> Batch {
    let tokens: Vec<u32> = (0..rows * SEQUENCE).map(|at| (at % 89) as u32).collect();
    Batch {
        counted: tokens.len(),
        targets: tokens.iter().map(|token| token + 1).collect(),
        first_keys: vec![0; tokens.len()],
        positions: (0..tokens.len()).map(|at| (at % SEQUENCE) as u32).collect(),
        padding: vec![0; rows],
        tokens,
        first_sample: 0,
        rows,
    }
}

/// Bytes that each rank holds after a step.
fn held<E: Trained>(model: &str, layout: Layout, rows: usize, survives: bool) -> Vec<f64> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let count = layout.world() as u32;
    let wait = Duration::from_secs(120);
    let options = WorldOptions { join: wait, patience: wait, deadline: wait, ..WorldOptions::default() };
    thread::scope(|scope| {
        let start = |rank| {
            let options = options.clone();
            scope.spawn(move || {
                let rendezvous = Rendezvous::on_this_machine(rank, count, port, b"a secret of the tests");
                let world = World::join(&rendezvous, &options).unwrap();
                let (device, architecture) = (Device::cpu(1), architecture(model));
                let is_tied = architecture.transformer.has_tied_embeddings;
                let ranks = Arc::new(RunRanks::of(world, layout, is_tied, survives.then_some("")).unwrap());
                let network = ranks.network(&device, architecture, SEQUENCE).unwrap();
                let mut config = TrainConfig::new("config.json", "corpus");
                config.data.sequence = SEQUENCE;
                config.training.micro_batch = rows as u64;
                config.training.batch = BATCH as u64;
                let mut trainer = Trainer::<E>::on(ranks, network, device, config).unwrap();
                trainer.keep_copies(1).unwrap();
                let own = BATCH / rows / layout.data as usize;
                trainer.step(&vec![micro_batch(rows); own]).unwrap();
                trainer.memory().get()
            })
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn check<E: Trained>(model: &str, layouts: &[&str], precision: ComputePrecision) {
    for text in layouts {
        let layout: Layout = text.parse().unwrap();
        let found = held::<E>(model, layout, 2, false).into_iter().fold(0.0, f64::max);
        let planned = planned(model, layout, precision, 2, false);
        let off = found / planned - 1.0;
        assert!(off.abs() <= WITHIN, "{text}: {found} bytes held, {planned} planned");
    }
}

#[test]
fn state_that_is_split_takes_what_the_plan_says() {
    let layouts = ["dp2", "dp2.zero1", "dp4.zero1", "dp2.zero2", "dp4.zero2", "dp2.zero3", "dp4.zero3"];
    check::<f32>(LLAMA, &layouts, ComputePrecision::Fp32);
    check::<Bf16>(LLAMA, &layouts[1..], ComputePrecision::Bf16);
    check::<f32>(QWEN3, &["dp2.zero1", "dp4.zero2", "dp4.zero3", "dp4.hsdp2"], ComputePrecision::Fp32);
}

#[test]
fn cut_models_take_what_the_plan_says() {
    let layouts = ["tp2", "tp2.sp", "pp2", "pp2.vpp3", "cp2", "dp2.tp2.zero1", "dp2.pp2.zero3"];
    check::<f32>(LLAMA, &layouts, ComputePrecision::Fp32);
    check::<f32>(QWEN3, &["tp2", "pp2", "pp4"], ComputePrecision::Fp32);
    check::<f32>(MIXTRAL, &["dp2.ep2", "dp4.ep2.zero1", "dp2.ep2.zero3"], ComputePrecision::Fp32);
}

/// 16 bytes more for each number that a rank learns, where no other rank has it.
#[test]
fn copies_that_survive_a_lost_rank_take_what_the_plan_says() {
    let check = |layout: &str, ranks: f64| {
        let layout: Layout = layout.parse().unwrap();
        let most = |survives| held::<f32>(LLAMA, layout, 2, survives).into_iter().fold(0.0, f64::max);
        let plan = |survives| planned(LLAMA, layout, ComputePrecision::Fp32, 2, survives);
        let (held, planned) = (most(true) - most(false), plan(true) - plan(false));
        assert_eq!(held, planned, "{layout}");
        let parameters = architecture(LLAMA).transformer.parameters().total as f64;
        assert_eq!(held, 16.0 * parameters / ranks, "{layout}");
    };
    check("dp2.zero1", 2.0);
    check("dp4.zero2", 4.0);
    check("dp4.zero3", 4.0);
    let layout: Layout = "dp4".parse().unwrap();
    let held = |survives| held::<f32>(LLAMA, layout, 2, survives);
    assert_eq!(held(true), held(false), "others hold all of it");
    let plan = |survives| planned(LLAMA, layout, ComputePrecision::Fp32, 2, survives);
    assert_eq!(plan(true), plan(false));
}
