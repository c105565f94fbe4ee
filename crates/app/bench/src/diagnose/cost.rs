//! What watching costs: a very large gang, and a very long log.

use bedplate_breakdown::{Breakdown, Measured, Part, Span};
use bedplate_diagnose::Monitor;
use bedplate_host::memory::own_resident_bytes;
use bedplate_logs::{LogReader, Recognizer};
use bedplate_report::{Report, StepReport};
use bedplate_units::{Bytes, Seconds};
use serde_json::{Value, json};

use crate::cpu_clock::CpuClock;

const RANKS: u32 = 10_000;
const REPORTS: u64 = 40;
/// The daemon judges gangs of this size every so many seconds.
const JUDGE_EVERY: u64 = 5;
const LOG_BYTES: usize = 256 << 20;

pub(super) struct Cost {
    /// Cores that are busy with a gang whose ranks report every second.
    cores: f64,
    gang_bytes: u64,
    log_bytes_per_s: f64,
    steps: usize,
}

pub(super) fn measure(recognizer: &Recognizer) -> Cost {
    let before = own_resident_bytes().unwrap_or(0);
    let mut monitor = Monitor::new(None);
    let clock = CpuClock::start();
    for step in 1..=REPORTS {
        for rank in 0..RANKS {
            if step == 1 {
                monitor.member(rank, &format!("n{}", rank / 8), None);
            }
            let span = |seconds: f64| Span::exposed(Seconds::new(seconds));
            let wobble = f64::from(rank * 7919 % 101) * 1e-4;
            let breakdown = Breakdown::<Measured>::default()
                .with(Part::Compute, span(0.7 + wobble))
                .with(Part::ScaleOut, span(0.3 - wobble));
            let report =
                StepReport { step, seconds: 1.0, tokens: None, loss: None, breakdown: Some(breakdown) };
            monitor.report(rank, step as f64, &Report::Step(Box::new(report)));
        }
        if step % JUDGE_EVERY == 0 {
            monitor.judge(step as f64);
        }
    }
    let cores = clock.elapsed_ms() / 1e3 / REPORTS as f64;
    let gang_bytes = own_resident_bytes().unwrap_or(0).saturating_sub(before);
    let (log_bytes_per_s, steps) = read_log(recognizer);
    Cost { cores, gang_bytes, log_bytes_per_s, steps }
}

/// A log as trainers write it: a step, and ten lines that say nothing.
fn read_log(recognizer: &Recognizer) -> (f64, usize) {
    let mut piece = String::new();
    for step in 0..2000 {
        piece += &format!(
            " [2026-01-01 10:00:00] iteration {step:8}/  100000 | consumed samples: 1280 | elapsed time per iteration (ms): 2028.1 | global batch size: 128 | lm loss: 1.258695E+01 | grad norm: 10.275 |\n"
        );
        for line in 0..10 {
            piece += &format!(
                "[rank{}]: DEBUG 2026-01-01 10:00:00,123 trainer.py:212 prefetched shard {step}-{line} of the data set in 12.2 ms\n",
                line % 8
            );
        }
    }
    let mut reader = LogReader::new(recognizer);
    let clock = CpuClock::start();
    let mut read = 0;
    while read < LOG_BYTES {
        reader.feed(piece.as_bytes());
        read += piece.len();
    }
    let seconds = clock.elapsed_ms() / 1e3;
    (read as f64 / seconds, reader.finish().steps.len())
}

impl Cost {
    pub(super) fn text(&self) -> String {
        format!(
            "\na gang of {RANKS} ranks that report every second takes {:.2} of a core and {} to watch\n\
             a core reads {}/s of log ({} steps in {})",
            self.cores,
            Bytes::new(self.gang_bytes as f64),
            Bytes::new(self.log_bytes_per_s),
            self.steps,
            Bytes::new(LOG_BYTES as f64),
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({ "ranks": RANKS, "cores": self.cores, "gang_bytes": self.gang_bytes, "log_bytes_per_s": self.log_bytes_per_s })
    }
}
