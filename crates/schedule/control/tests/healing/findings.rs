//! What the control plane does about what nodes find out about themselves.

use bedplate_control::ClientOrder;
use bedplate_control::wire::{FromAgent, ToAgent};
use bedplate_finding::{Action, Finding, Layer, OpenFinding, Severity, Subject};
use bedplate_gangs::Time;

use super::{Story, gang};

pub(super) fn finding(node: &str, rule: &str, gpu: u32, action: Action, since_ms: u64) -> OpenFinding {
    let subject = Subject::Gpu { node: node.to_owned(), index: gpu };
    let finding =
        Finding::new(rule, Severity::Critical, Layer::Hardware, subject, action).because("it broke");
    OpenFinding { finding, since_ms, seen_ms: since_ms, times: 1 }
}

pub(super) fn finds(story: &mut Story, node: &str, findings: Vec<OpenFinding>) {
    story.says(node, FromAgent::Findings { findings });
}

fn beats(story: &mut Story, node: &str, findings: Vec<OpenFinding>) {
    story.says(node, FromAgent::Heartbeat { sequence: 1, held: Vec::new(), findings });
}

#[test]
fn a_lost_gpu_moves_the_gang_and_keeps_the_node_out() {
    let mut story = Story::new(5);
    let job = story.submit(gang(2));
    assert_eq!(story.stands(job), "running on n1 n2");
    finds(&mut story, "n2", vec![finding("n2", "gpu/xid-79", 3, Action::Reboot, 5)]);
    story.wait(2_000);
    assert_eq!(story.stands(job), "running on n1 n3");
    let (state, reason) = story.node("n2");
    assert_eq!(state, "drained");
    assert_eq!(reason.as_deref(), Some("GPU 3 of node n2: it broke [gpu/xid-79]"));
    assert_eq!(story.control.nodes(Time(story.now))[1].findings.len(), 1);
}

#[test]
fn a_milder_finding_lets_what_runs_finish() {
    let mut story = Story::new(5);
    let job = story.submit(gang(1));
    finds(&mut story, "n1", vec![finding("n1", "gpu/xid-95", 0, Action::ResetDevice, 5)]);
    story.wait(1_000);
    assert_eq!(story.stands(job), "running on n1");
    assert_eq!(story.node("n1").0, "draining");
}

#[test]
fn a_finding_that_only_a_heartbeat_tells_counts_too_and_once() {
    let mut story = Story::new(5);
    let findings = || vec![finding("n1", "gpu/xid-79", 0, Action::Reboot, 5)];
    beats(&mut story, "n1", findings());
    story.wait(500);
    assert_eq!(story.node("n1").0, "drained");
    let notes_before = story.sent.len();
    beats(&mut story, "n1", findings());
    assert_eq!(
        story.sent.iter().skip(notes_before).filter(|(node, _)| node == "n1").count(),
        1,
        "one answer"
    );
}

#[test]
fn an_application_that_lost_its_gpu_starts_again_and_its_neighbour_does_not() {
    let mut story = Story::new(3);
    let (first, second) = (story.submit(gang(1)), story.submit(gang(1)));
    let (run, other) = (story.run_of(first), story.run_of(second));
    finds(&mut story, "n1", vec![finding("n1", "gpu/xid-31", 3, Action::RestartJob, 5)]);
    story.wait(3_000);
    assert!(story.run_of(first).number > run.number, "{}", story.stands(first));
    assert_eq!(story.run_of(second), other);
    assert_eq!(story.node("n1").1, None, "one job's failure accuses no node");
}

#[test]
fn half_of_the_cluster_failing_at_once_is_an_alert_and_nobody_stays_out() {
    let mut story = Story::new(8);
    let job = story.submit(gang(8));
    for number in 1..=5 {
        let node = format!("n{number}");
        finds(&mut story, &node, vec![finding(&node, "gpu/nvlink-errors", 0, Action::Drain, 5)]);
    }
    story.wait(1_000);
    for number in 1..=8 {
        assert_eq!(story.node(&format!("n{number}")), ("allocated".into(), None), "n{number}");
    }
    assert_eq!(story.stands(job), "running on n1 n2 n3 n4 n5 n6 n7 n8");
    assert_eq!(story.control.counts(Time(story.now)).common_cause_nodes, 5);
    // The cause is gone on most of them: those that are left go.
    for number in 1..=4 {
        finds(&mut story, &format!("n{number}"), Vec::new());
    }
    beats(&mut story, "n5", vec![finding("n5", "gpu/nvlink-errors", 0, Action::Drain, 5)]);
    assert_eq!(story.node("n5").0, "draining");
}

