//! `bedplate plan calibrate --data FILE`: fit the performance model to your own runs.

use bedplate_calibrate::{Case, Cases, FitOptions, fit, report};
use bedplate_catalog::Catalog;
use bedplate_perf::Constants;
use serde_json::json;

use super::constants::Choice;
use super::serving;
use super::validate::Kind;
use crate::console::Console;
use crate::files;
use crate::stop::Stop;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate plan calibrate --data runs.csv -o site.toml
  bedplate plan train --constants site.toml --model llama-3.1-70b --cluster p5.48xlarge:64
  bedplate plan calibrate --kind serving --data latencies.csv -o deployments.toml

The result holds the constants that moved; name it with --constants or in BEDPLATE_CONSTANTS. A handful of runs
moves the constants only as far as the runs agree: the built-in values are the prior.

With --kind serving the result holds a factor on step time and seconds on the first token for every deployment of
the file; one measured row of a deployment is enough.")]
pub(super) struct Arguments {
    /// What was measured
    #[arg(long, value_enum, default_value_t = Kind::Training)]
    kind: Kind,
    /// A CSV file of measured runs, as for `plan validate`
    #[arg(long, value_name = "FILE")]
    data: String,
    #[command(flatten)]
    constants: Choice,
    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    out: Option<String>,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), Stop> {
    if arguments.kind == Kind::Serving {
        let constants = arguments.constants.load_serving()?;
        let text = files::read_text(&arguments.data)?;
        return serving::calibrate(&text, &constants, arguments.out.as_deref(), catalog, console);
    }
    let start = arguments.constants.load()?;
    let cases = Cases::read(&files::read_text(&arguments.data)?, catalog)?;
    let rows: Vec<&Case> = cases.used.iter().collect();
    console.say(&format!("fitting to {} rows ({} skipped)", rows.len(), cases.skipped.len()));
    let fitted = fit(&rows, &start, &FitOptions::default());
    let (before, after) = (report(&cases, &start).total, report(&cases, &fitted).total);
    console.say(&format!(
        "median error {:.1}% before, {:.1}% after; p90 {:.1}% and {:.1}%, on the rows of the fit",
        before.median_abs_error * 100.0,
        after.median_abs_error * 100.0,
        before.p90_abs_error * 100.0,
        after.p90_abs_error * 100.0
    ));
    if after.p90_abs_error > before.p90_abs_error {
        console.say("note: the 90th percentile rose; a few runs may contradict each other");
    }
    let text = fitted.to_toml_changed(&Constants::builtin());
    if let Some(path) = &arguments.out {
        files::write_text(path, &text)?;
        console.say(&format!("wrote {path}"));
    }
    if console.is_json() {
        return console.json(&json!({
            "rows_used": rows.len(),
            "rows_skipped": cases.skipped.len(),
            "median_abs_error_before": before.median_abs_error,
            "median_abs_error_after": after.median_abs_error,
            "p90_abs_error_before": before.p90_abs_error,
            "p90_abs_error_after": after.p90_abs_error,
            "constants": text,
        }));
    }
    if arguments.out.is_none() { console.text(&text) } else { Ok(()) }
}
