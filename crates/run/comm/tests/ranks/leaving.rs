//! Ranks that have done their part of a call and leave while others are still at it.

use std::thread;
use std::time::Duration;

use bedplate_kernels::Device;

use crate::fixture::{TRANSPORTS, options, ranks};

#[test]
fn a_rank_that_has_done_its_part_may_leave_before_a_slow_one_comes() {
    for transport in TRANSPORTS {
        ranks(4, &options(transport), |world| {
            let (device, group) = (Device::cpu(1), world.everyone().unwrap());
            let mine = device.zeros::<u8>(100);
            let mut all = device.zeros::<u8>(400);
            group.barrier().unwrap();
            if world.rank() == 1 {
                // Nothing tells one rank that another has left: that is what is tested.
                thread::sleep(Duration::from_millis(1500));
            }
            let is_root = world.rank() == 0;
            group.gather(&device, mine.view(), is_root.then(|| all.view_mut()), 0).unwrap();
        });
    }
}

#[test]
fn numbers_of_a_rank_that_has_left_are_received() {
    for transport in TRANSPORTS {
        ranks(2, &options(transport), |world| {
            let (device, group) = (Device::cpu(1), world.everyone().unwrap());
            let mut elements = device.zeros::<u8>(100);
            if world.rank() == 0 {
                return group.send(&device, elements.view(), 1).unwrap();
            }
            // As above.
            thread::sleep(Duration::from_millis(1500));
            group.receive(&device, elements.view_mut(), 0).unwrap();
        });
    }
}
