//! What a rank finds in its environment: its place in the world, its devices, and what Slurm would have told it.
//!
//! What the job sets overrides what is inherited. What identifies a rank and says what it may use overrides both.
//! Defaults of the network only fill gaps: a job or site that sets one knows the machines better.

use std::collections::BTreeMap;

use bedplate_topology::compress_hostlist;
use serde::{Deserialize, Serialize};

use crate::RankBlocks;

/// What all processes of a run on one node have in common.
#[derive(Debug, Clone)]
pub struct NodePart<'a> {
    pub job: u64,
    /// Counts the runs of the job.
    pub run: u32,
    pub job_name: &'a str,
    pub user: &'a str,
    /// This node's place among `peers`.
    pub node_index: u32,
    /// All nodes of the gang, in the order of their ranks.
    pub peers: &'a [Peer],
    /// Local indices of the devices that are leased to this run here.
    pub devices: &'a [u32],
    pub cpus: u32,
    /// Ranks that start here; none on the other nodes of a script.
    pub ranks: &'a [u32],
    pub world_size: u32,
    /// What the job sets itself.
    pub set: &'a BTreeMap<String, String>,
    pub facts: &'a Facts,
    /// Step and path of the checkpoint from which the job goes on.
    pub checkpoint: Option<(u64, Option<&'a str>)>,
}

/// A step's part on one node: tasks that `srun` started inside a gang.
#[derive(Debug, Clone)]
pub struct StepPart<'a> {
    pub number: u32,
    /// This node's place among `nodes`.
    pub node_index: u32,
    /// The names of the nodes of the step.
    pub nodes: &'a [String],
    /// The tasks that start here.
    pub tasks: &'a [u32],
    pub task_count: u32,
    /// What the step sets itself.
    pub set: &'a BTreeMap<String, String>,
}

/// A node of a gang as the others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    pub name: String,
    pub address: String,
    pub role: String,
    pub tasks: u32,
    pub gpus: u32,
}

/// What ranks learn about their job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub partition: String,
    pub account: String,
    pub qos: String,
    pub submit_directory: Option<String>,
    pub tasks_per_node: u32,
    pub cpus_per_task: u32,
    pub gpus_per_node: u32,
    /// Number of the array and index in it.
    pub array: Option<(u64, u32)>,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    pub ends_ms: u64,
    /// Runs before this one.
    pub restarts: u32,
}

/// What the program that starts a rank knows about its node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// What the rank starts from, before the job's own variables.
    pub inherited: BTreeMap<String, String>,
    /// Where `srun` finds the agent.
    pub agent_socket: String,
    /// The file in which the rank may report its progress.
    pub report: String,
    /// The directory with `srun` and `scontrol`, put in front of `PATH`.
    pub programs: String,
    /// The host has an EFA device.
    pub has_efa: bool,
}

/// `PATH` where it is not set.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The name of the variable by which a process of a run is recognised, whatever became of its parents.
pub const MARK: &str = "BEDPLATE_RUN";

/// The value of [`MARK`] for the processes of a run on a node.
pub fn mark(job: u64, run: u32, node: &str) -> String {
    format!("{job}.{run}@{node}")
}

/// The whole environment of a rank of a gang.
pub fn variables(
    part: &NodePart<'_>,
    rank: u32,
    master_port: u16,
    around: &Surroundings,
) -> BTreeMap<String, String> {
    let nodes: Vec<&Peer> = part.peers.iter().collect();
    let local_rank = part.ranks.iter().position(|each| *each == rank).unwrap_or(0) as u32;
    let tasks: Vec<u32> = nodes.iter().map(|peer| peer.tasks).collect();
    let place = Place {
        rank,
        local_rank,
        node: part.node_index,
        world: part.world_size,
        // A script is one rank, but asks for the tasks that its steps will have.
        slurm_tasks: tasks.iter().fold(0, |sum: u32, tasks| sum.saturating_add(*tasks)).max(part.world_size),
        tasks: &tasks,
        nodes: &nodes,
    };
    let mut variables = Variables::new(part, &BTreeMap::new(), around);
    variables.add_all(part, &place, master_port);
    variables.0
}

