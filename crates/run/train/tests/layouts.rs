//! Every layout reproduces the loss curve of one process.
//!
//! Ranks are threads of the test that join a world as processes would.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bedplate_comm::{Rendezvous, Transport, World, WorldOptions};
use bedplate_data::{Batch, IGNORED};
use bedplate_diag::Source;
use bedplate_kernels::{AdamW, Bf16, Device};
use bedplate_layout::Layout;
use bedplate_network::{Architecture, BatchTokens, Network, Recompute, Weights, Workspace, WorkspaceShape};
use bedplate_random::Random;
use bedplate_train::{AdapterConfig, RunRanks, TrainConfig, Trained, Trainer};

const SEQUENCE: usize = 32;
const BATCH: usize = 8;
const STEPS: usize = 20;

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 64,
    "tie_word_embeddings": false}"#;
const QWEN: &str = r#"{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 64,
    "tie_word_embeddings": true}"#;
const GPT2: &str =
    r#"{"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 8, "n_positions": 64, "vocab_size": 96}"#;
const MIXTRAL: &str = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 8,
    "num_experts_per_tok": 2, "router_aux_loss_coef": 0.05, "max_position_embeddings": 64,
    "initializer_range": 0.1}"#;

fn architecture(config: &str) -> Architecture {
    Architecture::from_config(Source::new("config.json", config)).unwrap()
}

fn config(micro_batch: usize) -> TrainConfig {
    let mut config = TrainConfig::new("config.json", "corpus");
    config.data.sequence = SEQUENCE;
    config.training.micro_batch = micro_batch as u64;
    config.training.batch = BATCH as u64;
    config.training.steps = STEPS as u64;
    config.optimizer.learning_rate = 3e-3;
    config.optimizer.warmup = 2;
    config.optimizer.clip = 1.0;
    config
}

/// The sequences of a step: some are several documents, some end with padding.
fn sequences(step: usize) -> Vec<Batch> {
    let mut random = Random::stream(7, step as u64);
    let sequence = |number: usize| {
        let padding = if number % 4 == 1 { 5 } else { 0 };
        let border = if number % 3 == 2 { 13 } else { 0 };
        let tokens: Vec<u32> = (0..=SEQUENCE).map(|_| random.below(96) as u32 / 2).collect();
        let is_counted = |at: usize| at + padding < SEQUENCE && (border == 0 || at + 1 != border);
        let target = |at: usize| if is_counted(at) { tokens[at + 1] } else { IGNORED };
        let first = |at: usize| if at >= border { border } else { 0 };
        let targets: Vec<u32> = (0..SEQUENCE).map(target).collect();
        Batch {
            counted: targets.iter().filter(|target| **target != IGNORED).count(),
            tokens: tokens[..SEQUENCE].to_vec(),
            targets,
            first_keys: (0..SEQUENCE).map(|at| first(at) as u32).collect(),
            positions: (0..SEQUENCE).map(|at| (at - first(at)) as u32).collect(),
            padding: vec![padding as u32],
            first_sample: (step * BATCH + number) as u64,
            rows: 1,
        }
    };
    (0..BATCH).map(sequence).collect()
}

/// Micro-batches of some sequences.
fn joined(sequences: &[Batch]) -> Batch {
    let mut batch = Batch { first_sample: sequences[0].first_sample, ..Batch::default() };
    for one in sequences {
        batch.tokens.extend(&one.tokens);
        batch.targets.extend(&one.targets);
        batch.first_keys.extend(&one.first_keys);
        batch.positions.extend(&one.positions);
        batch.padding.extend(&one.padding);
        batch.rows += 1;
        batch.counted += one.counted;
    }
    batch
}

fn micro_batches(step: usize, rows: usize) -> Vec<Batch> {
    sequences(step).chunks(rows).map(joined).collect()
}

type Curve = Vec<(f64, f64)>;

