//! Child processes: started, started again by one policy, ended together, or run to an end within a limit.
//!
//! [`RestartBackoff`] says when a process that has died may be started again, a [`ChildProcess`] that is dropped has been killed,
//! [`end_all`] asks a set of processes to end before it kills them, and [`run`] runs a command with a deadline and an end
//! to what it may print. A process that a cluster needs [takes precedence](take_precedence) over what it starts for others. What processes are for, and who is to blame for their end, is decided elsewhere.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use bedplate_supervise::{RestartPolicy, RestartBackoff};
//!
//! let mut restarts = RestartBackoff::new(RestartPolicy { most: Some(1), ..RestartPolicy::default() });
//! assert_eq!(restarts.dies(Instant::now()), Some(Duration::from_secs(1)));
//! assert_eq!(restarts.dies(Instant::now()), None);
//! ```

mod precedence;
mod process;
mod restarts;
mod run;

pub use precedence::{give_up_precedence, step_back, take_precedence};
pub use process::{ChildProcess, end_all};
pub use restarts::{RestartBackoff, RestartPolicy};
pub use run::{CommandEnd, CommandFailure, run};
