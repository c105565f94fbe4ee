//! Who used how many GPU-hours, and what ran when: from Slurm's accounting.

use std::collections::BTreeMap;

use bedplate_units::Date;

use super::job::JobRecord;
use super::transport::HistoryQuery;
use super::{Slurm, refused};
use crate::{DriverError, UsageBy, UsageRow};

impl Slurm {
    /// GPU-hours of the runs that began or went on since then.
    pub fn usage(
        &self,
        by: UsageBy,
        since_ms: Option<u64>,
        user: Option<&str>,
    ) -> Result<Vec<UsageRow>, DriverError> {
        let since_s = since_ms.unwrap_or(0) / 1000;
        let records = self.past(since_s, user)?;
        let now_s = super::now_s();
        let mut rows: BTreeMap<String, UsageRow> = BTreeMap::new();
        for record in &records {
            let Some(started) = record.started_s.filter(|_| !record.nodes.is_empty()) else { continue };
            let ended = record.ended_s.unwrap_or(now_s);
            let seconds = ended.saturating_sub(started.max(since_s));
            let row = rows.entry(key(by, record, started)).or_default();
            row.gpu_hours += record.gpus_asked as f64 * seconds as f64 / 3600.0;
            row.runs += 1;
        }
        let mut rows: Vec<UsageRow> = rows.into_iter().map(|(key, row)| UsageRow { key, ..row }).collect();
        if by != UsageBy::Day {
            rows.sort_by(|a, b| b.gpu_hours.total_cmp(&a.gpu_hours));
        }
        Ok(rows)
    }

    fn past(&self, since_s: u64, user: Option<&str>) -> Result<Vec<JobRecord>, DriverError> {
        let query = HistoryQuery { since_s, user: user.map(str::to_owned), ..HistoryQuery::default() };
        let records = self.ask(|transport| transport.history(&query))?;
        records.ok_or_else(|| {
            refused("no_accounting", "this Slurm keeps no accounting, so usage is unknown".to_owned())
        })
    }

    /// The jobs since a moment (seconds since 1970) as a trace for `replay`: the table that `sacct --parsable2` prints.
    pub fn trace(&self, since_s: u64) -> Result<String, DriverError> {
        let records = self.past(since_s, None)?;
        let mut text = TRACE.to_owned();
        for record in records {
            text += &trace_row(&record);
        }
        Ok(text)
    }
}

/// The columns of a trace, as `sacct` names them.
const TRACE: &str = "JobID|JobName|User|Account|Partition|QOS|State|Submit|Start|End|TimelimitRaw|NNodes|ReqTRES|\
                     AllocTRES|NodeList\n";

fn trace_row(record: &JobRecord) -> String {
    let moment = |seconds: Option<u64>| seconds.map_or("Unknown".to_owned(), |seconds| seconds.to_string());
    let plain = |text: &str| text.replace(['|', '\n'], " ");
    let fields = [
        record.label(),
        plain(&record.name),
        plain(&record.user),
        plain(&record.account),
        plain(&record.partition),
        plain(&record.qos),
        record.states.join("+"),
        moment(record.submitted_s),
        moment(record.started_s),
        moment(record.ended_s),
        record.limit_min.map(|minutes| minutes.to_string()).unwrap_or_default(),
        record.nodes_asked.to_string(),
        record.resources.clone(),
        record.resources.clone(),
        bedplate_topology::compress_hostlist(record.nodes.iter().map(String::as_str)),
    ];
    fields.join("|") + "\n"
}

fn key(by: UsageBy, record: &JobRecord, started_s: u64) -> String {
    match by {
        UsageBy::User => record.user.clone(),
        UsageBy::Account => record.account.clone(),
        UsageBy::Day => Date::of_day(started_s / 86_400).to_string(),
        UsageBy::Job => record.label(),
    }
}
