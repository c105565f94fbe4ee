//! What ranks and tasks find in their environment.

use super::*;
use expect_test::{Expect, expect};

fn peer(name: &str, address: &str, tasks: u32) -> Peer {
    Peer { name: name.to_owned(), address: address.to_owned(), role: "trainer".to_owned(), tasks, gpus: 2 }
}

/// What the parts of the tests borrow.
struct Fixture {
    peers: Vec<Peer>,
    devices: Vec<u32>,
    set: BTreeMap<String, String>,
    facts: JobFacts,
}

impl Fixture {
    fn new() -> Self {
        let facts = JobFacts {
            partition: "main".to_owned(),
            account: "lab".to_owned(),
            qos: "normal".to_owned(),
            tasks_per_node: 2,
            started_ms: 5_000,
            ..JobFacts::default()
        };
        let peers = vec![peer("n1", "127.0.0.1", 2), peer("n2", "127.0.0.2", 2)];
        Self { peers, devices: vec![4, 5], set: BTreeMap::new(), facts }
    }

    fn part(&self) -> NodePart<'_> {
        NodePart {
            job: 17,
            run: 2,
            job_name: "gpt",
            user: "ada",
            node_index: 1,
            peers: &self.peers,
            devices: &self.devices,
            cpus: 8,
            ranks: &[2, 3],
            world_size: 4,
            set: &self.set,
            facts: &self.facts,
            checkpoint: None,
            survives: false,
            is_newcomer: false,
        }
    }
}

fn around() -> Surroundings {
    Surroundings {
        inherited: BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]),
        agent_socket: "/run/a.sock".to_owned(),
        report: "/run/report-3".to_owned(),
        programs: "/run/bin".to_owned(),
        has_efa: true,
        user: Some((1000, 100)),
    }
}

fn check(variables: &BTreeMap<String, String>, expected: Expect) {
    let lines: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    expected.assert_eq(&lines.join("\n"));
}

fn only(variables: &BTreeMap<String, String>, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| variables.get(*name).cloned().unwrap_or("-".to_owned())).collect()
}

