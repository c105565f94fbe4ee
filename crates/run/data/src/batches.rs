//! Micro-batches, read ahead by a background thread into recycled buffers.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bedplate_host::{panics, spawn_within};

use crate::error::DataError;
use crate::stream::{Sample, Stream};

/// The target of a position whose prediction does not count.
pub const IGNORED: u32 = u32::MAX;

/// Which samples a rank takes, in micro-batches. A global batch of `global_batch` samples is one optimizer
/// step; every rank takes a contiguous share of it, `rows` samples at a time. Where micro-batches do not divide evenly some ranks
/// have one more than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// The first sample of the first global batch: all that a checkpoint must store about the data.
    pub first_sample: u64,
    pub global_batch: u64,
    pub rows: u64,
    pub rank: u64,
    pub ranks: u64,
}

impl Schedule {
    /// All samples in one process.
    pub fn alone(first_sample: u64, global_batch: u64, rows: u64) -> Self {
        Self { first_sample, global_batch, rows, rank: 0, ranks: 1 }
    }

    /// Micro-batches of this rank in an optimizer step.
    pub fn micro_batches(&self) -> u64 {
        self.border(self.rank + 1) - self.border(self.rank)
    }

    /// Micro-batches of the ranks before one.
    fn border(&self, rank: u64) -> u64 {
        self.global_batch / self.rows * rank / self.ranks
    }

    /// The first sample of the rank's `number`th micro-batch, counted over all steps.
    pub fn first_of(&self, number: u64) -> u64 {
        let (step, within) = (number / self.micro_batches(), number % self.micro_batches());
        let before = self.border(self.rank) + within;
        self.first_sample + step * self.global_batch + before * self.rows
    }

    fn check(&self) -> Result<(), DataError> {
        let divides = self.rows > 0 && self.global_batch.is_multiple_of(self.rows);
        let is_enough = divides && self.ranks > 0 && self.global_batch / self.rows >= self.ranks;
        if is_enough && self.rank < self.ranks {
            return Ok(());
        }
        Err(DataError::BadChoice {
            what: format!(
                "a global batch of {} samples cannot be shared out over {} ranks with {} rows at a time (rank {})",
                self.global_batch, self.ranks, self.rows, self.rank
            ),
            remedy: "choose a global batch that is a multiple of the rows, with at least one micro-batch for each rank",
        })
    }
}

/// Whether a token may attend to documents before its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentMask {
    /// Attention and positions restart with each document.
    Own,
    /// A sample is one text, whatever its documents.
    Ignored,
}

/// A micro-batch: `rows` sequences, one after the other in each list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    pub tokens: Vec<u32>,
    /// The token to be predicted at each position, or [`IGNORED`].
    pub targets: Vec<u32>,
    /// The first position of its sequence that each position may attend to.
    pub first_keys: Vec<u32>,
    pub positions: Vec<u32>,
    /// Tokens of padding at the end of each sequence.
    pub padding: Vec<u32>,
    /// The number of the first row's sample.
    pub first_sample: u64,
    pub rows: usize,
    /// Targets that count.
    pub counted: usize,
}

impl Batch {
    /// Fills in samples `first_sample..first_sample + rows` of a stream.
    pub fn fill(
        &mut self,
        stream: &Stream,
        first_sample: u64,
        rows: u64,
        mask: DocumentMask,
        sample: &mut Sample,
    ) -> Result<(), DataError> {
        self.clear();
        self.first_sample = first_sample;
        self.rows = rows as usize;
        for index in first_sample..first_sample + rows {
            stream.fill(index, sample)?;
            self.push(sample, mask, stream.end());
        }
        self.counted = self.targets.iter().filter(|target| **target != IGNORED).count();
        Ok(())
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.targets.clear();
        self.first_keys.clear();
        self.positions.clear();
        self.padding.clear();
    }

