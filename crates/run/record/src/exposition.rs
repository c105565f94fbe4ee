//! The text format in which Prometheus reads metrics.

use std::fmt::Write;

/// A text that is being written, metric by metric. Names are whole names; labels are `key="value"` pairs, already escaped.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    pub fn into_string(self) -> String {
        self.0
    }

    /// What a metric is; its samples follow.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let value = match value {
            f64::INFINITY => "+Inf".to_owned(),
            f64::NEG_INFINITY => "-Inf".to_owned(),
            value => value.to_string(),
        };
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.sample(name, "", value as f64);
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.sample(name, "", value);
    }

    /// Buckets with how many values are at most their bound; the last bound is infinite.
    pub fn histogram(&mut self, name: &str, labels: &str, cumulative: &[(f64, u64)], sum: f64) {
        let comma = if labels.is_empty() { "" } else { "," };
        for (bound, count) in cumulative {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
            self.sample(&format!("{name}_bucket"), &format!("{labels}{comma}le=\"{bound}\""), *count as f64);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        let count = cumulative.last().map_or(0, |(_, count)| *count);
        self.sample(&format!("{name}_count"), labels, count as f64);
    }
}
