//! Old history goes, and only that.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use std::collections::BTreeSet;

use bedplate_control::record::{JobState, Note, Record};
use bedplate_gangs::{JobId, Time};
use bedplate_journal::{Journal, NoteSubject, Pruned, Reader};
use proptest::prelude::*;
use support::{Folder, Records, Reference};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// What is pruned ended before the cut; all else is as before, and what was announced is what happens.
    #[test]
    fn only_what_ended_before_the_cut_goes(seed: u64, batches in 1usize..30, cut in 0u64..2_000_000, awaited in 0u64..20) {
        let folder = Folder::new("prune");
        let mut journal = Journal::open(&folder.journal()).unwrap();
        let (mut records, mut reference) = (Records::new(seed), Reference::default());
        for _ in 0..batches {
            let batch = records.batch(20);
            journal.commit(&batch).unwrap();
            reference.apply(&batch);
        }
        let reader = Reader::open(&folder.journal()).unwrap();
        let (cut, awaited) = (Time(cut), [JobId(awaited)]);
        let before = journal.restore().unwrap();
        let announced = reader.prunable(cut, &awaited).unwrap();
        let mut pruned = Pruned::default();
        loop {
            let step = journal.prune(cut, &awaited, 3).unwrap();
            pruned += step;
            if step == Pruned::default() {
                break;
            }
        }
        prop_assert_eq!(pruned, announced);
        let newest = reference.jobs.keys().max().copied();
        let mut gone = 0;
        for (id, row) in &reference.jobs {
            let is_old = row.life.state.is_final() && row.life.ended_ms.is_some_and(|at| at < cut.0);
            let is_kept = !is_old || awaited.contains(&JobId(*id)) || Some(*id) == newest;
            let found = reader.job(JobId(*id)).unwrap();
            prop_assert_eq!(found.as_ref(), Some(row).filter(|_| is_kept), "{}", id);
            gone += u64::from(!is_kept);
        }
        prop_assert_eq!(gone, pruned.jobs);
        let after = journal.restore().unwrap();
        prop_assert_eq!((after.next_job, &after.jobs, &after.runs), (before.next_job, &before.jobs, &before.runs));
        prop_assert_eq!(after.ended_count + gone, before.ended_count);
        // The texts of those that stay are there, and numbers are not given twice.
        journal.commit(&[Record::Note(Note { at_ms: 1, job: None, node: None, text: "still writes".into() })]).unwrap();
    }
}

/// Journals with jobs that have ended one second after the other.
fn with_ended(folder: &Folder, jobs: u64) -> Journal {
    let mut journal = Journal::open(&folder.journal()).unwrap();
    let mut records = Records::new(7);
    for id in 1..=jobs {
        let mut row = records.job();
        row.id = JobId(id);
        row.array = None;
        row.key = Some(format!("ada/key-{id}"));
        row.life.state = JobState::Succeeded;
        row.life.ended_ms = Some(id * 1_000);
        journal.commit(&[Record::Submitted(row)]).unwrap();
    }
    journal
}

#[test]
fn the_newest_are_counted_by_their_ends() {
    let folder = Folder::new("newest");
    let _journal = with_ended(&folder, 10);
    let reader = Reader::open(&folder.journal()).unwrap();
    let table =
        [(0, Some(Time::NEVER)), (1, Some(Time(10_000))), (9, Some(Time(2_000))), (10, None), (99, None)];
    for (count, expected) in table {
        assert_eq!(reader.end_of_newest(count).unwrap(), expected, "{count}");
    }
}

#[test]
fn keys_and_names_are_found_until_their_job_is_pruned() {
    let folder = Folder::new("keys");
    let mut journal = with_ended(&folder, 5);
    let reader = Reader::open(&folder.journal()).unwrap();
    assert_eq!(reader.job_of_key("ada/key-2").unwrap(), Some((JobId(2), 1)));
    assert_eq!(reader.states(JobId(2), None).unwrap(), [(JobId(2), JobState::Succeeded)]);
    journal.prune(Time(4_000), &[], 100).unwrap();
    assert_eq!(reader.job_of_key("ada/key-2").unwrap(), None);
    assert_eq!(reader.states(JobId(2), None).unwrap(), []);
    assert_eq!(reader.notes(NoteSubject::Job(JobId(2)), 10).unwrap(), []);
    let left: BTreeSet<u64> = (1..=5).filter(|id| reader.job(JobId(*id)).unwrap().is_some()).collect();
    assert_eq!(left, BTreeSet::from([4, 5]));
}