/// The whole environment of a task of a step, which `srun` started inside a gang.
pub fn step_variables(
    part: &NodePart<'_>,
    step: &StepPart<'_>,
    task: u32,
    master_port: u16,
    around: &Surroundings,
) -> BTreeMap<String, String> {
    let find = |name: &String| part.peers.iter().find(|peer| peer.name == *name);
    let nodes: Vec<&Peer> = step.nodes.iter().filter_map(find).collect();
    let local_rank = step.tasks.iter().position(|each| *each == task).unwrap_or(0) as u32;
    let tasks = RankBlocks::spread(step.task_count, step.nodes.len() as u32).counts();
    let place = Place {
        rank: task,
        local_rank,
        node: step.node_index,
        world: step.task_count,
        slurm_tasks: step.task_count,
        tasks: &tasks,
        nodes: &nodes,
    };
    let mut variables = Variables::new(part, &step.set, around);
    variables.add_all(part, &place, master_port);
    variables.keep_meeting_point(part, step, master_port);
    variables.set("SLURM_STEP_ID", step.number);
    variables.set("SLURM_STEPID", step.number);
    variables.set("SLURM_STEP_NUM_NODES", step.nodes.len());
    variables.set("SLURM_STEP_NUM_TASKS", step.task_count);
    variables.set("SLURM_STEP_NODELIST", compress_hostlist(step.nodes.iter().map(String::as_str)));
    variables.0
}

/// Where one process stands among all.
struct Place<'a> {
    rank: u32,
    local_rank: u32,
    node: u32,
    world: u32,
    /// Tasks that were asked for, all nodes together.
    slurm_tasks: u32,
    /// By node.
    tasks: &'a [u32],
    nodes: &'a [&'a Peer],
}

impl Place<'_> {
    fn local_world(&self) -> u32 {
        self.tasks.get(self.node as usize).copied().unwrap_or(1).max(1)
    }

    fn first_address(&self) -> &str {
        self.nodes.first().map_or("127.0.0.1", |peer| peer.address.as_str())
    }
}

struct Variables(BTreeMap<String, String>);

impl Variables {
    fn new(part: &NodePart<'_>, more: &BTreeMap<String, String>, around: &Surroundings) -> Self {
        let mut set = around.inherited.clone();
        set.extend(part.set.clone());
        set.extend(more.clone());
        let path = set.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        let front = format!("{}:", around.programs);
        if !around.programs.is_empty() && !path.starts_with(&front) {
            let path = format!("{front}{path}");
            set.insert("PATH".to_owned(), path);
        }
        let mut variables = Self(set);
        variables.set("BEDPLATE_AGENT", &around.agent_socket);
        variables.set("BEDPLATE_REPORT", &around.report);
        variables.add_network(part, around.has_efa);
        variables
    }

    fn set(&mut self, name: &str, value: impl ToString) {
        self.0.insert(name.to_owned(), value.to_string());
    }

    fn set_or_remove(&mut self, name: &str, value: Option<impl ToString>) {
        match value {
            Some(value) => self.set(name, value),
            None => drop(self.0.remove(name)),
        }
    }

    fn default(&mut self, name: &str, value: &str) {
        self.0.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }

    fn add_all(&mut self, part: &NodePart<'_>, place: &Place<'_>, master_port: u16) {
        self.add_world(place, master_port);
        self.add_devices(part);
        self.add_slurm_job(part, place);
        self.add_slurm_task(part, place);
        self.add_ours(part, place);
    }

    /// What `torch.distributed` and its relatives read.
    fn add_world(&mut self, place: &Place<'_>, master_port: u16) {
        self.set("RANK", place.rank);
        self.set("LOCAL_RANK", place.local_rank);
        self.set("WORLD_SIZE", place.world);
        self.set("LOCAL_WORLD_SIZE", place.local_world());
        self.set("NODE_RANK", place.node);
        self.set("GROUP_RANK", place.node);
        self.set("MASTER_ADDR", place.first_address());
        self.set("MASTER_PORT", master_port);
    }

