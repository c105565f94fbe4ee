//! The agent of one node: it starts, watches and stops ranks by order of the control plane.
//!
//! What to do is decided by [`bedplate_control::agent::Agent`]; this crate has the link, the processes and the files.
//! A node has two processes of ours: the *agent* ([`run()`]), which talks, and its *fork server* ([`fork_server::main`]), which forks a
//! *run shim* for each run, the parent of everything that the run starts. Inside jobs the same program stands in for `srun` and `scontrol`
//! ([`multicall::dispatch`]).

mod cgroup;
mod clock;
mod error;
mod event;
mod fault_injection;
mod folders;
mod fork_client;
pub mod fork_server;
mod frames;
mod identity;
mod link;
mod logs;
pub mod multicall;
mod node;
mod options;
mod outputs;
mod places;
mod ports;
pub mod processes;
mod random;
mod relay;
mod reports;
mod slow;
mod socket;
mod tls;
mod watched;

pub use error::{AgentError, PAGES};
pub use identity::JobUsers;
pub use options::{AgentOptions, LogRules, Observe};
pub use reports::ReportFile;

/// Runs the agent on this thread until it is told to end (`SIGTERM`, `SIGINT`) or cannot go on. No process of any run
/// is left when it returns.
pub fn run(options: AgentOptions) -> Result<(), AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| AgentError::ForkServer { source })?;
    let outcome = runtime.block_on(node::run(options));
    // Threads that hang in a job's file system must not keep the agent.
    runtime.shutdown_background();
    outcome
}
