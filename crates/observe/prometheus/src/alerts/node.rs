//! Alerts from health rules: the condition that the node judges for itself, as an expression.
//!
//! Kernel log lines, and XIDs that count only together, are seen by the node alone; for those the exporter's own
//! findings are the metric.

use bedplate_exporter::metrics;
use bedplate_health::{Condition, Profile, Rule, Threshold, Trend};

use crate::alert::{Alert, Example, camel_case, duration, literal};

pub(super) fn alerts(rules: &[Rule], profile: Profile) -> Vec<Alert> {
    rules.iter().map(|rule| alert(rule, profile)).collect()
}

fn alert(rule: &Rule, profile: Profile) -> Alert {
    let (expression, lasts_s) = expression(rule);
    let metric = rule.metrics().first().copied().unwrap_or(FINDING);
    Alert {
        name: camel_case(&rule.name),
        rule: rule.name.clone(),
        expression,
        lasts_s,
        severity: rule.severity,
        layer: rule.layer,
        action: rule.action(profile),
        summary: format!("{}: {}", place(metric), literal(&rule.summary)),
        why: literal(&rule.why),
        remedy: literal(&rule.remedy),
        examples: examples(rule),
    }
}

const FINDING: &str = "bedplate_finding";

/// Where it is, from the labels that the metric has.
fn place(metric: &str) -> String {
    let labels = metrics::all().find(|known| known.name == metric).map_or(&[][..], |known| known.labels);
    let part = ["gpu", "mountpoint", "target", "device"].into_iter().find(|label| labels.contains(label));
    match part {
        Some("gpu") => "{{ $labels.Hostname }} GPU {{ $labels.gpu }}".to_owned(),
        Some(label) => format!("{{{{ $labels.Hostname }}}} {{{{ $labels.{label} }}}}"),
        None => "{{ $labels.Hostname }}".to_owned(),
    }
}

fn expression(rule: &Rule) -> (String, u64) {
    match &rule.condition {
        Condition::Level { metric, limit, lasts_ms, during } => {
            let mut text = level(metric, limit);
            if let Some((other, limit)) = during {
                text = format!("{text} and {}", level(other, limit));
            }
            (text, lasts_ms / 1000)
        }
        Condition::Increase { metric, at_least, within_ms, trend } => {
            (increase(metric, *at_least, within_ms / 1000, trend.as_ref()), 0)
        }
        Condition::Log { .. } | Condition::Xid { .. } => {
            (format!("{FINDING}{{rule=\"{}\"}} > 0", rule.name), 0)
        }
    }
}

fn level(metric: &str, limit: &Threshold) -> String {
    match limit {
        Threshold::Above(limit) => format!("{metric} > {limit}"),
        Threshold::Below(limit) => format!("{metric} < {limit}"),
        Threshold::BelowMetric(other) => format!("{metric} < {other}"),
        Threshold::Bits(bits) => {
            let set: Vec<String> = (0..52)
                .filter(|bit| bits & (1 << bit) != 0)
                .map(|bit| format!("floor({metric} / {}) % 2 > 0", 1u64 << bit))
                .collect();
            format!("({})", set.join(" or "))
        }
    }
}

fn increase(metric: &str, at_least: f64, within_s: u64, trend: Option<&Trend>) -> String {
    let within = duration(within_s);
    let grown = format!("increase({metric}[{within}]) >= {at_least}");
    match trend {
        None => grown,
        Some(trend) => {
            let baseline = duration(trend.baseline_ms / 1000);
            format!(
                "{grown} and rate({metric}[{within}]) > {} * rate({metric}[{baseline}])",
                trend.faster_than
            )
        }
    }
}

/// One example that fires, one at the limit that does not, and one that has not lasted long enough.
fn examples(rule: &Rule) -> Vec<Example> {
    match &rule.condition {
        Condition::Level { metric, limit, lasts_ms, during } => {
            let lasts_s = lasts_ms / 1000;
            let end = lasts_s + 60;
            let bad = of_level(metric, limit, during.as_ref(), true, end);
            let good = of_level(metric, limit, during.as_ref(), false, end);
            let mut examples = vec![fires(bad.clone(), end, metric), silent(good, end)];
            if lasts_s >= 20 {
                examples.push(silent(bad, lasts_s - 10));
            }
            examples
        }
        Condition::Increase { metric, at_least, within_ms, trend } => {
            of_increase(metric, *at_least, within_ms / 1000, trend.as_ref())
        }
        Condition::Log { .. } | Condition::Xid { .. } => of_finding(&rule.name),
    }
}

