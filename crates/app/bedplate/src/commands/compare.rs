//! `bedplate compare`: why one run is slower than another, part by part, and what differs between them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use bedplate_diagnose::{RunDifference, RunFacts, compare, usual_step};
use bedplate_drivers::{Driver, JobId};
use bedplate_evidence::{Gathered, gather};
use bedplate_logs::{Field, Recognizer};
use bedplate_terminal::present::{Column, Table, printable_line, wrap};
use bedplate_terminal::{CliError, Console};
use bedplate_units::{Seconds, grouped};
use serde_json::json;

use crate::connection::Connection;
use crate::diagnosing::{job, named_job, recognizer};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate compare 12 17
  bedplate compare yesterday.log today.log
  bedplate compare 12 logs-of-the-other-cluster/ --json

A run is a job of the cluster, a log or a folder of logs. Compared are the step's
time and its parts where they were reported, the settings and versions that
were printed or submitted, the nodes, and the losses at the same steps.")]
pub(crate) struct Arguments {
    /// The run to compare with: a job's number, a log or a folder of logs
    #[arg(value_name = "RUN_A")]
    first: PathBuf,
    /// The run in question
    #[arg(value_name = "RUN_B")]
    second: PathBuf,
    /// All settings that differ
    #[arg(long)]
    all: bool,
    /// Also recognise formats and signatures of your own
    #[arg(long, value_name = "FILE")]
    own: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Settings that are shown without `--all`.
const MOST_SHOWN: usize = 20;

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let recognizer = recognizer(&arguments.own)?;
    let facts = |path: &PathBuf| match named_job(std::slice::from_ref(path)) {
        Some(id) => of_job(&id, &*arguments.connection.driver()?, &recognizer),
        None => {
            let gathered = gather(std::slice::from_ref(path), &recognizer, &mut |_| {})?;
            Ok(of_logs(path.display().to_string(), &gathered, &recognizer))
        }
    };
    let (first, second) = (facts(&arguments.first)?, facts(&arguments.second)?);
    let difference = compare(&first, &second);
    if console.is_json() {
        let about = |facts: &RunFacts| json!({ "name": facts.name, "step_s": facts.step_s, "steps": facts.steps, "nodes": facts.nodes });
        return console
            .json(&json!({ "first": about(&first), "second": about(&second), "difference": difference }));
    }
    let text = text(&first, &second, &difference, arguments.all, console.width());
    console.text(&text)
}

fn of_logs(name: String, gathered: &Gathered, recognizer: &Recognizer) -> RunFacts {
    let mut facts = RunFacts { name, ..RunFacts::default() };
    if let Some((step_s, steps)) = usual_step(&gathered.case, recognizer) {
        (facts.step_s, facts.steps) = (Some(step_s), steps);
    }
    for log in &gathered.case.logs {
        for (name, value) in &log.log.settings {
            facts.settings.entry(name.clone()).or_insert_with(|| value.clone());
        }
        facts.nodes.extend(log.log.origins.iter().filter_map(|origin| origin.node.clone()));
        let losses = log.log.steps.iter().filter_map(|step| Some((step.step, step.value(Field::Loss)?)));
        facts.losses.extend(losses);
    }
    facts
}

/// What the cluster knows of a job counts before what its output says.
fn of_job(id: &JobId, driver: &dyn Driver, recognizer: &Recognizer) -> Result<RunFacts, CliError> {
    let detail = driver.job(id)?;
    let gathered = job::gather(id, driver, recognizer)?.gathered;
    let mut facts = of_logs(format!("job {id}"), &gathered, recognizer);
    if let Some(steps) = detail.steps.as_ref().filter(|steps| steps.steps > 0) {
        (facts.step_s, facts.steps, facts.parts) = (Some(steps.mean_s), steps.steps, steps.mean);
        facts.losses.extend(steps.latest.iter().filter_map(|step| Some((step.step, step.loss?))));
    }
    facts.nodes.extend(detail.summary.nodes.iter().map(ToString::to_string));
    if let Some(text) = &detail.text {
        facts.settings.extend(submitted(text));
    }
    Ok(facts)
}

/// The settings of a job file: each value with the table that it stands in, as the one format writes them.
fn submitted(text: &str) -> BTreeMap<String, String> {
    let mut table = String::new();
    let mut settings = BTreeMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end().trim_start_matches('[').trim_end_matches(']').to_owned();
        } else if let Some((name, value)) = line.split_once(" = ") {
            let place = if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") };
            settings.insert(place, value.to_owned());
        }
    }
    settings
}

