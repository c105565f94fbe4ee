//! What a group is asked to do, in a form that ranks can compare.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ElementFormat, Reduction};

/// The operations, under the names that nccl-tests and MPI made common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    /// Parts of different lengths.
    AllToAllV,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    Barrier,
    Send,
    Receive,
    /// A send and a receive at once.
    Exchange,
}

impl Operation {
    pub const ALL: [Operation; 13] = [
        Operation::AllReduce,
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::AllToAll,
        Operation::AllToAllV,
        Operation::Broadcast,
        Operation::Reduce,
        Operation::Gather,
        Operation::Scatter,
        Operation::Barrier,
        Operation::Send,
        Operation::Receive,
        Operation::Exchange,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all_reduce",
            Operation::AllGather => "all_gather",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::AllToAll => "all_to_all",
            Operation::AllToAllV => "all_to_all_v",
            Operation::Broadcast => "broadcast",
            Operation::Reduce => "reduce",
            Operation::Gather => "gather",
            Operation::Scatter => "scatter",
            Operation::Barrier => "barrier",
            Operation::Send => "send",
            Operation::Receive => "receive",
            Operation::Exchange => "exchange",
        }
    }

    /// Whether the elements of ranks are combined.
    pub fn reduces(self) -> bool {
        matches!(self, Operation::AllReduce | Operation::ReduceScatter | Operation::Reduce)
    }

    /// Whether every member takes part, in the same order on all.
    pub fn is_collective(self) -> bool {
        !matches!(self, Operation::Send | Operation::Receive | Operation::Exchange)
    }

    /// What the algorithm bandwidth is multiplied by to compare it with a link's, as nccl-tests does. `ranks` is at least 1.
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let ranks = f64::from(ranks);
        match self {
            Operation::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Operation::AllGather
            | Operation::ReduceScatter
            | Operation::AllToAll
            | Operation::AllToAllV
            | Operation::Gather
            | Operation::Scatter => (ranks - 1.0) / ranks,
            _ => 1.0,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call as every member must make it: the same operation, on as many elements of the same format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub operation: Operation,
    pub format: ElementFormat,
    pub by: Reduction,
    /// The member that gives or gets; 0 where there is none.
    pub root: u32,
    /// Elements of one part: of the whole for all-reduce, broadcast and reduce; of a member's share for the others.
    pub len: u64,
}

impl Call {
    pub(crate) fn new(operation: Operation, format: ElementFormat, len: usize) -> Self {
        Self { operation, format, by: Reduction::Sum, root: 0, len: len as u64 }
    }

    pub(crate) fn by(self, by: Reduction) -> Self {
        Self { by, ..self }
    }

    pub(crate) fn root(self, root: u32) -> Self {
        Self { root, ..self }
    }

    /// Whether sums on the way to the result can be too large for the format while the result is not: such a call is summed
    /// in a wider format and divided before it is rounded.
    pub(crate) fn is_narrow_average(&self) -> bool {
        self.operation.reduces() && self.by == Reduction::Average && self.format == ElementFormat::F16
    }

    /// Bytes of one part.
    pub(crate) fn part_bytes(&self) -> usize {
        self.len as usize * self.format.size()
    }

    /// Everything but the length in one word.
    pub(crate) fn signature(&self) -> u64 {
        u64::from(self.operation as u8)
            | u64::from(self.format as u8) << 8
            | u64::from(self.by as u8) << 16
            | u64::from(self.root) << 32
    }

    /// The inverse of [`signature`](Self::signature); none when the word is not one.
    pub(crate) fn from_words(signature: u64, len: u64) -> Option<Self> {
        let [operation, format, by, zero, ..] = signature.to_le_bytes();
        if zero != 0 {
            return None;
        }
        Some(Self {
            operation: *Operation::ALL.get(usize::from(operation))?,
            format: *ElementFormat::ALL.get(usize::from(format))?,
            by: *Reduction::ALL.get(usize::from(by))?,
            root: (signature >> 32) as u32,
            len,
        })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, format, by, root, len } = self;
        if *operation == Operation::Barrier {
            return f.write_str("barrier");
        }
        write!(f, "{operation} of {len} {format}")?;
        if operation.reduces() {
            write!(f, " by {by}")?;
        }
        match operation {
            Operation::Broadcast | Operation::Scatter => write!(f, " from member {root}"),
            Operation::Reduce | Operation::Gather => write!(f, " at member {root}"),
            _ => Ok(()),
        }
    }
}
