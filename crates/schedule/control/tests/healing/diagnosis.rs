//! What the control plane does about a diagnosis that its site wants acted on.

use bedplate_control::record::Record;
use bedplate_control::wire::{Checkpoint, FromAgent, HeldPhase, HeldRun, ToAgent};
use bedplate_control::{JobRemedy, Submission};
use bedplate_gangs::{JobId, Time};
use bedplate_job::{Job, Workload};
use bedplate_report::Report;

use super::{Story, gang, reports};

const WHY: &str = "slow since: hardware (rank 1)";

fn replace(rank: u32) -> JobRemedy {
    JobRemedy::Replace { ranks: vec![rank], nodes: Vec::new() }
}

fn checkpoint(story: &mut Story, job: JobId, step: u64) {
    let run = story.run_of(job);
    let node = story.control.job(job).expect("it runs").nodes[0].clone();
    story.says(&node, reports(run, 0, Report::Checkpoint(Checkpoint { step, path: None })));
}

/// Wants it, and gives what was recorded and noted about jobs.
fn remedy(story: &mut Story, job: JobId, remedy: &JobRemedy) -> (Vec<Record>, String) {
    let run = story.run_of(job);
    story.control.remedy(run, remedy, WHY, Time(story.now));
    let records = story.play_and_record();
    let note = |record: &Record| match record {
        Record::Note(note) if note.job.is_some() => Some(note.text.clone()),
        _ => None,
    };
    let notes = records.iter().filter_map(note).collect::<Vec<_>>().join("\n");
    (records, notes)
}

#[test]
fn a_slow_node_is_swapped_for_a_spare_and_stays_in_service() {
    let mut story = Story::new(4);
    let job = story.submit(gang(2));
    checkpoint(&mut story, job, 700);
    assert_eq!(story.stands(job), "running on n1 n2");
    let (_, notes) = remedy(&mut story, job, &replace(1));
    assert!(notes.contains("starts again from its checkpoint without n2"), "{notes}");
    story.wait(1_000);
    assert_eq!(story.stands(job), "running on n1 n3");
    assert_eq!(story.launches["n3"].checkpoint.as_ref().map(|checkpoint| checkpoint.step), Some(700));
    assert_eq!(story.node("n2"), ("idle".into(), None), "one job's word drains no node");
}

#[test]
fn a_job_that_would_lose_its_work_or_wait_stays_where_it_is() {
    let mut story = Story::new(2);
    let job = story.submit(gang(2));
    let (_, notes) = remedy(&mut story, job, &JobRemedy::Restart);
    assert!(notes.contains("no checkpoint"), "{notes}");
    checkpoint(&mut story, job, 5);
    let (_, notes) = remedy(&mut story, job, &replace(1));
    assert!(notes.contains("1 spare nodes are needed and 0 are idle"), "{notes}");
    let all = JobRemedy::Replace { ranks: vec![0, 1], nodes: vec!["n9".into()] };
    assert!(remedy(&mut story, job, &all).1.contains("is not moved"));
    story.wait(1_000);
    assert_eq!((story.stands(job).as_str(), story.run_of(job).number), ("running on n1 n2", 1));
}

/// Time passes; gives what was recorded.
fn wait(story: &mut Story, ms: u64) -> Vec<Record> {
    let mut records = Vec::new();
    for _ in 0..ms / 250 {
        story.now += 250;
        for node in ["n1", "n2"] {
            story.control.heard(story.link(node), FromAgent::Healthy, Time(story.now));
        }
        story.control.tick(Time(story.now));
        records.extend(story.play_and_record());
    }
    records
}

#[test]
fn a_job_is_moved_a_few_times_and_a_control_plane_that_starts_again_forgets_none() {
    let mut story = Story::new(2);
    let accepted =
        story.control.submit(Submission::new("ada", gang(1)), Time(story.now)).expect("it can run");
    let mut records = story.play_and_record();
    let job = accepted.first;
    for moves in 1..=2 {
        let run = story.run_of(job);
        let report = Report::Checkpoint(Checkpoint { step: 10 * moves, path: None });
        let node = story.control.job(job).expect("it runs").nodes[0].clone();
        story.control.heard(story.link(&node), reports(run, 0, report), Time(story.now));
        records.extend(story.play_and_record());
        let (recorded, notes) = remedy(&mut story, job, &JobRemedy::Restart);
        assert!(notes.contains("starts again from its checkpoint:"), "{notes}");
        records.extend(recorded);
        records.extend(wait(&mut story, 2_000));
        assert_eq!(u64::from(story.run_of(job).number), moves + 1);
    }
    let (recorded, notes) = remedy(&mut story, job, &JobRemedy::Restart);
    assert!(notes.contains("it was moved 2 times lately"), "{notes}");
    records.extend(recorded);

    let run = story.run_of(job);
    let node = story.control.job(job).expect("it runs").nodes[0].clone();
    let mut again = story.restarted(records);
    for name in ["n1", "n2"] {
        let held = HeldRun { run, phase: HeldPhase::Running, is_suspended: false };
        again.join_holding(name, if name == node { vec![held] } else { Vec::new() });
    }
    let (_, notes) = remedy(&mut again, job, &JobRemedy::Restart);
    assert!(notes.contains("it was moved 2 times lately"), "{notes}");
    wait(&mut again, 250);
    again.now += 3_600_000;
    again.links.keys().copied().collect::<Vec<_>>().into_iter().for_each(|link| {
        again.control.heard(link, FromAgent::Healthy, Time(again.now));
    });
    let (_, notes) = remedy(&mut again, job, &JobRemedy::Restart);
    assert!(notes.contains("starts again"), "an hour later: {notes}");
}

#[test]
fn jobs_of_different_users_that_are_held_up_on_one_node_take_it_out() {
    let mut story = Story::new(6);
    let first = story.submit_as("ada", gang(1));
    checkpoint(&mut story, first, 1);
    let node = story.control.job(first).unwrap().nodes[0].clone();
    remedy(&mut story, first, &replace(0));
    story.wait(1_000);
    let other = Job { workload: Workload::command(["evaluate"]), ..gang(1) };
    let second = story.submit_as("bob", other);
    assert_eq!(story.stands(second), format!("running on {node}"));
    checkpoint(&mut story, second, 1);
    remedy(&mut story, second, &replace(0));
    story.wait(1_000);
    let (state, reason) = story.node(&node);
    assert_eq!(state, "drained", "{reason:?}");
}

#[test]
fn what_processes_do_is_written_down_on_every_node_and_told() {
    let mut story = Story::new(2);
    let job = story.submit(gang(2));
    let run = story.run_of(job);
    let (_, notes) = remedy(&mut story, job, &JobRemedy::Dump);
    assert!(notes.contains("is written down"), "{notes}");
    let asked = story.sent.iter().filter(|(_, message)| *message == ToAgent::Dump { run }).count();
    assert_eq!(asked, 2);
    let what = "rank 1 python is D (disk sleep) in nfs_wait".to_owned();
    story.control.heard(story.link("n2"), FromAgent::Dumped { run, what }, Time(story.now));
    let records = story.play_and_record();
    let is_told =
        |record: &Record| matches!(record, Record::Note(note) if note.text.starts_with("n2: rank 1 python"));
    assert!(records.iter().any(is_told), "{records:?}");
}
