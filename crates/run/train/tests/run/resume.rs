//! Resuming: to the same bits, back to an earlier checkpoint, past damaged ones, and not with other settings.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_data::Packing;
use bedplate_diag::Diagnostic;
use bedplate_record::StepRecord;
use bedplate_train::{
    AdapterConfig, Decay, Observer, Precision, Resume, RunOptions, Telemetry, TrainConfig, TrainError, run,
};

use crate::place::{Notes, Place, code, go, state, state_in};

#[test]
fn a_run_that_was_stopped_goes_on_to_the_same_bits() {
    for precision in [Precision::F32, Precision::Bf16] {
        let place = Place::new(&format!("resume-{}", precision.name()));
        let [mut whole, mut broken] = ["whole", "broken"].map(|name| place.config(name));
        whole.training.precision = precision;
        broken.training.precision = precision;
        let (_, told) = go(&whole, Resume::No);
        static STOP: AtomicBool = AtomicBool::new(false);
        STOP.store(false, Ordering::Relaxed);
        let mut notes = Notes { stop: Some((17, &STOP)), ..Notes::default() };
        let options = RunOptions { stop: Some(&STOP), ..RunOptions::default() };
        let summary = run(&broken, &options, &mut notes).unwrap();
        assert!(summary.was_stopped && summary.steps == 17 && summary.weights.is_none());
        let (summary, rest) = go(&broken, Resume::Newest);
        assert_eq!(summary.unwrap().steps, 30);
        let losses = |steps: &[StepRecord]| steps.iter().map(|record| record.loss).collect::<Vec<_>>();
        assert_eq!(losses(&told.steps[17..]), losses(&rest.steps));
        assert!(state(&whole.output.folder, 30) == state(&broken.output.folder, 30));
    }
}

/// The names of the folders in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name != "lock").collect();
    names.sort();
    names
}

fn checkpoint(config: &TrainConfig, step: u64) -> PathBuf {
    config.output.folder.join(format!("checkpoints/step-{step:08}"))
}

/// Steps in a file of records.
fn recorded(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).unwrap();
    let record = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let steps = text.lines().map(record).filter(|record| record["kind"] == "step");
    steps.map(|record| record["step"].as_u64().unwrap()).collect()
}

fn with_records(config: &TrainConfig, resume: Resume) {
    let mut telemetry = Telemetry::open(config, true).unwrap();
    run(config, &RunOptions { resume, ..RunOptions::default() }, &mut telemetry).unwrap();
}

#[test]
fn going_back_sets_aside_what_came_after_and_later_resumes_follow_the_branch() {
    let place = Place::new("rollback");
    let mut config = place.config("out");
    config.optimizer.decay = Decay::Constant;
    config.checkpoint.keep = 10;
    with_records(&config, Resume::No);
    let old = state(&config.output.folder, 30);
    let checkpoints = config.output.folder.join("checkpoints");
    assert_eq!(names(&checkpoints), ["step-00000010", "step-00000020", "step-00000030"]);

    // The step may be given as people say it. The new branch is shorter than the abandoned one was.
    config.training.steps = 15;
    config.checkpoint.keep = 2;
    with_records(&config, Resume::From("step-10".into()));
    assert_eq!(names(&checkpoints), ["step-00000010", "step-00000015"], "what is new stays");
    let aside = config.output.folder.join("abandoned/after-step-00000010");
    assert_eq!(names(&aside), ["metrics.jsonl", "model", "step-00000020", "step-00000030"]);
    assert!(state_in(&aside.join("step-00000030")) == old);
    assert_eq!(recorded(&aside.join("metrics.jsonl")), (11..=30).collect::<Vec<_>>());
    assert_eq!(recorded(&config.output.folder.join("metrics.jsonl")), (1..=15).collect::<Vec<_>>());

    config.training.steps = 30;
    let (summary, notes) = go(&config, Resume::Newest);
    assert_eq!(notes.steps[0].step, 16, "from the branch, not from what was abandoned");
    assert_eq!(summary.unwrap().steps, 30);
    assert_eq!(notes.abandoned, None);
    assert_eq!(names(&checkpoints), ["step-00000020", "step-00000030"]);
    assert!(state(&config.output.folder, 30) == old, "the same settings give the same bits");

    // Going back to the same step again does not touch what was set aside before.
    config.training.steps = 20;
    go(&config, Resume::From("20".into())).0.unwrap();
    config.training.steps = 25;
    go(&config, Resume::From(checkpoint(&config, 20))).0.unwrap();
    config.training.steps = 30;
    let (_, notes) = go(&config, Resume::From(checkpoint(&config, 20)));
    assert!(notes.abandoned.unwrap().ends_with("abandoned/after-step-00000020.2"));
}

