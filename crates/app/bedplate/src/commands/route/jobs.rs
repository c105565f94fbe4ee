//! Replicas that are jobs of a cluster: `bedplate route --job serve.toml`, or `bedplate route -- bedplate serve MODEL_DIR`.

use std::time::Duration;

use bedplate_drivers::surround;
use bedplate_gateway::{JobFleet, JobFleetOptions, RunningRouter};
use bedplate_job::{Gang, Job, Role, Workload};
use bedplate_replay::requests::{Scaling, picoseconds};
use bedplate_terminal::{CliError, ProgramError};
use bedplate_units::Seconds;

use crate::connection::Connection;
use crate::job_file::read_file;
use crate::serving::{REPLICA, replica_of_job};

/// How often a replica comes back after a failure of its own before another job takes its place.
const RETRIES: u32 = 10;
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// How long the new job of an update may wait for room and load its model.
const START: Duration = Duration::from_secs(1800);

#[derive(clap::Args)]
#[command(next_help_heading = "Replicas as jobs of a cluster")]
pub(crate) struct JobArguments {
    /// A job file whose first rank prints the URL of a replica; the load decides how many are submitted
    #[arg(long, value_name = "FILE")]
    pub(super) job: Option<String>,
    /// The fewest jobs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    min: u32,
    /// The most jobs
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
    /// Waiting or running sequences for each job
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    sequences_per_replica: u32,
    /// How often the number of jobs is decided
    #[arg(long, value_name = "TIME", default_value = "10s")]
    scale_interval: Seconds,
    #[command(flatten)]
    connection: Connection,
    /// The command of a job instead of a file, such as `bedplate serve MODEL_DIR`
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

impl JobArguments {
    pub(super) fn is_wanted(&self) -> bool {
        self.job.is_some() || !self.command.is_empty()
    }

    pub(super) fn start(
        &self,
        key: &str,
        grace: Duration,
        routing: &RunningRouter,
    ) -> Result<JobFleet, CliError> {
        let mut job = self.read()?;
        let driver = self.connection.driver()?;
        surround(&mut job, &*driver);
        job.environment.set.insert(REPLICA.to_owned(), replica_of_job(key));
        job.policy.retries = job.policy.retries.max(RETRIES);
        let options = JobFleetOptions {
            scaling: self.scaling()?,
            start: START,
            grace,
            first_delay: FIRST_DELAY,
            longest_delay: LONGEST_DELAY,
        };
        Ok(JobFleet::start(routing.members().clone(), driver, options, move || job.clone())?)
    }

    fn read(&self) -> Result<Job, CliError> {
        match (&self.job, self.command.is_empty()) {
            (Some(_), false) => {
                let message = "give either --job or a command behind `--`, not both".to_owned();
                Err(ProgramError::Usage { message }.into())
            }
            (Some(file), true) => Ok(read_file(file)?.0),
            (None, _) => {
                let workload = Workload::command(self.command.clone());
                Ok(Job::new("serve", workload, Gang::of(Role::named(Role::ONLY))))
            }
        }
    }

    fn scaling(&self) -> Result<Scaling, CliError> {
        if self.max < self.min {
            let message = format!("--max {} is less than --min {}", self.max, self.min);
            return Err(ProgramError::Usage { message }.into());
        }
        let interval = super::positive(self.scale_interval, "--scale-interval")?;
        Ok(Scaling {
            least: self.min,
            most: self.max,
            sequences: self.sequences_per_replica,
            interval: picoseconds(interval.as_secs_f64()),
            // Of no account where time is real.
            cold_start: 0,
        })
    }
}
