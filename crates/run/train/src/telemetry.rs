//! What a run reports: progress on standard error, lines of JSON, TensorBoard, Prometheus, the agent of its node.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_diag::Diagnostic;
use bedplate_host::{LinkPolicy, Opening, open_regular_for};
use bedplate_kernels::{CudaError, DeviceFault};
use bedplate_record::{
    Endpoint, EvaluationRecord, EventFile, Exposure, Progress, RanksRecord, RecordLines, StepRecord,
};
use bedplate_report::{Checkpoint, FaultReport, Phase, Report, RunArguments, StepReport};
use bedplate_units::Count;

use crate::Published;
use crate::checkpoint::METRICS_FILE;
use crate::run::{Observer, Place, Setup, StepPlan};
use crate::{OutputConfig, TrainConfig, TrainError};

/// How often a run reports its progress when standard error is not a terminal.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// Characters of the driver's words that a report passes on.
const LONGEST_MESSAGE: usize = 200;

/// Writes everything that a configuration asks for.
pub struct Telemetry {
    output: OutputConfig,
    is_quiet: bool,
    progress: Option<Progress>,
    lines: Option<RecordLines>,
    events: Option<EventFile>,
    endpoint: Option<Endpoint>,
    report: Option<PathBuf>,
    has_told_prediction: bool,
}

impl Telemetry {
    /// Opens the endpoint, so that a port that is taken is said at once. Files follow when the run begins.
    pub fn open(config: &TrainConfig, is_quiet: bool) -> Result<Self, TrainError> {
        let output = config.output.clone();
        let exposure = if output.has_public_metrics { Exposure::Anybody } else { Exposure::Loopback };
        let endpoint =
            output.metrics_address.map(|address| Endpoint::start(address, exposure)).transpose()?;
        Ok(Self {
            output,
            is_quiet,
            progress: None,
            lines: None,
            events: None,
            endpoint,
            report: None,
            has_told_prediction: false,
        })
    }

    /// Also reports to the cluster that runs this job, in the file that the agent of the node reads.
    pub fn announcing(self, report: Option<PathBuf>) -> Self {
        let telemetry = Self { report, ..self };
        telemetry.announce(&Report::Phase { phase: Phase::Loading });
        if let Some(endpoint) = &telemetry.endpoint {
            let address = format!("127.0.0.1:{}/metrics", endpoint.address().port());
            telemetry.announce(&Report::Metrics { address });
        }
        telemetry
    }

    /// Leaves the last line of progress standing.
    pub fn finish(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.finish();
        }
        self.announce(&Report::Phase { phase: Phase::Done });
    }

    fn say(&mut self, text: &str) {
        if let Some(progress) = &mut self.progress {
            progress.say(text);
        }
    }

    fn announce(&self, report: &Report) {
        if let Some(path) = &self.report {
            append(path, report);
        }
    }

    fn announce_step(&self, record: &StepRecord) {
        if self.report.is_none() {
            return;
        }
        self.announce(&Report::Step(Box::new(StepReport {
            step: record.step,
            seconds: record.seconds,
            tokens: Some(record.tokens),
            loss: Some(record.loss).filter(|loss| loss.is_finite()),
            breakdown: Some(record.breakdown),
        })));
    }

    fn open_files(&mut self, setup: &Setup) -> Result<(), TrainError> {
        let Setup { step, is_taken_over, .. } = *setup;
        let folder = &self.output.folder;
        let events = folder.join("tensorboard");
        for folder in [folder, &events] {
            fs::create_dir_all(folder)
                .map_err(|source| TrainError::WriteOutput { path: folder.clone(), source })?;
        }
        let lines = folder.join(METRICS_FILE);
        let aside = setup.abandoned.as_ref().map(|folder| folder.join(METRICS_FILE));
        self.lines = Some(match aside {
            _ if !lines.exists() => RecordLines::create(&lines)?,
            aside if step > 0 && !is_taken_over => RecordLines::resume(&lines, step, aside.as_deref())?,
            Some(aside) => {
                // By copying, because it may lie on another file system.
                fs::copy(&lines, &aside).map_err(|source| TrainError::WriteOutput { path: aside, source })?;
                RecordLines::create(&lines)?
            }
            None => RecordLines::create(&lines)?,
        });
        if self.output.has_tensorboard {
            self.events = Some(EventFile::create(&events, (step > 0).then_some(step))?);
        }
        Ok(())
    }
}

/// Says which GPU failed this rank, in the file that the agent of the node reads. Any rank does, and a replica that serves too.
pub fn announce_fault(report: &Path, fault: &DeviceFault) {
    let DeviceFault { gpu, what, why } = fault;
    let message = format!("{what}: {why}").replace(char::is_control, " ");
    let fault = FaultReport {
        address: gpu.address.clone(),
        uuid: gpu.uuid.clone(),
        code: CudaError::Fault(Box::new(fault.clone())).page().code.to_owned(),
        message: message.chars().take(LONGEST_MESSAGE).collect(),
    };
    append(report, &Report::Fault(Box::new(fault)));
}

/// Says what is trained, in the same file.
pub fn announce_arguments(report: &Path, arguments: RunArguments) {
    append(report, &Report::Arguments(Box::new(arguments)));
}

