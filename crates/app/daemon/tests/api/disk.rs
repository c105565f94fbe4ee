//! A disk that takes nothing: the daemon refuses, stays up, and goes on once the disk works again.

use std::path::Path;
use std::process::Command;

use bedplate_daemon::start;
use bedplate_faultdisk::{Disk, Fault};
use bedplate_testkit::{wait_for, wait_to_see};

use crate::support::{Daemon, Folder, JOB, options};

#[test]
fn a_full_disk_refuses_submissions_and_loses_none_that_were_acknowledged() {
    let disk = Disk::register("daemon-full-disk");
    let daemon = Daemon::start_with(|options| {
        options.journal.file_layer = Some(disk.name().to_owned());
        options.limits.durable = std::time::Duration::from_millis(300);
    });
    let mut ada = daemon.client("ada", "user");
    assert_eq!(ada.submit(JOB).status, 201);
    disk.fail(Fault::Full, 0);
    let refused = ada.submit(JOB);
    assert_eq!((refused.status, &refused.code()[..]), (503, "api/journal-unavailable"));
    assert_eq!(refused.headers.get("retry-after").map(String::as_str), Some("1"));
    wait_for("it says that the journal fails", || {
        (ada.get("/healthz").json()["journal"] == "failing").then_some(())
    });
    assert_eq!(ada.get("/healthz").json()["why"], "journal/disk-full");
    assert_eq!(ada.submit(JOB).status, 503, "at once, now that it is known");
    assert_eq!(ada.delete("/v1/jobs/1").status, 503);
    assert_eq!(ada.get("/v1/jobs").status, 200, "questions are answered");
    disk.recover();
    let id = wait_for("it takes jobs again", || {
        let answer = ada.submit(JOB);
        (answer.status == 201).then(|| answer.json()["id"].as_u64().unwrap())
    });
    assert_eq!(ada.get("/healthz").json()["journal"], "healthy");
    assert_eq!(ada.get(&format!("/v1/jobs/{id}")).json()["state"], "waiting");
    assert_eq!(ada.get("/v1/jobs/1").json()["state"], "waiting", "what was refused was not carried out");
}

#[test]
fn a_journal_too_large_to_be_read_first_ends_the_daemon_where_it_is_hurt() {
    let mut daemon = Daemon::start();
    assert_eq!(daemon.admin().submit(JOB).status, 201);
    daemon.running.take().unwrap().stop().unwrap();
    let path = daemon.folder.path().join("journal.sqlite");
    let text = b"command = [\"true\"]";
    // The last thread that lets go of the journal moves what was written into this file.
    let (mut bytes, at) = wait_for("the job is in the file", || {
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(text.len()).position(|part| part == text)?;
        Some((bytes, at))
    });
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let large = || {
        let mut options = options(&daemon.folder);
        options.journal.examined_bytes = 0;
        options
    };
    let found = start(large()).unwrap().wait().unwrap_err();
    assert!(found.to_string().contains("in `texts` some are not as they were written"), "{found}");
    let again = start(large()).unwrap_err();
    assert!(again.to_string().contains("is hurt"), "{again}");
}

/// A file system of its own that the kernel can be made to give up, as it does when it finds errors on the disk.
struct OwnDisk {
    image: std::path::PathBuf,
    folder: std::path::PathBuf,
}

impl OwnDisk {
    /// Nothing where it cannot be mounted.
    fn mount(image: &Path, folder: &Path) -> Option<Self> {
        std::fs::File::create(image).unwrap().set_len(96 << 20).unwrap();
        let shown = image.display().to_string();
        let disk = Self { image: image.to_owned(), folder: folder.to_owned() };
        if does("mkfs.ext4", &["-q", &shown]) && disk.is_mounted_now() {
            return Some(disk);
        }
        None
    }

    fn is_mounted_now(&self) -> bool {
        let [image, folder] = [&self.image, &self.folder].map(|path| path.display().to_string());
        does("mount", &["-o", "loop", &image, &folder])
    }

