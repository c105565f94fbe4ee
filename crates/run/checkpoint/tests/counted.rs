//! What loading a region of a checkpoint costs: bytes read from its parts, counted, so that slow decay shows.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "the other tests need more of it")]
#[path = "checkpoint/place.rs"]
mod place;

use bedplate_checkpoint::Region;
use bedplate_testkit::counting::{assert_at_most, io_of_process};

use place::{Got, Place, newest, save};

/// The smallest, which a small pool leads to.
const CHUNK: u64 = 64 << 10;

#[test]
fn a_region_is_read_by_the_chunks_that_hold_it() {
    let (place, tensor) = (Place::new("counted"), "weights/a");
    let checkpoints = place.checkpoints(1);
    // 4 MiB, a row being a sixteenth of a chunk.
    save(&checkpoints, &[vec![Region::whole(tensor, [1024, 1024])]], 1).unwrap();
    let checkpoint = newest(&checkpoints);
    let read = |rows: std::ops::Range<usize>| {
        let region = Region { rows, ..Region::whole(tensor, [1024, 1024]) };
        let mut got = Got(vec![vec![0.0; region.len()]]);
        io_of_process(|| checkpoint.load(&[region], &mut got).unwrap()).1
    };
    for (what, rows, chunks) in [("a row", 100..101, 1), ("rows on both sides of an edge", 111..113, 2)] {
        let io = read(rows);
        assert_at_most(&format!("bytes read for {what}"), io.read_bytes, chunks * CHUNK);
        assert_at_most(&format!("reads for {what}"), io.reads, chunks);
    }
    assert_at_most("bytes read for all rows", read(0..1024).read_bytes, 4 << 20);
}
