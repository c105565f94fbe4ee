//! How fast the journal is, beside what the disk under it can do, measured in the same run.
//!
//! `cargo run --release -p bedplate-journal --example bench [FOLDER]` measures in FOLDER (default: here).

#![expect(clippy::print_stdout, reason = "its results are what it is run for")]

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_control::record::{HeldShare, JobRow, JobState, Life, Record, RunPhase, RunRow};
use bedplate_control::wire::RunId;
use bedplate_gangs::{JobId, Time};
use bedplate_journal::{Journal, Writer};

const LASTS: Duration = Duration::from_secs(2);
const LIVE: u64 = 10_000;
const ENDED: u64 = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let parent = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let folder = parent.join(format!("journal-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = measure(&folder);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn measure(folder: &Path) -> Result<(), Box<dyn Error>> {
    println!(
        "commits, in turn with 4 KiB written in place and synced, since the disk's pace changes from second to second:"
    );
    for batch in [1, 4, 64] {
        let Pace { commits, data, all } = commits(folder, batch)?;
        println!(
            "batches of {batch:>2} jobs: {commits:>6.0} commits/s, {:>7.0} jobs/s; fdatasync {data:>6.0}/s: {:.2}; fsync {all:>6.0}/s: {:.2}",
            commits * batch as f64,
            commits / data,
            commits / all,
        );
    }
    for clients in [1, 4, 64] {
        let jobs = grouped(&folder.join(format!("{clients}-clients.sqlite")), clients)?;
        println!("{clients:>2} clients that wait for each job, in groups: {jobs:>6.0} jobs/s");
    }
    restore(&folder.join("restore.sqlite"))
}

/// How often a second: commits of the journal, and writes of 4 KiB with only their data synced, or all.
struct Pace {
    commits: f64,
    data: f64,
    all: f64,
}

/// One commit, one fdatasync, one fsync, over and over. The raw writes go over the same 4 MiB, as in a write-ahead log.
fn commits(folder: &Path, batch: u64) -> Result<Pace, Box<dyn Error>> {
    let mut journal = Journal::open(&folder.join(format!("{batch}.sqlite")))?;
    let file = File::create(folder.join("raw"))?;
    file.write_all_at(&vec![1; 4 << 20], 0)?;
    file.sync_all()?;
    let write = |count: u64| file.write_all_at(&[2; 4096], count % 1024 * 4096);
    let mut took = [Duration::ZERO; 3];
    let mut count = 0;
    while took.iter().sum::<Duration>() < 3 * LASTS {
        let records: Vec<Record> = (1..=batch).map(|job| submission(count * batch + job)).collect();
        took[0] += timed(|| Ok(journal.commit(&records)?))?;
        took[1] += timed(|| Ok(write(count).and_then(|()| file.sync_data())?))?;
        took[2] += timed(|| Ok(write(count).and_then(|()| file.sync_all())?))?;
        count += 1;
    }
    let [commits, data, all] = took.map(|took| count as f64 / took.as_secs_f64());
    Ok(Pace { commits, data, all })
}

fn timed(act: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let begin = Instant::now();
    act()?;
    Ok(begin.elapsed())
}

/// Jobs a second, each client waiting for one before it submits the next.
fn grouped(path: &Path, clients: u64) -> Result<f64, Box<dyn Error>> {
    let writer = Writer::start(Journal::open(path)?)?;
    let begin = Instant::now();
    thread::scope(|scope| {
        for client in 0..clients {
            let writer = &writer;
            scope.spawn(move || {
                let (tell, told) = mpsc::channel();
                for count in 0.. {
                    let tell = tell.clone();
                    let job = submission(1 + count * clients + client);
                    writer.commit(
                        vec![job],
                        Box::new(move |answer| tell.send(answer).expect("the client waits")),
                    );
                    told.recv().expect("every batch is answered").expect("the disk works");
                    if begin.elapsed() > LASTS {
                        break;
                    }
                }
            });
        }
    });
    Ok(writer.statistics().records as f64 / begin.elapsed().as_secs_f64())
}

fn restore(path: &Path) -> Result<(), Box<dyn Error>> {
    let mut journal = Journal::open(path)?;
    let ids: Vec<u64> = (1..=LIVE + ENDED).collect();
    for ids in ids.chunks(1_000) {
        let records: Vec<Record> = ids.iter().flat_map(|id| life_of(*id)).collect();
        journal.commit(&records)?;
    }
    drop(journal);
    let begin = Instant::now();
    let mut journal = Journal::open(path)?;
    let restored = journal.restore()?;
    let took = begin.elapsed();
    let (live, ended, runs) = (restored.jobs.len(), restored.ended.len(), restored.runs.len());
    let size = std::fs::metadata(path)?.len() >> 20;
    println!(
        "opened and restored {live} live jobs, {runs} runs and {ended} ended jobs from {size} MiB in {took:.2?}"
    );
    Ok(())
}

/// A job as most are: it ran on a node and ended, but for one in eleven that still runs.
fn life_of(id: u64) -> [Record; 3] {
    let has_ended = !id.is_multiple_of(11);
    let phase = if has_ended { RunPhase::Ended } else { RunPhase::Running };
    let share = HeldShare { node: format!("node-{}", id % 500), role: 0, devices: 0xff, joined: None };
    let run = RunRow {
        phase,
        running: Some(Time(id)),
        ended: has_ended.then(|| Time(id + 60_000)),
        cpu_ms: 1,
        ..RunRow::begun(RunId { job: id, number: 1 }, vec![share], Time(id))
    };
    let state = if has_ended { JobState::Succeeded } else { JobState::Running };
    let life = Life {
        state,
        runs: 1,
        started_ms: Some(id),
        ended_ms: run.ended.map(|time| time.0),
        ..Life::default()
    };
    [submission(id), Record::Run(run), Record::Job { job: JobId(id), life }]
}

fn submission(id: u64) -> Record {
    let text = format!(
        "name = \"train\"\nnodes = 2\n# {id}\ncommand = [\"torchrun\", \"train.py\"]\n{}",
        "# x\n".repeat(200)
    );
    Record::Submitted(JobRow {
        id: JobId(id),
        array: None,
        user: format!("user{}", id % 50),
        name: "train".into(),
        account: format!("account{}", id % 7),
        submitted: Time(id),
        key: Some(format!("key-{id}")),
        text: text.into(),
        life: Life::default(),
    })
}
