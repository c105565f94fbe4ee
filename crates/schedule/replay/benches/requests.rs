//! Requests replayed per CPU second, next to measurements of other simulators.
//!
//! Run with `cargo bench -p bedplate-replay --bench requests`, perhaps with a part of the names of the cases that are wanted.
//! `--peer dynamo` also measures Dynamo's simulator on this machine,
//! through `benches/peer_dynamo.py`, when its Python package is installed.

#![expect(clippy::print_stdout, reason = "a bench prints its result")]

use std::fs;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Instant;

use bedplate_batching::{RoutingPolicy, SchedulerOptions};
use bedplate_replay::requests::{
    Arrivals, Fleet, GeneratedLoad, Lengths, LinearEngine, Outcome, Pool, SharedPrefix, Traffic, Turns,
    picoseconds, seconds, simulate,
};

const RUNS: usize = 5;
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A case, and what others were measured at in requests per CPU second: Dynamo 1.6.1's mocker replayed offline,
/// and Vidur at commit 7d47513 on one replica.
struct Case {
    name: &'static str,
    requests: u32,
    arrivals: Arrivals,
    prompt: Lengths,
    output: Lengths,
    replicas: u32,
    shared: Option<SharedPrefix>,
    turns: Option<Turns>,
    dynamo: Option<f64>,
    vidur: Option<f64>,
}

fn cases() -> Vec<Case> {
    let nothing_shared = Some(SharedPrefix { percent: 0, groups: 1 });
    let half_shared = Some(SharedPrefix { percent: 50, groups: 8 });
    let closed = Arrivals::Closed { users: 128 };
    let case = |name, replicas, prompt, output| Case {
        name,
        requests: 200_000,
        arrivals: closed,
        prompt: Lengths::Fixed(prompt),
        output: Lengths::Fixed(output),
        replicas,
        shared: None,
        turns: None,
        dynamo: None,
        vidur: None,
    };
    let varied = |replicas| Case {
        shared: half_shared,
        prompt: Lengths::Between(200, 4000),
        output: Lengths::Between(20, 200),
        ..case(
            if replicas == 8 {
                "8 replicas, half shared, lengths varied"
            } else {
                "32 replicas, half shared, lengths varied"
            },
            replicas,
            0,
            0,
        )
    };
    let poisson = Arrivals::Poisson { per_second: 6.45 };
    vec![
        Case {
            dynamo: Some(17_762.0),
            vidur: Some(550.0),
            ..case("2 replicas, 128 users, 1024/128", 2, 1024, 128)
        },
        Case {
            dynamo: Some(17_762.0),
            vidur: Some(550.0),
            shared: nothing_shared,
            ..case("the same, every prompt cached", 2, 1024, 128)
        },
        Case {
            prompt: Lengths::Between(820, 1024),
            output: Lengths::Between(103, 128),
            ..case("the first with lengths of 80 to 100 %", 2, 1024, 128)
        },
        Case {
            arrivals: poisson,
            dynamo: Some(8_010.0),
            vidur: Some(550.0),
            ..case("1 replica, 6.45/s, 1024/256", 1, 1024, 256)
        },
        Case {
            shared: half_shared,
            dynamo: Some(8_250.0),
            ..case("8 replicas, by prefix, half shared, 2048/128", 8, 2048, 128)
        },
        Case { requests: 20_000, ..varied(8) },
        varied(8),
        Case {
            arrivals: Arrivals::Closed { users: 1024 },
            shared: None,
            name: "32 replicas, nothing shared, lengths varied",
            ..varied(32)
        },
        Case { arrivals: Arrivals::Closed { users: 1024 }, ..varied(32) },
        Case {
            turns: Some(Turns { turns: 5, pause: picoseconds(10.0) }),
            arrivals: Arrivals::Poisson { per_second: 4.0 },
            prompt: Lengths::Between(100, 500),
            output: Lengths::Between(50, 200),
            ..case("4 replicas, conversations of five turns", 4, 0, 0)
        },
    ]
}

fn main() {
    println!(
        "{:<46} {:>9} {:>8} {:>12} {:>8} {:>8}",
        "case", "requests", "events", "requests/s", "x Dynamo", "x Vidur"
    );
    let wanted = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    let is_wanted = |case: &Case| wanted.as_ref().is_none_or(|part| case.name.contains(part));
    for case in cases().iter().filter(|case| is_wanted(case)) {
        report(case);
    }
    if std::env::args().any(|argument| argument == "dynamo") {
        measure_dynamo();
    }
}

fn report(case: &Case) {
    let mut best = f64::INFINITY;
    let mut last = None;
    for _ in 0..RUNS {
        let (elapsed, outcome) = measure(case);
        best = best.min(elapsed);
        last = Some(outcome);
    }
    let outcome = last.expect("there was a run");
    assert_eq!(outcome.finished, u64::from(case.requests));
    let rate = f64::from(case.requests) / best;
    let against = |peer: Option<f64>| peer.map_or("-".into(), |peer| format!("{:.0}", rate / peer));
    println!(
        "{:<46} {:>9} {:>8} {:>12.0} {:>8} {:>8}",
        case.name,
        case.requests,
        outcome.events,
        rate,
        against(case.dynamo),
        against(case.vidur)
    );
    println!(
        "    ttft p50 {:.1} ms, itl p50 {:.2} ms, {:.0} tokens/s, hit rate {:.0} %",
        seconds(outcome.ttft.p50) * 1e3,
        seconds(outcome.itl.p50) * 1e3,
        outcome.output_tokens_per_second(),
        outcome.hit_rate() * 100.0
    );
}

/// One replay and its CPU seconds.
fn measure(case: &Case) -> (f64, Outcome) {
    let engine = LinearEngine::default();
    let mut pool = Pool::new(case.replicas, &engine);
    pool.scheduler = SchedulerOptions::default();
    pool.router.policy = if case.shared.is_some() || case.turns.is_some() {
        RoutingPolicy::Prefix
    } else {
        RoutingPolicy::LeastWork
    };
    let load = GeneratedLoad {
        requests: case.requests,
        arrivals: case.arrivals,
        prompt: case.prompt,
        output: case.output,
        shared: case.shared,
        turns: case.turns,
        ..GeneratedLoad::default()
    };
    let began = cpu_seconds();
    let outcome =
        simulate(Traffic::Generated(load), &Fleet::aggregated(pool)).expect("the settings are sound");
    (cpu_seconds() - began, outcome)
}

/// CPU time of this process so far, as Linux counts it; elsewhere the time of day, which is the same for one
/// thread that computes on a dedicated core.
fn cpu_seconds() -> f64 {
    let counted = fs::read_to_string("/proc/self/schedstat").ok();
    let nanoseconds = counted.as_deref().and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    nanoseconds.map_or_else(|| EPOCH.elapsed().as_secs_f64(), |count| count as f64 / 1e9)
}

fn measure_dynamo() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peer_dynamo.py");
    println!("\nDynamo on this machine:");
    match Command::new("python3").arg(script).status() {
        Ok(status) if status.success() => {}
        Ok(_) | Err(_) => {
            println!("skipped: `pip install --no-deps ai-dynamo ai-dynamo-runtime` is needed for it");
        }
    }
}