#[test]
fn half_of_the_cluster_goes_on_its_own_word_and_the_next_one_waits_for_a_person() {
    let mut story = Story::new(8);
    let drain = |node: &str| ClientOrder::Drain { node: node.into(), reason: "it is slow".into() };
    for node in ["n7", "n8"] {
        story.control.order(drain(node), "ada", Time(story.now)).expect("it is there");
    }
    for number in 1..=4 {
        let node = format!("n{number}");
        finds(&mut story, &node, vec![finding(&node, "gpu/lost", 0, Action::Reboot, 5)]);
    }
    for _ in 0..3 {
        story.says("n5", FromAgent::Unhealthy { reason: "nvidia-smi hangs".into(), run: None });
    }
    let states: Vec<String> = (1..=5).map(|number| story.node(&format!("n{number}")).0).collect();
    assert_eq!(states, ["drained", "drained", "drained", "drained", "idle"]);
    let told = story.notes.iter().filter(|note| note.contains("an operator must look")).count();
    assert_eq!(told, 1, "once, however often it is said: {:?}", story.notes);
}

#[test]
fn an_operator_who_resumes_a_node_is_not_contradicted_by_what_was_known() {
    let mut story = Story::new(5);
    let old = finding("n1", "gpu/xid-79", 0, Action::Reboot, 5);
    finds(&mut story, "n1", vec![old.clone()]);
    assert_eq!(story.node("n1").0, "drained");
    story
        .control
        .order(ClientOrder::Resume { node: "n1".into() }, "ada", Time(story.now))
        .expect("it is drained");
    story.play();
    let told = |(node, message): &(String, ToAgent)| {
        node == "n1" && *message == ToAgent::Acknowledge { until_ms: 5 }
    };
    assert!(story.sent.iter().any(told));
    // A heartbeat that was under way still has it.
    beats(&mut story, "n1", vec![old]);
    assert_eq!(story.node("n1"), ("idle".into(), None));
    finds(&mut story, "n1", vec![finding("n1", "gpu/xid-79", 0, Action::Reboot, 90)]);
    assert_eq!(story.node("n1").0, "drained");
}

#[test]
fn a_node_that_an_operator_drained_stays_out_when_most_of_the_cluster_complains() {
    let mut story = Story::new(8);
    let broken = |node: &str| vec![finding(node, "gpu/nvlink-errors", 0, Action::Drain, 5)];
    finds(&mut story, "n1", broken("n1"));
    let order = ClientOrder::Drain { node: "n1".into(), reason: "its fan is loud".into() };
    story.control.order(order, "ada", Time(story.now)).expect("it is there");
    for number in 2..=5 {
        let node = format!("n{number}");
        finds(&mut story, &node, broken(&node));
    }
    story.wait(1_000);
    assert_eq!(story.control.counts(Time(story.now)).common_cause_nodes, 5);
    let (state, reason) = story.node("n1");
    assert_eq!((state.as_str(), reason.as_deref()), ("drained", Some("its fan is loud (ada)")));
}

#[test]
fn a_node_that_did_not_hear_what_an_operator_knows_is_told_again() {
    let mut story = Story::new(5);
    let old = finding("n1", "gpu/xid-79", 0, Action::Reboot, 5);
    finds(&mut story, "n1", vec![old.clone()]);
    story
        .control
        .order(ClientOrder::Resume { node: "n1".into() }, "ada", Time(story.now))
        .expect("it is drained");
    story.play();
    let told = |story: &Story| {
        let is_it = |(node, message): &&(String, ToAgent)| {
            node == "n1" && *message == ToAgent::Acknowledge { until_ms: 5 }
        };
        story.sent.iter().filter(is_it).count()
    };
    let before = told(&story);
    beats(&mut story, "n1", vec![old]);
    assert_eq!(told(&story), before + 1);
    assert!(story.control.nodes(Time(story.now))[0].findings.is_empty(), "it is known");
}