    fn push(&mut self, sample: &Sample, mask: DocumentMask, end: Option<u32>) {
        let sequence = sample.tokens().len() - 1;
        let begin = self.targets.len();
        // The last token of a sample is a target only.
        self.padding.push(sample.padding.saturating_sub(1) as u32);
        self.tokens.extend_from_slice(&sample.tokens()[..sequence]);
        let successors = sample.tokens()[1..].iter().zip(&sample.counts()[1..]);
        self.targets.extend(successors.map(|(token, counts)| if *counts { *token } else { IGNORED }));
        match mask {
            DocumentMask::Ignored => {
                self.first_keys.resize(begin + sequence, 0);
                self.positions.extend(0..sequence as u32);
            }
            DocumentMask::Own => {
                self.push_documents(sample.starts(), sequence);
                self.ignore_strangers(sample, begin, end);
            }
        }
    }

    fn push_documents(&mut self, starts: &[u32], sequence: usize) {
        let mut first = 0;
        for end in
            starts.iter().copied().filter(|start| (*start as usize) < sequence).chain([sequence as u32])
        {
            self.first_keys.extend((first..end).map(|_| first));
            self.positions.extend(0..end - first);
            first = end;
        }
    }

    /// The first token of the next document cannot be predicted from this one, unless it is the mark that also
    /// ends this one.
    fn ignore_strangers(&mut self, sample: &Sample, begin: usize, end: Option<u32>) {
        for start in sample.starts().iter().map(|start| *start as usize).filter(|start| *start > 0) {
            if end != Some(sample.tokens()[start]) {
                self.targets[begin + start - 1] = IGNORED;
            }
        }
    }
}

/// Batches one after the other, made by a thread that keeps a few ready.
pub struct Batches {
    ready: Option<Receiver<Result<Batch, DataError>>>,
    used: Option<Sender<Batch>>,
    reader: Option<JoinHandle<()>>,
    waited: Duration,
}

impl Batches {
    /// Starts reading. Up to `ahead` batches, at least one, are kept ready.
    pub fn start(
        stream: Arc<Stream>,
        schedule: Schedule,
        mask: DocumentMask,
        ahead: usize,
    ) -> Result<Self, DataError> {
        schedule.check()?;
        let (ready_sender, ready) = sync_channel(ahead.max(1));
        let (used, used_receiver) = channel();
        let work = move || read(&stream, schedule, mask, &ready_sender, &used_receiver);
        let reader = spawn_within("batches", work).expect("the system starts one more thread");
        Ok(Self { ready: Some(ready), used: Some(used), reader: Some(reader), waited: Duration::ZERO })
    }

    /// The next micro-batch. Give it back with [`recycle`](Self::recycle) and its buffers are used again.
    #[expect(clippy::should_implement_trait, reason = "the stream never ends, and errors must be seen")]
    pub fn next(&mut self) -> Result<Batch, DataError> {
        let began = Instant::now();
        let received = self.ready.as_ref().map(Receiver::recv);
        self.waited += began.elapsed();
        match received {
            Some(Ok(batch)) => batch,
            _ => Err(DataError::ReaderEnded { why: self.why_ended() }),
        }
    }

    fn why_ended(&mut self) -> String {
        match self.reader.take().map(JoinHandle::join) {
            Some(Err(panic)) => format!("a bug: {}", panics::message(panic.as_ref())),
            _ => "it was ended".to_owned(),
        }
    }

    pub fn recycle(&mut self, batch: Batch) {
        // The reader may have ended and no longer need it.
        let _ = self.used.as_ref().map(|used| used.send(batch));
    }

    /// How long [`next`](Self::next) has waited for batches so far.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // Dropping receiver and sender unblocks the reader, which then ends.
        self.ready.take();
        self.used.take();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn read(
    stream: &Stream,
    schedule: Schedule,
    mask: DocumentMask,
    ready: &SyncSender<Result<Batch, DataError>>,
    used: &Receiver<Batch>,
) {
    let mut sample = Sample::default();
    for number in 0.. {
        let mut batch = used.try_recv().unwrap_or_default();
        let filled = batch.fill(stream, schedule.first_of(number), schedule.rows, mask, &mut sample);
        let is_last = filled.is_err();
        if ready.send(filled.map(|()| batch)).is_err() || is_last {
            return;
        }
    }
}
