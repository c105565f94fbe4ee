//! `bedplate queue`: the jobs of a cluster, one a line.

use bedplate_drivers::{JobQuery, JobState, JobSummary};
use bedplate_terminal::present::{Column, Table, clock, now_ms};
use bedplate_terminal::{CliError, Console, choice};
use serde_json::json;

use crate::connection::Connection;
use crate::job_text::{shortened, state_text, step_text, where_or_problem};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate queue
  bedplate queue --state waiting --user ada
  bedplate queue --all --limit 20 --json

STEP is what a training step takes and what it was predicted to take, or took
at first. The last column says where a job runs and what is wrong with it, or
why it waits and when it should start; `bedplate job explain` and `bedplate
diagnose` say more.")]
pub(crate) struct Arguments {
    /// Ended jobs too
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
        Column::left("STEP", 3),
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
            step_text(job),
            shortened(&where_or_problem(job, now_ms), room),
        ]);
    }
    table
}

/// How long it runs or ran; while it runs, with the time that it has.
fn time_text(job: &JobSummary, now_ms: u64) -> String {
    let Some(started) = job.life.started_ms else { return String::new() };
    let until = job.life.ended_ms.unwrap_or(now_ms);
    let used = clock(until.saturating_sub(started));
    match job.ends_ms.filter(|_| job.life.ended_ms.is_none()) {
        // A limit of years is none.
        Some(ends) if ends.saturating_sub(started) < 3 * 365 * 86_400_000 => {
            format!("{used}/{}", clock(ends.saturating_sub(started)))
        }
        _ => used,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::job_text::canned;

    #[test]
    fn a_queue_says_where_jobs_run_and_why_they_wait() {
        let whole = table(&canned(), 10_000_000, None);
        expect![[r#"
            JOB  NAME                USER   STATE      NODES  GPUS  TIME           STEP                      WHERE OR WHY
              1  pretrain            ada    running        2    16  16:40/2:00:00  520 ms, predicted 400 ms  ! slow since: hardware (rank 3); n[1-2]
              2  a name that is to…  ada    waiting        2    16  -              -                         not enough free nodes; starts within 1:43:20
              3  pretrain            grace  held           2    16  -              -                         held
            4_7  pretrain            ada    waiting        1     0  -              -                         waits for its turn
              5  pretrain            ada    failed         2    16  1:01           -                         exit code 3
              6  pretrain            ada    node lost      2    16  1:01           -                         n1 was lost
        "#]]
        .assert_eq(&whole.fit(None).text);
        let narrow = table(&canned(), 10_000_000, Some(80)).fit(Some(80));
        assert!(narrow.text.lines().all(|line| line.chars().count() <= 80), "{}", narrow.text);
    }
}
