//! The steps of a run of `bedplate train`, from the lines of its `metrics.jsonl`.

use std::collections::BTreeMap;

use bedplate_breakdown::{Breakdown, Measured, Part, Span};
use bedplate_units::Seconds;
use serde_json::Value;

use super::settled;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct MeasuredSteps(Vec<Step>);

/// What a line about a step says.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    ranks: u32,
    parts: BTreeMap<Part, f64>,
}

impl Step {
    fn read(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let measured = line.get("measured").filter(|_| line["kind"] == "step")?.as_object()?;
        let part = |(name, value): (&String, &Value)| {
            Some((Part::find(name)?, value.as_f64().filter(|seconds| *seconds >= 0.0)?))
        };
        let ranks = line["ranks"]["count"].as_u64().unwrap_or(1);
        Some(Self {
            ranks: u32::try_from(ranks).ok()?.max(1),
            parts: measured.iter().filter_map(part).collect(),
        })
    }
}

impl MeasuredSteps {
    /// Takes what a line says of a step; other lines are passed over.
    pub fn read_line(&mut self, line: &str) {
        self.0.extend(Step::read(line));
    }

    /// The number of ranks of the last step; `None` without steps.
    pub fn ranks(&self) -> Option<u32> {
        self.0.last().map(|step| step.ranks)
    }

    /// The median of each part over the steps with as many ranks as the last one.
    pub fn usual(&self) -> Breakdown<Measured> {
        let ranks = self.ranks();
        let steps: Vec<&Step> = self.0.iter().filter(|step| Some(step.ranks) == ranks).collect();
        let mut by_part: BTreeMap<Part, Vec<f64>> = BTreeMap::new();
        for (part, seconds) in settled(&steps).iter().flat_map(|step| &step.parts) {
            by_part.entry(*part).or_default().push(*seconds);
        }
        by_part.into_iter().fold(Breakdown::default(), |breakdown, (part, mut seconds)| {
            seconds.sort_by(f64::total_cmp);
            breakdown.with(part, Span::exposed(Seconds::new(seconds[seconds.len() / 2])))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_step_is_the_median_without_the_first_ones() {
        let mut steps = MeasuredSteps::default();
        for seconds in [50.0, 40.0, 1.0, 2.0, 3.0] {
            steps.read_line(&format!(
                "{{\"kind\":\"step\",\"measured\":{{\"compute\":{seconds},\"compute_hidden\":9.0}}}}"
            ));
        }
        steps.read_line("{\"kind\":\"evaluation\"}");
        steps.read_line("half a li");
        assert_eq!((steps.ranks(), steps.usual().total().get()), (Some(1), 2.0));
        assert_eq!(MeasuredSteps::default().ranks(), None);
    }
}
