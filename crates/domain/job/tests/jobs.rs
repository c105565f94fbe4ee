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
    let array =
        |first, last, step| Some(Array { ranges: vec![IndexRange { first, last, step }], at_once: None });
    let signal =
        Some(CheckpointSignal { signal: 10, before: Seconds::new(600.0), receiver: Receiver::Tasks });
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
    let array: Array = "2-9:3,1,20%1".parse().unwrap();
    assert_eq!(array.indices(), [1, 2, 5, 8, 20]);
    assert_eq!((array.count(), array.at_once), (5, Some(1)));
    let sweep = Job { policy: Policy { array: Some(array), ..Policy::default() }, ..job() };
    assert_eq!(sweep.array_indices().unwrap().len(), 5);
    assert_eq!(job().array_indices(), None);
    assert_eq!(Array::range(0, u32::MAX).indices(), [] as [u32; 0]);
}

#[test]
fn impossible_values_of_processes_are_flaws_too() {
    let seconds = |value| Some(Seconds::new(value));
    let share = |job: &mut Job, share| job.gang.roles[1].gpu_share = Some(share);
    assert_eq!(
        flaw_of(|job| share(job, 250)),
        "role `rollout` shares a GPU, so it has 1 node with 1 GPU, not 4 with 8"
    );
    assert_eq!(
        flaw_of(|job| share(job, 1001)),
        "role `rollout` asks for 1001 thousandths of a GPU; ask for 1 to 1000"
    );
    assert_eq!(
        flaw_of(|job| job.gang.roles[0].cpus_per_task = 0),
        "role `trainer` asks for 0 CPUs per task; ask for at least 1"
    );
    assert_eq!(
        flaw_of(|job| job.policy.array = Some("1-5,3".parse().unwrap())),
        "the array lists the index 3 twice"
    );
    assert_eq!(
        flaw_of(|job| job.policy.array = Some("1-5%0".parse().unwrap())),
        "the array lets no task run at once"
    );
    assert_eq!(
        flaw_of(|job| job.health.stuck_after = seconds(0.0)),
        "the time after which a rank is stuck is 0 s, which is not a valid waiting time"
    );
    assert_eq!(
        flaw_of(|job| job.policy.grace = Seconds::new(-1.0)),
        "the grace is -1 s, which is not a valid waiting time"
    );
    assert_eq!(
        flaw_of(|job| job.health.probe = Some(Probe { command: vec![], every: Probe::EVERY })),
        "the probe has no command"
    );
    assert!(flaw_of(|job| job.streams.stdout = Some("%q".into())).contains("`%q` stands for nothing"));
    assert_eq!(
        flaw_of(|job| drop(job.environment.set.insert("A=B".into(), String::new()))),
        "`A=B` cannot be the name of a variable"
    );
    assert_eq!(
        flaw_of(|job| job.workload = Workload::command(["a", "b\0"])),
        "the command contains a NUL character, which no process can be given"
    );
    assert_eq!(
        flaw_of(|job| job.name = "n\0".into()),
        "the name contains a NUL character, which no process can be given"
    );
    assert_eq!(
        flaw_of(|job| job.policy.account = Some("a".repeat(257))),
        "the account has 257 bytes; a name may have 256"
    );
    assert_eq!(
        flaw_of(|job| job.policy.begin = Some(Begin::At { unix_seconds: u64::MAX })),
        "the start lies after the year 9999"
    );
}
