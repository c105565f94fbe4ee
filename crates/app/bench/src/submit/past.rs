//! A long history: a journal with many jobs that have ended, as a daemon would have written them.

use std::path::Path;

use bedplate_control::record::{HeldShare, JobRow, JobState, Life, Note, Record, RunPhase, RunRow};
use bedplate_control::wire::RunId;
use bedplate_gangs::{JobId, Time};
use bedplate_job::Job;
use bedplate_journal::{Journal, JournalError, JournalOptions, Synchronous};

const JOBS_PER_COMMIT: u64 = 2_000;
const SECOND: u64 = 1_000;

/// Writes the journal of a cluster that is yet to be started. The last job ends now.
pub(super) fn write(folder: &Path, job: &Job, jobs: u64, now_ms: u64) -> Result<(), JournalError> {
    // It is made anew each time: a power cut may cost it.
    let options = JournalOptions { synchronous: Synchronous::Off, ..JournalOptions::default() };
    let mut journal = Journal::open_with(&folder.join("journal.sqlite"), &options)?;
    let text: std::sync::Arc<str> = job.to_toml().into();
    let first = now_ms.saturating_sub(jobs * SECOND);
    for start in (1..=jobs).step_by(JOBS_PER_COMMIT as usize) {
        let numbers = start..(start + JOBS_PER_COMMIT).min(jobs + 1);
        let records: Vec<Record> =
            numbers.flat_map(|number| life_of(number, &text, first + number * SECOND)).collect();
        journal.commit(&records)?;
    }
    Ok(())
}

/// One job from its submission to its end.
fn life_of(number: u64, text: &std::sync::Arc<str>, ended_ms: u64) -> [Record; 4] {
    let began = ended_ms.saturating_sub(SECOND);
    let life = Life {
        state: JobState::Succeeded,
        runs: 1,
        started_ms: Some(began),
        ended_ms: Some(ended_ms),
        exit_status: Some(0),
        ..Life::default()
    };
    let row = JobRow {
        id: JobId(number),
        array: None,
        user: format!("user{}", number % 100),
        name: "no-op".into(),
        account: "root".into(),
        submitted: Time(began),
        key: Some(format!("user{}/past-{number}", number % 100)),
        text: text.clone(),
        life,
    };
    let share = HeldShare { node: format!("n{}", 1 + number % 8), role: 0, devices: 0, joined: None };
    let run = RunRow {
        phase: RunPhase::Ended,
        running: Some(Time(began)),
        ends: Time(ended_ms),
        ended: Some(Time(ended_ms)),
        cpu_ms: 1,
        ..RunRow::begun(RunId { job: number, number: 1 }, vec![share], Time(began))
    };
    let note =
        |text: &str, at_ms| Record::Note(Note { at_ms, job: Some(number), node: None, text: text.into() });
    [Record::Submitted(row), Record::Run(run), note("starts on n1", began), note("succeeded", ended_ms)]
}
