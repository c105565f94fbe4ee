//! `plan calibrate --runs`: the rates of this host, moved to what runs of `bedplate train` reached on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bedplate_breakdown::{Breakdown, Measured, Part, Span};
use bedplate_calibrate::{HostCase, HostFactor, HostFit, fit_host};
use bedplate_catalog::{Accelerator, Catalog, CollectiveTimes, FormatRates};
use bedplate_diag::{Class, Diagnostic, Page, Source};
use bedplate_layout::ComputePrecision;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, files};
use bedplate_train::{TrainConfig, read_architecture};
use bedplate_units::Seconds;
use serde_json::{Value, json};

use crate::commands::train::host_run;
use crate::host::{NAME, overlay_path, recent_runs};

/// The configuration of a run as it was used, which `bedplate train` leaves in its folder.
pub(crate) const SETTINGS: &str = "settings.toml";

#[derive(Debug, thiserror::Error)]
enum OwnRunsError {
    #[error("no run of `bedplate train` is remembered on this host")]
    NoRuns,
    #[error("`{folder}` has no {SETTINGS}")]
    NoSettings { folder: String },
    #[error("`{folder}` has no steps to learn from")]
    NoSteps { folder: String },
    #[error("`{path}` does not describe this host")]
    NoHost { path: String },
    #[error("no run could be priced on this host; the first was `{folder}`")]
    NothingPriced { folder: String },
}

pub(super) static NO_RUNS: Page = Page {
    code: "plan/no-runs",
    class: Class::User,
    meaning: "Runs of at least 20 steps are remembered once `bedplate bench machine` has measured the host, as long as their folders exist; runs below the folder of temporary files are not.",
    remedy: "name folders with `--runs`, or train first",
};

pub(super) static NO_SETTINGS: Page = Page {
    code: "plan/no-settings",
    class: Class::User,
    meaning: "A run is predicted again by the configuration that `bedplate train` leaves in its output folder when it ends.",
    remedy: "name the output folder of a run that ended; runs of earlier releases do not have it",
};

pub(super) static NO_STEPS: Page = Page {
    code: "plan/no-steps",
    class: Class::User,
    meaning: "A folder of a run has no `metrics.jsonl` with at least one step, so there is nothing to calibrate by.",
    remedy: "name the output folders of runs of `bedplate train` that ended",
};

pub(super) static NO_HOST: Page = Page {
    code: "plan/no-host",
    class: Class::User,
    meaning: "Runs move the rates of a host that was measured, and the file has none.",
    remedy: "measure it with `bedplate bench machine`, then calibrate",
};

pub(super) static NOTHING_PRICED: Page = Page {
    code: "plan/nothing-priced",
    class: Class::User,
    meaning: "None of the runs can be predicted for this host: collectives of their numbers of ranks were not measured, or their models cannot be priced.",
    remedy: "`bedplate bench comm --save` measures collectives between ranks of this host",
};

