//! `bedplate queue`: the jobs of a cluster, one a line.

use bedplate_drivers::{JobQuery, JobState, JobSummary, NodeId};
use bedplate_terminal::present::{Column, Table, clock, now_ms};
use bedplate_terminal::{CliError, Console, choice};
use bedplate_topology::compress_hostlist;
use serde_json::json;

use crate::connection::Connection;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate queue
  bedplate queue --state waiting --user ada
  bedplate queue --all --limit 20 --json

The last column says where a job runs, or why it waits and when it should
start; `bedplate job explain` says more.")]
pub(crate) struct Arguments {
    /// Jobs that have ended too
    #[arg(short, long)]
    all: bool,
    /// Only jobs of this user
    #[arg(short, long)]
    user: Option<String>,
    /// Only jobs of this account
    #[arg(short = 'A', long)]
    account: Option<String>,
    /// Only jobs of this name
    #[arg(short, long)]
    name: Option<String>,
    /// Only jobs in this state; may be repeated
    #[arg(short = 't', long, value_parser = choice(&JobState::ALL), value_delimiter = ',')]
    state: Vec<JobState>,
    /// At most this many jobs
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let query = JobQuery {
        user: arguments.user.clone(),
        account: arguments.account.clone(),
        name: arguments.name.clone(),
        with_ended: arguments.all || arguments.state.iter().any(|state| state.is_final()),
        states: arguments.state.clone(),
        limit: arguments.limit,
    };
    let driver = arguments.connection.driver()?;
    let jobs = driver.jobs(&query)?;
    console.say_notes(driver.remarks());
    if console.is_json() {
        return console.json(&json!({ "jobs": jobs }));
    }
    if jobs.is_empty() {
        console.say(match arguments.all {
            true => "no jobs",
            false => "no jobs wait or run (`--all` shows those that have ended)",
        });
        return Ok(());
    }
    console.table(&table(&jobs, now_ms(), console.width()))
}

/// Before the last column in a narrow terminal: number, name, state and the gaps.
const BEFORE_WHY: usize = 40;

/// On a terminal the last column is cut to what has room.
fn table(jobs: &[JobSummary], now_ms: u64, width: Option<usize>) -> Table {
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(BEFORE_WHY).max(20));
    let mut table = Table::new(vec![
        Column::right("JOB", 0),
        Column::left("NAME", 0),
        Column::left("USER", 2),
        Column::left("STATE", 0),
        Column::right("NODES", 1),
        Column::right("GPUS", 1),
        Column::left("TIME", 1),
        Column::left("WHERE OR WHY", 0),
    ]);
    for job in jobs {
        table.row(vec![
            job.label.clone(),
            shortened(&job.name, 18),
            job.user.clone(),
            state_text(job),
            job.nodes_asked.to_string(),
            job.gpus_asked.to_string(),
            time_text(job, now_ms),
            shortened(&where_or_why(job, now_ms), room),
        ]);
    }
    table
}

/// The state of a job in a word or two.
pub(crate) fn state_text(job: &JobSummary) -> String {
    match job.state {
        JobState::Waiting if job.is_held => "held".to_owned(),
        state => state.name().replace('_', " "),
    }
}

/// How long it runs or ran; while it runs, with the time that it has.
fn time_text(job: &JobSummary, now_ms: u64) -> String {
    let Some(started) = job.started_ms else { return String::new() };
    let until = job.ended_ms.unwrap_or(now_ms);
    let used = clock(until.saturating_sub(started));
    match job.ends_ms.filter(|_| job.ended_ms.is_none()) {
        // A limit of years is none.
        Some(ends) if ends.saturating_sub(started) < 3 * 365 * 86_400_000 => {
            format!("{used}/{}", clock(ends.saturating_sub(started)))
        }
        _ => used,
    }
}

