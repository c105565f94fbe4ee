//! Reading: chunks that hold something wanted are read side by side, checked, and handed out row by row.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;

use bedplate_network::Region;

use crate::buffer::Buffer;
use crate::chunks::Sequence;
use crate::manifest::Manifest;
use crate::part::{NUMBER, PartEntry};
use crate::{CheckpointError, Store};

/// Receives what a rank wants of a checkpoint.
pub trait WantedPart {
    /// Takes a range of the numbers of one of the regions, counted row by row.
    fn write(&mut self, region: usize, range: Range<usize>, values: &[f32]);
}

/// Reads that are under way at once.
const DEPTH: usize = 8;

/// A chunk to read.
#[derive(Debug, Clone, Copy)]
struct Job {
    part: usize,
    chunk: usize,
}

/// Some of a checkpoint's chunks, being read.
pub(crate) struct ChunkReading<'a> {
    pub(crate) store: &'a Store,
    pub(crate) name: &'a str,
    pub(crate) manifest: &'a Manifest,
}

type Chunk = Result<(Job, Buffer), CheckpointError>;

impl ChunkReading<'_> {
    /// Reads and checks every byte.
    pub(crate) fn verify(&self) -> Result<(), CheckpointError> {
        let parts = self.manifest.parts.iter().enumerate();
        let jobs = parts
            .flat_map(|(part, entry)| (0..entry.checksums.len()).map(move |chunk| Job { part, chunk }))
            .collect();
        self.run(jobs, &mut |_, _| {})
    }

    /// Hands out the numbers of some regions.
    pub(crate) fn load(
        &self,
        regions: &[Region],
        wanted: &mut dyn WantedPart,
    ) -> Result<(), CheckpointError> {
        let index = self.index(regions)?;
        let sequences: Vec<Sequence> =
            self.manifest.parts.iter().map(|part| Sequence::new(&part.regions)).collect();
        let mut jobs = Vec::new();
        for (part, entry) in self.manifest.parts.iter().enumerate() {
            let is_needed = |chunk: &usize| {
                sequences[part].overlaps(numbers(entry, *chunk)).any(|(region, inside, _)| {
                    let stored = &entry.regions[region];
                    let candidates = index.get(stored.tensor.as_str()).into_iter().flatten();
                    let mut overlapping =
                        candidates.filter(|wanted| meets(stored, &inside, &regions[**wanted]));
                    overlapping.next().is_some()
                })
            };
            let needed = (0..entry.checksums.len()).filter(is_needed);
            jobs.extend(needed.map(|chunk| Job { part, chunk }));
        }
        self.run(jobs, &mut |Job { part, chunk }, buffer| {
            let entry = &self.manifest.parts[part];
            let range = numbers(entry, chunk);
            let values = buffer.numbers((range.end - range.start) as usize);
            for (region, inside, at) in sequences[part].overlaps(range) {
                let stored = &entry.regions[region];
                for which in index.get(stored.tensor.as_str()).into_iter().flatten() {
                    let values = &values[at..at + inside.len()];
                    hand_out(stored, inside.clone(), values, &regions[*which], &mut |range, values| {
                        wanted.write(*which, range, values);
                    });
                }
            }
        })
    }

    /// Which regions are wanted of each tensor. An error before anything is read where the checkpoint has no such tensor.
    fn index<'b>(&self, regions: &'b [Region]) -> Result<BTreeMap<&'b str, Vec<usize>>, CheckpointError> {
        let mut index: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (number, region) in regions.iter().enumerate() {
            if self.manifest.tensors().get(&region.tensor) != Some(&region.shape) {
                let what = format!("it has no `{}` of the size that this run needs", region.tensor);
                return Err(CheckpointError::Foreign { place: self.store.place(self.name), what });
            }
            index.entry(&region.tensor).or_default().push(number);
        }
        Ok(index)
    }

    fn run(&self, jobs: Vec<Job>, take: &mut dyn FnMut(Job, &Buffer)) -> Result<(), CheckpointError> {
        let mut parts: Vec<usize> = jobs.iter().map(|job| job.part).collect();
        parts.dedup();
        parts.into_iter().try_for_each(|part| self.check_size(&self.manifest.parts[part]))?;
        let (next, free) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let (sender, chunks) = mpsc::sync_channel::<Chunk>(2);
        thread::scope(|scope| {
            for _ in 0..DEPTH.min(jobs.len()) {
                let (jobs, next, free, sender) = (&jobs, &next, &free, sender.clone());
                scope.spawn(move || self.read_chunks(jobs, next, free, sender));
            }
            drop(sender);
            // Returning early drops the receiver, and the readers end.
            let chunks = chunks;
            for chunk in chunks {
                let (job, buffer) = chunk?;
                take(job, &buffer);
                free.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
            }
            Ok(())
        })
    }

    fn read_chunks(
        &self,
        jobs: &[Job],
        next: &AtomicUsize,
        free: &Mutex<Vec<Buffer>>,
        sender: SyncSender<Chunk>,
    ) {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let entry = &self.manifest.parts[job.part];
            let range = entry.chunk_range(job.chunk);
            let len = (range.end - range.start) as usize;
            let reused = free.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut buffer =
                reused.filter(|buffer| buffer.holds(len)).unwrap_or_else(|| Buffer::new(len as u64));
            let outcome = self.read_chunk(entry, job.chunk, &mut buffer);
            if sender.send(outcome.map(|()| (*job, buffer))).is_err() {
                return;
            }
        }
    }

    fn read_chunk(
        &self,
        entry: &PartEntry,
        chunk: usize,
        buffer: &mut Buffer,
    ) -> Result<(), CheckpointError> {
        let range = entry.chunk_range(chunk);
        let bytes = buffer.bytes_mut((range.end - range.start) as usize);
        let cannot = |source| CheckpointError::reading(&self.store.place(self.name), &entry.file, source);
        self.store.storage().read(&self.path(&entry.file), range.start, bytes).map_err(cannot)?;
        if crc32c::crc32c(bytes) == entry.checksums[chunk] {
            return Ok(());
        }
        let Range { start, end } = range;
        Err(self
            .damaged(format!("{} is damaged: the checksum of bytes {start} to {end} is wrong", entry.file)))
    }

    fn check_size(&self, entry: &PartEntry) -> Result<(), CheckpointError> {
        let cannot = |source| CheckpointError::reading(&self.store.place(self.name), &entry.file, source);
        let bytes = self.store.storage().size(&self.path(&entry.file)).map_err(cannot)?;
        if bytes == entry.bytes {
            return Ok(());
        }
        Err(self.damaged(format!("{} has {bytes} bytes instead of {}", entry.file, entry.bytes)))
    }

    fn damaged(&self, what: String) -> CheckpointError {
        CheckpointError::Damaged { place: self.store.place(self.name), what }
    }

    fn path(&self, file: &str) -> String {
        if self.name.is_empty() { file.to_owned() } else { format!("{}/{file}", self.name) }
    }
}

