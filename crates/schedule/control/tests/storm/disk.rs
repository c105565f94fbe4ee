//! A disk that is slow and forgets what was not synced, and what its records amount to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bedplate_control::record::{
    ArrivingRow, EndedRow, JobRow, JobState, NodeRow, Record, Restored, RunPhase, RunRow, ShareRow,
};
use bedplate_gangs::{JobId, Time};

use crate::random::Random;

#[derive(Debug, Default)]
pub(crate) struct Disk {
    synced: Tables,
    /// Batches that were written and not synced, in order.
    written: VecDeque<Vec<Record>>,
}

/// Tables as SQLite would keep them, in the plainest way.
#[derive(Debug, Clone, Default)]
struct Tables {
    jobs: BTreeMap<JobId, JobRow>,
    /// Arrays of which not all tasks are recorded, and which is the next.
    arriving: BTreeMap<JobId, JobId>,
    runs: BTreeMap<(u64, u32), RunRow>,
    nodes: BTreeMap<String, NodeRow>,
    shares: BTreeMap<(String, String), ShareRow>,
    latest: Time,
}

impl Disk {
    pub(crate) fn write(&mut self, batch: Vec<Record>) {
        self.written.push_back(batch);
    }

    /// The oldest written batch is safe now.
    pub(crate) fn sync(&mut self) {
        if let Some(batch) = self.written.pop_front() {
            batch.into_iter().for_each(|record| self.synced.apply(record));
        }
    }

    /// The power fails: of the batches that were not synced, the first few may have made it.
    pub(crate) fn crash(&mut self, random: &mut Random) {
        let survive = random.between(0, self.written.len() as u64 + 1);
        (0..survive).for_each(|_| self.sync());
        self.written.clear();
    }

    /// Whether the job with this mark is on disk under its number, or its array, from which it follows.
    pub(crate) fn holds(&self, job: JobId, mark: &str) -> bool {
        let quoted = format!("\"{mark}\"");
        let tables = &self.synced;
        let array = tables.arriving.range(..=job).next_back().filter(|(_, next)| **next <= job);
        let row = tables.jobs.get(&job).or_else(|| tables.jobs.get(array?.0));
        row.is_some_and(|row| row.text.contains(&quoted))
    }

    /// How a job ended, if that is on disk.
    pub(crate) fn ended(&self, job: JobId) -> Option<JobState> {
        self.synced.jobs.get(&job).map(|row| row.life.state).filter(|state| state.is_final())
    }

    /// The jobs that have ended, of those that a number means: one job, or the tasks of an array.
    pub(crate) fn past(&self, id: JobId) -> Vec<(JobId, JobState)> {
        let is_meant = |row: &&JobRow| row.array.map_or(row.id, |place| place.array) == id;
        let meant = self.synced.jobs.values().filter(is_meant).map(|row| (row.id, row.life.state));
        meant.filter(|(_, state)| state.is_final()).collect()
    }

    pub(crate) fn restored(&self) -> Restored {
        self.synced.restored()
    }
}

impl Tables {
    fn apply(&mut self, record: Record) {
        match record {
            Record::Submitted(row) => {
                self.latest = self.latest.max(row.submitted);
                self.jobs.insert(row.id, row);
            }
            Record::Job { job, life } => {
                self.jobs.get_mut(&job).expect("a job is submitted before it changes").life = life;
            }
            Record::Arriving { array, next } => {
                self.arriving.remove(&array);
                self.arriving.extend(next.map(|next| (array, next)));
            }
            Record::Run(row) => {
                self.latest = self.latest.max(row.started).max(row.ended.unwrap_or_default());
                self.runs.insert((row.run.job, row.run.number), row);
            }
            Record::Node(row) => drop(self.nodes.insert(row.name.clone(), row)),
            Record::Share(row) => drop(self.shares.insert((row.account.clone(), row.user.clone()), row)),
            Record::Note(note) => self.latest = self.latest.max(Time(note.at_ms)),
        }
    }

    fn restored(&self) -> Restored {
        let is_live = |id: u64| self.jobs.get(&JobId(id)).is_some_and(|row| !row.life.state.is_final());
        let newest = |row: &&RunRow| {
            self.runs.range((row.run.job, 0)..(row.run.job + 1, 0)).next_back().map(|(key, _)| key.1)
                == Some(row.run.number)
        };
        let mut runtime_samples: Vec<JobRow> =
            self.jobs.values().filter(|row| row.is_runtime_sample()).cloned().collect();
        runtime_samples.sort_by_key(|row| (row.life.ended_ms, row.id));
        let mut restored = Restored {
            runtime_samples,
            next_job: self.jobs.keys().next_back().map_or(1, |id| id.0 + 1),
            jobs: self.jobs.values().filter(|row| !row.life.state.is_final()).cloned().collect(),
            arriving: self
                .arriving
                .iter()
                .map(|(first, next)| ArrivingRow { first: self.jobs[first].clone(), next: *next })
                .collect(),
            ended: self.mates_of_live_tasks(),
            ended_count: self.jobs.values().filter(|row| row.life.state.is_final()).count() as u64,
            runs: self
                .runs
                .values()
                .filter(|row| is_live(row.run.job) && row.phase != RunPhase::Ended)
                .filter(newest)
                .cloned()
                .collect(),
            nodes: self.nodes.values().cloned().collect(),
            shares: self.shares.values().cloned().collect(),
            latest: self.latest,
        };
        let awaited = restored.awaited().into_iter().filter_map(|job| self.jobs.get(&job));
        let known: BTreeSet<JobId> = restored.ended.iter().map(|row| row.id).collect();
        let awaited: Vec<EndedRow> = awaited.filter(|row| !known.contains(&row.id)).map(in_short).collect();
        restored.ended.extend(awaited);
        restored
    }

    fn mates_of_live_tasks(&self) -> Vec<EndedRow> {
        let array = |row: &JobRow| row.array.map(|place| place.array);
        let live = self.jobs.values().filter(|row| !row.life.state.is_final());
        let arrays: BTreeSet<JobId> = live.filter_map(array).collect();
        let ended = self.jobs.values().filter(|row| row.life.state.is_final());
        ended.filter(|row| array(row).is_some_and(|array| arrays.contains(&array))).map(in_short).collect()
    }
}

fn in_short(row: &JobRow) -> EndedRow {
    EndedRow { id: row.id, state: row.life.state, array: row.array }
}
