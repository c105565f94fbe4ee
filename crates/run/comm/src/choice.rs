//! Which algorithm a call over channels uses, by operation, size and number of members.
//!
//! All ranks use the table of rank 0: partners must follow the same algorithm.

use serde::{Deserialize, Serialize};

use crate::Operation;

/// How a collective is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Through the shared memory of one host.
    Shared,
    /// Shared memory on each host, channels between hosts.
    Layered,
    /// Every member with every other at once.
    Pairwise,
    Ring,
    /// Recursive doubling.
    Doubling,
    /// Recursive halving, then doubling.
    Halving,
    /// A binomial tree.
    Tree,
    /// Between GPUs, by NCCL, which chooses by itself.
    Nccl,
    /// A GPU's elements through the processor's memory, there as the processor's go.
    Staged,
}

impl Algorithm {
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Shared => "shared",
            Algorithm::Layered => "layered",
            Algorithm::Pairwise => "pairwise",
            Algorithm::Ring => "ring",
            Algorithm::Doubling => "doubling",
            Algorithm::Halving => "halving",
            Algorithm::Tree => "tree",
            Algorithm::Nccl => "nccl",
            Algorithm::Staged => "staged",
        }
    }

    /// The algorithms that an operation has over channels.
    pub fn over_channels(operation: Operation) -> &'static [Algorithm] {
        use Algorithm::{Doubling, Halving, Pairwise, Ring, Tree};
        match operation {
            Operation::AllReduce => &[Pairwise, Ring, Doubling, Halving],
            Operation::AllGather | Operation::ReduceScatter => &[Pairwise, Ring],
            Operation::Reduce => &[Pairwise, Tree],
            Operation::Broadcast | Operation::Barrier => &[Tree],
            _ => &[Pairwise],
        }
    }
}

/// A row of the table: the first that fits is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRule {
    pub operation: Operation,
    /// Bytes of the whole call, at most.
    pub bytes: u64,
    pub members: u32,
    pub algorithm: Algorithm,
}

/// Rules in order; without a rule a call is pairwise, and a broadcast or barrier goes by a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlgorithmTable(pub Vec<TableRule>);

impl Default for AlgorithmTable {
    /// All-reduce up to eight members agrees with one sweep over loopback (`bedplate bench comm --transport tcp --algorithm`): with
    /// four ranks on two cores doubling is fastest at 1 and 16 KB and pairwise at 4 MB; halving was faster between, where
    /// pairwise is kept because it rounds once. Everything else, and more members, follows from the number of steps and bytes
    /// and has not been measured.
    fn default() -> Self {
        let any = u64::MAX;
        let all = u32::MAX;
        let rule = |operation, bytes, members, algorithm| TableRule { operation, bytes, members, algorithm };
        Self(vec![
            rule(Operation::AllReduce, 32 << 10, all, Algorithm::Doubling),
            rule(Operation::AllReduce, any, 8, Algorithm::Pairwise),
            rule(Operation::AllReduce, 1 << 20, all, Algorithm::Halving),
            rule(Operation::AllReduce, any, all, Algorithm::Ring),
            rule(Operation::AllGather, any, 8, Algorithm::Pairwise),
            rule(Operation::AllGather, any, all, Algorithm::Ring),
            rule(Operation::ReduceScatter, any, 8, Algorithm::Pairwise),
            rule(Operation::ReduceScatter, any, all, Algorithm::Ring),
            rule(Operation::Reduce, any, 4, Algorithm::Pairwise),
            rule(Operation::Reduce, any, all, Algorithm::Tree),
        ])
    }
}

impl AlgorithmTable {
    /// One algorithm wherever it can be used.
    pub fn only(algorithm: Algorithm) -> Self {
        let rule = |operation| TableRule { operation, bytes: u64::MAX, members: u32::MAX, algorithm };
        let has = |operation: &Operation| Algorithm::over_channels(*operation).contains(&algorithm);
        Self(Operation::ALL.into_iter().filter(has).map(rule).collect())
    }

    pub fn choose(&self, operation: Operation, bytes: u64, members: u32) -> Algorithm {
        let fits =
            |rule: &&TableRule| rule.operation == operation && bytes <= rule.bytes && members <= rule.members;
        let fallback = Algorithm::over_channels(operation)[0];
        let algorithm = self.0.iter().find(fits).map_or(fallback, |rule| rule.algorithm);
        match algorithm {
            Algorithm::Halving if !members.is_power_of_two() => Algorithm::Pairwise,
            other => other,
        }
    }
}