/// The numbers of a chunk.
fn numbers(entry: &PartEntry, chunk: usize) -> Range<u64> {
    let range = entry.chunk_range(chunk);
    range.start / NUMBER..range.end / NUMBER
}

fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

/// The rows of the whole that a range of a region's numbers touches.
fn rows_of(region: &Region, inside: &Range<usize>) -> Range<usize> {
    let (first, width) = (region.rows.start, region.columns.len());
    first + inside.start / width..first + inside.end.div_ceil(width)
}

fn meets(stored: &Region, inside: &Range<usize>, wanted: &Region) -> bool {
    !common(&rows_of(stored, inside), &wanted.rows).is_empty()
        && !common(&stored.columns, &wanted.columns).is_empty()
}

/// Gives the numbers of a stored region, of which `values` are the range `inside`, that a wanted region shares with it.
fn hand_out(
    stored: &Region,
    inside: Range<usize>,
    values: &[f32],
    wanted: &Region,
    take: &mut dyn FnMut(Range<usize>, &[f32]),
) {
    let columns = common(&stored.columns, &wanted.columns);
    if inside.is_empty() || columns.is_empty() {
        return;
    }
    let (width, wanted_width) = (stored.columns.len(), wanted.columns.len());
    if stored.columns == wanted.columns {
        // The same rows one after the other on both sides.
        let (from, to) = (stored.rows.start * width, wanted.rows.start * width);
        let shared = common(&(from + inside.start..from + inside.end), &(to..wanted.rows.end * width));
        if !shared.is_empty() {
            let first = shared.start - from - inside.start;
            take(shared.start - to..shared.end - to, &values[first..first + shared.len()]);
        }
        return;
    }
    for row in common(&rows_of(stored, &inside), &wanted.rows) {
        // What is here of this row, by its place in the region.
        let start = (row - stored.rows.start) * width;
        let here = common(
            &(start + columns.start - stored.columns.start..start + columns.end - stored.columns.start),
            &inside,
        );
        if here.is_empty() {
            continue;
        }
        let column = stored.columns.start + here.start - start;
        let to = (row - wanted.rows.start) * wanted_width + column - wanted.columns.start;
        take(to..to + here.len(), &values[here.start - inside.start..here.end - inside.start]);
    }
}
