//! `bedplate job logs JOB --all`: what every rank of every task writes, line by line, each with its author.
//!
//! Standing logs are copied one after the other. With `--follow` each has a thread, and lines appear as they come; a
//! line is never torn, because only whole ones are written.

use std::io::{self, Write};
use std::sync::Mutex;
use std::thread;

use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_drivers::{Driver, DriverError, JobId, LogQuery, OutputStream};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use super::Arguments;

/// Logs that can be followed at once: each has a thread and a connection.
const MOST_FOLLOWED: usize = 256;
/// What a rank writes without ever ending a line appears in pieces of this size.
const LONGEST_LINE: usize = 64 << 10;

/// One log of a job.
struct Log {
    job: JobId,
    rank: u32,
    stream: OutputStream,
}

impl Log {
    /// What stands before each of its lines: `12_3 rank 0 | …`, and `!` for standard error.
    fn prefix(&self, is_array: bool) -> String {
        let mark = if self.stream == OutputStream::Stderr { '!' } else { '|' };
        let task = if is_array { format!("{} ", self.job) } else { String::new() };
        format!("{task}rank {} {mark} ", self.rank)
    }
}

pub(super) fn run(arguments: &Arguments, driver: &dyn Driver, console: &mut Console) -> Result<(), CliError> {
    let tasks = tasks(driver, &arguments.job)?;
    let logs = logs(driver, &tasks)?;
    let query = |log: &Log| LogQuery {
        rank: log.rank,
        stream: log.stream,
        run: arguments.run,
        offset: 0,
        follow: arguments.follow,
    };
    if console.is_json() {
        let texts = logs.iter().map(|log| {
            let mut bytes = Vec::new();
            driver.logs(&log.job, &query(log), &mut bytes)?;
            let (stream, text) = (log.stream.name(), String::from_utf8_lossy(&bytes));
            Ok(json!({ "job": log.job, "rank": log.rank, "stream": stream, "text": text }))
        });
        return console.json(&json!(texts.collect::<Result<Vec<_>, DriverError>>()?));
    }
    let output = Mutex::new(io::stdout());
    let copy = |log: &Log| -> Result<io::Result<()>, DriverError> {
        let mut lines = Lines::new(log.prefix(tasks.len() > 1), &output);
        driver.logs(&log.job, &query(log), &mut lines)?;
        Ok(lines.end())
    };
    if !arguments.follow {
        return logs.iter().try_for_each(|log| copy(log)?.map_err(CliError::from_output));
    }
    if logs.len() > MOST_FOLLOWED {
        return Err(LogsError::TooMany { logs: logs.len() }.into());
    }
    let outcomes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = logs.iter().map(|log| scope.spawn(|| copy(log))).collect();
        threads.into_iter().map(|thread| thread.join().expect("copying does not panic")).collect()
    });
    outcomes.into_iter().try_for_each(|outcome| outcome?.map_err(CliError::from_output))
}

/// The job itself, or every task of an array.
fn tasks(driver: &dyn Driver, job: &JobId) -> Result<Vec<JobId>, DriverError> {
    let detail = driver.job(job)?;
    Ok(match detail.tasks.is_empty() {
        true => vec![job.clone()],
        false => detail.tasks.into_iter().map(|task| task.label).collect(),
    })
}

/// Every log there is so far: a task that has not started has none.
fn logs(driver: &dyn Driver, tasks: &[JobId]) -> Result<Vec<Log>, DriverError> {
    let mut logs = Vec::new();
    for job in tasks {
        for place in driver.ranks(job)? {
            let log = |stream| Log { job: job.clone(), rank: place.rank, stream };
            logs.extend([log(OutputStream::Stdout), log(OutputStream::Stderr)]);
        }
    }
    Ok(logs)
}

/// Passes on whole lines, each with a prefix.
struct Lines<'a, W: Write> {
    prefix: String,
    begun: Vec<u8>,
    output: &'a Mutex<W>,
}

impl<'a, W: Write> Lines<'a, W> {
    fn new(prefix: String, output: &'a Mutex<W>) -> Self {
        Self { prefix, begun: Vec::new(), output }
    }

    /// The last line too, ended or not.
    fn end(mut self) -> io::Result<()> {
        if self.begun.is_empty() { Ok(()) } else { self.pass_on(self.begun.len(), false) }
    }

    fn pass_on(&mut self, length: usize, is_ended: bool) -> io::Result<()> {
        let mut line = self.prefix.clone().into_bytes();
        line.extend(self.begun.drain(..length));
        if !is_ended {
            line.push(b'\n');
        }
        let mut output = self.output.lock().expect("writing does not panic");
        output.write_all(&line)?;
        output.flush()
    }
}

impl<W: Write> Write for Lines<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begun.extend_from_slice(bytes);
        while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
            self.pass_on(end + 1, true)?;
        }
        while self.begun.len() >= LONGEST_LINE {
            self.pass_on(LONGEST_LINE, false)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
enum LogsError {
    #[error("the job has {logs} logs, and {MOST_FOLLOWED} can be followed at once")]
    TooMany { logs: usize },
}

pages! { pub(crate) PAGES "logs":
    TOO_MANY "too-many" User
        "`job logs --all --follow` keeps a connection for every rank and stream, and the job has more of them than one client should hold."
        "follow one rank (`--rank 3`), or read what there is without `--follow`"
}

impl Diagnostic for LogsError {
    fn page(&self) -> &'static Page {
        &TOO_MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_they_arrive() {
        let output = Mutex::new(Vec::new());
        let log = Log { job: "12_3".into(), rank: 7, stream: OutputStream::Stderr };
        let mut lines = Lines::new(log.prefix(true), &output);
        for piece in ["on", "e\ntw", "o\n", "\n", "three"] {
            lines.write_all(piece.as_bytes()).unwrap();
        }
        lines.end().unwrap();
        let text = String::from_utf8(output.into_inner().unwrap()).unwrap();
        assert_eq!(text, "12_3 rank 7 ! one\n12_3 rank 7 ! two\n12_3 rank 7 ! \n12_3 rank 7 ! three\n");
    }

    #[test]
    fn a_line_without_an_end_is_held_in_pieces() {
        let output = Mutex::new(Vec::new());
        let mut lines = Lines::new("| ".into(), &output);
        lines.write_all(&vec![b'x'; 2 * LONGEST_LINE + 1]).unwrap();
        assert_eq!(lines.begun.len(), 1);
        lines.end().unwrap();
        assert_eq!(output.into_inner().unwrap().iter().filter(|byte| **byte == b'\n').count(), 3);
    }
}
