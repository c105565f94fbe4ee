//! A training run in processes of its own, whose ranks can be killed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_train::Membership;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::NotMeasured;
use super::place::{Place, Settings, cannot};
use super::records::Records;
use crate::product;

/// More than any step, regrouping or end of a run takes here.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(2);

/// How a run is started.
pub(super) struct Start<'a> {
    pub(super) output: &'a str,
    pub(super) settings: Settings,
    pub(super) ranks: u32,
    pub(super) layout: &'a str,
    pub(super) spares: u32,
    pub(super) restarts: u32,
    pub(super) resumes: bool,
}

/// A launcher with its ranks, in a process group of its own.
pub(super) struct Run {
    launcher: Child,
    pub(super) records: Records,
    membership: Membership,
    log: PathBuf,
}

impl Start<'_> {
    pub(super) fn run(&self, place: &Place) -> Result<Run, NotMeasured> {
        let config = place.configure(self.output, &self.settings)?;
        let output = place.0.join(self.output);
        let log = place.0.join(format!("{}.log", self.output));
        let said = File::create(&log).map_err(|error| cannot(&log, &error))?;
        let program = product::program().map_err(|error| NotMeasured(error.to_string()))?;
        let mut command = Command::new(program);
        command
            .args(["train", "--quiet", "--layout", self.layout])
            .args(["--ranks", &self.ranks.to_string(), "--spares", &self.spares.to_string()])
            .args(["--restarts", &self.restarts.to_string()])
            .args(self.resumes.then_some("--resume"))
            .args(["--set", "training.wait_seconds=60"])
            .arg(config);
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "BEDPLATE_REPORT"] {
            command.env_remove(name);
        }
        command.current_dir(&place.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        let launcher = command.process_group(0).spawn();
        let launcher = launcher.map_err(|error| cannot(Path::new("bedplate train"), &error))?;
        let records = Records::of(output.join("metrics.jsonl"));
        Ok(Run { launcher, records, membership: Membership::of(&output), log })
    }
}

impl Run {
    /// Waits until a step is recorded.
    pub(super) fn wait_for_step(&mut self, step: u64) -> Result<(), NotMeasured> {
        self.wait_until(&format!("step {step}"), |run| run.records.newest >= step)
    }

    /// Waits until something is so, looking at the records all the time. A run that ends before is an error.
    pub(super) fn wait_until(
        &mut self,
        what: &str,
        is_so: impl Fn(&Self) -> bool,
    ) -> Result<(), NotMeasured> {
        let began = Instant::now();
        loop {
            self.records.look();
            if is_so(self) {
                return Ok(());
            }
            if let Ok(Some(status)) = self.launcher.try_wait() {
                self.records.look();
                let ends_well = is_so(self);
                return if ends_well {
                    Ok(())
                } else {
                    Err(self.failed(&format!("it ended with {status} before {what}")))
                };
            }
            if began.elapsed() > PATIENCE {
                return Err(self.failed(&format!("it does not reach {what}")));
            }
            thread::sleep(LOOK);
        }
    }

    /// The processes that train, without those that wait for a place.
    pub(super) fn working(&self) -> Vec<i32> {
        let waits = |pid: &i32| self.membership.waits(*pid as u32);
        self.children().into_iter().filter(|pid| !waits(pid)).collect()
    }

    /// How many processes wait for a place.
    pub(super) fn waiting(&self) -> usize {
        self.children().len() - self.working().len()
    }

    /// Stops processes that are not `known` yet, so that they come later.
    pub(super) fn hold_newcomers(&self, known: &[i32]) {
        for pid in self.children().into_iter().filter(|pid| !known.contains(pid)) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGSTOP);
        }
    }

    pub(super) fn let_newcomers_go(&self) {
        for pid in self.children() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
        }
    }

    fn children(&self) -> Vec<i32> {
        let id = self.launcher.id();
        let text = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    pub(super) fn kill_one(&self, pid: i32) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }

    /// Kills the launcher and all ranks at once.
    pub(super) fn kill_all(&mut self) {
        let _ = killpg(Pid::from_raw(self.launcher.id() as i32), Signal::SIGKILL);
        let _ = self.launcher.wait();
        // The ranks have another parent by now; they are gone when nobody of the group is left.
        let began = Instant::now();
        while killpg(Pid::from_raw(self.launcher.id() as i32), None).is_ok() && began.elapsed() < PATIENCE {
            thread::sleep(LOOK);
        }
    }

    pub(super) fn has_ended(&mut self) -> bool {
        matches!(self.launcher.try_wait(), Ok(Some(_)))
    }

    /// Waits for the end, which must be a good one.
    pub(super) fn finish(&mut self) -> Result<(), NotMeasured> {
        let began = Instant::now();
        loop {
            self.records.look();
            match self.launcher.try_wait() {
                Ok(Some(status)) => return self.judge(status),
                _ if began.elapsed() > PATIENCE * 4 => return Err(self.failed("it does not end")),
                _ => thread::sleep(LOOK),
            }
        }
    }

    fn judge(&self, status: ExitStatus) -> Result<(), NotMeasured> {
        if status.success() { Ok(()) } else { Err(self.failed(&format!("it ended with {status}"))) }
    }

    fn failed(&self, what: &str) -> NotMeasured {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let last: Vec<&str> = said.lines().rev().take(12).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        NotMeasured(format!("{what}; it said:\n{}", last.join("\n")))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill_all();
        }
    }
}
