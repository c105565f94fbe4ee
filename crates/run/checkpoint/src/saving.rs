//! Saving one rank's part: chunks of the live state go through a small pool of buffers to threads that write them.
//!
//! The calling thread fills buffers and hands them on; writers sum them up, write them and give them back. The last writer to end makes the
//! file durable and tells the outcome. After a failed write the writers only give buffers back, so the caller never hangs.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bedplate_host::{panics, spawn_within};
use bedplate_network::Region;

use crate::CheckpointError;
use crate::buffer::Buffer;
use crate::chunks::{ChunkSizes, Sequence};
use crate::part::{NUMBER, PartEntry};
use crate::storage::{Attempt, PartFile, Store};

/// What a rank gives to a checkpoint.
pub trait HeldPart {
    /// Copies a range of the numbers of one of the regions, counted row by row.
    fn read(&self, region: usize, range: std::ops::Range<usize>, values: &mut [f32]);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SavingOptions {
    /// Bytes of the pool; a twentieth of the part where this is absent.
    pub pool: Option<u64>,
}

/// Writes that are under way at once; a disk needs about 16 to be busy.
const DEPTH: usize = 16;
const LEAST_POOL: u64 = 1 << 20;

/// A part that is being written.
#[derive(Debug)]
pub struct Saving {
    sequence: Sequence,
    sizes: ChunkSizes,
    place: String,
    /// The next chunk to copy.
    next: u64,
    made: usize,
    free: Receiver<Buffer>,
    filled: Option<Sender<Filled>>,
    outcome: Receiver<Result<PartEntry, io::Error>>,
    shared: Arc<Shared>,
    waited: Duration,
    is_told: bool,
}

#[derive(Debug)]
struct Filled {
    index: u64,
    buffer: Buffer,
}

#[derive(Debug)]
struct Shared {
    part: Box<dyn PartFile>,
    sizes: ChunkSizes,
    checksums: Mutex<Vec<u32>>,
    trouble: Mutex<Option<io::Error>>,
    /// Nothing more is written: a write has failed, or nobody wants the part any more.
    is_over: AtomicBool,
    writers: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Saving {
    /// Starts to save some regions as the part of a rank. All ranks must have been told the same attempt.
    pub fn start(
        store: &Store,
        attempt: &Attempt,
        rank: usize,
        regions: Vec<Region>,
        options: SavingOptions,
    ) -> Result<Self, CheckpointError> {
        let regions: Vec<Region> = regions.into_iter().filter(|region| !region.is_empty()).collect();
        let sequence = Sequence::new(&regions);
        let bytes = sequence.len() * NUMBER;
        let pool = options.pool.unwrap_or((bytes / 20).max(LEAST_POOL));
        let sizes = ChunkSizes::new(bytes, pool, store.storage().least_chunk());
        let file = format!("part-{rank:05}.data");
        let place = store.place(&attempt.name());
        let part = store
            .storage()
            .part(attempt, &file, sizes)
            .map_err(|source| CheckpointError::Write { place: place.clone(), source })?;
        let entry = PartEntry {
            file: store.storage().path_in_checkpoint(attempt, &file),
            bytes,
            chunk: sizes.chunk,
            checksums: Vec::new(),
            regions,
        };
        Self::of_part(part, sizes, entry, place)
    }

    fn of_part(
        part: Box<dyn PartFile>,
        sizes: ChunkSizes,
        entry: PartEntry,
        place: String,
    ) -> Result<Self, CheckpointError> {
        let (give_back, free) = mpsc::channel();
        let (filled, work) = mpsc::channel();
        let (tell, outcome) = mpsc::channel();
        let writers = sizes.buffers.min(DEPTH);
        let shared = Arc::new(Shared {
            part,
            sizes,
            checksums: Mutex::new(vec![0; sizes.chunks() as usize]),
            trouble: Mutex::new(None),
            is_over: AtomicBool::new(false),
            writers: AtomicUsize::new(writers),
        });
        let work = Arc::new(Mutex::new(work));
        for _ in 0..writers {
            let writer = Writer {
                shared: Arc::clone(&shared),
                work: Arc::clone(&work),
                give_back: give_back.clone(),
                tell: tell.clone(),
                entry: entry.clone(),
            };
            if let Err(source) = spawn_within("checkpoint", move || writer.run()) {
                shared.is_over.store(true, Ordering::Relaxed);
                return Err(CheckpointError::Write { place, source });
            }
        }
        Ok(Self {
            sequence: Sequence::new(&entry.regions),
            sizes,
            place,
            next: 0,
            made: 0,
            free,
            filled: Some(filled),
            outcome,
            shared,
            waited: Duration::ZERO,
            is_told: false,
        })
    }

    /// Copies what there is room for, and does not wait.
    pub fn advance(&mut self, held: &dyn HeldPart) {
        while let Some(buffer) = self.next_buffer(false) {
            self.fill(buffer, held);
        }
    }

    /// Copies all that is left, waiting for the writers. After this the state may change.
    pub fn complete(&mut self, held: &dyn HeldPart) {
        let began = Instant::now();
        while let Some(buffer) = self.next_buffer(true) {
            self.fill(buffer, held);
        }
        self.waited += began.elapsed();
    }

    /// Whether the state may change.
    pub fn is_complete(&self) -> bool {
        self.next == self.sizes.chunks() || self.shared.is_over.load(Ordering::Relaxed)
    }

    /// How long [`Saving::complete`] has held the caller up.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    pub fn bytes(&self) -> u64 {
        self.sizes.bytes
    }

