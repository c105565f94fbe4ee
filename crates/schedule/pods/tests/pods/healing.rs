//! What fails is judged, and gangs that lost a node find another.

use bedplate_finding::Action;
use bedplate_gangs::Span;
use bedplate_pods::{NodeFinding, Pod, PodPhase};

use super::server::Server;

fn finding(action: Action) -> NodeFinding {
    NodeFinding { rule: "gpu/xid-79".into(), summary: "a GPU has fallen off the bus".into(), action }
}

/// The pod of a gang on a node, and the node.
fn first(server: &Server, gang: &str) -> (String, String) {
    let pod = server.of_gang(gang)[0];
    (pod.uid.clone(), pod.node.clone().expect("it stands"))
}

fn fails(server: &mut Server, uid: &str) {
    let now = server.now;
    server.change_pod(uid, |pod| (pod.phase, pod.ended_at) = (PodPhase::Failed, Some(now)));
    server.settle();
}

fn by(user: &str) -> impl Fn(&mut Pod) {
    let user = user.to_owned();
    move |pod: &mut Pod| pod.policy.user.clone_from(&user)
}

#[test]
fn a_node_with_a_grave_finding_is_taken_out_and_what_it_runs_may_finish() {
    let mut server = Server::new(8);
    server.gang("a", 2, |_| {});
    server.settle();
    let (_, node) = first(&server, "a");
    server.change_node(&node, |node| node.findings = vec![finding(Action::Alert)]);
    server.settle();
    assert!(server.taken_out.is_empty(), "a person is told, and nothing more");
    server.change_node(&node, |node| node.findings = vec![finding(Action::Drain)]);
    server.settle();
    assert_eq!(server.taken_out[&node], "a GPU has fallen off the bus [gpu/xid-79]");
    assert_eq!(server.standing("a"), 2);
}

#[test]
fn a_broken_node_loses_its_pods_and_the_gang_goes_on_with_a_spare() {
    let mut server = Server::new(8);
    server.change_node("n7", |node| node.is_spare = true);
    server.gang("a", 2, |_| {});
    server.gang("filler", 6, |_| {});
    server.settle();
    assert_eq!((server.standing("a"), server.standing("filler")), (2, 0), "spares are not for everybody");
    let (uid, node) = first(&server, "a");
    server.change_node(&node, |node| node.findings = vec![finding(Action::Replace)]);
    server.settle();
    assert!(server.pods[&uid].is_leaving);
    server.pass(Span::seconds(2));
    server.member("a", 2, 0, |_| {});
    server.settle();
    assert_eq!(server.standing("a"), 2);
    assert!(server.of_gang("a").iter().any(|pod| pod.node.as_deref() == Some("n7")), "the spare comes first");
    assert_eq!(server.taken_out.len(), 1);
}

#[test]
fn a_gang_that_starts_again_as_a_whole_after_a_loss_may_use_spares_too() {
    let mut server = Server::new(4);
    server.change_node("n3", |node| node.is_spare = true);
    server.gang("a/0", 3, |_| {});
    server.settle();
    assert_eq!(server.standing("a/0"), 3);
    let (_, node) = first(&server, "a/0");
    server.change_node(&node, |node| node.is_ready = false);
    server.settle();
    server.pass(Span::seconds(11));
    server.settle();
    let old: Vec<String> = server.of_gang("a/0").iter().map(|pod| pod.uid.clone()).collect();
    old.iter().for_each(|uid| server.remove_pod(uid));
    server.gang("a/1", 3, |_| {});
    server.gang("b", 3, |_| {});
    server.settle();
    assert_eq!((server.standing("a/1"), server.standing("b")), (3, 0));
}

#[test]
fn pods_on_a_lost_node_go_after_ten_seconds_unless_half_of_the_cluster_is_lost() {
    let mut server = Server::new(4);
    server.gang("a", 4, |_| {});
    server.settle();
    server.change_node("n0", |node| node.is_ready = false);
    server.settle();
    server.pass(Span::seconds(5));
    server.settle();
    assert_eq!(server.standing("a"), 4);
    for node in ["n1", "n2"] {
        server.change_node(node, |node| node.is_ready = false);
    }
    server.pass(Span::seconds(20));
    server.settle();
    assert_eq!(server.standing("a"), 4, "three of four: the fault is not theirs");
    for node in ["n1", "n2"] {
        server.change_node(node, |node| node.is_ready = true);
    }
    server.settle();
    assert_eq!(server.standing("a"), 3);
    assert!(server.of_gang("a").iter().all(|pod| !pod.is_leaving || pod.node.as_deref() == Some("n0")));
}

