//! A rank that says a GPU failed it: the job starts again, and its word alone takes no node out.

use bedplate_finding::Action;
use bedplate_report::FaultReport;

use super::findings::{finding, finds};
use super::*;

fn fault() -> Report {
    Report::Fault(Box::new(FaultReport {
        address: "0000:1b:00.0".into(),
        uuid: "GPU-ab".into(),
        code: "cuda/device-fault".into(),
        message: "CUDA_ERROR_ILLEGAL_ADDRESS (700)".into(),
    }))
}

fn exit(run: RunId, rank: u32) -> FromAgent {
    FromAgent::RankFailed { run, rank, end: RankEnd::Exit(3) }
}

/// A rank reports a fault and ends. What was noted about it.
fn fails(story: &mut Story, job: JobId, node: &str, rank: u32) -> Vec<String> {
    let run = story.run_of(job);
    story.says(node, reports(run, rank, fault()));
    story.control.heard(story.link(node), exit(run, rank), Time(story.now));
    let notes = story.play_and_record().into_iter().filter_map(|record| match record {
        Record::Note(note) => Some(note.text),
        _ => None,
    });
    notes.collect()
}

fn restarts(story: &Story, job: JobId) -> u32 {
    story.control.job(job).expect("it is live").life.charges.restarts
}

#[test]
fn a_job_whose_gpu_failed_starts_again_and_its_budget_does_not_pay() {
    let mut story = Story::new(3);
    let job = story.submit(gang(1));
    let notes = fails(&mut story, job, "n1", 0);
    let text = "the GPU at 0000:1b:00.0 (GPU-ab) on n1 failed rank 0: CUDA_ERROR_ILLEGAL_ADDRESS (700) [cuda/device-fault]";
    assert!(notes.iter().any(|note| note == text), "{notes:?}");
    assert_eq!((story.run_of(job).number, restarts(&story, job)), (2, 0));
    assert_eq!(story.node("n1").1, None, "one job's word");
}

#[test]
fn what_the_node_saw_on_that_gpu_is_said_beside_it() {
    let mut story = Story::new(2);
    let job = story.submit(gang(1));
    let now = story.now;
    finds(&mut story, "n1", vec![finding("n1", "gpu/xid-31", 3, Action::Watch, now)]);
    let notes = fails(&mut story, job, "n1", 0);
    let is_said = |note: &String| note.ends_with("; the node saw xid-31 on GPU 3 of node n1");
    assert!(notes.iter().any(is_said), "{notes:?}");
}

#[test]
fn a_rank_that_missed_its_peer_first_is_not_the_reason() {
    let mut story = Story::new(2);
    let job = story.submit(gang(2));
    let run = story.run_of(job);
    story.is_mute.push("n2".into());
    story.says("n1", exit(run, 0));
    story.says("n2", reports(run, 1, fault()));
    story.is_mute.clear();
    story.says("n2", FromAgent::Released { run, end: NodeEnd::default() });
    story.wait(1_000);
    assert_eq!((story.stands(job).as_str(), story.run_of(job).number), ("running on n1 n2", 2));
    assert_eq!(restarts(&story, job), 0);
}

#[test]
fn jobs_of_one_user_that_forge_faults_end_and_take_no_node_out() {
    let mut story = Story::new(8);
    let other = Submission::new("bob", gang(1));
    story.control.submit(other, Time(story.now)).expect("it can run here");
    story.play();
    for _ in 0..3 {
        let job = story.submit(gang(1));
        let mut ends = 0;
        while story.control.job(job).is_some() {
            ends += 1;
            assert!(ends < 20, "it ends some time");
            let nodes = story.control.job(job).expect("it is live").nodes;
            if let [node] = nodes.as_slice() {
                fails(&mut story, job, &node.clone(), 0);
            }
            story.wait(1_000);
        }
        assert_eq!(story.ended[&job], JobState::Failed);
    }
    for number in 1..=8 {
        assert_eq!(story.node(&format!("n{number}")).1, None);
    }
}
