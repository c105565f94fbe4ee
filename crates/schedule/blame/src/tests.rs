//! The rules of blame, case by case, and as laws over random histories.

use bedplate_gangs::counted::looked_at;
use bedplate_gangs::{JobId, Span, Time, UserId};
use bedplate_testkit::counting::assert_at_most;
use bedplate_topology::NodeId;
use proptest::prelude::*;

use super::*;

const EIGHT: Circumstances = Circumstances { nodes: 8, nodes_out: 0, nodes_proven: 0 };

/// Each user has a program of their own.
fn fault(job: u64, user: u32, node: u32) -> JobFault {
    let program = Program(user.into());
    JobFault {
        job: JobId(job),
        user: UserId(user),
        program,
        gpus: 8,
        node: NodeId(node),
        kind: FaultKind::Probe,
    }
}

fn blame() -> Blame {
    Blame::new(BlamePolicy::default())
}

impl Blame {
    fn hears(&mut self, fault: JobFault) -> Verdict {
        self.job_failed(fault, || EIGHT, Time::ZERO)
    }
}

#[test]
fn a_job_that_fails_everywhere_ends_and_takes_no_node_with_it() {
    let mut blame = blame();
    let verdicts: Vec<Verdict> = (0..3).map(|node| blame.hears(fault(1, 0, node))).collect();
    assert!(verdicts.iter().all(|verdict| verdict.node == NodeVerdict::Keep));
    assert_eq!(verdicts[2].job, JobVerdict::End { nodes: 3 });
}

#[test]
fn a_user_alone_costs_a_node_no_more_than_a_check() {
    let mut blame = blame();
    assert_eq!(blame.hears(fault(1, 0, 0)).node, NodeVerdict::Keep);
    assert_eq!(blame.hears(fault(2, 0, 0)).node, NodeVerdict::Check { jobs: 2 });
    for job in 3..1_000 {
        let program = Program(job);
        assert_eq!(
            blame.hears(JobFault { program, ..fault(job, 0, 0) }).node,
            NodeVerdict::Keep,
            "it was asked"
        );
    }
    let later = Time::ZERO + Span::minutes(11);
    let again = blame.job_failed(fault(2_000, 0, 0), || EIGHT, later).node;
    assert!(matches!(again, NodeVerdict::Check { .. }), "{again:?}");
    assert_eq!(blame.job_failed(fault(2_001, 1, 0), || EIGHT, later).node, NodeVerdict::Suspect { users: 2 });
}

#[test]
fn one_program_is_one_witness_whoever_runs_it() {
    let mut blame = blame();
    let of_array = |job, user| JobFault { program: Program(9), ..fault(job, user, 0) };
    assert_eq!(blame.hears(of_array(1, 0)).node, NodeVerdict::Keep);
    assert_eq!(blame.hears(of_array(2, 1)).node, NodeVerdict::Check { jobs: 2 });
    assert_eq!(blame.hears(of_array(3, 2)).node, NodeVerdict::Keep);
    assert_eq!(blame.hears(fault(4, 3, 0)).node, NodeVerdict::Suspect { users: 2 });
}

#[test]
fn the_only_node_is_never_suspected() {
    let mut blame = blame();
    let alone = || Circumstances { nodes: 1, ..EIGHT };
    for user in 0..20 {
        let verdict = blame.job_failed(fault(user.into(), user, 0), alone, Time::ZERO).node;
        assert!(!verdict.takes_out(), "{verdict:?}");
    }
    assert_eq!(blame.check_failed(alone()), NodeVerdict::Unhealthy, "its own check counts");
}

#[test]
fn what_succeeds_there_since_speaks_for_the_node() {
    let mut blame = blame();
    blame.hears(fault(1, 0, 0));
    blame.job_succeeded(NodeId(0), 1);
    assert_eq!(
        blame.hears(fault(2, 1, 0)).node,
        NodeVerdict::Suspect { users: 2 },
        "it had one GPU of eight"
    );
    blame.job_succeeded(NodeId(0), 8);
    assert_eq!(blame.hears(fault(3, 2, 0)).node, NodeVerdict::Keep);
}

