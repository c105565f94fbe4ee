//! Whole runs that are killed and resumed.

use serde_json::Value;

use crate::place::Place;

/// The same at scale: `bedplate bench survival --whole --kills 200`.
#[test]
fn a_run_whose_processes_are_all_killed_goes_on_from_a_good_checkpoint() {
    let place = Place::new("whole");
    let done = place.command(&["--json", "bench", "survival", "--whole", "--kills", "6"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stdout));
    let printed: Value = serde_json::from_slice(&done.stdout).unwrap();
    let figure = |name: &str| {
        let all = printed["figures"].as_array().unwrap();
        all.iter().find(|figure| figure["figure"] == name).unwrap()["value"].as_f64().unwrap()
    };
    assert_eq!(figure("times all processes were killed"), 6.0);
    assert_eq!(figure("largest difference of weights"), 0.0);
}
