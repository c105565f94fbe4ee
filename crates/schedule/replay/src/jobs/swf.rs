//! The Standard Workload Format of the Parallel Workloads Archive: 18 fields, `;` before comments.
//!
//! A processor counts as a GPU. Fields used: submit time (2), run time (4), processors allocated (5) or,
//! where unknown, requested (8), requested time (9), status (11), user (12), group as account (13), queue as
//! QOS (15) and partition (16). Jobs without a run time or processors are left out and counted: they never ran.

use bedplate_diag::{Source, shown};
use bedplate_gangs::{Span, Time};

use super::lines::{JobLine, lines};
use super::{Ending, Size, Trace, TraceError, TraceJob};

const FIELDS: usize = 18;
const MOST_PROCESSORS: f64 = 10_000_000.0;

pub(crate) fn read(source: Source<'_>) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    let mut never_ran = 0;
    for line in lines(source).filter(|line| !line.text.starts_with(';')) {
        match job(line, &mut trace)? {
            Some(job) => trace.jobs.push(job),
            None => never_ran += 1,
        }
    }
    trace.remark("jobs have no run time or no processors: they never ran and are left out", never_ran);
    Ok(trace)
}

fn job(line: JobLine<'_>, trace: &mut Trace) -> Result<Option<TraceJob>, TraceError> {
    let fields = fields(line)?;
    let known = |index: usize| Some(fields[index]).filter(|value| *value >= 0.0);
    let processors = known(4).filter(|count| *count > 0.0).or(known(7)).filter(|count| *count > 0.0);
    let (Some(submit), Some(duration), Some(processors)) = (known(1), known(3), processors) else {
        return Ok(None);
    };
    if processors > MOST_PROCESSORS {
        return Err(line.bad(format!("{processors} processors are more than any cluster has")));
    }
    let seconds = |value: f64| (value * 1000.0) as u64;
    let mut job =
        TraceJob::new(Time(seconds(submit)), Span(seconds(duration)), Size::Gpus(processors.ceil() as u32));
    job.name = line.text.split_whitespace().next().unwrap_or("").to_owned();
    job.time_limit = known(8).filter(|limit| *limit > 0.0).map(|limit| Span(seconds(limit)));
    job.ending = match fields[10] as i64 {
        0 => Ending::Failed,
        5 => Ending::Cancelled,
        _ => Ending::Completed,
    };
    let name = |index: usize, prefix: &str| known(index).map(|number| format!("{prefix}{number}"));
    job.user = name(11, "user").map_or(0, |name| trace.users.place(&name));
    job.account = name(12, "group").map_or(0, |name| trace.accounts.place(&name));
    job.qos = name(14, "queue").map_or(0, |name| trace.qos.place(&name));
    job.partition = name(15, "partition").map_or(0, |name| trace.partitions.place(&name));
    Ok(Some(job))
}

fn fields(line: JobLine<'_>) -> Result<[f64; FIELDS], TraceError> {
    let mut fields = [-1.0; FIELDS];
    let mut count = 0;
    for text in line.text.split_whitespace() {
        let value: Option<f64> = text.parse().ok();
        let value = value.filter(|value| value.is_finite() && value.abs() < 1e12);
        let value = value.ok_or_else(|| line.bad(format!("`{}` is not a number", shown(text))))?;
        if let Some(field) = fields.get_mut(count) {
            *field = value;
        }
        count += 1;
    }
    if count == FIELDS { Ok(fields) } else { Err(line.bad(format!("it has {count} fields instead of 18"))) }
}
