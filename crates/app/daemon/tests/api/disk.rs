//! A disk that takes nothing: the daemon refuses, stays up, and goes on once the disk works again.

use bedplate_daemon::start;
use bedplate_faultdisk::{Disk, Fault};
use bedplate_testkit::wait_for;

use crate::support::{Daemon, JOB, options};

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
    let mut bytes = std::fs::read(&path).unwrap();
    let text = b"command = [\"true\"]";
    let at = bytes.windows(text.len()).position(|part| part == text).unwrap();
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