/// The nodes of a job that has some; else why it waits or how it ended.
pub(crate) fn where_or_why(job: &JobSummary, now_ms: u64) -> String {
    if !job.nodes.is_empty() {
        return compress_hostlist(job.nodes.iter().map(NodeId::as_str));
    }
    let reason = job.waits_because.as_ref().or(job.reason.as_ref()).map(|reason| reason.text.clone());
    match (job.state, job.expected_start_ms) {
        (JobState::Waiting, Some(start)) => {
            let after = match start.saturating_sub(now_ms) {
                0 => "starts now".to_owned(),
                after => format!("starts within {}", clock(after)),
            };
            reason.map_or(after.clone(), |reason| format!("{reason}; {after}"))
        }
        (JobState::Waiting, None) => reason.unwrap_or_else(|| "waits for its turn".to_owned()),
        (_, _) => match (job.exit_status, reason) {
            (_, Some(reason)) => reason,
            (Some(status), None) if status != 0 => format!("exit code {status}"),
            _ => String::new(),
        },
    }
}

/// Text of at most this many characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => format!("{}…", text.chars().take(most - 1).collect::<String>()),
        false => text.to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use expect_test::expect;
    use serde_json::Value;

    use super::*;

    /// Jobs in all states that look different, at the time of 10,000 s.
    pub(crate) fn canned() -> Vec<JobSummary> {
        let job = |id: u64, changes: Value| -> JobSummary {
            let mut job = json!({
                "id": id, "label": id.to_string(), "name": "pretrain", "user": "ada", "account": "root",
                "partition": "main", "qos": "normal", "submitted_ms": 1_000_000, "state": "waiting",
                "is_held": false, "runs": 0, "restarts": 0, "checkpoint": null, "started_ms": null,
                "ended_ms": null, "exit_status": null, "reason": null, "nodes_asked": 2, "gpus_asked": 16,
                "nodes": [], "ends_ms": null, "expected_start_ms": null,
            });
            for (key, value) in changes.as_object().unwrap() {
                job[key] = value.clone();
            }
            serde_json::from_value(job).unwrap()
        };
        vec![
            job(
                1,
                json!({ "state": "running", "started_ms": 9_000_000, "ends_ms": 16_200_000, "nodes": ["n1", "n2"] }),
            ),
            job(
                2,
                json!({ "name": "a name that is too long to show", "expected_start_ms": 16_200_000, "reason": { "code": "resources", "text": "not enough free nodes" } }),
            ),
            job(3, json!({ "is_held": true, "user": "grace", "reason": { "code": "held", "text": "held" } })),
            job(4, json!({ "label": "4_7", "nodes_asked": 1, "gpus_asked": 0 })),
            job(
                5,
                json!({ "state": "failed", "started_ms": 9_000_000, "ended_ms": 9_061_000, "exit_status": 3 }),
            ),
            job(
                6,
                json!({ "state": "node_lost", "started_ms": 9_000_000, "ended_ms": 9_061_000, "reason": { "code": "node_lost", "text": "n1 was lost" } }),
            ),
        ]
    }

    #[test]
    fn a_queue_says_where_jobs_run_and_why_they_wait() {
        let whole = table(&canned(), 10_000_000, None);
        expect![[r#"
            JOB  NAME                USER   STATE      NODES  GPUS  TIME           WHERE OR WHY
              1  pretrain            ada    running        2    16  16:40/2:00:00  n[1-2]
              2  a name that is to…  ada    waiting        2    16  -              not enough free nodes; starts within 1:43:20
              3  pretrain            grace  held           2    16  -              held
            4_7  pretrain            ada    waiting        1     0  -              waits for its turn
              5  pretrain            ada    failed         2    16  1:01           exit code 3
              6  pretrain            ada    node lost      2    16  1:01           n1 was lost
        "#]]
        .assert_eq(&whole.fit(None).text);
        let narrow = table(&canned(), 10_000_000, Some(80)).fit(Some(80));
        assert!(narrow.text.lines().all(|line| line.chars().count() <= 80), "{}", narrow.text);
    }
}
