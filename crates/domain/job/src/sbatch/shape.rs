//! From Slurm's many ways to say how large a job is to nodes that are all equal.

use bedplate_units::Bytes;

use super::draft::{Draft, Memory};
use crate::{JobError, Role};

/// GPUs of a node where only a total is asked for; so has every HGX machine.
const USUAL_GPUS: u64 = 8;

impl Draft {
    /// The one role that the options describe.
    pub(super) fn role(&mut self) -> Result<Role, JobError> {
        let nodes = self.nodes();
        let tasks_per_node = self.tasks_per_node(nodes);
        let gpus_per_node = self.gpus_per_node(nodes, tasks_per_node);
        // Tasks may in turn follow from the GPUs.
        let tasks_per_node = match (self.asked.tasks_per_gpu, self.asked.gpus_per_task) {
            (Some(each), _) => gpus_per_node.saturating_mul(each.into()),
            (None, Some(each)) if self.asked.tasks.is_none() && self.asked.tasks_per_node.is_none() => {
                (gpus_per_node / u64::from(each).max(1)).max(1)
            }
            _ => tasks_per_node,
        };
        let cpus_per_task = match (self.asked.cpus_per_task, self.asked.cpus_per_gpu) {
            (Some(cpus), _) => cpus.into(),
            (None, Some(cpus)) => {
                u64::from(cpus).saturating_mul(gpus_per_node).div_ceil(tasks_per_node.max(1)).max(1)
            }
            (None, None) => 1,
        };
        let cpus = tasks_per_node.saturating_mul(cpus_per_task);
        Ok(Role {
            nodes: count("nodes", nodes)?,
            tasks_per_node: count("ntasks-per-node", tasks_per_node)?,
            gpus_per_node: count("gpus-per-node", gpus_per_node)?,
            cpus_per_task: count("cpus-per-task", cpus_per_task)?,
            accelerator: self.asked.accelerator.clone().filter(|_| gpus_per_node > 0),
            memory_per_node: self.memory_per_node(cpus, gpus_per_node),
            is_exclusive: self.asked.is_exclusive,
            ..Role::named(Role::ONLY)
        })
    }

    /// The nodes asked for, or as many as the tasks or GPUs need.
    fn nodes(&mut self) -> u64 {
        let asked = &self.asked;
        let tasks = asked.tasks.map(u64::from);
        let gpus = self.total_gpus();
        let listed = self.job.placement.only_nodes.len() as u64;
        let of = |total: Option<u64>, per_node: Option<u32>| {
            Some(total?.div_ceil(per_node.map(u64::from).filter(|each| *each > 0)?))
        };
        let known = asked
            .nodes
            .map(u64::from)
            .or_else(|| of(tasks, asked.tasks_per_node))
            .or_else(|| of(gpus, asked.gpus_per_node))
            .or((listed > 0).then_some(listed));
        if let Some(nodes) = known {
            return nodes;
        }
        let nodes = gpus.unwrap_or(0).div_ceil(USUAL_GPUS).max(1);
        if nodes > 1 {
            let gpus = gpus.unwrap_or(0);
            self.remark_on(
                "--nodes",
                format!("it is not given; {gpus} GPUs are taken as {nodes} nodes of {USUAL_GPUS}"),
            );
        }
        nodes
    }

    fn total_gpus(&self) -> Option<u64> {
        let asked = &self.asked;
        let by_tasks = || Some(u64::from(asked.gpus_per_task?) * u64::from(asked.tasks?));
        asked.gpus.map(u64::from).or_else(by_tasks)
    }

    fn tasks_per_node(&mut self, nodes: u64) -> u64 {
        match (self.asked.tasks_per_node, self.asked.tasks) {
            (Some(per_node), _) => per_node.into(),
            (None, Some(tasks)) => self.spread_evenly("--ntasks", "tasks", tasks.into(), nodes),
            (None, None) => 1,
        }
    }

    fn gpus_per_node(&mut self, nodes: u64, tasks_per_node: u64) -> u64 {
        let asked = &self.asked;
        match (asked.gpus_per_node, asked.gpus, asked.gpus_per_task) {
            (Some(per_node), Some(gpus), _) if u64::from(per_node) * nodes != u64::from(gpus) => {
                self.remark_on(
                    "--gpus",
                    format!(
                        "{gpus} GPUs are not {nodes} nodes of {per_node}; {per_node} on each node are taken"
                    ),
                );
                per_node.into()
            }
            (Some(per_node), ..) => per_node.into(),
            (None, Some(gpus), _) => self.spread_evenly("--gpus", "GPUs", gpus.into(), nodes),
            (None, None, Some(per_task)) => u64::from(per_task).saturating_mul(tasks_per_node),
            (None, None, None) => 0,
        }
    }

    /// A total over nodes that must be equal: rounded up where it does not divide.
    fn spread_evenly(&mut self, option: &str, what: &str, total: u64, nodes: u64) -> u64 {
        let per_node = total.div_ceil(nodes.max(1));
        if per_node.saturating_mul(nodes) != total && nodes > 0 {
            self.remark_on(
                option,
                format!("{total} {what} do not divide over {nodes} nodes; each gets {per_node}, because nodes of a gang are equal"),
            );
        }
        per_node
    }

    fn memory_per_node(&mut self, cpus: u64, gpus: u64) -> Option<Bytes> {
        match self.asked.memory? {
            Memory::PerNode(bytes) => Some(bytes),
            Memory::PerCpu(bytes) => Some(bytes * cpus as f64),
            Memory::PerGpu(bytes) => Some(bytes * gpus as f64),
            // No other job can take the memory of an exclusive node.
            Memory::Whole if self.asked.is_exclusive => None,
            Memory::Whole => {
                self.remark_on(
                    "--mem",
                    "all memory of a node is not honoured without `--exclusive`; the job gets its share",
                );
                None
            }
        }
    }

    /// Slurm adds nodes to a list that is too short; we take no others than those listed.
    pub(super) fn check_nodes(&mut self) {
        let listed = self.job.placement.only_nodes.len() as u64;
        let nodes = self.job.gang.nodes();
        if listed > 0 && listed < nodes {
            self.job.placement.only_nodes.clear();
            self.remark_on(
                "--nodelist",
                format!("{listed} nodes are listed and {nodes} asked for; that those listed be among them is not honoured, and any nodes are taken"),
            );
        } else if listed > nodes {
            self.remark_on(
                "--nodelist",
                format!("{listed} nodes are listed and {nodes} asked for; {nodes} of those listed are taken"),
            );
        }
    }
}

fn count(option: &str, number: u64) -> Result<u32, JobError> {
    u32::try_from(number).map_err(|_| JobError::BadOption {
        option: format!("--{option}"),
        reason: format!("together with the other options it comes to {number}"),
        place: None,
    })
}
