//! Single stories.

use bedplate_catalog::Catalog;
use bedplate_gangs::Span;
use bedplate_pods::{AskedBinding, Effect, Judged, PodAction, PodPhase, PodScheduler, Taint};

use super::server::{Server, pod, stranger};

#[test]
fn a_gang_is_bound_whole_and_waits_until_it_is_complete() {
    let mut server = Server::new(4);
    server.member("a", 3, 0, |_| {});
    server.member("a", 3, 1, |_| {});
    server.settle();
    assert_eq!(server.standing("a"), 0);
    server.pass(Span::seconds(2));
    server.settle();
    assert!(server.words_of("a").iter().all(|words| words.reason == "GangIncomplete"));
    server.member("a", 3, 2, |_| {});
    server.settle();
    assert_eq!(server.standing("a"), 3);
}

#[test]
fn of_two_gangs_that_do_not_fit_together_one_runs_and_all_pods_of_the_other_say_so() {
    let mut server = Server::new(4);
    server.gang("a", 3, |_| {});
    server.settle();
    server.gang("b", 3, |_| {});
    server.settle();
    assert_eq!((server.standing("a"), server.standing("b")), (3, 0));
    server.pass(Span::seconds(2));
    server.settle();
    let words = server.words_of("b");
    assert_eq!(words.len(), 3);
    assert!(words.iter().all(|words| words.reason == "Unschedulable"), "{words:?}");
    for uid in server.of_gang("a").iter().map(|pod| pod.uid.clone()).collect::<Vec<_>>() {
        server.change_pod(&uid, |pod| pod.phase = PodPhase::Succeeded);
    }
    server.settle();
    assert_eq!(server.standing("b"), 3);
}

#[test]
fn pods_share_nodes_as_long_as_they_fit() {
    let mut server = Server::new(2);
    server.gang("a", 7, |pod| pod.needs.gpus = 2);
    server.settle();
    assert_eq!(server.standing("a"), 7);
    for node in ["n0", "n1"] {
        assert!(!server.free(node).is_overdrawn());
    }
}

#[test]
fn pods_that_stand_apart_share_no_node_also_when_one_of_them_is_made_again() {
    let mut server = Server::new(3);
    let apart = |pod: &mut bedplate_pods::Pod| {
        pod.needs.gpus = 2;
        pod.constraints.is_apart = true;
    };
    server.gang("a", 3, apart);
    server.settle();
    let nodes = |server: &Server| {
        let nodes = server.of_gang("a").iter().filter_map(|pod| pod.node.clone()).collect::<Vec<_>>();
        (nodes.len(), nodes.into_iter().collect::<std::collections::BTreeSet<_>>().len())
    };
    assert_eq!(nodes(&server), (3, 3));
    let uid = server.of_gang("a")[1].uid.clone();
    server.remove_pod(&uid);
    server.member("a", 3, 1, apart);
    server.settle();
    assert_eq!(nodes(&server), (3, 3));
    server.gang("b", 4, apart);
    server.settle();
    assert_eq!(server.standing("b"), 0, "there are three nodes");
}

#[test]
fn a_gang_fits_between_others_pods_in_whatever_pieces_are_free() {
    let mut server = Server::new(4);
    for index in 0..4 {
        let uid = server.add_pod(stranger(index, 5));
        server.change_pod(&uid, |pod| (pod.node, pod.phase) = (Some(format!("n{index}")), PodPhase::Running));
    }
    server.gang("a", 12, |pod| pod.needs.gpus = 1);
    server.settle();
    assert_eq!(server.standing("a"), 12, "three on each node: {:?}", server.words_of("a"));
}

#[test]
fn taints_and_selectors_keep_pods_away_and_cores_count() {
    let mut server = Server::new(3);
    server.change_node("n0", |node| {
        node.taints.push(Taint { key: "broken".into(), value: String::new(), effect: Effect::NoSchedule });
    });
    server.change_node("n1", |node| drop(node.labels.insert("zone".into(), "here".into())));
    server.gang("a", 1, |pod| drop(pod.constraints.selector.insert("zone".into(), "here".into())));
    server.settle();
    assert_eq!(server.of_gang("a")[0].node.as_deref(), Some("n1"));
    server.gang("b", 2, |_| {});
    server.settle();
    assert_eq!(server.standing("b"), 0, "only n2 is left");
    server.gang("c", 1, |pod| (pod.needs.gpus, pod.needs.cpu_milli) = (0, 15_500));
    server.settle();
    assert_eq!(server.of_gang("c")[0].node.as_deref(), Some("n2"), "n1 has 15 cores left");
    server.gang("d", 1, |pod| drop(pod.constraints.selector.insert("zone".into(), "there".into())));
    server.settle();
    server.pass(Span::seconds(2));
    server.settle();
    let words = server.words_of("d");
    assert!(words[0].message.contains("none of 3 nodes"), "{words:?}");
}

