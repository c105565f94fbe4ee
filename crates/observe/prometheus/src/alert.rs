//! One alerting rule, with examples that become its unit tests.

use bedplate_finding::{Action, Layer, Severity};
use bedplate_units::Seconds;

/// An alert as Prometheus takes it. `Hostname` in expressions and texts stands for the label that the exporter was told to use.
#[derive(Debug, Clone, PartialEq)]
pub struct Alert {
    /// `GpuXid79`: one word, as Alertmanager's routes name it.
    pub name: String,
    /// The health rule that it stands for, or `area/what`.
    pub rule: String,
    pub expression: String,
    /// Seconds for which it must hold.
    pub lasts_s: u64,
    pub severity: Severity,
    pub layer: Layer,
    pub action: Action,
    /// With `{{ $labels.x }}` for labels of the series.
    pub summary: String,
    pub why: String,
    pub remedy: String,
    pub examples: Vec<Example>,
}

/// Series, and whether the alert fires at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// Seconds between samples.
    pub interval_s: u64,
    /// A series with its labels, and its values in the notation of promtool: `0x10 1x5`.
    pub series: Vec<(String, String)>,
    pub at_s: u64,
    /// Labels of each alert that fires, without the alert's own; nothing when it is silent.
    pub fires: Vec<Vec<(String, String)>>,
}

impl Alert {
    /// The labels that every alert of the rule gets.
    pub(crate) fn own_labels(&self) -> [(&'static str, String); 4] {
        [
            ("action", self.action.name().to_owned()),
            ("layer", self.layer.to_string()),
            ("rule", self.rule.clone()),
            ("severity", self.severity.to_string()),
        ]
    }

    pub(crate) fn annotations(&self) -> [(&'static str, String); 3] {
        [
            ("description", self.why.clone()),
            ("remedy", self.remedy.clone()),
            ("summary", self.summary.clone()),
        ]
    }

    /// An annotation as Prometheus writes it for a series with these labels.
    pub(crate) fn filled(text: &str, labels: &[(String, String)]) -> String {
        let text = labels.iter().fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("{{{{ $labels.{name} }}}}"), value)
        });
        text.replace(OPENING, "{{")
    }
}

/// What opens a template, as a template that writes it.
const OPENING: &str = "{{ \"{{\" }}";

/// A person's text, in which Prometheus shall find no template.
pub(crate) fn literal(text: &str) -> String {
    text.replace("{{", OPENING)
}

/// `gpu/xid-fatal` becomes `GpuXidFatal`.
pub(crate) fn camel_case(rule: &str) -> String {
    let words = rule.split(|character: char| !character.is_ascii_alphanumeric());
    words
        .map(|word| {
            let mut letters = word.chars();
            letters
                .next()
                .map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
        })
        .collect()
}

/// A duration in Prometheus's notation: `90s`, `5m`, `6h`.
pub(crate) fn duration(seconds: u64) -> String {
    let (number, unit) = Seconds::new(seconds as f64).exactly();
    format!("{number}{}", &unit[..1])
}
