//! What a commit asks of the disk, whatever is in it.

mod support;

use bedplate_faultdisk::Disk;
use bedplate_journal::{Journal, JournalOptions, Synchronous};
use bedplate_testkit::counting::assert_at_most;
use support::{Folder, Records};

#[test]
fn what_a_commit_writes_grows_with_pages_not_with_records() {
    let folder = Folder::new("counted");
    let disk = Disk::register(&format!("counted-{}", folder.path().display()));
    let options = JournalOptions {
        file_layer: Some(disk.name().to_owned()),
        synchronous: Synchronous::Full,
        checkpoint_pages: 100_000,
        ..JournalOptions::default()
    };
    let mut journal = Journal::open_with(&folder.journal(), &options).unwrap();
    let mut records = Records::new(7);
    let mut commit = |size| {
        let batch = records.batch(size);
        let before = disk.position();
        journal.commit(&batch).unwrap();
        disk.position() - before
    };
    let _warm: usize = (0..20).map(|_| commit(8)).sum();
    let single: usize = (0..50).map(|_| commit(1)).sum();
    // The row that sums up all others is in the page of the clock, which a commit of the present changes anyway.
    assert_at_most("writes and syncs of 50 commits of one record", single, 616);
    let group = commit(500);
    // Among them are arrays of which some tasks are still to come, whose rows and index are in pages of their own.
    assert_at_most("writes and syncs of a commit of some 500 records", group, 113);
}
