//! `bedplate train show RUN`: how far a run is, and how it went.

use std::path::PathBuf;

use bedplate_terminal::html::{Plot, Point, Report, Series};
use bedplate_terminal::present::{Facts, draw_curve};
use bedplate_terminal::{CliError, Console, ProgramError, files};
use bedplate_train::SETTINGS_FILE;
use bedplate_units::{Count, grouped};
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate train show run
  bedplate train show run --plot
  bedplate train show run --html run.html
  bedplate train show run --json | jq .loss")]
pub(super) struct Arguments {
    /// The output folder of a run, under way or done
    #[arg(value_name = "RUN")]
    folder: PathBuf,
    /// Draw loss, throughput and learning rate
    #[arg(long)]
    plot: bool,
    /// Write them as a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<String>,
}

/// Steps of which the mean is told.
const LATEST: usize = 20;
const CURVE_HEIGHT: usize = 9;

/// What a run has recorded.
struct Records {
    steps: Vec<Value>,
    evaluations: Vec<Value>,
}

/// A figure of every step, under the name by which it is shown.
const FIGURES: [(&str, &str); 3] =
    [("loss", "loss"), ("tokens/s", "tokens_per_second"), ("learning rate", "learning_rate")];

impl Records {
    fn read(arguments: &Arguments) -> Result<Self, CliError> {
        let path = arguments.folder.join("metrics.jsonl");
        if !path.is_file() {
            let message = format!(
                "`{}` holds no run: {} is missing; name the output folder of a training run",
                arguments.folder.display(),
                path.display()
            );
            return Err(ProgramError::Usage { message }.into());
        }
        let text = files::read_text(&path.display().to_string())?;
        let records: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of_kind =
            |kind: &str| records.iter().filter(|record| record["kind"] == kind).cloned().collect::<Vec<_>>();
        Ok(Self { steps: of_kind("step"), evaluations: of_kind("evaluation") })
    }

    /// A figure with the step that it belongs to.
    fn points(&self, key: &str) -> Vec<(f64, f64)> {
        let point = |record: &Value| Some((record["step"].as_f64()?, record[key].as_f64()?));
        self.steps.iter().filter_map(point).collect()
    }

    fn latest(&self, key: &str) -> Option<f64> {
        let values: Vec<f64> = self.points(key).into_iter().map(|(_, value)| value).collect();
        let latest = &values[values.len().saturating_sub(LATEST)..];
        (!latest.is_empty()).then(|| latest.iter().sum::<f64>() / latest.len() as f64)
    }

    fn last_step(&self) -> u64 {
        self.steps.last().and_then(|record| record["step"].as_u64()).unwrap_or(0)
    }
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let records = Records::read(arguments)?;
    if let Some(path) = &arguments.html {
        files::write_text(path, &page(arguments, &records).html())?;
        console.say(&format!("wrote {path}"));
    }
    if console.is_json() {
        return console.json(&as_json(arguments, &records));
    }
    console.text(&facts(arguments, &records).render(console.width()))?;
    if arguments.plot {
        let width = console.width().unwrap_or(80).min(100);
        for (name, key) in FIGURES {
            let values: Vec<f64> = records.points(key).into_iter().map(|(_, value)| value).collect();
            // Rates of learning are far below one.
            let scale = if key == "learning_rate" { 1e3 } else { 1.0 };
            let title = if scale == 1.0 { name.to_owned() } else { format!("{name} x 1000") };
            let scaled: Vec<f64> = values.iter().map(|value| value * scale).collect();
            let drawn = draw_curve(&scaled, width, CURVE_HEIGHT);
            if !drawn.is_empty() {
                console.line(&format!(
                    "\n{title}, steps 1 to {}\n{}",
                    records.last_step(),
                    drawn.join("\n")
                ))?;
            }
        }
    }
    Ok(())
}

/// How many steps the run will have, by the settings that it left.
fn planned_steps(arguments: &Arguments) -> Option<u64> {
    let path = arguments.folder.join(SETTINGS_FILE).display().to_string();
    let text = files::read_text(&path).ok()?;
    let config = bedplate_train::TrainConfig::from_toml(bedplate_diag::Source::new(&path, &text)).ok()?;
    Some(config.training.steps)
}

fn facts(arguments: &Arguments, records: &Records) -> Facts {
    let mut facts = Facts::default();
    let done = records.last_step();
    let steps = match planned_steps(arguments) {
        Some(planned) if planned > done => {
            format!(
                "{} of {}; `bedplate train --resume {}` goes on",
                grouped(done),
                grouped(planned),
                arguments.folder.display()
            )
        }
        Some(_) => format!("{}, all", grouped(done)),
        None => grouped(done),
    };
    facts.add("steps", steps);
    let first = records.points("loss").first().map(|(_, loss)| *loss);
    if let Some((first, latest)) = first.zip(records.latest("loss")) {
        facts.add("loss", format!("{first:.4} at first, {latest:.4} over the latest {LATEST} steps"));
    }
    let held_out = records.evaluations.iter().rev().find_map(|record| record["loss"].as_f64());
    facts.add_known("held-out loss", held_out.map(|loss| format!("{loss:.4}")));
    facts.add_known(
        "throughput",
        records.latest("tokens_per_second").map(|rate| format!("{} tokens/s", Count(rate as u64))),
    );
    facts.add_known("learning rate", records.latest("learning_rate").map(|rate| format!("{rate:.2e}")));
    let sample = records.evaluations.iter().rev().find_map(|record| record["sample"].as_str());
    facts.add_known("writes", sample.map(|sample| sample.split_whitespace().collect::<Vec<_>>().join(" ")));
    let model = arguments.folder.join("model");
    facts.add_known("model", model.is_dir().then(|| model.display().to_string()));
    facts
}

fn page(arguments: &Arguments, records: &Records) -> Report {
    let mut report = Report::new("A training run", &arguments.folder.display().to_string());
    report.facts(facts(arguments, records).rows());
    for (name, key) in FIGURES {
        let points = records.points(key).into_iter().map(|(x, y)| Point { x, y, label: String::new() });
        let series = Series { name: name.to_owned(), points: points.collect(), is_line: true };
        let plot = Plot {
            x_title: "step".into(),
            y_title: name.into(),
            is_x_logarithmic: false,
            is_y_logarithmic: false,
            series: vec![series],
        };
        report.section(name, "").chart(&plot.svg());
    }
    report
}

fn as_json(arguments: &Arguments, records: &Records) -> Value {
    json!({
        "folder": arguments.folder,
        "step": records.last_step(),
        "steps": planned_steps(arguments),
        "loss": records.latest("loss"),
        "tokens_per_second": records.latest("tokens_per_second"),
        "learning_rate": records.latest("learning_rate"),
        "evaluations": records.evaluations,
        "records": records.steps,
    })
}
