//! What an API server does on its bad days, asked for by name: refusals, silence, answers that are lost or cut off, expired watches, a
//! Lease that cannot be renewed. Whatever it does, a gang is bound whole and each of its pods once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bedplate_binder::{BinderError, LeaseRules};
use bedplate_diag::Diagnostic;

use crate::fake::{FakeServer, Fate};
use crate::world::{Gang, Running, SchedulerOptions};

fn gang(server: &FakeServer, name: &str, pods: u32) {
    let gang = Gang::new(name, pods, 8);
    (0..pods).for_each(|index| server.add_pod(gang.pod(index)));
}

fn scheduler(server: &FakeServer) -> Running {
    Running::start(server.kubeconfig(), SchedulerOptions::default())
}

fn holder(name: &str, lasts: Duration) -> SchedulerOptions {
    let (namespace, scheduler) = ("default".to_owned(), "bedplate".to_owned());
    let lease = LeaseRules { namespace, name: scheduler, holder: name.to_owned(), lasts };
    SchedulerOptions { lease: Some(lease), ..SchedulerOptions::default() }
}

/// Every third binding meets this, and the gang still runs whole, with each pod bound once.
fn a_gang_survives(fate: Fate) {
    let server = FakeServer::start(4);
    let asked = AtomicUsize::new(0);
    server.decide(move |request| {
        let is_hit = request.is_binding() && asked.fetch_add(1, Ordering::Relaxed) % 3 == 1;
        if is_hit { fate } else { Fate::Answered }
    });
    gang(&server, "a", 4);
    let running = scheduler(&server);
    server.until("the gang is bound", |server| server.bound("a") == 4);
    let mut nodes: Vec<String> = server.bindings().into_iter().map(|(_, node)| node).collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), 4, "each of its pods has a node of its own: {:?}", server.bindings());
    running.stop();
}

#[test]
fn bindings_that_the_server_is_too_busy_for_are_asked_for_again() {
    a_gang_survives(Fate::Refused(429));
}

#[test]
fn bindings_that_fail_inside_the_server_are_asked_for_again() {
    a_gang_survives(Fate::Refused(500));
}

#[test]
fn a_binding_whose_answer_is_lost_is_found_by_the_watch() {
    a_gang_survives(Fate::Forgotten);
}

#[test]
fn a_binding_whose_answer_is_cut_off_is_found_by_the_watch() {
    a_gang_survives(Fate::CutOff);
}

#[test]
fn a_binding_answered_with_no_json_is_asked_for_again() {
    a_gang_survives(Fate::Garbled);
}

/// A watch expires, and a node went in the gap: the list that follows says so.
#[test]
fn a_node_that_went_while_the_watch_had_a_gap_gets_no_gang() {
    let server = FakeServer::start(3);
    let running = scheduler(&server);
    gang(&server, "a", 1);
    server.until("the first gang is bound", |server| server.bound("a") == 1);
    let taken = server.bindings()[0].1.clone();
    let gone = ["n0", "n1", "n2"].into_iter().find(|name| *name != taken).expect("there are three");
    let before = server.lists();
    server.lose(&format!("nodes/{gone}"));
    server.expire_watches();
    server.until("nodes and pods are listed again", |server| server.lists() >= before + 2);
    gang(&server, "b", 1);
    gang(&server, "c", 1);
    server.until("one is bound to what is left", |server| server.bindings().len() == 2);
    server.add_node("n3");
    server.until("the other has the new node", |server| server.bindings().len() == 3);
    assert!(server.bindings().iter().all(|(_, node)| node != gone), "{:?}", server.bindings());
    running.stop();
}

#[test]
fn a_server_that_answers_lists_with_garbage_is_asked_again() {
    let server = FakeServer::start(1);
    let asked = AtomicUsize::new(0);
    server.decide(move |request| {
        let is_list = request.method == "GET" && !request.is_watch();
        let is_hit = is_list && asked.fetch_add(1, Ordering::Relaxed) < 4;
        if is_hit { Fate::Garbled } else { Fate::Answered }
    });
    gang(&server, "a", 1);
    let running = scheduler(&server);
    server.until("the gang is bound", |server| server.bound("a") == 1);
    running.stop();
}

#[test]
fn who_may_not_watch_ends_with_the_reason() {
    let server = FakeServer::start(1);
    server
        .decide(|request| if request.path.ends_with("/nodes") { Fate::Refused(403) } else { Fate::Answered });
    let error = scheduler(&server).ended().expect_err("it cannot see nodes");
    assert_eq!(error.page().code, "kubernetes/forbidden");
}

/// One namespace may refuse what others allow.
#[test]
fn a_binding_that_is_forbidden_stops_no_other_gang() {
    let server = FakeServer::start(2);
    server.decide(|request| {
        let is_hit = request.is_binding() && request.path.contains("/pods/a-");
        if is_hit { Fate::Refused(403) } else { Fate::Answered }
    });
    gang(&server, "a", 1);
    gang(&server, "b", 1);
    let running = scheduler(&server);
    server.until("the other gang is bound", |server| server.bound("b") == 1);
    assert_eq!(server.bound("a"), 0);
    server.until("it is said", |_| {
        let remarks = running.remarks.lock().expect("nothing panics under it");
        remarks.iter().any(|said| said.contains("cannot bind pods"))
    });
    running.stop();
}

/// A holder that cannot renew its Lease ends before another may take it, and binds nothing meanwhile.
#[test]
fn a_silent_lease_ends_its_holder_and_the_next_one_binds() {
    let server = FakeServer::start(2);
    let first = Running::start(server.kubeconfig(), holder("first", Duration::from_secs(3)));
    gang(&server, "a", 1);
    server.until("the first binds", |server| server.bound("a") == 1);
    let is_silent = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let told = Arc::clone(&is_silent);
    server.decide(move |request| {
        let is_hit = told.load(Ordering::Relaxed) && request.path.contains("/leases");
        if is_hit { Fate::Silent } else { Fate::Answered }
    });
    let error = first.ended().expect_err("it has no Lease");
    assert!(matches!(error, BinderError::LeaseLost { .. }), "{error:?}");
    gang(&server, "b", 1);
    is_silent.store(false, Ordering::Relaxed);
    let second = Running::start(server.kubeconfig(), holder("second", Duration::from_secs(3)));
    server.until("the second binds", |server| server.bound("b") == 1);
    assert_eq!(server.bindings().len(), 2, "each pod once: {:?}", server.bindings());
    second.stop();
}