    /// Bytes of memory that the pool can take.
    pub fn pool(&self) -> u64 {
        self.sizes.chunk * self.sizes.buffers as u64
    }

    /// The part, once it is durable; the files of one that failed are gone. Gives an outcome once.
    pub fn finished(&mut self) -> Option<Result<PartEntry, CheckpointError>> {
        self.told(self.outcome.try_recv().map_err(|error| error == TryRecvError::Disconnected))
    }

    /// Waits for the part to be durable.
    pub fn wait(mut self) -> Result<PartEntry, CheckpointError> {
        let outcome = self.outcome.recv().map_err(|_| true);
        self.told(outcome)
            .unwrap_or_else(|| Err(self.write_error(io::Error::other("its outcome was told before"))))
    }

    fn told(
        &mut self,
        outcome: Result<Result<PartEntry, io::Error>, bool>,
    ) -> Option<Result<PartEntry, CheckpointError>> {
        match outcome {
            Ok(outcome) => {
                self.is_told = true;
                Some(outcome.map_err(|source| self.write_error(source)))
            }
            Err(is_gone) if is_gone && !self.is_told => {
                self.is_told = true;
                Some(Err(self.write_error(io::Error::other("a writer has ended early"))))
            }
            Err(_) => None,
        }
    }

    fn write_error(&self, source: io::Error) -> CheckpointError {
        CheckpointError::Write { place: self.place.clone(), source }
    }

    /// A buffer for the next chunk; none when all is copied, or nothing is free and it is not to wait.
    fn next_buffer(&mut self, waits: bool) -> Option<Buffer> {
        if self.is_complete() {
            self.filled = None;
            return None;
        }
        if let Ok(buffer) = self.free.try_recv() {
            return Some(buffer);
        }
        if self.made < self.sizes.buffers {
            self.made += 1;
            return Some(Buffer::new(self.sizes.chunk));
        }
        if waits { self.free.recv().ok() } else { None }
    }

    fn fill(&mut self, mut buffer: Buffer, held: &dyn HeldPart) {
        let range = self.sizes.numbers(self.next);
        let values = buffer.numbers_mut((range.end - range.start) as usize);
        for (region, inside, at) in self.sequence.overlaps(range) {
            let len = inside.len();
            held.read(region, inside, &mut values[at..at + len]);
        }
        let filled = Filled { index: self.next, buffer };
        self.next += 1;
        if let Some(sender) = &self.filled {
            // Writers are gone only when the outcome is known.
            let _ = sender.send(filled);
        }
        if self.is_complete() {
            self.filled = None;
        }
    }
}

impl Drop for Saving {
    /// A part that is not all copied is given up.
    fn drop(&mut self) {
        if !self.is_complete() {
            self.shared.is_over.store(true, Ordering::Relaxed);
        }
    }
}

struct Writer {
    shared: Arc<Shared>,
    work: Arc<Mutex<Receiver<Filled>>>,
    give_back: Sender<Buffer>,
    tell: Sender<Result<PartEntry, io::Error>>,
    entry: PartEntry,
}

impl Writer {
    fn run(self) {
        loop {
            let filled = lock(&self.work).recv();
            let Ok(Filled { index, mut buffer }) = filled else { break };
            let write = || self.shared.write(index, &mut buffer);
            if !self.shared.is_over.load(Ordering::Relaxed)
                && let Err(error) = panics::caught(write).unwrap_or_else(|what| Err(bug(&what)))
            {
                lock(&self.shared.trouble).get_or_insert(error);
                self.shared.is_over.store(true, Ordering::Relaxed);
            }
            let _ = self.give_back.send(buffer);
        }
        if self.shared.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            let outcome = self.shared.finish(self.entry);
            let _ = self.tell.send(outcome);
        }
    }
}

