//! `bedplate bench heal`: how long a gang is down after the loss of a node, and the control plane after a crash.

mod slurm;

use std::thread;
use std::time::{Duration, Instant};

use bedplate_control::wire::Chaos;
use bedplate_drivers::{Driver, JobId, JobState, JobSummary, Local, NodeId, new_submission_key};
use bedplate_job::{Array, Gang, Inherited, Job, Role, Workload};
use bedplate_local::{TemporaryCluster, Wanted};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, Context, ProgramError};
use serde_json::json;

use crate::product::launcher;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench heal
  bedplate bench heal --repeats 5 --json
  bedplate bench heal --on slurm

Starts a temporary cluster of four nodes with a gang of two on it. A
node of the gang is lost in two ways, several times each: its agent is killed,
so that the connection closes; it is cut off, so that it goes silent.
The result is the time until the gang runs again on a spare node, with the
default settings. Then the daemon is killed with many jobs in its journal and
started again: the time until it answers and all nodes are back.

With --on slurm a real Slurm of four nodes is started from the packages of this
system, with a gang of two nodes that `bedplate launch` runs. A node of it
is killed, then stopped, with a spare node in the job; then one is killed without
a spare, and the job goes through the queue. The result is the time until
all ranks run again from their checkpoint.")]
pub(super) struct Arguments {
    /// How often a node is lost in each way
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repeats: u32,
    /// Measure `bedplate launch` on this scheduler instead of a cluster of ours
    #[arg(long, value_name = "SCHEDULER")]
    on: Option<Scheduler>,
    /// With --on: the job's user; needs root if it is not you
    #[arg(long, value_name = "NAME", requires = "on")]
    user: Option<String>,
    /// Jobs in the journal when the daemon is killed
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    jobs: u32,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Scheduler {
    /// A real Slurm, from the packages of this system
    Slurm,
}

/// The time taken, with the project's own targets as limits.
struct Figure {
    name: &'static str,
    seconds: Vec<f64>,
    limit: f64,
}

impl Figure {
    fn worst(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);
/// Longer than the timeout after which a silent node is lost.
const CUT_MS: u64 = 8_000;

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let repeats = arguments.repeats.max(1);
    if let Some(Scheduler::Slurm) = arguments.on {
        let figures = slurm::measure(repeats, arguments.user.as_deref(), console)?;
        return show(&figures, &[("repeats", json!(repeats))], console);
    }
    let wanted = Wanted { nodes: Some(4), like: Some("p5.48xlarge".into()), ..Wanted::default() };
    let cluster = TemporaryCluster::start(&wanted, &context.load_catalog()?, launcher(context, console)?)?;
    let gang = submit(&cluster.driver, sleeper(2, 8))?;
    wait_until(&cluster.driver, &gang, 1)?;
    let mut closed = Figure { name: "closed_s", seconds: Vec::new(), limit: 3.0 };
    let mut silent = Figure { name: "silent_s", seconds: Vec::new(), limit: 6.0 };
    for round in 0..repeats {
        console.say(&format!("round {} of {}", round + 1, repeats));
        closed.seconds.push(lose(&cluster, &gang, &Chaos::Die)?);
        silent.seconds.push(lose(&cluster, &gang, &Chaos::Cut { for_ms: CUT_MS })?);
    }
    console.say("now the daemon");
    let restart = restart(&cluster, arguments.jobs)?;
    let figures = [closed, silent, restart];
    cluster.stop()?;
    show(&figures, &[("jobs", json!(arguments.jobs)), ("repeats", json!(repeats))], console)
}

fn show(
    figures: &[Figure],
    others: &[(&str, serde_json::Value)],
    console: &mut Console,
) -> Result<(), CliError> {
    if !console.is_json() {
        return console.table(&table(figures));
    }
    let pair = |figure: &Figure| (figure.name.to_owned(), json!(figure.worst()));
    let others = others.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    console.json(&serde_json::Value::Object(figures.iter().map(pair).chain(others).collect()))
}

/// Loses the gang's first node, measures until the gang runs again, and puts the node back.
fn lose(cluster: &TemporaryCluster, gang: &JobId, how: &Chaos) -> Result<f64, CliError> {
    let driver = &cluster.driver;
    let before = driver.job(gang)?.summary;
    let lost = before.nodes.first().cloned().unwrap_or_default();
    let began = Instant::now();
    driver.chaos(&lost, how)?;
    wait_until(driver, gang, before.life.runs + 1)?;
    let away = began.elapsed().as_secs_f64();
    if *how == Chaos::Die {
        cluster.start_node(&lost)?;
    }
    wait_for_node(driver, &lost)?;
    // Otherwise a node that was lost several times would be kept out.
    driver.resume(&lost)?;
    Ok(away)
}

/// Kills the daemon with many jobs in its journal and starts it again.
fn restart(cluster: &TemporaryCluster, jobs: u32) -> Result<Figure, CliError> {
    let mut waiting = sleeper(4, 8);
    waiting.policy.array = Some(Array::range(1, jobs.max(1)));
    submit(&cluster.driver, waiting)?;
    let began = Instant::now();
    let driver = cluster.restart_daemon()?;
    let nodes: Vec<NodeId> = driver.nodes()?.into_iter().map(|node| node.name).collect();
    for node in nodes {
        wait_for_node(&driver, &node)?;
    }
    Ok(Figure { name: "restart_s", seconds: vec![began.elapsed().as_secs_f64()], limit: 2.0 })
}

fn sleeper(nodes: u32, gpus_per_node: u32) -> Job {
    let role = Role { nodes, gpus_per_node, ..Role::named(Role::ONLY) };
    let mut job = Job::new("sleeper", Workload::command(["/bin/sleep", "3600"]), Gang::of(role));
    job.environment.inherited = Inherited::Nothing;
    job.working_directory = Some("/".into());
    job
}

fn submit(driver: &Local, job: Job) -> Result<JobId, CliError> {
    Ok(driver.submit(&job, &new_submission_key())?.id)
}

/// Until the job runs for the `number`th time or more.
fn wait_until(driver: &Local, label: &JobId, number: u32) -> Result<(), CliError> {
    let runs = |job: &JobSummary| job.life.state == JobState::Running && job.life.runs >= number;
    wait(&format!("job {label} does not run"), || Ok(runs(&driver.job(label)?.summary)))
}

fn wait_for_node(driver: &Local, name: &NodeId) -> Result<(), CliError> {
    wait(&format!("node {name} does not come back"), || {
        let node = driver.nodes()?.into_iter().find(|node| node.name == *name);
        Ok(node.is_some_and(|node| node.is_linked))
    })
}

fn wait(what: &str, is_so: impl Fn() -> Result<bool, CliError>) -> Result<(), CliError> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > PATIENCE {
            return Err(ProgramError::Bug { what: what.to_owned() }.into());
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new(vec![
        Column::left("FIGURE", 0),
        Column::right("WORST", 0),
        Column::right("OF", 0),
        Column::right("AIM", 0),
        Column::right("RATIO", 0),
    ]);
    for figure in figures {
        table.row(vec![
            figure.name.to_owned(),
            format!("{:.2} s", figure.worst()),
            figure.seconds.len().to_string(),
            format!("{:.0} s", figure.limit),
            format!("{:.2}", figure.worst() / figure.limit),
        ]);
    }
    table
}
