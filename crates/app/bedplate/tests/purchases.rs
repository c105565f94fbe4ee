//! Twenty questions of people who buy machines. What they cost is worked out here by hand, from prices that were copied from the published lists, and from the
//! time that a run takes: machines times hours as they are billed times dollars, and storage by gigabyte and month.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::process::Command;

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");
const HOUR: f64 = 3600.0;
/// FSx for Lustre, persistent, 1,000 MB/s/TiB, per gigabyte and month (Tokyo's list); S3, first 50 TB.
const LUSTRE: f64 = 0.8486;
const S3: f64 = 0.023;
const DAYS_PER_MONTH: f64 = 365.25 / 12.0;

/// How machines are billed.
#[derive(Clone, Copy)]
enum Billed {
    /// By the time that they are used.
    Used,
    /// Whole days up to two weeks, then whole weeks up to 26.
    Block,
    /// Three years.
    ThreeYears,
}

impl Billed {
    fn hours(self, used: f64) -> f64 {
        let days = (used / 24.0).ceil();
        match self {
            Billed::Used => used,
            Billed::Block if days <= 14.0 => 24.0 * days,
            Billed::Block => 7.0 * 24.0 * (days / 7.0).ceil(),
            Billed::ThreeYears => 3.0 * 365.0 * 24.0,
        }
    }
}

fn ask(question: &str) -> Value {
    let output = Command::new(PROGRAM).arg("--json").args(question.split_whitespace()).output().unwrap();
    let told = if output.status.success() { &output.stdout } else { &output.stderr };
    let answer = serde_json::from_slice(told);
    answer.unwrap_or_else(|error| panic!("{question}: {error}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn assert_dollars(found: &Value, expected: f64, question: &str) {
    let found = found.as_f64().unwrap_or_else(|| panic!("no dollars for {question}: {found}"));
    assert!((found / expected - 1.0).abs() < 1e-6, "{question}: ${found} where it is ${expected} by hand");
}

/// A question, machines, dollars for each and hour, how they are billed, and gigabytes and price of storage where they are worked out too.
type Row = (&'static str, f64, f64, Billed, Option<(f64, f64)>);

const RUNS: [Row; 14] = [
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p5.48xlarge:4",
        4.0,
        55.04,
        Billed::Used,
        Some((1200.0, LUSTRE)),
    ),
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p5.48xlarge:4 --purchase capacity-block",
        4.0,
        41.528,
        Billed::Block,
        None,
    ),
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p5.48xlarge:4 --purchase reserved-3y",
        4.0,
        23.776,
        Billed::ThreeYears,
        None,
    ),
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p5.48xlarge:4 --purchase spot --spot-interruptions 50",
        4.0,
        19.9675,
        Billed::Used,
        None,
    ),
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p5.48xlarge:1 --purchase capacity-block",
        1.0,
        41.528,
        Billed::Block,
        None,
    ),
    (
        "plan train --model llama-3.1-8b --tokens 2B --cluster p5.48xlarge:1 --purchase capacity-block",
        1.0,
        41.528,
        Billed::Block,
        None,
    ),
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p5en.48xlarge:2",
        2.0,
        63.296,
        Billed::Used,
        None,
    ),
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p6-b200.48xlarge:2",
        2.0,
        113.9328,
        Billed::Used,
        None,
    ),
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p6-b300.48xlarge:2",
        2.0,
        142.416,
        Billed::Used,
        None,
    ),
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p4d.24xlarge:8",
        8.0,
        21.957642,
        Billed::Used,
        None,
    ),
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p4de.24xlarge:8",
        8.0,
        27.44705,
        Billed::Used,
        None,
    ),
    // UltraServers are sold in blocks alone, and that is their price unasked.
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster u-p6e-gb200x72:1",
        1.0,
        761.904,
        Billed::Block,
        None,
    ),
    (
        "plan train --model llama-3.1-70b --tokens 2T --cluster p5.48xlarge:64 --purchase capacity-block",
        64.0,
        41.528,
        Billed::Block,
        None,
    ),
    (
        "plan train --model llama-3.1-8b --tokens 100B --cluster p5.48xlarge:4 --storage s3-standard",
        4.0,
        55.04,
        Billed::Used,
        None,
    ),
];

