//! What an all-reduce costs a rank: allocations, and messages that the system is given, counted, so that slow decay shows.

#![expect(clippy::unwrap_used, reason = "a rank that gets an error fails the test")]

#[expect(dead_code, reason = "the other tests need more of it")]
#[path = "ranks/fixture.rs"]
mod fixture;

use bedplate_comm::{Reduction, Transport};
use bedplate_kernels::Device;
use bedplate_testkit::counting::{CountingAllocator, assert_at_most, io_of_thread, of_thread};

use fixture::{options, ranks};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Few enough that a message goes into a socket's buffer whole, so that the number of writes is that of messages.
const LEN: usize = 1000;
const CALLS: u64 = 100;

/// Asserts what a call costs the rank that pays most: allocations, messages, and bytes written.
fn assert_costs(transport: Transport, [allocations, messages, bytes]: [u64; 3]) {
    let counted = ranks(4, &options(transport), |world| {
        let (device, group) = (Device::cpu(1), world.everyone().unwrap());
        let mut elements = world.shared::<f32>(&device, LEN).unwrap();
        let mut sum = |calls: u64| {
            for _ in 0..calls {
                group.all_reduce(&device, elements.view_mut(), Reduction::Max).unwrap();
            }
        };
        sum(10);
        let (((), io), allocated) = of_thread(|| io_of_thread(|| sum(CALLS)));
        [allocated.count, io.writes, io.written_bytes].map(|count| count / CALLS)
    });
    let most = |which: usize| counted.iter().map(|of_rank| of_rank[which]).max().unwrap();
    let path = |what: &str| format!("{what} of an all-reduce of 4 ranks, {transport:?}");
    assert_at_most(&path("allocations"), most(0), allocations);
    assert_at_most(&path("messages"), most(1), messages);
    assert_at_most(&path("bytes written"), most(2), bytes);
}

#[test]
fn an_all_reduce_through_shared_memory_asks_nothing_of_the_system() {
    assert_costs(Transport::Automatic, [2, 0, 0]);
}

#[test]
fn an_all_reduce_over_tcp_sends_few_messages() {
    // 17 allocations and one for each wait, which lists the sockets that it watches: few calls wait, on a busy machine more.
    // A message is its elements and a head of 32 bytes.
    assert_costs(Transport::Tcp, [20, 2, 2 * (4 * LEN as u64 + 32)]);
}
