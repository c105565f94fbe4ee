//! `--explain LAYOUT`: why this one, why not that one, what would change it.

use bedplate_search::{Counterfactual, Doubt, LayoutExplanation, LayoutVerdict, Remedy, WhatIfOutcome};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console};
use serde_json::{Value, json};

pub(super) fn show(explanation: &LayoutExplanation, console: &mut Console) -> Result<(), CliError> {
    console.text(&format!("\nWhy {}\n{}", explanation.layout, facts(explanation).render(console.width())))?;
    if !explanation.counterfactuals.is_empty() {
        console.line("")?;
        console.table(&counterfactual_table(&explanation.counterfactuals))?;
    }
    Ok(())
}

/// The verdict in sentences.
pub(super) fn facts(explanation: &LayoutExplanation) -> Facts {
    let mut facts = Facts::default();
    match &explanation.verdict {
        LayoutVerdict::Refused { refusals, nearest } => {
            for refusal in refusals {
                facts.add("refused", refusal.to_string());
            }
            facts.add_known("nearest", nearest.as_ref().map(remedy_text));
        }
        LayoutVerdict::DoesNotFit { over, largest, remedies, .. } => {
            let (part, bytes) = largest;
            facts.add("does not fit", format!("{over} too much; {part} take {bytes}"));
            for remedy in remedies {
                facts.add("would fit", remedy_text(remedy));
            }
        }
        LayoutVerdict::Runs { rank, of, spare, is_tight, limit, ratio, losses, doubts, .. } => {
            facts.add("rank", format!("{rank} of {of} layouts that fit"));
            for (doubt, times) in counted(doubts) {
                let margin = doubt.margin() * f64::from(times) * 100.0;
                let more = if times > 1 { format!(", {times} times") } else { String::new() };
                let text = format!("{}{more}: it must win by {margin:.0}%", doubt.reason());
                facts.add("handicap", text);
            }
            let tight = if *is_tight { ", which is tight" } else { "" };
            facts.add("memory", format!("{spare} to spare{tight}"));
            facts.add_known("limited by", *limit);
            if *ratio > 1.0 {
                let more = (ratio - 1.0) * 100.0;
                facts.add("slower", format!("by {more:.1}% than {}", explanation.best.layout));
                let worst = losses.iter().filter(|loss| loss.seconds.get() > 0.0).take(3);
                for loss in worst {
                    facts.add("loses", format!("{:.3} to {}", loss.seconds, loss.part));
                }
                let gains = losses.iter().rev().filter(|loss| loss.seconds.get() < 0.0).take(2);
                for gain in gains {
                    facts.add("gains", format!("{:.3} in {}", gain.seconds * -1.0, gain.part));
                }
            }
        }
    }
    facts
}

/// Doubts with how often each applies. One that no win outweighs is about the stack.
fn counted(doubts: &[Doubt]) -> Vec<(Doubt, u32)> {
    let mut counts: Vec<(Doubt, u32)> = Vec::new();
    for doubt in doubts {
        match counts.iter_mut().find(|(known, _)| known == doubt) {
            Some((_, times)) => *times += 1,
            None => counts.push((*doubt, 1)),
        }
    }
    counts
}

fn remedy_text(remedy: &Remedy) -> String {
    let candidate = &remedy.candidate;
    let changed = remedy.changed.join(", ");
    format!("{} ({changed} changed): {} and {}", candidate.layout, candidate.seconds, candidate.memory)
}

pub(super) fn counterfactual_table(counterfactuals: &[Counterfactual]) -> Table {
    let has_best = counterfactuals.iter().any(|each| each.best.is_some());
    let mut columns =
        vec![Column::left("WHAT IF", 0), Column::right("STEP", 0), Column::right("TIME PER TOKEN", 0)];
    if has_best {
        columns.push(Column::left("BEST LAYOUT THEN", 1));
    }
    let mut table = Table::new(columns);
    for each in counterfactuals {
        let (step, ratio) = match &each.outcome {
            WhatIfOutcome::Runs { seconds, ratio, .. } => {
                (seconds.to_string(), format!("{:+.1}%", (ratio - 1.0) * 100.0))
            }
            WhatIfOutcome::DoesNotFit { over } => ("does not fit".into(), format!("{over} over")),
            WhatIfOutcome::Refused { .. } => ("refused".into(), String::new()),
        };
        let best = each.best.map(|best| format!("{} ({})", best.layout, best.seconds));
        let best = has_best.then(|| best.unwrap_or_default());
        table.row([each.what.to_string(), step, ratio].into_iter().chain(best).collect());
    }
    table
}

pub(super) fn json(explanation: &LayoutExplanation) -> Value {
    let verdict = match &explanation.verdict {
        LayoutVerdict::Refused { refusals, nearest } => json!({
            "verdict": "refused",
            "refusals": refusals.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "nearest": nearest.as_ref().map(|remedy| remedy.candidate.layout.to_string()),
        }),
        LayoutVerdict::DoesNotFit { over, remedies, .. } => json!({
            "verdict": "does not fit",
            "over_bytes": over.get(),
            "would_fit": remedies
                .iter()
                .map(|remedy| remedy.candidate.layout.to_string())
                .collect::<Vec<_>>(),
        }),
        LayoutVerdict::Runs { rank, of, spare, ratio, losses, doubts, .. } => json!({
            "verdict": "runs",
            "rank": rank,
            "of": of,
            "spare_bytes": spare.get(),
            "ratio_to_best": ratio,
            "held_against_it": doubts.iter().map(|each| each.reason()).collect::<Vec<_>>(),
            "losses_s": losses
                .iter()
                .map(|loss| (loss.part.name().to_owned(), json!(loss.seconds.get())))
                .collect::<serde_json::Map<_, _>>(),
        }),
    };
    let counterfactuals = explanation.counterfactuals.iter().map(|each| {
        let ratio = match &each.outcome {
            WhatIfOutcome::Runs { ratio, .. } => Some(*ratio),
            WhatIfOutcome::DoesNotFit { .. } | WhatIfOutcome::Refused { .. } => None,
        };
        json!({ "what_if": each.what.to_string(), "time_per_token_ratio": ratio })
    });
    json!({
        "layout": explanation.layout.to_string(),
        "best": explanation.best.layout.to_string(),
        "answer": verdict,
        "counterfactuals": counterfactuals.collect::<Vec<_>>(),
    })
}
