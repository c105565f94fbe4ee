//! Jobs add up what they need and say why they can never run.

use bedplate_job::*;
use bedplate_topology::Level;
use bedplate_units::Seconds;

fn job() -> Job {
    let trainers = Role { nodes: 16, gpus_per_node: 8, tasks_per_node: 8, ..Role::named("trainer") };
    let rollouts = Role { nodes: 4, gpus_per_node: 8, ..Role::named("rollout") };
    Job::new("rl", Workload::command(["python", "rl.py"]), Gang { roles: vec![trainers, rollouts] })
}

#[test]
fn a_gang_adds_up_its_roles() {
    let gang = job().gang;
    assert_eq!((gang.nodes(), gang.gpus(), gang.tasks()), (20, 160, 132));
    assert!(!gang.is_elastic());
    assert!(job().flaws().is_empty());
}

fn flaw_of(change: impl FnOnce(&mut Job)) -> String {
    let mut job = job();
    change(&mut job);
    job.flaws().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[test]
fn every_flaw_is_told_in_words() {
    let elastic = |min, max, step| Some(Elastic { min, max, step });
    let array = |first, last, step| Some(Array { first, last, step, at_once: None });
    let signal = Some(CheckpointSignal { signal: 10, before: Seconds::new(600.0) });
    assert_eq!(flaw_of(|job| job.name = " ".into()), "the job has no name");
    assert_eq!(
        flaw_of(|job| job.workload = Workload::Script { text: "\n".into() }),
        "the job has nothing to run"
    );
    assert_eq!(flaw_of(|job| job.gang.roles.clear()), "the gang has no roles");
    assert_eq!(flaw_of(|job| job.gang.roles[1].name = "trainer".into()), "two roles are called `trainer`");
    assert_eq!(
        flaw_of(|job| job.gang.roles[0].nodes = 0),
        "role `trainer` asks for 0 nodes; ask for 1 to 1000000"
    );
    assert_eq!(
        flaw_of(|job| job.gang.roles[0].tasks_per_node = 0),
        "role `trainer` has no tasks on its nodes"
    );
    assert_eq!(
        flaw_of(|job| job.gang.roles[0].elastic = elastic(3, 30, 4)),
        "role `trainer` may have 3 to 30 nodes in steps of 4, and 16 is none of these"
    );
    assert_eq!(flaw_of(|job| job.gang.roles[0].elastic = elastic(4, 32, 4)), "");
    assert_eq!(flaw_of(|job| job.policy.time_limit = Some(Seconds::ZERO)), "the time limit is zero");
    assert_eq!(
        flaw_of(|job| {
            job.policy.time_limit = Some(Seconds::new(300.0));
            job.policy.checkpoint_signal = signal;
        }),
        "the checkpoint signal comes 10 min before the end, but the whole job may take 5 min"
    );
    assert_eq!(
        flaw_of(|job| job.policy.array = array(0, u32::MAX, 1)),
        "the array has 4294967296 tasks; it may have 1 to 1000000"
    );
    assert_eq!(
        flaw_of(|job| job.policy.array = array(5, 4, 1)),
        "the array has 0 tasks; it may have 1 to 1000000"
    );
    assert_eq!(flaw_of(|job| job.policy.array = array(0, 99, 7)), "");
    assert_eq!(
        flaw_of(|job| job
            .policy
            .dependencies
            .push(Dependency { kind: DependencyKind::AfterOk, jobs: vec![] })),
        "a dependency names no job to wait for"
    );
    assert_eq!(
        flaw_of(|job| {
            job.placement.segment = Some(3);
            job.placement.closeness = Closeness::Required(Level::Domain);
        }),
        "segments of 3 nodes do not divide the 20 nodes of the gang"
    );
    assert_eq!(
        flaw_of(|job| job.placement.segment = Some(4)),
        "segments need a level to lie in; set a required or preferred one"
    );
    assert_eq!(
        flaw_of(|job| {
            job.placement.only_nodes = vec!["n1".into()];
            job.placement.avoid_nodes = vec!["n1".into()];
        }),
        "node `n1` is both asked for and to be avoided"
    );
}

#[test]
fn sizes_and_indices_are_those_allowed() {
    let elastic = Elastic { min: 3, max: 12, step: 4 };
    assert_eq!(elastic.sizes().collect::<Vec<_>>(), [3, 7, 11]);
    assert!(elastic.sizes().all(|size| elastic.allows(size)) && !elastic.allows(12));
    assert!(!Elastic { min: 1, max: 2, step: 0 }.allows(1));
    let array = Array { first: 2, last: 9, step: 3, at_once: Some(1) };
    assert_eq!(array.indices().collect::<Vec<_>>(), [2, 5, 8]);
    assert_eq!(array.count(), 3);
}