fn fires(series: Vec<(String, String)>, at_s: u64, metric: &str) -> Example {
    Example { interval_s: 10, series, at_s, fires: vec![labels(metric)] }
}

fn silent(series: Vec<(String, String)>, at_s: u64) -> Example {
    Example { interval_s: 10, series, at_s, fires: Vec::new() }
}

fn of_level(
    metric: &str,
    limit: &Threshold,
    during: Option<&(String, Threshold)>,
    is_bad: bool,
    end_s: u64,
) -> Vec<(String, String)> {
    let constant = |value: f64| format!("{value}x{}", end_s / 10 + 6);
    let mut found = vec![(series(metric), constant(value(limit, is_bad)))];
    if let Threshold::BelowMetric(other) = limit {
        found.push((series(other), constant(16.0)));
    }
    if let Some((other, limit)) = during {
        found.push((series(other), constant(value(limit, true))));
    }
    found
}

/// A value beyond the limit, or just on it.
fn value(limit: &Threshold, is_bad: bool) -> f64 {
    match (limit, is_bad) {
        (Threshold::Above(limit), true) => limit + step(*limit),
        (Threshold::Above(limit) | Threshold::Below(limit), false) => *limit,
        (Threshold::Below(limit), true) => limit - step(*limit),
        (Threshold::BelowMetric(_), true) => 8.0,
        (Threshold::BelowMetric(_), false) => 16.0,
        (Threshold::Bits(bits), true) => (bits & bits.wrapping_neg()) as f64,
        (Threshold::Bits(_), false) => 0.0,
    }
}

/// Far enough from a limit to be told from it.
fn step(limit: f64) -> f64 {
    (limit.abs() / 100.0).max(1.0)
}

fn of_increase(metric: &str, at_least: f64, within_s: u64, trend: Option<&Trend>) -> Vec<Example> {
    let interval_s = if within_s > 600 { 60 } else { 10 };
    let before_s = trend.map_or(within_s, |trend| trend.baseline_ms / 1000);
    // It grows at once, well inside the window, at a moment at which promtool evaluates.
    let at_s = before_s.next_multiple_of(60) + if interval_s == 60 { 120 } else { 60 };
    let before = (at_s - 2 * interval_s) / interval_s - 1;
    let grown = at_least.ceil();
    let values = format!("0x{before} {grown}x4");
    let steady = format!("{grown}x{}", before + 4);
    let example =
        |values: String, fires| Example { interval_s, series: vec![(series(metric), values)], at_s, fires };
    vec![example(values, vec![labels(metric)]), example(steady, Vec::new())]
}

fn of_finding(rule: &str) -> Vec<Example> {
    let labels: Vec<(String, String)> = [
        ("Hostname", "n1"),
        ("action", "drain"),
        ("layer", "storage"),
        ("rule", rule),
        ("severity", "critical"),
        ("subject", "n1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    let series = format!("{FINDING}{}", braces(&labels));
    let other = series.replace(rule, "other/rule");
    vec![
        Example { interval_s: 10, series: vec![(series, "1x12".to_owned())], at_s: 60, fires: vec![labels] },
        Example { interval_s: 10, series: vec![(other, "1x12".to_owned())], at_s: 60, fires: Vec::new() },
    ]
}

/// A series of a metric with a value for each of its labels.
fn series(metric: &str) -> String {
    format!("{metric}{}", braces(&labels(metric)))
}

pub(super) fn labels(metric: &str) -> Vec<(String, String)> {
    let known = metrics::all().find(|known| known.name == metric);
    let names = known.map_or(&["Hostname"][..], |known| known.labels);
    let value = |name: &str| match name {
        "Hostname" => "n1".to_owned(),
        "gpu" | "rank" | "port" => "0".to_owned(),
        other => format!("a-{}", other.to_lowercase().replace('_', "-")),
    };
    names.iter().map(|name| ((*name).to_owned(), value(name))).collect()
}

pub(super) fn braces(labels: &[(String, String)]) -> String {
    let pairs: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    format!("{{{}}}", pairs.join(","))
}