#[test]
fn a_check_that_finds_nothing_clears_the_node() {
    let mut blame = blame();
    blame.hears(fault(1, 0, 0));
    assert_eq!(blame.hears(fault(2, 0, 0)).node, NodeVerdict::Check { jobs: 2 });
    blame.check_passed(NodeId(0));
    assert_eq!(blame.hears(fault(3, 1, 0)).node, NodeVerdict::Keep);
}

#[test]
fn a_program_that_failed_elsewhere_is_no_witness() {
    let mut blame = blame();
    blame.hears(fault(1, 0, 5));
    // Another job of the same program.
    blame.hears(fault(2, 0, 0));
    assert_eq!(blame.hears(fault(3, 1, 0)).node, NodeVerdict::Keep);
}

#[test]
fn suspicions_do_not_keep_proven_nodes_in_service() {
    let mut blame = blame();
    let around = |nodes_out, nodes_proven| Circumstances { nodes: 8, nodes_out, nodes_proven };
    assert_eq!(blame.check_failed(around(2, 0)), NodeVerdict::Unhealthy);
    assert_eq!(blame.found(3, around(6, 3)), NodeVerdict::Unhealthy);
    assert_eq!(blame.check_failed(around(8, 4)), NodeVerdict::TooManyOut { out: 4 });
    blame.hears(fault(1, 0, 0));
    let full = || around(2, 0);
    assert_eq!(blame.job_failed(fault(2, 1, 0), full, Time::ZERO).node, NodeVerdict::TooManyOut { out: 2 });
}

#[test]
fn ten_thousand_failing_epilogs_cost_as_little_each_as_ten() {
    let cost = |faults: u64| {
        let mut blame = blame();
        let before = looked_at();
        for job in 0..faults {
            let program = Program(job % 50);
            let at = Time::ZERO + Span(job);
            blame.job_failed(
                JobFault { program, ..fault(job, (job % 3) as u32, (job % 7) as u32) },
                || EIGHT,
                at,
            );
        }
        (looked_at() - before) / faults
    };
    assert_at_most("entries looked at for a failure among 10,000", cost(10_000), 2 * cost(1_000) + 60);
    assert_at_most("entries looked at for a failure among 10,000", cost(10_000), 120);
}

#[test]
fn a_job_that_fails_on_many_nodes_avoids_none() {
    let mut blame = blame();
    for node in [0, 0, 1, 1] {
        blame.hears(fault(1, 0, node));
    }
    let avoided = |blame: &Blame| (0..8).filter(|node| blame.avoids(JobId(1), NodeId(*node))).count();
    assert_eq!(avoided(&blame), 2);
    blame.hears(fault(1, 0, 2));
    assert_eq!(avoided(&blame), 0);
}

#[test]
fn evidence_expires_and_an_operator_can_forgive() {
    let mut blame = blame();
    blame.hears(fault(1, 0, 0));
    let later = Time::ZERO + Span::hours(2);
    assert_eq!(blame.job_failed(fault(2, 1, 0), || EIGHT, later).node, NodeVerdict::Keep);
    blame.forgive(NodeId(0));
    assert_eq!(blame.job_failed(fault(3, 2, 0), || EIGHT, later).node, NodeVerdict::Keep);
}

#[test]
fn a_job_is_not_forgiven_with_its_nodes() {
    let mut blame = blame();
    let verdicts: Vec<JobVerdict> = (0..3)
        .map(|node| {
            let verdict = blame.hears(fault(1, 0, node)).job;
            blame.forgive(NodeId(node));
            verdict
        })
        .collect();
    assert_eq!(verdicts, [JobVerdict::GoOn, JobVerdict::GoOn, JobVerdict::End { nodes: 3 }]);
}

#[test]
fn a_flapping_node_goes_out_but_not_the_whole_cluster() {
    let mut blame = blame();
    let lose = |blame: &mut Blame, seconds, nodes_out| {
        blame.node_lost(NodeId(0), Circumstances { nodes_out, ..EIGHT }, Time::seconds(seconds))
    };
    assert_eq!(lose(&mut blame, 0, 0), NodeVerdict::Keep);
    assert_eq!(lose(&mut blame, 60, 0), NodeVerdict::Keep);
    assert_eq!(lose(&mut blame, 120, 0), NodeVerdict::Flapping { losses: 3 });
    assert_eq!(lose(&mut blame, 121, 2), NodeVerdict::TooManyOut { out: 2 });
    assert_eq!(lose(&mut blame, 10_000, 0), NodeVerdict::Keep);
}

