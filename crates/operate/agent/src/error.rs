//! Why an agent, or a step of `srun`, cannot go on.

use std::io;
use std::path::PathBuf;

use bedplate_diag::{Class, Diagnostic, Page};

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the control plane at {server} refuses this agent (status {status}): {message}")]
    Refused { server: String, status: u16, message: String },
    #[error("`{text}` is not a SHA-256 fingerprint")]
    Fingerprint { text: String },
    #[error("node name `{name}` cannot be used for files")]
    NodeName { name: String },
    #[error("cannot use the state directory {path}")]
    State { path: PathBuf, source: io::Error },
    #[error("cannot start the fork server of the node's processes")]
    ForkServer { source: io::Error },
    #[error("the agent's socket {path} cannot be opened")]
    Socket { path: PathBuf, source: io::Error },
}

/// The documentation of every code of this crate.
pub const PAGES: &[&Page] = &[&REFUSED, &FINGERPRINT, &NODE_NAME, &STATE, &FORK_SERVER, &SOCKET];

static REFUSED: Page = Page {
    code: "agent/refused",
    class: Class::User,
    meaning: "The control plane answered, but does not let this agent join: its token is missing, wrong, used up or of another role.",
    remedy: "start the agent with a token that the control plane gave out for joining",
};
static FINGERPRINT: Page = Page {
    code: "agent/fingerprint",
    class: Class::User,
    meaning: "The fingerprint by which the control plane's certificate is recognised is not 64 hexadecimal digits.",
    remedy: "copy the fingerprint as the control plane prints it when it starts",
};
static NODE_NAME: Page = Page {
    code: "agent/node-name",
    class: Class::User,
    meaning: "The name of a node becomes a part of file names, so it may have letters, digits, dots, dashes and underscores only, and must not begin with a dot.",
    remedy: "rename the node",
};
static STATE: Page = Page {
    code: "agent/state",
    class: Class::User,
    meaning: "The agent keeps a directory for each run, with logs and temporary files, and cannot make or write the directory above them.",
    remedy: "make the directory writable for the user who starts the agent, or name another one with `--state`",
};
static FORK_SERVER: Page = Page {
    code: "agent/keeper",
    class: Class::Transient,
    meaning: "The agent starts all processes through one small process of its own, the fork server, and could not start that one: the host has no room for another process, or the program file is gone.",
    remedy: "check limits on processes and memory, and that the program file still exists, then start the agent again",
};
static SOCKET: Page = Page {
    code: "agent/socket",
    class: Class::User,
    meaning: "The agent listens on a socket file for `srun` inside its jobs, and could not make it.",
    remedy: "make the state directory writable, on a file system that has sockets",
};

impl Diagnostic for AgentError {
    fn page(&self) -> &'static Page {
        match self {
            AgentError::Refused { .. } => &REFUSED,
            AgentError::Fingerprint { .. } => &FINGERPRINT,
            AgentError::NodeName { .. } => &NODE_NAME,
            AgentError::State { .. } => &STATE,
            AgentError::ForkServer { .. } => &FORK_SERVER,
            AgentError::Socket { .. } => &SOCKET,
        }
    }
}
