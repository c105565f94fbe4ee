//! Stories of gangs: what happens, and what the gang orders.

use bedplate_gangs::{Span, Time};
use bedplate_report::{Checkpoint, Report};
use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

fn rules(size: usize) -> LaunchRules {
    LaunchRules {
        job: 7,
        size,
        ranks_per_node: 2,
        gpus_per_node: 8,
        command: vec!["train".into()],
        retries: 1,
        stuck_after: Some(Span::minutes(1)),
        silent_after: Span::seconds(5),
        stop_patience: Span::seconds(60),
        gather_all: Span::seconds(10),
        gather_enough: Span::seconds(120),
        output: None,
        error: None,
        input: None,
    }
}

struct Story {
    gang: LaunchedGang,
    now: Time,
    told: Vec<String>,
}

impl Story {
    fn new(nodes: usize, size: usize) -> Self {
        Self::with(nodes, size, LaunchRecord::default())
    }

    fn with(nodes: usize, size: usize, record: LaunchRecord) -> Self {
        let names: Vec<String> = (0..nodes).map(|node| format!("n{node}")).collect();
        let gang = LaunchedGang::new(rules(size), &names, record, Time::ZERO);
        Self { gang, now: Time::ZERO, told: Vec::new() }
    }

    /// All nodes connect and are well.
    fn running(nodes: usize, size: usize) -> Self {
        let mut story = Self::new(nodes, size);
        (0..nodes).for_each(|node| story.link(node));
        (0..nodes).for_each(|node| story.ready(node));
        story
    }

    fn link(&mut self, node: usize) {
        self.gang.linked(node, format!("10.0.0.{node}"), self.now);
        self.tell();
    }

    fn ready(&mut self, node: usize) {
        self.gang.ready(node, 2000 + node as u16, None, self.now);
        self.tell();
    }

    fn unwell(&mut self, node: usize) {
        self.gang.ready(node, 1, Some("GPU 3 is gone".into()), self.now);
        self.tell();
    }

    fn lose(&mut self, node: usize) {
        self.gang.lost(node, &Loss::Closed("its connection closed".into()), self.now);
        self.tell();
    }

    fn rank(&mut self, node: usize, rank: u32, code: i32) {
        let run = self.gang.record().runs;
        self.gang.rank_ended(node, run, rank, End::Code(code), self.now);
        self.tell();
    }

    fn report(&mut self, node: usize, report: Report) {
        let run = self.gang.record().runs;
        self.gang.reported(node, run, &report, self.now);
        self.tell();
    }

    fn checkpoint(&mut self, step: u64) {
        self.report(0, Report::Checkpoint(Checkpoint { step, path: Some(format!("/c/{step}")) }));
    }

    /// Time passes, and these nodes send heartbeats.
    fn pass(&mut self, span: Span, alive: &[usize]) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.now + Span(500);
            alive.iter().for_each(|node| self.gang.heard(*node, self.now));
            self.gang.tick(self.now);
        }
        self.tell();
    }

    fn tell(&mut self) {
        for order in self.gang.take_orders() {
            self.told.extend(match order {
                LauncherOrder::Send { node, message: ToNode::Start(start) } => {
                    let ranks: Vec<String> = start.ranks.iter().map(u32::to_string).collect();
                    Some(format!("n{node}: start ranks {}", ranks.join(",")))
                }
                LauncherOrder::Send { node, message } => Some(format!("n{node}: {message:?}").to_lowercase()),
                LauncherOrder::LeaveOut { reason, absence, .. } => {
                    Some(format!("out, {absence:?}: {reason}"))
                }
                LauncherOrder::Say { text, .. } => Some(text),
                LauncherOrder::Save => None,
                LauncherOrder::Requeue { why } => Some(format!("requeue: {why}")),
                LauncherOrder::End { code } => Some(format!("end {code}")),
            });
        }
    }

    fn check(&mut self, expected: Expect) {
        expected.assert_eq(&(std::mem::take(&mut self.told).join("\n") + "\n"));
    }
}

