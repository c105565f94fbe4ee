//! The same on object stores: moto, and a garage where `BEDPLATE_GARAGE` names its program.
//!
//! Endpoint and credentials are read from the environment, so the suite runs in a process of its own.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use bedplate_checkpoint::{Checkpoint, Checkpoints, Keep, Region, Store};
use bedplate_diag::Diagnostic;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

use crate::place::{Place, check, newest, save, simple};
use crate::servers::{self, BUCKET, Server};

const ADDRESS: &str = "BEDPLATE_CHECKPOINT_BUCKET";
/// The output folder; that of the parent, because the process may be killed.
const OUTPUT: &str = "BEDPLATE_CHECKPOINT_OUTPUT";

pub(crate) fn in_process(server: &Server, place: &Place, test: &str, secret: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ADDRESS, format!("s3://{BUCKET}/a run"));
    command.env("AWS_ENDPOINT_URL", &server.endpoint).env("AWS_REGION", server.region);
    command.env("AWS_ACCESS_KEY_ID", &server.key).env("AWS_SECRET_ACCESS_KEY", secret);
    command.env(OUTPUT, &place.0).env_remove("AWS_PROFILE").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn shown(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn go(server: &Server, place: &Place) {
    let output = in_process(server, place, "bucket::suite", &server.secret).output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    for number in 0..4 {
        let mut writer = in_process(server, place, "bucket::writer", &server.secret).spawn().unwrap();
        // Each is killed at another moment of its writing.
        thread::sleep(Duration::from_millis(300 + 137 * number));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let output = in_process(server, place, "bucket::after_a_kill", &server.secret).output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
    }
}

#[test]
fn checkpoints_in_a_bucket_of_moto() {
    let Some(server) = servers::moto() else {
        println!("SKIPPED: checkpoints in a bucket: moto_server is not installed");
        return;
    };
    bedplate_peers::uses("s3");
    go(&server, &Place::new("moto"));
}

#[test]
fn checkpoints_in_a_bucket_of_garage() {
    let Ok(program) = std::env::var("BEDPLATE_GARAGE") else { return };
    let place = Place::new("garage");
    let server = servers::garage(&program, &place.0);
    go(&server, &place);
    let output = in_process(&server, &place, "bucket::refused", &"4".repeat(64)).output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
}

fn address() -> Option<String> {
    std::env::var(ADDRESS).ok()
}

pub(crate) fn checkpoints(address: &str, count: usize) -> Checkpoints {
    let output = std::env::var_os(OUTPUT).unwrap();
    Checkpoints::new(Path::new(&output), Store::open(address).unwrap(), Keep { count, age: Duration::ZERO })
}

/// Twelve megabytes, so that an object has several parts.
pub(crate) fn large() -> Vec<Vec<Region>> {
    simple(48_000)
}

/// Not a test of its own: runs where the environment names a bucket.
#[test]
fn suite() {
    let Some(address) = address() else { return };
    let checkpoints = checkpoints(&format!("{address}/suite"), 2);
    assert_eq!(checkpoints.newest_step().unwrap(), None);
    let error = self::checkpoints("s3://no-such-bucket/x", 1).newest_step().unwrap_err();
    assert!(["checkpoint/unreadable"].contains(&error.page().code), "{error:?}");
    let halves = |rows: usize| {
        let whole = simple(rows).remove(0);
        let half = |rows: std::ops::Range<usize>| Region { rows, ..whole[0].clone() };
        vec![vec![half(0..7), whole[1].clone()], vec![half(7..rows), whole[2].clone()], vec![]]
    };
    save(&checkpoints, &large(), 10).unwrap();
    save(&checkpoints, &halves(48_000), 20).unwrap();
    check(&newest(&checkpoints), &large());
    save(&checkpoints, &simple(10), 30).unwrap();
    let steps = |checkpoints: &Checkpoints| -> Vec<u64> {
        checkpoints.list().unwrap().into_iter().map(|listed| listed.opened.unwrap().facts().step).collect()
    };
    assert_eq!(steps(&checkpoints), [20, 30], "two are kept");
    let named = Checkpoint::open(&format!("{address}/suite/step-00000020")).unwrap();
    check(&named, &halves(48_000));
    assert!(checkpoints.holds(&named));

    // The same step again, and back to an earlier one: manifests change names, files stay.
    save(&checkpoints, &simple(20), 30).unwrap();
    check(&newest(&checkpoints), &simple(20));
    let aside = checkpoints.branch_off(&named.published(), false, &[]).unwrap().unwrap();
    assert!(aside.ends_with("abandoned/after-step-00000020"), "{aside:?}");
    assert_eq!(steps(&checkpoints), [20]);
    save(&checkpoints, &simple(30), 30).unwrap();
    check(&newest(&checkpoints), &simple(30));

    damage(&checkpoints, &format!("{address}/suite"));
}

/// Changes objects as nobody should.
fn damage(checkpoints: &Checkpoints, address: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bucket = AmazonS3Builder::from_env().with_bucket_name(BUCKET).with_allow_http(true).build().unwrap();
    let checkpoint = newest(checkpoints);
    let (file, bytes) = checkpoint.manifest().files().next().unwrap();
    let prefix = address.strip_prefix(&format!("s3://{BUCKET}/")).unwrap();
    let key = Key::from(format!("{prefix}/step-00000030/{file}"));
    let put = |len: u64| {
        runtime.block_on(bucket.put(&key, PutPayload::from(vec![7; len as usize]))).unwrap();
        let (good, remarks) = checkpoints.newest_good().unwrap().unwrap();
        assert_eq!(good.facts().step, 20);
        remarks[0].clone()
    };
    assert!(put(bytes).contains("is damaged: the checksum of bytes 0 to "));
    assert!(put(bytes - 4).contains(&format!("has {} bytes instead of {bytes}", bytes - 4)));
    runtime.block_on(bucket.delete(&key)).unwrap();
    let error = checkpoints.named(Path::new("step-30")).unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
    let manifest = Key::from(format!("{prefix}/step-00000020/manifest.json"));
    runtime.block_on(bucket.put(&manifest, PutPayload::from("{"))).unwrap();
    assert_eq!(checkpoints.newest_good().unwrap_err().page().code, "checkpoint/damaged");
}

/// Not a test of its own: writes until it is killed.
#[test]
fn writer() {
    let Some(address) = address() else { return };
    let checkpoints = checkpoints(&format!("{address}/killed"), 2);
    let first = checkpoints.newest_good().unwrap().map_or(1, |(newest, _)| newest.facts().step + 1);
    for step in first.. {
        save(&checkpoints, &large(), step).unwrap();
    }
}

/// Not a test of its own: what a killed writer left is exact, and the next checkpoint removes the rest. What the server was still receiving when
/// the writer died may come to light after that; the one after removes it.
#[test]
fn after_a_kill() {
    let Some(address) = address() else { return };
    let checkpoints = checkpoints(&format!("{address}/killed"), 2);
    if let Some((found, remarks)) = checkpoints.newest_good().unwrap() {
        assert!(remarks.is_empty(), "{remarks:?}");
        check(&found, &large());
    }
    let written_and_named = || {
        let next = checkpoints.newest_step().unwrap().unwrap_or(0) + 1;
        save(&checkpoints, &large(), next).unwrap();
        let listed = checkpoints.list().unwrap();
        let named = listed.iter().map(|listed| listed.opened.as_ref().unwrap().manifest().bytes()).sum();
        (stored(&format!("{address}/killed")), named)
    };
    let mut found: (u64, u64) = written_and_named();
    if found.0 != found.1 {
        found = written_and_named();
    }
    assert_eq!(found.0, found.1, "only what manifests name is there");
}

/// Bytes of all objects but manifests.
fn stored(address: &str) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bucket = AmazonS3Builder::from_env().with_bucket_name(BUCKET).with_allow_http(true).build().unwrap();
    let mut folders = vec![Key::from(address.strip_prefix(&format!("s3://{BUCKET}/")).unwrap())];
    let mut bytes = 0;
    while let Some(folder) = folders.pop() {
        let found = runtime.block_on(bucket.list_with_delimiter(Some(&folder))).unwrap();
        folders.extend(found.common_prefixes);
        bytes += found
            .objects
            .iter()
            .filter(|object| !object.location.as_ref().ends_with(".json"))
            .map(|object| object.size)
            .sum::<u64>();
    }
    bytes
}

/// Not a test of its own: credentials that are wrong are told as such.
#[test]
fn refused() {
    let Some(address) = address() else { return };
    let error = checkpoints(&address, 2).newest_good().unwrap_err();
    assert_eq!(error.page().code, "checkpoint/unreadable", "{error}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.starts_with("the object store: ") && cause.lines().count() == 1, "{cause}");
}

#[test]
fn addresses_that_name_no_bucket_are_refused() {
    for address in ["s3://", "s3:///x", "s3://bucket/a//b", "s3://bucket/../x"] {
        assert_eq!(Store::open(address).unwrap_err().page().code, "checkpoint/bad-address", "{address}");
    }
}