#[test]
fn a_rank_learns_its_place_its_devices_and_what_slurm_would_say() {
    check(
        &variables(&Fixture::new().part(), 3, 29500, &around()),
        expect![[r#"
            BEDPLATE_ADDRESS=127.0.0.2
            BEDPLATE_ADDRESSES=n1=127.0.0.1,n2=127.0.0.2
            BEDPLATE_AGENT=/run/a.sock
            BEDPLATE_JOB=17
            BEDPLATE_NODE=n2
            BEDPLATE_REPORT=/run/report-3
            BEDPLATE_RESTARTS=0
            BEDPLATE_ROLE=trainer
            BEDPLATE_RUN=17.2@n2
            CUDA_VISIBLE_DEVICES=4,5
            GLOO_SOCKET_IFNAME=lo
            GROUP_RANK=1
            LOCAL_RANK=1
            LOCAL_WORLD_SIZE=2
            MASTER_ADDR=127.0.0.1
            MASTER_PORT=29500
            NCCL_SOCKET_IFNAME=lo
            NODE_RANK=1
            PATH=/run/bin:/bin
            RANK=3
            SLURMD_NODENAME=n2
            SLURM_CPUS_ON_NODE=8
            SLURM_GPUS_ON_NODE=2
            SLURM_GTIDS=2,3
            SLURM_JOBID=17
            SLURM_JOB_ACCOUNT=lab
            SLURM_JOB_CPUS_PER_NODE=2(x2)
            SLURM_JOB_GID=100
            SLURM_JOB_GPUS=4,5
            SLURM_JOB_ID=17
            SLURM_JOB_NAME=gpt
            SLURM_JOB_NODELIST=n[1-2]
            SLURM_JOB_NUM_NODES=2
            SLURM_JOB_PARTITION=main
            SLURM_JOB_QOS=normal
            SLURM_JOB_START_TIME=5
            SLURM_JOB_UID=1000
            SLURM_JOB_USER=ada
            SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
            SLURM_LOCALID=1
            SLURM_NNODES=2
            SLURM_NODEID=1
            SLURM_NODELIST=n[1-2]
            SLURM_NPROCS=4
            SLURM_NTASKS=4
            SLURM_NTASKS_PER_NODE=2
            SLURM_PRIO_PROCESS=0
            SLURM_PROCID=3
            SLURM_RESTART_COUNT=0
            SLURM_TASKS_PER_NODE=2(x2)
            WORLD_SIZE=4"#]],
    );
}

#[test]
fn what_the_job_sets_beats_the_inherited_but_not_its_identity() {
    let mut fixture = Fixture::new();
    let set = [("RANK", "99"), ("NCCL_SOCKET_IFNAME", "eth1"), ("PATH", "/opt/bin"), ("SLURM_JOB_ID", "1")];
    fixture.set = set.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let found = variables(&fixture.part(), 2, 1, &around());
    let names = ["RANK", "NCCL_SOCKET_IFNAME", "PATH", "SLURM_JOB_ID"];
    assert_eq!(only(&found, &names), ["2", "eth1", "/run/bin:/opt/bin", "17"]);
}

#[test]
fn nothing_leased_means_nothing_visible() {
    let fixture = Fixture { devices: Vec::new(), ..Fixture::new() };
    let found = variables(&fixture.part(), 2, 1, &around());
    let names = ["CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"];
    assert_eq!(only(&found, &names), ["", "0", "-"]);
}

#[test]
fn network_defaults_follow_where_the_peers_are() {
    let names = ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "FI_PROVIDER"];
    for (addresses, has_efa, expected) in [
        (["127.0.0.1", "127.0.0.1"], true, ["lo", "lo", "-"]),
        (["10.0.0.1", "10.0.0.2"], true, ["^docker,lo,veth", "-", "efa"]),
        (["10.0.0.1", "10.0.0.2"], false, ["^docker,lo,veth", "-", "-"]),
        (["10.0.0.1", "10.0.0.1"], true, ["-", "-", "-"]),
    ] {
        let peers = vec![peer("n1", addresses[0], 2), peer("n2", addresses[1], 2)];
        let fixture = Fixture { peers, ..Fixture::new() };
        let found = variables(&fixture.part(), 2, 1, &Surroundings { has_efa, ..around() });
        assert_eq!(only(&found, &names), expected, "{addresses:?}");
    }
}

#[test]
fn arrays_checkpoints_and_limits_are_told_when_there_are_any() {
    let mut fixture = Fixture::new();
    fixture.facts.array = Some((16, 7));
    fixture.facts.ends_ms = 65_000;
    fixture.facts.cpus_per_task = 4;
    fixture.facts.submit_directory = Some("/home/ada".to_owned());
    let names = [
        "BEDPLATE_CHECKPOINT_STEP",
        "BEDPLATE_CHECKPOINT_PATH",
        "SLURM_ARRAY_JOB_ID",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_JOB_END_TIME",
        "SLURM_CPUS_PER_TASK",
        "SLURM_SUBMIT_DIR",
    ];
    let part = NodePart { checkpoint: Some((120, Some("/c/120"))), ..fixture.part() };
    let found = variables(&part, 2, 1, &around());
    assert_eq!(only(&found, &names), ["120", "/c/120", "16", "7", "65", "4", "/home/ada"]);
}

#[test]
fn a_task_of_a_step_has_its_place_in_the_step_and_its_job_in_the_gang() {
    let (fixture, nodes) = (Fixture::new(), ["n2".to_owned()]);
    let set = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let found = |set: &BTreeMap<String, String>| {
        let step =
            StepPart { number: 5, node_index: 0, nodes: &nodes, tasks: &[0, 1, 2], task_count: 3, set };
        step_variables(&fixture.part(), &step, 1, 29500, &around())
    };
    let names = [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "NODE_RANK",
        "MASTER_ADDR",
        "SLURM_STEP_ID",
        "SLURM_NTASKS",
        "SLURM_TASKS_PER_NODE",
        "SLURM_NNODES",
        "SLURM_STEP_NODELIST",
        "COLOUR",
        "BEDPLATE_RUN",
    ];
    let expected = ["1", "1", "3", "0", "127.0.0.2", "5", "3", "3", "2", "n2", "red", "17.2@n2"];
    assert_eq!(only(&found(&set("COLOUR", "red")), &names), expected);
    for port in ["29500", "4711"] {
        assert_eq!(found(&set("MASTER_PORT", port))["MASTER_PORT"], port);
    }
}

#[test]
fn tasks_are_spread_evenly_and_written_as_slurm_does() {
    for (tasks, nodes, expected) in [(8, 2, "4(x2)"), (5, 2, "3,2"), (7, 3, "3,2(x2)"), (1, 1, "1")] {
        assert_eq!(counts_in_runs(&RankBlocks::spread(tasks, nodes).counts()), expected);
    }
}
