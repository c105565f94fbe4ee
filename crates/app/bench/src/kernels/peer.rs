//! PyTorch as a peer: a Python process that measures one operator at a time on request.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use bedplate_diag::{Diagnostic, Page};
use bedplate_terminal::CliError;
use bedplate_terminal::benchmarks::TORCH;
use serde_json::Value;

use super::PeerTimes;

const SCRIPT: &str = include_str!("torch.py");

pub(super) struct Torch {
    process: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

#[derive(Debug, thiserror::Error)]
enum TorchError {
    #[error("cannot start {python}")]
    Start { python: String, source: std::io::Error },
    #[error("PyTorch ended while it measured {operator}")]
    Ended { operator: String },
}

impl Diagnostic for TorchError {
    fn page(&self) -> &'static Page {
        &TORCH
    }
}

impl Torch {
    pub(super) fn start(python: &str, threads: usize, compiles: bool) -> Result<Self, CliError> {
        let mut process = Command::new(python)
            .args(["-c", SCRIPT, &threads.to_string(), if compiles { "compile" } else { "eager" }])
            .env("OMP_NUM_THREADS", threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| TorchError::Start { python: python.to_owned(), source })?;
        let asks = process.stdin.take().expect("it has a pipe");
        let mut answers = BufReader::new(process.stdout.take().expect("it has a pipe"));
        // While it starts up it uses the processor and would disturb our measurements.
        let mut line = String::new();
        let is_ready = answers.read_line(&mut line).is_ok_and(|_| line.trim() == "ready");
        let torch = Self { process, asks, answers };
        if is_ready {
            Ok(torch)
        } else {
            Err(TorchError::Ended { operator: "nothing yet".to_owned() }.into())
        }
    }

    /// Eager and compiled times of an operator; absent where PyTorch has no such thing.
    pub(super) fn measure(
        &mut self,
        operator: &str,
        precision: &str,
    ) -> Result<[Option<PeerTimes>; 2], CliError> {
        let ended = || TorchError::Ended { operator: operator.to_owned() };
        writeln!(self.asks, "{operator} {precision}")
            .and_then(|()| self.asks.flush())
            .map_err(|_| ended())?;
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).map_err(|_| ended())?;
        let answer: Value = serde_json::from_str(&line).map_err(|_| ended())?;
        if read == 0 {
            return Err(ended().into());
        }
        let times = |key: &str| {
            let forward = answer[key]["forward"].as_f64()?;
            Some(PeerTimes { forward, both: answer[key]["both"].as_f64()? })
        };
        Ok([times("eager"), times("compiled")])
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