#[test]
fn what_a_run_costs_is_what_is_billed() {
    for (question, machines, per_hour, billed, storage) in RUNS {
        let run = &ask(question)["run"];
        let used = run["expected_s"].as_f64().unwrap() / HOUR;
        assert_dollars(&run["machines_usd"], machines * per_hour * billed.hours(used), question);
        let idle = machines * per_hour * (billed.hours(used) - used);
        assert!((run["unused_usd"].as_f64().unwrap() - idle).abs() < 0.01, "{question}: {run}");
        if let Some((gigabytes, price)) = storage {
            assert_dollars(&run["storage_usd"], gigabytes * price * used / 24.0 / DAYS_PER_MONTH, question);
        }
        let both = run["machines_usd"].as_f64().unwrap() + run["storage_usd"].as_f64().unwrap();
        assert_dollars(&run["total_usd"], both, question);
    }
}

#[test]
fn storage_in_a_bucket_costs_what_its_list_says() {
    let question = RUNS[13].0;
    let run = &ask(question)["run"];
    let months = run["expected_s"].as_f64().unwrap() / HOUR / 24.0 / DAYS_PER_MONTH;
    let gigabytes = run["storage_usd"].as_f64().unwrap() / (S3 * months);
    // The newest checkpoints of 8 billion parameters, 12 to 16 bytes each, are kept: some hundreds of gigabytes.
    assert!((96.0..2000.0).contains(&gigabytes), "{gigabytes} GB");
}

/// Prices that nobody publishes are not made up, and machines that nobody sells so are refused.
#[test]
fn prices_that_are_not_known_are_said_to_be_missing() {
    let run =
        &ask("plan train --model llama-3.1-8b --tokens 100B --cluster p5.48xlarge:4 --purchase reserved-1y")
            ["run"];
    assert_eq!((&run["machines_usd"], &run["total_usd"]), (&Value::Null, &Value::Null), "{run}");
    let spot = ask("plan train --model llama-3.1-8b --tokens 100B --cluster p5.48xlarge:4 --purchase spot");
    assert_eq!(spot["error"]["code"], "plan/unknown-spot-rate", "{spot}");
}

/// Dollars per machine and hour on demand and in a capacity block; a machine is not sold where there is no number.
const LISTS: [(&str, f64, f64); 7] = [
    ("p4d.24xlarge", 21.957642, 11.80),
    ("p5.48xlarge", 55.04, 41.528),
    ("p5e.48xlarge", f64::NAN, 47.76),
    ("p5en.48xlarge", 63.296, 54.92),
    ("p6-b200.48xlarge", 113.9328, 98.84),
    ("p6-b300.48xlarge", 142.416, 112.32),
    ("u-p6e-gb200x72", f64::NAN, 761.904),
];

/// What is chosen costs what it would cost by hand, and no offer that meets the deadline is cheaper.
#[test]
fn the_chosen_machines_cost_what_their_list_says() {
    for (question, days) in [
        ("plan choose --model llama-3.1-8b --tokens 100B --deadline 3d", 3.0),
        ("plan choose --model llama-3.1-8b --tokens 100B --deadline 3d --purchase on-demand", 3.0),
        ("plan choose --model llama-3.1-70b --tokens 1T --deadline 30d --purchase capacity-block", 30.0),
        ("plan choose --model mixtral-8x7b --tokens 1T --deadline 30d", 30.0),
    ] {
        let answer = ask(question);
        let best = &answer["best"];
        let row = LISTS.iter().find(|(machine, ..)| best["machine"] == *machine);
        let (_, on_demand, block) = *row.unwrap_or_else(|| panic!("{question}: {best}"));
        let is_block = best["purchase"] == "capacity-block";
        let (billed, per_hour) = if is_block { (Billed::Block, block) } else { (Billed::Used, on_demand) };
        let used = best["time_s"].as_f64().unwrap() / HOUR;
        let machines = best["units"].as_f64().unwrap();
        assert_dollars(&best["machines_usd"], machines * per_hour * billed.hours(used), question);
        assert!(used <= 24.0 * days, "{question}: {best}");
        let cost = best["cost_usd"].as_f64().unwrap();
        for offer in answer["front"].as_array().unwrap() {
            let (time, other) = (offer["time_s"].as_f64().unwrap(), offer["cost_usd"].as_f64().unwrap());
            let is_choice = offer["is_calibrated"] == true;
            assert!(
                !is_choice || time > 24.0 * HOUR * days || other >= cost * 0.999,
                "{question}: {offer} is cheaper"
            );
        }
    }
}
