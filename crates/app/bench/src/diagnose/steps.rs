//! Step times of real runs: slowdowns that are found in them as they are, and when they are made slower from some step on.

use std::path::Path;

use bedplate_diagnose::{Pace, Slowdown};
use bedplate_random::Random;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, files};
use bedplate_units::statistics::{median, quantile};
use bedplate_units::{Seconds, grouped};
use serde::Deserialize;
use serde_json::json;

use super::DiagnoseError;

const FACTORS: [f64; 4] = [1.05, 1.1, 1.2, 1.3];
/// Steps that must lie before a change and behind it.
const BEFORE: usize = 40;
const BEHIND: usize = 25;
/// Each series is made slower from so many steps on, one after the other; this many steps before a change and behind it count.
const CHANGES: usize = 20;
const SEEN_BEFORE: usize = 400;
const SEEN_BEHIND: usize = 200;

#[derive(Deserialize)]
struct Series {
    #[serde(default, rename = "test")]
    name: String,
    seconds: Vec<f64>,
    #[serde(default)]
    restarted: bool,
}

struct Factor {
    factor: f64,
    tried: usize,
    found: usize,
    delays: Vec<f64>,
    missed: Vec<String>,
}

pub(super) fn run(path: &Path, seed: u64, console: &mut Console) -> Result<(), CliError> {
    let name = path.display().to_string();
    let text = files::read_text(&name)?;
    let failed = |line: usize, why: String| DiagnoseError::Input { path: format!("{name}:{line}"), why };
    let all: Vec<Series> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(at, line)| serde_json::from_str(line).map_err(|error| failed(at + 1, error.to_string())))
        .collect::<Result<_, _>>()?;
    let steps: usize = all.iter().map(|series| series.seconds.len()).sum();
    let found: Vec<(&Series, Slowdown)> = all
        .iter()
        .flat_map(|series| slowdowns(&series.seconds).into_iter().map(move |slow| (series, slow)))
        .collect();
    let factors: Vec<Factor> = FACTORS.iter().map(|factor| try_factor(&all, *factor, seed)).collect();
    if console.is_json() {
        let slow = |(series, slow): &(&Series, Slowdown)| json!({ "series": series.name, "onset": slow.onset, "before_s": slow.before, "since_s": slow.since, "lasted": slow.lasted, "firm": slow.is_firm });
        let factor = |each: &Factor| json!({ "factor": each.factor, "tried": each.tried, "found": each.found, "median_delay": median(&each.delays), "missed": each.missed });
        return console.json(&json!({
            "series": all.len(), "steps": steps,
            "slowdowns": found.iter().map(slow).collect::<Vec<_>>(),
            "factors": factors.iter().map(factor).collect::<Vec<_>>(),
        }));
    }
    let suspected = found.iter().filter(|(_, slow)| !slow.is_firm).count();
    console.line(&format!(
        "{} steps in {} series: {} firm findings, {suspected} suspicions\n",
        grouped(steps as u64),
        all.len(),
        found.len() - suspected
    ))?;
    let mut firm = Table::new(vec![
        Column::left("SERIES", 1),
        Column::right("FROM", 0),
        Column::right("STEPS", 0),
        Column::right("BEFORE", 0),
        Column::right("SINCE", 0),
    ]);
    for (series, slow) in found.iter().filter(|(_, slow)| slow.is_firm) {
        firm.row(vec![
            series.name.clone(),
            grouped(slow.onset),
            grouped(slow.lasted),
            Seconds::new(slow.before).to_string(),
            Seconds::new(slow.since).to_string(),
        ]);
    }
    console.table(&firm)?;
    console.line(
        "\nmade slower from random steps on, 20 in each series that was not restarted and has 65 steps",
    )?;
    let mut table = Table::new(vec![
        Column::right("FACTOR", 0),
        Column::right("CHANGES", 0),
        Column::right("FOUND", 0),
        Column::right("MEDIAN DELAY", 0),
        Column::right("90 %", 0),
    ]);
    for each in &factors {
        table.row(vec![
            format!("{:.2}", each.factor),
            each.tried.to_string(),
            format!("{:.1} %", 100.0 * each.found as f64 / each.tried.max(1) as f64),
            format!("{:.0} steps", median(&each.delays)),
            format!("{:.0} steps", quantile(&each.delays, 0.9)),
        ]);
    }
    console.table(&table)
}

fn slowdowns(seconds: &[f64]) -> Vec<Slowdown> {
    let mut pace = Pace::new();
    seconds.iter().for_each(|seconds| pace.take(*seconds));
    pace.slowdowns()
}

fn try_factor(all: &[Series], factor: f64, seed: u64) -> Factor {
    let mut random = Random::new(seed);
    let mut result = Factor { factor, tried: 0, found: 0, delays: Vec::new(), missed: Vec::new() };
    let long = all.iter().filter(|series| !series.restarted && series.seconds.len() >= BEFORE + BEHIND);
    for series in long {
        for _ in 0..CHANGES {
            let at = BEFORE + random.below(series.seconds.len() - BEFORE - BEHIND + 1);
            let first = at.saturating_sub(SEEN_BEFORE);
            let seen = &series.seconds[first..series.seconds.len().min(at + SEEN_BEHIND)];
            let at = at - first;
            let changed = seen
                .iter()
                .enumerate()
                .map(|(step, seconds)| if step < at { *seconds } else { seconds * factor });
            let is_ours = |slow: &&Slowdown| slow.found > at as u64 && slow.onset + 10 >= at as u64;
            result.tried += 1;
            match slowdowns(&Vec::from_iter(changed)).iter().find(is_ours) {
                Some(slow) => {
                    result.found += 1;
                    result.delays.push((slow.found - at as u64) as f64);
                }
                None => result.missed.push(series.name.clone()),
            }
        }
    }
    result
}
