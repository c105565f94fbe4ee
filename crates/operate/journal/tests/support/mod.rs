//! What the journal's tests share: random records, what they amount to, and folders.

#![allow(dead_code, reason = "each test uses a part of this")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_control::record::*;
use bedplate_control::wire::{Checkpoint, RunId};
use bedplate_diag::Reason;
use bedplate_faultdisk::Draw;
use bedplate_gangs::{JobId, Time};
use bedplate_report::StepHistory;

/// A folder that is removed with all that is in it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("bedplate-journal-{name}-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.0.join("journal.sqlite")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The slow, obvious journal: everything in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reference {
    pub(crate) jobs: BTreeMap<u64, JobRow>,
    pub(crate) runs: BTreeMap<RunId, RunRow>,
    arriving: BTreeMap<JobId, JobId>,
    nodes: BTreeMap<String, NodeRow>,
    shares: BTreeMap<(String, String), ShareRow>,
    pub(crate) notes: Vec<Note>,
    latest: u64,
}

impl Reference {
    pub(crate) fn apply(&mut self, records: &[Record]) {
        for record in records {
            self.apply_one(record.clone());
        }
    }

    fn apply_one(&mut self, record: Record) {
        match record {
            Record::Submitted(row) => {
                self.see([Some(row.submitted.0), row.life.started_ms, row.life.ended_ms]);
                self.jobs.insert(row.id.0, row);
            }
            Record::Job { job, life } => {
                self.see([life.started_ms, life.ended_ms, None]);
                self.jobs.get_mut(&job.0).unwrap().life = life;
            }
            Record::Arriving { array, next } => {
                self.arriving.remove(&array);
                self.arriving.extend(next.map(|next| (array, next)));
            }
            Record::Run(row) => {
                self.see([Some(row.started.0), row.running.map(|time| time.0), row.ended.map(|time| time.0)]);
                self.runs.insert(row.run, row);
            }
            Record::Node(row) => {
                for time in row.losses.iter().chain(&row.found_out) {
                    self.see([Some(time.0), None, None]);
                }
                self.nodes.insert(row.name.clone(), row);
            }
            Record::Share(row) => {
                self.see([Some(row.at.0), None, None]);
                self.shares.insert((row.account.clone(), row.user.clone()), row);
            }
            Record::Note(note) => {
                self.see([Some(note.at_ms), None, None]);
                self.notes.push(note);
            }
        }
    }

    fn see(&mut self, times: [Option<u64>; 3]) {
        self.latest = times.into_iter().flatten().fold(self.latest, u64::max);
    }

    fn newest_run(&self, job: u64) -> Option<&RunRow> {
        self.runs.values().filter(|row| row.run.job == job).max_by_key(|row| row.run.number)
    }

    fn arriving(&self) -> Vec<ArrivingRow> {
        let row =
            |(first, next): (&JobId, &JobId)| ArrivingRow { first: self.jobs[&first.0].clone(), next: *next };
        self.arriving.iter().map(row).collect()
    }

    pub(crate) fn restored(&self) -> Restored {
        let (ended, live): (Vec<&JobRow>, Vec<&JobRow>) =
            self.jobs.values().partition(|row| row.life.state.is_final());
        let newest = live.iter().filter_map(|row| self.newest_run(row.id.0));
        let arrays: Vec<JobId> = live.iter().filter_map(|row| Some(row.array?.array)).collect();
        let mut runtime_samples: Vec<JobRow> =
            ended.iter().filter(|row| row.is_runtime_sample()).map(|row| (*row).clone()).collect();
        runtime_samples.sort_by_key(|row| (row.life.ended_ms, row.id));
        Restored {
            runtime_samples,
            next_job: self.jobs.keys().max().map_or(1, |newest| newest + 1),
            arriving: self.arriving(),
            runs: newest.filter(|row| row.phase != RunPhase::Ended).cloned().collect(),
            jobs: live.into_iter().cloned().collect(),
            ended_count: ended.len() as u64,
            ended: ended
                .into_iter()
                .filter(|row| row.array.is_some_and(|place| arrays.contains(&place.array)))
                .map(|row| EndedRow { id: row.id, state: row.life.state, array: row.array })
                .collect(),
            nodes: self.nodes.values().cloned().collect(),
            shares: self.shares.values().cloned().collect(),
            latest: Time(self.latest),
        }
    }
}

/// Draws records that a control plane could write: jobs exist before anything is said about them.
pub(crate) struct Records {
    draw: Draw,
    jobs: Vec<u64>,
    next_job: u64,
}

impl Records {
    pub(crate) fn new(seed: u64) -> Self {
        Self { draw: Draw::new(seed), jobs: Vec::new(), next_job: 1 }
    }

    pub(crate) fn batch(&mut self, most: usize) -> Vec<Record> {
        (0..1 + self.draw.below(most)).map(|_| self.record()).collect()
    }

    pub(crate) fn record(&mut self) -> Record {
        if self.jobs.is_empty() {
            return Record::Submitted(self.job());
        }
        match self.draw.below(11) {
            10 => {
                let next = (self.draw.below(2) == 0).then(|| JobId(self.time()));
                Record::Arriving { array: JobId(self.any_job()), next }
            }
            0..3 => Record::Submitted(self.job()),
            3..5 => Record::Job { job: JobId(self.any_job()), life: self.life() },
            5..7 => Record::Run(self.run()),
            7 => Record::Node(self.node()),
            8 => Record::Share(self.share()),
            _ => Record::Note(self.note()),
        }
    }

