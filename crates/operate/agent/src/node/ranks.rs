//! Second phase of a start: all ranks at once; then what they write and report.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use bedplate_control::agent::Happened;
use bedplate_control::wire::{FromAgent, LogName, LogStream, Program, RankEnd, RunId};
use bedplate_host::LinkPolicy;
use bedplate_job::rank_environment;
use bedplate_report::Report;
use tracing::warn;

use super::{LOOKS_PER_TRIM, Local, Node, Purpose};
use crate::fork_server::orders::ProcessStart;
use crate::logs;
use crate::outputs::Outputs;
use crate::reports::ReportFile;
use crate::slow::Claimant;
use crate::watched::Access;

/// How long reading a piece of a log may take.
const READ_TIME: Duration = Duration::from_secs(10);

impl Node {
    pub(super) fn start_ranks(&mut self, run: RunId, master_port: u16) {
        let Some(local) = self.runs.get_mut(&run) else { return };
        local.master_port = Some(master_port);
        let ranks = local.launch.ranks.clone();
        let arguments = match &local.launch.program {
            Program::Command(arguments) => Ok(arguments.clone()),
            Program::Script(text) => write_script(local, text),
        };
        match arguments {
            Ok(arguments) => {
                for rank in ranks {
                    self.start_rank(run, rank, &arguments, master_port);
                }
            }
            Err(error) => {
                let end = RankEnd::NotStarted(error.raw_os_error().unwrap_or(libc::EIO));
                for rank in ranks {
                    self.happened(Happened::RankEnded { run, rank, end });
                }
            }
        }
        self.begin_run_probe(run);
        self.observe_start(run);
    }

