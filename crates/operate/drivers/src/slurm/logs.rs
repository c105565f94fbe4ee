//! What ranks write, from the files that the job names. They can be read where the file system is shared.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use bedplate_host::open_regular;
use bedplate_job::{ArrayMember, FileNames};

use super::job::JobRecord;
use super::submit::differs;
use super::{Slurm, refused};
use crate::{DriverError, JobId, LogQuery, OutputStream};

/// Between two looks at a log that is followed, and how many of them to a question about the job.
const LOOK: Duration = Duration::from_millis(200);
const LOOKS_PER_QUESTION: u32 = 10;
/// What Slurm calls the file of a job that names none.
const USUAL: &str = "slurm-%j.out";
const USUAL_OF_ARRAY: &str = "slurm-%A_%a.out";

/// The file in which a rank's output is.
enum LogFile {
    At(PathBuf),
    /// It is in the file of rank 0, or in that of standard output.
    Elsewhere(String),
}

impl Slurm {
    pub(super) fn copy_log(
        &self,
        id: &JobId,
        query: &LogQuery,
        to: &mut dyn Write,
    ) -> Result<u64, DriverError> {
        let record = self.record(id)?;
        if let Some(run) = query.run.filter(|run| *run != record.summary().life.runs && *run > 0) {
            let text =
                format!("Slurm keeps one file for all runs of a job, so there is none for run {run} alone");
            return Err(refused("no_such_run", text));
        }
        if query.rank >= record.tasks {
            return Err(refused("no_such_rank", format!("job {id} has {} ranks", record.tasks)));
        }
        let path = match log_file(&record, query)? {
            LogFile::At(path) => path,
            LogFile::Elsewhere(where_it_is) => {
                self.remark(where_it_is);
                return Ok(query.offset);
            }
        };
        let mut offset = query.offset;
        if !query.follow {
            return match copy_from(&path, &mut offset, to) {
                Ok(_) => Ok(offset),
                // It waits, or has started a moment ago.
                Err(error) if error.kind() == ErrorKind::NotFound && !record.state().is_final() => Ok(offset),
                Err(error) => Err(unreadable(&path, &error)),
            };
        }
        self.follow_log(id, &path, offset, to)
    }

    /// Copies what comes until the job has ended; a file that is not there yet has nothing.
    fn follow_log(
        &self,
        id: &JobId,
        path: &Path,
        mut offset: u64,
        to: &mut dyn Write,
    ) -> Result<u64, DriverError> {
        let mut looks = 0;
        loop {
            let mut has_ended = false;
            if looks % LOOKS_PER_QUESTION == 0 {
                // A silent controller does not end a log; what is there is shown until it answers again.
                has_ended = match self.record(id) {
                    Ok(record) => record.state().is_final(),
                    Err(error) if error.is_refusal() => return Err(error),
                    Err(_) => false,
                };
            }
            let copied = copy_from(path, &mut offset, to);
            match copied {
                Ok(Copied::ReaderGone) => return Ok(offset),
                Ok(Copied::All) | Err(_) if !has_ended => {}
                Ok(Copied::All) => return Ok(offset),
                Err(error) => return Err(unreadable(path, &error)),
            }
            looks += 1;
            thread::sleep(LOOK);
        }
    }
}

enum Copied {
    All,
    ReaderGone,
}