fn bug(what: &str) -> io::Error {
    io::Error::other(format!("a bug in its writer: {what}"))
}

impl Shared {
    fn write(&self, index: u64, buffer: &mut Buffer) -> io::Result<()> {
        let numbers = self.sizes.numbers(index);
        let bytes = ((numbers.end - numbers.start) * NUMBER) as usize;
        lock(&self.checksums)[index as usize] = crc32c::crc32c(buffer.bytes(bytes));
        self.part.put(index, bytes, buffer)
    }

    fn finish(&self, entry: PartEntry) -> io::Result<PartEntry> {
        let trouble = lock(&self.trouble).take();
        let outcome = match trouble {
            Some(error) => Err(error),
            None if self.is_over.load(Ordering::Relaxed) => Err(io::Error::other("it was given up")),
            None => self.part.finish(),
        };
        if outcome.is_err() {
            self.part.abandon();
        }
        outcome.map(|()| PartEntry { checksums: std::mem::take(&mut lock(&self.checksums)), ..entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails from a chunk on, or is wrong from there on.
    #[derive(Debug)]
    struct Failing {
        from: u64,
        has_bug: bool,
        is_abandoned: Arc<AtomicBool>,
    }

    impl PartFile for Failing {
        fn put(&self, index: u64, _: usize, _: &mut Buffer) -> io::Result<()> {
            assert!(index < self.from || !self.has_bug, "a planted bug");
            if index < self.from { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
        }

        fn finish(&self) -> io::Result<()> {
            Err(io::Error::other("it was finished"))
        }

        fn abandon(&self) {
            self.is_abandoned.store(true, Ordering::Relaxed);
        }
    }

    struct Ones;

    impl HeldPart for Ones {
        fn read(&self, _: usize, _: std::ops::Range<usize>, values: &mut [f32]) {
            values.fill(1.0);
        }
    }

    fn saving(from: u64, has_bug: bool, is_abandoned: &Arc<AtomicBool>) -> Saving {
        let regions = vec![Region::whole("weights/a", [1 << 10, 1 << 10])];
        let sizes = ChunkSizes::new(4 << 20, 1 << 18, 0);
        assert!(sizes.chunks() > 10 && sizes.buffers < 10);
        let entry = PartEntry {
            file: "p".into(),
            bytes: 4 << 20,
            chunk: sizes.chunk,
            checksums: Vec::new(),
            regions,
        };
        let part = Failing { from, has_bug, is_abandoned: Arc::clone(is_abandoned) };
        Saving::of_part(Box::new(part), sizes, entry, "there".into()).unwrap()
    }

    #[test]
    fn a_failed_write_ends_the_part_and_holds_nobody_up() {
        for from in [0, 5, 63] {
            let is_abandoned = Arc::new(AtomicBool::new(false));
            let mut saving = saving(from, false, &is_abandoned);
            saving.advance(&Ones);
            saving.complete(&Ones);
            let error = saving.wait().unwrap_err();
            assert!(
                matches!(error, CheckpointError::Write { ref source, .. } if source.kind() == io::ErrorKind::StorageFull)
            );
            assert!(is_abandoned.load(Ordering::Relaxed), "its files go");
        }
    }

    #[test]
    fn a_panic_of_a_writer_is_the_error_of_the_part() {
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let mut saving = saving(5, true, &is_abandoned);
        saving.complete(&Ones);
        let Err(CheckpointError::Write { source, .. }) = saving.wait() else { panic!("it is written") };
        assert!(source.to_string().starts_with("a bug in its writer: a planted bug"), "{source}");
        assert!(is_abandoned.load(Ordering::Relaxed), "its files go");
    }

    #[test]
    fn a_part_that_is_dropped_half_way_is_removed() {
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let mut dropped = saving(u64::MAX, false, &is_abandoned);
        dropped.advance(&Ones);
        drop(dropped);
        bedplate_testkit::wait_until("its files are gone", || is_abandoned.load(Ordering::Relaxed));
    }
}
