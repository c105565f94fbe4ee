//! `journal.mark`: which commit was the last, in a file beside the journal.
//!
//! A journal that was emptied, cut, or replaced by an older copy is behind its mark. The mark is written in place after each commit and not
//! waited for, so it may be behind after a power cut, which does no harm, and never ahead. It has two places that are written in turn.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::chain::ChainHead;

const PLACE: usize = 1024;

#[derive(Debug)]
pub(crate) struct Mark {
    file: File,
}

/// What a mark says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Marked {
    /// There is none.
    Nothing,
    /// Neither place can be read.
    Unreadable,
    At(Box<ChainHead>),
}

pub(crate) fn path_of(journal: &Path) -> PathBuf {
    journal.with_extension("mark")
}

impl Mark {
    pub(crate) fn open(journal: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        Ok(Self { file: options.open(path_of(journal))? })
    }

    /// Of a journal that may be in use.
    pub(crate) fn read(journal: &Path) -> io::Result<Marked> {
        match std::fs::read(path_of(journal)) {
            Ok(bytes) => Ok(marked(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Marked::Nothing),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write(&self, head: &ChainHead) -> io::Result<()> {
        let mut bytes = head.to_line().into_bytes();
        bytes.resize(PLACE, b' ');
        bytes[PLACE - 1] = b'\n';
        self.file.write_all_at(&bytes, head.commits % 2 * PLACE as u64)
    }

    /// Both places, so that nothing older is left.
    pub(crate) fn begin(&self, head: &ChainHead) -> io::Result<()> {
        self.file.set_len(0)?;
        self.write(head)?;
        self.file.sync_data()
    }
}

fn marked(bytes: &[u8]) -> Marked {
    let line = |place: &[u8]| {
        ChainHead::from_line(std::str::from_utf8(place).ok()?.trim_start_matches('\0').trim_end())
    };
    let heads = bytes.chunks(PLACE).filter_map(line);
    match heads.max_by_key(|head| head.commits) {
        Some(head) => Marked::At(Box::new(head)),
        None if bytes.is_empty() => Marked::Nothing,
        None => Marked::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Sums;

    #[test]
    fn a_mark_that_was_half_written_says_what_it_said_before() {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal.sqlite");
        assert_eq!(Mark::read(&journal).unwrap(), Marked::Nothing);
        let mark = Mark::open(&journal).unwrap();
        assert_eq!(Mark::read(&journal).unwrap(), Marked::Nothing);
        let heads: Vec<ChainHead> = std::iter::successors(Some(ChainHead::default()), |head| {
            Some(head.next(1, 2, 3, Sums::default()))
        })
        .skip(1)
        .take(3)
        .collect();
        for head in &heads {
            mark.write(head).unwrap();
            assert_eq!(Mark::read(&journal).unwrap(), Marked::At(Box::new(head.clone())));
        }
        mark.file.write_all_at(b"torn", heads[2].commits % 2 * PLACE as u64).unwrap();
        assert_eq!(Mark::read(&journal).unwrap(), Marked::At(Box::new(heads[1].clone())));
        mark.file.write_all_at(b"torn", heads[1].commits % 2 * PLACE as u64).unwrap();
        assert_eq!(Mark::read(&journal).unwrap(), Marked::Unreadable);
        mark.begin(&heads[0]).unwrap();
        assert_eq!(Mark::read(&journal).unwrap(), Marked::At(Box::new(heads[0].clone())));
    }
}
