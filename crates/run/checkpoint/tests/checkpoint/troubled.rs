//! An object store that fails in the middle of a checkpoint: none is said to be durable that is not, the one before stays, and the next one is written.

use std::net::SocketAddr;

use bedplate_checkpoint::Checkpoints;
use bedplate_diag::Diagnostic;

use crate::bucket::{checkpoints, in_process, large, shown};
use crate::place::{Place, check, save, simple};
use crate::relay::{Plan, Relay, Requests, Trouble};
use crate::servers;

/// The server behind the relay; where it is not set these are no tests.
const BEHIND: &str = "BEDPLATE_CHECKPOINT_BEHIND";
const ALWAYS: usize = 1 << 20;

#[test]
fn a_store_that_fails_in_the_middle_is_told_and_overcome() {
    let Some(mut server) = servers::moto() else {
        println!("SKIPPED: checkpoints in a bucket that fails: moto_server is not installed");
        return;
    };
    bedplate_peers::uses("s3");
    let place = Place::new("troubled");
    let behind = server.endpoint.trim_start_matches("http://").to_owned();
    server.endpoint = format!("http://127.0.0.1:{}", servers::free_port());
    let mut process = in_process(&server, &place, "troubled::suite", &server.secret);
    let output = process.env(BEHIND, behind).output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    println!("{}", shown(&output));
}

/// What must come of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Durable,
    Failed,
    /// Either, as long as what is said is true.
    Either,
}

const TROUBLES: [(Trouble, Requests, usize, Outcome); 12] = [
    (Trouble::Unavailable, Requests::Parts, 2, Outcome::Durable),
    (Trouble::Unavailable, Requests::All, ALWAYS, Outcome::Failed),
    (Trouble::Cut, Requests::Parts, 2, Outcome::Durable),
    (Trouble::Cut, Requests::Parts, ALWAYS, Outcome::Failed),
    (Trouble::Shorten, Requests::Parts, 1, Outcome::Failed),
    (Trouble::Shorten, Requests::Manifests, 1, Outcome::Failed),
    (Trouble::Stall, Requests::Parts, 1, Outcome::Durable),
    (Trouble::LoseAnswer, Requests::Parts, 1, Outcome::Durable),
    (Trouble::LoseAnswer, Requests::Completions, 1, Outcome::Either),
    (Trouble::LoseAnswer, Requests::Manifests, 1, Outcome::Durable),
    (Trouble::LoseAnswer, Requests::Manifests, ALWAYS, Outcome::Durable),
    (Trouble::Unavailable, Requests::Deletions, ALWAYS, Outcome::Either),
];

/// Not a test of its own: runs where the environment names a bucket behind a relay.
#[test]
fn suite() {
    let (Ok(behind), Ok(address)) = (std::env::var(BEHIND), std::env::var("BEDPLATE_CHECKPOINT_BUCKET"))
    else {
        return;
    };
    let at: SocketAddr =
        std::env::var("AWS_ENDPOINT_URL").unwrap().trim_start_matches("http://").parse().unwrap();
    let relay = Relay::start(at, behind.parse().unwrap());
    let checkpoints = checkpoints(&format!("{address}/troubled"), 2);
    // One part with several chunks, and one that is sent whole.
    let layout = || vec![large().remove(0), Vec::new()];
    save(&checkpoints, &layout(), 1).unwrap();
    let mut last = 1;
    for (number, (trouble, requests, times, outcome)) in (2..).step_by(2).zip(TROUBLES) {
        relay.make(Some(Plan { trouble, requests, times }));
        let saved = save(&checkpoints, &layout(), number);
        let left = relay.make(None);
        let what = format!("{trouble:?} of {requests:?}, {times} times: {saved:?}");
        assert!(left < times, "the trouble was made: {what}");
        match &saved {
            Ok(_) => last = number,
            Err(error) => assert_eq!(error.page().code, "checkpoint/cannot-write", "{what}"),
        }
        assert!(outcome == Outcome::Either || saved.is_ok() == (outcome == Outcome::Durable), "{what}");
        is_exact(&checkpoints, last, number, &what);
        save(&checkpoints, &simple(10), number + 1).unwrap_or_else(|error| panic!("{what}, then {error}"));
        last = number + 1;
        check(&checkpoints.newest_good().unwrap().unwrap().0, &simple(10));
        println!("{what}");
    }
}

/// The newest good checkpoint is the last that was said to be durable, or the one under way where that came to be complete after all.
fn is_exact(checkpoints: &Checkpoints, last: u64, tried: u64, what: &str) {
    let (found, _) = checkpoints.newest_good().unwrap().unwrap();
    let step = found.facts().step;
    assert!(step == last || step == tried, "{what}: {step} is found instead of {last}");
    if step == tried || last == 1 {
        check(&found, &[large().remove(0)]);
    }
}
