//! `bedplate bench observe`: how long it takes from an XID to a drained node, and what the exporter costs.

mod cost;
mod many;
mod one;

use std::path::PathBuf;

use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, Context};
use bedplate_units::Seconds;
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench observe
  bedplate bench observe --only cost --seconds 3600 --nvml target/release/libbedplate_fakenvml.so
  bedplate bench observe --nodes 150 --failing 30 --json

First a temporary cluster of five nodes: an XID is written to the kernel log of one of
them, and the clock stops when the cluster shows the node as drained. Then a daemon with
many pretended nodes, of which some see an XID at the same moment. Then the exporter
alone at an interval of one second: processor time, memory and the time of a scrape. It
reads the GPUs of this host, or those of the NVML library that is named; the project's
own `bedplate-fakenvml` pretends eight.")]
pub(super) struct Arguments {
    /// How often one node sees an XID
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    repeats: u32,
    /// Simulated nodes
    #[arg(long, value_name = "COUNT", default_value_t = 1500)]
    nodes: u32,
    /// How many of them see an XID at once
    #[arg(long, value_name = "COUNT", default_value_t = 150)]
    failing: u32,
    /// How long the exporter runs: a time such as 1h, or a number of seconds
    #[arg(long = "for", visible_alias = "seconds", value_name = "TIME", default_value = "60s", value_parser = lasts)]
    lasts: Seconds,
    /// The NVML library that the exporter reads [default: the driver's]
    #[arg(long, value_name = "LIBRARY")]
    nvml: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
}

/// A time with its unit, or a bare number of seconds.
fn lasts(text: &str) -> Result<Seconds, String> {
    let seconds = match text.parse::<f64>() {
        Ok(seconds) => Seconds::new(seconds),
        Err(_) => text.parse().map_err(|error: bedplate_units::UnitError| error.to_string())?,
    };
    match seconds.get() {
        seconds if (SHORTEST_S..=LONGEST_S).contains(&seconds) => Ok(Seconds::new(seconds)),
        _ => Err(format!("it is between {SHORTEST_S} seconds and a day")),
    }
}

const SHORTEST_S: f64 = 5.0;
const LONGEST_S: f64 = 86_400.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// One node of a real cluster
    One,
    /// Many nodes at once
    Many,
    /// What the exporter costs
    Cost,
}

/// A measured figure and the project's own aim for it.
struct Figure {
    name: &'static str,
    value: f64,
    unit: &'static str,
    aim: Option<f64>,
}

impl Figure {
    fn new(name: &'static str, value: f64, unit: &'static str, aim: Option<f64>) -> Self {
        Self { name, value, unit, aim }
    }
}

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let wants = |part: Part| arguments.only.is_none_or(|only| only == part);
    let mut figures = Vec::new();
    if wants(Part::One) {
        figures.extend(one::measure(arguments.repeats.max(1), context, console)?);
    }
    if wants(Part::Many) {
        figures.extend(many::measure(arguments.nodes, arguments.failing, context, console)?);
    }
    if wants(Part::Cost) {
        figures.extend(cost::measure(arguments.lasts, arguments.nvml.clone(), console)?);
    }
    if console.is_json() {
        let pairs = figures.iter().map(|figure| (figure.name.to_owned(), json!(figure.value)));
        return console.json(&serde_json::Value::Object(pairs.collect()));
    }
    console.table(&table(&figures))
}

fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new(vec![
        Column::left("FIGURE", 0),
        Column::right("VALUE", 0),
        Column::right("AIM", 0),
        Column::right("RATIO", 0),
    ]);
    for Figure { name, value, unit, aim } in figures {
        let aim_text = aim.map_or("-".to_owned(), |aim| format!("< {aim} {unit}"));
        let ratio = aim.map_or("-".to_owned(), |aim| format!("{:.2}", value / aim));
        table.row(vec![(*name).to_owned(), format!("{value:.3} {unit}"), aim_text, ratio]);
    }
    table
}
