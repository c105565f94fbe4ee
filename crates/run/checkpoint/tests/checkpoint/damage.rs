//! Files that are torn, changed, gone or something else than files.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bedplate_checkpoint::{Attempt, Checkpoint, CheckpointError, Checkpoints, Keep};
use bedplate_diag::Diagnostic;

use crate::place::{Place, check, names, newest, save, simple};

type Damage = (&'static str, fn(&Path), &'static str);

fn flip(path: &Path, place: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[place] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn cut(path: &Path, len: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

fn fifo(path: &Path) {
    fs::remove_file(path).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

const DAMAGES: [Damage; 9] = [
    (
        "flip",
        |folder| flip(&folder.join("part-00000.data"), 70_000),
        "the checksum of bytes 65536 to 131072 is wrong",
    ),
    ("cut", |folder| cut(&folder.join("part-00000.data"), 5000), "part-00000.data has 5000 bytes instead of"),
    (
        "grown",
        |folder| cut(&folder.join("part-00000.data"), 9_000_000),
        "part-00000.data has 9000000 bytes instead of",
    ),
    ("lost", |folder| fs::remove_file(folder.join("part-00000.data")).unwrap(), "part-00000.data is missing"),
    ("manifest flip", |folder| flip(&folder.join("manifest.json"), 90), "manifest.json"),
    (
        "manifest cut",
        |folder| cut(&folder.join("manifest.json"), 50),
        "manifest.json is damaged: it is not JSON",
    ),
    (
        "manifest lost",
        |folder| fs::remove_file(folder.join("manifest.json")).unwrap(),
        "manifest.json is missing",
    ),
    ("data is a fifo", |folder| fifo(&folder.join("part-00000.data")), "part-00000.data is not a file"),
    ("manifest is a fifo", |folder| fifo(&folder.join("manifest.json")), "manifest.json is not a file"),
];

#[test]
fn the_newest_good_checkpoint_is_used_and_the_flaw_of_a_newer_one_told() {
    for (name, damage, said) in DAMAGES {
        let place = Place::new(&format!("damage-{}", name.replace(' ', "-")));
        let checkpoints = place.checkpoints(5);
        for step in [10, 20] {
            save(&checkpoints, &simple(1000), step).unwrap();
        }
        let folder = checkpoints.store().directory().unwrap().join("step-00000020");
        damage(&folder);
        let (good, remarks) = checkpoints.newest_good().unwrap().unwrap();
        assert_eq!(good.facts().step, 10, "{name}");
        assert!(
            remarks[0].contains("step-00000020 is not used: ") && remarks[0].contains(said),
            "{name}: {remarks:?}"
        );
        check(&good, &simple(1000));
        let error = checkpoints.named(Path::new("step-20")).unwrap_err();
        assert_eq!(error.page().code, "checkpoint/damaged", "{name}: {error}");
        assert!(error.to_string().contains(said), "{name}: {error}");
        assert_eq!(checkpoints.newest_step().unwrap(), Some(20), "{name}: it is still there");
    }
}

#[test]
fn a_checkpoint_of_an_earlier_release_is_recognised() {
    let place = Place::new("old");
    let checkpoints = place.checkpoints(1);
    let folder = place.0.join("checkpoints/step-00000007");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("state.safetensors"), "numbers").unwrap();
    fs::write(folder.join("manifest.json"), r#"{"files": {}}"#).unwrap();
    let error = checkpoints.newest_good().unwrap_err();
    assert_eq!(error.page().code, "checkpoint/old-format");
    assert!(matches!(Checkpoint::open(&folder.to_string_lossy()), Err(CheckpointError::Old { .. })));
}

#[test]
fn what_an_attempt_left_is_no_checkpoint_and_goes_with_the_next() {
    let place = Place::new("unfinished");
    let checkpoints = place.checkpoints(2);
    save(&checkpoints, &simple(10), 1).unwrap();
    checkpoints.begin(2).unwrap();
    let folder = checkpoints.store().directory().unwrap().to_owned();
    assert_eq!(names(&folder).len(), 2);
    assert_eq!(newest(&checkpoints).facts().step, 1);
    save(&checkpoints, &simple(10), 3).unwrap();
    assert_eq!(names(&folder), ["step-00000001", "step-00000003"]);
}

#[test]
fn count_and_age_decide_what_stays() {
    let place = Place::new("keep");
    let folder = place.0.join("checkpoints");
    let keep = |count, seconds| Keep { count, age: Duration::from_secs(seconds) };
    let all = Checkpoints::in_output(&place.0, keep(1, 3600));
    for step in 1..=4 {
        save(&all, &simple(10), step).unwrap();
    }
    assert_eq!(names(&folder).len(), 4, "all are younger than an hour");
    let two = Checkpoints::in_output(&place.0, keep(2, 0));
    fs::rename(folder.join("step-00000001"), folder.join("the best")).unwrap();
    save(&two, &simple(10), 5).unwrap();
    assert_eq!(
        names(&folder),
        ["step-00000004", "step-00000005", "the best"],
        "copies with other names stay"
    );
}

#[test]
fn going_back_takes_the_later_ones_out_of_the_list() {
    let place = Place::new("branch");
    let checkpoints = place.checkpoints(9);
    for step in [10, 20, 30] {
        save(&checkpoints, &simple(10), step).unwrap();
    }
    let from = checkpoints.named(Path::new("10")).unwrap();
    assert!(checkpoints.holds(&from));
    let aside = checkpoints.branch_off(&from.published(), false, &[]).unwrap().unwrap();
    assert_eq!(names(&aside), ["step-00000020", "step-00000030"]);
    assert_eq!(newest(&checkpoints).facts().step, 10);
    // The same step again: what was there is set aside, not overwritten.
    save(&checkpoints, &simple(10), 10).unwrap();
    assert_eq!(names(&place.0.join("abandoned")), ["after-step-00000010", "after-step-00000010.2"]);
}

#[test]
fn texts_of_attempts_cannot_lead_elsewhere() {
    for text in ["", "1", "1 ", "1 ../../etc", "x 1", "1 a/b"] {
        assert_eq!(Attempt::from_text(text), None, "{text:?}");
    }
}