#[test]
fn a_copied_or_renamed_checkpoint_resumes_by_what_is_in_it() {
    let place = Place::new("renamed");
    let mut config = place.config("out");
    config.optimizer.decay = Decay::Constant;
    config.training.steps = 10;
    go(&config, Resume::No).0.unwrap();
    let elsewhere = place.path("my best run");
    fs::rename(checkpoint(&config, 10), &elsewhere).unwrap();
    assert_eq!(code(go(&config, Resume::Newest).0), "train/nothing-to-resume");
    config.training.steps = 12;
    let (summary, notes) = go(&config, Resume::From(elsewhere.clone()));
    assert_eq!((summary.unwrap().steps, notes.steps[0].step), (12, 11));
    let written: Vec<u64> = notes.checkpoints.iter().map(|checkpoint| checkpoint.step).collect();
    assert_eq!(written, [10, 12], "the folder has the branch from its first step on");
    assert!(elsewhere.exists());

    // A copy under another name in the folder itself is found by its step, and never pruned.
    let copy = config.output.folder.join("checkpoints/step-00000099");
    fs::rename(checkpoint(&config, 12), &copy).unwrap();
    config.training.steps = 14;
    config.checkpoint.every = 1;
    config.checkpoint.keep = 1;
    let (_, notes) = go(&config, Resume::Newest);
    assert_eq!(notes.steps[0].step, 13);
    assert_eq!(names(copy.parent().unwrap()), ["step-00000014", "step-00000099"]);
}

#[test]
fn a_checkpoint_of_another_run_takes_the_place_of_those_in_the_folder() {
    let place = Place::new("foreign");
    let mut configs = ["one", "two"].map(|name| place.config(name));
    for config in &mut configs {
        config.optimizer.decay = Decay::Constant;
        config.training.steps = 20;
        go(config, Resume::No).0.unwrap();
    }
    let [one, mut two] = configs;
    two.training.steps = 25;
    let (_, notes) = go(&two, Resume::From(checkpoint(&one, 10)));
    assert_eq!(names(&notes.abandoned.unwrap()), ["model", "step-00000010", "step-00000020"]);
    assert_eq!(names(&one.output.folder.join("checkpoints")), ["step-00000010", "step-00000020"]);
    assert_eq!(notes.steps[0].step, 11);
}

#[test]
fn nothing_moves_before_the_checkpoint_of_another_run_is_written() {
    let place = Place::new("foreign-crash");
    let mut configs = ["one", "two"].map(|name| place.config(name));
    for config in &mut configs {
        config.optimizer.decay = Decay::Constant;
        config.training.steps = 20;
        go(config, Resume::No).0.unwrap();
    }
    let [one, two] = configs;
    let checkpoints = two.output.folder.join("checkpoints");
    // Nobody can give a folder the name of a file.
    fs::write(checkpoints.join("step-00000010.taken-over"), "in the way").unwrap();
    fs::write(two.output.folder.join("abandoned"), "in the way").unwrap();
    assert!(go(&two, Resume::From(checkpoint(&one, 10))).0.is_err());
    fs::remove_file(two.output.folder.join("abandoned")).unwrap();
    assert_eq!(names(&checkpoints), ["step-00000010", "step-00000010.taken-over", "step-00000020"]);
    assert!(!two.output.folder.join("abandoned").exists());
}

#[test]
fn records_of_two_branches_are_never_mixed() {
    let place = Place::new("foreign-records");
    let mut config = place.config("out");
    config.optimizer.decay = Decay::Constant;
    with_records(&config, Resume::No);
    with_records(&config, Resume::From("step-20".into()));
    let other = config.output.folder.join("abandoned/after-step-00000020");
    assert_eq!(recorded(&other.join("metrics.jsonl")), (21..=30).collect::<Vec<u64>>());
    config.training.steps = 32;
    with_records(&config, Resume::From(other.join("step-00000030")));
    assert_eq!(recorded(&config.output.folder.join("metrics.jsonl")), [31, 32]);
    let left = config.output.folder.join("abandoned/after-step-00000030/metrics.jsonl");
    assert_eq!(recorded(&left), (1..=30).collect::<Vec<u64>>());
}

type Damage = (&'static str, fn(&Path), &'static str);
type Edit<'a> = (&'a str, &'a dyn Fn(&mut TrainConfig));

