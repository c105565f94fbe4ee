//! First phase of a start: everything that can fail, and no rank.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_control::agent::{Happened, Spent};
use bedplate_control::wire::{Launch, RankEnd, RunId, Unready};
use bedplate_host::{LinkPolicy, Opening, OwnFolder, open_regular_for};
use bedplate_job::rank_environment;

use super::{Local, Node, Purpose};
use crate::event::{AgentEvent, Identified};
use crate::fork_server::orders::ProcessStart;
use crate::identity::{Identity, JobUsers};
use crate::outputs::{self, Outputs};
use crate::ports;
use crate::slow::Claimant;

/// How long a prolog or an epilog may take.
pub(super) const HOOK_TIME: Duration = Duration::from_secs(300);
/// How long the host's user database may take.
const LOOK_UP_TIME: Duration = Duration::from_secs(60);
/// How long the job's file systems may take.
const CHECK_TIME: Duration = Duration::from_secs(120);
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
        let user = launch.user.clone();
        let local = Local {
            group: self.mark(run),
            launch,
            directory,
            identity: None,
            outputs: Outputs::default(),
            master_port: None,
            reports: BTreeMap::new(),
            tells: BTreeSet::new(),
            steps: BTreeMap::new(),
            cleaning: None,
            spent: Spent::default(),
            dumps: 0,
        };
        let (home, run_directory) = (own_directory(&local.directory, true), local.directory.clone());
        let launch = local.launch.prolog.is_none().then(|| local.launch.clone());
        self.runs.insert(run, local);
        match self.options.users {
            JobUsers::Own => self.identified(run, Ok(Identified { identity: None, files: None })),
            JobUsers::Submitters { allows_root } => {
                let events = self.events.clone();
                let by = Claimant { run, user: user.clone() };
                // The files are looked at by the same thread, which has the user's rights by then.
                let find = move || {
                    let identity = identify(&user, allows_root, &home)?;
                    let directory = own_directory(&run_directory, identity.is_some());
                    let files = launch.map(|launch| outputs::check(&launch, &directory));
                    Ok(Identified { identity, files })
                };
                self.slow.begin(by, None, LOOK_UP_TIME + CHECK_TIME, find, move |outcome| {
                    let outcome = outcome.and_then(|found| found).map_err(|why| Unready::Job { why });
                    let _ = events.send(AgentEvent::Identified { run, outcome });
                });
            }
        }
    }

    /// Whom the run runs as is settled, or why it cannot run.
    pub(super) fn identified(&mut self, run: RunId, outcome: Result<Identified, Unready>) {
        let Some(local) = self.runs.get_mut(&run).filter(|local| local.cleaning.is_none()) else { return };
        let files = match outcome {
            Ok(Identified { identity, files }) => {
                local.identity = identity;
                files
            }
            Err(why) => return self.happened(Happened::NotPrepared { run, why }),
        };
        if let Some(outcome) = files {
            return self.checked(run, outcome);
        }
        match local.launch.prolog.clone() {
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
    pub(super) fn shell_command(&self, run: RunId, command: &str, output_name: &str) -> Option<ProcessStart> {
        let local = self.runs.get(&run)?;
        let rank = local.launch.ranks.first().copied().unwrap_or(0);
        let around = self.surroundings(local, String::new());
        let port = local.master_port.unwrap_or(0);
        let output = local.directory.join(output_name);
        local.remove(output_name);
        local.make_file(&output);
        Some(ProcessStart {
            arguments: ["/bin/sh", "-c", command].map(str::to_owned).into(),
            environment: rank_environment::variables(&local.launch.part(), rank, port, &around),
            directory: local.own_directory().display().to_string(),
            stdout: Some(output.display().to_string()),
            identity: local.identity.clone(),
            ..ProcessStart::default()
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
            let outcome = outputs::check(&local.launch, &local.own_directory());
            return self.checked(run, outcome);
        }
        let (launch, directory) = (local.launch.clone(), local.own_directory());
        let events = self.events.clone();
        let check = move || outputs::check(&launch, &directory);
        let by = Claimant { run, user: local.launch.user.clone() };
        self.slow.begin(by, local.identity.clone(), CHECK_TIME, check, move |outcome| {
            let outcome = outcome.unwrap_or_else(|why| Err(Unready::Job { why }));
            let _ = events.send(AgentEvent::Checked { run, outcome });
        });
    }

    pub(super) fn checked(&mut self, run: RunId, outcome: Result<Outputs, Unready>) {
        let prepared = outcome.and_then(|outputs| {
            let port = self.find_port(run)?;
            Ok((outputs, port))
        });
        let happened = match prepared {
            Ok((mut outputs, master_port)) => {
                if let Some(local) = self.runs.get_mut(&run) {
                    outputs.identity.clone_from(&local.identity);
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

impl Local {
    /// Where the job may write, if it names no directory.
    pub(super) fn own_directory(&self) -> PathBuf {
        own_directory(&self.directory, self.identity.is_some())
    }

    /// Removes what has this name in the run's directory, where the job may have put something else by now.
    pub(super) fn remove(&self, name: &str) {
        let _ = OwnFolder::open(&self.directory).and_then(|folder| folder.remove(name.as_ref()));
    }

    /// Makes an empty file for the run's processes to write; they make it themselves where they may.
    pub(super) fn make_file(&self, path: &Path) {
        if let Some(identity) = &self.identity {
            // A process that cannot open it says so.
            let _ = identity.make_file(path);
        }
    }
}

/// The directory of a run is ours where its user is another one: nothing in it can then be replaced by something else.
fn own_directory(run: &Path, is_of_other: bool) -> PathBuf {
    if is_of_other { run.join("work") } else { run.to_owned() }
}

/// Looks the user up, and makes them a directory that they can enter. Changes the rights of this thread.
fn identify(user: &str, allows_root: bool, home: &Path) -> Result<Option<Identity>, String> {
    let Some(identity) = Identity::find(user, allows_root)? else { return Ok(None) };
    let place = home.display();
    let above = home.parent().unwrap_or(home);
    // What lies there has rights of its own.
    let opened = fs::set_permissions(above, fs::Permissions::from_mode(0o711));
    opened.map_err(|error| format!("cannot open {} for others: {error}", above.display()))?;
    identity.make_directory(home).map_err(|error| format!("cannot make {place}: {error}"))?;
    let entered = identity.assume_for_files().and_then(|()| fs::read_dir(home).map(drop));
    entered.map_err(|error| {
        format!(
            "user `{user}` cannot enter {place} ({error}): the state directory must be where all users can pass, such as /var/lib"
        )
    })?;
    Ok(Some(identity))
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
    if let Ok(mut file) = open_regular_for(Opening::Read, path, LinkPolicy::Refuse) {
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        // It may have written more than fits into memory; what cannot be read is not shown.
        let _ = file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_OUTPUT as u64)));
        let _ = file.take(SHOWN_OUTPUT as u64).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
