//! The history of a Slurm: what `sacct --parsable2 --allocations --allusers` prints, header first.
//!
//! Needed are `JobID`, `Submit`, `Start`, `End` and `State`; read where they stand are `JobName`, `User`, `Account`,
//! `Partition`, `QOS`, `NNodes`, `AllocTRES` or `ReqTRES` (nodes, GPUs, CPUs and memory) and `TimelimitRaw` or `Timelimit`.
//! Moments are `2026-11-16T06:04:35` or seconds. Jobs that never started, still run, or were put back into the queue have
//! no duration to replay; they are left out and counted. Steps of jobs are passed over.

use bedplate_diag::{Source, shown};
use bedplate_document::slurm;
use bedplate_gangs::{Span, Time};

use super::lines::{JobLine, lines};
use super::{Ending, Size, Trace, TraceError, TraceJob};
use crate::timestamp::Timestamp;

/// Without these it is no history.
pub(crate) const COLUMNS: [&str; 5] = ["JobID", "Submit", "Start", "End", "State"];
const MOST_NODES: u64 = 1_000_000;

pub(crate) fn read(source: Source<'_>) -> Result<Trace, TraceError> {
    let mut lines = lines(source);
    let first = lines.next().ok_or(TraceError::Empty { place: source.whole() })?;
    let header = Header::read(first)?;
    let mut trace = Trace::default();
    let (mut waited, mut running, mut requeued) = (0, 0, 0);
    for line in lines {
        let row = header.row(line)?;
        if row.get("JobID").contains('.') {
            continue;
        }
        match job(&row, &mut trace)? {
            Outcome::Ran(job) => trace.jobs.push(*job),
            Outcome::NeverStarted => waited += 1,
            Outcome::StillRuns => running += 1,
            Outcome::Requeued => requeued += 1,
        }
    }
    trace.remark("jobs never started and are left out", waited);
    trace.remark("jobs have not ended yet and are left out", running);
    trace
        .remark("runs were put back into the queue and are left out; the last run of a job counts", requeued);
    Ok(trace)
}

enum Outcome {
    Ran(Box<TraceJob>),
    NeverStarted,
    StillRuns,
    Requeued,
}

fn job(row: &Row<'_>, trace: &mut Trace) -> Result<Outcome, TraceError> {
    let state = row.get("State").split([' ', '+']).next().unwrap_or_default();
    let submit =
        row.moment("Submit")?.ok_or_else(|| row.line.bad("the job has no moment of its submission"))?;
    if state == "REQUEUED" {
        return Ok(Outcome::Requeued);
    }
    let Some(start) = row.moment("Start")? else { return Ok(Outcome::NeverStarted) };
    let Some(end) = row.moment("End")? else { return Ok(Outcome::StillRuns) };
    if end < start {
        return Err(row.line.bad("the job ended before it started"));
    }
    let used = row.resources()?;
    let got_nothing = row.titles.contains(&"AllocTRES") && row.get("AllocTRES").is_empty();
    if used.nodes == 0 || got_nothing {
        return Ok(Outcome::NeverStarted);
    }
    let mut job = TraceJob::new(Time::seconds(submit), Span::seconds(end - start), used.size());
    job.name = row.get("JobID").to_owned();
    job.cpus_per_node = u16::try_from(used.cpus.div_ceil(used.nodes)).unwrap_or(u16::MAX);
    job.memory_mib_per_node = u32::try_from(used.memory_mib.div_ceil(used.nodes)).unwrap_or(u32::MAX);
    job.time_limit = row.limit()?;
    job.user = trace.users.place(row.get("User"));
    job.account = trace.accounts.place(row.get("Account"));
    job.qos = trace.qos.place(row.get("QOS"));
    job.partition = trace.partitions.place(row.get("Partition"));
    job.ending = match state {
        "COMPLETED" => Ending::Completed,
        "CANCELLED" => Ending::Cancelled,
        _ => Ending::Failed,
    };
    Ok(Outcome::Ran(Box::new(job)))
}

/// What a job had, all nodes together.
#[derive(Default)]
struct Resources {
    nodes: u64,
    gpus: u64,
    cpus: u64,
    memory_mib: u64,
}

impl Resources {
    fn size(&self) -> Size {
        let nodes = self.nodes as u32;
        match self.gpus % self.nodes {
            0 => Size::Nodes { nodes, gpus_per_node: (self.gpus / self.nodes).min(u16::MAX.into()) as u16 },
            _ => Size::Gpus(self.gpus.min(MOST_NODES) as u32),
        }
    }
}

/// Which column is where.
struct Header<'a> {
    titles: Vec<&'a str>,
    name: Option<usize>,
}

