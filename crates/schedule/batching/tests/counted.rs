//! What a step of a replica's scheduler allocates while sequences only decode: nothing that grows with them.

use bedplate_batching::{Request, Scheduler, SchedulerOptions};
use bedplate_testkit::counting::{CountingAllocator, assert_at_most, of_thread};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn steps_that_only_decode_allocate_for_no_step() {
    let options = SchedulerOptions { max_seqs: 256, blocks: 65_536, ..SchedulerOptions::default() };
    let mut scheduler = Scheduler::new(options).expect("the settings are sound");
    for name in 0..256 {
        scheduler.submit(Request::new(name, 64, 4096), 0).expect("it fits");
    }
    let mut now = 0;
    let mut steps = |count: u64| {
        for _ in 0..count {
            scheduler.step(now, 1);
            scheduler.complete(1);
            now += 1;
        }
    };
    steps(200);
    let ((), counted) = of_thread(|| steps(1000));
    // Each sequence's table of blocks grows twice in a thousand tokens.
    assert_at_most("allocations of 1,000 decoding steps of 256 sequences", counted.count, 512);
}
