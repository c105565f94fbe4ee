//! Gangs whose ranks go on by themselves while nodes are lost and come.

use bedplate_finding::Action;
use bedplate_job::Elastic;

use super::findings::{finding, finds};
use super::*;

/// A gang that survives, whose first rank has said how far it is.
fn surviving(story: &mut Story, nodes: u32, elastic: Option<Elastic>) -> JobId {
    let mut job = gang(nodes);
    job.policy.survives = true;
    job.gang.roles[0].elastic = elastic;
    let job = story.submit(job);
    let run = story.run_of(job);
    story.says("n1", reports(run, 0, Report::Progress { step: 1 }));
    story.sent.clear();
    job
}

fn loses(story: &mut Story, node: &str) {
    story.control.unlinked(story.link(node), Unlinked::Closed, Time(story.now));
    story.wait(1_500);
}

fn stopped(story: &Story) -> Vec<&str> {
    let stops = story.sent.iter().filter(|(_, message)| matches!(message, ToAgent::Stop { .. }));
    stops.map(|(node, _)| node.as_str()).collect()
}

fn launch_of(story: &Story, node: &str) -> (u32, Option<u32>, Vec<u32>) {
    let launch = &story.launches[node];
    (launch.run.number, launch.joins, launch.ranks.clone())
}

#[test]
fn a_lost_node_is_replaced_while_the_others_go_on() {
    let mut story = Story::new(4);
    let job = surviving(&mut story, 3, None);
    loses(&mut story, "n2");
    assert_eq!(story.stands(job), "running on n1 n4 n3");
    assert_eq!(stopped(&story), [""; 0], "nobody is stopped");
    assert_eq!(launch_of(&story, "n4"), (2, Some(1), vec![1]), "its ranks join those of the first run");
    let goes: Vec<&str> = story
        .sent
        .iter()
        .filter(|(_, message)| matches!(message, ToAgent::Go { .. }))
        .map(|(node, _)| node.as_str())
        .collect();
    assert_eq!(goes, ["n4"]);
    // All end: those that stayed under the name that they know.
    for (node, number) in [("n1", 1), ("n3", 1), ("n4", 2)] {
        let run = RunId { job: job.0, number };
        story.says(node, FromAgent::Released { run, end: NodeEnd::default() });
    }
    assert_eq!(story.ended.get(&job).copied(), Some(JobState::Succeeded));
}

#[test]
fn without_a_spare_an_elastic_gang_goes_on_smaller_and_grows_when_the_node_is_back() {
    let mut story = Story::new(3);
    let job = surviving(&mut story, 3, Some(Elastic { min: 2, max: 3, step: 1 }));
    loses(&mut story, "n2");
    assert_eq!(story.stands(job), "running on n1 n3");
    assert_eq!(stopped(&story), [""; 0]);
    story.join("n2");
    story.wait(120_000);
    assert_eq!(story.stands(job), "running on n1 n3 n2");
    assert_eq!(launch_of(&story, "n2"), (3, Some(1), vec![1]), "with the rank that is free");
    assert_eq!(stopped(&story), [""; 0]);
}

#[test]
fn a_killed_rank_is_started_again_on_its_node_and_joins_the_others() {
    let mut story = Story::new(2);
    let job = surviving(&mut story, 2, None);
    let run = story.run_of(job);
    story.says("n2", FromAgent::RankFailed { run, rank: 1, end: RankEnd::Signal(9) });
    assert_eq!(story.stands(job), "running on n1 n2");
    assert_eq!(stopped(&story), ["n2"], "what else the node has of it goes");
    assert_eq!(launch_of(&story, "n2"), (2, Some(1), vec![1]));
}

#[test]
fn a_rank_that_fails_by_itself_fails_the_job() {
    let mut story = Story::new(3);
    let job = surviving(&mut story, 2, None);
    let run = story.run_of(job);
    story.says("n2", FromAgent::RankFailed { run, rank: 1, end: RankEnd::Exit(1) });
    assert_eq!(story.ended.get(&job).copied(), Some(JobState::Failed));
}

#[test]
fn ranks_that_cannot_go_on_without_a_lost_node_start_again_from_the_checkpoint() {
    let mut story = Story::new(4);
    let job = surviving(&mut story, 3, None);
    loses(&mut story, "n2");
    let run = RunId { job: job.0, number: 1 };
    story.says("n1", FromAgent::RankFailed { run, rank: 0, end: RankEnd::Exit(1) });
    story.wait(5_000);
    assert_eq!(story.stands(job), "running on n1 n3 n4");
    let launch = &story.launches["n1"];
    assert_eq!((launch.run.number, launch.joins), (3, None), "all begin anew");
}

#[test]
fn before_its_ranks_have_met_a_gang_starts_again_as_a_whole() {
    let mut story = Story::new(3);
    let mut job = gang(2);
    job.policy.survives = true;
    let job = story.submit(job);
    loses(&mut story, "n2");
    assert_eq!(story.stands(job), "running on n1 n3");
    assert_eq!((story.launches["n1"].run.number, story.launches["n1"].joins), (2, None));
}

#[test]
fn a_newcomer_whose_prolog_fails_costs_a_restart_elsewhere() {
    let mut story = Story::new(4);
    let job = surviving(&mut story, 2, None);
    story.bad_prolog = Some("n3".into());
    loses(&mut story, "n2");
    story.wait(5_000);
    assert_eq!(story.stands(job), "running on n1 n4");
}