    /// A script that chose another place for its tasks to meet than the gang's has a reason.
    fn keep_meeting_point(&mut self, part: &NodePart<'_>, step: &StepPart<'_>, master_port: u16) {
        let address = part.peers.first().map_or("", |peer| peer.address.as_str());
        let port = master_port.to_string();
        for (name, given) in [("MASTER_ADDR", address), ("MASTER_PORT", port.as_str())] {
            if let Some(chosen) = step.set.get(name).filter(|chosen| *chosen != given) {
                self.set(name, chosen);
            }
        }
    }

    /// Empty, not absent, when nothing is leased: then nothing may be seen.
    fn add_devices(&mut self, part: &NodePart<'_>) {
        let devices: Vec<String> = part.devices.iter().map(u32::to_string).collect();
        let list = devices.join(",");
        self.set("CUDA_VISIBLE_DEVICES", &list);
        self.set("SLURM_GPUS_ON_NODE", devices.len());
        self.set_or_remove("SLURM_JOB_GPUS", (!devices.is_empty()).then_some(list));
    }

    fn add_slurm_job(&mut self, part: &NodePart<'_>, place: &Place<'_>) {
        let facts = part.facts;
        for name in ["SLURM_JOB_ID", "SLURM_JOBID"] {
            self.set(name, part.job);
        }
        for name in ["SLURM_NNODES", "SLURM_JOB_NUM_NODES"] {
            self.set(name, part.peers.len());
        }
        let nodes = compress_hostlist(part.peers.iter().map(|peer| peer.name.as_str()));
        for name in ["SLURM_NODELIST", "SLURM_JOB_NODELIST"] {
            self.set(name, &nodes);
        }
        for name in ["SLURM_NTASKS", "SLURM_NPROCS"] {
            self.set(name, place.slurm_tasks);
        }
        self.set("SLURM_JOB_NAME", &part.job_name);
        self.set("SLURM_JOB_USER", &part.user);
        self.set("SLURM_JOB_PARTITION", &facts.partition);
        self.set("SLURM_JOB_ACCOUNT", &facts.account);
        self.set("SLURM_JOB_QOS", &facts.qos);
        self.set("SLURM_JOB_START_TIME", facts.started_ms / 1000);
        self.set_or_remove("SLURM_JOB_END_TIME", (facts.ends_ms > 0).then_some(facts.ends_ms / 1000));
        self.set("SLURM_RESTART_COUNT", facts.restarts);
        self.set_or_remove("SLURM_SUBMIT_DIR", facts.submit_directory.as_ref());
        self.set_or_remove("SLURM_ARRAY_JOB_ID", facts.array.map(|(array, _)| array));
        self.set_or_remove("SLURM_ARRAY_TASK_ID", facts.array.map(|(_, index)| index));
    }

    fn add_slurm_task(&mut self, part: &NodePart<'_>, place: &Place<'_>) {
        let facts = part.facts;
        self.set("SLURM_PROCID", place.rank);
        self.set("SLURM_LOCALID", place.local_rank);
        self.set("SLURM_NODEID", place.node);
        self.set("SLURM_TASKS_PER_NODE", tasks_per_node(place.tasks));
        let some = |count: u32| (count > 0).then_some(count);
        self.set_or_remove("SLURM_NTASKS_PER_NODE", some(facts.tasks_per_node));
        self.set_or_remove("SLURM_CPUS_PER_TASK", some(facts.cpus_per_task));
        self.set("SLURM_CPUS_ON_NODE", part.cpus);
        let here = part.peers.get(part.node_index as usize);
        self.set("SLURMD_NODENAME", here.map_or("", |peer| peer.name.as_str()));
        let first = part.peers.first().map_or("127.0.0.1", |peer| peer.address.as_str());
        self.set("SLURM_LAUNCH_NODE_IPADDR", first);
    }

    fn add_ours(&mut self, part: &NodePart<'_>, place: &Place<'_>) {
        let here = part.peers.get(part.node_index as usize);
        let node = here.map_or("", |peer| peer.name.as_str());
        self.set("BEDPLATE_JOB", part.job);
        self.set(MARK, mark(part.job, part.run, node));
        self.set("BEDPLATE_NODE", node);
        self.set("BEDPLATE_ADDRESS", here.map_or("127.0.0.1", |peer| peer.address.as_str()));
        self.set("BEDPLATE_ADDRESSES", addresses(&part.peers));
        let role = place.nodes.get(place.node as usize).map_or("", |peer| peer.role.as_str());
        self.set("BEDPLATE_ROLE", role);
        self.set("BEDPLATE_RESTARTS", part.facts.restarts);
        self.set_or_remove("BEDPLATE_CHECKPOINT_STEP", part.checkpoint.map(|(step, _)| step));
        self.set_or_remove("BEDPLATE_CHECKPOINT_PATH", part.checkpoint.and_then(|(_, path)| path));
    }

