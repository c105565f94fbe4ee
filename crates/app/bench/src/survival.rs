//! `bedplate bench survival`: what killed ranks cost a training run, next to a restart from a checkpoint.

mod kills;
mod large;
mod place;
mod records;
mod run;
mod whole;

use std::path::PathBuf;

use bedplate_diag::{Diagnostic, Page};
use bedplate_terminal::benchmarks::NOT_SURVIVED;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::statistics::median;
use serde_json::{Value, json};

use place::Place;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench survival
  bedplate bench survival --kills 12 --no-large
  bedplate bench survival --kills 0 --folder /scratch
  bedplate bench survival --whole --kills 200

It trains a small model on four ranks: undisturbed, and while ranks are killed
at random instants, without spares (the run shrinks and grows again), with a
spare, and two at a time. Then a model of 100 million parameters loses one
rank, with a spare, in two layouts. The records show which samples were used;
the finished weights are compared. The peer is the cost of a restart from the
newest checkpoint in the same folder.

With --whole it kills all processes of a run at once, again and again, even
while a checkpoint or the finished weights are being written, and starts the
run again with --resume. Exit code 1 if a figure misses its aim.")]
pub(super) struct Arguments {
    /// How many ranks are killed in the small model's runs; with --whole, how many times all of them
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    kills: u32,
    /// Kill all processes of a run at once, and resume it
    #[arg(long)]
    whole: bool,
    /// Leave out the model of 100 million parameters
    #[arg(long, conflicts_with = "whole")]
    no_large: bool,
    /// Where the random instants and victims come from
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Where to write
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("the survival of a run could not be measured: {0}")]
struct NotMeasured(String);

impl Diagnostic for NotMeasured {
    fn page(&self) -> &'static Page {
        &NOT_SURVIVED
    }
}

/// A figure with the project's own aim, if it has one.
struct Figure {
    /// The part of the run, such as a layout.
    of: String,
    name: &'static str,
    value: f64,
    unit: &'static str,
    aim: Option<Aim>,
}

#[derive(Clone, Copy)]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
    Exactly(f64),
}

impl Figure {
    fn new(of: &str, name: &'static str, value: f64, unit: &'static str) -> Self {
        Self { of: of.to_owned(), name, value, unit, aim: None }
    }

    fn at_most(self, most: f64) -> Self {
        Self { aim: Some(Aim::AtMost(most)), ..self }
    }

    fn at_least(self, least: f64) -> Self {
        Self { aim: Some(Aim::AtLeast(least)), ..self }
    }

    fn exactly(self, value: f64) -> Self {
        Self { aim: Some(Aim::Exactly(value)), ..self }
    }

    fn is_met(&self) -> bool {
        match self.aim {
            None => true,
            Some(Aim::AtMost(most)) => self.value <= most,
            Some(Aim::AtLeast(least)) => self.value >= least,
            Some(Aim::Exactly(value)) => self.value == value,
        }
    }

    fn to_json(&self) -> Value {
        let aim = self.aim.map(|aim| match aim {
            Aim::AtMost(most) => json!({"at_most": most}),
            Aim::AtLeast(least) => json!({"at_least": least}),
            Aim::Exactly(value) => json!({"exactly": value}),
        });
        let Self { of, name, value, unit, .. } = self;
        json!({"of": of, "figure": name, "value": value, "unit": unit, "aim": aim, "is_met": self.is_met()})
    }

    fn cells(&self) -> Vec<String> {
        let shown = |value: f64| match self.unit {
            "s" => format!("{value:.2} s"),
            _ if value == value.trunc() && value.abs() < 1e15 => format!("{value}"),
            _ => format!("{value:.1e}"),
        };
        let aim = match self.aim {
            None => "-".to_owned(),
            Some(Aim::AtMost(most)) => format!("<= {}", shown(most)),
            Some(Aim::AtLeast(least)) => format!(">= {}", shown(least)),
            Some(Aim::Exactly(value)) => shown(value),
        };
        let is_met = if self.aim.is_none() {
            ""
        } else if self.is_met() {
            "yes"
        } else {
            "NO"
        };
        vec![self.of.clone(), self.name.to_owned(), shown(self.value), aim, is_met.to_owned()]
    }
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let figures = {
        let place = Place::new(&arguments.folder)?;
        let mut figures = Vec::new();
        if arguments.whole {
            figures.extend(whole::measure(&place, arguments.kills, arguments.seed, console)?);
        } else {
            if arguments.kills > 0 {
                figures.extend(kills::measure(&place, arguments.kills, arguments.seed, console)?);
            }
            if !arguments.no_large {
                figures.extend(large::measure(&place, arguments.seed, console)?);
            }
        }
        figures
    };
    show(&figures, console)?;
    if figures.iter().all(Figure::is_met) { Ok(()) } else { Err(CliError::Refused) }
}

fn show(figures: &[Figure], console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        return console.json(&json!({"figures": figures.iter().map(Figure::to_json).collect::<Vec<_>>()}));
    }
    let columns = [("OF", true), ("FIGURE", true), ("VALUE", false), ("AIM", false), ("MET", false)];
    let column = |(name, is_left)| if is_left { Column::left(name, 0) } else { Column::right(name, 0) };
    let mut table = Table::new(columns.into_iter().map(column).collect());
    figures.iter().for_each(|figure| table.row(figure.cells()));
    console.table(&table)
}

fn longest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
