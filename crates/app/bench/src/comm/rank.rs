//! `bedplate bench comm-rank`: a rank of our own, which measures what it is told over a socket.
//!
//! The lines are those of every rank set: `measure OPERATION FORMAT BYTES WARMUP SAMPLES CALLS` is answered by
//! `ok ALGORITHM WRONG NANOSECONDS…` or `no REASON`; `overlap BYTES ROUNDS` by `ok` and figures. The end of the lines is the end
//! of the rank.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bedplate_comm::{
    Algorithm, AlgorithmTable, CommError, ElementFormat, Group, Rendezvous, World, WorldOptions,
};
use bedplate_diag::{Diagnostic, Page};
use bedplate_kernels::{Bf16, CudaError, Device, DeviceChoice};
use bedplate_terminal::CliError;
use bedplate_terminal::benchmarks::RANK;
use half::f16;

use super::overlap;
use super::question::{Case, Effort, format, operations};
use super::work::{Countable, Work};

#[derive(clap::Args)]
pub(in super::super) struct Arguments {
    /// Where the command listens that started this rank
    #[arg(long)]
    socket: PathBuf,
    /// Use this algorithm over lanes wherever it exists
    #[arg(long, value_parser = algorithm)]
    algorithm: Option<Algorithm>,
    /// Leave buffers unregistered
    #[arg(long)]
    private: bool,
    /// Where the numbers lie
    #[arg(long, default_value_t = DeviceChoice::Cpu)]
    device: DeviceChoice,
}

pub(super) fn algorithm(word: &str) -> Result<Algorithm, String> {
    use Algorithm::{Doubling, Halving, Pairwise, Ring, Tree};
    let known = [Pairwise, Ring, Doubling, Halving, Tree];
    known.into_iter().find(|algorithm| algorithm.name() == word).ok_or_else(|| {
        format!("it is none of {}; shared memory has one way only", known.map(Algorithm::name).join(", "))
    })
}

/// What a rank says on standard error before it ends.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum RankError {
    #[error("the command that started this rank cannot be reached")]
    Socket(#[source] std::io::Error),
}

impl Diagnostic for RankError {
    fn page(&self) -> &'static Page {
        &RANK
    }
}

pub(in super::super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let variables: BTreeMap<String, String> = std::env::vars().collect();
    let rendezvous = Rendezvous::from_environment(&variables)?;
    let mut options = WorldOptions::from_environment(&variables)?;
    if let Some(algorithm) = arguments.algorithm {
        options.table = AlgorithmTable::only(algorithm);
    }
    let mut socket = UnixStream::connect(&arguments.socket).map_err(RankError::Socket)?;
    tell(&mut socket, &format!("rank {} {}", rendezvous.rank, std::process::id()))?;
    let world = World::join(&rendezvous, &options)?;
    let group = world.everyone()?;
    let device = open(arguments.device, &world)?;
    let rank = Rank { world: &world, group: &group, device: &device, is_private: arguments.private };
    tell(&mut socket, "ready")?;
    let lines = BufReader::new(socket.try_clone().map_err(RankError::Socket)?).lines();
    for line in lines {
        let answer = match rank.answer(&line.map_err(RankError::Socket)?) {
            Ok(answer) => answer,
            Err(why) => format!("no {}", why.replace('\n', " ")),
        };
        tell(&mut socket, &answer)?;
    }
    Ok(())
}

/// A GPU of its own for this rank, or the first for all where there are fewer.
fn open(choice: DeviceChoice, world: &World) -> Result<Device, CliError> {
    let is_first = |error: &CudaError| matches!(error, CudaError::NoSuchDevice { count, .. } if *count > 0);
    match world.choose_device(choice, None)?.open(1) {
        Err(error) if choice == DeviceChoice::Gpu && is_first(&error) => Ok(Device::cuda(0)?),
        opened => Ok(opened?),
    }
}

fn tell(socket: &mut UnixStream, line: &str) -> Result<(), RankError> {
    socket.write_all(format!("{line}\n").as_bytes()).map_err(RankError::Socket)
}

struct Rank<'a> {
    world: &'a World,
    group: &'a Group,
    device: &'a Device,
    is_private: bool,
}

impl Rank<'_> {
    fn answer(&self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["measure", operation, numbers, bytes, warmup, samples, calls] => {
                let case = Case {
                    operation: operations(operation)?[0],
                    format: format(numbers)?,
                    ranks: self.world.size(),
                    bytes: whole(bytes)?,
                };
                let effort =
                    Effort { warmup: whole(warmup)?, samples: whole(samples)?, calls: whole(calls)? };
                self.measure(case, effort).map_err(|error| error.to_string())
            }
            ["overlap", bytes, rounds] => {
                let (bytes, rounds) = (whole(bytes)?, whole(rounds)?);
                overlap::measure(self.world, self.group, bytes, rounds).map_err(|error| error.to_string())
            }
            _ => Err(format!("`{line}` is no order")),
        }
    }

    fn measure(&self, case: Case, effort: Effort) -> Result<String, CommError> {
        match case.format {
            ElementFormat::F32 => self.timed::<f32>(case, effort),
            ElementFormat::F64 => self.timed::<f64>(case, effort),
            ElementFormat::Bf16 => self.timed::<Bf16>(case, effort),
            ElementFormat::F16 => self.timed::<f16>(case, effort),
            ElementFormat::I8 => self.timed::<i8>(case, effort),
            ElementFormat::U8 => self.timed::<u8>(case, effort),
            ElementFormat::I32 => self.timed::<i32>(case, effort),
            ElementFormat::U32 => self.timed::<u32>(case, effort),
            ElementFormat::I64 => self.timed::<i64>(case, effort),
            ElementFormat::U64 => self.timed::<u64>(case, effort),
        }
    }

    fn timed<E: Countable>(&self, case: Case, effort: Effort) -> Result<String, CommError> {
        let mut work = Work::<E>::new(case, self.world, self.group, self.device, self.is_private)?;
        for _ in 0..effort.warmup {
            work.call()?;
        }
        let mut nanoseconds = Vec::new();
        for _ in 0..effort.samples {
            self.group.barrier()?;
            nanoseconds.push(sample(&mut work, effort.calls)?.as_nanos().to_string());
        }
        let wrong = work.count_wrong()?;
        self.group.barrier()?;
        let algorithm = self.group.algorithm(case.operation, case.moved()).name();
        Ok(format!("ok {algorithm} {wrong} {}", nanoseconds.join(" ")))
    }
}

/// The mean of some calls that follow each other.
fn sample<E: Countable>(work: &mut Work<'_, E>, calls: u32) -> Result<Duration, CommError> {
    let began = Instant::now();
    for _ in 0..calls {
        work.call()?;
    }
    Ok(began.elapsed() / calls.max(1))
}

fn whole<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("`{word}` is no number"))
}
