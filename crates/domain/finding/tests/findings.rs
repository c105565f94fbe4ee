//! Findings name their subject, and the strongest action on a node wins.

use bedplate_finding::*;

fn gpu(node: &str, index: u32) -> Subject {
    Subject::Gpu { node: node.into(), index }
}

fn finding(subject: Subject, action: Action) -> Finding {
    Finding::new("test/rule", Severity::Warning, Layer::Hardware, subject, action)
}

#[test]
fn a_node_answers_for_its_devices_and_for_nothing_else() {
    let findings = [
        finding(gpu("n1", 0), Action::Watch),
        finding(gpu("n1", 7), Action::Drain),
        finding(gpu("n2", 0), Action::Replace),
        finding(Subject::Rank { job: "7".into(), rank: 3 }, Action::RestartJob),
    ];
    let strongest = |subject| strongest_action(&findings, &subject);
    assert_eq!(strongest(Subject::Node { node: "n1".into() }), Some(Action::Drain));
    assert_eq!(strongest(gpu("n1", 0)), Some(Action::Watch));
    assert_eq!(strongest(Subject::Job { job: "7".into() }), Some(Action::RestartJob));
    assert_eq!(strongest(Subject::Job { job: "8".into() }), None);
    assert_eq!(strongest(Subject::Cluster), Some(Action::Replace));
}

#[test]
fn actions_are_ordered_from_mild_to_strong_and_say_what_they_interrupt() {
    assert!(Action::ALL.is_sorted());
    assert!(Action::Drain.takes_node_out_of_service() && !Action::Drain.interrupts_jobs());
    assert!(Action::RestartJob.interrupts_jobs() && !Action::RestartJob.takes_node_out_of_service());
    assert!(!Action::Watch.takes_node_out_of_service());
}

#[test]
fn a_finding_reads_as_one_line() {
    let found = finding(gpu("n1", 4), Action::Replace).because("has fallen off the bus").with_confidence(7.0);
    assert_eq!(found.to_string(), "warning [test/rule] GPU 4 of node n1: has fallen off the bus");
    assert_eq!(found.confidence, 1.0);
    assert_eq!(found.with_confidence(f64::NAN).confidence, 0.0);
}
