//! `bedplate plan calibrate --data FILE`: fit the performance model to your own runs.

use bedplate_calibrate::{Case, Cases, FitOptions, fit, report};
use bedplate_catalog::Catalog;
use bedplate_perf::Constants;
use bedplate_terminal::{CliError, Console, ProgramError, files};
use serde_json::json;

use super::constants::Choice;
use super::own_runs::{self, Place};
use super::planned_jobs::JobFiles;
use super::validate::Kind;
use super::{collectives, serving};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate plan calibrate --data runs.csv -o site.toml
  bedplate plan train --constants site.toml --model llama-3.1-70b --cluster p5.48xlarge:64
  bedplate plan calibrate --kind serving --data latencies.csv -o deployments.toml
  bedplate plan calibrate --recent --save
  bedplate plan calibrate --runs run-a run-b -o host.toml
  bedplate plan calibrate --jobs plan-1.json=reports-1 plan-2.json=reports-2 -o site.toml

The result has the constants that changed; use it with --constants or
BEDPLATE_CONSTANTS. The built-in values are the prior: a few runs move the
constants only as far as the runs agree.

With --kind serving the result has a factor on step time and an offset on the
first token for every deployment of the file; one measured row of a deployment
is enough.

With --runs the rates of this host move to what runs of `bedplate train`
reached on it, part by part. With --jobs the constants are fitted to jobs that
ran as planned: to their plans and the steps that they reported.")]
pub(crate) struct Arguments {
    /// What was measured
    #[arg(long, value_enum, default_value_t = Kind::Training)]
    kind: Kind,
    /// A CSV file of measured runs, as for `plan validate`
    #[arg(long, value_name = "FILE", required_unless_present_any = ["runs", "recent", "jobs"], conflicts_with_all = ["runs", "recent", "jobs"])]
    data: Option<String>,
    /// Jobs that ran here: the output of `plan train --json` and the job's file of reports; may be repeated
    #[arg(long, value_name = "PLAN=REPORTS", num_args = 1.., conflicts_with_all = ["runs", "recent"])]
    jobs: Vec<JobFiles>,
    /// Output folders of runs of `bedplate train` on this host; may be repeated
    #[arg(long, value_name = "FOLDER", num_args = 1..)]
    runs: Vec<String>,
    /// The latest runs of `bedplate train` on this host that had at least 20 steps, instead of --runs
    #[arg(long, conflicts_with = "runs")]
    recent: bool,
    /// With --runs: the file that `bedplate bench machine` wrote [default: its usual place]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "jobs"])]
    host: Option<String>,
    /// With --runs: put the rates into the host's file, where plans and `bedplate train` find them
    #[arg(long, conflicts_with_all = ["out", "data", "jobs"])]
    save: bool,
    #[command(flatten)]
    constants: Choice,
    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    out: Option<String>,
}

impl Arguments {
    fn cases(&self, catalog: &Catalog) -> Result<Cases, CliError> {
        if let Some(data) = &self.data {
            return Ok(Cases::read(&files::read_text(data)?, catalog)?);
        }
        let used = self.jobs.iter().map(|job| job.case(catalog)).collect::<Result<Vec<_>, CliError>>()?;
        Ok(Cases { used, skipped: Vec::new() })
    }

    fn needed_data(&self, message: &str) -> Result<&str, CliError> {
        let missing = || CliError::from(ProgramError::Usage { message: message.to_owned() });
        self.data.as_deref().ok_or_else(missing)
    }
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    if arguments.recent || !arguments.runs.is_empty() {
        let place =
            Place { host: arguments.host.as_deref(), out: arguments.out.as_deref(), saves: arguments.save };
        let folders = if arguments.recent { own_runs::recent()? } else { arguments.runs.clone() };
        return own_runs::calibrate(&folders, &place, console);
    }
    if arguments.kind == Kind::Serving {
        let constants = arguments.constants.load_serving()?;
        let text =
            files::read_text(arguments.needed_data("--kind serving takes --data, a file of latencies")?)?;
        return serving::calibrate(&text, &constants, arguments.out.as_deref(), catalog, console);
    }
    let start = arguments.constants.load()?;
    if arguments.kind == Kind::Collectives {
        let text = files::read_text(
            arguments.needed_data("--kind collectives takes --data, a file of collectives")?,
        )?;
        return collectives::calibrate(&text, &start, arguments.out.as_deref(), catalog, console);
    }
    let cases = arguments.cases(catalog)?;
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