/// Loss and norm of every step, and the loss of an evaluation at the end.
fn train<E: Trained>(trainer: &mut Trainer<E>, micro_batch: usize) -> Curve {
    let layout = *trainer.ranks().layout();
    let (place, count) = (trainer.ranks().at().data as usize, layout.data as usize);
    let share = |all: Vec<Batch>| -> Vec<Batch> {
        let (start, end) = (all.len() * place / count, all.len() * (place + 1) / count);
        all[start..end].to_vec()
    };
    let step = |number| {
        let outcome = trainer.step(&share(micro_batches(number, micro_batch))).unwrap();
        (outcome.loss, outcome.gradient_norm)
    };
    let mut curve: Curve = (0..STEPS).map(step).collect();
    let held_out =
        share(micro_batches(1000, micro_batch)).into_iter().map(Ok::<_, bedplate_train::TrainError>);
    curve.push((trainer.evaluate(held_out).unwrap(), 0.0));
    curve
}

fn alone<E: Trained>(model: &str, config: &TrainConfig) -> Curve {
    let device = Device::cpu(1);
    let network = Network::new(&device, architecture(model), SEQUENCE).unwrap();
    let mut trainer = Trainer::<E>::new(network, device, config.clone()).unwrap();
    train(&mut trainer, config.training.micro_batch as usize)
}

fn options(transport: Transport) -> WorldOptions {
    let (join, patience) = (Duration::from_secs(120), Duration::from_secs(120));
    WorldOptions { transport, join, patience, deadline: Duration::from_secs(60), ..WorldOptions::default() }
}

