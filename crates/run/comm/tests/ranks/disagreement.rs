//! Ranks that call different things: every rank gets an error that says what differs.

use bedplate_comm::{CommError, Fault, Group, Reduction, World};
use bedplate_kernels::Device;

use crate::fixture::{TRANSPORTS, options, ranks};

/// Ranks 0 and 1 call one thing, rank 2 another; the errors of all ranks.
fn errors(call: impl Fn(&Group, &Device, bool) -> Result<(), CommError> + Sync) -> Vec<Vec<String>> {
    let on = |transport| {
        let options = options(transport);
        ranks(3, &options, |world: World| {
            let (device, group) = (Device::cpu(1), world.everyone().unwrap());
            let began = group.barrier();
            // A rank that gives and waits for nothing hears of it with its next call.
            let outcome = began.and_then(|()| call(&group, &device, world.rank() == 2));
            outcome
                .and_then(|()| group.barrier())
                .and_then(|()| group.barrier())
                .expect_err("ranks disagree")
                .to_string()
        })
    };
    TRANSPORTS.map(on).into()
}

fn check(call: impl Fn(&Group, &Device, bool) -> Result<(), CommError> + Sync, parts: &[&str]) {
    for errors in errors(call) {
        for error in errors {
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}

fn all_reduce(group: &Group, device: &Device, len: usize, by: Reduction) -> Result<(), CommError> {
    let mut elements = device.zeros::<f32>(len);
    group.all_reduce(device, elements.view_mut(), by)
}

#[test]
fn different_lengths_are_named() {
    for (usual, other) in [(100, 200), (100_000, 90_000), (10, 0)] {
        let call = |group: &Group, device: &Device, is_odd: bool| {
            all_reduce(group, device, if is_odd { other } else { usual }, Reduction::Sum)
        };
        check(
            call,
            &[
                "ranks disagree",
                &format!("all_reduce of {usual} f32 by sum"),
                &format!("all_reduce of {other} f32 by sum"),
            ],
        );
    }
}

#[test]
fn different_reductions_operations_and_roots_are_named() {
    let by = |group: &Group, device: &Device, is_odd: bool| {
        all_reduce(group, device, 10, if is_odd { Reduction::Max } else { Reduction::Sum })
    };
    check(by, &["by sum", "by max"]);
    let operation = |group: &Group, device: &Device, is_odd: bool| {
        if is_odd { group.barrier() } else { all_reduce(group, device, 10, Reduction::Sum) }
    };
    check(operation, &["barrier", "all_reduce of 10 f32"]);
    let root = |group: &Group, device: &Device, is_odd: bool| {
        let mut elements = device.zeros::<f32>(50_000);
        group.broadcast(device, elements.view_mut(), if is_odd { 1 } else { 0 })
    };
    // A rank that has its elements from member 0 may be a call ahead when it meets one that waits for member 1.
    check(root, &["ranks disagree", "broadcast of 50000 f32 from member"]);
}

#[test]
fn different_formats_are_named() {
    let format = |group: &Group, device: &Device, is_odd: bool| {
        if is_odd {
            let mut elements = device.zeros::<u32>(100);
            return group.all_reduce(device, elements.view_mut(), Reduction::Sum);
        }
        all_reduce(group, device, 100, Reduction::Sum)
    };
    check(format, &["100 f32", "100 u32"]);
}

#[test]
fn parts_that_are_not_as_expected_are_named() {
    for transport in TRANSPORTS {
        let errors = ranks(3, &options(transport), |world| {
            let (device, group) = (Device::cpu(1), world.everyone().unwrap());
            // Rank 1 gives rank 0 four elements, which expects three.
            let given = |to: usize| if world.rank() == 1 && to == 0 { 4 } else { 3 };
            let sent: Vec<usize> = (0..3).map(given).collect();
            let received = [3, 3, 3];
            let (from, mut to) = (device.zeros::<f32>(sent.iter().sum()), device.zeros::<f32>(9));
            let outcome = group.all_to_all_v(&device, from.view(), &sent, to.view_mut(), &received);
            outcome
                .and_then(|()| group.barrier())
                .and_then(|()| group.barrier())
                .expect_err("ranks disagree")
                .to_string()
        });
        let text = "rank 1 sends 4 elements to rank 0, which expects 3";
        assert!(errors.iter().all(|error| error.contains(text)), "{errors:?}");
    }
}

#[test]
fn wrong_arguments_of_one_rank_are_an_error_on_all() {
    for transport in TRANSPORTS {
        let errors = ranks(3, &options(transport), |world| {
            let device = Device::cpu(1);
            // The others may hear of it while they still make the group.
            let attempt = || {
                let group = world.everyone()?;
                let whole = if world.rank() == 1 { 13 } else { 12 };
                let (mine, mut all) = (device.zeros::<f32>(4), device.zeros::<f32>(whole));
                group.all_gather(&device, mine.view(), all.view_mut())?;
                group.barrier()?;
                group.barrier()
            };
            attempt().expect_err("rank 1 is wrong")
        });
        for error in errors {
            assert!(matches!(error, CommError::Fault(Fault::Arguments { rank: 1, .. })), "{error}");
            assert!(
                error.to_string().contains("part and whole of 4 and 13 f32 for all of 3 members"),
                "{error}"
            );
        }
    }
}

#[test]
fn groups_of_strange_ranks_are_refused() {
    ranks(2, &options(TRANSPORTS[0]), |world| {
        let why = |ranks: &[u32]| {
            world.group("odd", ranks).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(why(&[0, 0, 1]).contains("a rank is named twice"));
        assert!(why(&[0, 1, 2]).contains("there is no such rank"));
        assert!(why(&[]).contains("there is no such rank"));
        assert!(why(&[1 - world.rank()]).contains("this rank is not among them"));
        world.everyone().unwrap().barrier().unwrap();
    });
}

#[test]
fn members_that_each_believe_to_give_or_that_another_takes_are_told() {
    for transport in TRANSPORTS {
        for gives in [true, false] {
            let errors = ranks(2, &options(transport), |world| {
                let (device, group) = (Device::cpu(1), world.everyone().unwrap());
                let mut elements = device.zeros::<f32>(10);
                let (me, other) = (group.member(), 1 - group.member());
                let outcome = if gives {
                    group.broadcast(&device, elements.view_mut(), me)
                } else {
                    group.reduce(&device, elements.view(), None, other, Reduction::Sum)
                };
                outcome
                    .and_then(|()| group.barrier())
                    .and_then(|()| group.barrier())
                    .map_err(|error| error.to_string())
            });
            for error in errors {
                let error = error.expect_err("both believe something else");
                let operation = if gives { "broadcast of 10 f32" } else { "reduce of 10 f32" };
                assert!(error.contains("ranks disagree") && error.contains(operation), "{error}");
            }
        }
    }
}

#[test]
fn calls_that_travel_by_different_means_are_compared_too() {
    for transport in TRANSPORTS {
        let errors = ranks(3, &options(transport), |world| {
            let (device, group) = (Device::cpu(1), world.everyone().unwrap());
            let mut elements = device.zeros::<f32>(3);
            let from = device.zeros::<f32>(3);
            let outcome = if world.rank() == 2 {
                group.all_to_all_v(&device, from.view(), &[1; 3], elements.view_mut(), &[1; 3])
            } else {
                group.all_reduce(&device, elements.view_mut(), Reduction::Sum)
            };
            outcome.expect_err("ranks disagree").to_string()
        });
        for error in errors {
            assert!(error.contains("all_to_all_v") && error.contains("all_reduce of 3 f32"), "{error}");
        }
    }
}
