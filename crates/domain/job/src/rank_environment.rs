//! What a rank finds in its environment: its place in the world, its devices, and what Slurm would have told it.
//!
//! What the job sets overrides what is inherited. What identifies a rank and says what it may use overrides both.
//! Defaults of the network only fill gaps: a job or site that sets one knows the machines better.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bedplate_topology::compress_hostlist;
use serde::{Deserialize, Serialize};

use crate::{Array, RankBlocks};

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
    pub facts: &'a JobFacts,
    /// Step and path of the checkpoint from which the job goes on.
    pub checkpoint: Option<(u64, Option<&'a str>)>,
    /// The ranks go on without those that are lost.
    pub survives: bool,
    /// The others have met already: these ranks join them.
    pub is_newcomer: bool,
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
pub struct JobFacts {
    pub partition: String,
    pub account: String,
    pub qos: String,
    pub submit_directory: Option<String>,
    pub tasks_per_node: u32,
    pub cpus_per_task: u32,
    pub gpus_per_node: u32,
    /// Number of the array and index in it.
    pub array: Option<(u64, u32)>,
    /// All indices of the array.
    #[serde(default)]
    pub array_span: Option<ArraySpan>,
    #[serde(default)]
    pub accelerator: Option<String>,
    /// Memory that was asked for on each node.
    #[serde(default)]
    pub memory_mib: Option<u64>,
    /// The name of the cluster.
    #[serde(default)]
    pub cluster: String,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    pub ends_ms: u64,
    /// Runs before this one.
    pub restarts: u32,
}

/// The indices of an array, as Slurm describes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArraySpan {
    pub count: u64,
    pub first: u32,
    pub last: u32,
    pub step: u32,
}

impl ArraySpan {
    pub fn of(array: &Array) -> Option<Self> {
        Some(Self {
            count: array.count(),
            first: array.ranges.iter().map(|range| range.first).min()?,
            last: array.ranges.iter().filter_map(|range| range.indices().last()).max()?,
            // Slurm tells of a step where the whole array has one.
            step: if let [range] = array.ranges.as_slice() { range.step } else { 1 },
        })
    }
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
    /// User and group as whom the rank runs.
    pub user: Option<(u32, u32)>,
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
    variables.set("SLURM_GTIDS", list(part.ranks));
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
    let mut variables = Variables::new(part, step.set, around);
    variables.add_all(part, &place, master_port);
    variables.keep_meeting_point(part, step, master_port);
    variables.set("SLURM_GTIDS", list(step.tasks));
    variables.set("SLURM_STEP_TASKS_PER_NODE", counts_in_runs(&tasks));
    variables.set_or_remove("SLURM_STEP_GPUS", (!part.devices.is_empty()).then(|| list(part.devices)));
    variables.default("SLURM_DISTRIBUTION", "block");
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
        variables.set_or_remove("SLURM_JOB_UID", around.user.map(|(user, _)| user));
        variables.set_or_remove("SLURM_JOB_GID", around.user.map(|(_, group)| group));
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
        let devices = list(part.devices);
        self.set("CUDA_VISIBLE_DEVICES", &devices);
        self.set("SLURM_GPUS_ON_NODE", part.devices.len());
        self.set_or_remove("SLURM_JOB_GPUS", (!devices.is_empty()).then_some(devices));
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
        self.set("SLURM_JOB_NAME", part.job_name);
        self.set("SLURM_JOB_USER", part.user);
        self.set("SLURM_JOB_PARTITION", &facts.partition);
        self.set("SLURM_JOB_ACCOUNT", &facts.account);
        self.set("SLURM_JOB_QOS", &facts.qos);
        self.set("SLURM_JOB_START_TIME", facts.started_ms / 1000);
        self.set_or_remove("SLURM_JOB_END_TIME", (facts.ends_ms > 0).then_some(facts.ends_ms / 1000));
        self.set("SLURM_RESTART_COUNT", facts.restarts);
        self.set_or_remove("SLURM_SUBMIT_DIR", facts.submit_directory.as_ref());
        self.set_or_remove("SLURM_CLUSTER_NAME", Some(&facts.cluster).filter(|name| !name.is_empty()));
        self.set_or_remove("SLURM_MEM_PER_NODE", facts.memory_mib);
        self.add_array(facts);
        self.add_shape(part);
    }

    fn add_array(&mut self, facts: &JobFacts) {
        self.set_or_remove("SLURM_ARRAY_JOB_ID", facts.array.map(|(array, _)| array));
        self.set_or_remove("SLURM_ARRAY_TASK_ID", facts.array.map(|(_, index)| index));
        let span = facts.array_span.filter(|_| facts.array.is_some());
        self.set_or_remove("SLURM_ARRAY_TASK_COUNT", span.map(|span| span.count));
        self.set_or_remove("SLURM_ARRAY_TASK_MIN", span.map(|span| span.first));
        self.set_or_remove("SLURM_ARRAY_TASK_MAX", span.map(|span| span.last));
        self.set_or_remove("SLURM_ARRAY_TASK_STEP", span.map(|span| span.step));
    }

    /// CPUs and GPUs of the nodes, as they were asked for.
    fn add_shape(&mut self, part: &NodePart<'_>) {
        let facts = part.facts;
        let cpus: Vec<u32> =
            part.peers.iter().map(|peer| peer.tasks.saturating_mul(facts.cpus_per_task.max(1))).collect();
        self.set("SLURM_JOB_CPUS_PER_NODE", counts_in_runs(&cpus));
        let gpus = (facts.gpus_per_node > 0).then(|| match &facts.accelerator {
            Some(kind) => format!("{kind}:{}", facts.gpus_per_node),
            None => facts.gpus_per_node.to_string(),
        });
        self.set_or_remove("SLURM_GPUS_PER_NODE", gpus);
    }

    fn add_slurm_task(&mut self, part: &NodePart<'_>, place: &Place<'_>) {
        let facts = part.facts;
        self.set("SLURM_PROCID", place.rank);
        self.set("SLURM_LOCALID", place.local_rank);
        self.set("SLURM_NODEID", place.node);
        self.set("SLURM_TASKS_PER_NODE", counts_in_runs(place.tasks));
        self.set("SLURM_PRIO_PROCESS", 0);
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
        self.set("BEDPLATE_ADDRESSES", addresses(part.peers));
        let role = place.nodes.get(place.node as usize).map_or("", |peer| peer.role.as_str());
        self.set("BEDPLATE_ROLE", role);
        self.set("BEDPLATE_RESTARTS", part.facts.restarts);
        self.set_or_remove("BEDPLATE_SURVIVE", part.survives.then_some(1));
        self.set_or_remove("BEDPLATE_NEWCOMER", part.is_newcomer.then_some(1));
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

/// Numbers with commas between them.
fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<String>>().join(",")
}

/// In Slurm's notation: `8(x2),4`.
fn counts_in_runs(counts: &[u32]) -> String {
    let runs = counts.chunk_by(|left, right| left == right);
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
