//! Lines of JSON, and which of them a resumed run keeps.

use bedplate_breakdown::{Part, Span};
use bedplate_units::{Bytes, Seconds};
use expect_test::expect;
use proptest::prelude::*;

use super::*;
use crate::record::tests::TestFolder;

fn step(step: u64) -> StepRecord {
    StepRecord { step, ..StepRecord::default() }
}

#[test]
fn a_record_is_one_line_of_json() {
    let folder = TestFolder::new("lines");
    let mut lines = RecordLines::create(&folder.0.join("train.jsonl")).unwrap();
    let span = Span { exposed: Seconds::new(0.25), hidden: Seconds::new(0.125) };
    let record = StepRecord {
        tokens: 4096,
        loss: f64::NAN,
        learning_rate: 3e-4,
        mfu: Some(0.5),
        memory: Bytes::new(1024.0),
        breakdown: Breakdown::default().with(Part::ScaleOut, span),
        predicted: Some(Breakdown::default()),
        ..step(2)
    };
    lines.write_step(&record).unwrap();
    let sample = Some("two\nlines".to_owned());
    lines
        .write_evaluation(&EvaluationRecord { step: 2, loss: Some(1.5), perplexity: Some(4.5), sample })
        .unwrap();
    expect![[r#"
        {"kind":"step","step":2,"tokens":4096,"loss":null,"gradient_norm":0.0,"learning_rate":0.0003,"tokens_per_second":0.0,"mfu":0.5,"memory_bytes":1024.0,"seconds":0.0,"measured":{"scale_out":0.25,"scale_out_hidden":0.125},"predicted":{}}
        {"kind":"evaluation","step":2,"loss":1.5,"perplexity":4.5,"sample":"two\nlines"}
    "#]]
    .assert_eq(&std::fs::read_to_string(lines.path()).unwrap());
}

/// Steps of the file after a run resumed after `resumes_after` and wrote one more step.
fn resumed(folder: &TestFolder, before: &str, resumes_after: u64) -> Result<Vec<u64>, RecordError> {
    let path = folder.0.join("train.jsonl");
    std::fs::write(&path, before).unwrap();
    let mut lines = RecordLines::resume(&path, resumes_after, None)?;
    lines.write_step(&step(resumes_after + 1))?;
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.ends_with('\n'));
    Ok(text.lines().map(|line| step_of(line.as_bytes()).expect("every line is a record").0).collect())
}

#[test]
fn lines_of_an_abandoned_branch_are_set_aside() {
    let folder = TestFolder::new("abandoned-lines");
    let (path, aside) = (folder.0.join("train.jsonl"), folder.0.join("aside.jsonl"));
    let lines: Vec<String> = (1..=4).map(|number| format!("{}\n", step_object(&step(number)))).collect();
    std::fs::write(&path, lines.concat() + "{\"step\": 5, \"lo").unwrap();
    drop(RecordLines::resume(&path, 2, Some(&aside)).unwrap());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), lines[..2].concat());
    assert_eq!(std::fs::read_to_string(&aside).unwrap(), lines[2..].concat());
}

proptest! {
    #[test]
    fn wherever_the_earlier_run_was_cut_off_the_resumed_one_has_every_step_once(
        steps in 0u64..20, resumes_after in 0u64..20, cut in 0usize..200
    ) {
        let folder = TestFolder::new("resumed-lines");
        let resumes_after = resumes_after.min(steps);
        let mut before: String = (1..=steps).map(|number| format!("{}\n", step_object(&step(number)))).collect();
        let kept: usize = before.lines().take(resumes_after as usize).map(|line| line.len() + 1).sum();
        // A checkpoint is written after the line of its step.
        before.truncate(before.len().saturating_sub(cut).max(kept));
        let expected: Vec<u64> = (1..=resumes_after + 1).collect();
        prop_assert_eq!(resumed(&folder, &before, resumes_after).unwrap(), expected);
        prop_assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    }
}

#[test]
fn a_run_may_resume_without_a_file() {
    let folder = TestFolder::new("no-lines");
    let mut lines = RecordLines::resume(&folder.0.join("new.jsonl"), 5, None).unwrap();
    lines.write_step(&step(6)).unwrap();
    assert_eq!(std::fs::read_to_string(lines.path()).unwrap().lines().count(), 1);
}

#[test]
fn a_file_of_something_else_is_left_as_it_is() {
    let folder = TestFolder::new("other-lines");
    let text = "{\"step\":1}\nnot ours\n{\"step\":2}\n";
    let error = resumed(&folder, text, 2).unwrap_err();
    assert!(matches!(error, RecordError::NotARecord { line: 2, .. }), "{error}");
    assert_eq!(std::fs::read_to_string(folder.0.join("train.jsonl")).unwrap(), text);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn a_step_that_was_lost_is_added_once_and_in_order() {
    let folder = TestFolder::new("completed-lines");
    let path = folder.0.join("train.jsonl");
    let mut lines = RecordLines::create(&path).unwrap();
    lines.write_step(&step(1)).unwrap();
    lines.write_evaluation(&EvaluationRecord { step: 1, ..EvaluationRecord::default() }).unwrap();
    let mut lines = RecordLines::resume(&path, 3, None).unwrap();
    assert!(lines.has_evaluation(1) && !lines.has_evaluation(2));
    let told = [3, 2, 3, 1].map(|number| step(number).to_line());
    lines.complete(&told).unwrap();
    lines.complete(&["no record".to_owned(), String::new()]).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let steps: Vec<u64> = text.lines().map(|line| step_of(line.as_bytes()).unwrap().0).collect();
    assert_eq!(steps, [1, 1, 2, 3]);
}
