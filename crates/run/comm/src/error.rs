//! What can go wrong between ranks, and before they are ranks of one world.

use std::io;
use std::path::PathBuf;

use bedplate_diag::{Class, Diagnostic, Page};
use serde::{Deserialize, Serialize};

use crate::Call;

/// Why a world can do no more. Every rank gets the same fault or one of the same event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// Its process ended, or its connection was reset.
    #[error("rank {rank} is gone: {why}")]
    Lost { rank: u32, why: String },
    /// Its process is stopped, or the network to it is silent.
    #[error("rank {rank} has been silent for {seconds} s")]
    Silent { rank: u32, seconds: u64 },
    #[error(
        "ranks disagree on call {number} of group `{group}`: rank {a_rank} makes {a}, rank {b_rank} {} {b}", ahead(*number, *b_number)
    )]
    Mismatch { group: String, number: u64, a_rank: u32, a: Call, b_rank: u32, b_number: u64, b: Call },
    #[error(
        "rank {sender} sends {sent} elements to rank {receiver}, which expects {expected} (call {number} of group `{group}`)"
    )]
    UnequalParts { group: String, number: u64, sender: u32, sent: u64, receiver: u32, expected: u64 },
    #[error(
        "rank {rank} waited {seconds} s in call {number} of group `{group}`, {call}; not entered by {}",
        ranks(missing)
    )]
    Stalled { rank: u32, group: String, number: u64, call: Call, missing: Vec<u32>, seconds: u64 },
    #[error("rank {rank} passed wrong arguments: {what}")]
    Arguments { rank: u32, what: String },
    #[error("rank {rank} revoked the world: {reason}")]
    Revoked { rank: u32, reason: String },
    /// A call between GPUs failed, or could not be begun.
    #[error("rank {rank} cannot exchange elements of its GPU: {why}")]
    Gpu { rank: u32, why: String },
    /// Its GPU has failed: the rank computes no more, and others may go on without it.
    #[error("rank {rank} has lost its GPU: {why}")]
    Device { rank: u32, why: String },
    /// A rank makes the next world; all ranks that are left are to do the same.
    #[error("rank {rank} rebuilds the world")]
    Rebuilt { rank: u32 },
}

impl Fault {
    /// The rank that the fault is about.
    pub fn rank(&self) -> u32 {
        match self {
            Fault::Lost { rank, .. }
            | Fault::Silent { rank, .. }
            | Fault::Stalled { rank, .. }
            | Fault::Arguments { rank, .. }
            | Fault::Revoked { rank, .. }
            | Fault::Gpu { rank, .. }
            | Fault::Device { rank, .. }
            | Fault::Rebuilt { rank } => *rank,
            Fault::Mismatch { b_rank, .. } => *b_rank,
            Fault::UnequalParts { sender, .. } => *sender,
        }
    }

