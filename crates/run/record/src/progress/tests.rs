//! What appears on a terminal, and what in a file.

use super::*;

fn record(step: u64) -> StepRecord {
    StepRecord { step, loss: 2.5, tokens_per_second: 1000.0, ..StepRecord::default() }
}

fn run(surface: Surface, seconds_of_steps: &[f64], then: impl FnOnce(&mut Progress<Vec<u8>>)) -> String {
    let mut progress = Progress::new(Vec::new(), surface, 10);
    let start = Instant::now();
    for (index, seconds) in seconds_of_steps.iter().enumerate() {
        progress.update_at(&record(index as u64 + 1), start + Duration::from_secs_f64(*seconds));
    }
    then(&mut progress);
    String::from_utf8(progress.to).unwrap()
}

const LINES: Surface = Surface::Lines { every: Duration::from_secs(10) };
const TERMINAL: Surface = Surface::Terminal(|| 20);

#[test]
fn in_a_file_a_line_appears_now_and_then_and_at_the_end() {
    let text = run(LINES, &[0.0, 4.0, 8.0, 12.0, 16.0], |progress| {
        progress.say("evaluated");
        progress.finish();
        progress.finish();
    });
    let rest = "loss 2.500  1.00k tok/s  norm 0  lr 0";
    let expected = format!("1/10  {rest}\n4/10  {rest}  24s left\nevaluated\n5/10  {rest}  20s left\n");
    assert_eq!(text, expected);
}

#[test]
fn a_line_that_was_just_printed_is_not_printed_again_at_the_end() {
    assert_eq!(run(LINES, &[0.0], Progress::finish).lines().count(), 1);
}

#[test]
fn a_terminal_has_one_line_that_changes_within_its_width() {
    let text = run(TERMINAL, &[0.0, 0.05, 0.2], |progress| {
        progress.say("evaluated");
        progress.finish();
    });
    let clear = "\r\x1b[2K";
    let lines = [
        "1/10  loss 2.500".to_owned(),
        "3/10  loss 2.500".to_owned(),
        "evaluated\n".to_owned(),
        "3/10  loss 2.500".to_owned(),
        "3/10  loss 2.500\n".to_owned(),
    ];
    assert_eq!(text, lines.map(|line| format!("{clear}{line}")).concat());
}

#[test]
fn a_resumed_run_extrapolates_from_its_own_steps() {
    let start = Instant::now();
    let began = Began { step: 100, at: start };
    let left = |step, seconds| left(began, step, 200, start + Duration::from_secs(seconds));
    assert_eq!(left(100, 0), None);
    assert_eq!(left(110, 20), Some(Seconds::new(180.0)));
    assert_eq!(left(250, 300), Some(Seconds::ZERO));
}
