//! Why a job waits, when it should start, and what would let it start sooner.
//!
//! Slurm says the first two. The third is worked out from what is free now: fewer nodes, another partition, or a time
//! limit that lets it run before the next job that has reserved nodes.

use bedplate_diag::Reason;
use serde_json::{Map, Value, json};

use super::complaint::no_such_job;
use super::job::{JobRecord, node_names};
use super::node::NodeRecord;
use super::reason;
use super::site::Partition;
use super::{Slurm, now_s};
use crate::{DriverError, Explained, JobId, JobState};

/// A gap shorter than this is none.
const SHORTEST_GAP_S: u64 = 5 * 60;

/// What the others do and what is free.
struct Scene<'a> {
    jobs: &'a [JobRecord],
    nodes: &'a [NodeRecord],
    partitions: &'a [Partition],
    now_s: u64,
}

impl Slurm {
    pub(super) fn explained(&self, id: &JobId) -> Result<Option<Explained>, DriverError> {
        let records = self.records(id)?;
        let Some(record) = records.iter().find(|record| record.state() == JobState::Waiting) else {
            return match records.is_empty() {
                true => self.forgotten(id).map(|_| None),
                false => Ok(None),
            };
        };
        let jobs = self.ask(|transport| transport.jobs())?;
        let nodes = self.ask(|transport| transport.nodes())?;
        let partitions = self.ask(|transport| transport.partitions())?;
        // The list may know of a start that the one record did not.
        let record = jobs.iter().find(|job| job.id == record.id).unwrap_or(record);
        if record.id == 0 {
            return Err(no_such_job(id));
        }
        let scene = Scene { jobs: &jobs, nodes: &nodes, partitions: &partitions, now_s: now_s() };
        Ok(Some(explanation(record, &scene)))
    }
}

fn explanation(record: &JobRecord, scene: &Scene<'_>) -> Explained {
    let wait = reason::wait(record);
    let mut remedies: Vec<Reason> = reason::remedy(&wait, record).into_iter().collect();
    if matches!(
        wait.code.as_str(),
        "resources" | "behind" | "not_considered" | "nodes_unavailable" | "partition_down"
    ) {
        remedies.extend(fewer_nodes(record, scene));
        remedies.extend(shorter(record, scene));
        remedies.extend(other_partitions(record, scene));
    }
    if wait.code == "partition_time" {
        remedies.extend(within_partition(record, scene));
    }
    Explained {
        ahead: Some(scene.jobs.iter().filter(|job| is_ahead(job, record)).count()),
        expected_start_ms: record.expected_start_s().map(|seconds| seconds * 1000),
        priority: record
            .priority
            .map_or(Value::Null, |total| Value::Object(Map::from_iter([("total".to_owned(), json!(total))]))),
        wait,
        remedies,
        nodes: None,
    }
}

fn is_ahead(job: &JobRecord, record: &JobRecord) -> bool {
    let key = |job: &JobRecord| (std::cmp::Reverse(job.priority), job.submitted_s, job.id);
    job.state() == JobState::Waiting
        && !job.is_held()
        && job.id != record.id
        && job.partition == record.partition
        && key(job) < key(record)
}

/// The nodes of a partition on which the job's share for one node fits now.
fn free_in(partition: &Partition, record: &JobRecord, scene: &Scene<'_>) -> u64 {
    let members = node_names(&partition.nodes);
    let each = record.gpus_asked / record.nodes_asked.max(1);
    // A node is told as idle for a moment after a job has got it.
    let is_taken =
        |name: &String| scene.jobs.iter().any(|job| !job.state().is_final() && job.nodes.contains(name));
    let fits = |node: &&NodeRecord| {
        node.is_free() && node.gpus() >= each && members.contains(&node.name) && !is_taken(&node.name)
    };
    scene.nodes.iter().filter(fits).count() as u64
}

/// The first of the partitions that a job names, `a,b`.
fn partition_of<'a>(record: &JobRecord, scene: &'a Scene<'_>) -> Option<&'a Partition> {
    let name = record.partition.split(',').next().unwrap_or_default();
    scene.partitions.iter().find(|partition| partition.name == name)
}

fn fewer_nodes(record: &JobRecord, scene: &Scene<'_>) -> Option<Reason> {
    let free = free_in(partition_of(record, scene)?, record, scene);
    (free > 0 && free < record.nodes_asked).then(|| {
        let text =
            format!("with {free} nodes instead of {} it would fit on what is free now", record.nodes_asked);
        Reason::new("fewer_nodes", text).with("nodes", free)
    })
}

/// Where enough is free and another job has reserved it, a job that ends before is let through.
fn shorter(record: &JobRecord, scene: &Scene<'_>) -> Option<Reason> {
    if free_in(partition_of(record, scene)?, record, scene) < record.nodes_asked {
        return None;
    }
    let reserved =
        scene.jobs.iter().filter(|job| is_ahead(job, record)).filter_map(JobRecord::expected_start_s);
    let gap_s = reserved.min()?.checked_sub(scene.now_s)?;
    let gap_min = gap_s / 60;
    let is_longer = record.limit_min.is_none_or(|limit| limit > gap_min);
    (gap_s >= SHORTEST_GAP_S && is_longer).then(|| {
        let text = format!(
            "with a time limit of {} it would end before the next job that has reserved its nodes",
            clock(gap_min)
        );
        Reason::new("shorter", text).with("minutes", gap_min)
    })
}