#[test]
fn a_large_gang_is_not_starved_by_small_ones() {
    let mut server = Server::new(4);
    let limited = |pod: &mut bedplate_pods::Pod| pod.policy.time_limit = Some(Span::minutes(10));
    for index in 0..4 {
        server.gang(&format!("small{index}"), 1, limited);
        server.settle();
        server.pass(Span::minutes(2));
    }
    server.gang("large", 4, limited);
    server.settle();
    // One small gang ends and another comes, for ever.
    for next in 4..24 {
        server.pass(Span::minutes(1));
        server.gang(&format!("small{next}"), 1, limited);
        let now = server.now;
        let over = |pod: &&bedplate_pods::Pod| {
            pod.gang != "large" && pod.bound_at.is_some_and(|at| now.since(at) >= Span::minutes(9))
        };
        let ended: Vec<String> = server.pods.values().filter(over).map(|pod| pod.uid.clone()).collect();
        ended.iter().for_each(|uid| server.change_pod(uid, |pod| pod.phase = PodPhase::Succeeded));
        server.settle();
        if server.standing("large") == 4 {
            return;
        }
    }
    panic!("the large gang has waited 20 minutes behind gangs of 10: {:?}", server.words_of("large"));
}

#[test]
fn after_a_crash_a_gang_that_is_bound_in_part_is_completed_before_anything_else_starts() {
    let mut server = Server::new(4);
    server.gang("a", 4, |_| {});
    server.tell(usize::MAX);
    server.decide();
    server.carry_out(0, true);
    server.carry_out(0, true);
    server.gang("b", 1, |pod| pod.policy.priority = 1000);
    server.restart();
    server.settle();
    assert_eq!((server.standing("a"), server.standing("b")), (4, 0));
}

#[test]
fn what_cannot_be_completed_goes_after_seconds() {
    let mut server = Server::new(4);
    server.gang("a", 4, |_| {});
    server.tell(usize::MAX);
    server.decide();
    (0..3).for_each(|_| server.carry_out(0, true));
    server.wanted.clear();
    // Its last place is taken by someone who asks nobody.
    let taken: Vec<String> = server.pods.values().filter_map(|pod| pod.node.clone()).collect();
    let left =
        ["n0", "n1", "n2", "n3"].into_iter().find(|node| !taken.contains(&(*node).to_owned())).unwrap();
    let uid = server.add_pod(stranger(1, 8));
    server.change_pod(&uid, |pod| (pod.node, pod.phase) = (Some(left.to_owned()), PodPhase::Running));
    server.restart();
    server.settle();
    assert_eq!(server.standing("a"), 3, "it may still come");
    for _ in 0..30 {
        server.pass(Span::seconds(1));
        server.settle();
    }
    assert_eq!(server.standing("a"), 0);
    assert!(server.of_gang("a").iter().all(|pod| pod.node.is_none()));
}

#[test]
fn a_gang_of_higher_priority_takes_the_nodes_of_one_that_allows_it() {
    let mut server = Server::new(4);
    server.gang("low", 4, |pod| pod.policy.is_preemptible = true);
    server.settle();
    server.gang("high", 3, |pod| pod.policy.priority = 10);
    for _ in 0..10 {
        server.pass(Span::seconds(1));
        server.settle();
    }
    assert_eq!(server.standing("high"), 3, "{:?}", server.words_of("high"));
    assert_eq!(server.standing("low"), 0, "all of it or nothing");
}

#[test]
fn a_pod_whose_node_is_gone_is_made_again_elsewhere() {
    let mut server = Server::new(4);
    server.gang("a", 3, |_| {});
    server.settle();
    let lost = server.of_gang("a")[0].clone();
    server.remove_node(lost.node.as_deref().unwrap());
    server.settle();
    assert_eq!(server.standing("a"), 2, "the lost pod is deleted");
    server.add_pod(pod("a", 3, lost.rank.1, 8));
    server.settle();
    assert_eq!(server.standing("a"), 3);
}

#[test]
fn a_gang_that_lacks_room_asks_for_nodes_for_all_its_pods_at_once() {
    let mut server = Server::new(4);
    server.gang("a", 6, |_| {});
    server.settle();
    server.pass(Span::seconds(3));
    server.settle();
    assert!(server.asked.is_empty(), "it may find room in a moment");
    server.pass(Span::seconds(6));
    server.settle();
    let asked: Vec<usize> = server.asked["a"].iter().map(Vec::len).collect();
    assert_eq!(asked, [6], "six equal pods");
    server.add_node("n4");
    server.add_node("n5");
    server.settle();
    assert_eq!((server.standing("a"), server.asked.len()), (6, 0));
}

