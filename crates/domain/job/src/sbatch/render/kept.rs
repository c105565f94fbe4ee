//! A script that a user wrote stays as it is, except for the options that were changed since.

use std::collections::BTreeSet;

use super::settings::Settings;
use super::{Rendered, Setting, commands, line, refusal, remark};
use crate::sbatch::{Draft, scan};
use crate::{Job, JobError, Workload, shell};

pub(super) fn script(job: &Job, text: &str, wanted: Settings) -> Result<Rendered, JobError> {
    let mut remarks = Vec::new();
    let text = match text.starts_with("#!") {
        true => text.to_owned(),
        false => {
            remarks.push(remark("script", "it names no program to run it; `#!/bin/sh` is put before it"));
            format!("#!/bin/sh\n{text}")
        }
    };
    let own = own_job(&text, &job.name)?;
    let said = Settings::of(&own).unwrap_or_default();
    let changed = changed_groups(&said, &wanted);
    let directives = directives(&text)?;
    let is_named = directives.iter().any(|directive| directive.setting.0 == "job-name");
    let is_new =
        |setting: &&Setting| changed.contains(group(&setting.0)) || (setting.0 == "job-name" && !is_named);
    let mut added: Vec<Setting> = wanted.options.iter().filter(is_new).cloned().collect();
    if changed.contains("nodes") {
        added.extend(other_gres(&directives));
    }
    let kept: Vec<&Directive> =
        directives.iter().filter(|directive| !changed.contains(group(&directive.setting.0))).collect();
    let preamble = preamble(job, &own, &wanted, &text)?;
    remarks.extend(wanted.remarks.iter().filter(|remark| !said.remarks.contains(remark)).cloned());
    remarks.extend(commands::hook_remarks(job));
    remarks.extend(remarks_on_spares(job));
    let options =
        kept.iter().map(|directive| directive.setting.clone()).chain(added.iter().cloned()).collect();
    let script = rewritten(&text, &directives, &kept, &added, &preamble);
    Ok(Rendered { script, options, files_of_tasks: Vec::new(), remarks })
}

/// The job that the script describes by itself.
fn own_job(text: &str, name: &str) -> Result<Job, JobError> {
    let draft = Draft::from_script(text, name)?;
    Ok(draft.finish()?.job)
}

/// An option of a `#SBATCH` line that sbatch reads.
struct Directive {
    /// Counted from 1.
    line: usize,
    setting: Setting,
}

fn directives(text: &str) -> Result<Vec<Directive>, JobError> {
    let mut found = Vec::new();
    for line in scan::lines(text) {
        let scan::Kind::Directive(words) = line.kind else { continue };
        let settings = crate::sbatch::settings(scan::words(words)?)?;
        found.extend(settings.into_iter().map(|setting| Directive { line: line.number, setting }));
    }
    Ok(found)
}

/// What `--gres` asks for besides GPUs, which the job knows nothing of.
fn other_gres(directives: &[Directive]) -> Option<Setting> {
    let value =
        directives.iter().rev().find(|directive| directive.setting.0 == "gres")?.setting.1.as_ref()?;
    let is_gpu = |item: &&str| {
        let item = item.trim_start_matches("gres/").trim_start_matches("gres:");
        item.split([':', '=']).next() == Some("gpu")
    };
    let others: Vec<&str> = value.split(',').map(str::trim).filter(|item| !is_gpu(item)).collect();
    (!others.is_empty()).then(|| ("gres".to_owned(), Some(others.join(","))))
}

/// Options that together say one thing.
fn group(option: &str) -> &str {
    match option {
        "ntasks" | "ntasks-per-node" | "ntasks-per-gpu" | "gpus" | "gpus-per-node" | "gpus-per-task"
        | "gres" | "cpus-per-task" | "cpus-per-gpu" | "mem" | "mem-per-cpu" | "mem-per-gpu" | "exclusive"
        | "no-kill" => "nodes",
        "no-requeue" => "requeue",
        "segment" => "switches",
        other => other,
    }
}

fn changed_groups<'a>(said: &'a Settings, wanted: &'a Settings) -> BTreeSet<&'a str> {
    let of = |settings: &'a Settings, name: &str| -> Vec<&'a Setting> {
        settings.options.iter().filter(|setting| group(&setting.0) == name).collect()
    };
    let groups = said.options.iter().chain(&wanted.options).map(|setting| group(&setting.0));
    groups.filter(|name| of(said, name) != of(wanted, name)).collect()
}

/// Lines for the shell, in front of what the user wrote.
fn preamble(job: &Job, own: &Job, wanted: &Settings, text: &str) -> Result<String, JobError> {
    let same_environment = own.environment == job.environment;
    let mut needed = wanted.clone();
    if same_environment {
        needed.exports.clear();
        needed.options.clear();
    }
    let lines = commands::preamble(job, &needed);
    if !lines.is_empty() && !shell::is_shell(text.lines().next().unwrap_or("")) {
        let key = if same_environment { "prolog" } else { "environment" };
        return Err(refusal(key, "it would have to stand in the script, which is not one of a shell"));
    }
    Ok(lines)
}

fn remarks_on_spares(job: &Job) -> Option<crate::Remark> {
    let is_script = matches!(job.workload, Workload::Script { .. });
    (is_script && job.health.spare_nodes > 0).then(|| {
        remark("script", "spare nodes are used only by what the script starts with `bedplate launch`")
    })
}

/// The script with its own lines where nothing has changed, and the new ones behind the last `#SBATCH` line.
fn rewritten(
    text: &str,
    all: &[Directive],
    kept: &[&Directive],
    added: &[Setting],
    preamble: &str,
) -> String {
    let last = all.iter().map(|directive| directive.line).max().unwrap_or(1);
    let mut script = String::new();
    for (at, content) in text.split_inclusive('\n').enumerate() {
        let number = at + 1;
        let here = all.iter().filter(|directive| directive.line == number).count();
        let left: Vec<&&Directive> = kept.iter().filter(|directive| directive.line == number).collect();
        match left.len() == here {
            true => script += content,
            false => left.iter().for_each(|directive| script += &line(&directive.setting)),
        }
        if number == last {
            if !script.ends_with('\n') {
                script.push('\n');
            }
            added.iter().for_each(|setting| script += &line(setting));
            script += preamble;
        }
    }
    script
}