impl<'a> Header<'a> {
    fn read(line: JobLine<'a>) -> Result<Self, TraceError> {
        let titles: Vec<&str> = line.text.split('|').map(str::trim).collect();
        if let Some(column) = COLUMNS.into_iter().find(|column| !titles.contains(column)) {
            return Err(TraceError::MissingColumn { column, place: line.source.line(line.number) });
        }
        Ok(Self { name: titles.iter().position(|title| *title == "JobName"), titles })
    }

    /// A row; `sacct` does not escape the separator in names of jobs, so what is too much belongs to the name.
    fn row<'b>(&'b self, line: JobLine<'b>) -> Result<Row<'b>, TraceError> {
        let mut fields: Vec<&str> = line.text.split('|').map(str::trim).collect();
        let surplus = fields.len().saturating_sub(self.titles.len());
        if let Some(name) = self.name.filter(|_| surplus > 0) {
            fields.drain(name + 1..=name + surplus);
        }
        match fields.len() == self.titles.len() {
            true => Ok(Row { line, titles: &self.titles, fields }),
            false => {
                let (found, expected) = (fields.len(), self.titles.len());
                Err(line.bad(format!("it has {found} fields and the header {expected}")))
            }
        }
    }
}

struct Row<'a> {
    line: JobLine<'a>,
    titles: &'a [&'a str],
    fields: Vec<&'a str>,
}

impl Row<'_> {
    /// The value of a column; empty where there is none.
    fn get(&self, column: &str) -> &str {
        self.titles.iter().position(|title| *title == column).map_or("", |at| self.fields[at])
    }

    /// Seconds since 1970; nothing for Slurm's words for "not yet".
    fn moment(&self, column: &str) -> Result<Option<u64>, TraceError> {
        let text = self.get(column);
        if ["", "Unknown", "None", "N/A", "0"].contains(&text) {
            return Ok(None);
        }
        let seconds = Timestamp::parse(text).and_then(Timestamp::seconds);
        let wrong = || self.line.bad(format!("`{}` is not a time like 2026-11-16T06:04:35", shown(text)));
        seconds.map(Some).ok_or_else(wrong)
    }

    fn resources(&self) -> Result<Resources, TraceError> {
        let text = [self.get("AllocTRES"), self.get("ReqTRES")].into_iter().find(|text| !text.is_empty());
        let mut used = Resources::default();
        for (key, value) in text.unwrap_or_default().split(',').filter_map(|pair| pair.split_once('=')) {
            match key {
                "node" => used.nodes = self.count(value)?,
                "cpu" => used.cpus = self.count(value)?,
                "mem" => used.memory_mib = self.mebibytes(value)?,
                "gres/gpu" => used.gpus = self.count(value)?,
                _ => {}
            }
        }
        if used.nodes == 0 && !self.get("NNodes").is_empty() {
            used.nodes = self.count(self.get("NNodes"))?;
        }
        match used.nodes.max(used.gpus) <= MOST_NODES {
            true => Ok(used),
            false => Err(self.line.bad("it has more nodes or GPUs than any cluster")),
        }
    }

    fn count(&self, text: &str) -> Result<u64, TraceError> {
        text.parse().map_err(|_| self.line.bad(format!("`{}` is not a number", shown(text))))
    }

    /// `8000M`, `1.5G`, or plain mebibytes.
    fn mebibytes(&self, text: &str) -> Result<u64, TraceError> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = match &text[digits.len()..] {
            "K" => 1.0 / 1024.0,
            "" | "M" => 1.0,
            "G" => 1024.0,
            "T" => 1024.0 * 1024.0,
            "P" => 1024.0 * 1024.0 * 1024.0,
            _ => f64::NAN,
        };
        let size = digits.parse::<f64>().map_or(f64::NAN, |number| number * factor);
        match size.is_finite() && (0.0..1e15).contains(&size) {
            true => Ok(size.ceil() as u64),
            false => Err(self.line.bad(format!("`{}` is not a size", shown(text)))),
        }
    }

    /// Nothing where the job has no limit of its own.
    fn limit(&self) -> Result<Option<Span>, TraceError> {
        let none = ["", "UNLIMITED", "Partition_Limit", "INVALID", "NOT_SET"];
        let raw = self.get("TimelimitRaw");
        if !none.contains(&raw) {
            let minutes = self.count(raw)?;
            let limit = minutes.checked_mul(60).filter(|seconds| *seconds < 1 << 40);
            return limit
                .map(|seconds| Some(Span::seconds(seconds)))
                .ok_or_else(|| self.line.bad("its time limit is longer than any"));
        }
        let text = self.get("Timelimit");
        if none.contains(&text) {
            return Ok(None);
        }
        let wrong = || self.line.bad(format!("`{}` is not a time limit", shown(text)));
        slurm::seconds(text).map(|seconds| Some(Span::seconds(seconds))).map_err(|_| wrong())
    }
}
