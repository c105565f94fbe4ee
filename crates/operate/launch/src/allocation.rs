//! The nodes that there are to launch on.

use std::collections::BTreeMap;

use bedplate_topology::expand_hostlist;

use crate::LaunchError;

/// The nodes of a job, and what its scheduler said about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    pub job: u64,
    pub nodes: Vec<String>,
    pub gpus_per_node: u32,
    /// How often the scheduler has started the job before.
    pub starts_before: u32,
    pub scheduler: OuterScheduler,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OuterScheduler {
    Slurm,
    /// None: processes of this machine stand in for nodes.
    Here,
}

impl Allocation {
    /// What Slurm says in the environment of a job.
    pub fn from_slurm(variables: &BTreeMap<String, String>) -> Result<Self, LaunchError> {
        let need =
            |variable: &'static str| variables.get(variable).ok_or(LaunchError::NoAllocation { variable });
        let number = |name: &str| variables.get(name).and_then(|text| text.parse().ok());
        let list = need("SLURM_JOB_NODELIST")?;
        let error = |error: bedplate_topology::TopologyError| LaunchError::NodeList {
            list: list.clone(),
            reason: error.to_string(),
        };
        let job = need("SLURM_JOB_ID")?;
        Ok(Self {
            job: job.parse().map_err(|_| LaunchError::NoAllocation { variable: "SLURM_JOB_ID" })?,
            nodes: expand_hostlist(list).map_err(error)?,
            gpus_per_node: number("SLURM_GPUS_ON_NODE").or_else(|| visible(variables)).unwrap_or(0),
            starts_before: number("SLURM_RESTART_COUNT").unwrap_or(0),
            scheduler: OuterScheduler::Slurm,
        })
    }

    /// Processes of this machine that stand in for nodes.
    pub fn here(nodes: u32) -> Self {
        Self {
            job: u64::from(std::process::id()),
            nodes: (1..=nodes).map(|node| format!("here{node}")).collect(),
            gpus_per_node: 0,
            starts_before: 0,
            scheduler: OuterScheduler::Here,
        }
    }
}

fn visible(variables: &BTreeMap<String, String>) -> Option<u32> {
    let devices = variables.get("CUDA_VISIBLE_DEVICES").filter(|devices| !devices.is_empty())?;
    u32::try_from(devices.split(',').count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Allocation, String> {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Allocation::from_slurm(&pairs.collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn slurm_says_nodes_gpus_and_restarts() {
        let found = read(&[
            ("SLURM_JOB_ID", "17"),
            ("SLURM_JOB_NODELIST", "n[1-3]"),
            ("SLURM_GPUS_ON_NODE", "8"),
            ("SLURM_RESTART_COUNT", "2"),
        ]);
        let found = found.unwrap();
        assert_eq!((found.job, found.nodes.len(), found.gpus_per_node, found.starts_before), (17, 3, 8, 2));
    }

    #[test]
    fn outside_of_a_job_there_is_no_allocation() {
        assert_eq!(
            read(&[]).unwrap_err(),
            "this process is not in an allocation: SLURM_JOB_NODELIST is not set"
        );
        assert!(read(&[("SLURM_JOB_ID", "1"), ("SLURM_JOB_NODELIST", "n[")]).is_err());
    }
}
