//! How a part's file is divided: where its regions lie, and how large chunks and the pool of buffers are.

use std::ops::Range;

use bedplate_network::Region;

use crate::part::{LARGEST_CHUNK, NUMBER};

/// Regions one after the other, found by their place in numbers.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    /// Where each region begins, and after them the end.
    starts: Vec<u64>,
}

impl Sequence {
    pub(crate) fn new(regions: &[Region]) -> Self {
        let mut starts = vec![0];
        for region in regions {
            starts.push(starts.last().copied().unwrap_or(0) + region.len() as u64);
        }
        Self { starts }
    }

    /// All numbers.
    pub(crate) fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The regions that share numbers with a range: which, the numbers of it, and where in the range they begin.
    pub(crate) fn overlaps(&self, range: Range<u64>) -> impl Iterator<Item = (usize, Range<usize>, usize)> {
        let first = self.starts.partition_point(|start| *start <= range.start).saturating_sub(1);
        let spans = self.starts.windows(2).enumerate().skip(first);
        spans.take_while(move |(_, span)| span[0] < range.end).filter_map(move |(index, span)| {
            let (start, end) = (span[0].max(range.start), span[1].min(range.end));
            let inside = (start - span[0]) as usize..end.saturating_sub(span[0]) as usize;
            (start < end).then_some((index, inside, (start - range.start) as usize))
        })
    }
}

/// Sizes of chunks and of the pool, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkSizes {
    pub(crate) bytes: u64,
    pub(crate) chunk: u64,
    pub(crate) buffers: usize,
}

/// Blocks that a disk takes without going through the page cache.
pub(crate) const BLOCK: u64 = 4096;
const SMALLEST_CHUNK: u64 = 64 << 10;
/// Larger ones no longer make a disk faster.
const USUAL_CHUNK: u64 = 4 << 20;
const MOST_BUFFERS: u64 = 32;
/// Numbered parts that a bucket takes for one object.
const MOST_CHUNKS: u64 = 10_000;

impl ChunkSizes {
    /// For a part of some bytes and a pool of at most some; `least` is the smallest chunk that the store takes where there are several.
    pub(crate) fn new(bytes: u64, pool: u64, least: u64) -> Self {
        let wanted = (pool / 16).clamp(SMALLEST_CHUNK, USUAL_CHUNK) / SMALLEST_CHUNK * SMALLEST_CHUNK;
        let for_count = bytes.div_ceil(MOST_CHUNKS).next_multiple_of(SMALLEST_CHUNK);
        let for_store = if bytes > wanted { least } else { 0 };
        let most = bytes.next_multiple_of(BLOCK).max(BLOCK);
        let chunk = wanted.max(for_count).max(for_store).min(most).min(LARGEST_CHUNK);
        let needed = bytes.div_ceil(chunk).max(1);
        let buffers = (pool / chunk).clamp(2, MOST_BUFFERS).min(needed);
        Self { bytes, chunk, buffers: buffers as usize }
    }

    pub(crate) fn chunks(&self) -> u64 {
        self.bytes.div_ceil(self.chunk)
    }

    /// The numbers of a chunk.
    pub(crate) fn numbers(&self, index: u64) -> Range<u64> {
        let start = index * self.chunk;
        start / NUMBER..self.bytes.min(start + self.chunk) / NUMBER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_a_twentieth_of_a_large_state_and_chunks_suit_disks() {
        let gib = 1 << 30;
        assert_eq!(
            ChunkSizes::new(gib, gib / 20, 0),
            ChunkSizes { bytes: gib, chunk: 51 << 16, buffers: 16 }
        );
        let large = ChunkSizes::new(100 * gib, 5 * gib, 0);
        assert_eq!((large.chunk, large.buffers), (164 << 16, 32));
        for bytes in [4, 100, 4096, 65536, 1 << 20, (1 << 26) + 4] {
            let sizes = ChunkSizes::new(bytes, bytes / 20, 5 << 20);
            assert!(sizes.chunk.is_multiple_of(BLOCK) && sizes.buffers >= 1);
            assert!(sizes.chunks() == 1 || sizes.chunk >= 5 << 20);
        }
    }

    #[test]
    fn overlaps_name_each_number_once() {
        let regions = [3, 0, 5, 1].map(|rows| Region::whole("a", [rows, 2]));
        let sequence = Sequence::new(&regions);
        assert_eq!(sequence.len(), 18);
        let found: Vec<_> = sequence.overlaps(4..17).collect();
        assert_eq!(found, [(0, 4..6, 0), (2, 0..10, 2), (3, 0..1, 12)]);
        assert_eq!(sequence.overlaps(6..7).collect::<Vec<_>>(), [(2, 0..1, 0)]);
    }
}
