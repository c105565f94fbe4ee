//! A disk without room: the checkpoint fails with a clear error, leaves no files, and the older ones stay.

use std::path::Path;
use std::process::Command;

use bedplate_diag::Diagnostic;

use crate::place::{Place, check, names, newest, save, simple};

/// A small file system in memory, unmounted with the test.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(folder: &'a Path) -> Option<Self> {
        std::fs::create_dir_all(folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"]).arg(folder);
        mount.output().ok().filter(|output| output.status.success()).map(|_| Self(folder))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_fails_one_checkpoint_and_keeps_the_others() {
    let place = Place::new("full");
    let folder = place.0.join("checkpoints");
    let Some(_small) = Small::mount(&folder) else {
        println!("SKIPPED: a full disk: this user may not mount a small file system");
        return;
    };
    let checkpoints = place.checkpoints(5);
    // A megabyte fits, four do not.
    save(&checkpoints, &simple(4_000), 1).unwrap();
    let error = save(&checkpoints, &simple(16_000), 2).unwrap_err();
    assert_eq!(error.page().code, "checkpoint/cannot-write");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("No space left"), "{cause}");
    assert_eq!(names(&folder), ["step-00000001"], "its files are gone");
    check(&newest(&checkpoints), &simple(4_000));
    save(&checkpoints, &simple(4_000), 3).unwrap();
}