fn on_ranks<E: Trained>(
    model: &str,
    layout: Layout,
    config: &TrainConfig,
    transport: Transport,
) -> Vec<Curve> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let count = layout.world() as u32;
    thread::scope(|scope| {
        let start = |rank| {
            scope.spawn(move || {
                let rendezvous = Rendezvous::on_this_machine(rank, count, port, b"a secret of the tests");
                let world = World::join(&rendezvous, &options(transport)).unwrap();
                let (device, architecture) = (Device::cpu(1), architecture(model));
                let is_tied = architecture.transformer.has_tied_embeddings;
                let ranks = Arc::new(RunRanks::of(world, layout, is_tied, None).unwrap());
                let network = ranks.network(&device, architecture, SEQUENCE).unwrap();
                let mut trainer = Trainer::<E>::on(ranks, network, device, config.clone()).unwrap();
                train(&mut trainer, config.training.micro_batch as usize)
            })
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn check(name: &str, found: &[Curve], expected: &Curve, tolerance: f64) {
    for (rank, curve) in found.iter().enumerate() {
        assert_eq!(*curve, found[0], "{name}: all ranks tell the same, rank {rank} too");
    }
    for (step, ((loss, norm), (expected, expected_norm))) in found[0].iter().zip(expected).enumerate() {
        let (off, norm_off) = ((loss - expected).abs(), (norm - expected_norm).abs());
        assert!(off < tolerance, "{name}, step {step}: loss {loss} instead of {expected}, off by {off:.1e}");
        assert!(norm_off <= 100.0 * tolerance, "{name}, step {step}: norm {norm} instead of {expected_norm}");
    }
}

fn check_layouts(model: &str, micro_batch: usize, layouts: &[&str]) {
    let config = config(micro_batch);
    let expected = alone::<f32>(model, &config);
    for layout in layouts {
        let found = on_ranks::<f32>(model, layout.parse().unwrap(), &config, Transport::Automatic);
        check(layout, &found, &expected, 1e-5);
    }
}

#[test]
fn data_ranks_learn_what_one_process_learns() {
    check_layouts(LLAMA, 1, &["dp2", "dp4", "dp2.zero1", "dp4.zero1", "dp2.zero2", "dp4.zero2"]);
    check_layouts(QWEN, 2, &["dp2", "dp4.zero1", "dp4.zero2"]);
}

#[test]
fn split_weights_are_gathered_block_by_block() {
    check_layouts(LLAMA, 1, &["dp2.zero3", "dp4.zero3", "dp4.hsdp2"]);
    check_layouts(QWEN, 2, &["dp2.zero3", "dp4.hsdp2"]);
    check_layouts(GPT2, 2, &["dp4.zero3"]);
    check_layouts(MIXTRAL, 1, &["dp2.zero3"]);
}

#[test]
fn matrices_are_cut_over_tensor_ranks() {
    check_layouts(LLAMA, 1, &["tp2", "tp4", "dp2.tp2.zero3"]);
    check_layouts(QWEN, 2, &["tp2", "dp2.tp2.zero1"]);
    check_layouts(GPT2, 2, &["tp2"]);
    check_layouts(MIXTRAL, 1, &["tp2.etp2"]);
}

#[test]
fn stages_pass_micro_batches_on() {
    check_layouts(
        LLAMA,
        1,
        &["pp2", "pp4", "pp2.vpp2", "dp2.pp2.zero1", "dp2.pp2.zero3", "dp2.tp2.pp2.zero1"],
    );
    check_layouts(QWEN, 1, &["pp2", "pp4", "pp2.vpp2", "dp2.pp2.zero3"]);
    check_layouts(MIXTRAL, 1, &["pp2", "pp2.vpp2"]);
}

#[test]
fn norms_and_residuals_are_cut_inside_tensor_groups() {
    check_layouts(LLAMA, 1, &["tp2.sp", "tp4.sp", "dp2.tp2.sp.zero3", "tp2.sp.pp2"]);
    check_layouts(QWEN, 2, &["tp2.sp", "dp2.tp2.sp.zero1", "tp2.sp.pp2"]);
    check_layouts(GPT2, 2, &["tp2.sp"]);
    check_layouts(MIXTRAL, 1, &["tp2.sp.etp2"]);
}

#[test]
fn context_ranks_share_sequences() {
    check_layouts(LLAMA, 1, &["cp2", "cp4", "dp2.cp2.zero3", "tp2.sp.cp2", "cp2.pp2", "dp2.cp2.tp2"]);
    check_layouts(QWEN, 2, &["cp2", "dp2.cp2.hsdp2"]);
    check_layouts(MIXTRAL, 1, &["cp2"]);
}

#[test]
fn experts_are_spread_over_ranks() {
    check_layouts(
        MIXTRAL,
        1,
        &["dp2.ep2", "dp4.ep4", "dp4.ep2.zero1", "dp4.ep2.zero3", "dp2.ep2.zero2", "dp2.pp2.ep2"],
    );
    check_layouts(MIXTRAL, 2, &["dp2.cp2.ep4", "dp2.tp2.ep2.etp2", "dp2.tp2.sp.ep2.etp2.zero3"]);
}

#[test]
fn eight_ranks_combine_everything() {
    check_layouts(LLAMA, 1, &["dp2.tp2.sp.pp2.zero3", "dp2.cp2.pp2.zero1", "tp2.sp.cp2.pp2.vpp2"]);
    check_layouts(MIXTRAL, 1, &["dp4.ep2.pp2.zero1", "dp2.cp2.ep2.pp2.zero3"]);
}

/// Loss and norm of every step where each micro-batch's gradient is computed for itself and these are added up in their order.
fn added_up(model: &str, config: &TrainConfig) -> Curve {
    let device = Device::cpu(1);
    let network = Network::new(&device, architecture(model), SEQUENCE).unwrap();
    let rows = config.training.micro_batch as usize;
    let shape = WorkspaceShape {
        sequences: rows,
        sequence: SEQUENCE,
        recompute: Recompute::None,
        has_gradients: true,
    };
    let zeros = || Weights::<f32>::zeros(&device, &network);
    let (mut weights, mut first, mut second) = (zeros(), zeros(), zeros());
    network.initialise(&device, config.model.seed, &mut weights);
    let mut workspace = Workspace::new(&device, &network, shape);
    let blocks = 0..network.blocks().len();
    let step = |number: usize| {
        let batches = micro_batches(number, rows);
        let targets: usize = batches.iter().map(|batch| batch.counted).sum();
        let (mut sum, mut loss) = (zeros(), 0.0);
        for (place, batch) in batches.iter().enumerate() {
            let (mut own, mut room) = (zeros(), workspace.room(0));
            let tokens = BatchTokens {
                tokens: &batch.tokens,
                targets: &batch.targets,
                positions: &batch.positions,
                first_keys: &batch.first_keys,
                padding: &batch.padding,
            };
            room.load(&device, tokens);
            let balance = 1.0 / batches.len() as f32;
            loss += network.learn(&device, &weights, &mut room, &mut own, 1.0 / targets as f32, balance);
            for block in blocks.clone() {
                match place {
                    0 => device.copy(own.block(block), sum.block_mut(block)),
                    _ => device.add(own.block(block), sum.block_mut(block)),
                }
            }
        }
        let squares: f64 = blocks.clone().map(|block| device.sum_of_squares(sum.block(block))).sum();
        let (norm, optimizer) = (squares.sqrt(), &config.optimizer);
        for block in blocks.clone() {
            for tensor in &network.blocks()[block].tensors {
                let settings = AdamW {
                    learning_rate: config.learning_rate().at(number as u64),
                    beta1: optimizer.beta1,
                    beta2: optimizer.beta2,
                    epsilon: optimizer.epsilon,
                    weight_decay: if tensor.kind.is_matrix() { optimizer.weight_decay } else { 0.0 },
                    step: number as u64 + 1,
                    gradient_scale: (optimizer.clip / (norm + 1e-6)).min(1.0) as f32,
                };
                let range = || tensor.range.clone();
                let (gradient, weight) =
                    (sum.block(block).range(range()), weights.block_mut(block).range(range()));
                let moments = (first.block_mut(block).range(range()), second.block_mut(block).range(range()));
                device.adamw(&settings, weight, gradient, moments.0, moments.1, None);
            }
        }
        (loss / targets as f64, norm)
    };
    (0..STEPS).map(step).collect()
}

#[test]
fn data_ranks_give_the_bits_of_micro_batches_that_are_added_up_in_order() {
    for (model, micro_batch, layout) in
        [(LLAMA, 2, "dp4"), (LLAMA, 4, "dp2"), (MIXTRAL, 2, "dp4"), (QWEN, 4, "dp2")]
    {
        let config = config(micro_batch);
        let expected = added_up(model, &config);
        let found = on_ranks::<f32>(model, layout.parse().unwrap(), &config, Transport::Automatic);
        assert_eq!(found[0][..STEPS], expected, "{layout}");
    }
}

#[test]
fn adapters_learn_the_same_in_every_layout() {
    let mut config = config(1);
    config.adapter = Some(AdapterConfig { rank: 4, ..AdapterConfig::usual() });
    let expected = alone::<f32>(LLAMA, &config);
    for layout in ["dp2", "dp2.zero3", "tp2", "tp2.sp", "pp2", "cp2", "dp2.tp2.pp2.zero1"] {
        let found = on_ranks::<f32>(LLAMA, layout.parse().unwrap(), &config, Transport::Automatic);
        check(layout, &found, &expected, 1e-5);
    }
    let targets = ["w1", "w2", "w3", "q_proj"].map(str::to_owned).to_vec();
    config.adapter = Some(AdapterConfig { rank: 4, targets, ..AdapterConfig::usual() });
    let expected = alone::<f32>(MIXTRAL, &config);
    for layout in ["dp2.ep2", "dp4.ep2.zero3"] {
        let found = on_ranks::<f32>(MIXTRAL, layout.parse().unwrap(), &config, Transport::Automatic);
        check(layout, &found, &expected, 1e-5);
    }
}

#[test]
fn recomputation_and_other_transports_change_nothing() {
    for recompute in [Recompute::Cheap, Recompute::Full] {
        let mut config = config(1);
        config.training.recompute = recompute;
        let expected = alone::<f32>(LLAMA, &config);
        for layout in ["dp2.tp2.sp.zero3", "pp2.cp2"] {
            let found = on_ranks::<f32>(LLAMA, layout.parse().unwrap(), &config, Transport::Automatic);
            check(layout, &found, &expected, 1e-5);
        }
    }
    let config = config(1);
    let expected = alone::<f32>(MIXTRAL, &config);
    for transport in [Transport::Tcp, Transport::Hosts(2)] {
        let found = on_ranks::<f32>(MIXTRAL, "dp2.ep2.pp2.zero1".parse().unwrap(), &config, transport);
        check("other transport", &found, &expected, 1e-5);
    }
}

#[test]
fn bf16_ranks_stay_close_to_one_process() {
    let config = config(1);
    let expected = alone::<Bf16>(LLAMA, &config);
    for layout in ["dp2.zero1", "dp2.zero3", "tp2.sp", "pp2"] {
        let found = on_ranks::<Bf16>(LLAMA, layout.parse().unwrap(), &config, Transport::Automatic);
        check(layout, &found, &expected, 5e-2);
    }
}
