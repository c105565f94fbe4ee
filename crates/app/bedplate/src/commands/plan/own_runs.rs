//! `plan calibrate --runs`: the rates of this host, moved to what runs of `bedplate train` reached on it.

use std::path::{Path, PathBuf};

use bedplate_calibrate::own_runs::{MeasuredSteps, MovedHost, OwnRunsError, move_host};
use bedplate_calibrate::{HostCase, HostFactor};
use bedplate_diag::{Diagnostic, Page, Source, pages};
use bedplate_layout::ComputePrecision;
use bedplate_local::host::{NAME, RUN_SETTINGS, overlay_path, recent_runs};
use bedplate_local::host_run;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, files};
use bedplate_train::{TrainConfig, read_architecture};
use serde_json::{Value, json};

#[derive(Debug, thiserror::Error)]
enum FolderError {
    #[error("no run of `bedplate train` is remembered on this host")]
    NoRuns,
    #[error("`{folder}` has no {RUN_SETTINGS}")]
    NoSettings { folder: String },
}

pages! { pub(crate) PAGES "plan":
    NO_RUNS "no-runs" User
        "Runs of at least 20 steps are remembered once `bedplate bench machine` has measured the host, as long as their folders exist. Runs below the folder of temporary files are not remembered."
        "name folders with `--runs`, or train first"
    NO_SETTINGS "no-settings" User
        "To predict a run again, its configuration is needed. `bedplate train` leaves it in the output folder when the run ends, and this folder does not have it."
        "name the output folder of a run that ended; runs of earlier releases do not have it"
}

impl Diagnostic for FolderError {
    fn page(&self) -> &'static Page {
        match self {
            FolderError::NoRuns => &NO_RUNS,
            FolderError::NoSettings { .. } => &NO_SETTINGS,
        }
    }
}

/// Where the result goes.
pub(super) struct Place<'a> {
    /// The host's catalog file; the default one where none is named.
    pub(super) host: Option<&'a str>,
    pub(super) out: Option<&'a str>,
    /// Into the host's file itself.
    pub(super) saves: bool,
}

pub(super) fn calibrate(
    folders: &[String],
    place: &Place<'_>,
    console: &mut Console,
) -> Result<(), CliError> {
    let path = place.host.map_or_else(overlay_path, PathBuf::from);
    let shown = path.display().to_string();
    let text = files::read_text(&shown)?;
    let cases = folders.iter().map(|folder| read_run(folder)).collect::<Result<Vec<_>, CliError>>()?;
    let moved = move_host(Source::new(&shown, &text), NAME, &cases)?;
    let out = if place.saves { Some(path) } else { place.out.map(PathBuf::from) };
    if let Some(out) = &out {
        files::write_own(out, &moved.text)?;
    }
    show(&moved, cases.len(), out.as_deref(), console)
}

/// The remembered runs on this host.
pub(super) fn recent() -> Result<Vec<String>, CliError> {
    let has_settings = |folder: &PathBuf| folder.join(RUN_SETTINGS).is_file();
    let folders = recent_runs().into_iter().filter(has_settings).map(|folder| folder.display().to_string());
    let folders: Vec<String> = folders.collect();
    if folders.is_empty() { Err(FolderError::NoRuns.into()) } else { Ok(folders) }
}

fn show(moved: &MovedHost, runs: usize, out: Option<&Path>, console: &mut Console) -> Result<(), CliError> {
    let MovedHost { fit, text } = moved;
    if console.is_json() {
        return console.json(&json!({
            "runs": runs,
            "median_abs_error_before": fit.error_before,
            "median_abs_error_after": fit.error_after,
            "median_abs_error_left_out": fit.error_held_out,
            "factors": fit.factors.iter().map(factor_json).collect::<Vec<_>>(),
            "host": text,
        }));
    }
    console.table(&factor_table(&fit.factors))?;
    let percent = |error: f64| format!("{:.1}%", error * 100.0);
    let held_out = fit.error_held_out.map(|error| format!(", {} of a run by the others", percent(error)));
    console.say(&format!(
        "median error of {runs} runs: {} before, {} after{}",
        percent(fit.error_before),
        percent(fit.error_after),
        held_out.unwrap_or_default()
    ));
    match out {
        Some(path) => {
            console.say(&format!("wrote {}", path.display()));
            Ok(())
        }
        None => console.text(&format!("\n{text}")),
    }
}

fn factor_table(factors: &[HostFactor]) -> Table {
    let mut table = Table::new(vec![
        Column::left("PART", 0),
        Column::left("FORMAT", 0),
        Column::right("TOOK", 0),
        Column::right("RUNS", 0),
    ]);
    for factor in factors {
        let format = factor.format.map_or("all", format_name);
        let took = format!("{:.2} x predicted", factor.factor);
        table.row(vec![factor.part.to_string(), format.into(), took, factor.runs.to_string()]);
    }
    table
}

fn format_name(format: ComputePrecision) -> &'static str {
    if format == ComputePrecision::Fp32 { "fp32" } else { "bf16" }
}

fn factor_json(factor: &HostFactor) -> Value {
    json!({
        "part": factor.part.name(),
        "format": factor.format.map(format_name),
        "factor": factor.factor,
        "runs": factor.runs,
    })
}

/// One run from the folder that it wrote to.
fn read_run(folder: &str) -> Result<HostCase, CliError> {
    let place = Path::new(folder);
    let settings = place.join(RUN_SETTINGS).display().to_string();
    let text =
        files::read_text(&settings).map_err(|_| FolderError::NoSettings { folder: folder.to_owned() })?;
    let config = TrainConfig::from_toml(Source::new(&settings, &text))?;
    let model = read_architecture(&config.model.config)?.transformer;
    let mut steps = MeasuredSteps::default();
    files::read_lines(&place.join("metrics.jsonl").display().to_string(), |line| steps.read_line(line))?;
    let ranks = steps.ranks().ok_or_else(|| OwnRunsError::NoSteps { run: folder.to_owned() })?;
    Ok(HostCase {
        id: folder.to_owned(),
        model,
        run: host_run(&config, ranks, false),
        measured: steps.usual(),
    })
}