    /// Sockets find the right network by themselves except on one machine, where it is the loopback, and beside
    /// container bridges, which lead nowhere.
    fn add_network(&mut self, part: &NodePart<'_>, has_efa: bool) {
        let is_loopback = part.peers.iter().all(|peer| peer.address.starts_with("127."));
        let spans_hosts = part.peers.windows(2).any(|pair| pair[0].address != pair[1].address);
        if is_loopback {
            self.default("NCCL_SOCKET_IFNAME", "lo");
            self.default("GLOO_SOCKET_IFNAME", "lo");
        } else if spans_hosts {
            self.default("NCCL_SOCKET_IFNAME", "^docker,lo,veth");
            if has_efa {
                self.default("FI_PROVIDER", "efa");
                // Huge pages make a fork after start-up fail, as data loaders do it.
                self.default("FI_EFA_USE_HUGE_PAGE", "0");
            }
        }
    }
}

/// In Slurm's notation: `8(x2),4`.
fn tasks_per_node(tasks: &[u32]) -> String {
    let runs = tasks.chunk_by(|left, right| left == right);
    let written = runs.map(|run| match run.len() {
        1 => run[0].to_string(),
        times => format!("{}(x{times})", run[0]),
    });
    written.collect::<Vec<String>>().join(",")
}

/// `name=address` of each node, for programs that must find a node by its name.
fn addresses(peers: &[Peer]) -> String {
    let pairs: Vec<String> = peers.iter().map(|peer| format!("{}={}", peer.name, peer.address)).collect();
    pairs.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn peer(name: &str, address: &str, tasks: u32) -> Peer {
        Peer {
            name: name.to_owned(),
            address: address.to_owned(),
            role: "trainer".to_owned(),
            tasks,
            gpus: 2,
        }
    }

    /// What the parts of the tests borrow.
    struct Fixture {
        peers: Vec<Peer>,
        devices: Vec<u32>,
        set: BTreeMap<String, String>,
        facts: Facts,
    }

    impl Fixture {
        fn new() -> Self {
            let facts = Facts {
                partition: "main".to_owned(),
                account: "lab".to_owned(),
                qos: "normal".to_owned(),
                tasks_per_node: 2,
                started_ms: 5_000,
                ..Facts::default()
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
            SLURM_JOBID=17
            SLURM_JOB_ACCOUNT=lab
            SLURM_JOB_GPUS=4,5
            SLURM_JOB_ID=17
            SLURM_JOB_NAME=gpt
            SLURM_JOB_NODELIST=n[1-2]
            SLURM_JOB_NUM_NODES=2
            SLURM_JOB_PARTITION=main
            SLURM_JOB_QOS=normal
            SLURM_JOB_START_TIME=5
            SLURM_JOB_USER=ada
            SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
            SLURM_LOCALID=1
            SLURM_NNODES=2
            SLURM_NODEID=1
            SLURM_NODELIST=n[1-2]
            SLURM_NPROCS=4
            SLURM_NTASKS=4
            SLURM_NTASKS_PER_NODE=2
            SLURM_PROCID=3
            SLURM_RESTART_COUNT=0
            SLURM_TASKS_PER_NODE=2(x2)
            WORLD_SIZE=4"#]],
        );
    }

    #[test]
    fn what_the_job_sets_beats_the_inherited_but_not_its_identity() {
        let mut fixture = Fixture::new();
        let set =
            [("RANK", "99"), ("NCCL_SOCKET_IFNAME", "eth1"), ("PATH", "/opt/bin"), ("SLURM_JOB_ID", "1")];
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
            assert_eq!(tasks_per_node(&RankBlocks::spread(tasks, nodes).counts()), expected);
        }
    }
}
