//! Reports as lines of text.
//!
//! Writers of version 1 may add fields; readers skip fields they do not know. A change that old readers would
//! misread gets a new version, and lines of a version that a reader does not know are no reports for it.

use serde_json::Value;

use crate::{Checkpoint, Report};

/// The version of the lines that are written.
pub const VERSION: u64 = 1;
/// Longer lines are not read.
pub const LONGEST_LINE: usize = 64 << 10;

/// Why a line was not understood. Readers skip such lines: a job must not fail because of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAReport {
    #[error("the line is longer than {LONGEST_LINE} bytes")]
    TooLong,
    #[error("the line is not a report")]
    Malformed,
    #[error("the line is a report of version {0}; this program reads version {VERSION}")]
    OtherVersion(u64),
}

impl Report {
    /// The line without its end.
    pub fn to_line(&self) -> String {
        let mut object = serde_json::Map::from_iter([("version".to_owned(), VERSION.into())]);
        if let Ok(Value::Object(fields)) = serde_json::to_value(self) {
            object.extend(fields);
        }
        Value::Object(object).to_string()
    }

    /// Reads a line without its end, in either form.
    pub fn from_line(line: &[u8]) -> Result<Self, NotAReport> {
        if line.len() > LONGEST_LINE {
            return Err(NotAReport::TooLong);
        }
        let text = std::str::from_utf8(line).map_err(|_| NotAReport::Malformed)?.trim();
        let report = if text.starts_with('{') {
            from_json(text)?
        } else {
            from_words(text).ok_or(NotAReport::Malformed)?
        };
        if report.is_plausible() { Ok(report) } else { Err(NotAReport::Malformed) }
    }
}

fn from_json(text: &str) -> Result<Report, NotAReport> {
    let value: Value = serde_json::from_str(text).map_err(|_| NotAReport::Malformed)?;
    match value.get("version").and_then(Value::as_u64) {
        Some(VERSION) => {}
        Some(other) => return Err(NotAReport::OtherVersion(other)),
        None => return Err(NotAReport::Malformed),
    }
    serde_json::from_value(value).map_err(|_| NotAReport::Malformed)
}