fn copy_from(path: &Path, offset: &mut u64, to: &mut dyn Write) -> std::io::Result<Copied> {
    let mut file = open_regular(path)?;
    // A file that was begun anew is read from its beginning.
    if file.metadata()?.len() < *offset {
        *offset = 0;
    }
    file.seek(SeekFrom::Start(*offset))?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => return Ok(Copied::All),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if to.write_all(&buffer[..count]).and_then(|()| to.flush()).is_err() {
            return Ok(Copied::ReaderGone);
        }
        *offset += count as u64;
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> DriverError {
    refused("unreadable_log", format!("{} cannot be read from here: {error}", path.display()))
}

fn log_file(record: &JobRecord, query: &LogQuery) -> Result<LogFile, DriverError> {
    let note = record.note();
    let of_tasks = match query.stream {
        OutputStream::Stdout => note.stdout,
        OutputStream::Stderr => note.stderr,
    };
    let usual = if record.array.is_some() { USUAL_OF_ARRAY } else { USUAL };
    let stdout = if record.stdout.is_empty() { usual } else { &record.stdout };
    let of_job = match query.stream {
        OutputStream::Stdout => stdout,
        OutputStream::Stderr if record.stderr.is_empty() || record.stderr == stdout => "",
        OutputStream::Stderr => &record.stderr,
    };
    let pattern = of_tasks.as_deref().unwrap_or(of_job);
    if record.directory.is_empty() && record.stdout.is_empty() {
        return Err(refused("no_log", "Slurm does not say any more where its output is".to_owned()));
    }
    if pattern.is_empty() {
        return Ok(LogFile::Elsewhere("its errors are in the same file as its output".to_owned()));
    }
    if query.rank > 0 && !differs(pattern) {
        let text = format!(
            "all ranks write into one file, which is shown for rank 0: {}",
            expanded(record, pattern, 0)?.display()
        );
        return Ok(LogFile::Elsewhere(text));
    }
    expanded(record, pattern, query.rank).map(LogFile::At)
}

/// The path that a pattern stands for, in the job's folder.
fn expanded(record: &JobRecord, pattern: &str, rank: u32) -> Result<PathBuf, DriverError> {
    let array =
        record.array.as_ref().and_then(|array| Some(ArrayMember { array: array.job, index: array.task? }));
    let per_node = record.tasks.div_ceil(record.nodes.len().max(1) as u32).max(1);
    let node = rank / per_node;
    let host = record.nodes.get(node as usize).map_or("", |name| name.as_str());
    let names = FileNames {
        job: record.id,
        array,
        name: &record.name,
        user: &record.user,
        host,
        node,
        task: rank,
        step: "0",
    };
    Ok(Path::new(&record.directory).join(names.expand(pattern)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::job::Array;
    use crate::slurm::note::Note;

    fn record() -> JobRecord {
        JobRecord {
            id: 12,
            name: "a".into(),
            user: "ada".into(),
            tasks: 4,
            nodes: vec!["n1".into(), "n2".into()],
            directory: "/home/ada".into(),
            ..JobRecord::default()
        }
    }

    fn path(record: &JobRecord, rank: u32, stream: OutputStream) -> String {
        match log_file(record, &LogQuery { rank, stream, ..LogQuery::default() }).unwrap() {
            LogFile::At(path) => path.display().to_string(),
            LogFile::Elsewhere(text) => text,
        }
    }

    #[test]
    fn files_are_found_as_slurm_names_them() {
        assert_eq!(path(&record(), 0, OutputStream::Stdout), "/home/ada/slurm-12.out");
        assert!(path(&record(), 1, OutputStream::Stdout).contains("for rank 0: /home/ada/slurm-12.out"));
        assert!(path(&record(), 0, OutputStream::Stderr).contains("same file"));
        let task =
            JobRecord { array: Some(Array { job: 9, task: Some(3), waiting: String::new() }), ..record() };
        assert_eq!(path(&task, 0, OutputStream::Stdout), "/home/ada/slurm-9_3.out");
        let named = JobRecord { stdout: "/logs/%x-%j.out".into(), stderr: "/logs/%j.err".into(), ..record() };
        assert_eq!(path(&named, 0, OutputStream::Stdout), "/logs/a-12.out");
        assert_eq!(path(&named, 0, OutputStream::Stderr), "/logs/12.err");
    }

    #[test]
    fn ranks_with_files_of_their_own_are_told_apart() {
        let note = Note { key: Some("k".into()), stdout: Some("logs/%j.%n.%t.%N".into()), ..Note::default() };
        let job = JobRecord { comment: note.write(), ..record() };
        assert_eq!(path(&job, 3, OutputStream::Stdout), "/home/ada/logs/12.1.3.n2");
    }
}
