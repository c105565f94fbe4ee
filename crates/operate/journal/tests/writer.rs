//! The writer's thread: one wait for the disk for many batches, callbacks in order, and a disk that refuses.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use bedplate_control::record::{Life, Record};
use bedplate_faultdisk::{Disk, Fault};
use bedplate_gangs::{JobId, Time};
use bedplate_journal::{
    DiskHealth, Journal, JournalError, JournalOptions, NewToken, OnDurable, Reader, Writer,
};
use bedplate_testkit::wait_until;
use support::{Folder, Records, Reference};

/// Far longer than anything takes here; only a hang gets there.
const PATIENCE: Duration = Duration::from_secs(60);

type Answer = Result<(), Arc<JournalError>>;

/// A callback that sends what it is told, and with which number.
fn told(number: usize, to: &mpsc::Sender<(usize, Answer)>) -> OnDurable {
    let to = to.clone();
    Box::new(move |answer| to.send((number, answer)).unwrap())
}

fn numbers(from: &Receiver<(usize, Answer)>, count: usize) -> Vec<usize> {
    (0..count)
        .map(|_| {
            let (number, answer) = from.recv_timeout(PATIENCE).unwrap();
            answer.unwrap();
            number
        })
        .collect()
}

fn stray() -> Vec<Record> {
    vec![Record::Job { job: JobId(1_000_000), life: Life::default() }]
}

/// Waits until the disk has refused something.
fn wait_until_failing(writer: &Writer) {
    wait_until("the disk refuses", || !writer.is_healthy());
}

#[test]
fn batches_that_queue_up_share_a_commit_and_are_acknowledged_in_order() {
    let folder = Folder::new("group");
    let writer = Writer::start(Journal::open(&folder.journal()).unwrap()).unwrap();
    let (mut records, mut reference) = (Records::new(5), Reference::default());
    let (tell, hear) = mpsc::channel();
    let (release, wait) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // The thread is kept busy until all batches are in its queue.
        let (begin, begun) = mpsc::channel();
        let work = move |_: &mut Journal| {
            begin.send(()).unwrap();
            wait.recv().unwrap();
        };
        scope.spawn(|| writer.perform(work).unwrap());
        begun.recv().unwrap();
        for number in 0..50 {
            let batch = records.batch(5);
            reference.apply(&batch);
            writer.commit(batch, told(number, &tell));
        }
        release.send(()).unwrap();
    });
    assert_eq!(numbers(&hear, 50), (0..50).collect::<Vec<_>>());
    let statistics = writer.statistics();
    assert_eq!((statistics.batches, statistics.commits), (50, 1));
    assert_eq!(statistics.commit_time.count(), statistics.commits);
    let restored = writer.perform(|journal| journal.restore().unwrap()).unwrap();
    assert_eq!(restored, reference.restored());
}

#[test]
fn dropping_the_writer_first_writes_what_has_queued_up() {
    let folder = Folder::new("drop");
    let writer = Writer::start(Journal::open(&folder.journal()).unwrap()).unwrap();
    let (mut records, mut reference) = (Records::new(6), Reference::default());
    let (tell, hear) = mpsc::channel();
    for number in 0..200 {
        let batch = records.batch(3);
        reference.apply(&batch);
        writer.commit(batch, told(number, &tell));
    }
    writer.stop();
    assert_eq!(numbers(&hear, 200), (0..200).collect::<Vec<_>>());
    assert_eq!(Journal::open(&folder.journal()).unwrap().restore().unwrap(), reference.restored());
}

#[test]
fn while_the_disk_refuses_nothing_is_acknowledged_and_later_everything_is() {
    for fault in [Fault::Full, Fault::WriteError, Fault::SyncError] {
        let folder = Folder::new("refuse");
        let disk = Disk::register(&format!("refuse-{}", folder.path().display()));
        let options =
            JournalOptions { file_layer: Some(disk.name().to_owned()), ..JournalOptions::default() };
        let mut journal = Journal::open_with(&folder.journal(), &options).unwrap();
        journal.hold_reserve(&folder.journal(), 1 << 20);
        let writer = Writer::start(journal).unwrap();
        let (mut records, mut reference) = (Records::new(7), Reference::default());
        let (tell, hear) = mpsc::channel();
        let mut commit = |number| {
            let batch = records.batch(5);
            reference.apply(&batch);
            writer.commit(batch, told(number, &tell));
        };
        commit(0);
        assert_eq!(numbers(&hear, 1), [0]);
        disk.fail(fault, 0);
        commit(1);
        wait_until_failing(&writer);
        commit(2);
        let DiskHealth::Failing { error, attempts, .. } = writer.health() else { panic!("{fault:?}") };
        assert!(error.is_passing() && attempts > 0, "{error:?}");
        assert!(hear.try_recv().is_err(), "acknowledged though the disk refused");
        let has_reserve = folder.path().join("journal.reserve").exists();
        assert_eq!(has_reserve, fault != Fault::Full, "a full disk gets the journal's reserve");
        disk.recover();
        assert_eq!(numbers(&hear, 2), [1, 2]);
        assert!(writer.is_healthy());
        assert!(writer.statistics().failures > 0 && disk.refused() > 0);
        let restored = writer.perform(|journal| journal.restore().unwrap()).unwrap();
        assert_eq!(restored, reference.restored());
    }
}

