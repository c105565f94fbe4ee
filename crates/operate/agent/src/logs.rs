//! Reading logs, and keeping captured ones from filling the disk.
//!
//! Ranks write to their files directly, so a log survives its agent and costs nothing on the way. The file cannot
//! be replaced under a rank; instead the oldest portions are given back to the disk as a hole, and offsets stay the
//! same. A reader that asks for a part that is gone continues at the oldest part that is left.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use bedplate_host::{LinkPolicy, Opening, open_regular_for};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};

use crate::options::LogRules;

/// The longest answer, whatever is asked for.
const LONGEST_CHUNK: u64 = 1 << 20;

/// A piece of a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogPiece {
    pub(crate) bytes: Vec<u8>,
    pub(crate) next_offset: u64,
}

/// Reads from `offset`, or from the oldest byte behind it that is kept. At the end of the log nothing comes.
pub(crate) fn read(path: &Path, links: LinkPolicy, offset: u64, most_bytes: u64) -> io::Result<LogPiece> {
    let mut file = open_regular_for(Opening::Read, path, links)?;
    let length = file.metadata()?.len();
    let start = first_kept(&file, offset).unwrap_or(offset).min(length);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(most_bytes.min(LONGEST_CHUNK)).read_to_end(&mut bytes)?;
    let next_offset = start + bytes.len() as u64;
    // A file that became shorter is read from its end on.
    Ok(LogPiece { bytes, next_offset })
}

/// The first byte at or behind `offset` that is not in a hole.
fn first_kept(file: &File, offset: u64) -> Option<u64> {
    let offset = i64::try_from(offset).ok()?;
    u64::try_from(lseek(file, offset, Whence::SeekData).ok()?).ok()
}

/// Gives the oldest portions of a log back to the disk. False where the file system cannot do that.
pub(crate) fn trim(path: &Path, rules: LogRules) -> io::Result<bool> {
    let file = open_regular_for(Opening::Write, path, LinkPolicy::Refuse)?;
    let portion = rules.portion_bytes.max(4096);
    let excess = (file.metadata()?.len() / portion).saturating_sub(rules.portions);
    if excess == 0 {
        return Ok(true);
    }
    let hole = i64::try_from(excess * portion).unwrap_or(i64::MAX);
    let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    match fallocate(&file, how, 0, hole) {
        Ok(()) => Ok(true),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn temporary(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("bedplate-logs-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_log_is_read_in_pieces_until_nothing_comes() {
        let path = temporary("pieces");
        fs::write(&path, "hello world").unwrap();
        let first = read(&path, LinkPolicy::Refuse, 0, 5).unwrap();
        assert_eq!((first.bytes.as_slice(), first.next_offset), (b"hello".as_slice(), 5));
        assert_eq!(read(&path, LinkPolicy::Refuse, 5, 100).unwrap().bytes, b" world");
        assert_eq!(
            read(&path, LinkPolicy::Refuse, 11, 100).unwrap(),
            LogPiece { bytes: Vec::new(), next_offset: 11 }
        );
        assert_eq!(
            read(&path, LinkPolicy::Refuse, 999, 100).unwrap(),
            LogPiece { bytes: Vec::new(), next_offset: 11 }
        );
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_trimmed_log_keeps_its_newest_portions_at_their_offsets() {
        let path = temporary("trim");
        let portion = 1 << 20;
        let text: Vec<u8> = (0..6_u8).flat_map(|number| vec![b'a' + number; portion]).collect();
        fs::write(&path, &text).unwrap();
        let rules = LogRules { portion_bytes: portion as u64, portions: 2 };
        if trim(&path, rules).unwrap() {
            assert!(fs::metadata(&path).unwrap().blocks() * 512 <= 3 * portion as u64);
            let piece = read(&path, LinkPolicy::Refuse, 0, 4).unwrap();
            assert_eq!((piece.bytes, piece.next_offset), (b"eeee".to_vec(), 4 * portion as u64 + 4));
            assert_eq!(read(&path, LinkPolicy::Refuse, 5 * portion as u64, 1).unwrap().bytes, b"f");
        } else {
            println!("SKIPPED: {} lies on a file system without holes", path.display());
        }
        fs::remove_file(path).unwrap();
    }
}