#[test]
fn a_control_plane_that_starts_again_knows_every_node_by_its_own_run() {
    let mut story = Story::new(4);
    let mut records = Vec::new();
    let mut job = gang(3);
    job.policy.survives = true;
    let job = {
        let accepted =
            story.control.submit(Submission::new("ada", job), Time(story.now)).expect("it can run");
        records.extend(story.play_and_record());
        accepted.first
    };
    let run = story.run_of(job);
    story.control.heard(story.link("n1"), reports(run, 0, Report::Progress { step: 1 }), Time(story.now));
    records.extend(story.play_and_record());
    story.control.unlinked(story.link("n2"), Unlinked::Closed, Time(story.now));
    for _ in 0..6 {
        story.now += 250;
        for node in ["n1", "n3", "n4"] {
            story.control.heard(story.link(node), FromAgent::Healthy, Time(story.now));
        }
        story.control.tick(Time(story.now));
        records.extend(story.play_and_record());
    }
    assert_eq!(story.stands(job), "running on n1 n4 n3");

    let mut again = story.restarted(records);
    for (node, number) in [("n1", 1), ("n3", 1), ("n4", 2)] {
        let held = vec![HeldRun {
            run: RunId { job: job.0, number },
            phase: HeldPhase::Running,
            is_suspended: false,
        }];
        again.join_holding(node, held);
    }
    assert_eq!(again.stands(job), "running on n1 n4 n3");
    assert_eq!(stopped(&again), [""; 0], "what runs is what should run");

    // A node that was started anew joins again, and knows where the others once met.
    again.says("n1", reports(RunId { job: job.0, number: 1 }, 0, Report::Progress { step: 2 }));
    again.now += 250;
    again.control.unlinked(again.link("n3"), Unlinked::Closed, Time(again.now));
    again.join_holding("n3", Vec::new());
    assert_eq!(again.stands(job), "running on n1 n4 n3");
    assert_eq!(launch_of(&again, "n3"), (3, Some(1), vec![2]));
    let goes = |(node, message): &(String, ToAgent)| match message {
        ToAgent::Go { master_port, .. } => Some((node.clone(), *master_port)),
        _ => None,
    };
    // The node that was lost before may still run the rank that left; nobody takes part until that is known to be gone.
    assert_eq!(again.sent.iter().find_map(goes), None);
    let left = RunId { job: job.0, number: 1 };
    again.is_mute.push("n2".into());
    again.join_holding("n2", vec![HeldRun { run: left, phase: HeldPhase::Running, is_suspended: false }]);
    assert_eq!(stopped(&again), ["n2"]);
    assert_eq!(again.sent.iter().find_map(goes), None);
    again.says("n2", FromAgent::Released { run: left, end: NodeEnd::default() });
    assert_eq!(again.sent.iter().filter_map(goes).collect::<Vec<_>>(), [("n3".to_owned(), 29_500)]);
}

#[test]
fn a_newcomer_waits_for_the_end_of_the_ranks_whose_place_it_takes() {
    let mut story = Story::new(4);
    let job = surviving(&mut story, 3, None);
    story.is_mute.push("n2".into());
    finds(&mut story, "n2", vec![finding("n2", "gpu/xid-79", 3, Action::Reboot, 5)]);
    assert_eq!(story.stands(job), "running on n1 n4 n3");
    assert_eq!(stopped(&story), ["n2"]);
    let go =
        |(node, message): &(String, ToAgent)| matches!(message, ToAgent::Go { .. }).then(|| node.clone());
    assert_eq!(story.sent.iter().find_map(go), None, "n2 has not ended its ranks");
    story.says("n2", FromAgent::Released { run: RunId { job: job.0, number: 1 }, end: NodeEnd::default() });
    assert_eq!(story.sent.iter().find_map(go).as_deref(), Some("n4"));
}

#[test]
fn ranks_that_fail_just_before_the_loss_of_a_node_is_known_are_not_blamed() {
    for survives in [true, false] {
        let mut story = Story::new(4);
        let mut job = gang(3);
        job.policy.survives = survives;
        let job = story.submit(job);
        let run = story.run_of(job);
        story.control.unlinked(story.link("n2"), Unlinked::Closed, Time(story.now));
        story.says("n1", FromAgent::RankFailed { run, rank: 0, end: RankEnd::Exit(1) });
        story.wait(5_000);
        assert_eq!(story.stands(job), "running on n1 n3 n4", "survives: {survives}");
    }
}

#[test]
fn a_newcomer_that_is_never_ready_is_given_up_and_the_gang_starts_elsewhere() {
    let mut story = Story::new(5);
    let job = surviving(&mut story, 3, None);
    story.unready = Some("n4".into());
    loses(&mut story, "n2");
    assert_eq!(story.stands(job), "running on n1 n4 n3");
    story.wait(400_000);
    assert_eq!(story.stands(job), "starting on n1 n3 n4", "once may be chance");
    story.wait(400_000);
    assert_eq!(story.stands(job), "running on n1 n3 n5");
}

#[test]
fn a_rank_that_is_gone_does_not_make_its_gang_look_stuck() {
    let mut story = Story::new(4);
    let mut job = gang(3);
    job.policy.survives = true;
    job.health.stuck_after = Some(Seconds::new(10.0));
    let job = story.submit(job);
    let run = story.run_of(job);
    story.says("n1", reports(run, 0, Report::Progress { step: 1 }));
    // The first rank, which spoke for all, is lost; from then on another one speaks.
    loses(&mut story, "n1");
    for step in 2..8 {
        story.says("n2", reports(run, 1, Report::Progress { step }));
        story.wait(5_000);
    }
    assert_eq!(story.stands(job), "running on n4 n2 n3");
    assert_eq!(story.run_of(job).number, 2, "it was replaced once, and never started again");
}
