//! Verdicts as text and as JSON.

use bedplate_diagnose::{Diagnosis, JobVerdict, Lever, Observed};
use bedplate_evidence::Gathered;
use bedplate_units::{Bytes, Seconds, grouped};
use serde_json::{Value, json};

use crate::present::{Facts, moment, printable_line, wrap};

const NARROWEST: usize = 40;
const INDENT: &str = "    ";
/// Evidence that is printed; `--json` has all.
const MOST_EVIDENCE: usize = 6;
const MOST_OBSERVED: usize = 8;

pub fn json(diagnosis: &Diagnosis, gathered: &Gathered) -> Value {
    json!({
        "verdicts": diagnosis.verdicts.iter().map(verdict_json).collect::<Vec<_>>(),
        "observed": diagnosis.observed,
        "notes": diagnosis.notes,
        "levers": diagnosis.levers,
        "bill": diagnosis.bill,
        "files": gathered.files,
        "bytes": gathered.bytes,
        "left_out": gathered.left_out,
    })
}

fn verdict_json(verdict: &JobVerdict) -> Value {
    let mut value = json!(verdict);
    value["summary"] = json!(verdict.to_string());
    value
}

pub fn text(diagnosis: &Diagnosis, gathered: &Gathered, width: Option<usize>) -> String {
    let width = width.unwrap_or(100).max(NARROWEST);
    let mut page = String::new();
    for verdict in &diagnosis.verdicts {
        page += &of_verdict(verdict, width);
        page.push('\n');
    }
    if diagnosis.verdicts.is_empty() {
        let healthy = if diagnosis.observed.is_empty() {
            "nothing was found"
        } else {
            "healthy, as far as these logs tell"
        };
        page += &format!("{healthy}\n\n");
    }
    if let Some(words) = diagnosis.bill.and_then(|bill| bill.words()) {
        page += &wrapped("costs: ", &words, width);
    }
    page += &levers(&diagnosis.levers, width);
    page += &facts(diagnosis, gathered).render(Some(width));
    for note in diagnosis.notes.iter().chain(&gathered.left_out) {
        page += &wrapped("note: ", note, width);
    }
    page
}

fn of_verdict(verdict: &JobVerdict, width: usize) -> String {
    let doubt = if verdict.is_firm { "" } else { "suspected: " };
    let mut page = wrapped("", &format!("{doubt}{verdict}"), width);
    let mut facts = Facts::default();
    if let Some(place) = &verdict.since.place {
        facts.add("since", printable_line(place));
    }
    if let Some(at) = verdict.since.unix_seconds.filter(|at| *at > 1e8) {
        facts.add("at", moment((at * 1000.0) as u64));
    }
    if let Some(cost) = verdict.cost.filter(|cost| cost.seconds > 0.0) {
        let ranks = cost.rank_hours.map_or(String::new(), |hours| format!(", {hours:.1} GPU-hours"));
        facts.add("lost", format!("{} so far{ranks}", Seconds::new(cost.seconds)));
    }
    let others = verdict.alternatives.iter().filter(|(_, share)| *share >= 0.05);
    let others: Vec<String> =
        others.map(|(cause, share)| format!("{cause} {:.0} %", 100.0 * share)).collect();
    if !others.is_empty() {
        facts.add("or", others.join(", "));
    }
    page += &facts.render(Some(width));
    for evidence in verdict.evidence.iter().take(MOST_EVIDENCE) {
        page += &wrapped(
            "  - ",
            &format!("{} [{}]", printable_line(&evidence.what), printable_line(&evidence.source)),
            width,
        );
    }
    if verdict.evidence.len() > MOST_EVIDENCE {
        page += &format!("  - and {} more (--json)\n", verdict.evidence.len() - MOST_EVIDENCE);
    }
    for (at, next) in verdict.next.iter().enumerate() {
        let label = if at == 0 { "next: " } else { "then: " };
        page += &wrapped(label, next, width);
    }
    page
}

/// What would make a healthy job faster, with the interval of each gain.
fn levers(levers: &[Lever], width: usize) -> String {
    if levers.is_empty() {
        return String::new();
    }
    let percent = |share: f64| format!("{:.0}", 100.0 * share);
    let lines = levers.iter().map(|lever| {
        let Lever { what, low, high, because, .. } = lever;
        let text = format!("{} to {} % of a step: {what}; {because}", percent(*low), percent(*high));
        wrapped("  - ", &printable_line(&text), width)
    });
    format!("what would make it faster\n{}\n", lines.collect::<String>())
}

fn wrapped(label: &str, text: &str, width: usize) -> String {
    let lines = wrap(&format!("{label}{text}"), width.saturating_sub(INDENT.len()));
    let indented = lines
        .iter()
        .enumerate()
        .map(|(at, line)| if at == 0 { format!("{line}\n") } else { format!("{INDENT}{line}\n") });
    indented.collect()
}

fn facts(diagnosis: &Diagnosis, gathered: &Gathered) -> Facts {
    let mut facts = Facts::default();
    let read = format!("{} files, {}", grouped(gathered.files as u64), Bytes::new(gathered.bytes as f64));
    facts.add("read", read);
    for observed in diagnosis.observed.iter().take(MOST_OBSERVED) {
        facts.add("steps", of_series(observed));
    }
    if diagnosis.observed.len() > MOST_OBSERVED {
        facts.add("", format!("and {} more", diagnosis.observed.len() - MOST_OBSERVED));
    }
    facts
}

fn of_series(observed: &Observed) -> String {
    let rank = observed.rank.map_or(String::new(), |rank| format!(" of rank {rank}"));
    let usual = observed
        .usual_s
        .map_or(String::new(), |usual| format!(", {} each {}", Seconds::new(usual), observed.by));
    format!(
        "{} lines of {}{rank} in {}, to step {}{usual}",
        grouped(observed.steps as u64),
        observed.format,
        printable_line(&observed.log),
        grouped(observed.last_step),
    )
}
