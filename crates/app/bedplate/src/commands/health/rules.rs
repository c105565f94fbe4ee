//! `bedplate health rules [NAME]`

use std::path::PathBuf;

use bedplate_health::{Condition, Profile, Rule, Threshold};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console, ProgramError};
use bedplate_units::Seconds;
use serde_json::{Value, json};

use crate::health_rules::{ProfileName, rules};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// One rule, explained
    rule: Option<String>,
    /// Add rules of your own to the built-in ones
    #[arg(long, value_name = "FILE")]
    own: Option<PathBuf>,
    /// Whose advice to follow
    #[arg(long, value_name = "PROFILE")]
    profile: Option<ProfileName>,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let rules = rules(arguments.profile, arguments.own.as_deref())?;
    let profile = rules.profile;
    if let Some(name) = &arguments.rule {
        let Some(rule) = rules.all().iter().find(|rule| rule.name == *name) else {
            let names = rules.all().iter().map(|rule| rule.name.as_str());
            let hint = bedplate_diag::nearest(name, names)
                .map_or(String::new(), |name| format!("; did you mean `{name}`?"));
            return Err(ProgramError::Usage { message: format!("no rule is called `{name}`{hint}") }.into());
        };
        return if console.is_json() {
            console.json(&rule_json(rule))
        } else {
            console.text(&page(rule, console.width()))
        };
    }
    if console.is_json() {
        return console.json(&Value::Array(rules.all().iter().map(rule_json).collect()));
    }
    let mut table =
        Table::new(vec![Column::left("RULE", 0), Column::left("ACTION", 0), Column::left("WHEN", 1)]);
    for rule in rules.all() {
        table.row(vec![rule.name.clone(), rule.action(profile).to_string(), when(rule)]);
    }
    console.table(&table)
}

fn page(rule: &Rule, width: Option<usize>) -> String {
    let mut facts = Facts::default();
    let actions: Vec<String> =
        Profile::ALL.iter().map(|profile| format!("{} ({profile})", rule.action(*profile))).collect();
    facts
        .add("finds", rule.summary.clone())
        .add("when", when(rule))
        .add("why", rule.why.clone())
        .add("remedy", rule.remedy.clone())
        .add("calls for", actions.join(", "))
        .add("severity", rule.severity.to_string())
        .add("layer", rule.layer.to_string());
    format!("{}\n{}", rule.name, facts.render(width))
}

fn rule_json(rule: &Rule) -> Value {
    let actions: serde_json::Map<String, Value> =
        Profile::ALL.iter().map(|profile| (profile.to_string(), json!(rule.action(*profile)))).collect();
    json!({
        "name": rule.name,
        "summary": rule.summary,
        "when": when(rule),
        "why": rule.why,
        "remedy": rule.remedy,
        "actions": actions,
        "severity": rule.severity,
        "layer": rule.layer,
        "confidence": rule.confidence,
    })
}

/// The condition in words.
pub(crate) fn when(rule: &Rule) -> String {
    match &rule.condition {
        Condition::Level { metric, limit, lasts_ms, during } => {
            let during = during
                .as_ref()
                .map_or(String::new(), |(metric, limit)| format!(" while {metric} {}", limit_text(limit)));
            let lasts = if *lasts_ms == 0 { String::new() } else { format!(" for {}", span(*lasts_ms)) };
            format!("{metric} {}{during}{lasts}", limit_text(limit))
        }
        Condition::Increase { metric, at_least, within_ms, trend } => {
            let trend = trend.map_or(String::new(), |trend| {
                format!(", {} times as fast as over {}", trend.faster_than, span(trend.baseline_ms))
            });
            format!("{metric} grows by {at_least} within {}{trend}", span(*within_ms))
        }
        Condition::Log { words, times, within_ms } => {
            let words: Vec<String> = words.iter().map(|word| format!("`{}`", word.trim())).collect();
            let times = if *times == 1 {
                String::new()
            } else {
                format!(", {times} times within {}", span(*within_ms))
            };
            format!("the kernel log has {}{times}", words.join(" and "))
        }
        Condition::Xid { codes, times, within_ms, near, by_processes } => {
            let list = |codes: &[u32]| codes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            let near = if near.is_empty() { String::new() } else { format!(" with {}", list(near)) };
            let whose = if *by_processes { " by different processes" } else { "" };
            let times = if *times == 1 { String::new() } else { format!(" {times} times{whose}") };
            format!("XID {}{near}{times} on one GPU within {}", list(codes), span(*within_ms))
        }
    }
}

fn limit_text(limit: &Threshold) -> String {
    match limit {
        Threshold::Above(value) => format!("> {value}"),
        Threshold::Below(value) => format!("< {value}"),
        Threshold::BelowMetric(metric) => format!("< {metric}"),
        Threshold::Bits(bits) => format!("has a bit of {bits:#x}"),
    }
}

fn span(ms: u64) -> String {
    let (number, unit) = Seconds::new(ms as f64 / 1000.0).exactly();
    format!("{number} {unit}")
}
