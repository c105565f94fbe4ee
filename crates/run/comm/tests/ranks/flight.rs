//! The flight recorder: from the records of all ranks follows which rank has not entered which call.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use bedplate_comm::{FlightRecord, Reduction, Standstill, Transport, World, compare};
use bedplate_kernels::Device;
use bedplate_testkit::wait_until;
use nix::sys::signal::Signal;

use crate::fixture::{options, ranks};
use crate::process::{Launch, say, world};

/// Rank 2 makes one call less and stays away.
#[test]
fn rank_that_stays_away() {
    let Some(world) = world() else { return };
    let device = Device::cpu(1);
    let group = world.everyone().unwrap();
    let mut elements = device.zeros::<f32>(100);
    group.all_reduce(&device, elements.view_mut(), Reduction::Sum).unwrap();
    say("runs");
    if world.rank() == 2 {
        // It is killed long before.
        thread::sleep(Duration::from_secs(600));
    }
    let error = thread::scope(|scope| {
        scope.spawn(|| say_when_it_waits(&world));
        group.barrier().expect_err("rank 2 stays away")
    });
    // The record is written before the world is left.
    drop((group, world));
    say(&format!("error {error}"));
}

/// Its second call is the barrier. A fault that comes before would keep the rank from entering it.
fn say_when_it_waits(world: &World) {
    wait_until("the rank comes to its barrier", || {
        world.flight_record().calls.iter().any(|call| call.number == 1)
    });
    say("waits");
}

#[test]
fn survivors_leave_records_that_name_who_was_missing() {
    let folder: PathBuf = std::env::temp_dir().join(format!("bedplate-flight-{}", std::process::id()));
    let launch = Launch {
        flight: Some(folder.clone()),
        ..Launch::new("flight::rank_that_stays_away", 3, Transport::Automatic, Duration::from_secs(10))
    };
    let mut ranks = launch.start();
    ranks.iter_mut().for_each(|rank| rank.expect_line("runs"));
    ranks[..2].iter_mut().for_each(|rank| rank.expect_line("waits"));
    ranks[2].signal(Signal::SIGKILL);
    for rank in &mut ranks[..2] {
        let line = rank.line();
        assert!(line.contains("rank 2 is gone"), "{line}");
    }
    let read = |rank| {
        let bytes = std::fs::read(folder.join(FlightRecord::file_name(rank))).unwrap();
        serde_json::from_slice::<FlightRecord>(&bytes).unwrap()
    };
    let found = compare(&[read(0), read(1)]);
    let Standstill::NotEntered { number: 1, waiting, missing, .. } = &found[0] else { panic!("{found:?}") };
    assert_eq!((&waiting[..], &missing[..]), (&[0, 1][..], &[2][..]));
    assert_eq!(found[1], Standstill::NoRecord { rank: 2 });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn records_keep_the_last_calls_and_show_who_waits() {
    let options = bedplate_comm::WorldOptions { recorded: 8, ..options(Transport::Automatic) };
    let records = ranks(3, &options, |world| {
        let (device, group) = (Device::cpu(1), world.everyone().unwrap());
        let mut elements = device.zeros::<f32>(5);
        for _ in 0..20 {
            group.all_reduce(&device, elements.view_mut(), Reduction::Sum).unwrap();
        }
        world.flight_record()
    });
    for record in &records {
        assert_eq!(
            record.calls.iter().map(|call| call.number).collect::<Vec<_>>(),
            (12..20).collect::<Vec<_>>()
        );
        assert!(record.calls.iter().all(|call| call.left_us.is_some() && call.bytes == 20));
    }
    assert_eq!(compare(&records), []);
    let mut records = records;
    records[0].calls.last_mut().unwrap().left_us = None;
    records[1].calls.last_mut().unwrap().left_us = None;
    records[2].calls.pop();
    let text = compare(&records)[0].to_string();
    let expected = "group `world`, call 19 (all_reduce of 5 f32 by sum):\n  not entered by rank 2\n  ranks 0, 1 wait there";
    assert!(text.starts_with(expected), "{text}");
    assert!(
        text.ends_with("rank 2: its last was call 18 (all_reduce of 5 f32 by sum), which it left"),
        "{text}"
    );
    records[2].calls.last_mut().unwrap().call.len = 6;
    let text = compare(&records)[0].to_string();
    assert!(text.starts_with("group `world`, call 18: ranks make different calls"), "{text}");
}