#[test]
fn a_gang_starts_when_all_nodes_are_ready_and_ends_with_its_ranks() {
    let mut story = Story::running(3, 2);
    story.check(expect![[r#"
        n0: prepare
        n1: prepare
        n2: prepare
        run 1 starts on n0,n1
        n0: start ranks 0,1
        n1: start ranks 2,3
    "#]]);
    for (node, rank) in [(0, 0), (1, 2), (1, 3), (0, 1)] {
        story.rank(node, rank, 0);
    }
    story.check(expect![[r#"
        end 0
    "#]]);
    assert!(story.gang.is_over());
}

#[test]
fn a_spare_takes_the_place_of_a_lost_node_and_the_others_keep_theirs() {
    let mut story = Story::running(3, 2);
    story.checkpoint(40);
    story.told.clear();
    story.lose(0);
    story.ready(1);
    story.check(expect![[r#"
        out, Lost: node n0 is lost: its connection closed
        n1: prepare
        run 2 starts on n2,n1 from step 40
        n2: start ranks 0,1
        n1: start ranks 2,3
    "#]]);
}

#[test]
fn a_rank_that_fails_moments_before_its_peers_node_falls_silent_is_not_blamed() {
    let mut story = Story::running(3, 2);
    story.told.clear();
    story.rank(1, 2, 1);
    story.ready(1);
    story.pass(Span::seconds(4), &[1, 2]);
    story.check(expect![[r#"
        rank 2 on node n1 ended with exit code 1
        n0: prepare
        n1: prepare
    "#]]);
    story.pass(Span::seconds(3), &[1, 2]);
    story.check(expect![[r#"
        out, Lost: node n0 is lost: it no longer answers
        run 2 starts on n2,n1
        n2: start ranks 0,1
        n1: start ranks 2,3
    "#]]);
}

#[test]
fn a_node_whose_check_fails_is_left_out_and_the_failure_costs_no_retry() {
    let mut story = Story::running(3, 2);
    story.told.clear();
    story.rank(0, 0, 1);
    story.ready(1);
    story.unwell(0);
    story.check(expect![[r#"
        rank 0 on node n0 ended with exit code 1
        n0: prepare
        n1: prepare
        out, Unwell: node n0 is not well: GPU 3 is gone
        run 2 starts on n2,n1
        n2: start ranks 0,1
        n1: start ranks 2,3
    "#]]);
    assert_eq!(story.gang.record().failures, 0);
}

#[test]
fn a_job_that_fails_by_itself_has_its_retries_and_ends_with_the_code_of_its_rank() {
    let mut story = Story::running(2, 2);
    story.told.clear();
    for _ in 0..2 {
        story.rank(1, 2, 9);
        story.ready(0);
        story.ready(1);
    }
    story.check(expect![[r#"
        rank 2 on node n1 ended with exit code 9
        n0: prepare
        n1: prepare
        run 2 starts on n0,n1
        n0: start ranks 0,1
        n1: start ranks 2,3
        rank 2 on node n1 ended with exit code 9
        n0: prepare
        n1: prepare
        the job failed by itself, with 1 retries allowed
        end 9
    "#]]);
}

#[test]
fn without_a_spare_the_job_goes_back_to_the_queue() {
    let mut story = Story::running(2, 2);
    story.told.clear();
    story.lose(1);
    story.ready(0);
    story.check(expect![[r#"
        out, Lost: node n1 is lost: its connection closed
        n0: prepare
        requeue: 1 of the 2 nodes that the gang needs are left
    "#]]);
}

#[test]
fn nodes_whose_helpers_never_come_are_not_blamed_and_without_any_the_launch_ends() {
    let mut story = Story::new(2, 1);
    story.lose(0);
    story.lose(1);
    story.check(expect![[r#"
        out, Avoided: node n0 cannot be used: its connection closed
        out, Avoided: node n1 cannot be used: its connection closed
        no node could be used: is this program installed at the same place on all nodes?
        end 1
    "#]]);
}

#[test]
fn of_many_nodes_lost_at_once_at_most_half_are_held_against_the_nodes() {
    let mut story = Story::running(5, 2);
    story.told.clear();
    for node in [2, 3, 4] {
        story.lose(node);
    }
    story.check(expect![[r#"
        out, Lost: node n2 is lost: its connection closed
        out, Lost: node n3 is lost: its connection closed
        out, OneOfMany: node n4 is lost: its connection closed
    "#]]);
}

#[test]
fn a_job_does_not_go_back_to_the_queue_for_ever() {
    let mut story = Story::with(2, 2, LaunchRecord { returns: 10, ..LaunchRecord::default() });
    story.link(0);
    story.told.clear();
    story.lose(1);
    story.check(expect![[r#"
        out, Avoided: node n1 cannot be used: its connection closed
        0 of the 2 nodes that the gang needs are left, and the job went back to the queue 10 times without a newer checkpoint
        end 1
    "#]]);
}

#[test]
fn a_job_that_came_back_with_too_few_nodes_goes_back_and_does_not_run_smaller() {
    let mut story = Story::new(2, 3);
    story.pass(Span::seconds(1), &[]);
    story.check(expect![[r#"
        requeue: 0 of the 3 nodes that the gang needs are left
    "#]]);
}

#[test]
fn a_job_that_comes_back_goes_on_from_its_checkpoint_without_the_nodes_left_out() {
    let record = LaunchRecord {
        checkpoint: Some(Checkpoint { step: 40, path: None }),
        nodes: 3,
        runs: 3,
        failures: 1,
        returns: 1,
        out: [("n0".to_owned(), "it was lost".to_owned())].into(),
    };
    let mut story = Story::with(3, 2, record);
    assert!(!story.gang.is_used(0));
    for node in [1, 2] {
        story.link(node);
        story.ready(node);
    }
    story.check(expect![[r#"
        n1: prepare
        n2: prepare
        run 4 starts on n1,n2 from step 40
        n1: start ranks 0,1
        n2: start ranks 2,3
    "#]]);
}

#[test]
fn a_run_without_progress_is_stuck_and_the_node_behind_the_others_answers() {
    let mut story = Story::running(3, 2);
    story.told.clear();
    for (node, step) in [(0, 5), (1, 4)] {
        story.report(node, Report::Progress { step });
    }
    story.pass(Span::seconds(61), &[0, 1, 2]);
    story.ready(0);
    story.ready(1);
    story.check(expect![[r#"
        no step has ended for 1m
        n0: prepare
        n1: prepare
        run 2 starts on n0,n1
        n0: start ranks 0,1
        n1: start ranks 2,3
    "#]]);
}

#[test]
fn nodes_that_never_come_are_not_waited_for_when_enough_are_there() {
    let mut story = Story::new(3, 2);
    for node in [0, 2] {
        story.link(node);
        story.ready(node);
    }
    story.check(expect![[r#"
        n0: prepare
        n2: prepare
    "#]]);
    story.pass(Span::seconds(11), &[0, 2]);
    story.check(expect![[r#"
        run 1 starts on n0,n2
        n0: start ranks 0,1
        n2: start ranks 2,3
    "#]]);
}

#[test]
fn too_few_nodes_at_the_beginning_go_back_to_the_queue_after_a_while() {
    let mut story = Story::new(3, 2);
    story.link(0);
    story.ready(0);
    story.told.clear();
    story.pass(Span::seconds(121), &[0]);
    story.check(expect![[r#"
        requeue: 1 of the 2 nodes that the gang needs are left
    "#]]);
}

#[test]
fn a_node_that_does_not_get_rid_of_its_ranks_is_left_out() {
    let mut story = Story::running(3, 2);
    story.told.clear();
    story.rank(0, 0, 1);
    story.ready(1);
    story.pass(Span::seconds(61), &[0, 1, 2]);
    story.check(expect![[r#"
        rank 0 on node n0 ended with exit code 1
        n0: prepare
        n1: prepare
        out, Lost: node n0 is lost: it does not get rid of its ranks
        run 2 starts on n2,n1
        n2: start ranks 0,1
        n1: start ranks 2,3
    "#]]);
}

#[test]
fn the_budget_of_restarts_ends_a_job_whose_nodes_vanish_one_after_the_other() {
    let mut story = Story::running(20, 2);
    story.gang.rules.stuck_after = None;
    for _ in 0..20 {
        if story.gang.is_over() {
            break;
        }
        let names: Vec<String> = story.gang.running().iter().map(|name| (*name).to_owned()).collect();
        let of = |name: &String| name[1..].parse::<usize>().unwrap();
        story.lose(of(&names[0]));
        story.ready(of(&names[1]));
        story.pass(Span::minutes(6), &(0..20).collect::<Vec<usize>>());
    }
    let last = story.told.iter().rev().take(2).cloned().collect::<Vec<_>>();
    expect![[r#"
        end 1
        the job was restarted 10 times without a newer checkpoint"#]]
    .assert_eq(&last.join("\n"));
}

#[derive(Debug, Clone)]
enum Step {
    Link(usize),
    Ready(usize, bool),
    Lose(usize),
    Rank(usize, u32, i32),
    Pass(u64, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..5_usize;
    prop_oneof![
        node.clone().prop_map(Step::Link),
        (node.clone(), prop::bool::weighted(0.9)).prop_map(|(node, well)| Step::Ready(node, well)),
        node.clone().prop_map(Step::Lose),
        (node, 0..6_u32, 0..2_i32).prop_map(|(node, rank, code)| Step::Rank(node, rank, code)),
        (0..20_000_u64, any::<u8>()).prop_map(|(ms, alive)| Step::Pass(ms, alive)),
    ]
}

proptest! {
    /// Whatever happens: ranks start only on nodes that are ready, all of them or none, and each node once.
    #[test]
    fn a_run_is_whole_and_uses_only_nodes_that_are_ready(steps in prop::collection::vec(step(), 0..80)) {
        let mut story = Story::new(5, 3);
        let mut usable = BTreeSet::new();
        for step in steps {
            match step {
                Step::Link(node) => story.gang.linked(node, String::new(), story.now),
                Step::Ready(node, true) => story.gang.ready(node, 1, None, story.now),
                Step::Ready(node, false) => story.gang.ready(node, 1, Some("ill".into()), story.now),
                Step::Lose(node) => story.gang.lost(node, &Loss::Silent, story.now),
                Step::Rank(node, rank, code) => {
                    let run = story.gang.record().runs;
                    story.gang.rank_ended(node, run, rank, End::Code(code), story.now);
                }
                Step::Pass(ms, alive) => {
                    story.now = story.now + Span(ms);
                    (0..5).filter(|node| alive >> node & 1 == 1).for_each(|node| story.gang.heard(node, story.now));
                    story.gang.tick(story.now);
                }
            }
            let mut started = BTreeSet::new();
            for order in story.gang.take_orders() {
                match order {
                    LauncherOrder::Send { node, message: ToNode::Prepare } => drop(usable.insert(node)),
                    LauncherOrder::LeaveOut { node, .. } => drop(usable.remove(&node)),
                    LauncherOrder::Send { node, message: ToNode::Start(start) } => {
                        prop_assert!(usable.contains(&node) && started.insert(node));
                        prop_assert_eq!(start.peers.len(), 3);
                        prop_assert_eq!(start.world_size, 6);
                    }
                    _ => {}
                }
            }
            prop_assert!(started.is_empty() || started.len() == 3);
        }
    }
}
