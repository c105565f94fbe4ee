//! `bedplate serve --replicas N`: processes of this very command behind a router.
//!
//! The processes get the command line of the first one and a variable that makes each a replica: on a free port of this
//! machine, with a key that only the router knows, with its share of cores and memory, and with an end when the first one ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use bedplate_batching::RouterOptions;
use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_gateway::{FleetOptions, ReplicaFleet, RouteOptions, RunningRouter, route};
use bedplate_terminal::files::{self, Seen};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use super::Arguments;
use crate::serving::ending::{self, Told};
use crate::serving::{JOB, REPLICA, duration, seed};

const LOOK: Duration = Duration::from_millis(100);
/// How often the model's folder is looked at; a change counts once it has lasted as long.
const LOOKS_PER_FOLDER: u32 = 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplicasError {
    #[error("the replicas do not start: {why}")]
    NotStarted { why: String },
    #[error("the program cannot find itself")]
    Program { source: std::io::Error },
}

pages! { pub(crate) PAGES "replicas":
    NOT_STARTED "not-started" User
        "The processes of `bedplate serve --replicas` ended before any of them was ready. What they said is above."
        "try the same command without `--replicas`; where memory is short, give `--kv-memory` or fewer replicas"
    PROGRAM "no-program" Transient
        "The path of the running program could not be found, so it cannot start replicas of itself."
        "start it by its full path"
}

impl Diagnostic for ReplicasError {
    fn page(&self) -> &'static Page {
        match self {
            ReplicasError::NotStarted { .. } => &NOT_STARTED,
            ReplicasError::Program { .. } => &PROGRAM,
        }
    }
}

impl Arguments {
    /// These arguments for a process that was started as a replica, otherwise nothing.
    pub(super) fn of_replica(&self) -> Option<Self> {
        let variable = std::env::var(REPLICA).ok()?;
        let (kind, key) = variable.split_once(' ')?;
        let mut arguments = self.clone();
        arguments.replica_key = Some(key.to_owned());
        (arguments.api_key_file, arguments.cors_origin) = (None, Vec::new());
        if kind == JOB {
            let address = std::env::var("BEDPLATE_ADDRESS").ok().and_then(|address| address.parse().ok());
            arguments.listen = SocketAddr::new(address.unwrap_or(Ipv4Addr::LOCALHOST.into()), 0);
            return Some(arguments);
        }
        let count = kind.parse().ok().filter(|count| *count > 0)?;
        arguments.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        arguments.engine.sharers = count;
        if arguments.engine.threads.is_none() {
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            arguments.engine.threads = Some((cores / count as usize).max(1));
        }
        end_with_parent();
        Some(arguments)
    }
}

/// Ends this process when the one that started it has gone.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
}

pub(super) fn run(arguments: &Arguments, count: u32, console: &mut Console) -> Result<(), CliError> {
    let told = ending::block();
    let key = bedplate_http::new_secret();
    // From before the model is loaded, so that no change is missed.
    let watch = arguments.watch.then(|| Watch::begin(&arguments.engine.folder));
    let routing = route(routing(arguments, &key))?;
    let fleet = fleet(arguments, count, &key, &routing)?;
    if begin(&routing, &fleet, &told)? {
        let url = format!("http://{}", routing.address());
        match console.is_json() {
            true => console.json(&json!({ "url": url, "replicas": count }))?,
            false => console.line(&url)?,
        }
        go_on(watch, &fleet, &told, console)?;
    }
    ending::end(told, console, move || {
        routing.stop();
        fleet.stop();
    });
    Ok(())
}

fn routing(arguments: &Arguments, key: &str) -> RouteOptions {
    RouteOptions {
        listen: arguments.listen,
        key_file: arguments.api_key_file.clone(),
        replica_key: Some(key.to_owned()),
        origins: arguments.cors_origin.clone(),
        policy: RouterOptions { seed: seed(), ..RouterOptions::default() },
        requests: arguments.requests,
        grace: duration(arguments.grace),
        ..RouteOptions::default()
    }
}

fn fleet(
    arguments: &Arguments,
    count: u32,
    key: &str,
    routing: &RunningRouter,
) -> Result<ReplicaFleet, CliError> {
    let program = std::env::current_exe().map_err(|source| ReplicasError::Program { source })?;
    let variable = format!("{count} {key}");
    let command = move |_| {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).env(REPLICA, &variable);
        command
    };
    let options =
        FleetOptions { replicas: count, grace: duration(arguments.grace), ..FleetOptions::default() };
    Ok(ReplicaFleet::start(routing.members().clone(), options, command)?)
}

/// Waits for the first replica; false where a signal came first.
fn begin(routing: &RunningRouter, fleet: &ReplicaFleet, told: &Receiver<Told>) -> Result<bool, CliError> {
    while !routing.members().has_one_in() {
        check(fleet)?;
        if told.recv_timeout(LOOK) == Ok(Told::End) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn check(fleet: &ReplicaFleet) -> Result<(), ReplicasError> {
    fleet.state().failure.map_or(Ok(()), |why| Err(ReplicasError::NotStarted { why }))
}

/// Serves until it is told to end, and updates when it is told to or when the model has changed.
fn go_on(
    mut watch: Option<Watch<'_>>,
    fleet: &ReplicaFleet,
    told: &Receiver<Told>,
    console: &Console,
) -> Result<(), ReplicasError> {
    loop {
        check(fleet)?;
        match told.recv_timeout(LOOK) {
            Ok(Told::Update) => fleet.update(),
            Ok(Told::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if watch.as_mut().is_some_and(Watch::has_changed) {
            console.say("the model's files have changed");
            fleet.update();
        }
    }
}

/// A folder that is looked at now and then.
struct Watch<'a> {
    folder: &'a Path,
    looks: u32,
    served: Seen,
    last: Seen,
}

impl<'a> Watch<'a> {
    fn begin(folder: &'a Path) -> Self {
        let served = files::seen(folder);
        Self { folder, looks: 0, last: served.clone(), served }
    }

    /// Whether its files differ from those that are served and have stayed so for a while.
    fn has_changed(&mut self) -> bool {
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS_PER_FOLDER) {
            return false;
        }
        let now = files::seen(self.folder);
        let is_settled = now == self.last && !now.is_empty();
        self.last = now;
        let has_changed = is_settled && self.last != self.served;
        if has_changed {
            self.served = self.last.clone();
        }
        has_changed
    }
}
