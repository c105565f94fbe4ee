//! A whole cluster in one thread: control plane, agents, journal, network, processes, all from one seed.
//!
//! *Storm*: crashes, partitions, slow disks that lose what was not synced, clocks that differ, messages that come
//! late, twice or in another order, agents and fork servers that stand still and go on with old news, nodes whose prologs fail,
//! ranks that fail or ignore signals, users whose jobs fail their probes, hang and lie, nodes that find something about
//! themselves, one by one or most of them at once; in some hundreds of seeds also clocks that are set to another day, partitions of every shape, agents and
//! fork servers of a node that stand still at the same time, and a user who submits, holds, releases, requeues and cancels arrays as fast as he can. After every event:
//! no device has two owners, no gang runs twice, no rank starts before every node of its gang was ready, a node that is out
//! of service is given no new gang, findings take out no more nodes than they may, and no restart makes the control plane
//! forget a drain, a hold or what an operator knew, and no user alone takes a node out of service. *Calm*: the faults stop, and everything that was acknowledged ends, every node is idle
//! or broken and out of service with a reason, and no process is left.
//!
//! `STORM_SEED=n cargo test -p bedplate-control --test storm -- --nocapture one_seed` tells the story of one seed;
//! `STORM_SEEDS=0..50000 cargo test --release -p bedplate-control --test storm -- --nocapture many_seeds` tries many.

mod disk;
mod random;
mod world;

use disk::Disk;
use world::{ABUSE, BOTH_FREEZE, Bug, EVERYTHING, JUMPS, PARTITIONS, World};

/// Seeds that every run tries; those that once failed join them.
const FIXED: std::ops::Range<u64> = 0..40;
const ONCE_FAILED: [u64; 9] = [
    9_000_685, 12_001_149, 20_001_772, 31_000_771, 31_001_688, 31_002_314, 31_003_746, 40_001_511, 40_002_702,
];
const FRESH: u64 = 10;
/// Seeds of the hundreds in which more happens.
const MORE: u64 = 8;

fn families() -> impl Iterator<Item = u64> {
    [JUMPS, PARTITIONS, BOTH_FREEZE, ABUSE, EVERYTHING]
        .into_iter()
        .flat_map(|hundred| 100 * hundred..100 * hundred + MORE)
}

fn storm(seed: u64, bug: Option<Bug>) -> Result<u64, String> {
    let mut world = World::new(seed, bug);
    world.storm()?;
    world.calm()?;
    Ok(world.trace())
}

/// Seeds of all kinds in turn.
fn each_kind() -> impl Iterator<Item = u64> {
    (0..60).flat_map(|plain| [Some(plain), families().nth(plain as usize)]).flatten()
}

#[test]
fn nothing_acknowledged_is_lost_and_everything_ends() {
    for seed in FIXED.chain(families()).chain(ONCE_FAILED) {
        storm(seed, None).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

#[test]
fn fresh_seeds_hold_too() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let start = now.map_or(0, |now| now.as_nanos() as u64 % 1_000_000_007);
    for seed in start..start + FRESH {
        storm(seed, None).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

#[test]
fn equal_seeds_give_equal_stories() {
    for seed in (0..5).chain([100 * EVERYTHING]) {
        assert_eq!(storm(seed, None), storm(seed, None), "seed {seed}");
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in Bug::ALL {
        let found = each_kind().find_map(|seed| Some((seed, storm(seed, Some(bug)).err()?)));
        let Some((seed, broken)) = found else { panic!("{bug:?} went unnoticed in 100 storms") };
        println!("{bug:?} is found in storm {seed}: {broken}");
    }
}

#[test]
fn one_seed() {
    let Ok(seed) = std::env::var("STORM_SEED") else {
        return;
    };
    let seed = seed.parse().expect("STORM_SEED is a number");
    let mut world = World::new(seed, None);
    world.is_told = true;
    let end = world.storm().and_then(|()| world.calm());
    assert_eq!(end, Ok(()), "seed {seed}");
}

/// Tries a range of seeds on all cores and names every one that fails.
#[test]
fn many_seeds() {
    let Ok(range) = std::env::var("STORM_SEEDS") else {
        return;
    };
    let bounds: Vec<u64> = range.split("..").filter_map(|bound| bound.parse().ok()).collect();
    let [from, to] = bounds[..] else { panic!("STORM_SEEDS is a range such as 0..1000") };
    let next = std::sync::atomic::AtomicU64::new(from);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failed = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= to {
                        return;
                    }
                    if let Err(broken) = storm(seed, None) {
                        println!("seed {seed}: {broken}");
                        failed.lock().unwrap().push(seed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("{} seeds, {} failed", to - from, failed.len());
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
}

#[test]
fn the_disk_keeps_what_was_synced() {
    let mut disk = Disk::default();
    assert_eq!(disk.restored().next_job, 1);
    disk.crash(&mut random::Random::new(1));
    assert!(disk.restored().jobs.is_empty());
}
