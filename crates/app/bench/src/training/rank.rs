//! `bedplate bench training-rank`: a rank of our own, which trains as it is told over a socket.
//!
//! `step COUNT` is answered by `ok` and the nanoseconds of each step, `losses RATE…` by `ok` and the loss of one step at each
//! learning rate. The end of the lines is the end of the rank.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use bedplate_comm::{Rendezvous, World, WorldOptions};
use bedplate_data::Batch;
use bedplate_kernels::{Bf16, Device};
use bedplate_layout::Layout;
use bedplate_terminal::CliError;
use bedplate_train::{Decay, RunRanks, TrainConfig, TrainError, Trained, Trainer};

use super::ranks::{MODEL, Numbers, Question, config};
use crate::comm::rank::RankError;
use crate::kernels::models::architecture;

#[derive(clap::Args)]
pub(in super::super) struct Arguments {
    /// Where the command listens that started this rank
    #[arg(long)]
    socket: PathBuf,
    /// How the ranks share the work
    #[arg(long)]
    layout: Layout,
    #[arg(long)]
    threads: usize,
    /// First weights; fresh ones without
    #[arg(long)]
    weights: Option<PathBuf>,
    #[arg(long, value_enum)]
    precision: Numbers,
}

pub(in super::super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let variables: BTreeMap<String, String> = std::env::vars().collect();
    let rendezvous = Rendezvous::from_environment(&variables)?;
    let options = WorldOptions::from_environment(&variables)?;
    let mut socket = UnixStream::connect(&arguments.socket).map_err(RankError::Socket)?;
    tell(&mut socket, &format!("rank {} {}", rendezvous.rank, std::process::id()))?;
    match arguments.precision {
        Numbers::F32 => obey(trainer::<f32>(arguments, &rendezvous, &options)?, socket),
        Numbers::Bf16 | Numbers::Fp8 => obey(trainer::<Bf16>(arguments, &rendezvous, &options)?, socket),
    }
}

fn obey<E: Trained>(mut trainer: Trainer<E>, mut socket: UnixStream) -> Result<(), CliError> {
    tell(&mut socket, "ready")?;
    let lines = BufReader::new(socket.try_clone().map_err(RankError::Socket)?).lines();
    for line in lines {
        let line = line.map_err(RankError::Socket)?;
        let answer = match answer(&mut trainer, &line) {
            Ok(answer) => answer,
            Err(why) => format!("no {}", why.replace('\n', " ")),
        };
        tell(&mut socket, &answer)?;
    }
    Ok(())
}

fn tell(socket: &mut UnixStream, line: &str) -> Result<(), RankError> {
    socket.write_all(format!("{line}\n").as_bytes()).map_err(RankError::Socket)
}

fn trainer<E: Trained>(
    arguments: &Arguments,
    rendezvous: &Rendezvous,
    options: &WorldOptions,
) -> Result<Trainer<E>, CliError> {
    let device = Device::cpu(arguments.threads);
    let architecture = architecture(MODEL, Question::SEQUENCE);
    let ranks = match rendezvous.world {
        1 => RunRanks::alone(),
        _ => {
            let is_tied = architecture.transformer.has_tied_embeddings;
            RunRanks::of(World::join(rendezvous, options)?, arguments.layout, is_tied, None)?
        }
    };
    let ranks = Arc::new(ranks);
    let network = ranks.network(&device, architecture, Question::SEQUENCE).map_err(TrainError::from)?;
    let mut config: TrainConfig = config(arguments.precision);
    config.model.weights.clone_from(&arguments.weights);
    config.optimizer.decay = Decay::Constant;
    config.optimizer.warmup = 0;
    Ok(Trainer::on(ranks, network, device, config)?)
}

fn answer<E: Trained>(trainer: &mut Trainer<E>, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |word: &str| word.parse::<f64>().map_err(|error| error.to_string());
    match words[..] {
        ["step", count] => {
            let count = number(count)? as usize;
            timed(trainer, count).map_err(|error| error.to_string())
        }
        ["losses", ref rates @ ..] => {
            let mut answer = "ok".to_owned();
            for rate in rates {
                answer += &format!(" {:e}", loss_at(trainer, number(rate)?)?);
            }
            Ok(answer)
        }
        _ => Err(format!("`{line}` is no order")),
    }
}

fn timed<E: Trained>(trainer: &mut Trainer<E>, count: usize) -> Result<String, TrainError> {
    let mut answer = "ok".to_owned();
    for _ in 0..count {
        let outcome = trainer.step(&share(trainer))?;
        answer += &format!(" {:.0}", 1e9 * outcome.seconds.get());
    }
    Ok(answer)
}

/// The rate is the configuration's; another one would not be compared.
fn loss_at<E: Trained>(trainer: &mut Trainer<E>, rate: f64) -> Result<f64, String> {
    let outcome = trainer.step(&share(trainer)).map_err(|error| error.to_string())?;
    match outcome.learning_rate == rate {
        true => Ok(outcome.loss),
        false => Err(format!("the learning rate is {}, not {rate}", outcome.learning_rate)),
    }
}

/// This rank's micro-batches of the step that comes.
fn share<E: Trained>(trainer: &Trainer<E>) -> Vec<Batch> {
    let (at, of) = (trainer.ranks().at().data as usize, trainer.ranks().layout().data as usize);
    let count = Question::BATCH / Question::MICRO_BATCH;
    let own = count * at / of..count * (at + 1) / of;
    own.map(|number| batch(trainer.steps_done() as usize, number * Question::MICRO_BATCH)).collect()
}

/// Sequences of tokens by a rule that the peer follows too.
fn batch(step: usize, first: usize) -> Batch {
    let (sequence, rows) = (Question::SEQUENCE, Question::MICRO_BATCH);
    let token = |row: usize, at: usize| {
        let place = at + (step * Question::BATCH + first + row) * sequence;
        (place * 7919 % 1009 % Question::VOCAB) as u32
    };
    let all = |shift: usize| -> Vec<u32> {
        (0..rows).flat_map(|row| (0..sequence).map(move |at| token(row, at + shift))).collect()
    };
    Batch {
        tokens: all(0),
        targets: all(1),
        first_keys: vec![0; rows * sequence],
        positions: (0..rows * sequence).map(|at| (at % sequence) as u32).collect(),
        padding: vec![0; rows],
        first_sample: (step * Question::BATCH + first) as u64,
        rows,
        counted: rows * sequence,
    }
}
