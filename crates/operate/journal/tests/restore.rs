//! Restoring gives what the records amount to; the journal admits one daemon and only its own files.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use bedplate_control::record::{Life, Note, Record};
use bedplate_gangs::JobId;
use bedplate_journal::{Journal, JournalError, Reader};
use proptest::prelude::*;
use support::{Folder, Records, Reference};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn restoring_gives_what_all_records_amount_to(seed: u64, batches in 1usize..30, most in 1usize..20) {
        let folder = Folder::new("restore");
        let mut journal = Journal::open(&folder.journal()).unwrap();
        let (mut records, mut reference) = (Records::new(seed), Reference::default());
        for _ in 0..batches {
            let batch = records.batch(most);
            journal.commit(&batch).unwrap();
            reference.apply(&batch);
        }
        prop_assert_eq!(journal.restore().unwrap(), reference.restored());
        drop(journal);
        let mut journal = Journal::open(&folder.journal()).unwrap();
        prop_assert_eq!(journal.restore().unwrap(), reference.restored());
        check_history(&Reader::open(&folder.journal()).unwrap(), &reference);
    }
}

/// What has ended stays readable, too.
fn check_history(reader: &Reader, reference: &Reference) {
    for (id, row) in &reference.jobs {
        assert_eq!(reader.job(JobId(*id)).unwrap().as_ref(), Some(row));
        let runs: Vec<_> = reference.runs.values().filter(|run| run.run.job == *id).cloned().collect();
        assert_eq!(reader.runs(JobId(*id)).unwrap(), runs);
    }
}

#[test]
fn a_new_journal_has_nothing_in_it_and_job_numbers_begin_at_one() {
    let folder = Folder::new("new");
    let restored = Journal::open(&folder.journal()).unwrap().restore().unwrap();
    assert_eq!(restored, Reference::default().restored());
    assert_eq!(restored.next_job, 1);
}

#[test]
fn a_batch_with_a_record_that_cannot_be_written_leaves_nothing() {
    let folder = Folder::new("whole");
    let mut journal = Journal::open(&folder.journal()).unwrap();
    let note = |at_ms| Record::Note(Note { at_ms, job: None, node: None, text: "x".into() });
    let stray = Record::Job { job: JobId(7), life: Life::default() };
    let error = journal.commit(&[note(1), stray]).unwrap_err();
    assert!(matches!(error, JournalError::UnknownJob { job: 7 }), "{error}");
    assert!(!error.is_passing());
    let error = journal.commit(&[note(2), note(u64::MAX)]).unwrap_err();
    assert!(matches!(error, JournalError::Write { .. }) && !error.is_passing(), "{error}");
    assert_eq!(journal.restore().unwrap(), Reference::default().restored());
    journal.commit(&[note(3)]).unwrap();
    assert_eq!(journal.restore().unwrap().latest.0, 3);
}

#[test]
fn a_second_daemon_is_refused_and_told_who_holds_the_journal() {
    let folder = Folder::new("lock");
    let first = Journal::open(&folder.journal()).unwrap();
    let error = Journal::open(&folder.journal()).unwrap_err();
    let JournalError::InUse { pid, .. } = &error else { panic!("{error}") };
    assert_eq!(*pid, Some(std::process::id()));
    assert!(error.to_string().contains(&format!("by process {}", std::process::id())), "{error}");
    drop(first);
    Journal::open(&folder.journal()).unwrap();
}

#[test]
fn a_journal_of_a_later_release_is_refused_by_daemon_and_readers() {
    let folder = Folder::new("newer");
    drop(Journal::open(&folder.journal()).unwrap());
    let connection = rusqlite::Connection::open(folder.journal()).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    for error in [Journal::open(&folder.journal()).unwrap_err(), Reader::open(&folder.journal()).unwrap_err()]
    {
        assert!(matches!(error, JournalError::Newer { found: 99, .. }), "{error}");
    }
}

#[test]
fn other_files_are_left_as_they_are() {
    let folder = Folder::new("other");
    std::fs::write(folder.journal(), "a letter to my aunt, which is not a database at all".repeat(20))
        .unwrap();
    let error = Journal::open(&folder.journal()).unwrap_err();
    assert!(matches!(error, JournalError::Open { .. }), "{error}");

    let path = folder.path().join("theirs.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE theirs (x)").unwrap();
    drop(connection);
    let before = std::fs::read(&path).unwrap();
    let error = Journal::open(&path).unwrap_err();
    assert!(matches!(error, JournalError::NotAJournal { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let error = Reader::open(&folder.path().join("nothing")).unwrap_err();
    assert!(matches!(error, JournalError::Open { .. }), "{error}");
}