/// A report that cannot be written does not stop the run, and a pipe that nobody reads does not make it wait.
fn append(path: &Path, report: &Report) {
    let opening = Opening::Append { mode: 0o666 };
    if let Ok(mut file) = open_regular_for(opening, path, LinkPolicy::Follow) {
        // One write for the whole line, so that a reader never sees two lines mixed.
        let _ = file.write_all((report.to_line() + "\n").as_bytes());
    }
}

impl Observer for Telemetry {
    fn began(&mut self, setup: &Setup) -> Result<(), TrainError> {
        self.open_files(setup)?;
        if !self.is_quiet {
            self.progress = Some(Progress::on_stderr(setup.steps, PROGRESS_EVERY));
        }
        self.say(&describe(setup));
        setup.remarks.iter().for_each(|remark| self.say(&format!("note: {remark}")));
        if let Some(endpoint) = &self.endpoint {
            let address = endpoint.address();
            self.say(&format!("metrics at http://{address}/metrics"));
        }
        self.announce(&Report::Progress { step: setup.step });
        self.announce(&Report::Phase { phase: Phase::Training });
        Ok(())
    }

    fn turned_to(&mut self, phase: Phase) {
        self.announce(&Report::Phase { phase });
    }

    fn step(&mut self, record: &StepRecord) -> Result<(), TrainError> {
        if let Some(lines) = &mut self.lines {
            lines.write_step(record)?;
        }
        if let Some(events) = &mut self.events {
            events.write_step(record)?;
        }
        if let Some(endpoint) = &self.endpoint {
            endpoint.metrics().set_step(record);
        }
        if let Some(progress) = &mut self.progress {
            progress.update(record);
        }
        self.announce_step(record);
        Ok(())
    }

    fn took_place(&mut self, place: &Place<'_>) {
        if let Some(stage) = place.stage {
            self.announce(&Report::Stage { stage });
        }
        if let Some(StepPlan { breakdown, source }) = place.predicted.filter(|_| !self.has_told_prediction) {
            self.announce(&Report::Predicted { breakdown: Box::new(*breakdown), source: source.clone() });
            self.has_told_prediction = true;
        }
    }

    fn own_step(&mut self, record: &StepRecord) {
        self.announce_step(record);
    }

    fn evaluated(&mut self, record: &EvaluationRecord) -> Result<(), TrainError> {
        if self.lines.as_ref().is_some_and(|lines| lines.has_evaluation(record.step)) {
            return Ok(());
        }
        if let Some(lines) = &mut self.lines {
            lines.write_evaluation(record)?;
        }
        if let Some(events) = &mut self.events {
            events.write_evaluation(record)?;
        }
        if let Some(endpoint) = &self.endpoint {
            endpoint.metrics().set_evaluation(record);
        }
        let step = record.step;
        if let (Some(loss), Some(perplexity)) = (record.loss, record.perplexity) {
            self.say(&format!("step {step}: held-out loss {loss:.4}, perplexity {perplexity:.2}"));
        }
        if let Some(sample) = &record.sample {
            self.say(&format!("step {step} writes: {}", one_line(sample)));
        }
        Ok(())
    }

    fn went_on(&mut self, setup: &Setup, steps: &[String]) -> Result<(), TrainError> {
        if let Some(lines) = &mut self.lines {
            lines.complete(steps)?;
            let (step, ranks) = (setup.step, setup.ranks);
            lines.write_ranks(&RanksRecord { step, ranks, layout: setup.layout.to_string() })?;
        }
        let Setup { ranks, layout, step, .. } = setup;
        self.say(&format!("{ranks} ranks go on from step {step} as {layout}"));
        Ok(())
    }

    fn waits(&mut self, text: &str) {
        match &mut self.progress {
            Some(progress) => progress.say(text),
            None if self.is_quiet => {}
            None => self.progress.insert(Progress::on_stderr(0, PROGRESS_EVERY)).say(text),
        }
    }

    fn published(&mut self, checkpoint: &Published) -> Result<(), TrainError> {
        let path = absolute(&checkpoint.path).to_str().map(str::to_owned);
        self.announce(&Report::Checkpoint(Checkpoint { step: checkpoint.step, path }));
        Ok(())
    }
}

fn describe(setup: &Setup) -> String {
    let adapted = match setup.trained {
        trained if trained < setup.parameters => {
            format!(" ({} of adapters are trained)", Count(trained as u64))
        }
        _ => String::new(),
    };
    let from = if setup.step > 0 { format!(", from step {}", setup.step) } else { String::new() };
    format!(
        "{} parameters{adapted}, {} tokens a step, {} for state and activations; {} threads, {}{from}",
        Count(setup.parameters as u64),
        setup.tokens_per_step,
        setup.memory,
        setup.threads,
        setup.instructions,
    )
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The agent runs in another folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_nobody_reads_holds_no_rank_up() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, file) = (folder.path().join("pipe"), folder.path().join("file"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        append(&pipe, &Report::Progress { step: 1 });
        append(&file, &Report::Progress { step: 1 });
        append(&file, &Report::Progress { step: 2 });
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 2);
    }
}
