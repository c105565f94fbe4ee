//! What ranks say about themselves: lines that they append to the file named by `BEDPLATE_REPORT`.
//!
//! ```text
//! progress 1200                     the job has done 1200 steps
//! checkpoint 1000 /shared/ckpt/1000 it can start again from step 1000; the path may be missing
//! ```
//!
//! A line counts once its end is written. What is no such line is passed over: a report is a kindness, and a job must
//! not fail by it.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use bedplate_control::wire::Checkpoint;

use crate::untrusted::{self, Links};

/// No line is longer; what is goes unread.
const LONGEST_LINE: usize = 64 << 10;

/// One thing a rank said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Progress(u64),
    Checkpoint(Checkpoint),
}

/// The report of one rank and how far it has been read.
#[derive(Debug)]
pub(crate) struct Report {
    path: PathBuf,
    offset: u64,
    /// The beginning of a line whose end is not there yet.
    partial: Vec<u8>,
}

impl Report {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, partial: Vec::new() }
    }

    /// What is new, the last word on each matter only: who is far ahead says it in every step.
    pub(crate) fn read(&mut self) -> Vec<Said> {
        let Ok(mut file) = untrusted::open(&self.path, Links::Refuse) else { return Vec::new() };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        if length < self.offset {
            // Somebody wrote it anew.
            (self.offset, self.partial) = (0, Vec::new());
        }
        if length == self.offset || file.seek(SeekFrom::Start(self.offset)).is_err() {
            return Vec::new();
        }
        let mut bytes = Vec::new();
        let Ok(read) = file.take(4 << 20).read_to_end(&mut bytes) else { return Vec::new() };
        self.offset += read as u64;
        self.take_in(&bytes)
    }

    fn take_in(&mut self, bytes: &[u8]) -> Vec<Said> {
        self.partial.extend_from_slice(bytes);
        let end = self.partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let rest = self.partial.split_off(end);
        let lines = std::mem::replace(&mut self.partial, rest);
        if self.partial.len() > LONGEST_LINE {
            self.partial.clear();
        }
        let said: Vec<Said> = lines.split(|byte| *byte == b'\n').filter_map(parse).collect();
        let last_progress = said.iter().rposition(|said| matches!(said, Said::Progress(_)));
        let last_checkpoint = said.iter().rposition(|said| matches!(said, Said::Checkpoint(_)));
        let is_kept = |at: usize| Some(at) == last_progress || Some(at) == last_checkpoint;
        said.into_iter().enumerate().filter(|(at, _)| is_kept(*at)).map(|(_, said)| said).collect()
    }
}

fn parse(line: &[u8]) -> Option<Said> {
    if line.len() > LONGEST_LINE {
        return None;
    }
    let line = std::str::from_utf8(line).ok()?.trim();
    let (word, rest) = line.split_once(' ')?;
    let (number, path) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
    let step = number.parse().ok()?;
    match word {
        "progress" => Some(Said::Progress(step)),
        "checkpoint" => {
            let path = Some(path.trim()).filter(|path| !path.is_empty()).map(str::to_owned);
            Some(Said::Checkpoint(Checkpoint { step, path }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn report() -> Report {
        Report::new(PathBuf::new())
    }

    fn checkpoint(step: u64, path: Option<&str>) -> Said {
        Said::Checkpoint(Checkpoint { step, path: path.map(str::to_owned) })
    }

    #[test]
    fn lines_are_told_and_nonsense_is_passed_over() {
        for (text, expected) in [
            ("progress 7\n", vec![Said::Progress(7)]),
            ("progress 7\nprogress 8\n", vec![Said::Progress(8)]),
            ("checkpoint 5 /c/5 of it\n", vec![checkpoint(5, Some("/c/5 of it"))]),
            ("checkpoint 5\nprogress 6\n", vec![checkpoint(5, None), Said::Progress(6)]),
            ("progress\nprogress -1\nprogress x\n\nhello 5\n\u{fffd}\n", vec![]),
            ("progress 7", vec![]),
        ] {
            assert_eq!(report().take_in(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_line_that_comes_in_parts_is_told_once_it_is_whole() {
        let mut report = report();
        assert_eq!(report.take_in(b"progress 1"), []);
        assert_eq!(report.take_in(b"2\nprog"), [Said::Progress(12)]);
        assert_eq!(report.take_in(b"ress 13\n"), [Said::Progress(13)]);
    }

    proptest! {
        #[test]
        fn any_bytes_cut_anywhere_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..200_usize) {
            let at = at.min(bytes.len());
            let mut report = report();
            report.take_in(&bytes[..at]);
            report.take_in(&bytes[at..]);
            prop_assert!(report.partial.len() <= 200);
        }
    }
}
