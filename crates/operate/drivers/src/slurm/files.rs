//! What ranks report, in files beside the job's own.
//!
//! A job that we submit finds in `BEDPLATE_REPORT` a file in the folder `.bedplate` of its working directory, which is on a
//! shared file system where the site has one. Its name is the key of the submission; ranks that are started with files
//! of their own (`bedplate launch`) put their number behind it. Whatever lies there was written by a job: only
//! regular files are read, and only so much of them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bedplate_host::open_regular;
use bedplate_report::{Checkpoint, LONGEST_LINE, Report, StepHistory};

use super::job::JobRecord;
use crate::observed;

const FOLDER: &str = ".bedplate";
/// Of a longer file the end is read.
const MOST: u64 = 64 << 20;
/// Ranks whose files are read.
const MOST_FILES: usize = 4096;

/// What the ranks of a job have told.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Told {
    pub(super) steps: Option<StepHistory>,
    pub(super) checkpoint: Option<Checkpoint>,
}

/// The file for the reports of a job; nothing where its folder cannot be made.
pub(super) fn make_report_path(directory: &Path, key: &str) -> Option<String> {
    let folder = directory.join(FOLDER);
    fs::create_dir_all(&folder).ok()?;
    folder.join(format!("{key}.report")).to_str().map(str::to_owned)
}

/// What a job's ranks have reported; nothing where its files cannot be read from here.
pub(super) fn reports(record: &JobRecord) -> Told {
    let Some(key) = record.note().key else { return Told::default() };
    let folder = Path::new(&record.directory).join(FOLDER);
    let mut told = Told::default();
    for (rank, path) in report_files(&folder, &key) {
        if let Ok(file) = open_regular(&path) {
            read_reports(rank, file, &mut told);
        }
    }
    told
}

/// The steps of a job that reports none, by the end of what it writes; nothing where that cannot be read from here.
pub(super) fn steps_in_output(record: &JobRecord) -> Option<StepHistory> {
    let mut file = open_regular(Path::new(&record.stdout)).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(observed::MOST))).ok()?;
    let mut output = Vec::new();
    file.take(observed::MOST).read_to_end(&mut output).ok()?;
    observed::steps_in(&output)
}

/// The files of a key with the ranks that write them, lowest first.
fn report_files(folder: &Path, key: &str) -> Vec<(u32, PathBuf)> {
    let begin = format!("{key}.report");
    let is_plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let entries = fs::read_dir(folder).ok().filter(|_| is_plain);
    let mut files: Vec<(u32, PathBuf)> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let rest = name.to_str()?.strip_prefix(&begin)?;
            let rank = if rest.is_empty() { 0 } else { rest.strip_prefix('-')?.parse().ok()? };
            Some((rank, entry.path()))
        })
        .take(MOST_FILES)
        .collect();
    files.sort();
    files
}

fn read_reports(rank: u32, mut file: File, told: &mut Told) {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    if length > MOST && file.seek(SeekFrom::Start(length - MOST)).is_err() {
        return;
    }
    let mut reader = BufReader::new(file.take(MOST));
    let mut history = told.steps.take().unwrap_or_default();
    let mut last = 0;
    let mut line = Vec::new();
    while let Ok(count) = (&mut reader).take(LONGEST_LINE as u64 + 1).read_until(b'\n', &mut line) {
        if count == 0 {
            break;
        }
        if line.pop() == Some(b'\n')
            && let Ok(report) = Report::from_line(&line)
        {
            if let Report::Step(step) = &report {
                if step.step <= last {
                    // The job came back: its newest run counts.
                    let StepHistory { predicted, predicted_by, .. } = history;
                    history = StepHistory { predicted, predicted_by, ..StepHistory::default() };
                }
                last = step.step;
            }
            if let Report::Checkpoint(checkpoint) = &report {
                told.checkpoint = Some(checkpoint.clone());
            }
            history.take(rank, &report);
        }
        line.clear();
    }
    told.steps = Some(history).filter(|history| !history.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::note::Note;

    #[test]
    fn the_newest_run_of_the_lowest_rank_is_told() {
        let folder = std::env::temp_dir().join(format!("bedplate-slurm-reports-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let path = make_report_path(&folder, "abc").unwrap();
        fs::write(&path, "").unwrap();
        let step = |step: u32, seconds: f64| {
            format!("{{\"version\":1,\"report\":\"step\",\"step\":{step},\"seconds\":{seconds}}}\n")
        };
        let first = format!("{}{}checkpoint 2 /c/2\n", step(1, 9.0), step(2, 9.0));
        let second = format!("{}{}garbage\n{}", step(1, 1.0), step(2, 3.0), "progress 3 with no end");
        fs::write(format!("{path}-0"), first + &second).unwrap();
        fs::write(format!("{path}-1"), step(1, 7.0)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", format!("{path}-2")).unwrap();
        let comment = Note { key: Some("abc".into()), ..Note::default() }.write();
        let record = JobRecord { comment, directory: folder.display().to_string(), ..JobRecord::default() };
        let told = reports(&record);
        let steps = told.steps.unwrap();
        assert_eq!((steps.rank, steps.steps, steps.mean_s), (0, 2, 2.0));
        assert_eq!(told.checkpoint.unwrap().path.as_deref(), Some("/c/2"));
        let other = JobRecord {
            comment: "bedplate key=../abc".into(),
            directory: record.directory,
            ..JobRecord::default()
        };
        assert_eq!(reports(&other), Told::default());
        fs::remove_dir_all(&folder).unwrap();
    }
}