fn judge(server: &mut Server, uid: &str, node: &str) -> Judged {
    let asked = AskedBinding {
        namespace: String::new(),
        pod: String::new(),
        uid: Some(uid.to_owned()),
        node: node.to_owned(),
    };
    server.scheduler.judge(&asked, server.now)
}

#[test]
fn a_binding_of_another_is_judged_by_what_was_given_away() {
    let mut server = Server::new(1);
    server.gang("a", 1, |pod| pod.needs.gpus = 6);
    let (small, large) = (stranger(1, 2), stranger(2, 3));
    let uids = [server.add_pod(small), server.add_pod(large)];
    server.tell(usize::MAX);
    server.decide();
    assert_eq!(server.standing("a"), 0, "it was given a place and is not bound yet");
    assert_eq!(judge(&mut server, &uids[0], "elsewhere"), Judged::Unknown);
    assert!(matches!(judge(&mut server, &uids[1], "n0"), Judged::Refused(_)), "three beside six of eight");
    assert_eq!(judge(&mut server, &uids[0], "n0"), Judged::Fits);
    assert_eq!(judge(&mut server, &uids[0], "n0"), Judged::Fits, "asked twice is counted once");
    let ours = server.of_gang("a")[0].uid.clone();
    assert_eq!(judge(&mut server, &ours, "n0"), Judged::Fits);
    assert!(matches!(judge(&mut server, &ours, "n1"), Judged::Refused(_) | Judged::Unknown));
    server.settle();
    server.gang("b", 1, |pod| pod.needs.gpus = 1);
    server.settle();
    assert_eq!(server.standing("b"), 0, "what was allowed counts before it is seen");
    server.pass(Span::seconds(11));
    server.settle();
    assert_eq!(server.standing("b"), 1, "it was not bound, so it counts no more");
}

#[test]
fn a_pod_that_is_gone_between_decisions_is_not_counted() {
    let mut server = Server::new(1);
    server.gang("a", 1, |pod| pod.needs.gpus = 6);
    let stranger = server.add_pod(stranger(1, 4));
    server.tell(usize::MAX);
    server.decide();
    assert!(matches!(judge(&mut server, &stranger, "n0"), Judged::Refused(_)));
    let given = server.of_gang("a")[0].uid.clone();
    server.scheduler.pod_gone(&given);
    assert_eq!(judge(&mut server, &stranger, "n0"), Judged::Fits);
}

#[test]
fn room_that_another_scheduler_has_made_is_left_to_it() {
    let mut server = Server::new(1);
    let urgent = server.add_pod(stranger(1, 8));
    server.change_pod(&urgent, |pod| pod.nominated = Some("n0".to_owned()));
    server.gang("a", 1, |pod| pod.needs.gpus = 1);
    server.settle();
    assert_eq!(server.standing("a"), 0);
    server.remove_pod(&urgent);
    server.settle();
    assert_eq!(server.standing("a"), 1);
}

#[test]
fn only_as_many_gangs_give_way_as_must() {
    let mut server = Server::new(1);
    server.gang("a", 1, |pod| pod.needs.gpus = 2);
    server.gang("b", 1, |pod| pod.needs.gpus = 2);
    server.settle();
    let other = server.add_pod(stranger(1, 5));
    let now = server.now;
    server.change_pod(&other, |pod| {
        (pod.node, pod.phase, pod.bound_at) = (Some("n0".to_owned()), PodPhase::Running, Some(now))
    });
    server.tell(usize::MAX);
    (0..5).for_each(|_| server.decide());
    let leaving =
        server.wanted.iter().filter(|(_, action)| matches!(action, PodAction::Evict { .. })).count();
    assert_eq!(leaving, 1, "one of two is enough");
}

#[test]
fn pods_say_that_they_lack_room_once_nodes_were_asked_for() {
    let mut server = Server::new(1);
    server.restart_as(PodScheduler::new(Catalog::builtin(), None).with_requests_for_nodes());
    server.gang("a", 2, |_| {});
    server.settle();
    server.pass(Span::seconds(3));
    server.settle();
    assert!(
        server.words_of("a").iter().all(|words| words.reason == "AsksForNodes"),
        "{:?}",
        server.words_of("a")
    );
    server.pass(Span::seconds(6));
    server.settle();
    assert_eq!(server.asked.len(), 1);
    server.scheduler.asked_for_nodes("a", true);
    server.settle();
    assert!(server.words_of("a").iter().all(|words| words.reason == "Unschedulable"));
}