impl Diagnostic for OwnRunsError {
    fn page(&self) -> &'static Page {
        match self {
            OwnRunsError::NoRuns => &NO_RUNS,
            OwnRunsError::NoSettings { .. } => &NO_SETTINGS,
            OwnRunsError::NoSteps { .. } => &NO_STEPS,
            OwnRunsError::NoHost { .. } => &NO_HOST,
            OwnRunsError::NothingPriced { .. } => &NOTHING_PRICED,
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
    let catalog = Catalog::with_overlays(&[Source::new(&shown, &text)])?;
    let host = catalog.accelerator(NAME).ok().filter(|host| host.measured.is_some());
    let host = host.ok_or_else(|| OwnRunsError::NoHost { path: shown.clone() })?;
    let cases = folders.iter().map(|folder| read_run(folder)).collect::<Result<Vec<_>, CliError>>()?;
    let fit = fit_host(&cases, host);
    if fit.factors.is_empty() {
        return Err(OwnRunsError::NothingPriced { folder: folders[0].clone() }.into());
    }
    let moved = rewritten(&text, host, &fit.host, cases.len());
    let out = if place.saves { Some(path) } else { place.out.map(PathBuf::from) };
    if let Some(out) = &out {
        files::write_own(out, &moved)?;
    }
    show(&fit, cases.len(), &moved, out.as_deref(), console)
}

/// The remembered runs on this host.
pub(super) fn recent() -> Result<Vec<String>, CliError> {
    let has_settings = |folder: &PathBuf| folder.join(SETTINGS).is_file();
    let folders = recent_runs().into_iter().filter(has_settings).map(|folder| folder.display().to_string());
    let folders: Vec<String> = folders.collect();
    if folders.is_empty() { Err(OwnRunsError::NoRuns.into()) } else { Ok(folders) }
}

fn show(
    fit: &HostFit,
    runs: usize,
    moved: &str,
    out: Option<&Path>,
    console: &mut Console,
) -> Result<(), CliError> {
    if console.is_json() {
        return console.json(&json!({
            "runs": runs,
            "median_abs_error_before": fit.error_before,
            "median_abs_error_after": fit.error_after,
            "median_abs_error_left_out": fit.error_left_out,
            "factors": fit.factors.iter().map(factor_json).collect::<Vec<_>>(),
            "host": moved,
        }));
    }
    console.table(&factor_table(&fit.factors))?;
    let percent = |error: f64| format!("{:.1}%", error * 100.0);
    let left_out = fit.error_left_out.map(|error| format!(", {} of a run by the others", percent(error)));
    console.say(&format!(
        "median error of {runs} runs: {} before, {} after{}",
        percent(fit.error_before),
        percent(fit.error_after),
        left_out.unwrap_or_default()
    ));
    match out {
        Some(path) => {
            console.say(&format!("wrote {}", path.display()));
            Ok(())
        }
        None => console.text(&format!("\n{moved}")),
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
    let settings = place.join(SETTINGS).display().to_string();
    let text =
        files::read_text(&settings).map_err(|_| OwnRunsError::NoSettings { folder: folder.to_owned() })?;
    let config = TrainConfig::from_toml(Source::new(&settings, &text))?;
    let model = read_architecture(&config.model.config)?.transformer;
    let mut steps = Vec::new();
    files::read_lines(&place.join("metrics.jsonl").display().to_string(), |line| {
        steps.extend(Step::read(line));
    })?;
    let ranks = steps.last().map(|step| step.ranks);
    let ranks = ranks.ok_or_else(|| OwnRunsError::NoSteps { folder: folder.to_owned() })?;
    steps.retain(|step| step.ranks == ranks);
    Ok(HostCase {
        id: folder.to_owned(),
        model,
        run: host_run(&config, ranks, false),
        measured: usual(&steps),
    })
}

/// What a line about a step says.
struct Step {
    ranks: u32,
    parts: BTreeMap<Part, f64>,
}

impl Step {
    fn read(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let measured = line.get("measured").filter(|_| line["kind"] == "step")?.as_object()?;
        let part = |(name, value): (&String, &Value)| {
            Some((Part::find(name)?, value.as_f64().filter(|seconds| *seconds >= 0.0)?))
        };
        let ranks = line["ranks"]["count"].as_u64().unwrap_or(1);
        Some(Self {
            ranks: u32::try_from(ranks).ok()?.max(1),
            parts: measured.iter().filter_map(part).collect(),
        })
    }
}

/// The first steps touch memory for the first time; they are left out where there are enough others.
const WARMING: usize = 2;

/// The median of each part over the steps.
fn usual(steps: &[Step]) -> Breakdown<Measured> {
    let steps = if steps.len() > 2 * WARMING { &steps[WARMING..] } else { steps };
    let mut by_part: BTreeMap<Part, Vec<f64>> = BTreeMap::new();
    for (part, seconds) in steps.iter().flat_map(|step| &step.parts) {
        by_part.entry(*part).or_default().push(*seconds);
    }
    by_part.into_iter().fold(Breakdown::default(), |breakdown, (part, mut seconds)| {
        seconds.sort_by(f64::total_cmp);
        breakdown.with(part, Span::exposed(Seconds::new(seconds[seconds.len() / 2])))
    })
}

/// The host's file with the moved rates in place of the old ones; everything else stays as it is.
fn rewritten(text: &str, before: &Accelerator, host: &Accelerator, runs: usize) -> String {
    let mut section = String::new();
    let mut collectives = host.collectives.iter().zip(&before.collectives);
    let mut collective = None;
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with('[') {
            section = line.trim().to_owned();
            if section == "[[accelerator.collective]]" {
                collective = collectives.next();
            }
        }
        let of =
            |host: &Accelerator, times: Option<&CollectiveTimes>| moved_line(&section, line, host, times);
        let moved = of(host, collective.map(|(moved, _)| moved));
        // A rate that stays keeps its line as it was written.
        let is_same = moved == of(before, collective.map(|(_, before)| before));
        lines.push(moved.filter(|_| !is_same).unwrap_or_else(|| line.to_owned()));
    }
    let note =
        format!("# Rates moved to what {runs} of `bedplate train` reached, by `bedplate plan calibrate`.");
    if !lines.iter().any(|line| line.starts_with("# Rates moved to what")) {
        lines.insert(0, note);
    } else if let Some(old) = lines.iter_mut().find(|line| line.starts_with("# Rates moved to what")) {
        *old = note;
    }
    lines.join("\n") + "\n"
}

fn moved_line(
    section: &str,
    line: &str,
    host: &Accelerator,
    collective: Option<&CollectiveTimes>,
) -> Option<String> {
    let key = line.split_once('=')?.0.trim();
    let rates = host.measured.as_ref()?;
    let value = match section {
        "[accelerator.measured]" => match key {
            "optimizer" => quoted_gigabytes(rates.optimizer.get()),
            _ => return None,
        },
        "[accelerator.measured.fp32]" => format_line(key, rates.fp32.as_ref()?)?,
        "[accelerator.measured.bf16]" => format_line(key, rates.bf16.as_ref()?)?,
        "[[accelerator.collective]]" if key == "us" => {
            let times = collective?.curve.points().map(|(_, time)| format!("{:.3}", time.get() * 1e6));
            format!("[{}]", times.collect::<Vec<_>>().join(", "))
        }
        _ => return None,
    };
    Some(format!("{key} = {value}"))
}

fn format_line(key: &str, rates: &FormatRates) -> Option<String> {
    let flops = match key {
        "products" => rates.products,
        "input_gradients" => rates.input_gradients,
        "weight_gradients" => rates.weight_gradients,
        "attention" => rates.attention,
        "attention_backward" => rates.attention_backward,
        "stream" => return Some(quoted_gigabytes(rates.stream.get())),
        "stream_in_cache" => return Some(quoted_gigabytes(rates.stream_in_cache.get())),
        _ => return None,
    };
    Some(format!("\"{:.2} GFLOP/s\"", flops.get() / 1e9))
}

fn quoted_gigabytes(bytes_per_second: f64) -> String {
    format!("\"{:.2} GB/s\"", bytes_per_second / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = include_str!("../../../tests/inputs/host-ranks.toml");

    fn host(text: &str) -> Accelerator {
        let catalog = Catalog::with_overlays(&[Source::new("host.toml", text)]).unwrap();
        catalog.accelerator(NAME).unwrap().clone()
    }

    #[test]
    fn a_rewritten_file_reads_as_the_moved_host_and_a_second_time_too() {
        let mut moved = host(HOST);
        let rates = moved.measured.as_mut().unwrap();
        rates.optimizer = rates.optimizer / 2.0;
        rates.fp32.as_mut().unwrap().products = rates.fp32.unwrap().products / 1.25;
        let text = rewritten(HOST, &host(HOST), &moved, 3);
        let found = host(&text).measured.unwrap();
        assert_eq!(found.optimizer, moved.measured.unwrap().optimizer);
        assert_eq!(found.fp32, moved.measured.unwrap().fp32);
        assert_eq!(host(&text).collectives.len(), host(HOST).collectives.len());
        assert_eq!(rewritten(&text, &host(&text), &host(&text), 3), text);
    }

    #[test]
    fn the_usual_step_is_the_median_without_the_first_ones() {
        let step = |seconds: f64| {
            Step::read(&format!(
                "{{\"kind\":\"step\",\"measured\":{{\"compute\":{seconds},\"compute_hidden\":9.0}}}}"
            ))
        };
        let steps: Vec<Step> = [50.0, 40.0, 1.0, 2.0, 3.0].into_iter().filter_map(step).collect();
        assert_eq!(usual(&steps).total().get(), 2.0);
        assert!(Step::read("{\"kind\":\"evaluation\"}").is_none());
        assert!(Step::read("half a li").is_none());
    }
}
