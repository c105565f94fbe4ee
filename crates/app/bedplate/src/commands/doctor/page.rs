//! Checks as text: a line each, and for a flaw why it matters, what it costs and how to fix it.

use bedplate_doctor::{Check, CheckVerdict, Stack};
use bedplate_terminal::present::wrap;

/// `2 fail, 1 warn, 18 pass`
pub(super) fn count(checks: &[Check]) -> String {
    let of = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let told: Vec<String> = [CheckVerdict::Fail, CheckVerdict::Warn, CheckVerdict::Pass]
        .into_iter()
        .filter(|verdict| of(*verdict) > 0)
        .map(|verdict| format!("{} {verdict}", of(verdict)))
        .collect();
    if told.is_empty() { "nothing to check".to_owned() } else { told.join(", ") }
}

/// All checks, layer by layer.
pub(super) fn checks(checks: &[Check], width: Option<usize>) -> String {
    let mut text = String::new();
    for layer in Stack::ALL {
        let of: Vec<&Check> = checks.iter().filter(|check| check.layer == layer).collect();
        if !of.is_empty() {
            text += &format!("\n{layer}\n");
            of.iter().for_each(|check| text += &one(check, width));
        }
    }
    text
}

fn one(check: &Check, width: Option<usize>) -> String {
    let mut text = format!("  {}  {}: {}\n", check.verdict, check.rule, check.found);
    if check.verdict == CheckVerdict::Pass {
        return text;
    }
    let cost = check.cost.as_ref().map(|cost| cost.told.clone()).unwrap_or_default();
    for (label, told) in [("why", &check.why), ("cost", &cost), ("fix", &check.fix)] {
        text += &labelled(label, told, width);
    }
    for line in check.evidence.iter().take(5) {
        text += &labelled("seen", line, width);
    }
    text
}

fn labelled(label: &str, told: &str, width: Option<usize>) -> String {
    const INDENT: usize = 14;
    if told.is_empty() {
        return String::new();
    }
    let lines = match width {
        Some(width) => wrap(told, width.saturating_sub(INDENT).max(20)),
        None => vec![told.to_owned()],
    };
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        let head = if at == 0 { format!("{label}:") } else { String::new() };
        text += &format!("        {head:<6}{line}\n");
    }
    text
}
