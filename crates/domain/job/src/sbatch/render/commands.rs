//! A script that starts a command once per task, with the environment that our own clusters give a rank.

use std::fmt::Write as _;

use bedplate_document::quote;

use super::settings::Settings;
use super::{Rendered, Setting, line, remark};
use crate::{Job, JobError, Streams, shell};

/// What `torch.distributed` and its relatives read; the port keeps jobs that share a node apart.
const MEETING_POINT: &str = r#"export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
"#;
const PLACE: &str = r#"export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID WORLD_SIZE=$SLURM_NTASKS; exec "$@""#;

pub(super) fn script(job: &Job, arguments: &[String], mut settings: Settings) -> Result<Rendered, JobError> {
    let of_tasks = move_streams_of_tasks(job, &mut settings);
    let mut script = String::from("#!/bin/bash\n");
    settings.options.iter().for_each(|setting| script += &line(setting));
    script.push('\n');
    settings.remarks.extend(hook_remarks(job));
    script += &preamble(job, &settings);
    script += &body(job, arguments, &of_tasks);
    Ok(Rendered { script, options: settings.options, files_of_tasks: of_tasks, remarks: settings.remarks })
}

/// A file name that differs between tasks belongs to `srun`, not to the script.
fn move_streams_of_tasks(job: &Job, settings: &mut Settings) -> Vec<Setting> {
    let Streams { stdin, stdout, stderr, .. } = &job.streams;
    let differs = |pattern: &Option<String>| {
        pattern.as_ref().is_some_and(|pattern| {
            let letters =
                pattern.split('%').skip(1).map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
            letters.into_iter().any(|rest| rest.starts_with(['t', 'n', 'N', 's', 'J']))
        })
    };
    let mut moved = Vec::new();
    for (key, option, pattern) in
        [("stdin", "input", stdin), ("stdout", "output", stdout), ("stderr", "error", stderr)]
    {
        if !differs(pattern) {
            continue;
        }
        moved.extend(
            settings
                .options
                .iter()
                .position(|(name, _)| name == option)
                .map(|at| settings.options.remove(at)),
        );
        settings.remarks.push(remark(
            key,
            "each task has a file of its own, and the command in the script that starts the tasks names it",
        ));
    }
    moved
}

pub(super) fn hook_remarks(job: &Job) -> impl Iterator<Item = crate::Remark> {
    let hooks = [("prolog", &job.hooks.prolog), ("epilog", &job.hooks.epilog)];
    let given = hooks.into_iter().filter(|(_, command)| !command.is_empty());
    given.map(|(key, _)| remark(key, "`srun` in the script starts it once on each node"))
}

/// Variables, and what runs on every node before and after the tasks.
pub(super) fn preamble(job: &Job, settings: &Settings) -> String {
    let mut text = String::new();
    if settings.options.iter().any(|(name, _)| name == "export") {
        // Steps would otherwise be given no more than the script was.
        text += "export SLURM_EXPORT_ENV=ALL\n";
    }
    for (name, value) in &settings.exports {
        let _ = writeln!(text, "export {name}={}", quote::shell_word(value));
    }
    let on_every_node = "srun --ntasks-per-node=1 --ntasks=\"$SLURM_JOB_NUM_NODES\"";
    if !job.hooks.epilog.is_empty() {
        let _ = writeln!(
            text,
            "trap {} EXIT",
            quote::shell_word(&format!("{on_every_node} {}", shell::hook_words(&job.hooks.epilog)))
        );
    }
    if !job.hooks.prolog.is_empty() {
        let _ = writeln!(text, "{on_every_node} {} || exit", shell::hook_words(&job.hooks.prolog));
    }
    text
}

fn body(job: &Job, arguments: &[String], of_tasks: &[Setting]) -> String {
    let files: String = of_tasks.iter().map(file_of_tasks).collect();
    if job.health.spare_nodes > 0 {
        let options = launch_options(job);
        // In the place of the shell, signals of Slurm reach it; a trap needs the shell.
        let exec = if job.hooks.epilog.is_empty() { "exec " } else { "" };
        return format!("{exec}bedplate launch{options}{files} -- \\\n    {}\n", shell::line(arguments));
    }
    let mut srun = String::from("srun --kill-on-bad-exit=1");
    if let Some(role) = job.gang.roles.first().filter(|role| role.cpus_per_task > 1) {
        let _ = write!(srun, " --cpus-per-task={}", role.cpus_per_task);
    }
    format!(
        "{MEETING_POINT}{srun}{files} bash -c {} - \\\n    {}\n",
        quote::shell_word(PLACE),
        shell::line(arguments)
    )
}

fn file_of_tasks((name, pattern): &Setting) -> String {
    format!(" --{name}={}", quote::shell_word(pattern.as_deref().unwrap_or("")))
}

fn launch_options(job: &Job) -> String {
    let health = &job.health;
    let mut options = format!(" --spares {}", health.spare_nodes);
    if let Some(role) = job.gang.roles.first() {
        let _ = write!(options, " --ranks-per-node {}", role.tasks_per_node);
    }
    if job.policy.retries > 0 {
        let _ = write!(options, " --retries {}", job.policy.retries);
    }
    if let Some(duration) = health.stuck_after {
        let _ = write!(options, " --stuck-after {}", crate::notation::written_duration(duration));
    }
    if let Some(probe) = &health.probe {
        let _ = write!(options, " --check {}", quote::shell_word(&shell::hook(&probe.command)));
    }
    options
}
