//! What a search allocates for each layout that it prices.

mod support;

use bedplate_search::{Axes, Space, search};
use bedplate_testkit::counting::{CountingAllocator, assert_at_most, of_thread};
use support::bench;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_layout_is_priced_with_some_four_allocations() {
    let bench = bench("llama-3-70b", "p5.48xlarge:64", 8192, 1024);
    let (setup, axes) = (bench.setup(), Axes::default());
    let layouts = Space::new(&setup, &axes).expect("there are layouts").len();
    let (found, counted) = of_thread(|| search(&setup, &axes, 10));
    assert_eq!(found.expect("some fit").best.len(), 10);
    assert_at_most("allocations of a search per 100 layouts", counted.count * 100 / layouts, 395);
}
