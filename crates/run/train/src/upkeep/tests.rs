//! Ranks part in the middle of a step and meet again, with one of them lost. Ranks are threads.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use bedplate_comm::{Rendezvous, World, WorldOptions};
use bedplate_data::Batch;
use bedplate_diag::Source;
use bedplate_kernels::Bf16;
use bedplate_layout::Layout;
use bedplate_network::Architecture;

use super::*;
use crate::passes::Weighing;
use crate::ranks::RunRanks;
use crate::trainer::First;
use crate::{AdapterConfig, TrainConfig};

const SEQUENCE: usize = 16;
const BATCH: usize = 4;
const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 80, "vocab_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 16,
    "tie_word_embeddings": false}"#;

/// What becomes of a rank in the third step, after all have the gradients of their neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It hears the norm and does the step.
    Does,
    /// It is told of a loss before it hears the norm.
    Waits,
    Lost,
}
use Fate::{Does, Lost, Waits};

fn config(has_adapter: bool) -> TrainConfig {
    let mut config = TrainConfig::new("config.json", "corpus");
    config.data.sequence = SEQUENCE;
    config.training.micro_batch = 1;
    config.training.batch = BATCH as u64;
    config.training.steps = 8;
    config.optimizer.learning_rate = 3e-3;
    config.optimizer.clip = 0.1;
    let targets = vec!["q_proj".to_owned(), "down_proj".to_owned()];
    config.adapter = has_adapter.then_some(AdapterConfig { rank: 2, alpha: 6.0, targets });
    config
}

fn sample(number: u64) -> Batch {
    let tokens: Vec<u32> = (0..SEQUENCE as u64).map(|at| ((at * 7 + number * 13) % 96) as u32).collect();
    Batch {
        counted: SEQUENCE,
        targets: tokens.iter().map(|token| (token + 1) % 96).collect(),
        first_keys: vec![0; SEQUENCE],
        positions: (0..SEQUENCE as u32).collect(),
        padding: vec![0],
        tokens,
        first_sample: number,
        rows: 1,
    }
}

/// This rank's samples of the next step.
fn share<E: Trained>(trainer: &Trainer<E>) -> Vec<Batch> {
    let (place, count) = (trainer.ranks.at().data as usize, trainer.ranks.layout().data as usize);
    let own = BATCH * place / count..BATCH * (place + 1) / count;
    own.map(|at| sample(trainer.samples + at as u64)).collect()
}

fn trainer<E: Trained>(world: World, layout: Layout, config: &TrainConfig, first: First) -> Trainer<E> {
    let device = Device::cpu(1);
    let ranks = Arc::new(RunRanks::of(world, layout, false, Some("")).unwrap());
    let architecture = Architecture::from_config(Source::new("config.json", LLAMA)).unwrap();
    let network = ranks.network(&device, architecture, SEQUENCE).unwrap();
    Trainer::with(ranks, network, device, config.clone(), first).unwrap()
}

fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn join(rank: u32, count: u32, port: u16) -> World {
    let wait = Duration::from_secs(120);
    let options = WorldOptions { join: wait, patience: wait, deadline: wait, ..WorldOptions::default() };
    let rendezvous = Rendezvous::on_this_machine(rank, count, port, b"a secret of the tests");
    World::join(&rendezvous, &options).unwrap()
}

type Bits = Vec<(SectionPiece, Vec<u32>)>;

/// The state, and the copy of the rank before where that is of the same step, as bits.
fn bits<E: Trained>(trainer: Trainer<E>) -> Bits {
    let (device, step) = (Device::cpu(1), trainer.step);
    let read = |holding: Holding| {
        let mut values = vec![0.0; holding.piece.range.len()];
        device.read(holding.view(), &mut values);
        (holding.piece, values.iter().map(|value: &f32| value.to_bits()).collect())
    };
    let newest = trainer.into_recovered_state().holdings.into_iter().filter(|holding| holding.step == step);
    newest.map(read).collect()
}

