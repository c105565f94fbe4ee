//! A line of JSON for every request, in the format that `bedplate replay requests` reads.
//!
//! Lines are written by a thread of their own, so that a slow disk holds up no answer; lines that it cannot take are counted.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bedplate_random::mix;
use bedplate_record::Counter;
use serde_json::{Value, json};

use crate::error::GatewayError;

/// Lines that may wait for the disk.
const MOST_WAITING: usize = 8192;
/// How long a server that ends waits for the disk.
const CLOSES_WITHIN: Duration = Duration::from_secs(10);

/// What a line says of all requests of a client's request.
#[derive(Debug, Clone)]
pub(crate) struct TraceLine {
    pub(crate) tenant: u32,
    pub(crate) priority: i8,
    pub(crate) samples: u16,
    pub(crate) block_tokens: u32,
}

/// What it took.
#[derive(Debug, Clone)]
pub(crate) struct MeasuredRequest {
    pub(crate) queue_ms: Option<f64>,
    pub(crate) first_token_ms: Option<f64>,
    pub(crate) end_ms: f64,
    pub(crate) cached_tokens: u64,
    pub(crate) is_complete: bool,
}

/// The file.
pub(crate) struct Trace {
    began: Instant,
    lines: Mutex<Option<SyncSender<String>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    pub(crate) dropped: Counter,
}

impl Trace {
    /// Appends to a file, which is created where there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, GatewayError> {
        let failed = |source| GatewayError::Trace { path: path.to_owned(), source };
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
        let (sender, lines) = sync_channel(MOST_WAITING);
        let thread = std::thread::Builder::new().name("trace".into()).spawn(move || write_all(file, &lines));
        Ok(Self {
            began: Instant::now(),
            lines: Mutex::new(Some(sender)),
            writer: Mutex::new(Some(thread.map_err(failed)?)),
            dropped: Counter::default(),
        })
    }

    /// Times count from when the file was opened. A request without tokens is none.
    pub(crate) fn write(
        &self,
        line: &TraceLine,
        arrived: Instant,
        prompt: &[u32],
        output: u32,
        measured: &MeasuredRequest,
    ) {
        if prompt.is_empty() || output == 0 {
            return;
        }
        let at = arrived.saturating_duration_since(self.began).as_secs_f64() * 1e3;
        let text = to_json(line, at, prompt, output, measured).to_string();
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.as_ref().is_some_and(|lines| lines.try_send(text).is_err()) {
            self.dropped.add(1);
        }
    }

    /// Returns once all lines are in the file, or its disk has not taken them for a while.
    pub(crate) fn close(&self) {
        drop(self.lines.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let deadline = Instant::now() + CLOSES_WITHIN;
            while !writer.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn to_json(line: &TraceLine, at_ms: f64, prompt: &[u32], output: u32, measured: &MeasuredRequest) -> Value {
    let rounded = |number: f64| (number * 1e3).round() / 1e3;
    json!({
        "timestamp": rounded(at_ms),
        "input_length": prompt.len(),
        "output_length": output,
        "hash_ids": hashes(prompt, line.block_tokens.max(1) as usize),
        "block_size": line.block_tokens.max(1),
        "tenant": line.tenant,
        "priority": line.priority,
        "samples": line.samples,
        "measured": {
            "queue_ms": measured.queue_ms.map(rounded),
            "first_token_ms": measured.first_token_ms.map(rounded),
            "end_ms": rounded(measured.end_ms),
            "cached_tokens": measured.cached_tokens,
            "is_complete": measured.is_complete,
        },
    })
}

/// One hash for each full block, which stands for it and everything before it.
fn hashes(prompt: &[u32], block: usize) -> Vec<u64> {
    let step = |hash: &mut u64, tokens: &[u32]| {
        *hash = tokens
            .iter()
            .fold(*hash, |hash, token| mix(hash ^ u64::from(*token).wrapping_add(0x9e37_79b9_7f4a_7c15)));
        Some(*hash)
    };
    prompt.chunks_exact(block).scan(0, step).collect()
}

/// The disk's errors concern no request: what cannot be written is lost.
fn write_all(file: File, lines: &Receiver<String>) {
    let mut file = BufWriter::new(file);
    while let Ok(line) = lines.recv() {
        let _ = writeln!(file, "{line}");
        while let Ok(line) = lines.try_recv() {
            let _ = writeln!(file, "{line}");
        }
        let _ = file.flush();
    }
}
