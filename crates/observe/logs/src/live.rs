//! The log of a job that runs: its steps one by one, as they come.
//!
//! Trainers print their steps in one of many ways, some of them in two. The first format whose step numbers grow for a few
//! lines is the job's; lines of others are left alone. A step's time is what its line says, or else lies between two lines: by
//! the elapsed time or the times of day that they tell, or by when they came.

use bedplate_report::{Phase, Report, RunArguments, StepReport};

use crate::arguments::ArgumentsReader;
use crate::log::{PhaseKind, StepLine};
use crate::{Field, FormatKind, LogReader, Origin, Recognizer, StampClock};

/// Lines with growing steps after which a format is the job's.
const SETTLED: usize = 3;
/// Error lines of one log that are passed on.
const MOST_ERRORS: usize = 24;

/// One thing that a log said.
#[derive(Debug, Clone, PartialEq)]
pub enum Observed {
    Step(LiveStep),
    Phase(PhaseKind),
    /// A line that matches a signature.
    Error(String),
    /// What is trained, and how it is shared out.
    Arguments(Box<RunArguments>),
}

impl Observed {
    /// The same as a program reports it that knows of us. Compilation and short pauses belong to training.
    pub fn into_report(self) -> Option<Report> {
        let phase = |phase| Some(Report::Phase { phase });
        match self {
            Observed::Step(step) => Some(Report::Step(Box::new(StepReport {
                step: step.step,
                seconds: step.seconds,
                tokens: None,
                loss: step.loss,
                breakdown: None,
            }))),
            Observed::Phase(kind) => match kind {
                PhaseKind::Start | PhaseKind::Load | PhaseKind::Prepare | PhaseKind::Compile => {
                    phase(Phase::Loading)
                }
                PhaseKind::Evaluate => phase(Phase::Evaluating),
                PhaseKind::Save => phase(Phase::Saving),
                PhaseKind::End => phase(Phase::Done),
                PhaseKind::Pause => None,
            },
            Observed::Error(line) => Some(Report::Log { line }),
            Observed::Arguments(arguments) => Some(Report::Arguments(arguments)),
        }
    }
}

/// A step with its time, whatever the line itself said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LiveStep {
    pub step: u64,
    pub seconds: f64,
    pub loss: Option<f64>,
}

/// The log of one rank while it is written.
pub struct LiveLog<'a> {
    recognizer: &'a Recognizer,
    reader: LogReader<'a>,
    arguments: ArgumentsReader,
    /// Formats that have printed steps: which, by whom, the last line, how many grew.
    candidates: Vec<Candidate>,
    loss: Option<f64>,
    errors: usize,
}

struct Candidate {
    format: usize,
    origin: Origin,
    last: StepLine,
    came: f64,
    grown: usize,
}

impl<'a> LiveLog<'a> {
    pub fn new(recognizer: &'a Recognizer) -> Self {
        Self {
            recognizer,
            reader: LogReader::new(recognizer),
            arguments: ArgumentsReader::default(),
            candidates: Vec::new(),
            loss: None,
            errors: 0,
        }
    }

    /// Takes the next piece of the log, which came at `now`.
    pub fn feed(&mut self, piece: &[u8], now: f64) -> Vec<Observed> {
        self.reader.feed(piece);
        let mut log = self.reader.drain();
        let mut observed = Vec::new();
        let arguments = self.arguments.feed(piece);
        observed.extend(arguments.map(|arguments| Observed::Arguments(Box::new(arguments))));
        let mut phases = log.phases.drain(..).peekable();
        for (at, step) in log.steps.into_iter().enumerate() {
            while let Some(mark) = phases.next_if(|mark| mark.after_steps <= at) {
                observed.push(Observed::Phase(mark.kind));
            }
            observed.extend(self.step(step, now).map(Observed::Step));
        }
        observed.extend(phases.map(|mark| Observed::Phase(mark.kind)));
        let mut last_line = None;
        for sign in log.signs {
            // A line that means several things is one line.
            if last_line.replace(sign.line) != Some(sign.line) && self.errors < MOST_ERRORS {
                self.errors += 1;
                observed.push(Observed::Error(sign.text));
            }
        }
        observed
    }