/// Three steps, in the third of which ranks part, and two more. Without fates nothing happens. Gives the step with which the ranks
/// went on, and what each holds in the end.
fn five_steps<E: Trained>(layout: &str, config: &TrainConfig, fates: &[Fate]) -> Vec<(u64, Bits)> {
    let layout: Layout = layout.parse().unwrap();
    let (count, ports) = (layout.world() as u32, [port(), port()]);
    thread::scope(|scope| {
        let start = |rank: u32| {
            scope.spawn(move || {
                let every = config.training.copy_every;
                let mut own = trainer::<E>(join(rank, count, ports[0]), layout, config, First::Weights);
                own.keep_copies(every).unwrap();
                own.begin_first_copy();
                let steps = if fates.is_empty() { 3 } else { 2 };
                for _ in 0..steps {
                    own.step(&share(&own)).unwrap();
                }
                let mut went_on = own.step;
                if let Some(fate) = fates.get(rank as usize) {
                    let mut recovered = part_in_a_step(own, *fate);
                    own = trainer(join(rank, count, ports[1]), layout, config, First::Nothing);
                    own.take_over(&mut recovered).unwrap();
                    went_on = own.step;
                    own.keep_copies_after(&mut recovered, every).unwrap();
                    own.begin_first_copy();
                }
                while own.step < 5 {
                    own.step(&share(&own)).unwrap();
                }
                (went_on, bits(own))
            })
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn part_in_a_step<E: Trained>(mut trainer: Trainer<E>, fate: Fate) -> RecoveredState {
    let batches = share(&trainer);
    let weighing = Weighing { scale: 1.0 / (BATCH * SEQUENCE) as f32, balance: 1.0 / BATCH as f32 };
    trainer.learn(&batches, weighing).unwrap();
    trainer.complete_copies().unwrap();
    let mut squares = [trainer.own_squares()];
    trainer.ranks.sum_over_all(&trainer.device, &mut squares).unwrap();
    trainer.keep_copied();
    if fate == Does {
        // As `update` does, without the call that follows, in which those that do the step hear of the loss.
        let norm = trainer.norm(squares[0]);
        let adamw = Steps::of(&trainer.config).after(trainer.step, norm);
        trainer.learn_from_gradients(&adamw);
        (trainer.norm_before, trainer.step) = (Some(norm), trainer.step + 1);
        trainer.samples += BATCH as u64;
    }
    trainer.ranks.part(&trainer.device).unwrap();
    let recovered = trainer.into_recovered_state();
    if fate == Lost { RecoveredState::default() } else { recovered }
}

fn check<E: Trained>(layout: &str, config: &TrainConfig, fates: &[Fate], step: u64) {
    let expected = five_steps::<E>(layout, config, &[]);
    let found = five_steps::<E>(layout, config, fates);
    for (rank, ((went_on, found), (_, expected))) in found.iter().zip(&expected).enumerate() {
        assert_eq!(*went_on, step, "{layout} {fates:?}: rank {rank} goes on there");
        assert!(found == expected, "{layout} {fates:?}: rank {rank} holds something else in the end");
    }
}

/// Whoever has done the step says its norm, and the others do it too, for themselves and for the lost one.
#[test]
fn ranks_that_waited_for_the_norm_do_the_step_that_another_has_done() {
    for fates in [[Lost, Waits, Does], [Does, Lost, Waits], [Waits, Does, Lost], [Does, Waits, Waits]] {
        check::<f32>("dp3.zero3", &config(false), &fates, 3);
    }
    check::<f32>("dp2.zero1", &config(false), &[Does, Waits], 3);
    check::<Bf16>("dp4.zero2", &config(false), &[Waits, Lost, Does, Waits], 3);
    check::<f32>("dp2.tp2", &config(false), &[Waits, Lost, Does, Waits], 3);
    check::<Bf16>("pp2", &config(false), &[Lost, Does], 3);
}

/// Nobody knows the norm, so nobody has done the step, and it is done again.
#[test]
fn a_step_that_nobody_has_done_is_done_again() {
    check::<f32>("dp3.zero3", &config(false), &[Waits, Lost, Waits], 2);
    check::<Bf16>("dp2.zero1", &config(false), &[Lost, Waits], 2);
    check::<f32>("dp2", &config(false), &[Lost, Waits], 2);
}

/// Adapters multiply their gradients.
#[test]
fn the_step_is_done_for_adapters_too() {
    check::<f32>("tp2", &config(true), &[Does, Lost], 3);
    check::<f32>("tp2", &config(true), &[Waits, Lost], 2);
}

/// Copies of every second step: all go back to the last of them.
#[test]
fn ranks_go_back_to_the_newest_copy_where_they_are_rare() {
    let mut config = config(false);
    config.training.copy_every = 2;
    check::<f32>("dp3.zero3", &config, &[Does, Lost, Waits], 2);
    check::<f32>("dp2.zero2", &config, &[Lost, Does], 2);
}

/// Three of `dp2.tp2` are left. The one that is no whole replica alone has the second half of the matrices, and it alone may have
/// done the step.
#[test]
fn ranks_that_leave_say_what_they_know() {
    for fates in [[Waits, Lost, Waits, Does], [Does, Lost, Waits, Waits]] {
        let (layout, config): (Layout, _) = ("dp2.tp2".parse().unwrap(), config(false));
        let (config, ports) = (&config, [port(), port(), port()]);
        let went_on: Vec<Option<u64>> = thread::scope(|scope| {
            let start = |rank: u32| {
                scope.spawn(move || {
                    let mut own = trainer::<f32>(join(rank, 4, ports[0]), layout, config, First::Weights);
                    for _ in 0..2 {
                        own.step(&share(&own)).unwrap();
                    }
                    let mut recovered = part_in_a_step(own, fates[rank as usize]);
                    let left =
                        rank.checked_sub(u32::from(rank > 1)).filter(|_| fates[rank as usize] != Lost)?;
                    let together = Layout { data: 3, ..Layout::default() };
                    let ranks = RunRanks::of(join(left, 3, ports[1]), together, false, None).unwrap();
                    recovered.hand_over(&Device::cpu(1), &ranks, 2, &Steps::of(config)).unwrap();
                    let alone = Layout { data: 1, ..layout };
                    let world = (left < 2).then(|| join(left, 2, ports[2]))?;
                    let mut own = trainer::<f32>(world, alone, config, First::Nothing);
                    own.take_over(&mut recovered).unwrap();
                    own.step(&share(&own)).unwrap();
                    Some(own.step)
                })
            };
            let threads: Vec<_> = (0..4).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(went_on, [Some(4), None, Some(4), None], "{fates:?}");
    }
}
