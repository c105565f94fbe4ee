//! `bedplate route`: one address in front of many servers of models.

mod jobs;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_batching::{RouterOptions, RoutingPolicy};
use bedplate_gateway::{Checks, JobFleet, ReplicaUrl, RouteOptions, route};
use bedplate_terminal::{CliError, Console, ProgramError, files};
use bedplate_units::Seconds;
use serde_json::json;

use crate::serving::ending::{self, Told};
use crate::serving::{check_exposure, duration, seed};
use jobs::JobArguments;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate route --replica http://10.0.0.5:8000 --replica http://10.0.0.6:8000
  bedplate route --replicas-file replicas.txt --listen 0.0.0.0:8000 --public --api-key-file keys.txt
  bedplate route --min 1 --max 4 -- bedplate serve ./Llama-3.2-1B   jobs of the cluster, by the load
  bedplate route --replica http://gpu-1:8000 --replica-key-file key.txt --policy least-work

Replicas are servers that speak OpenAI's API: bedplate serve, vLLM, SGLang. A prompt goes to the
replica that has its beginning cached, unless that one has too much to do. A request whose
replica is lost is tried on another one as long as the client has seen nothing of an answer.")]
pub(crate) struct Arguments {
    /// A replica: http://HOST:PORT; may be repeated
    #[arg(long, value_name = "URL", required_unless_present_any = ["replicas_file", "job", "command"])]
    replica: Vec<ReplicaUrl>,
    /// A file of replicas, a URL on a line; it is read again when it changes
    #[arg(long, value_name = "FILE")]
    replicas_file: Option<PathBuf>,
    /// Where it listens; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Let other machines reach it; without API keys anyone may use it
    #[arg(long)]
    public: bool,
    /// A file of API keys, one on a line; requests must show one of them
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// A file with the key for the replicas [default: the client's own key]
    #[arg(long, value_name = "FILE")]
    replica_key_file: Option<PathBuf>,
    /// Web pages from this origin may send requests; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// How a replica is chosen
    #[arg(long, value_name = "POLICY", default_value = "prefix")]
    policy: Policy,
    /// Time between two checks of a replica
    #[arg(long, value_name = "TIME", default_value = "2s")]
    check_interval: Seconds,
    /// How long a check may take
    #[arg(long, value_name = "TIME", default_value = "5s")]
    check_timeout: Seconds,
    /// Failures in a row that take a replica out of service
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    check_failures: u32,
    /// Most replicas on which a request is tried
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    tries: u32,
    /// Most requests under way; more are refused
    #[arg(long, value_name = "N", default_value_t = 2048)]
    requests: usize,
    /// How long running requests may take to finish at the end
    #[arg(long, value_name = "TIME", default_value = "60s")]
    grace: Seconds,
    #[command(flatten)]
    jobs: JobArguments,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Policy {
    /// The replica that has most of the prompt cached, weighed against its work
    Prefix,
    /// The replica with the least work
    LeastWork,
    /// One after the other
    RoundRobin,
}

impl Policy {
    fn policy(self) -> RoutingPolicy {
        match self {
            Policy::Prefix => RoutingPolicy::Prefix,
            Policy::LeastWork => RoutingPolicy::LeastWork,
            Policy::RoundRobin => RoutingPolicy::RoundRobin,
        }
    }
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    check_exposure(arguments.listen, arguments.public)?;
    // Blocked before threads are started, which inherit it.
    let signals = ending::block();
    let mut options = options(arguments)?;
    // Jobs of ours are given a key that only they and this router know.
    let own = arguments
        .jobs
        .is_wanted()
        .then(|| options.replica_key.get_or_insert_with(bedplate_http::new_secret).clone());
    let routing = route(options)?;
    let start = |key: String| arguments.jobs.start(&key, duration(arguments.grace), &routing);
    let fleet = own.map(start).transpose()?;
    let url = format!("http://{}", routing.address());
    match console.is_json() {
        true => console.json(&json!({ "url": url }))?,
        false => console.line(&url)?,
    }
    while signals.recv() == Ok(Told::Update) {
        // Replicas that others run are others' to update.
        fleet.iter().for_each(JobFleet::update);
    }
    ending::end(signals, console, move || {
        routing.stop();
        fleet.into_iter().for_each(JobFleet::stop);
    });
    Ok(())
}

fn options(arguments: &Arguments) -> Result<RouteOptions, CliError> {
    Ok(RouteOptions {
        listen: arguments.listen,
        replicas: arguments.replica.clone(),
        replicas_file: arguments.replicas_file.clone(),
        key_file: arguments.api_key_file.clone(),
        replica_key: replica_key(arguments)?,
        origins: arguments.cors_origin.clone(),
        policy: RouterOptions { policy: arguments.policy.policy(), seed: seed(), ..RouterOptions::default() },
        checks: Checks {
            interval: positive(arguments.check_interval, "--check-interval")?,
            timeout: positive(arguments.check_timeout, "--check-timeout")?,
            failures: arguments.check_failures,
            ..Checks::default()
        },
        requests: arguments.requests,
        tries: arguments.tries as usize,
        grace: duration(arguments.grace),
        ..RouteOptions::default()
    })
}

fn replica_key(arguments: &Arguments) -> Result<Option<String>, CliError> {
    arguments.replica_key_file.as_deref().map(key).transpose()
}

/// The first line of a file that has a key.
fn key(path: &Path) -> Result<String, CliError> {
    let text = files::read_text(&path.to_string_lossy())?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let missing = || ProgramError::Usage { message: format!("{} has no key", path.display()) };
    lines.next().map(str::to_owned).ok_or_else(|| missing().into())
}

fn positive(time: Seconds, option: &str) -> Result<Duration, CliError> {
    match duration(time) {
        Duration::ZERO => {
            Err(ProgramError::Usage { message: format!("{option} must be longer than nothing") }.into())
        }
        time => Ok(time),
    }
}