    fn step(&mut self, line: StepLine, now: f64) -> Option<LiveStep> {
        let format = &self.recognizer.formats()[line.format];
        self.loss = line.value(Field::Loss).or(self.loss);
        if format.kind != FormatKind::Training || format.is_companion {
            return None;
        }
        let origin = self.reader.origin_of(line.origin);
        let is_same = |known: &Candidate| known.format == line.format && known.origin == origin;
        let Some(at) = self.candidates.iter().position(is_same) else {
            if self.candidates.len() < 16 {
                let format = line.format;
                self.candidates.push(Candidate { format, origin, last: line, came: now, grown: 0 });
            }
            return None;
        };
        let settled = self.candidates.iter().position(|known| known.grown >= SETTLED);
        let known = &mut self.candidates[at];
        if line.step == known.last.step {
            return None;
        }
        let steps = line.step.checked_sub(known.last.step).filter(|steps| *steps > 0);
        let between = |value: fn(&StepLine) -> Option<f64>| {
            let passed = value(&line)? - value(&known.last)?;
            (passed > 0.0).then_some(passed / steps? as f64)
        };
        let stamped = |line: &StepLine| {
            line.stamp.filter(|stamp| stamp.clock != StampClock::Boot).map(|stamp| stamp.seconds)
        };
        let seconds = line
            .seconds
            .or_else(|| between(|line| line.elapsed))
            .or_else(|| between(stamped))
            .or_else(|| steps.map(|steps| (now - known.came) / steps as f64));
        known.grown = if steps.is_some() { known.grown + 1 } else { 0 };
        let step = line.step;
        (known.last, known.came) = (line, now);
        // A log that begins anew goes on with its format, and so does one that has not settled yet with its first.
        let is_ours = settled.map_or(at == 0, |settled| settled == at);
        let seconds = seconds.filter(|seconds| *seconds > 0.0 && is_ours)?;
        Some(LiveStep { step, seconds, loss: self.loss.take() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(pieces: &[(&str, f64)]) -> Vec<(u64, f64)> {
        let recognizer = Recognizer::built_in();
        let mut live = LiveLog::new(&recognizer);
        let observed = pieces.iter().flat_map(|(piece, at)| live.feed(piece.as_bytes(), *at));
        let step = |each| match each {
            Observed::Step(step) => Some((step.step, (step.seconds * 1000.0).round() / 1000.0)),
            _ => None,
        };
        Vec::from_iter(observed.collect::<Vec<_>>().into_iter().filter_map(step))
    }

    #[test]
    fn steps_have_the_times_that_lines_say_or_that_lie_between_them() {
        let printed = [
            ("iter 1: loss 3.1, time 410.5ms, mfu 37.1%\n", 0.0),
            ("iter 2: loss 3.1, time 400.5ms, mfu 37.1%\niter 3: loss 3.1, ti", 1.0),
            ("me 420.5ms, mfu 37.1%\n", 1.1),
        ];
        assert_eq!(steps(&printed), [(2, 0.401), (3, 0.421)]);
        // No time in the line: by when it came.
        let bare = |step: u64| {
            format!(
                "[titan] 2025-01-01 00:00:00,000 - root - INFO - step: {step}  loss:  8.1  memory: 9.9GiB(10.0%)  tps: 1,000  mfu: 10.00%\n"
            )
        };
        let first = bare(1).replace("00:00:00,000", "00:00:01,500");
        let second = bare(2).replace("00:00:00,000", "00:00:03,500");
        assert_eq!(steps(&[(&first, 0.0), (&second, 9.0)]), [(2, 2.0)]);
    }

    #[test]
    fn errors_and_phases_are_told_in_order_and_bounded() {
        let recognizer = Recognizer::built_in();
        let mut live = LiveLog::new(&recognizer);
        let line = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n";
        let observed = live.feed(line.repeat(1000).as_bytes(), 1.0);
        assert_eq!(observed.len(), MOST_ERRORS);
        assert!(matches!(&observed[0], Observed::Error(text) if text.contains("ECC")));
    }
}
