//! Golden runs of benchmarks through `bedplate bench`, and what a missing program says.

use bedplate_testkit::{Transcript, beside};

const OWN: &str = env!("CARGO_BIN_EXE_bedplate-bench");
const INPUTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bedplate/tests/inputs");

fn terminal() -> Transcript {
    Transcript::of(&beside(OWN, "bedplate").display().to_string(), INPUTS)
}

bedplate_testkit::golden! {
    bench: ["bench --help", "bench", "bench serch", "bench search --layers"]
    bench_deploy: [
        "bench deploy --help",
        "bench deploy --peer aiconfigurator --peer-python peers/no-such-python",
        "bench deploy --peer aiconfigurator --peer-python peers/without-aiconfigurator",
        "bench deploy --peer aiconfigurator --peer-python peers/stops --data serving-rows.csv",
        "bench deploy --peer aiconfigurator --peer-python peers/not-a-number --data serving-rows.csv",
        "bench deploy --peer aiconfigurator --peer-python peers/answers --data missing.csv",
        "bench deploy --data serving-rows.csv",
        "bench deploy --peer calculon",
    ]
    bench_comm: [
        "bench comm --help",
        "bench comm --sizes 1T",
        "bench comm --sizes 8 --ranks 4",
        "bench comm --op all_red",
        "bench comm --format f8",
        "bench comm --algorithm shared",
        "bench comm --algorithm ring",
        "bench comm --overlap --ranks 4",
        "bench comm --format bf16 --save",
    ]
}

/// A peer is scored on the rows that it answers. Its times are whole, ours depend on the machine.
#[test]
fn predictions_are_compared_with_those_of_a_peer() {
    let run = "bench deploy --peer aiconfigurator --peer-python peers/answers --data serving-rows.csv";
    let text = terminal().run(run);
    assert!(text.contains("3, of which 2 say enough") && text.contains("1 of 2"), "{text}");
    let json = terminal().run(&format!("--json {run}"));
    let start = json.find('{').expect("it prints an object");
    let found = serde_json::Deserializer::from_str(&json[start..]).into_iter::<serde_json::Value>().next();
    let found = found.expect("it has a value").expect("it is JSON");
    assert_eq!((&found["rows_asked"], &found["rows_answered_by_peer"]), (&2.into(), &1.into()), "{json}");
    assert_eq!(found["refused_by_peer"], serde_json::json!({ "no such row": 1 }));
    assert_eq!(found["peer"]["systems_without_rows"], serde_json::json!(["l40s"]));
    let dense = &found["by"]["kind"]["dense, vllm"];
    assert_eq!((&dense["rows"], &dense["rows_of_both"]), (&2.into(), &1.into()), "{json}");
    let error = dense["peer"]["ttft"]["median_abs_error"].as_f64().expect("it is a number");
    assert!((error - 0.25).abs() < 1e-9, "{json}");
    assert_eq!(found["cpu_s_per_prediction"]["peer_from_start"], 1.25);
}

/// `bedplate` alone in a folder, with nothing on the PATH.
#[test]
fn without_the_program_of_benchmarks_it_is_said_how_to_get_it() {
    let folder = std::env::temp_dir().join(format!("bedplate-alone-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("it can be made");
    let alone = folder.join("bedplate");
    std::fs::copy(beside(OWN, "bedplate"), &alone).expect("it can be copied");
    let output = std::process::Command::new(&alone).args(["bench", "search"]).env("PATH", "").output();
    let output = output.expect("it can be run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    std::fs::remove_dir_all(&folder).expect("it can be removed");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("command/companion") && said.contains("-p bedplate-bench"), "{said}");
}
