//! `bedplate bench comm` with real ranks: every operation gives right numbers, its table joins a plan, and nothing is left behind.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bedplate_testkit::beside;
use serde_json::Value;

const INPUTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bedplate/tests/inputs");

/// A place for temporary files, gone with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bedplate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn bedplate(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(beside(env!("CARGO_BIN_EXE_bedplate-bench"), "bedplate"));
        command.args(arguments).env("TMPDIR", &self.0).env("BEDPLATE_STATE", &self.0);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.bedplate(arguments).stdout).unwrap()
    }

    fn folders(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().flatten().filter(|entry| entry.path().is_dir()).count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_operation_gives_right_numbers_over_every_transport() {
    let place = Place::new("bench-comm");
    let sizes = ["--sizes", "1000,70K", "--rounds", "1", "--calls", "1"];
    for format in ["f32", "bf16", "i8"] {
        let fixed = ["bench", "comm", "--ranks", "3", "--op", "all", "--transport", "auto,tcp", "--json"];
        let found = place.json(&[&fixed[..], &sizes, &["--format", format]].concat());
        let rows = found["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 9 * 2 * 2, "operations, sizes, transports");
        for row in rows {
            assert_eq!(row["wrong"], 0, "{row}");
            assert!(row["time_us"].as_f64().unwrap() > 0.0 && row["bus_gb_s"].as_f64().unwrap() > 0.0);
            assert!(row["median_us"].as_f64().unwrap() >= row["time_us"].as_f64().unwrap());
        }
    }
    assert_eq!(place.folders(), 0, "sockets and logs are gone");
}

#[test]
fn unregistered_buffers_and_a_chosen_algorithm_are_measured_too() {
    let place = Place::new("bench-comm-private");
    let fixed =
        ["bench", "comm", "--ranks", "2", "--sizes", "64K", "--op", "all_reduce", "--rounds", "1", "--json"];
    let rows = |more: &[&str]| place.json(&[&fixed[..], more].concat())["rows"].clone();
    let private = rows(&["--private"]);
    assert_eq!((&private[0]["wrong"], &private[0]["algorithm"]), (&Value::from(0), &Value::from("shared")));
    let ring = rows(&["--transport", "tcp", "--algorithm", "ring"]);
    assert_eq!((&ring[0]["wrong"], &ring[0]["algorithm"]), (&Value::from(0), &Value::from("ring")));
}

#[test]
fn a_saved_table_is_planned_with_and_held_against_the_next_run() {
    let place = Place::new("bench-comm-save");
    let host = place.0.join("host.toml");
    std::fs::copy(Path::new(INPUTS).join("host.toml"), &host).unwrap();
    let bench = |sizes: &str, more: &[&str]| {
        let fixed =
            ["bench", "comm", "--ranks", "2", "--op", "all_reduce", "--rounds", "1", "--json", "--sizes"];
        place.json(&[&fixed[..], &[sizes], more].concat())
    };
    assert_eq!(bench("1K,1M,16M", &["--save"])["predictions"].as_array().unwrap().len(), 0);
    let predictions = bench("4K,4M", &[])["predictions"].clone();
    assert_eq!(predictions.as_array().unwrap().len(), 2);
    assert!(
        predictions[1]["predicted_us"].as_f64().unwrap() > predictions[0]["predicted_us"].as_f64().unwrap()
    );
    let host = host.display().to_string();
    let question =
        ["--seq", "512", "--global-batch", "16", "--precision", "fp32", "--layout", "dp2.mb8.fp32"];
    let plan = ["--catalog", &host, "plan", "train", "--model", "gpt2", "--cluster", "host:2", "--json"];
    let text = String::from_utf8(place.bedplate(&[&plan[..], &question].concat()).stdout).unwrap();
    assert!(text.contains("scale_up"), "{text}");
}

#[test]
fn peers_are_measured_in_the_same_run() {
    let is_there =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|it| it.status.success());
    if !(is_there("mpirun") && is_there("mpicc")) {
        println!("SKIPPED: Open MPI (openmpi-bin, libopenmpi-dev) is not installed");
        return;
    }
    let place = Place::new("bench-comm-peer");
    let fixed =
        ["bench", "comm", "--ranks", "2", "--op", "all", "--sizes", "1000,40K", "--rounds", "1", "--json"];
    let found = place.json(&[&fixed[..], &["--peer", "openmpi"]].concat());
    for row in found["rows"].as_array().unwrap() {
        let peer = &row["peers"][0];
        assert_eq!((&peer["peer"], &peer["wrong"]), (&Value::from("openmpi"), &Value::from(0)), "{row}");
        assert!(peer["ratio"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(place.folders(), 0, "what was compiled is gone");
}