    fn any_job(&mut self) -> u64 {
        self.jobs[self.draw.below(self.jobs.len())]
    }

    fn new_job(&mut self) -> u64 {
        let job = self.next_job;
        self.jobs.push(job);
        self.next_job += 1 + self.draw.below(2) as u64;
        job
    }

    fn name(&mut self, kind: &str, count: usize) -> String {
        format!("{kind}{}", self.draw.below(count))
    }

    fn time(&mut self) -> u64 {
        1_790_000_000_000 + self.draw.number() % (10 * 86_400_000)
    }

    fn some<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.draw.one_in(2).then(|| make(self))
    }

    pub(crate) fn job(&mut self) -> JobRow {
        // Now and then the same job is submitted again, as after a restart.
        let id = if !self.jobs.is_empty() && self.draw.one_in(10) { self.any_job() } else { self.new_job() };
        let size = if self.draw.one_in(8) { 9_000 } else { 40 };
        let text = format!("{}\n\u{e9}'\"", self.name("text", 3)).repeat(size / 10);
        JobRow {
            id: JobId(id),
            array: self.some(|it| ArrayPlace { array: JobId(id), index: it.draw.below(9) as u32 }),
            user: self.name("user", 4),
            name: self.name("name", 4),
            account: self.name("account", 3),
            submitted: Time(self.time()),
            key: self.some(|it| it.name("key", 1000)),
            text: text.into(),
            life: self.life(),
        }
    }

    fn life(&mut self) -> Life {
        Life {
            state: JobState::ALL[self.draw.below(JobState::ALL.len())].1,
            is_held: self.draw.one_in(2),
            runs: self.draw.below(5) as u32,
            restarts: self.draw.below(3) as u32,
            checkpoint: self.some(|it| Checkpoint {
                step: it.draw.number() >> 1,
                path: it.some(|it| it.name("/ckpt/", 10)),
            }),
            started_ms: self.some(Self::time),
            ended_ms: self.some(Self::time),
            exit_status: self.some(|it| it.draw.number() as i32),
            reason: self
                .some(|it| Reason::new("because", it.name("because ", 5)).with("at", it.draw.number())),
            charges: self.some(Self::charges).unwrap_or_default(),
        }
    }

    fn charges(&mut self) -> Charges {
        let charge = |it: &mut Self| Charge { node: it.name("n", 9), kind: "probe".into(), at_ms: it.time() };
        let failures = (0..self.draw.below(3)).map(|_| charge(self)).collect();
        Charges { restarts: self.draw.below(10) as u32, failures }
    }

    fn run(&mut self) -> RunRow {
        let started = self.time();
        let phases = [RunPhase::Preparing, RunPhase::Running, RunPhase::Suspended, RunPhase::Ended];
        RunRow {
            run: RunId { job: self.any_job(), number: 1 + self.draw.below(3) as u32 },
            phase: phases[self.draw.below(4)],
            shares: (0..self.draw.below(4)).map(|_| self.share_of_node()).collect(),
            started: Time(started),
            running: self.some(|it| Time(started + it.draw.number() % 10_000)),
            ends: Time(started + self.draw.number() % 86_400_000),
            stops_as: self.some(|it| JobState::ALL[it.draw.below(JobState::ALL.len())].1),
            ended: self.some(|it| Time(started + it.draw.number() % (3 * 86_400_000))),
            reason: self.some(|it| Reason::new("why", it.name("why ", 5))),
            cpu_ms: self.draw.number() >> 20,
            energy_joules: self.some(|it| it.draw.number() >> 34),
            steps: self.some(|it| {
                let steps = StepHistory { steps: it.draw.number(), mean_s: 0.25, ..StepHistory::default() };
                Box::new(steps)
            }),
            began: self.draw.below(9) as u32,
            master_port: self.some(|it| it.draw.below(65_536) as u16),
        }
    }

    fn share_of_node(&mut self) -> HeldShare {
        HeldShare {
            node: self.name("n", 6),
            role: self.draw.below(3) as u16,
            devices: self.draw.number(),
            joined: self
                .some(|it| Joined { run: it.draw.below(9) as u32, first_rank: it.draw.below(64) as u32 }),
        }
    }

    fn node(&mut self) -> NodeRow {
        NodeRow {
            name: self.name("n", 6),
            drained: self.some(|it| Reason::new("check_failed", it.name("fan ", 3))),
            address: self.name("10.0.0.", 250),
            incarnation: self.draw.number(),
            losses: (0..self.draw.below(3)).map(|_| Time(self.time())).collect(),
            acknowledged_ms: self.draw.number(),
            found_out: self.some(|it| Time(it.time())),
        }
    }

    fn share(&mut self) -> ShareRow {
        ShareRow {
            account: self.name("account", 3),
            user: self.name("user", 4),
            gpu_ms: u128::from(self.draw.number() >> 4),
            faded: (self.draw.number() >> 11) as f64 / 7.0,
            at: Time(self.time()),
        }
    }

    fn note(&mut self) -> Note {
        Note {
            at_ms: self.time(),
            job: self.some(Self::any_job),
            node: self.some(|it| it.name("n", 6)),
            text: self.name("seen ", 100),
        }
    }
}
