//! Where the time of a job's training steps goes: predicted beside measured.

use bedplate_breakdown::{Comparison, Difference};
use bedplate_drivers::JobDetail;
use bedplate_report::{StepHistory, StepReport};
use bedplate_terminal::present::{Column, Table, printable_line};
use bedplate_units::Seconds;

/// A table by part and the latest steps; empty where neither a prediction nor a measurement is known.
pub(super) fn text(detail: &JobDetail, width: Option<usize>) -> String {
    let steps = detail.steps.as_ref().filter(|steps| steps.steps > 0);
    if detail.expected.is_none() && steps.is_none() {
        return String::new();
    }
    let mut text = format!("\n{}\n", title(detail, steps));
    text += &by_part(detail, steps).fit(width).text;
    if let Some(steps) = steps {
        text += "\nlatest steps\n";
        text += &steps.latest.iter().map(|step| format!("  {}\n", step_text(step))).collect::<String>();
    }
    text
}

fn title(detail: &JobDetail, steps: Option<&StepHistory>) -> String {
    let what = match &detail.expected {
        Some(expected) if expected.is_prediction() => "predicted and measured",
        Some(_) => "at first and since",
        None => "measured",
    };
    let by = detail.expected.as_ref().map(|expected| format!("; by {}", printable_line(&expected.source)));
    let by = by.unwrap_or_default();
    match steps {
        Some(steps) => format!("a step, {what} (mean of {} on rank {}{by})", steps.steps, steps.rank),
        None => format!("a step, predicted ({})", by.trim_start_matches("; ")),
    }
}

/// Parts in which either side has time; the whole comes last.
fn by_part(detail: &JobDetail, steps: Option<&StepHistory>) -> Table {
    let is_own = detail.expected.as_ref().is_some_and(|expected| !expected.is_prediction());
    let mut table = Table::new(vec![
        Column::left("PART", 0),
        Column::right(if is_own { "AT FIRST" } else { "PREDICTED" }, 0),
        Column::right("MEASURED", 0),
        Column::right("RATIO", 0),
    ]);
    let measured = steps.and_then(|steps| steps.mean).unwrap_or_default();
    let expected = detail.expected.as_ref();
    let predicted = expected.and_then(|expected| expected.breakdown);
    let comparison = Comparison::new(&predicted.unwrap_or_default(), &measured);
    let has_parts = |part: &&Difference| !part.predicted.is_zero() || !part.measured.is_zero();
    let (is_predicted, is_measured) = (predicted.is_some(), steps.is_some_and(|steps| steps.mean.is_some()));
    for part in comparison.differences().iter().filter(has_parts) {
        let predicted = Some(part.predicted).filter(|_| is_predicted);
        table.row(row(part.part.name(), predicted, Some(part.measured).filter(|_| is_measured)));
    }
    let whole = expected.map(|expected| Seconds::new(expected.seconds));
    table.row(row("whole step", whole, steps.map(|steps| Seconds::new(steps.mean_s))));
    table
}

fn row(name: &str, predicted: Option<Seconds>, measured: Option<Seconds>) -> Vec<String> {
    let text = |time: Option<Seconds>| time.map_or(String::new(), |time| time.to_string());
    let ratio = predicted.zip(measured).filter(|(predicted, _)| !predicted.is_zero());
    let ratio = ratio.map_or(String::new(), |(predicted, measured)| format!("{:.2}", measured / predicted));
    vec![name.to_owned(), text(predicted), text(measured), ratio]
}

fn step_text(step: &StepReport) -> String {
    let mut text = format!("{:>8}  {}", step.step, Seconds::new(step.seconds));
    if let Some(loss) = step.loss {
        text += &format!("  loss {loss:.4}");
    }
    if let Some(part) = step.breakdown.as_ref().and_then(|breakdown| breakdown.limit()) {
        text += &format!("  most in {part}");
    }
    text
}

#[cfg(test)]
mod tests {
    use bedplate_breakdown::{Breakdown, Part, Span};
    use bedplate_report::{Expectation, Report};
    use expect_test::expect;

    use super::*;
    use crate::job_text::canned;

    fn detail(is_predicted: bool, steps: u64) -> JobDetail {
        let exposed = |ms| Span::exposed(Seconds::ms(ms));
        let predicted =
            Breakdown::default().with(Part::Compute, exposed(90.0)).with(Part::Host, exposed(10.0));
        let breakdown =
            Breakdown::default().with(Part::Compute, exposed(99.0)).with(Part::Storage, exposed(51.0));
        let mut history = StepHistory::default();
        for step in 1..=steps {
            let report =
                StepReport { step, seconds: 0.15, tokens: None, loss: Some(3.5), breakdown: Some(breakdown) };
            history.take(0, &Report::Step(Box::new(report)));
        }
        JobDetail {
            tasks: Vec::new(),
            diagnosis: Vec::new(),
            summary: canned().remove(0),
            runs: Vec::new(),
            notes: Vec::new(),
            text: None,
            expected: Expectation::of(Some(&predicted).filter(|_| is_predicted), None),
            steps: Some(history),
        }
    }

    #[test]
    fn predicted_stands_beside_measured_part_by_part() {
        expect![[r#"

            a step, predicted and measured (mean of 2 on rank 0; by the plan it was submitted with)
            PART        PREDICTED  MEASURED  RATIO
            compute         90 ms     99 ms   1.10
            storage           0 s     51 ms      -
            host            10 ms       0 s   0.00
            whole step     100 ms    150 ms   1.50

            latest steps
                     1  150 ms  loss 3.5000  most in compute
                     2  150 ms  loss 3.5000  most in compute
        "#]]
        .assert_eq(&text(&detail(true, 2), None));
    }

    #[test]
    fn one_side_alone_is_shown_too_and_none_is_no_table() {
        assert!(text(&detail(true, 0), None).contains("whole step     100 ms         -      -"));
        assert!(text(&detail(false, 1), None).contains("whole step          -    150 ms      -"));
        assert_eq!(text(&detail(false, 0), None), "");
    }
}
