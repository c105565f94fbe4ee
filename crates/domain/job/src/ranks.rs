//! Which ranks stand where: numbered in the order of the nodes, a block on each.

use std::ops::Range;

use crate::{Job, Workload};

/// The ranks of a gang, or the tasks of a step inside it: one block for each share of the gang or node of the step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankBlocks(Vec<Range<u32>>);

impl RankBlocks {
    /// Of a gang whose shares have these roles. A script is one rank, on the first node.
    pub fn of_gang(job: &Job, roles: impl IntoIterator<Item = u16>) -> Self {
        let tasks = |role: u16| job.gang.roles.get(usize::from(role)).map_or(0, |role| role.tasks_per_node);
        let is_script = matches!(job.workload, Workload::Script { .. });
        let count = |(at, role)| if is_script { u32::from(at == 0) } else { tasks(role) };
        Self::of(roles.into_iter().enumerate().map(count))
    }

    /// Of tasks spread over nodes as evenly as possible; the first nodes take the rest.
    pub fn spread(tasks: u32, nodes: u32) -> Self {
        let nodes = nodes.max(1);
        Self::of((0..nodes).map(|node| tasks / nodes + u32::from(node < tasks % nodes)))
    }

    fn of(counts: impl Iterator<Item = u32>) -> Self {
        let mut first = 0;
        let block = |count| {
            let block = first..first + count;
            first += count;
            block
        };
        Self(counts.map(block).collect())
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Range<u32>> {
        self.0.iter().cloned()
    }

    /// How many ranks stand in each block.
    pub fn counts(&self) -> Vec<u32> {
        self.iter().map(|block| block.end - block.start).collect()
    }

    /// All ranks together.
    pub fn world(&self) -> u32 {
        self.0.last().map_or(0, |block| block.end)
    }
}

/// The devices of one of `tasks` tasks on a node, of which the bits of `devices` are leased. Tasks see all of them
/// and by custom take those of their own number; where that does not come out even, all are named.
pub fn devices_of(task: u32, tasks: u32, devices: u64) -> Vec<u32> {
    let all = devices_in(devices);
    if tasks == 0 || !all.len().is_multiple_of(tasks as usize) {
        return all;
    }
    let each = all.len() / tasks as usize;
    all.into_iter().skip(task as usize * each).take(each).collect()
}

/// Local indices of the devices whose bits are set.
pub fn devices_in(devices: u64) -> Vec<u32> {
    (0..64).filter(|device| devices >> device & 1 == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gang, Role};

    #[test]
    fn ranks_follow_the_order_of_the_shares_and_a_script_is_one_rank() {
        let role = |name, tasks_per_node| Role { tasks_per_node, ..Role::named(name) };
        let gang = Gang { roles: vec![role("trainer", 2), role("rollout", 3)] };
        let blocks = |workload| RankBlocks::of_gang(&Job::new("a", workload, gang.clone()), [0, 1, 0]);
        let found = blocks(Workload::command(["true"]));
        assert_eq!((found.iter().collect::<Vec<_>>(), found.world()), (vec![0..2, 2..5, 5..7], 7));
        let found = blocks(Workload::Script { text: "#!/bin/sh".into() });
        assert_eq!((found.counts(), found.world()), (vec![1, 0, 0], 1));
    }

    #[test]
    fn tasks_divide_the_devices_of_their_node_where_that_comes_out_even() {
        assert_eq!(devices_of(1, 2, 0b1111_0000), [6, 7]);
        assert_eq!(devices_of(1, 3, 0b11), [0, 1]);
        assert_eq!(devices_of(0, 0, 0b1), [0]);
    }
}
