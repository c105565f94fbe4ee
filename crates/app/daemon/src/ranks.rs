//! Where the ranks of a run stand, from what the journal keeps of it.

use bedplate_control::record::RunRow;
use bedplate_job::{Job, RankBlocks, devices_of};
use serde::Serialize;

/// One rank and what it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct RankPlace {
    pub(crate) rank: u32,
    /// The number of the run by which its node knows it.
    pub(crate) run: u32,
    pub(crate) node: String,
    pub(crate) address: String,
    pub(crate) devices: Vec<u32>,
}

/// The ranks of a run in their order; a script is one rank, on the first node, and has all its devices.
pub(crate) fn places(job: &Job, run: &RunRow) -> Vec<RankPlace> {
    let blocks = RankBlocks::of_gang(job, run.shares.iter().map(|share| share.role));
    let mut places = Vec::new();
    for (share, block) in run.shares.iter().zip(blocks.iter()) {
        let run = share.joined.map_or(run.run.number, |joined| joined.run);
        let first = share.joined.map_or(block.start, |joined| joined.first_rank);
        places.extend(block.clone().map(|rank| RankPlace {
            rank: rank - block.start + first,
            run,
            node: share.node.clone(),
            address: String::new(),
            devices: devices_of(rank - block.start, block.end - block.start, share.devices),
        }));
    }
    places
}

#[cfg(test)]
mod tests {
    use bedplate_control::record::HeldShare;
    use bedplate_control::wire::RunId;
    use bedplate_gangs::Time;
    use bedplate_job::{Gang, Role, Workload};

    use super::*;

    fn check(workload: Workload, tasks_per_node: u32, expected: &[(u32, &str, &[u32])]) {
        let role = Role { nodes: 2, tasks_per_node, gpus_per_node: 2, ..Role::named("main") };
        let job = Job::new("a", workload, Gang::of(role));
        let share = |node: &str, devices| HeldShare { node: node.into(), role: 0, devices, joined: None };
        let shares = vec![share("n1", 0b11), share("n2", 0b1100)];
        let run = RunRow::begun(RunId { job: 1, number: 1 }, shares, Time(0));
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
