//! The report files of ranks: each rank appends lines to the file named by `BEDPLATE_REPORT`, and this reads what is new.
//!
//! What the lines mean is defined in `bedplate_report`. A line counts once its end is written. Lines that are no
//! reports are skipped: a job must not fail because of one. The file belongs to the job, so it may be anything by the
//! time it is opened; only a regular file is read, and only so much of it at a time.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use bedplate_host::{LinkPolicy, Opening, open_regular_for};
use bedplate_report::{LONGEST_LINE, Report};
use nix::fcntl::{FallocateFlags, fallocate};

/// Read from a file at a time.
const MOST_BYTES: u64 = 4 << 20;
/// A file does not take more of the disk than this for long, and what is further ahead of its reader is skipped.
const MOST_KEPT: u64 = 64 << 20;
/// Steps passed on from one reading; of a job that does more in that time the earlier ones are dropped.
const MOST_STEPS: usize = 32;

/// The report file of one rank and how far it has been read.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
    offset: u64,
    /// The beginning of a line whose end is not there yet.
    partial: Vec<u8>,
    /// The line under way is too long; its rest is skipped.
    is_skipping: bool,
}

impl ReportFile {
    /// A file that is read from its end: what stands there already was said by others.
    pub fn from_now(path: PathBuf) -> Self {
        let offset =
            open_regular_for(Opening::Read, &path, LinkPolicy::Refuse).and_then(|file| file.metadata());
        Self { offset: offset.map_or(0, |metadata| metadata.len()), ..Self::new(path) }
    }

    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, partial: Vec::new(), is_skipping: false }
    }

    /// What is new: of each kind of report the last, and of steps the last few.
    pub fn read(&mut self) -> Vec<Report> {
        let Ok(mut file) = open_regular_for(Opening::Read, &self.path, LinkPolicy::Refuse) else {
            return Vec::new();
        };
        let Ok(metadata) = file.metadata() else { return Vec::new() };
        if metadata.len() < self.offset {
            // The file was replaced or cut: it is read from its beginning.
            (self.offset, self.partial, self.is_skipping) = (0, Vec::new(), false);
        }
        if metadata.len() == self.offset || file.seek(SeekFrom::Start(self.offset)).is_err() {
            return Vec::new();
        }
        if metadata.len() - self.offset > MOST_KEPT {
            (self.offset, self.partial, self.is_skipping) = (metadata.len() - MOST_BYTES, Vec::new(), true);
            let _ = file.seek(SeekFrom::Start(self.offset));
        }
        if metadata.blocks() * 512 > MOST_KEPT {
            self.release();
        }
        let mut bytes = Vec::new();
        let Ok(read) = file.take(MOST_BYTES).read_to_end(&mut bytes) else { return Vec::new() };
        self.offset += read as u64;
        self.take_in(&bytes)
    }

    /// Gives back the room of what has been read; the file keeps its length, so that its writers notice nothing.
    fn release(&mut self) {
        let writing = open_regular_for(Opening::Write, &self.path, LinkPolicy::Refuse);
        let Ok(file) = writing else { return };
        // A second name may be that of a file which is none of the job's.
        if !file.metadata().is_ok_and(|metadata| metadata.nlink() == 1) {
            return;
        }
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if fallocate(&file, punch, 0, self.offset.cast_signed()).is_err() {
            // A file system without holes: what was not read yet goes too.
            let _ = file.set_len(0);
        }
    }

    fn take_in(&mut self, bytes: &[u8]) -> Vec<Report> {
        let mut reports = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.is_skipping {
                self.partial.extend_from_slice(piece);
                self.is_skipping = self.partial.len() > LONGEST_LINE + 1;
            }
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.partial);
                if !std::mem::take(&mut self.is_skipping) {
                    reports.extend(Report::from_line(&line[..line.len() - 1]));
                }
            } else if self.is_skipping {
                self.partial.clear();
            }
        }
        only_news(reports)
    }
}

