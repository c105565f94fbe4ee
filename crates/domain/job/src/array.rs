//! Arrays: copies of one job that differ in their index.

use std::fmt;
use std::str::FromStr;

use crate::NotationError;
use crate::flaw::MOST_ARRAY_TASKS;

/// More entries in one list are a slip of some program.
const MOST_RANGES: usize = 10_000;

/// Copies of one job, one for each index. Written as in Slurm: `0-15`, `0-30:10`, `1,3,7-9`, `0-99%4`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    pub ranges: Vec<IndexRange>,
    /// How many may run at once.
    pub at_once: Option<u32>,
}

/// `first`, `first + step`, … up to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexRange {
    pub first: u32,
    pub last: u32,
    pub step: u32,
}

impl IndexRange {
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        (self.first..=self.last).step_by(self.step.max(1) as usize)
    }

    pub fn count(&self) -> u64 {
        if self.first > self.last {
            return 0;
        }
        u64::from((self.last - self.first) / self.step.max(1)) + 1
    }
}

impl Array {
    /// The indices from `first` to `last`, all at once.
    pub fn range(first: u32, last: u32) -> Self {
        Self { ranges: vec![IndexRange { first, last, step: 1 }], at_once: None }
    }

    /// How many indices are listed; one that is listed twice counts twice, and is a flaw.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(IndexRange::count).fold(0, u64::saturating_add)
    }

    /// The index of every task, ascending. An array that is too large has none; [`Job::flaws`] says so.
    ///
    /// [`Job::flaws`]: crate::Job::flaws
    pub fn indices(&self) -> Vec<u32> {
        if self.count() > MOST_ARRAY_TASKS {
            return Vec::new();
        }
        let mut indices: Vec<u32> = self.ranges.iter().flat_map(IndexRange::indices).collect();
        indices.sort_unstable();
        indices
    }
}

impl FromStr for Array {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let error = |reason: String| NotationError::new(text, "an array such as `0-15%4`", reason);
        let (list, limit) = match text.split_once('%') {
            Some((list, limit)) => (list, Some(limit)),
            None => (text, None),
        };
        if list.split(',').nth(MOST_RANGES).is_some() {
            return Err(error(format!("it lists more than {MOST_RANGES} ranges")));
        }
        let at_once = limit.map(number).transpose().map_err(error)?;
        let ranges: Result<Vec<IndexRange>, String> = list.split(',').map(range).collect();
        Ok(Self { ranges: ranges.map_err(error)?, at_once })
    }
}

fn range(text: &str) -> Result<IndexRange, String> {
    let (span, step) = match text.split_once(':') {
        Some((span, step)) => (span, number(step)?),
        None => (text, 1),
    };
    let (first, last) = match span.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(span)?, number(span)?),
    };
    if step == 0 {
        return Err("a step is at least 1".into());
    }
    if first > last {
        return Err(format!("{first} comes after {last}"));
    }
    Ok(IndexRange { first, last, step })
}

fn number(text: &str) -> Result<u32, String> {
    let text = text.trim();
    text.parse()
        .map_err(|_| format!("`{}` is not a whole number up to {}", NotationError::shown(text), u32::MAX))
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.ranges.iter().enumerate() {
            write!(f, "{}{range}", if at > 0 { "," } else { "" })?;
        }
        match self.at_once {
            Some(limit) => write!(f, "%{limit}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for IndexRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            IndexRange { first, last, step: 1 } if first == last => write!(f, "{first}"),
            IndexRange { first, last, step: 1 } => write!(f, "{first}-{last}"),
            IndexRange { first, last, step } => write!(f, "{first}-{last}:{step}"),
        }
    }
}