#[test]
fn restarts_pause_longer_and_longer_and_end() {
    let mut blame = blame();
    let mut restart = || blame.restart(JobId(1), RestartCause::Failure, Span::ZERO);
    let pauses: Vec<Restart> = (0..5).map(|_| restart()).collect();
    assert_eq!(pauses, [0, 1, 2, 4, 8].map(|seconds| Restart::After(Span::seconds(seconds))));
    let rest: Vec<Restart> = (5..11).map(|_| restart()).collect();
    assert_eq!(rest[5], Restart::Exhausted { restarts: 10 });
}

#[test]
fn the_first_reported_faults_of_gpus_are_free_and_then_the_budget_pays() {
    let mut blame = blame();
    let mut fail = |at: u64| {
        let now = Time::ZERO + Span::seconds(at);
        let reported = JobFault { kind: FaultKind::ReportedDevice, ..fault(1, 0, 0) };
        assert_eq!(blame.job_failed(reported, || EIGHT, now).node, NodeVerdict::Keep, "one job's word");
        let restart = blame.restart(JobId(1), RestartCause::ReportedDevice, Span::ZERO);
        (restart, blame.restarts(JobId(1)))
    };
    assert_eq!(fail(0), (Restart::After(Span::ZERO), 0));
    assert_eq!(fail(1), (Restart::After(Span::seconds(1)), 0));
    for used in 1..=10 {
        assert_eq!(fail(2).1, used);
    }
    assert_eq!(fail(3).0, Restart::Exhausted { restarts: 10 });
    // They are forgotten with the window, and excused again.
    assert_eq!(fail(7200), (Restart::After(Span::ZERO), 10));
}

#[test]
fn progress_a_steady_run_and_moves_cost_nothing() {
    let mut blame = blame();
    for _ in 0..10 {
        blame.restart(JobId(1), RestartCause::Failure, Span::ZERO);
    }
    assert_eq!(blame.restart(JobId(1), RestartCause::Moved, Span::ZERO), Restart::After(Span::ZERO));
    assert_eq!(blame.restart(JobId(1), RestartCause::Failure, Span::hours(1)), Restart::After(Span::ZERO));
    for _ in 0..9 {
        blame.restart(JobId(1), RestartCause::Failure, Span::ZERO);
    }
    blame.progressed(JobId(1));
    assert_eq!(blame.restart(JobId(1), RestartCause::Failure, Span::ZERO), Restart::After(Span::ZERO));
}

proptest! {
    /// One job, or one user among several, never takes a node out, whatever it does.
    #[test]
    fn one_user_harms_no_node(faults in prop::collection::vec((0u64..4, 0u32..6), 0..60)) {
        let mut blame = blame();
        for (job, node) in faults {
            let verdict = blame.hears(JobFault { program: Program(job), ..fault(job, 7, node) });
            prop_assert!(!verdict.node.takes_out());
        }
    }

    /// A job that keeps failing ends after a bounded number of restarts.
    #[test]
    fn every_failing_job_ends(used in 0u32..5) {
        let mut blame = blame();
        blame.restore_restarts(JobId(1), used);
        let ends = (0..=BlamePolicy::default().most_restarts)
            .any(|_| matches!(blame.restart(JobId(1), RestartCause::Failure, Span::ZERO), Restart::Exhausted { .. }));
        prop_assert!(ends);
    }
}

#[test]
fn a_nodes_finding_takes_it_out_unless_half_of_the_cluster_has_one() {
    let blame = Blame::new(BlamePolicy::default());
    let around = |nodes, nodes_proven| Circumstances { nodes, nodes_out: nodes_proven, nodes_proven };
    assert_eq!(blame.found(1, around(8, 0)), NodeVerdict::Unhealthy);
    assert_eq!(blame.found(4, around(8, 3)), NodeVerdict::Unhealthy);
    assert_eq!(blame.found(4, around(8, 4)), NodeVerdict::TooManyOut { out: 4 });
    assert_eq!(blame.found(5, around(8, 2)), NodeVerdict::Common { nodes: 5 });
    assert!(!NodeVerdict::Common { nodes: 5 }.takes_out());
    // A cluster of one has nothing to compare with.
    assert_eq!(blame.found(1, around(1, 0)), NodeVerdict::Unhealthy);
}