    fn start_rank(&mut self, run: RunId, rank: u32, arguments: &[String], master_port: u16) {
        let report = self.places.report(run, rank);
        let Some(local) = self.runs.get(&run) else { return };
        let around = self.surroundings(local, report.display().to_string());
        let captured = |stream| self.places.captured(&LogName { run, rank, stream }).display().to_string();
        let files = local.outputs.by_rank.get(&rank).cloned().unwrap_or_default();
        let start = ProcessStart {
            arguments: arguments.to_vec(),
            environment: rank_environment::variables(&local.launch.part(), rank, master_port, &around),
            directory: local.outputs.directory.clone(),
            stdin: files.stdin,
            stderr: files.stderr.or_else(|| files.stdout.is_none().then(|| captured(LogStream::Stderr))),
            stdout: files.stdout.or_else(|| Some(captured(LogStream::Stdout))),
            memory_mib: local.launch.memory_mib,
            identity: local.identity.clone(),
            ..ProcessStart::default()
        };
        local.make_file(&report);
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            local.make_file(&self.places.captured(&LogName { run, rank, stream }));
        }
        self.watch_output(run, rank);
        if let Some(local) = self.runs.get_mut(&run) {
            local.reports.insert(rank, ReportFile::new(report));
        }
        self.start_process(Purpose::Rank(run, rank), start);
    }

    /// Streams that are captured here, and those that go to files of the job.
    fn watch_output(&mut self, run: RunId, rank: u32) {
        let Some(local) = self.runs.get(&run) else { return };
        let captured = |stream: &LogStream| self.places.captured(&LogName { run, rank, stream: *stream });
        let streams = [LogStream::Stdout, LogStream::Stderr];
        let named = streams.iter().filter_map(|stream| local.outputs.find(rank, *stream).map(PathBuf::from));
        let ours = streams.iter().filter(|stream| local.outputs.find(rank, **stream).is_none()).map(captured);
        let owner = local.identity.as_ref().map(|identity| identity.uid);
        let access = |links| Access { links, owner };
        let (ours, named): (Vec<PathBuf>, Vec<PathBuf>) = (ours.collect(), named.collect());
        self.watched.watch(run, rank, ours, access(LinkPolicy::Refuse));
        self.watched.watch(run, rank, named, access(LinkPolicy::Follow));
    }

    /// Reads what ranks have reported, and keeps captured logs short.
    pub(super) fn look_at_files(&mut self) {
        for run in self.runs.keys().copied().collect::<Vec<RunId>>() {
            self.read_reports(run);
        }
        self.looks = (self.looks + 1) % LOOKS_PER_TRIM;
        if self.looks == 0 {
            self.trim_logs();
        }
    }

    pub(super) fn read_reports(&mut self, run: RunId) {
        let Some(local) = self.runs.get_mut(&run) else { return };
        let mut reported = Vec::new();
        for (rank, file) in &mut local.reports {
            for report in file.read() {
                if report.progress().is_some() {
                    local.tells.insert(*rank);
                }
                reported.push(Happened::Report { run, rank: *rank, report });
            }
        }
        for happened in reported {
            match happened {
                Happened::Report { rank, report: Report::Metrics { address }, .. } => {
                    self.observe_rank(run, rank, &address);
                }
                happened => self.happened(happened),
            }
        }
    }

    /// What a rank's output told, where it does not say it itself.
    pub(super) fn log_said(&mut self, run: RunId, rank: u32, reports: Vec<Report>) {
        let tells = self.runs.get(&run).is_some_and(|local| local.tells.contains(&rank));
        for report in reports {
            if !tells || matches!(report, Report::Log { .. }) {
                self.happened(Happened::Report { run, rank, report });
            }
        }
    }

    fn trim_logs(&self) {
        let ranks = self.runs.iter().flat_map(|(run, local)| local.reports.keys().map(|rank| (*run, *rank)));
        for (run, rank) in ranks {
            for stream in [LogStream::Stdout, LogStream::Stderr] {
                let path = self.places.captured(&LogName { run, rank, stream });
                // A log that is not there is not too long either.
                if let Ok(false) = logs::trim(&path, self.options.logs) {
                    let log = path.display();
                    warn!(
                        node = self.options.node,
                        "{log} grows without limit: its file system has no holes"
                    );
                }
            }
        }
    }

    pub(super) fn read_log(&self, request: u64, log: &LogName, offset: u64, most_bytes: u64) {
        let Some(link) = self.link.clone() else { return };
        let outputs = match self.runs.get(&log.run) {
            Some(local) => Some(local.outputs.clone()),
            None => Outputs::recall(&self.places.run(log.run)),
        };
        let own: Option<PathBuf> =
            outputs.as_ref().and_then(|outputs| outputs.find(log.rank, log.stream).map(Into::into));
        let identity = outputs.and_then(|outputs| outputs.identity).filter(|_| own.is_some());
        // A captured log that is not there is one in which nothing was written.
        let may_be_missing = own.is_none();
        let links = if own.is_some() { LinkPolicy::Follow } else { LinkPolicy::Refuse };
        let path = own.unwrap_or_else(|| self.places.captured(log));
        let mut alive = self.processes.values();
        let is_open = alive.any(|purpose| *purpose == Purpose::Rank(log.run, log.rank));
        let read = move || logs::read(&path, links, offset, most_bytes);
        // Of a run that is over only the host's user is known.
        let user = self.runs.get(&log.run).map(|local| local.launch.user.clone());
        let user = user.or_else(|| Some(identity.as_ref()?.name.clone())).unwrap_or_default();
        let by = Claimant { run: log.run, user };
        self.slow.begin(by, identity, READ_TIME, read, move |outcome| {
            let answer = match outcome.map_err(io::Error::other).and_then(|outcome| outcome) {
                Ok(piece) => FromAgent::Chunk {
                    request,
                    bytes: piece.bytes,
                    next_offset: piece.next_offset,
                    is_open,
                    error: None,
                },
                Err(error) => {
                    let is_empty = may_be_missing && error.kind() == io::ErrorKind::NotFound;
                    let error = (!is_empty).then(|| format!("cannot read the log: {error}"));
                    FromAgent::Chunk { request, bytes: Vec::new(), next_offset: offset, is_open, error }
                }
            };
            let _ = link.send(answer);
        });
    }
}

/// Writes a script into the run's directory; the command that its first line asks for is the answer. It is not executed
/// itself, because state directories may lie where nothing may be.
fn write_script(local: &Local, text: &str) -> io::Result<Vec<String>> {
    let path = local.directory.join("script");
    let _ = fs::remove_file(&path);
    OpenOptions::new().write(true).create_new(true).mode(0o700).open(&path)?.write_all(text.as_bytes())?;
    local.identity.as_ref().map_or(Ok(()), |identity| identity.give(&path))?;
    let mut arguments = interpreter(text);
    arguments.push(path.display().to_string());
    Ok(arguments)
}

/// As the kernel reads it: a program and at most one argument.
fn interpreter(text: &str) -> Vec<String> {
    let first = text.lines().next().unwrap_or_default();
    let named = first.strip_prefix("#!").map(str::trim).filter(|rest| !rest.is_empty());
    let (program, argument) = match named {
        Some(rest) => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        None => ("/bin/sh", ""),
    };
    let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
    [Some(program), argument].into_iter().flatten().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_run_by_its_first_line() {
        for (text, expected) in [
            ("#!/bin/bash\necho", vec!["/bin/bash"]),
            ("#!/bin/bash -l\necho", vec!["/bin/bash", "-l"]),
            ("#! /usr/bin/env  python3 -u \n", vec!["/usr/bin/env", "python3 -u"]),
            ("echo", vec!["/bin/sh"]),
            ("", vec!["/bin/sh"]),
        ] {
            assert_eq!(interpreter(text), expected, "{text:?}");
        }
    }
}