/// A rank that is fast says much; what a later report replaces is dropped.
fn only_news(reports: Vec<Report>) -> Vec<Report> {
    let mut seen = Vec::new();
    let mut kept: Vec<Report> = Vec::new();
    for report in reports.into_iter().rev() {
        let kind = std::mem::discriminant(&report);
        let most = if matches!(report, Report::Step(_)) { MOST_STEPS } else { 1 };
        if seen.iter().filter(|other| **other == kind).count() < most {
            seen.push(kind);
            kept.push(report);
        }
    }
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Write;

    use bedplate_report::Checkpoint;
    use proptest::prelude::*;

    fn file() -> ReportFile {
        ReportFile::new(PathBuf::new())
    }

    fn progress(step: u64) -> Report {
        Report::Progress { step }
    }

    #[test]
    fn the_last_report_of_each_kind_is_passed_on() {
        let checkpoint = Report::Checkpoint(Checkpoint { step: 5, path: None });
        for (text, expected) in [
            ("progress 7\nprogress 8\n", vec![progress(8)]),
            ("checkpoint 5\nnonsense\nprogress 6\n", vec![checkpoint, progress(6)]),
            ("progress 7", vec![]),
        ] {
            assert_eq!(file().take_in(text.as_bytes()), expected, "{text:?}");
        }
        let step = |step| format!("{{\"version\":1,\"report\":\"step\",\"step\":{step},\"seconds\":1}}\n");
        let steps: Vec<Option<u64>> = file()
            .take_in((1..=40).map(step).collect::<String>().as_bytes())
            .iter()
            .map(Report::progress)
            .collect();
        assert_eq!(steps, (9..=40).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn a_line_that_comes_in_parts_is_read_once_it_is_whole() {
        let mut file = file();
        assert_eq!(file.take_in(b"progress 1"), []);
        assert_eq!(file.take_in(b"2\nprog"), [progress(12)]);
        assert_eq!(file.take_in(b"ress 13\n"), [progress(13)]);
    }

    #[test]
    fn the_rest_of_a_line_that_is_too_long_is_no_line() {
        let mut file = file();
        for _ in 0..100 {
            assert_eq!(file.take_in(&[b'x'; 4096]), []);
        }
        assert!(file.partial.len() <= LONGEST_LINE + 4097);
        assert_eq!(file.take_in(b"\nprogress 3\n"), [progress(3)]);
    }

    #[test]
    fn a_pipe_or_a_link_in_the_place_of_the_file_is_not_read() {
        let folder = std::env::temp_dir().join(format!("bedplate-reports-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (pipe, link) = (folder.join("pipe"), folder.join("link"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(folder.join("real"), "progress 1\n").unwrap();
        std::os::unix::fs::symlink(folder.join("real"), &link).unwrap();
        assert_eq!(ReportFile::new(pipe).read(), []);
        assert_eq!(ReportFile::new(link).read(), []);
        assert_eq!(ReportFile::new(folder.join("real")).read(), [progress(1)]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_flood_of_reports_keeps_little_of_the_disk_and_the_newest_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flood");
        let mut reports = ReportFile::new(path.clone());
        let mut flood = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let lines = "progress 1\n".repeat(400_000);
        for _ in 0..20 {
            flood.write_all(lines.as_bytes()).unwrap();
        }
        assert_eq!(reports.read(), [progress(1)]);
        flood.write_all(b"progress 2\n").unwrap();
        while reports.read() != [progress(2)] {}
        let metadata = path.metadata().unwrap();
        assert!(metadata.len() > MOST_KEPT && metadata.blocks() * 512 < 2 * MOST_BYTES + (1 << 20));
        // A file with a second name, which may be somebody else's, is left as it is.
        std::fs::hard_link(&path, folder.path().join("second")).unwrap();
        for _ in 0..20 {
            flood.write_all(lines.as_bytes()).unwrap();
        }
        reports.read();
        assert!(path.metadata().unwrap().blocks() * 512 > MOST_KEPT);
    }

    proptest! {
        #[test]
        fn any_bytes_cut_anywhere_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..200_usize) {
            let at = at.min(bytes.len());
            let (mut parts, mut whole) = (file(), file());
            let mut read = parts.take_in(&bytes[..at]);
            read.extend(parts.take_in(&bytes[at..]));
            prop_assert_eq!(only_news(read), whole.take_in(&bytes));
        }
    }
}
