//! Rules from TOML: the built-in ones, and a site's own over them.

use bedplate_diag::{Place, Source, nearest};
use bedplate_document::{DocumentError, Table};
use bedplate_finding::{Action, Layer, Severity};
use bedplate_units::Seconds;

use crate::rule::{Condition, Rule, Threshold, Trend};
use crate::{HealthError, Profile};

const BUILT_IN: &str = include_str!("../../../../data/health/rules.toml");

/// How long an event is remembered when a rule does not say.
const DEFAULT_WINDOW_MS: u64 = 3_600_000;
/// No window is longer than 30 days, and no rule waits for more events than this.
const LONGEST_WINDOW_S: f64 = 30.0 * 86_400.0;
const MOST_TIMES: u64 = 1000;
const MOST_RULES: usize = 1000;
/// Texts, codes and letters that a rule has at most.
const MOST_WORDS: usize = 100;
const LONGEST_SUMMARY: usize = 300;
const LONGEST_PROSE: usize = 4000;
/// Metrics are numbers that hold this many bits exactly.
const BITS: u32 = 52;

/// The rules of a site, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    pub profile: Profile,
    pub(crate) rules: Vec<Rule>,
}

impl Rules {
    pub fn built_in(profile: Profile) -> Self {
        let rules = read(BUILT_IN, "rules.toml").expect("the built-in rules are right: a test reads them");
        Self { profile, rules }
    }

    /// The built-in rules with a site's own; one of the same name replaces the built-in one. `metrics` are the names that
    /// can be watched; any when empty.
    pub fn with_own(mut self, text: &str, source: &str, metrics: &[&str]) -> Result<Self, HealthError> {
        let file = Table::parse(Source::new(source, text))?;
        for (rule, place) in read_table(&file, metrics)? {
            let is_alike = |known: &&mut Rule| same_words(&known.name, &rule.name);
            match self.rules.iter_mut().find(is_alike) {
                Some(known) if known.name == rule.name => *known = rule,
                Some(known) => {
                    return Err(HealthError::Alike { rule: rule.name, known: known.name.clone(), place });
                }
                None => self.rules.push(rule),
            }
        }
        if file.has("profile") {
            self.profile = file.choice("profile", &PROFILES)?;
        }
        file.finish()?;
        Ok(self)
    }

    pub fn all(&self) -> &[Rule] {
        &self.rules
    }
}

const PROFILES: [(&str, Profile); 3] =
    [("nvidia", Profile::Nvidia), ("aws-ec2", Profile::AwsEc2), ("strict", Profile::Strict)];

const SEVERITIES: [(&str, Severity); 3] =
    [("info", Severity::Info), ("warning", Severity::Warning), ("critical", Severity::Critical)];

const LAYERS: [(&str, Layer); 5] = [
    ("hardware", Layer::Hardware),
    ("network", Layer::Network),
    ("storage", Layer::Storage),
    ("software", Layer::Software),
    ("application", Layer::Application),
];

fn read(text: &str, source: &str) -> Result<Vec<Rule>, HealthError> {
    let file = Table::parse(Source::new(source, text))?;
    let rules = read_table(&file, &[])?;
    file.finish()?;
    Ok(rules.into_iter().map(|(rule, _)| rule).collect())
}

/// Rules with the places of their names.
fn read_table(file: &Table, metrics: &[&str]) -> Result<Vec<(Rule, Place)>, HealthError> {
    file.allow("profile");
    let mut rules: Vec<(Rule, Place)> = Vec::new();
    for table in file.tables("rule")? {
        let table = table.titled("rule");
        let name: String = table.required("name")?;
        let table = table.titled(format!("rule `{name}`"));
        let has_letter = name.chars().any(|each| each.is_ascii_lowercase());
        if !has_letter || name.len() > 100 || name.chars().any(|each| !is_in_name(each)) {
            let reason = "a name has small letters, digits, `-` and `/`, such as `site/fans`";
            return Err(table.bad_value("name", reason).into());
        }
        if rules.iter().any(|(known, _)| known.name == name) {
            return Err(HealthError::Duplicate { rule: name, place: table.place_of("name") });
        }
        if rules.len() == MOST_RULES {
            return Err(table.bad_value("name", format!("there are more than {MOST_RULES} rules")).into());
        }
        let place = table.place_of("name");
        rules.push((rule(&table, name, metrics)?, place));
    }
    Ok(rules)
}

fn is_in_name(character: char) -> bool {
    character.is_ascii_lowercase() || character.is_ascii_digit() || "-/_".contains(character)
}