#[test]
fn a_node_that_fails_jobs_of_two_users_is_taken_out_and_one_job_alone_takes_none_out() {
    let mut server = Server::new(4);
    server.gang("a", 1, by("anna"));
    server.settle();
    let (uid, node) = first(&server, "a");
    let here = |pod: &mut Pod| drop(pod.constraints.selector.insert("here".into(), "yes".into()));
    server.change_node(&node, |node| drop(node.labels.insert("here".into(), "yes".into())));
    fails(&mut server, &uid);
    for attempt in 0..3 {
        server.pass(Span::minutes(1));
        server.gang(&format!("a/{attempt}"), 1, |pod| {
            by("anna")(pod);
            here(pod);
        });
        server.settle();
        if server.standing(&format!("a/{attempt}")) == 1 {
            let (uid, _) = first(&server, &format!("a/{attempt}"));
            fails(&mut server, &uid);
        }
    }
    assert!(server.taken_out.is_empty(), "{:?}", server.taken_out);
    assert_eq!(server.standing("a/2"), 0, "it failed there twice: the job stays away");
    server.gang("b", 1, |pod| {
        by("berta")(pod);
        here(pod);
    });
    server.settle();
    let (uid, _) = first(&server, "b");
    fails(&mut server, &uid);
    assert_eq!(server.taken_out[&node], "jobs of 2 users failed there and nowhere else [node/suspect]");
}

#[test]
fn a_pod_that_was_stopped_from_outside_accuses_nobody() {
    let mut server = Server::new(2);
    for (gang, user) in [("a", "anna"), ("b", "berta")] {
        server.gang(gang, 1, |pod| {
            by(user)(pod);
            pod.is_disrupted = true;
            pod.needs.gpus = 1;
        });
        server.settle();
        let (uid, _) = first(&server, gang);
        fails(&mut server, &uid);
    }
    assert!(server.taken_out.is_empty(), "{:?}", server.taken_out);
}

#[test]
fn a_job_that_fails_again_and_again_pauses_longer_and_longer_and_says_so() {
    let mut server = Server::new(8);
    let mut waited = Vec::new();
    for attempt in 0..6 {
        let gang = format!("a/{attempt}");
        server.gang(&gang, 1, |_| {});
        server.settle();
        let mut seconds = 0;
        while server.standing(&gang) == 0 {
            server.pass(Span::seconds(1));
            server.settle();
            seconds += 1;
            assert!(seconds < 600);
        }
        waited.push(seconds);
        if attempt == 5 {
            let said: Vec<&str> = server.words_of(&gang).iter().map(|words| words.reason).collect();
            assert_eq!(said, ["BackOff"]);
        }
        let (uid, _) = first(&server, &gang);
        fails(&mut server, &uid);
    }
    assert_eq!(waited, [0, 0, 1, 2, 4, 8]);
}

#[test]
fn findings_of_half_the_cluster_take_no_node_out_and_somebody_is_told() {
    let mut server = Server::new(4);
    for node in ["n0", "n1", "n2"] {
        server.change_node(node, |node| node.findings = vec![finding(Action::Replace)]);
    }
    server.settle();
    assert!(server.taken_out.is_empty());
    let said = server.scheduler.remarks();
    assert!(said.iter().any(|said| said.text.contains("3 nodes have findings at once")), "{said:?}");
}

#[test]
fn a_node_that_somebody_trusts_again_starts_with_a_clean_sheet() {
    let mut server = Server::new(8);
    let (mut failed, mut node) = (0, String::new());
    for user in ["anna", "berta"] {
        server.gang(user, 1, by(user));
        server.settle();
        let (uid, on) = first(&server, user);
        node = on;
        fails(&mut server, &uid);
        failed += 1;
    }
    assert_eq!(failed, 2);
    assert!(server.taken_out.contains_key(&node), "{:?}", server.taken_out);
    server.taken_out.clear();
    server.change_node(&node, |node| node.is_cordoned = false);
    server.settle();
    assert!(server.taken_out.is_empty());
}

#[test]
fn no_more_than_half_of_the_cluster_is_taken_out_for_findings_also_when_all_are_found_at_once() {
    let mut server = Server::new(8);
    for node in ["n0", "n1", "n2", "n3"] {
        server.change_node(node, |node| node.findings = vec![finding(Action::Drain)]);
    }
    server.settle();
    assert_eq!(server.taken_out.len(), 4, "{:?}", server.taken_out);
    server.change_node("n4", |node| node.findings = vec![finding(Action::Drain)]);
    server.settle();
    assert_eq!(server.taken_out.len(), 4, "more than half is no fault of the nodes");
}

#[test]
fn a_node_whose_cordon_was_refused_is_taken_out_again() {
    let mut server = Server::new(8);
    for user in ["anna", "berta"] {
        server.gang(user, 1, by(user));
        server.settle();
        let (uid, _) = first(&server, user);
        let now = server.now;
        server.change_pod(&uid, |pod| (pod.phase, pod.ended_at) = (PodPhase::Failed, Some(now)));
        server.tell(usize::MAX);
        server.decide();
        // The server refuses what is wanted of it.
        server.wanted.clear();
    }
    server.settle();
    assert!(server.taken_out.is_empty(), "it has just been asked");
    server.pass(Span::seconds(10));
    server.settle();
    assert_eq!(server.taken_out.len(), 1, "{:?}", server.taken_out);
}
