//! First phase of a start: everything that can fail, and no rank.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use bedplate_control::agent::{Happened, Spent};
use bedplate_control::wire::{Launch, RankEnd, RunId, Unready};
use bedplate_job::rank_environment;

use super::{Local, Node, Purpose};
use crate::event::Event;
use crate::keeper::orders::Start;
use crate::outputs::{self, Outputs};
use crate::ports;
use crate::untrusted::{self, Links};

/// How long a prolog or an epilog may take.
pub(super) const HOOK_TIME: Duration = Duration::from_secs(300);
/// How much of a hook's or probe's output is passed on.
const SHOWN_OUTPUT: usize = 2000;

impl Node {
    pub(super) fn prepare(&mut self, launch: Launch) {
        let run = launch.run;
        let directory = match self.places.make_run(run) {
            Ok(directory) => directory,
            Err(error) => {
                let why = format!("cannot make {}: {error}", self.places.run(run).display());
                let why = Unready::Prolog { status: 1, output: why };
                return self.happened(Happened::NotPrepared { run, why });
            }
        };
        let prolog = launch.prolog.clone();
        let local = Local {
            group: self.mark(run),
            launch,
            directory,
            outputs: Outputs::default(),
            master_port: None,
            reports: BTreeMap::new(),
            steps: BTreeMap::new(),
            cleaning: None,
            spent: Spent::default(),
        };
        self.runs.insert(run, local);
        match prolog {
            Some(prolog) => self.start_hook(Purpose::Prolog(run), run, &prolog),
            None => self.check_files(run),
        }
    }

    /// A prolog or epilog, with the environment of the node's first rank.
    pub(super) fn start_hook(&mut self, purpose: Purpose, run: RunId, command: &str) {
        let name = if matches!(purpose, Purpose::Prolog(_)) { "prolog.out" } else { "epilog.out" };
        let Some(start) = self.shell_command(run, command, name) else { return };
        let id = self.start_process(purpose, start);
        self.limit_time(id, HOOK_TIME);
    }

    /// A command line of the site or the job, run by the shell inside a run.
    pub(super) fn shell_command(&self, run: RunId, command: &str, output: &str) -> Option<Start> {
        let local = self.runs.get(&run)?;
        let rank = local.launch.ranks.first().copied().unwrap_or(0);
        let around = self.surroundings(&local.launch, String::new());
        let port = local.master_port.unwrap_or(0);
        let output = local.directory.join(output);
        let _ = fs::remove_file(&output);
        Some(Start {
            arguments: ["/bin/sh", "-c", command].map(str::to_owned).into(),
            environment: rank_environment::variables(&local.launch.part(), rank, port, &around),
            directory: local.directory.display().to_string(),
            stdout: Some(output.display().to_string()),
            ..Start::default()
        })
    }

    pub(super) fn prolog_ended(&mut self, run: RunId, end: RankEnd) {
        let Some(local) = self.runs.get(&run) else { return };
        if end.is_success() {
            return self.check_files(run);
        }
        let output = shown_output(&local.directory.join("prolog.out"));
        let why = Unready::Prolog { status: end.status(), output };
        self.happened(Happened::NotPrepared { run, why });
    }

    /// The job's file systems may hang, so they are checked outside the loop.
    fn check_files(&mut self, run: RunId) {
        let Some(local) = self.runs.get(&run) else { return };
        if !names_files(&local.launch) {
            let outcome = outputs::check(&local.launch, &local.directory);
            return self.checked(run, outcome);
        }
        let (launch, directory) = (local.launch.clone(), local.directory.clone());
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            let outcome = outputs::check(&launch, &directory);
            let _ = events.send(Event::Checked { run, outcome });
        });
    }

    pub(super) fn checked(&mut self, run: RunId, outcome: Result<Outputs, Unready>) {
        let prepared = outcome.and_then(|outputs| {
            let port = self.find_port(run)?;
            Ok((outputs, port))
        });
        let happened = match prepared {
            Ok((outputs, master_port)) => {
                if let Some(local) = self.runs.get_mut(&run) {
                    outputs.remember(&local.directory);
                    (local.outputs, local.master_port) = (outputs, master_port);
                }
                Happened::Prepared { run, master_port }
            }
            Err(why) => Happened::NotPrepared { run, why },
        };
        self.happened(happened);
    }

    /// The first node says where the ranks meet.
    fn find_port(&self, run: RunId) -> Result<Option<u16>, Unready> {
        if self.runs.get(&run).is_none_or(|local| local.launch.node_index != 0) {
            return Ok(None);
        }
        match ports::find(&self.options.address, &self.held_ports()) {
            Some(port) => Ok(Some(port)),
            None => {
                let output = format!("no port is free on {}", self.options.address);
                Err(Unready::Prolog { status: 1, output })
            }
        }
    }
}

/// Whether the job has a place of its own; otherwise all is in the state directory, which is near.
fn names_files(launch: &Launch) -> bool {
    let places =
        [&launch.directory, &launch.facts.submit_directory, &launch.stdin, &launch.stdout, &launch.stderr];
    places.into_iter().any(Option::is_some)
}

/// The end of what a hook or probe wrote.
pub(super) fn shown_output(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = untrusted::open(path, Links::Refuse) {
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        // It may have written more than fits into memory; what cannot be read is not shown.
        let _ = file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_OUTPUT as u64)));
        let _ = file.take(SHOWN_OUTPUT as u64).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
