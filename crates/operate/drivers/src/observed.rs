//! The steps of a job that reports none, by the end of its output: for clusters whose nodes have no agent of ours.

use std::sync::OnceLock;

use bedplate_logs::{LiveLog, Observed, Recognizer};
use bedplate_report::StepHistory;

/// Of an output, its end.
pub(crate) const MOST: u64 = 2 << 20;

/// What the output of a rank says of its steps; nothing where it has none that are known.
pub(crate) fn steps_in(output: &[u8]) -> Option<StepHistory> {
    static BUILT_IN: OnceLock<Recognizer> = OnceLock::new();
    let mut history = StepHistory::default();
    let observed = LiveLog::new(BUILT_IN.get_or_init(Recognizer::built_in)).feed(output, 0.0);
    for report in observed.into_iter().filter_map(Observed::into_report) {
        history.take(0, &report);
    }
    (history.steps > 0).then_some(history)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_known_by_their_lines() {
        let line = |step: u32| format!("iter {step}: loss 3.1, time 410.5ms, mfu 37.1%\n");
        let log: String = (1..=40).map(line).collect();
        let steps = steps_in(log.as_bytes()).unwrap();
        assert_eq!((steps.steps, steps.latest.last().unwrap().step), (39, 40));
        assert!((steps.recent_s().unwrap() - 0.4105).abs() < 1e-9);
        assert_eq!(steps_in(b"hello\n"), None);
    }
}