fn text(
    first: &RunFacts,
    second: &RunFacts,
    difference: &RunDifference,
    with_all: bool,
    width: Option<usize>,
) -> String {
    let mut page = wrap(&summary(first, second, difference), width.unwrap_or(100)).join("\n") + "\n";
    let time = |seconds: f64| Seconds::new(seconds).to_string();
    let ratio = |one: f64, other: f64| if one > 0.0 { format!("{:.2}", other / one) } else { String::new() };
    if first.step_s.is_some() || second.step_s.is_some() {
        let mut table = Table::new(vec![
            Column::left("PART", 0),
            Column::right("A", 0),
            Column::right("B", 0),
            Column::right("B/A", 0),
        ]);
        for part in &difference.parts {
            let row = [
                part.part.to_owned(),
                time(part.first_s),
                time(part.second_s),
                ratio(part.first_s, part.second_s),
            ];
            table.row(row.into());
        }
        let whole = |step: Option<f64>| step.map_or(String::new(), time);
        let of_both = first.step_s.zip(second.step_s).map_or(String::new(), |(one, other)| ratio(one, other));
        table.row(vec!["whole step".to_owned(), whole(first.step_s), whole(second.step_s), of_both]);
        page += &format!("\n{}", table.fit(width).text);
    }
    if !difference.settings.is_empty() {
        let mut table =
            Table::new(vec![Column::left("SETTING", 0), Column::left("A", 1), Column::left("B", 1)]);
        let shown = if with_all { difference.settings.len() } else { MOST_SHOWN };
        for setting in difference.settings.iter().take(shown) {
            let value = |value: &Option<String>| {
                value.as_deref().map_or(String::new(), |text| printable_line(text).to_string())
            };
            table.row(vec![
                printable_line(&setting.name).to_string(),
                value(&setting.first),
                value(&setting.second),
            ]);
        }
        page += &format!("\n{}", table.fit(width).text);
        if let Some(more) = difference.settings.len().checked_sub(shown).filter(|more| *more > 0) {
            page += &format!("and {more} more (--all)\n");
        }
    }
    let only = |nodes: &[String]| {
        BTreeSet::from_iter(nodes).into_iter().take(12).cloned().collect::<Vec<_>>().join(", ")
    };
    for (which, nodes) in [("A", &difference.only_first_nodes), ("B", &difference.only_second_nodes)] {
        if !nodes.is_empty() {
            page += &format!("\nnodes of {which} alone: {}\n", only(nodes));
        }
    }
    if let Some(loss) = difference.loss {
        page += &format!(
            "\nlosses at {} common steps; at step {}: {:.4} and {:.4}{}\n",
            grouped(loss.steps as u64),
            grouped(loss.last_step),
            loss.first,
            loss.second,
            loss.apart_since
                .map_or(String::new(), |step| format!("; far apart since step {}", grouped(step))),
        );
    }
    page
}

/// The answer in a sentence or two.
fn summary(first: &RunFacts, second: &RunFacts, difference: &RunDifference) -> String {
    /// Smaller differences are those of any two runs.
    const SAME_WITHIN: f64 = 0.02;
    let name = |facts: &RunFacts| printable_line(&facts.name).to_string();
    let mut text = match difference.ratio {
        None => format!("A is {}, B is {}; not both have steps with times.", name(first), name(second)),
        Some(ratio) if (ratio - 1.0).abs() <= SAME_WITHIN => {
            format!("B ({}) is as fast as A ({}).", name(second), name(first))
        }
        Some(ratio) if ratio > 1.0 => {
            format!("B ({}) takes {ratio:.2} times as long a step as A ({}).", name(second), name(first))
        }
        Some(ratio) => {
            format!("B ({}) is {:.2} times as fast as A ({}).", name(second), 1.0 / ratio, name(first))
        }
    };
    if let (Some(part), Some(ratio)) = (difference.parts.first(), difference.ratio)
        && (ratio - 1.0).abs() > SAME_WITHIN
        && let Some((one, other)) = first.step_s.zip(second.step_s)
    {
        text += &format!(
            " Of the difference of {}, {:.0} % lies in {}.",
            Seconds::new((other - one).abs()),
            100.0 * (part.second_s - part.first_s) / (other - one),
            part.part
        );
    }
    let of_speed = difference.settings.iter().filter(|setting| setting.concerns_speed).count();
    if of_speed > 0 {
        text += &format!(" {of_speed} settings that concern speed differ.");
    }
    text
}
