//! A daemon killed at any moment: what it had acknowledged is there when its journal is opened again.
//!
//! The system keeps what a killed process wrote, so this says nothing about the disk (`power_cut.rs` does); it shows
//! that a process can die between any two instructions, its lock goes with it, and the log is taken up again.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bedplate_control::record::{JobRow, Life, Record};
use bedplate_faultdisk::Draw;
use bedplate_gangs::{JobId, Time};
use bedplate_journal::{Journal, Writer};
use support::Folder;

/// Set for the process that is to be killed: the path of its journal.
const VICTIM: &str = "BEDPLATE_JOURNAL_VICTIM";

#[test]
fn what_was_acknowledged_survives_any_number_of_kills() {
    if let Some(path) = std::env::var_os(VICTIM) {
        commit_until_killed(Path::new(&path));
    }
    let folder = Folder::new("kill");
    let mut draw = Draw::new(11);
    let mut acknowledged = 0;
    for _ in 0..12 {
        acknowledged = run_and_kill(&folder, &mut draw).unwrap_or(acknowledged);
        let restored = Journal::open(&folder.journal()).unwrap().restore().unwrap();
        let ids: Vec<u64> = restored.jobs.iter().map(|job| job.id.0).collect();
        let whole: Vec<u64> = (1..=ids.len() as u64).collect();
        assert_eq!(ids, whole, "jobs are there in pairs and without gaps");
        assert!(
            ids.len() as u64 >= acknowledged && ids.len().is_multiple_of(2),
            "{} < {acknowledged}",
            ids.len()
        );
    }
    assert!(acknowledged > 0, "the process never got to acknowledge anything");
}

/// The number of the newest job that was acknowledged before the process died.
fn run_and_kill(folder: &Folder, draw: &mut Draw) -> Option<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_was_acknowledged_survives_any_number_of_kills", "--nocapture"])
        .env(VICTIM, folder.journal())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let lives = 1 + draw.below(200);
    let first: Vec<String> = lines.by_ref().map(Result::unwrap).take(lives).collect();
    std::thread::sleep(Duration::from_micros(draw.below(3_000) as u64));
    child.kill().unwrap();
    child.wait().unwrap();
    let rest = lines.map_while(Result::ok);
    first.into_iter().chain(rest).filter_map(|line| line.strip_prefix("acknowledged ")?.parse().ok()).max()
}

/// Submits two jobs a batch, several batches on the way at a time, and prints what is durable.
fn commit_until_killed(path: &Path) -> ! {
    let mut journal = Journal::open(path).unwrap();
    let mut next = journal.restore().unwrap().next_job;
    let writer = Writer::start(journal).unwrap();
    loop {
        let batch = vec![submission(next), submission(next + 1)];
        let newest = next + 1;
        next += 2;
        writer.commit(
            batch,
            Box::new(move |answer| {
                answer.unwrap();
                let mut out = std::io::stdout().lock();
                writeln!(out, "acknowledged {newest}").unwrap();
                out.flush().unwrap();
            }),
        );
        if next % 16 == 1 {
            writer.perform(|_| ()).unwrap();
        }
    }
}

fn submission(id: u64) -> Record {
    Record::Submitted(JobRow {
        id: JobId(id),
        array: None,
        user: "ada".into(),
        name: "train".into(),
        account: "research".into(),
        submitted: Time(id),
        key: None,
        text: "x".repeat(700).into(),
        life: Life::default(),
    })
}
