//! The text format in which Prometheus reads metrics.

use std::fmt::Write;

/// A text that is being written, metric by metric. Names are whole names; labels are `key="value"` pairs, already escaped.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    pub fn with_room(bytes: usize) -> Self {
        Self(String::with_capacity(bytes))
    }

    /// A value of a label as it stands between quotation marks.
    pub fn escape(value: &str) -> String {
        value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
    }

    /// Lines that are in the format already.
    pub fn raw(&mut self, lines: &str) {
        self.0.push_str(lines);
    }

    pub fn into_string(self) -> String {
        self.0
    }

    /// What a metric is; its samples follow.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn sample(&mut self, name: &str, labels: &str, value: f64) {
        self.0.push_str(name);
        if !labels.is_empty() {
            self.0.push('{');
            self.0.push_str(labels);
            self.0.push('}');
        }
        let _ = match value {
            f64::INFINITY => writeln!(self.0, " +Inf"),
            f64::NEG_INFINITY => writeln!(self.0, " -Inf"),
            value => writeln!(self.0, " {value}"),
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