fn other_partitions(record: &JobRecord, scene: &Scene<'_>) -> Vec<Reason> {
    let own: Vec<&str> = record.partition.split(',').collect();
    let own_free = partition_of(record, scene).map_or(0, |partition| free_in(partition, record, scene));
    let fits = |partition: &&Partition| {
        let takes_time = partition
            .longest_min
            .is_none_or(|longest| record.limit_min.is_some_and(|limit| limit <= longest));
        let takes_nodes = partition.most_nodes.is_none_or(|most| record.nodes_asked <= most);
        let takes_account =
            partition.accounts.is_empty() || partition.accounts.split(',').any(|name| name == record.account);
        let takes_qos = partition.qos.is_empty() || partition.qos.split(',').any(|name| name == record.qos);
        partition.is_up
            && !own.contains(&partition.name.as_str())
            && takes_time
            && takes_nodes
            && takes_account
            && takes_qos
    };
    let others =
        scene.partitions.iter().filter(fits).map(|partition| (partition, free_in(partition, record, scene)));
    let roomy = others.filter(|(_, free)| *free >= record.nodes_asked && *free >= own_free);
    roomy
        .map(|(partition, free)| {
            let text = format!("partition {} has {free} free nodes that fit", partition.name);
            Reason::new("other_partition", text).with("partition", partition.name.clone()).with("nodes", free)
        })
        .collect()
}

fn within_partition(record: &JobRecord, scene: &Scene<'_>) -> Option<Reason> {
    let longest = partition_of(record, scene)?.longest_min?;
    let text = format!("with a time limit of {} its partition takes it", clock(longest));
    Some(Reason::new("shorter", text).with("minutes", longest))
}

fn clock(minutes: u64) -> String {
    match (minutes / 1440, minutes / 60 % 24, minutes % 60) {
        (0, hours, minutes) => format!("{hours}:{minutes:02}:00"),
        (days, hours, minutes) => format!("{days}-{hours:02}:{minutes:02}:00"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(id: u64, nodes: u64, priority: u64) -> JobRecord {
        JobRecord {
            id,
            states: vec!["PENDING".into()],
            reason: "Resources".into(),
            partition: "main".into(),
            priority: Some(priority),
            nodes_asked: nodes,
            gpus_asked: nodes * 8,
            limit_min: Some(600),
            ..JobRecord::default()
        }
    }

    fn node(name: &str, state: &str) -> NodeRecord {
        NodeRecord {
            name: name.into(),
            states: vec![state.into()],
            gres: "gpu:h100:8".into(),
            ..NodeRecord::default()
        }
    }

    fn partition(name: &str, nodes: &str) -> Partition {
        Partition { name: name.into(), is_up: true, nodes: nodes.into(), ..Partition::default() }
    }

    fn remedies(jobs: &[JobRecord], nodes: &[NodeRecord], partitions: &[Partition]) -> Vec<String> {
        let scene = Scene { jobs, nodes, partitions, now_s: 1000 };
        explanation(&jobs[0], &scene).remedies.into_iter().map(|remedy| remedy.text).collect()
    }

    #[test]
    fn what_is_free_now_makes_the_remedies() {
        let nodes = [
            node("n1", "ALLOCATED"),
            node("n2", "IDLE"),
            node("n3", "IDLE"),
            node("m1", "IDLE"),
            node("m2", "IDLE"),
            node("m3", "IDLE"),
            node("m4", "DRAIN"),
        ];
        let partitions = [
            partition("main", "n[1-3]"),
            partition("other", "m[1-4]"),
            Partition { is_up: false, ..partition("shut", "m[1-4]") },
        ];
        assert_eq!(
            remedies(&[waiting(1, 3, 5)], &nodes, &partitions),
            [
                "with 2 nodes instead of 3 it would fit on what is free now",
                "partition other has 3 free nodes that fit"
            ]
        );
        let first = JobRecord { started_s: Some(1000 + 7200), ..waiting(2, 3, 9) };
        assert_eq!(
            remedies(&[waiting(1, 2, 5), first], &nodes, &partitions),
            [
                "with a time limit of 2:00:00 it would end before the next job that has reserved its nodes",
                "partition other has 3 free nodes that fit"
            ]
        );
    }

    #[test]
    fn a_limit_of_the_partition_is_named() {
        let record = JobRecord { reason: "PartitionTimeLimit".into(), ..waiting(1, 1, 5) };
        let main = Partition { longest_min: Some(1440 + 90), ..partition("main", "n1") };
        let told = remedies(&[record], &[], &[main]);
        assert_eq!(told[1], "with a time limit of 1-01:30:00 its partition takes it");
    }

    #[test]
    fn jobs_ahead_are_counted_by_priority_in_the_same_partition() {
        let held = JobRecord { reason: "JobHeldUser".into(), ..waiting(4, 1, 9) };
        let elsewhere = JobRecord { partition: "other".into(), ..waiting(5, 1, 9) };
        let jobs = [waiting(1, 1, 5), waiting(2, 1, 9), waiting(3, 1, 4), held, elsewhere];
        let scene = Scene { jobs: &jobs, nodes: &[], partitions: &[], now_s: 0 };
        assert_eq!(explanation(&jobs[0], &scene).ahead, Some(1));
    }
}
