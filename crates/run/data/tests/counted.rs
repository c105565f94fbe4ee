//! What a batch costs the reader of samples: allocations and bytes read, counted, so that slow decay shows.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[path = "data/fixture.rs"]
mod fixture;

use bedplate_data::{Batch, DocumentMask, Packing, Sample, SampleOrder, Stream, StreamOptions};
use bedplate_testkit::counting::{CountingAllocator, assert_at_most, io_of_thread, of_thread};

use fixture::{Folder, corpus_of, numbered};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROWS: u64 = 4;
const SEQUENCE: usize = 512;
const BATCHES: u64 = 50;

#[test]
fn a_batch_reads_the_blocks_that_hold_its_samples_and_allocates_nothing() {
    let folder = Folder::new();
    let corpus = corpus_of(&folder, &numbered(&[300; 200]), 1 << 14);
    let options = StreamOptions {
        sequence: SEQUENCE,
        seed: 1,
        packing: Packing::Windows,
        order: SampleOrder::Shuffled,
    };
    let stream = Stream::of(corpus, options).unwrap();
    let (mut batch, mut sample) = (Batch::default(), Sample::default());
    let mut fill = |number: u64| {
        batch.fill(&stream, number * ROWS, ROWS, DocumentMask::Own, &mut sample).unwrap();
    };
    (0..BATCHES).for_each(&mut fill);
    let (((), io), allocated) = of_thread(|| io_of_thread(|| (BATCHES..2 * BATCHES).for_each(&mut fill)));
    assert_at_most("allocations of 50 batches", allocated.count, 0);
    assert_at_most("reads of a batch of 4 samples", io.reads.div_ceil(BATCHES), 5);
    // A block is read whole, so that its checksum can be compared.
    assert_at_most("bytes read for a batch of 4 samples", io.read_bytes / BATCHES, 38_161);
}
