//! Orders to Slurm: a step on each node, a node drained, a job put back in the queue.

use std::process::{Command, Stdio};
use std::time::Duration;

use bedplate_supervise::CommandFailure;

/// A controller that does not answer is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a step of one node must not inherit: it would ask for the tasks and GPUs of the whole job.
const OF_THE_JOB: [&str; 16] = [
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_PER_GPU",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
];

/// A step with one task on one node, which has all that the job has there. It ends alone: neither does the loss of its
/// node end others, nor the loss of another end it.
pub(crate) fn step(node: &str, gpus: u32) -> Command {
    let mut command = Command::new("srun");
    command.args(["--nodes=1", "--ntasks=1", "--overlap", "--export=ALL", "--cpu-bind=none", "--mem=0"]);
    command.args([
        "--kill-on-bad-exit=0",
        "--no-kill",
        "--unbuffered",
        "--input=none",
        "--job-name=bedplate-helper",
    ]);
    command.arg(format!("--nodelist={node}"));
    if gpus > 0 {
        command.arg(format!("--gpus-per-node={gpus}"));
    }
    for name in OF_THE_JOB {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Takes a node out of service, or says why not.
pub(crate) fn drain(node: &str, reason: &str) -> Result<(), String> {
    let reason: String = reason.chars().filter(|c| !c.is_control() && *c != '"').take(180).collect();
    let words = [
        "update".to_owned(),
        format!("nodename={node}"),
        "state=drain".to_owned(),
        format!("reason={reason}"),
    ];
    run(Command::new("scontrol").args(words))
}

/// A job that goes back to the queue.
pub(crate) struct Return<'a> {
    pub(crate) job: u64,
    /// As many nodes as it had.
    pub(crate) nodes: usize,
    /// The nodes of it that still answer, where some do not.
    pub(crate) answering: Option<Vec<&'a str>>,
    /// Nodes that it must not get again.
    pub(crate) exclude: Vec<&'a str>,
}

/// How fast a job comes back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequeuePace {
    /// As soon as there are nodes.
    AtOnce,
    /// After the pause that Slurm makes before a job that was put back; why it could not be cut short.
    AfterPause(String),
}

/// Puts a job back in the queue without its lost nodes.
///
/// Three habits of Slurm are in the way. A job that is put back waits for the nodes that do not answer, so they are taken out of
/// it first, which also lowers the number of nodes that it asks for. It starts no sooner than two minutes later. And all of
/// this may be changed only while the job waits, when none of its own processes is left. So a small job of a few seconds, the
/// *wake-up job*, sets number, exclusion and start once the job waits. Where no wake-up job can be sent, lost nodes stay in
/// the job until Slurm gives them up.
pub(crate) fn requeue(back: &Return<'_>) -> Result<RequeuePace, String> {
    let pace = match send_wake_up_job(back) {
        Ok(()) => RequeuePace::AtOnce,
        Err(why) => RequeuePace::AfterPause(why),
    };
    if let (RequeuePace::AtOnce, Some(answering)) = (&pace, &back.answering) {
        let list = format!("nodelist={}", answering.join(","));
        run(Command::new("scontrol").args(["update", &format!("jobid={}", back.job), &list]))?;
    }
    // Slurm ends all processes of the job now. This one does not hear the request, and may get the second order through.
    let change = change(back, "");
    let line = format!("trap '' TERM INT HUP; scontrol requeue {} || exit 1; {change} || true", back.job);
    run(Command::new("/bin/sh").args(["-c", &line]))?;
    Ok(pace)
}

/// The order that makes a waiting job whole again.
fn change(back: &Return<'_>, more: &str) -> String {
    let exclude = match back.exclude.is_empty() {
        true => String::new(),
        false => format!(" excnodelist={}", back.exclude.join(",")),
    };
    format!("scontrol update jobid={} numnodes={}{exclude}{more}", back.job, back.nodes)
}

fn send_wake_up_job(back: &Return<'_>) -> Result<(), String> {
    let job = back.job;
    let change = change(back, " starttime=now+5seconds");
    let script = format!(
        "#!/bin/sh\n# Lets job {job} start again at once, as soon as it waits.\nfor look in $(seq 600); do\n\
         case \"$(squeue -h -j {job} -o %T)\" in PENDING) {change} && exit 0;; '') exit 0;; esac\nsleep 0.5\ndone\n"
    );
    let mut command = Command::new("sbatch");
    command.args(["--nodes=1", "--ntasks=1", "--time=10", "--output=/dev/null", "--no-requeue", "--mem=64M"]);
    command.arg(format!("--job-name=bedplate-requeue-{job}"));
    if !back.exclude.is_empty() {
        command.arg(format!("--exclude={}", back.exclude.join(",")));
    }
    for (option, variable) in
        [("partition", "SLURM_JOB_PARTITION"), ("account", "SLURM_JOB_ACCOUNT"), ("qos", "SLURM_JOB_QOS")]
    {
        if let Ok(value) = std::env::var(variable)
            && !value.is_empty()
        {
            command.arg(format!("--{option}={value}"));
        }
    }
    let own = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        name.starts_with("SBATCH_") || (name.starts_with("SLURM_") && name != "SLURM_CONF")
    });
    own.for_each(|(name, _)| {
        command.env_remove(name);
    });
    run_with(&mut command, &script)
}

fn run(command: &mut Command) -> Result<(), String> {
    run_with(command, "")
}

/// What the command says when it fails.
fn run_with(command: &mut Command, input: &str) -> Result<(), String> {
    let ended = match bedplate_supervise::run(command, input, PATIENCE) {
        Ok(ended) => ended,
        Err(CommandFailure::Failed(error)) => return Err(error.to_string()),
        Err(CommandFailure::TooSlow) => return Err(format!("no answer within {} s", PATIENCE.as_secs())),
        Err(CommandFailure::TooLong) => return Err("it printed too much".to_owned()),
    };
    if ended.status.success() {
        return Ok(());
    }
    let line = ended.complaint.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed");
    Err(line.chars().filter(|c| !c.is_control()).take(300).collect())
}
