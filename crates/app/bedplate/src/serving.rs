//! What commands that serve share: engines, replicas, addresses, and serving until a signal.

pub(crate) mod ending;
mod engine;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bedplate_host::clock;
use bedplate_terminal::{CliError, ProgramError};
use bedplate_units::Seconds;

pub(crate) use engine::{EngineArguments, with_end};

/// Set for a process that is a replica: how many of them share the machine, or `job`, and the key that it wants to see.
pub(crate) const REPLICA: &str = "BEDPLATE_SERVE_REPLICA";
/// The kind of a replica that is a job.
pub(crate) const JOB: &str = "job";

/// What the variable says to a replica that is a job.
pub(crate) fn replica_of_job(key: &str) -> String {
    format!("{JOB} {key}")
}

/// Different in every process: it also keeps keys of prefixes from being guessed.
pub(crate) fn seed() -> u64 {
    bedplate_random::mix(clock::unix_time().as_nanos() as u64 ^ u64::from(std::process::id()) << 32)
}

pub(crate) fn duration(time: Seconds) -> Duration {
    Duration::from_secs_f64(time.get().clamp(0.0, 86_400.0))
}

pub(crate) fn check_exposure(listen: SocketAddr, is_public: bool) -> Result<(), CliError> {
    let is_loopback = match listen.ip() {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => address.is_loopback(),
    };
    if is_loopback || is_public {
        return Ok(());
    }
    let message = format!(
        "{} can be reached from other machines; say --public if that is meant, and give --api-key-file",
        listen.ip()
    );
    Err(ProgramError::Usage { message }.into())
}
