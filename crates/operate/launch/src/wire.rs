//! What launcher and helpers say to each other: one JSON object a line.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};

use bedplate_job::rank_environment::Peer;
use bedplate_report::Report;
use serde::{Deserialize, Serialize};

/// No message is longer.
const LONGEST: u64 = 4 << 20;

/// From the launcher to the helper of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum ToNode {
    /// The launcher is alive.
    Beat,
    /// Stop what runs, look whether the node is well, and say [`FromNode::Ready`].
    Prepare,
    Start(Box<RanksStart>),
    /// Pass a signal on to the ranks.
    Signal {
        number: i32,
    },
    /// Stop what runs and end.
    Quit,
}

/// The ranks of one node for one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RanksStart {
    /// Counts the runs of the job, restarts by the scheduler included.
    pub run: u32,
    pub node_index: u32,
    /// The nodes of the gang, in the order of their ranks.
    pub peers: Vec<Peer>,
    pub ranks: Vec<u32>,
    pub world_size: u32,
    pub master_port: u16,
    pub command: Vec<String>,
    pub restarts: u32,
    pub checkpoint: Option<(u64, Option<String>)>,
    /// Files of the ranks' streams: patterns of [`bedplate_job::FileNames`].
    pub output: Option<String>,
    pub error: Option<String>,
    pub input: Option<String>,
    /// What the job sets for every rank.
    pub set: BTreeMap<String, String>,
}

/// From the helper of a node to the launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum FromNode {
    /// The first message.
    Hello {
        token: String,
        node: String,
        gpus: u32,
    },
    Beat,
    /// Nothing runs. `port` is free here; `finding` says why the node is not well.
    Ready {
        port: u16,
        finding: Option<String>,
    },
    Report {
        run: u32,
        rank: u32,
        report: Report,
    },
    /// A rank has ended.
    Ended {
        run: u32,
        rank: u32,
        end: End,
    },
}

/// How a rank ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Code(i32),
    Signal(i32),
    /// It could not be started.
    NotStarted(String),
}

impl End {
    pub fn is_success(&self) -> bool {
        *self == End::Code(0)
    }

    /// As a shell would say it.
    pub fn exit_code(&self) -> u8 {
        match self {
            End::Code(code) => u8::try_from(*code).unwrap_or(1),
            End::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
            End::NotStarted(_) => 127,
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Code(code) => write!(f, "ended with exit code {code}"),
            End::Signal(signal) => write!(f, "was ended by signal {signal}"),
            End::NotStarted(reason) => write!(f, "could not be started: {reason}"),
        }
    }
}

pub(crate) fn send(message: &impl Serialize, mut to: impl Write) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// The next message; nothing at the end.
pub(crate) fn receive<T: for<'a> Deserialize<'a>>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(LONGEST).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