#[test]
fn a_writer_that_is_stopped_while_the_disk_refuses_gives_up_all_that_waits() {
    let folder = Folder::new("give-up");
    let disk = Disk::register(&format!("give-up-{}", folder.path().display()));
    let options = JournalOptions { file_layer: Some(disk.name().to_owned()), ..JournalOptions::default() };
    let writer = Writer::start(Journal::open_with(&folder.journal(), &options).unwrap()).unwrap();
    let (mut records, (tell, hear)) = (Records::new(8), mpsc::channel());
    disk.fail(Fault::Full, 0);
    writer.commit(records.batch(3), told(0, &tell));
    wait_until_failing(&writer);
    writer.commit(records.batch(3), told(1, &tell));
    writer.stop();
    for expected in [0, 1] {
        let (number, answer) = hear.recv_timeout(PATIENCE).unwrap();
        assert_eq!(number, expected);
        assert!(answer.is_err());
    }
    disk.recover();
    let restored = Journal::open_with(&folder.journal(), &options).unwrap().restore().unwrap();
    assert_eq!(restored, Reference::default().restored());
}

#[test]
fn a_batch_that_can_never_be_written_stops_whatever_comes_after_it() {
    let folder = Folder::new("broken");
    let writer = Writer::start(Journal::open(&folder.journal()).unwrap()).unwrap();
    let (mut records, (tell, hear)) = (Records::new(9), mpsc::channel());
    writer.commit(stray(), told(0, &tell));
    let (_, answer) = hear.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(*answer.unwrap_err(), JournalError::UnknownJob { .. }));
    writer.commit(records.batch(3), told(1, &tell));
    let (_, answer) = hear.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(*answer.unwrap_err(), JournalError::Stopped));
    assert!(matches!(writer.health(), DiskHealth::Broken { .. }));
    let restored = writer.perform(|journal| journal.restore().unwrap()).unwrap();
    assert_eq!(restored, Reference::default().restored());
}

#[test]
fn tokens_are_listed_spent_once_and_revoked() {
    let folder = Folder::new("tokens");
    let writer = Writer::start(Journal::open(&folder.journal()).unwrap()).unwrap();
    let reader = Reader::open(&folder.journal()).unwrap();
    let token = |hash, is_one_time| NewToken {
        hash: [hash; 32],
        role: "agent".into(),
        user: "root".into(),
        label: "rack 7".into(),
        created: Time(10),
        expires: Some(Time(100)),
        is_one_time,
    };
    let (lasting, once) = (token(1, false), token(2, true));
    let adding = [lasting.clone(), once.clone()];
    let [lasting_id, once_id] =
        writer.perform(move |journal| adding.map(|token| journal.add_token(&token).unwrap())).unwrap();
    let found = &reader.tokens().unwrap()[0];
    assert_eq!((found.id, &found.token, found.used), (lasting_id, &lasting, None));
    assert!(found.is_valid(Time(99)) && !found.is_valid(Time(100)));

    let redeem =
        |id, now| writer.perform(move |journal| journal.redeem_token(id, Time(now)).unwrap()).unwrap();
    assert!(!redeem(lasting_id, 50), "not a one-time token");
    assert!(!redeem(once_id, 100), "expired");
    assert!(redeem(once_id, 50));
    assert!(!redeem(once_id, 51), "spent");
    let spent = reader.tokens().unwrap().remove(1);
    assert!(spent.used == Some(Time(50)) && !spent.is_valid(Time(50)));

    let revoke = move |journal: &mut Journal| journal.revoke_token(lasting_id).unwrap();
    assert!(writer.perform(revoke).unwrap());
    assert!(!writer.perform(revoke).unwrap());
    assert_eq!(reader.tokens().unwrap(), [spent]);
}
