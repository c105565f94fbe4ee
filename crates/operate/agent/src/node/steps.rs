//! Steps: tasks that an `srun` inside a run started on the run's nodes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use bedplate_control::agent::Happened;
use bedplate_control::wire::{NodeStep, RankEnd, RunId, StepRequest};
use bedplate_host::OwnFolder;
use bedplate_job::rank_environment;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::{Local, Node, Purpose};
use crate::event::StepAnswer;
use crate::fork_server::orders::{ProcessStart, ToRunShim};
use crate::identity::{Identity, JobUsers};
use crate::relay::{self, Task};

/// The step's end in the loop: where ends of tasks are told.
pub(super) struct Relay {
    ends: BTreeMap<u32, watch::Sender<Option<RankEnd>>>,
    /// What is told here goes to the tasks' standard error at the `srun`.
    complaints: UnboundedSender<String>,
}

impl Node {
    pub(super) fn ask_for_step(&mut self, request: Box<StepRequest>, uid: u32) -> StepAnswer {
        let is_askers = |local: &&Local| {
            let owner =
                local.identity.as_ref().map_or(nix::unistd::geteuid().as_raw(), |identity| identity.uid);
            owner == uid
        };
        let local = self.runs.get(&request.run).filter(is_askers);
        let is_running = local.is_some_and(|local| local.cleaning.is_none());
        match (is_running, &self.link) {
            (false, _) => StepAnswer::Refused(format!("{} does not run on this node", request.run)),
            (true, None) => StepAnswer::Later,
            (true, Some(_)) => {
                self.happened(Happened::StepWanted(request));
                StepAnswer::Accepted
            }
        }
    }

    pub(super) fn start_step(&mut self, step: NodeStep) {
        let (run, number) = (step.run, step.number);
        let Some(local) = self.runs.get(&run).filter(|local| !local.steps.contains_key(&number)) else {
            return;
        };
        let directory = local.directory.join(format!("step-{number}"));
        let mut ends = BTreeMap::new();
        let mut tasks = Vec::new();
        let mut failed = self.make_step_directory(&directory).err();
        for task in &step.tasks {
            match open_pipes(&directory, *task, local.identity.as_ref()) {
                Ok([stdout, stderr]) => {
                    let (end, ended) = watch::channel(None);
                    ends.insert(*task, end);
                    tasks.push(Task { number: *task, stdout, stderr, ended });
                }
                Err(error) => failed = Some(error),
            }
        }
        let (complaints, heard) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(relay::run(step.clone(), self.options.node.clone(), tasks, heard, self.events.clone()));
        if let Some(local) = self.runs.get_mut(&run) {
            local.steps.insert(number, Relay { ends, complaints });
        }
        match failed {
            None => self.start_tasks(&step, &directory),
            Some(error) => {
                let end = RankEnd::NotStarted(error.raw_os_error().unwrap_or(libc::EIO));
                step.tasks.iter().for_each(|task| self.task_ended(run, number, *task, end));
            }
        }
    }

    /// Tasks of another user may pass through it.
    fn make_step_directory(&self, directory: &Path) -> io::Result<()> {
        let mode = if self.options.users == JobUsers::Own { 0o700 } else { 0o711 };
        // What a job has mounted over its directory is not waited for.
        directory.parent().map(OwnFolder::open).transpose()?;
        fs::DirBuilder::new().recursive(true).mode(mode).create(directory)
    }

    fn start_tasks(&mut self, step: &NodeStep, directory: &Path) {
        for task in &step.tasks {
            let Some(local) = self.runs.get(&step.run) else { return };
            let report = directory.join(format!("report-{task}"));
            local.make_file(&report);
            let around = self.surroundings(local, report.display().to_string());
            let port = local.master_port.unwrap_or(0);
            let path = |stream: &str| Some(pipe_path(directory, *task, stream));
            let start = ProcessStart {
                arguments: step.arguments.clone(),
                environment: rank_environment::step_variables(
                    &local.launch.part(),
                    &step.part(),
                    *task,
                    port,
                    &around,
                ),
                directory: step.directory.clone(),
                stdout: path("out"),
                stderr: path("err"),
                memory_mib: local.launch.memory_mib,
                identity: local.identity.clone(),
                ..ProcessStart::default()
            };
            self.start_process(Purpose::Task { run: step.run, step: step.number, task: *task }, start);
        }
    }

    pub(super) fn task_ended(&mut self, run: RunId, step: u32, task: u32, end: RankEnd) {
        let relay = self.runs.get(&run).and_then(|local| local.steps.get(&step));
        let Some(relay) = relay else { return };
        if let RankEnd::NotStarted(_) = end {
            let node = &self.options.node;
            let _ = relay.complaints.send(format!("srun: task {task} on {node}: {end}\n"));
        }
        if let Some(told) = relay.ends.get(&task) {
            let _ = told.send(Some(end));
        }
    }

    pub(super) fn signal_step(&mut self, run: RunId, step: u32, signal: i32) {
        let is_meant = |purpose: &Purpose| matches!(purpose, Purpose::Task { run: of, step: number, .. } if *of == run && *number == step);
        let meant = self.processes.iter().filter(|(_, purpose)| is_meant(purpose)).map(|(id, _)| *id);
        for id in meant.collect::<Vec<u64>>() {
            let order = match signal {
                libc::SIGKILL => ToRunShim::KillSession { id },
                _ => ToRunShim::SignalOne { id, signal },
            };
            self.order_for(run, order);
        }
    }

    /// To the tasks of all steps of a script.
    pub(super) fn signal_steps(&mut self, run: RunId, signal: i32) {
        self.signal_those(
            run,
            signal,
            |purpose| matches!(purpose, Purpose::Task { run: of, .. } if *of == run),
        );
    }

    /// To the shell of a script alone.
    pub(super) fn signal_script(&mut self, run: RunId, signal: i32) {
        self.signal_those(run, signal, |purpose| matches!(purpose, Purpose::Rank(of, _) if *of == run));
    }

    fn signal_those(&mut self, run: RunId, signal: i32, is_meant: impl Fn(&Purpose) -> bool) {
        let meant = self.processes.iter().filter(|(_, purpose)| is_meant(purpose)).map(|(id, _)| *id);
        for id in meant.collect::<Vec<u64>>() {
            self.order_for(run, ToRunShim::SignalOne { id, signal });
        }
    }

    pub(super) fn end_step(&mut self, run: RunId, step: u32) {
        if let Some(local) = self.runs.get_mut(&run) {
            local.steps.remove(&step);
            local.remove(&format!("step-{step}"));
        }
    }
}

fn pipe_path(directory: &Path, task: u32, stream: &str) -> String {
    directory.join(format!("task-{task}.{stream}")).display().to_string()
}

/// Named pipes for a task's output. They are held open for writing here too, so that one without a writer, before the
/// task starts, does not count as ended.
fn open_pipes(directory: &Path, task: u32, user: Option<&Identity>) -> io::Result<[pipe::Receiver; 2]> {
    let open = |stream: &str| {
        let path = pipe_path(directory, task, stream);
        mkfifo(path.as_str(), Mode::S_IRUSR | Mode::S_IWUSR)?;
        user.map_or(Ok(()), |user| user.give(path.as_ref()))?;
        pipe::OpenOptions::new().read_write(true).open_receiver(path)
    };
    Ok([open("out")?, open("err")?])
}