    fn give_up(&self) {
        assert!(does("mount", &["-o", "remount,abort", &self.folder.display().to_string()]));
    }

    /// A repaired copy takes its place, as an operator does it while the daemon still has the old files open.
    fn replace(&mut self) {
        let repaired = self.image.with_extension("repaired");
        std::fs::copy(&self.image, &repaired).unwrap();
        assert!(does("umount", &["-l", &self.folder.display().to_string()]));
        // It says by its status that it has repaired something.
        does("e2fsck", &["-f", "-y", &repaired.display().to_string()]);
        self.image = repaired;
        assert!(self.is_mounted_now());
    }
}

impl Drop for OwnDisk {
    fn drop(&mut self) {
        does("umount", &["-l", &self.folder.display().to_string()]);
    }
}

fn does(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_disk_that_became_read_only_is_told_as_such_and_keeps_what_was_acknowledged() {
    let images = Folder::new();
    let mut disk = None;
    let mut daemon = Daemon::start_with(|options| {
        disk = OwnDisk::mount(&images.path().join("image"), &options.state_directory);
        options.reserve_bytes = 0;
        options.limits.durable = std::time::Duration::from_millis(300);
    });
    let Some(disk) = disk else {
        return println!("SKIPPED: a disk that fails: this host mounts no ext4 from a file");
    };
    let mut ada = daemon.client("ada", "user");
    let jobs: Vec<u64> = (0..3).map(|_| ada.submit(JOB).json()["id"].as_u64().unwrap()).collect();
    disk.give_up();
    let refused = ada.submit(JOB);
    assert_eq!((refused.status, &refused.code()[..]), (503, "api/journal-unavailable"));
    wait_to_see(
        "it says why",
        || ada.get("/healthz").json()["why"].clone(),
        |why| *why == "journal/read-only",
    );
    assert_eq!(ada.get("/v1/jobs").status, 200, "questions are answered");
    // It ends all the same, and does not begin there again.
    let _ = daemon.running.take().unwrap().stop();
    let failed = start(options(&daemon.folder)).map(drop).unwrap_err();
    assert!(!failed.to_string().contains("panic"), "{failed}");
    assert_eq!(jobs.len(), 3);
    drop(disk);
}

#[test]
fn a_daemon_whose_disk_was_repaired_and_mounted_again_ends_and_its_successor_has_all_that_was_acknowledged() {
    let images = Folder::new();
    let mut disk = None;
    let mut daemon = Daemon::start_with(|options| {
        disk = OwnDisk::mount(&images.path().join("image"), &options.state_directory);
        options.reserve_bytes = 0;
        options.limits.durable = std::time::Duration::from_millis(300);
    });
    let Some(mut disk) = disk else {
        return println!("SKIPPED: a disk that is repaired: this host mounts no ext4 from a file");
    };
    let mut ada = daemon.client("ada", "user");
    let jobs: Vec<u64> = (0..3).map(|_| ada.submit(JOB).json()["id"].as_u64().unwrap()).collect();
    disk.give_up();
    assert_eq!(ada.submit(JOB).status, 503);
    disk.replace();
    // Its files are those of the disk that nobody can reach any more: it would refuse for ever.
    let ended = daemon.running.take().unwrap().wait().unwrap_err();
    assert!(ended.to_string().contains("another file is in the place of the journal"), "{ended}");
    let again = start(options(&daemon.folder)).unwrap();
    daemon.address = again.address();
    daemon.running = Some(again);
    let mut ada = daemon.client("ada", "user");
    for id in jobs {
        assert_eq!(ada.get(&format!("/v1/jobs/{id}")).json()["state"], "waiting");
    }
    assert_eq!(ada.submit(JOB).status, 201);
    let _ = daemon.running.take().unwrap().stop();
    drop(disk);
}
