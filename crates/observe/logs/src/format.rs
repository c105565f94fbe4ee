//! A format: how one kind of line tells of a step, as data.

use regex::bytes::{Captures, Regex};

use crate::Field;
use crate::field::{duration, elapsed, number};
use crate::pairs::{Notation, Values};

/// Whose lines a format reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FormatKind {
    Training,
    Serving,
}

impl FormatKind {
    pub fn name(self) -> &'static str {
        match self {
            FormatKind::Training => "training",
            FormatKind::Serving => "serving",
        }
    }
}

/// How to read one kind of line.
#[derive(Debug, Clone)]
pub struct Format {
    pub name: String,
    /// The programs that print it, with their versions.
    pub title: String,
    pub kind: FormatKind,
    /// Which ranks print it.
    pub printed_by: String,
    /// Lines without times of their own, such as a loss beside a progress bar.
    pub is_companion: bool,
    pub(crate) pattern: Regex,
    pub(crate) unless: Option<Regex>,
    /// What each group of the pattern means, by its number.
    pub(crate) groups: Vec<(usize, Slot)>,
    pub(crate) notation: Option<Notation>,
    /// Where to look for what among the values of the line.
    pub(crate) keys: Vec<(Slot, Vec<String>)>,
}

/// What a piece of a line means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Slot {
    Step,
    Total,
    Rank,
    /// The step's time in a unit of which a second has this many.
    Seconds(f64),
    /// Steps per second.
    PerSecond,
    /// A number whose unit is in the group `unit`.
    Time,
    Unit,
    /// A number with its unit, such as `12.3ms`.
    Duration,
    /// Time since the start as `1:54:39`.
    Elapsed,
    /// The same as a number of hours, seconds or milliseconds: how many of them an hour has.
    ElapsedIn(f64),
    /// The values in the format's notation.
    Values,
    /// A figure, times this.
    Figure(Field, f64),
}

impl Slot {
    pub(crate) fn find(name: &str) -> Option<Slot> {
        Some(match name {
            "step" => Slot::Step,
            "total" => Slot::Total,
            "rank" => Slot::Rank,
            "seconds" => Slot::Seconds(1.0),
            "ms" => Slot::Seconds(1000.0),
            "per_second" => Slot::PerSecond,
            "time" => Slot::Time,
            "unit" => Slot::Unit,
            "duration" => Slot::Duration,
            "elapsed" => Slot::Elapsed,
            "elapsed_ms" => Slot::ElapsedIn(3_600_000.0),
            "elapsed_seconds" => Slot::ElapsedIn(3600.0),
            "elapsed_hours" => Slot::ElapsedIn(1.0),
            "values" => Slot::Values,
            "cache_percent" => Slot::Figure(Field::Cache, 0.01),
            name => Slot::Figure(Field::find(name)?, 1.0),
        })
    }
}

/// What a line says of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LineReading {
    pub(crate) step: Option<u64>,
    pub(crate) total: Option<u64>,
    pub(crate) rank: Option<u32>,
    pub(crate) seconds: Option<f64>,
    pub(crate) elapsed: Option<f64>,
    pub(crate) values: Vec<(Field, f64)>,
}

/// No step number beyond this is believed.
const LARGEST_STEP: f64 = (1_u64 << 53) as f64;

impl Format {
    /// Reads a line without labels and colours; `None` when it is none of this format.
    pub(crate) fn read(&self, line: &[u8]) -> Option<LineReading> {
        let captures = self.pattern.captures(line)?;
        if self.unless.as_ref().is_some_and(|unless| unless.is_match(line)) {
            return None;
        }
        let mut reading = LineReading::default();
        let mut values = None;
        for (group, slot) in &self.groups {
            let Some(found) = captures.get(*group) else { continue };
            match slot {
                Slot::Values => values = Some(Values::read(found.as_bytes(), self.notation?)?),
                slot => reading.take(*slot, found.as_bytes(), &captures),
            }
        }
        for (slot, names) in self.keys.iter().filter(|_| values.is_some()) {
            let found = names.iter().find_map(|name| values.as_ref()?.get(name));
            if let Some(text) = found {
                reading.take(*slot, text.as_bytes(), &captures);
            }
        }
        let is_step = reading.step.is_some() || self.kind == FormatKind::Serving || self.is_companion;
        is_step.then_some(reading)
    }
}

impl LineReading {
    fn take(&mut self, slot: Slot, text: &[u8], captures: &Captures<'_>) {
        let count =
            || number(text).filter(|count| (0.0..=LARGEST_STEP).contains(count)).map(|count| count as u64);
        let time = |seconds: Option<f64>| seconds.filter(|seconds| (0.0..1e9).contains(seconds));
        match slot {
            Slot::Step => self.step = count(),
            Slot::Total => self.total = count(),
            Slot::Rank => self.rank = count().and_then(|rank| u32::try_from(rank).ok()),
            Slot::Seconds(in_a_second) => self.seconds = time(number(text).map(|time| time / in_a_second)),
            Slot::PerSecond => {
                self.seconds = time(number(text).filter(|rate| *rate > 0.0).map(|rate| 1.0 / rate));
            }
            Slot::Time => {
                let unit = captures.name("unit").map_or(&b"s"[..], |unit| unit.as_bytes());
                self.seconds = time(number(text).and_then(|time| in_unit(time, unit)));
            }
            Slot::Duration => self.seconds = time(duration(text)),
            Slot::Elapsed => self.elapsed = time(elapsed(text)),
            Slot::ElapsedIn(in_an_hour) => {
                self.elapsed = time(number(text).map(|time| time * 3600.0 / in_an_hour));
            }
            Slot::Figure(field, factor) => {
                self.values.extend(number(text).map(|figure| (field, figure * factor)));
            }
            Slot::Unit | Slot::Values => {}
        }
    }
}

fn in_unit(time: f64, unit: &[u8]) -> Option<f64> {
    match unit {
        b"s" | b"s/it" => Some(time),
        b"ms" | b"ms/it" => Some(time / 1000.0),
        b"it/s" => (time > 0.0).then(|| 1.0 / time),
        b"min/it" => Some(time * 60.0),
        b"h/it" => Some(time * 3600.0),
        _ => None,
    }
}