/// `progress 1200`, or `checkpoint 1000 /shared/ckpt/1000` whose path may be missing and may contain spaces.
fn from_words(line: &str) -> Option<Report> {
    let (word, rest) = line.split_once(' ')?;
    let (number, path) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
    let step = number.parse().ok()?;
    match word {
        "progress" => Some(Report::Progress { step }),
        "checkpoint" => {
            let path = Some(path.trim()).filter(|path| !path.is_empty()).map(str::to_owned);
            Some(Report::Checkpoint(Checkpoint { step, path }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bedplate_breakdown::{Breakdown, Part, Span};
    use bedplate_units::Seconds;
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;
    use crate::{FaultReport, Phase, StepReport};

    fn reports() -> Vec<Report> {
        let exposed = Span::exposed(Seconds::new(0.25));
        let step = StepReport {
            step: 7,
            seconds: 0.5,
            tokens: Some(4096),
            loss: Some(3.25),
            breakdown: Some(Breakdown::default().with(Part::Compute, exposed)),
        };
        let bare = StepReport { tokens: None, loss: None, breakdown: None, ..step.clone() };
        vec![
            Report::Progress { step: 7 },
            Report::Checkpoint(Checkpoint { step: 5, path: Some("/c/5".to_owned()) }),
            Report::Step(Box::new(step)),
            Report::Step(Box::new(bare)),
            Report::Predicted {
                breakdown: Box::new(Breakdown::default().with(Part::Host, exposed)),
                source: None,
            },
            Report::Stage { stage: 1 },
            Report::Phase { phase: Phase::Saving },
            Report::Metrics { address: "127.0.0.1:8000/metrics".into() },
            Report::Fault(Box::new(FaultReport {
                address: "0000:1b:00.0".into(),
                uuid: "GPU-ab".into(),
                code: "cuda/device-fault".into(),
                message: "an illegal memory access was encountered".into(),
            })),
        ]
    }

    #[test]
    fn a_loss_that_is_no_number_survives() {
        for loss in ["\"nan\"", "\"NaN\"", "\"inf\""] {
            let line =
                format!("{{\"version\":1,\"report\":\"step\",\"step\":7,\"seconds\":1,\"loss\":{loss}}}");
            let Ok(Report::Step(step)) = Report::from_line(line.as_bytes()) else { panic!("{line}") };
            assert!(step.loss.is_some_and(f64::is_nan));
            assert!(Report::Step(step).to_line().contains("\"loss\":\"nan\""));
        }
    }

    #[test]
    fn every_report_is_one_line_that_reads_back() {
        let lines: Vec<String> = reports().iter().map(Report::to_line).collect();
        expect![[r#"
            {"version":1,"report":"progress","step":7}
            {"version":1,"report":"checkpoint","step":5,"path":"/c/5"}
            {"version":1,"report":"step","step":7,"seconds":0.5,"tokens":4096,"loss":3.25,"breakdown":{"compute":{"exposed_s":0.25,"hidden_s":0.0}}}
            {"version":1,"report":"step","step":7,"seconds":0.5}
            {"version":1,"report":"predicted","breakdown":{"host":{"exposed_s":0.25,"hidden_s":0.0}}}
            {"version":1,"report":"stage","stage":1}
            {"version":1,"report":"phase","phase":"saving"}
            {"version":1,"report":"metrics","address":"127.0.0.1:8000/metrics"}
            {"version":1,"report":"fault","address":"0000:1b:00.0","uuid":"GPU-ab","code":"cuda/device-fault","message":"an illegal memory access was encountered"}
        "#]]
        .assert_eq(&(lines.join("\n") + "\n"));
        for (line, report) in lines.iter().zip(reports()) {
            assert_eq!(Report::from_line(line.as_bytes()), Ok(report));
        }
    }

    #[test]
    fn plain_lines_are_read_too() {
        for (line, expected) in [
            ("progress 7", Report::Progress { step: 7 }),
            ("  progress  8 ", Report::Progress { step: 8 }),
            ("checkpoint 5", Report::Checkpoint(Checkpoint { step: 5, path: None })),
            (
                "checkpoint 5 /c/5 of it",
                Report::Checkpoint(Checkpoint { step: 5, path: Some("/c/5 of it".into()) }),
            ),
        ] {
            assert_eq!(Report::from_line(line.as_bytes()), Ok(expected), "{line}");
        }
    }

    #[test]
    fn other_lines_are_no_reports() {
        for line in [
            "",
            "progress",
            "progress -1",
            "progress x",
            "hello 5",
            "{",
            "{}",
            "[]",
            "{\"version\":1}",
            r#"{"version":"1","report":"progress","step":1}"#,
            r#"{"version":1,"report":"step","step":1,"seconds":-1}"#,
            r#"{"version":1,"report":"step","step":1,"seconds":1,"breakdown":{"magic":1}}"#,
            r#"{"version":1,"report":"dance","step":1}"#,
            r#"{"version":1,"report":"fault","address":"a","uuid":"b","code":"c","message":"\u001b[2J"}"#,
        ] {
            assert_eq!(Report::from_line(line.as_bytes()), Err(NotAReport::Malformed), "{line}");
        }
        let newer = br#"{"version":2,"report":"progress","step":1}"#;
        assert_eq!(Report::from_line(newer), Err(NotAReport::OtherVersion(2)));
        assert_eq!(Report::from_line(&vec![b' '; LONGEST_LINE + 1]), Err(NotAReport::TooLong));
        let with_more = br#"{"version":1,"report":"progress","step":1,"of_tomorrow":[1]}"#;
        assert_eq!(Report::from_line(with_more), Ok(Report::Progress { step: 1 }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(report) = Report::from_line(&bytes) {
                prop_assert_eq!(Report::from_line(report.to_line().as_bytes()), Ok(report));
            }
        }
    }
}
