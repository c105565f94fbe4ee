//! The Philly trace as a CSV of jobs: `timestamp,duration,num_gpus,gpu_time,cluster`.
//!
//! The virtual cluster becomes the account. The trace names neither users nor ends.

use bedplate_diag::{Source, shown};
use bedplate_gangs::{Span, Time};

use super::lines::{JobLine, columns, number, whole};
use super::{Size, Trace, TraceError, TraceJob};
use crate::timestamp::Timestamp;

pub(crate) const COLUMNS: [&str; 4] = ["timestamp", "duration", "num_gpus", "cluster"];

pub(crate) fn read(source: Source<'_>) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    for row in columns(source, COLUMNS)? {
        let (line, [timestamp, duration, gpus, account]) = row?;
        let submit = Timestamp::parse(&timestamp).and_then(Timestamp::seconds).ok_or_else(|| {
            line.bad(format!("`{}` is not a time like 2017-10-09 07:01:55", shown(&timestamp)))
        })?;
        let duration = Span((number(line, &duration, "duration")? * 1000.0) as u64);
        let size = Size::Gpus(gpus_of(line, &gpus)?);
        let account = trace.accounts.place(&account);
        let name = line.number.to_string();
        trace.jobs.push(TraceJob { name, account, ..TraceJob::new(Time::seconds(submit), duration, size) });
    }
    Ok(trace)
}

fn gpus_of(line: JobLine<'_>, field: &str) -> Result<u32, TraceError> {
    let gpus = whole(line, field, "number of GPUs", 1_000_000)?;
    if gpus == 0 { Err(line.bad("the job has no GPUs")) } else { Ok(gpus) }
}
