//! Worlds that are made anew: after faults, with fewer ranks, with newcomers.

use std::time::{Duration, Instant};

use bedplate_comm::{CommError, Fault, Gap, Group, MeetingPoint, Numbering, Reduction, Rendezvous, World};
use bedplate_kernels::Device;

use crate::fixture::{SECRET, TRANSPORTS, Together, options, ranks};

const AT_MOST: Duration = Duration::from_secs(60);

fn sum(group: &Group, device: &Device, own: u32) -> Result<u32, CommError> {
    let mut elements = device.zeros::<u32>(20_000);
    device.write(elements.view_mut(), &vec![own; 20_000]);
    group.all_reduce(device, elements.view_mut(), Reduction::Sum)?;
    let mut found = vec![0; 20_000];
    device.read(elements.view(), &mut found);
    assert!(found.iter().all(|number| *number == found[0]));
    Ok(found[0])
}

fn epochs() -> u64 {
    std::env::var("COMM_EPOCHS").ok().and_then(|epochs| epochs.parse().ok()).unwrap_or(60)
}

#[test]
fn a_world_is_rebuilt_many_times_in_a_row() {
    for transport in TRANSPORTS {
        ranks(3, &options(transport), |mut world| {
            let device = Device::cpu(1);
            for epoch in 0..epochs() {
                assert_eq!((world.epoch(), world.size()), (epoch, 3));
                let group = world.everyone().unwrap();
                // A rank that has its sum may revoke the world while another still waits for it.
                match sum(&group, &device, world.rank() + 1) {
                    Ok(total) => assert_eq!(total, 6),
                    Err(error) => {
                        let is_revoked =
                            matches!(error, CommError::Fault(Fault::Revoked { .. } | Fault::Rebuilt { .. }));
                        assert!(is_revoked, "{error}")
                    }
                }
                drop(group);
                if epoch % 3 == u64::from(world.rank()) {
                    world.revoke("enough");
                }
                world = world.rebuild(Numbering::Compact { newcomers: 0 }, AT_MOST).unwrap();
            }
        });
    }
}

#[test]
fn survivors_go_on_in_their_order_without_a_rank_that_left() {
    for transport in TRANSPORTS {
        for leaver in 0..4 {
            let together = Together::new(4);
            let found = ranks(4, &options(transport), |world| {
                let device = Device::cpu(1);
                let group = world.everyone().unwrap();
                group.barrier().unwrap();
                together.wait();
                if world.rank() == leaver {
                    return None;
                }
                let error = sum(&group, &device, 1).expect_err("a rank is missing");
                assert!(
                    matches!(error, CommError::Fault(Fault::Lost { rank, .. }) if rank == leaver),
                    "{error}"
                );
                let old = world.rank();
                drop(group);
                let world = world.rebuild(Numbering::Compact { newcomers: 0 }, AT_MOST).unwrap();
                let group = world.everyone().unwrap();
                let total = sum(&group, &device, 1).unwrap();
                group.barrier().unwrap();
                Some((old, world.rank(), total))
            });
            let survivors: Vec<_> = found.into_iter().flatten().collect();
            let expected: Vec<_> = (0..4)
                .filter(|rank| *rank != leaver)
                .enumerate()
                .map(|(new, old)| (old, new as u32, 3))
                .collect();
            assert_eq!(survivors, expected);
        }
    }
}

#[test]
fn a_newcomer_takes_the_place_of_a_rank_that_left() {
    for transport in TRANSPORTS {
        let options = options(transport);
        let together = Together::new(3);
        let found = ranks(3, &options, |world| {
            let device = Device::cpu(1);
            let group = world.everyone().unwrap();
            group.barrier().unwrap();
            together.wait();
            let world = if world.rank() == 1 {
                // It comes back as somebody else, knowing only where to meet.
                let point = MeetingPoint { epoch: 1, ..world.next_meeting_point() };
                drop((group, world));
                let new = Rendezvous::on_this_machine(0, 0, 0, SECRET);
                World::join_next(point, &new, &options).unwrap()
            } else {
                sum(&group, &device, 1).expect_err("a rank is missing");
                drop(group);
                world.rebuild(Numbering::Kept, AT_MOST).unwrap()
            };
            let group = world.everyone().unwrap();
            let total = sum(&group, &device, world.rank() + 1).unwrap();
            group.barrier().unwrap();
            (world.rank(), world.size(), total)
        });
        assert_eq!(found, [(0, 3, 6), (1, 3, 6), (2, 3, 6)]);
    }
}

/// The rank that gathers the others is asked again and again whom to wait for.
#[test]
fn a_newcomer_that_does_not_come_is_given_up() {
    let together = Together::new(3);
    let found = ranks(3, &options(TRANSPORTS[0]), |world| {
        let device = Device::cpu(1);
        let group = world.everyone().unwrap();
        group.barrier().unwrap();
        together.wait();
        if world.rank() == 1 {
            return None;
        }
        sum(&group, &device, 1).expect_err("a rank is missing");
        drop(group);
        let began = Instant::now();
        let numbering = |gap: Gap| {
            assert_eq!(gap, Gap { left: 2, gone: 1 });
            match began.elapsed() < Duration::from_millis(300) {
                true => Numbering::Kept,
                false => Numbering::Compact { newcomers: 0 },
            }
        };
        let world = world.rebuild_with(&numbering, AT_MOST).unwrap();
        let group = world.everyone().unwrap();
        let total = sum(&group, &device, 1).unwrap();
        group.barrier().unwrap();
        Some((world.rank(), world.size(), total))
    });
    assert_eq!(found, [Some((0, 2, 2)), None, Some((1, 2, 2))]);
}