    /// A rank that can no longer take part.
    pub fn lost_rank(&self) -> Option<u32> {
        match self {
            Fault::Lost { rank, .. } | Fault::Silent { rank, .. } | Fault::Device { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

fn ahead(number: u64, other: u64) -> String {
    if number == other { "makes".to_owned() } else { format!("is at call {other},") }
}

fn ranks(missing: &[u32]) -> String {
    match missing {
        [] => "no rank that is known".to_owned(),
        [one] => format!("rank {one}"),
        several => format!("ranks {}", several.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum CommError {
    /// The world is over for all; it may be [rebuilt](crate::World::rebuild).
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("a group of the ranks {ranks:?} cannot be made: {why}")]
    Group { ranks: Vec<u32>, why: String },
    #[error("cannot share memory with the ranks of this host: {0}")]
    Share(String),
}

/// Why a rank did not become part of a world.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("`{name}` is not set, so this process does not know which rank it is")]
    NoVariable { name: &'static str },
    #[error("`{name}` is `{value}`: {why}")]
    BadVariable { name: &'static str, value: String, why: String },
    #[error("cannot read the secret from {}", path.display())]
    Secret { path: PathBuf, source: io::Error },
    #[error("cannot find the address of `{name}`")]
    Resolve { name: String, source: io::Error },
    #[error("rank 0 cannot listen on {address}")]
    Listen { address: String, source: io::Error },
    #[error("rank {rank} cannot reach rank 0 at {address} within {seconds} s")]
    Unreachable { rank: u32, address: String, seconds: u64, source: io::Error },
    #[error("after {seconds} s {} of {world} ranks had not joined: {}{}", missing.len(), ranks(missing), strangers(*turned_away))]
    Missing { world: u32, missing: Vec<u32>, seconds: u64, turned_away: u32 },
    #[error("{who} has another secret")]
    WrongSecret { who: String },
    #[error("rank {rank} joined twice: {first} and {second}")]
    Twice { rank: u32, first: String, second: String },
    #[error("{first} and {second} disagree: {what}")]
    Differs { first: String, second: String, what: String },
    #[error("{who} does not speak this protocol: {why}")]
    Protocol { who: String, why: String },
    #[error("the connection to {who} failed while the world was made")]
    Connection { who: String, source: io::Error },
    #[error("this rank is not part of the new world: {why}")]
    LeftOut { why: String },
}

fn strangers(turned_away: u32) -> String {
    match turned_away {
        0 => String::new(),
        count => format!(" ({count} attempts with another secret were turned away)"),
    }
}

/// The documentation of every code of this crate.
pub const PAGES: &[&Page] = &[
    &LOST,
    &SILENT,
    &MISMATCH,
    &STALLED,
    &ARGUMENTS,
    &REVOKED,
    &GROUP,
    &GPU,
    &DEVICE,
    &SHARE,
    &VARIABLE,
    &SECRET,
    &LISTEN,
    &UNREACHABLE,
    &MISSING,
    &WRONG_SECRET,
    &DIFFERS,
    &PROTOCOL,
    &CONNECTION,
    &LEFT_OUT,
];

macro_rules! page {
    ($name:ident, $code:literal, $class:ident, $meaning:literal, $remedy:literal) => {
        static $name: Page = Page { code: $code, class: Class::$class, meaning: $meaning, remedy: $remedy };
    };
}

page!(
    LOST,
    "comm/rank-lost",
    Transient,
    "A rank's process ended or its connection was reset, so no collective can complete. Every surviving rank gets this error.",
    "look at the output of the rank that is named; the survivors can rebuild the world without it"
);
page!(
    SILENT,
    "comm/rank-silent",
    Transient,
    "A rank sent no sign of life within the deadline (10 s unless set). Time in which the rank that waited was itself \
     not running does not count. Either the silent rank's process is stopped, its machine hangs, or the network between \
     them is cut.",
    "look at the machine of the rank that is named; where pauses are expected, raise BEDPLATE_COMM_DEADLINE"
);
page!(
    MISMATCH,
    "comm/mismatch",
    User,
    "Ranks of a group must make the same calls in the same order, with the same format, length, reduction and root; the parts that \
     ranks exchange must have the length that the other side expects.",
    "compare the two calls in the message; the flight recorder (BEDPLATE_FLIGHT) has what each rank did before"
);
page!(
    STALLED,
    "comm/stalled",
    User,
    "Ranks that are alive did not enter a collective within the patience (BEDPLATE_COMM_PATIENCE, ten minutes unless set).",
    "see what the missing ranks do; `bedplate comm flight` compares the flight records of all ranks"
);
page!(
    ARGUMENTS,
    "comm/arguments",
    User,
    "A rank called a collective with buffers whose lengths do not fit together, or with a member that the group does not have. \
     The other ranks would wait for ever, so they get the error too.",
    "correct the call on the rank that is named"
);
page!(
    REVOKED,
    "comm/revoked",
    Transient,
    "A rank gave up the world on purpose, so that every rank leaves its collectives and a new world can be made.",
    "rebuild the world, or end"
);
page!(
    GROUP,
    "comm/bad-group",
    User,
    "The members of a group must be distinct ranks of the world, must include this rank, and must be in the same order on all members.",
    "pass the same ranks on every member"
);
page!(
    GPU,
    "comm/gpu",
    User,
    "GPUs exchange elements by NCCL. All ranks of a group need the same version of it, and every rank needs a GPU of \
     its own. NCCL was not found, its version differs, or it refused a call; its own words are in the message, and \
     NCCL_DEBUG=WARN shows more.",
    "install the same NCCL on all hosts (`pip install nvidia-nccl-cu13`) and give every rank a GPU of its own, or set BEDPLATE_COMM_TRANSPORT=tcp on all \
     ranks: elements then go through the processor's memory, which is slower"
);
page!(
    DEVICE,
    "comm/gpu-lost",
    Transient,
    "The GPU of a rank failed a call, so the rank computes no more. The message has the driver's own words and names the GPU. Nothing that the GPU computed \
     since its last good answer has reached other ranks; they can rebuild the world without it.",
    "look at the kernel's log of that host for an XID of the GPU; start again with `--resume`, on other GPUs where there are some"
);
page!(
    SHARE,
    "comm/share",
    User,
    "Ranks on one host exchange elements through shared memory, which could not be made or mapped.",
    "check the limits on memory and open files of the job (`ulimit -a`, the memory of its cgroup)"
);
page!(
    VARIABLE,
    "comm/variable",
    User,
    "Ranks find each other by the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or by SLURM_PROCID, SLURM_NTASKS, \
     SLURM_LOCALID and SLURM_JOB_NODELIST under srun.",
    "start the ranks as a job, with `srun` or with `torchrun`, or set the variables"
);
page!(
    SECRET,
    "comm/secret",
    User,
    "Ranks prove to each other that they belong together by a secret: BEDPLATE_SECRET, the file that BEDPLATE_SECRET_FILE names, or a \
     file of the user that is made on first use.",
    "set BEDPLATE_SECRET to the same random text on all ranks, or name a file that all can read"
);
page!(
    LISTEN,
    "comm/listen",
    User,
    "Rank 0 listens on MASTER_ADDR and MASTER_PORT for the others. The port is in use, or the address is not one of this machine.",
    "choose another MASTER_PORT, or set MASTER_ADDR to an address of the machine of rank 0"
);
page!(
    UNREACHABLE,
    "comm/unreachable",
    Transient,
    "Rank 0 was not there, or a firewall is between the machines.",
    "check that rank 0 runs, that MASTER_ADDR and MASTER_PORT are its own, and that the port is open"
);
page!(
    MISSING,
    "comm/missing-ranks",
    Transient,
    "Not all ranks of the world arrived in time.",
    "look at the output of the missing ranks; check WORLD_SIZE"
);
page!(
    WRONG_SECRET,
    "comm/wrong-secret",
    User,
    "The two sides did not prove to each other that they know the same secret.",
    "set BEDPLATE_SECRET to the same value on all ranks"
);
page!(
    DIFFERS,
    "comm/world-differs",
    User,
    "Ranks that meet must agree on the size of the world and the version of the program, and every rank joins once.",
    "start all ranks with the same program and the same WORLD_SIZE, each with its own RANK"
);
page!(
    PROTOCOL,
    "comm/protocol",
    User,
    "What listens at the address, or connected to it, is not a rank of this program.",
    "choose another MASTER_PORT"
);
page!(
    CONNECTION,
    "comm/connection",
    Transient,
    "A connection broke before all ranks had met.",
    "look at the output of the rank that is named, and start again"
);
page!(
    LEFT_OUT,
    "comm/left-out",
    Transient,
    "The surviving ranks made a new world without this one, because they had lost contact with it.",
    "end this process; a new one may join in its place"
);

impl Diagnostic for CommError {
    fn page(&self) -> &'static Page {
        match self {
            CommError::Fault(fault) => fault.page(),
            CommError::Group { .. } => &GROUP,
            CommError::Share(_) => &SHARE,
        }
    }
}

impl Diagnostic for Fault {
    fn page(&self) -> &'static Page {
        match self {
            Fault::Lost { .. } => &LOST,
            Fault::Silent { .. } => &SILENT,
            Fault::Mismatch { .. } | Fault::UnequalParts { .. } => &MISMATCH,
            Fault::Stalled { .. } => &STALLED,
            Fault::Arguments { .. } => &ARGUMENTS,
            Fault::Gpu { .. } => &GPU,
            Fault::Device { .. } => &DEVICE,
            Fault::Revoked { .. } | Fault::Rebuilt { .. } => &REVOKED,
        }
    }
}

impl Diagnostic for JoinError {
    fn page(&self) -> &'static Page {
        match self {
            JoinError::NoVariable { .. } | JoinError::BadVariable { .. } | JoinError::Resolve { .. } => {
                &VARIABLE
            }
            JoinError::Secret { .. } => &SECRET,
            JoinError::Listen { .. } => &LISTEN,
            JoinError::Unreachable { .. } => &UNREACHABLE,
            JoinError::Missing { .. } => &MISSING,
            JoinError::WrongSecret { .. } => &WRONG_SECRET,
            JoinError::Twice { .. } | JoinError::Differs { .. } => &DIFFERS,
            JoinError::Protocol { .. } => &PROTOCOL,
            JoinError::Connection { .. } => &CONNECTION,
            JoinError::LeftOut { .. } => &LEFT_OUT,
        }
    }
}