/// What can happen to a checkpoint's files, with what is said about it.
const DAMAGES: [Damage; 6] = [
    ("flip", |folder| flip(&folder.join(DATA), 5000), "part-00000.data is damaged: the checksum of bytes"),
    ("flip manifest", |folder| flip(&folder.join("manifest.json"), 60), ""),
    ("cut", |folder| cut(&folder.join(DATA), 4000), "part-00000.data has 4000 bytes instead of"),
    (
        "cut manifest",
        |folder| cut(&folder.join("manifest.json"), 40),
        "manifest.json is damaged: it is not JSON",
    ),
    ("lost", |folder| fs::remove_file(folder.join(DATA)).unwrap(), "part-00000.data is missing"),
    (
        "empty",
        |folder| [DATA, "manifest.json"].iter().for_each(|file| fs::remove_file(folder.join(file)).unwrap()),
        "manifest.json is missing",
    ),
];

const DATA: &str = "part-00000.data";

fn flip(path: &Path, place: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[place] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn cut(path: &Path, len: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_passed_over_with_a_reason_and_refused_by_name() {
    let place = Place::new("damaged");
    let config = place.config("out");
    go(&config, Resume::No).0.unwrap();
    let old = state(&config.output.folder, 30);
    for (name, damage, said) in DAMAGES {
        let path = checkpoint(&config, 30);
        damage(&path);
        let error = go(&config, Resume::From(path.clone())).0.unwrap_err();
        assert_eq!(error.page().code, "checkpoint/damaged", "{name}: {error}");
        assert!(error.to_string().contains(said), "{name}: {error}");
        assert_eq!(code(go(&config, Resume::No).0), "train/folder-in-use", "{name}");
        let (summary, notes) = go(&config, Resume::Newest);
        assert_eq!(summary.unwrap().steps, 30, "{name}");
        assert_eq!(notes.steps[0].step, 21, "{name}");
        let remark = &notes.remarks[0];
        assert!(remark.contains("step-00000030 is not used: ") && remark.contains(said), "{name}: {remark}");
        assert!(notes.abandoned.unwrap().join("step-00000030").exists(), "{name}");
        assert!(state(&config.output.folder, 30) == old, "{name}");
    }
    for step in [20, 30] {
        flip(&checkpoint(&config, step).join(DATA), 5000);
    }
    for resume in [Resume::Newest, Resume::IfPossible] {
        assert_eq!(code(go(&config, resume).0), "checkpoint/damaged", "never from the start over a run");
    }
}

#[test]
fn what_a_killed_run_left_half_written_is_not_a_checkpoint() {
    let place = Place::new("unfinished");
    let mut config = place.config("out");
    config.optimizer.decay = Decay::Constant;
    config.training.steps = 10;
    go(&config, Resume::No).0.unwrap();
    let unfinished = config.output.folder.join("checkpoints/unfinished-00000020-1");
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join(DATA), "half").unwrap();
    config.training.steps = 12;
    let (_, notes) = go(&config, Resume::Newest);
    assert_eq!((notes.steps[0].step, notes.remarks.len()), (11, 0));
    assert!(!unfinished.exists());
}

#[test]
fn every_setting_that_shapes_the_curve_is_compared() {
    let place = Place::new("settings");
    let mut base = place.config("out");
    base.adapter = Some(AdapterConfig { rank: 4, alpha: 8.0, targets: vec!["q_proj".into()] });
    base.training.steps = 10;
    go(&base, Resume::No).0.unwrap();
    place.write_corpus("other", 10..200);
    let config_json = fs::read_to_string(place.path("config.json")).unwrap();
    fs::write(
        place.path("other.json"),
        config_json.replace("\"vocab_size\"", "\"rope_theta\": 500000, \"vocab_size\""),
    )
    .unwrap();
    let changes: [Edit<'_>; 14] = [
        ("model.config: rope_theta", &|config| {
            config.model.config = place.path("other.json").to_string_lossy().into_owned()
        }),
        ("model.seed", &|config| config.model.seed = 2),
        ("data.corpora", &|config| config.data.corpora[0].path = place.path("other")),
        ("data.weights", &|config| config.data.corpora[0].weight = 2.0),
        ("data.sequence", &|config| config.data.sequence = 32),
        ("data.packing", &|config| config.data.packing = Packing::Whole),
        ("data.document_mask", &|config| config.data.has_document_mask = false),
        ("data.seed", &|config| config.data.seed = 2),
        ("training.batch", &|config| config.training.batch = 8),
        ("training.precision", &|config| config.training.precision = Precision::Bf16),
        ("training.steps", &|config| config.training.steps = 20),
        ("optimizer.learning_rate", &|config| config.optimizer.learning_rate = 2e-2),
        ("optimizer.clip", &|config| config.optimizer.clip = 2.0),
        ("adapter.alpha", &|config| config.adapter.as_mut().unwrap().alpha = 9.0),
    ];
    for (key, change) in changes {
        let mut config = base.clone();
        change(&mut config);
        let error = go(&config, Resume::Newest).0.unwrap_err();
        let TrainError::ChangedSettings { changes, .. } = &error else { panic!("{key}: {error}") };
        assert_eq!(changes.iter().map(|change| change.key.as_str()).collect::<Vec<_>>(), [key], "{error}");
    }
    let mut moved = base.clone();
    fs::rename(place.path("corpus"), place.path("moved")).unwrap();
    moved.data.corpora[0].path = place.path("moved");
    moved.training.micro_batch = 1;
    moved.training.threads = 2;
    moved.checkpoint.every = 3;
    go(&moved, Resume::Newest).0.expect("where files lie and how fast the run is do not matter");

    moved.optimizer.learning_rate = 2e-2;
    moved.training.steps = 12;
    let options = RunOptions { resume: Resume::Newest, accepts_changes: true, ..RunOptions::default() };
    let mut notes = Notes::default();
    assert_eq!(run(&moved, &options, &mut notes).unwrap().steps, 12);
    assert!(
        notes.remarks[0].contains("`optimizer.learning_rate` was 0.01 and is 0.02"),
        "{:?}",
        notes.remarks
    );
}

#[test]
fn the_weights_that_a_run_began_with_are_compared() {
    let place = Place::new("base-weights");
    let [first, second] = [1, 2].map(|seed| {
        let mut config = place.config(&format!("base-{seed}"));
        config.model.seed = seed;
        go(&config, Resume::No).0.unwrap().weights.unwrap()
    });
    let mut config = place.config("tuned");
    config.model.weights = Some(first.clone());
    config.adapter = Some(AdapterConfig { rank: 4, alpha: 8.0, targets: vec!["q_proj".into()] });
    go(&config, Resume::No).0.unwrap();
    config.model.weights = Some(second);
    let error = go(&config, Resume::Newest).0.unwrap_err();
    assert!(error.to_string().contains("`model.weights` was"), "{error}");
    let copy = place.path("copy");
    fs::rename(first, &copy).unwrap();
    config.model.weights = Some(copy);
    go(&config, Resume::Newest).0.expect("the same numbers in another folder");
}

#[test]
fn samples_go_on_where_they_were_with_another_batch() {
    let place = Place::new("batch");
    let mut config = place.config("out");
    config.training.steps = 10;
    config.optimizer.decay = Decay::Constant;
    go(&config, Resume::No).0.unwrap();
    config.training.batch = 8;
    config.training.steps = 11;
    let options = RunOptions { resume: Resume::Newest, accepts_changes: true, ..RunOptions::default() };
    let mut notes = Notes::default();
    run(&config, &options, &mut notes).unwrap();
    assert_eq!(notes.steps[0].tokens, (10 * 4 + 8) * 48);
}

#[test]
fn checkpoints_may_lie_in_another_folder() {
    let place = Place::new("store");
    let mut config = place.config("out");
    config.optimizer.decay = Decay::Constant;
    config.checkpoint.store = Some(place.path("elsewhere").to_string_lossy().into_owned());
    go(&config, Resume::No).0.unwrap();
    assert_eq!(names(&place.path("elsewhere")), ["step-00000020", "step-00000030"]);
    config.training.steps = 32;
    let (_, notes) = go(&config, Resume::From("step-20".into()));
    assert_eq!(notes.steps[0].step, 21);
    assert!(notes.abandoned.unwrap().join("step-00000030").exists());
}

/// Runs the same configuration again from within its first step.
struct Second(TrainConfig, Option<TrainError>);

impl Observer for Second {
    fn step(&mut self, _record: &StepRecord) -> Result<(), TrainError> {
        if self.1.is_none() {
            self.1 = go(&self.0, Resume::IfPossible).0.err();
        }
        Ok(())
    }
}

#[test]
fn a_folder_has_one_writer_at_a_time() {
    let place = Place::new("writers");
    let mut config = place.config("out");
    config.training.steps = 2;
    let mut second = Second(config.clone(), None);
    run(&config, &RunOptions::default(), &mut second).unwrap();
    let error = second.1.unwrap();
    assert_eq!(error.page().code, "train/folder-locked");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    go(&config, Resume::Newest).0.expect("the lock ends with the run");
}
