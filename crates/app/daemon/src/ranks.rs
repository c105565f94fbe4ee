//! Where the ranks of a run stand, from what the journal keeps of it.

use bedplate_control::record::{RunRow, Share};
use bedplate_job::{Job, Workload};
use serde::Serialize;

/// One rank and what it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct RankPlace {
    pub(crate) rank: u32,
    pub(crate) node: String,
    pub(crate) address: String,
    pub(crate) devices: Vec<u32>,
}

/// The ranks of a run in their order; a script is one rank, on the first node, and has all its devices.
pub(crate) fn places(job: &Job, run: &RunRow) -> Vec<RankPlace> {
    let mut places = Vec::new();
    for (at, share) in run.shares.iter().enumerate() {
        let tasks = match job.workload {
            Workload::Script { .. } => u32::from(at == 0),
            Workload::Command { .. } | Workload::Native { .. } => {
                job.gang.roles.get(usize::from(share.role)).map_or(0, |role| role.tasks_per_node)
            }
        };
        for task in 0..tasks {
            places.push(RankPlace {
                rank: places.len() as u32,
                node: share.node.clone(),
                address: String::new(),
                devices: devices(share, task, tasks),
            });
        }
    }
    places
}

/// Tasks of a node see all its devices and by custom take those of their own number; where that does not come out
/// even, all of them are named.
fn devices(share: &Share, task: u32, tasks: u32) -> Vec<u32> {
    let all: Vec<u32> = (0..64).filter(|device| share.devices >> device & 1 == 1).collect();
    let (count, tasks) = (all.len(), tasks as usize);
    if tasks == 0 || !count.is_multiple_of(tasks) {
        return all;
    }
    let each = count / tasks;
    all.into_iter().skip(task as usize * each).take(each).collect()
}

#[cfg(test)]
mod tests {
    use bedplate_control::record::RunPhase;
    use bedplate_control::wire::RunId;
    use bedplate_gangs::Time;
    use bedplate_job::{Gang, Role};

    use super::*;

    fn check(workload: Workload, tasks_per_node: u32, expected: &[(u32, &str, &[u32])]) {
        let role = Role { nodes: 2, tasks_per_node, gpus_per_node: 2, ..Role::named("main") };
        let job = Job::new("a", workload, Gang::of(role));
        let share = |node: &str, devices| Share { node: node.into(), role: 0, devices };
        let run = RunRow {
            run: RunId { job: 1, number: 1 },
            phase: RunPhase::Running,
            shares: vec![share("n1", 0b11), share("n2", 0b1100)],
            started: Time(0),
            running: None,
            ends: Time(1),
            stops_as: None,
            ended: None,
            reason: None,
            cpu_ms: 0,
            energy_joules: None,
            steps: None,
        };
        let places = places(&job, &run);
        let found: Vec<(u32, &str, &[u32])> =
            places.iter().map(|place| (place.rank, &place.node[..], &place.devices[..])).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn ranks_follow_the_order_of_the_shares_and_divide_the_devices() {
        let command = || Workload::command(["true"]);
        check(command(), 1, &[(0, "n1", &[0, 1]), (1, "n2", &[2, 3])]);
        check(command(), 2, &[(0, "n1", &[0]), (1, "n1", &[1]), (2, "n2", &[2]), (3, "n2", &[3])]);
        check(Workload::Script { text: "#!/bin/sh".into() }, 2, &[(0, "n1", &[0, 1])]);
    }
}
