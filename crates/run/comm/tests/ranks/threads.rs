//! Groups that several threads of a rank use, and worlds that end before their groups.

use std::thread;

use bedplate_comm::{CommError, Fault, Reduction};
use bedplate_kernels::Device;

use crate::fixture::{TRANSPORTS, options, ranks};

#[test]
fn threads_that_share_a_group_take_turns_and_none_is_forgotten() {
    for transport in TRANSPORTS {
        ranks(2, &options(transport), |world| {
            let group = world.everyone().unwrap();
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let device = Device::cpu(1);
                        let mut elements = device.zeros::<f32>(10);
                        for _ in 0..200 {
                            group.all_reduce(&device, elements.view_mut(), Reduction::Sum).unwrap();
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn a_call_on_a_group_whose_world_has_ended_is_an_error() {
    for transport in TRANSPORTS {
        let errors = ranks(2, &options(transport), |world| {
            let group = world.everyone().unwrap();
            group.barrier().unwrap();
            let rank = world.rank();
            if rank == 1 {
                drop(world);
            }
            (rank, group.barrier().expect_err("rank 1 has left"))
        });
        for (rank, error) in errors {
            let is_named = match &error {
                CommError::Fault(Fault::Lost { rank: 1, .. }) => rank == 0,
                CommError::Fault(Fault::Revoked { rank: 1, .. }) => rank == 1,
                _ => false,
            };
            assert!(is_named, "rank {rank}: {error}");
        }
    }
}
