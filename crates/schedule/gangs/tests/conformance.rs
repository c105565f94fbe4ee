//! The same stories on our scheduler and on a real Slurm: who runs where, who waits until when.

mod fixture;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bedplate_peers::{Slurm, SlurmShape};

const STORIES: [(&str, &str); 3] = [
    ("backfill", include_str!("scenarios/backfill.story")),
    ("topology-and-preemption", include_str!("scenarios/topology-and-preemption.story")),
    ("shrink", include_str!("scenarios/shrink.story")),
];

#[test]
fn stories_go_as_on_a_real_slurm() {
    let slurm = match Slurm::start(&SlurmShape { memory_mib: 2000, ..SlurmShape::default() }) {
        Ok(slurm) => slurm,
        Err(why) => return println!("SKIPPED: comparison with a real Slurm: {why}"),
    };
    for (name, story) in STORIES {
        let ours = ours(story);
        let theirs = theirs(&slurm, story, &ours);
        assert_eq!(ours, theirs, "{name}: ours on the left, Slurm's on the right");
    }
}

#[test]
fn stories_go_as_written_down() {
    let all: Vec<String> =
        STORIES.iter().map(|(name, story)| format!("{name}\n  {}", ours(story).join("\n  "))).collect();
    expect_test::expect![[r#"
        backfill
          a on n[1-6], b waits, c on n[7-8], d waits
        topology-and-preemption
          a on n[1-4], b on n[5-6]
          a waits, b waits, h on n[1-8]
        shrink
          a on n[1-4], b on n[5-8], c waits
          a on n[1-2], b on n[5-8], c on n[3-4]"#]]
    .assert_eq(&all.join("\n"));
}

/// What every `show` of a story shows on our scheduler.
fn ours(story: &str) -> Vec<String> {
    fixture::shown(story)
}

/// The same on Slurm. Its passes come by the second, so time that passes in a story is a few seconds here,
/// and it gets some more until it shows what is expected; what it shows at the end of that counts.
fn theirs(slurm: &Slurm, story: &str, expected: &[String]) -> Vec<String> {
    let mut jobs: BTreeMap<String, String> = BTreeMap::new();
    let mut shown = Vec::new();
    let mut last = "";
    for line in story.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if std::mem::replace(&mut last, words[0]) != words[0] {
            std::thread::sleep(Duration::from_millis(2500));
        }
        match words[1] {
            "submit" => drop(jobs.insert(words[2].to_string(), submit(slurm, &words))),
            "left" => shrink(slurm, &jobs[words[2]]),
            "show" => {
                let wanted = &expected[shown.len()];
                shown.push(show_when_settled(slurm, &jobs, wanted));
            }
            other => panic!("no way to tell Slurm about `{other}`"),
        }
    }
    slurm.clear().expect("all nodes become idle again");
    shown
}

fn submit(slurm: &Slurm, words: &[&str]) -> String {
    let get = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let limit = get("limit").expect("every gang of a story has one").trim_end_matches('m');
    let partition = get("partition").unwrap_or("main");
    let nodes = get("nodes").unwrap_or("1");
    slurm.ask(
        "sbatch",
        &[
            "--parsable",
            "--requeue",
            "--no-kill",
            "--output=/dev/null",
            "--chdir=/tmp",
            "--gpus-per-node=8",
            "--job-name",
            words[2],
            "--nodes",
            nodes,
            "--time",
            limit,
            "--partition",
            partition,
            "--wrap",
            "sleep 600",
        ],
    )
}

/// Slurm's gangs give up their last nodes; the stories name the same.
fn shrink(slurm: &Slurm, job: &str) {
    slurm.ask("scontrol", &["update", &format!("jobid={job}"), "numnodes=2"]);
}

fn show_when_settled(slurm: &Slurm, jobs: &BTreeMap<String, String>, wanted: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    while show(slurm, jobs) != wanted && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(300));
    }
    // Two more passes: what was right by accident does not stay so.
    std::thread::sleep(Duration::from_millis(2500));
    show(slurm, jobs)
}

fn show(slurm: &Slurm, jobs: &BTreeMap<String, String>) -> String {
    let listed = slurm.ask("squeue", &["-h", "-o", "%i|%T|%N"]);
    let state = |id: &str| {
        let line = listed.lines().find(|line| line.split('|').next() == Some(id))?;
        let fields: Vec<&str> = line.split('|').collect();
        Some(if fields[1] == "RUNNING" { format!("on {}", fields[2]) } else { "waits".to_string() })
    };
    let words: Vec<String> =
        jobs.iter().map(|(name, id)| format!("{name} {}", state(id).unwrap_or("gone".into()))).collect();
    words.join(", ")
}
