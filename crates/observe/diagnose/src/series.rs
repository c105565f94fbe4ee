//! Step times from lines of steps: by what the lines say, or by what lies between them.

use std::collections::BTreeMap;

use bedplate_logs::{Field, FormatKind, Log, PhaseKind, PhaseMark, Recognizer, StepLine};

/// Steps of one writer in one format.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Which of the recognizer's formats.
    pub format: usize,
    pub rank: Option<u32>,
    /// Which of the log's writers.
    pub origin: usize,
    pub points: Vec<Point>,
    /// How the times were had.
    pub by: By,
}

/// One line of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub step: u64,
    /// Of one step.
    pub seconds: f64,
    /// Seconds since 1970, or since any other beginning that all points share.
    pub at: Option<f64>,
    pub line: u64,
    /// Waiting for data within the step.
    pub data: Option<f64>,
    pub loss: Option<f64>,
    /// A phase beside it explains its time.
    pub is_excused: bool,
    /// The program began anew before it.
    pub is_restart: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The line says it.
    Line,
    /// Time since the start, from line to line.
    Elapsed,
    /// Times of day, from line to line.
    Stamps,
    /// Work of a step over its rate: only changes mean something.
    Rate,
}

impl By {
    pub fn words(self) -> &'static str {
        match self {
            By::Line => "as printed",
            By::Elapsed => "from the elapsed time",
            By::Stamps => "from the lines' times",
            By::Rate => "from the printed rate",
        }
    }
}

/// Series of fewer points say nothing.
const FEWEST: usize = 3;
/// Tokens of a step where a rate is all that is known; only the ratio between steps counts.
const ANY_WORK: f64 = 1.0;

/// All series of a trainer's log, the longest first.
pub fn series(log: &Log, recognizer: &Recognizer) -> Vec<Series> {
    let mut groups: BTreeMap<(usize, usize, Option<u64>), Vec<&StepLine>> = BTreeMap::new();
    for step in &log.steps {
        let format = &recognizer.formats()[step.format];
        if format.kind == FormatKind::Training && !format.is_companion {
            // Progress bars of training and evaluation differ by their totals alone.
            let total = step.elapsed.and(step.total);
            groups.entry((step.format, step.origin, total)).or_default().push(step);
        }
    }
    let mut found: Vec<Series> = groups
        .into_iter()
        .filter_map(|((format, origin, _), steps)| one(log, format, origin, &steps))
        .filter(|series| series.points.len() >= FEWEST)
        .collect();
    found.sort_by_key(|series| std::cmp::Reverse(series.points.len()));
    found
}

fn one(log: &Log, format: usize, origin: usize, steps: &[&StepLine]) -> Option<Series> {
    let count = |has: fn(&StepLine) -> bool| steps.iter().filter(|step| has(step)).count() * 2 > steps.len();
    let by = match () {
        () if count(|step| step.seconds.is_some()) => By::Line,
        () if count(|step| step.elapsed.is_some()) => By::Elapsed,
        () if count(|step| {
            step.value(Field::TokensPerSecond).or(step.value(Field::SamplesPerSecond)).is_some()
        }) =>
        {
            By::Rate
        }
        () if count(|step| step.stamp.is_some()) => By::Stamps,
        () => return None,
    };
    let mut points: Vec<Point> = Vec::with_capacity(steps.len());
    let mut phases = log.phases.iter().peekable();
    let mut before: Option<&StepLine> = None;
    for step in steps {
        let position = |mark: &PhaseMark| mark.line <= step.line;
        let mut is_excused = false;
        let mut is_restart = before.is_some_and(|before| {
            step.step < before.step || (step.step == before.step && step.elapsed < before.elapsed)
        });
        while let Some(mark) = phases.next_if(|mark| position(mark)) {
            match mark.kind {
                PhaseKind::Start | PhaseKind::Load => is_restart |= before.is_some(),
                PhaseKind::End | PhaseKind::Prepare => {}
                _ => is_excused = true,
            }
        }
        let seconds = match (by, before.filter(|_| !is_restart)) {
            (By::Line, _) => step.seconds,
            (By::Rate, _) => {
                let rate = step.value(Field::TokensPerSecond).or(step.value(Field::SamplesPerSecond));
                rate.filter(|rate| *rate > 0.0).map(|rate| ANY_WORK / rate)
            }
            (By::Elapsed, Some(before)) => between(before, step, step.elapsed, before.elapsed),
            (By::Stamps, Some(before)) => between(before, step, seconds_of(step), seconds_of(before)),
            _ => None,
        };
        before = Some(step);
        let Some(seconds) = seconds else { continue };
        points.push(Point {
            step: step.step,
            seconds,
            at: seconds_of(step).or(step.elapsed),
            line: step.line,
            data: step.value(Field::Data),
            loss: step.value(Field::Loss),
            is_excused,
            is_restart,
        });
    }
    let rank = log.origins.get(origin).and_then(|origin| origin.rank);
    Some(Series { format, rank, origin, points, by })
}

fn seconds_of(step: &StepLine) -> Option<f64> {
    step.stamp.map(|stamp| stamp.seconds)
}

fn between(before: &StepLine, step: &StepLine, now: Option<f64>, then: Option<f64>) -> Option<f64> {
    let steps = step.step.checked_sub(before.step).filter(|steps| *steps > 0)?;
    Some((now? - then?) / steps as f64).filter(|seconds| *seconds >= 0.0)
}

#[cfg(test)]
mod tests {
    use bedplate_logs::LogReader;

    use super::*;

    fn of(text: &str) -> Vec<Series> {
        let recognizer = Recognizer::built_in();
        let mut reader = LogReader::new(&recognizer);
        reader.feed(text.as_bytes());
        series(&reader.finish(), &recognizer)
    }

    #[test]
    fn times_come_from_lines_or_from_between_them() {
        let bars: String = (0..10)
            .map(|at| format!("{at}%|x| {}/1000 [00:{:02}<09:00,  3.00s/it]\r", at * 2, at * 6))
            .collect();
        let found = of(&bars);
        assert_eq!((found.len(), found[0].by), (1, By::Elapsed));
        assert!(found[0].points.iter().all(|point| point.seconds == 3.0));

        let lines: String =
            (1..6).map(|at| format!("iter {at}: loss 3.1, time 410.00ms, mfu 37%\n")).collect();
        assert_eq!(of(&lines)[0].points.len(), 5);
        assert_eq!(of(&lines)[0].by, By::Line);
    }

    #[test]
    fn phases_excuse_the_step_behind_them_and_restarts_are_seen() {
        let line = |step: u32| format!("iter {step}: loss 3.1, time 410.00ms, mfu 37%\n");
        let text = [line(1), line(2), "saving checkpoint at 2\n".into(), line(3), line(4), line(2), line(3)]
            .concat();
        let points = &of(&text)[0].points;
        let excused: Vec<bool> = points.iter().map(|point| point.is_excused).collect();
        let restarts: Vec<bool> = points.iter().map(|point| point.is_restart).collect();
        assert_eq!(excused, [false, false, true, false, false, false]);
        assert_eq!(restarts, [false, false, false, false, true, false]);
    }
}