/// Names that differ only in their signs would become one alert.
fn same_words(one: &str, other: &str) -> bool {
    fn words(name: &str) -> impl Iterator<Item = &str> {
        name.split(|each: char| !each.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
    }
    words(one).eq(words(other))
}

fn rule(table: &Table, name: String, metrics: &[&str]) -> Result<Rule, HealthError> {
    let condition = condition(table, &name)?;
    let actions: Vec<(&str, Action)> = Action::ALL.iter().map(|action| (action.name(), *action)).collect();
    let action = table.choice("action", &actions)?;
    let mut rule = Rule::new(name, condition, action).with_profiles(profiles(table, &actions)?);
    rule.layer = table.choice("layer", &LAYERS)?;
    if table.has("severity") {
        rule.severity = table.choice("severity", &SEVERITIES)?;
    }
    table.allow("severity");
    rule.summary = table.or("summary", rule.name.clone())?;
    if rule.summary.len() > LONGEST_SUMMARY || rule.summary.chars().any(char::is_control) {
        let reason = format!("it is one line of at most {LONGEST_SUMMARY} letters");
        return Err(table.bad_value("summary", reason).into());
    }
    rule.why = prose(table, "why")?;
    rule.remedy = prose(table, "remedy")?;
    rule.confidence = table.or("confidence", 1.0)?;
    if !(0.0..=1.0).contains(&rule.confidence) {
        return Err(table.bad_value("confidence", "it is between 0 and 1").into());
    }
    table.finish()?;
    check_metrics(&rule, table, metrics)?;
    Ok(rule)
}

fn prose(table: &Table, key: &str) -> Result<String, DocumentError> {
    let text: String = table.or(key, String::new())?;
    match text.len() {
        0..=LONGEST_PROSE => Ok(text),
        _ => Err(table.bad_value(key, format!("it has at most {LONGEST_PROSE} letters"))),
    }
}

fn check_metrics(rule: &Rule, table: &Table, metrics: &[&str]) -> Result<(), HealthError> {
    for metric in rule.metrics() {
        if !metrics.is_empty() && !metrics.contains(&metric) {
            return Err(HealthError::UnknownMetric {
                rule: rule.name.clone(),
                metric: metric.to_owned(),
                nearest: nearest(metric, metrics.iter().copied()).map(str::to_owned),
                place: table.place_of("metric"),
            });
        }
    }
    Ok(())
}

fn profiles(table: &Table, actions: &[(&str, Action)]) -> Result<Vec<(Profile, Action)>, HealthError> {
    let Some(inner) = table.table("profiles")? else { return Ok(Vec::new()) };
    let inner = inner.titled(format!("profiles of {}", table.title()));
    let mut by_profile = Vec::new();
    for (name, profile) in PROFILES {
        inner.allow(name);
        if inner.has(name) {
            by_profile.push((profile, inner.choice(name, actions)?));
        }
    }
    inner.finish()?;
    Ok(by_profile)
}

fn condition(table: &Table, rule: &str) -> Result<Condition, HealthError> {
    let found: Vec<&str> = ["metric", "log", "xid"].into_iter().filter(|key| table.has(key)).collect();
    match found[..] {
        ["metric"] if table.has("increase") => increase(table),
        ["metric"] => level(table, rule),
        ["log"] => log(table),
        ["xid"] => xid(table),
        _ => {
            let found = if found.is_empty() { "none".to_owned() } else { found.join(" and ") };
            Err(HealthError::Condition { rule: rule.to_owned(), found, place: table.place() })
        }
    }
}

fn level(table: &Table, rule: &str) -> Result<Condition, HealthError> {
    let metric: String = table.required("metric")?;
    let Some(limit) = limit(table)? else {
        return Err(HealthError::NoLimit { rule: rule.to_owned(), metric, place: table.place() });
    };
    let during = match table.table("while")? {
        None => None,
        Some(inner) => {
            let inner = inner.titled(format!("while of {}", table.title()));
            let metric: String = inner.required("metric")?;
            let Some(limit) = self::limit(&inner)? else {
                return Err(HealthError::NoLimit { rule: rule.to_owned(), metric, place: inner.place() });
            };
            if matches!(limit, Threshold::BelowMetric(_)) {
                let reason = "beside `while` a metric is held against a number: `above`, `below` or `bits`";
                return Err(inner.bad_value("below_metric", reason).into());
            }
            inner.finish()?;
            Some((metric, limit))
        }
    };
    Ok(Condition::Level { metric, limit, lasts_ms: milliseconds(table, "lasts", 0)?, during })
}

fn limit(table: &Table) -> Result<Option<Threshold>, HealthError> {
    let above = table.optional::<f64>("above")?.map(Threshold::Above);
    let below = table.optional::<f64>("below")?.map(Threshold::Below);
    let metric = table.optional::<String>("below_metric")?.map(Threshold::BelowMetric);
    let bits = table.optional::<u64>("bits")?.map(Threshold::Bits);
    if let Some(Threshold::Bits(bits)) = bits
        && (bits == 0 || bits >> BITS != 0)
    {
        return Err(table.bad_value("bits", format!("it names some of the lowest {BITS} bits")).into());
    }
    let mut limits = [above, below, metric, bits].into_iter().flatten();
    let limit = limits.next();
    if limits.next().is_some() {
        let key = ["below", "below_metric", "bits"].into_iter().find(|key| table.has(key));
        let reason = "a rule has one of `above`, `below`, `below_metric` and `bits`";
        return Err(table.bad_value(key.unwrap_or("above"), reason).into());
    }
    Ok(limit)
}

fn increase(table: &Table) -> Result<Condition, HealthError> {
    let at_least: f64 = table.required("increase")?;
    if at_least <= 0.0 {
        return Err(table.bad_value("increase", "it is more than zero").into());
    }
    let _: Seconds = table.required("within")?;
    let within_ms = window(table, DEFAULT_WINDOW_MS)?;
    let trend = match table.optional::<f64>("faster_than")? {
        None => None,
        Some(faster_than) => {
            if faster_than <= 0.0 {
                return Err(table.bad_value("faster_than", "it is more than zero").into());
            }
            let _: Seconds = table.required("baseline")?;
            let baseline_ms = milliseconds(table, "baseline", within_ms)?;
            if baseline_ms < within_ms.saturating_mul(2) {
                return Err(table.bad_value("baseline", "it is at least twice as long as `within`").into());
            }
            Some(Trend { faster_than, baseline_ms })
        }
    };
    Ok(Condition::Increase { metric: table.required("metric")?, at_least, within_ms, trend })
}

fn log(table: &Table) -> Result<Condition, HealthError> {
    let words: Vec<String> = table.required("log")?;
    if words.is_empty() || words.len() > MOST_WORDS || words.iter().any(String::is_empty) {
        let reason = format!("it names at least one text and at most {MOST_WORDS}, and none is empty");
        return Err(table.bad_value("log", reason).into());
    }
    Ok(Condition::Log { words, times: times(table)?, within_ms: window(table, DEFAULT_WINDOW_MS)? })
}

fn xid(table: &Table) -> Result<Condition, HealthError> {
    let codes: Vec<u32> = table.required("xid")?;
    let near: Vec<u32> = table.or("near", Vec::new())?;
    if codes.is_empty() || codes.len().max(near.len()) > MOST_WORDS {
        let reason = format!("it names at least one code, and at most {MOST_WORDS} as `near` does");
        return Err(table.bad_value("xid", reason).into());
    }
    let by_processes = match table.optional::<String>("distinct")?.as_deref() {
        None => false,
        Some("process") => true,
        Some(_) => return Err(table.bad_value("distinct", "it can only be `process`").into()),
    };
    Ok(Condition::Xid {
        codes,
        times: times(table)?,
        within_ms: window(table, 24 * DEFAULT_WINDOW_MS)?,
        near,
        by_processes,
    })
}

fn times(table: &Table) -> Result<u64, DocumentError> {
    match table.or("times", 1_u64)? {
        times @ 1..=MOST_TIMES => Ok(times),
        _ => Err(table.bad_value("times", format!("it is between 1 and {MOST_TIMES}"))),
    }
}

/// How far back a rule looks. Prometheus, for which rules are written out too, counts in seconds.
fn window(table: &Table, default: u64) -> Result<u64, DocumentError> {
    match milliseconds(table, "within", default)? {
        ..1000 => Err(table.bad_value("within", "it is at least a second")),
        window => Ok(window),
    }
}

fn milliseconds(table: &Table, key: &str, default: u64) -> Result<u64, DocumentError> {
    let Some(seconds) = table.optional::<Seconds>(key)? else { return Ok(default) };
    match seconds.get() {
        seconds if (0.0..=LONGEST_WINDOW_S).contains(&seconds) => Ok((seconds * 1000.0) as u64),
        _ => Err(table.bad_value(key, "it is between zero and 30 days")),
    }
}

#[cfg(test)]
mod tests;
