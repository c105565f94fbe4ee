//! What a slowdown costs in the terms of who pays for it: tokens a second, dollars, hours until the end.

use serde::Serialize;

use crate::verdict::JobVerdict;

/// What is known of a run beside its steps.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunScale {
    pub tokens_per_step: Option<f64>,
    /// A step now, in seconds.
    pub step_s: Option<f64>,
    /// Steps that are left.
    pub steps_left: Option<u64>,
    /// Of all its nodes, in dollars.
    pub dollars_per_hour: Option<f64>,
}

/// Each is absent where what it takes is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Bill {
    /// Tokens a second that it makes fewer than it did or should.
    pub tokens_per_second: Option<f64>,
    /// For the time lost so far.
    pub dollars: Option<f64>,
    /// As it goes on now, and without what slows it.
    pub hours_to_end: Option<f64>,
    pub hours_to_end_without: Option<f64>,
    /// For the time that will be lost until the end.
    pub dollars_to_end: Option<f64>,
}

impl Bill {
    pub fn of(verdict: &JobVerdict, scale: &RunScale) -> Option<Bill> {
        let cost = verdict.cost.filter(|cost| cost.factor.is_finite() && cost.factor > 0.0)?;
        let rate = scale.tokens_per_step.zip(scale.step_s).map(|(tokens, step)| tokens / step);
        let hours_to_end = scale.steps_left.zip(scale.step_s).map(|(left, step)| left as f64 * step / 3600.0);
        let without = hours_to_end.map(|hours| hours / cost.factor);
        let lost = hours_to_end.zip(without).map(|(now, then)| now - then);
        Some(Bill {
            tokens_per_second: rate.map(|rate| rate * (cost.factor - 1.0)),
            dollars: scale.dollars_per_hour.map(|price| price * cost.seconds.max(0.0) / 3600.0),
            hours_to_end,
            hours_to_end_without: without,
            dollars_to_end: scale.dollars_per_hour.zip(lost).map(|(price, hours)| price * hours),
        })
    }

    /// In a sentence; nothing where nothing is known.
    pub fn words(&self) -> Option<String> {
        let mut parts = Vec::new();
        if let Some(tokens) = self.tokens_per_second.filter(|tokens| *tokens >= 1.0) {
            parts.push(format!("{} tokens/s fewer", bedplate_units::grouped(tokens as u64)));
        }
        parts.extend(
            self.dollars
                .filter(|dollars| *dollars >= 0.01)
                .map(|dollars| format!("{dollars:.2} dollars so far")),
        );
        if let (Some(now), Some(without)) = (self.hours_to_end, self.hours_to_end_without) {
            let dollars = self.dollars_to_end.filter(|dollars| *dollars >= 0.01);
            let dollars = dollars.map_or(String::new(), |dollars| format!(" and {dollars:.2} dollars less"));
            parts.push(format!("{now:.1} hours to the end, {without:.1}{dollars} without it"));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Cause, ProblemKind, TimeLost};

    #[test]
    fn half_as_fast_costs_as_much_again() {
        let mut verdict = JobVerdict::new(ProblemKind::SlowSince, Cause::Hardware, 0.9);
        assert_eq!(Bill::of(&verdict, &RunScale::default()), None);
        verdict.cost = Some(TimeLost { seconds: 1800.0, rank_hours: None, factor: 2.0 });
        let scale = RunScale {
            tokens_per_step: Some(4000.0),
            step_s: Some(2.0),
            steps_left: Some(3600),
            dollars_per_hour: Some(100.0),
        };
        let bill = Bill::of(&verdict, &scale).unwrap();
        assert_eq!(
            bill.words().unwrap(),
            "2,000 tokens/s fewer; 50.00 dollars so far; 2.0 hours to the end, 1.0 and 100.00 dollars less without it"
        );
        assert_eq!(Bill::of(&verdict, &RunScale::default()).unwrap().words(), None);
    }
}
