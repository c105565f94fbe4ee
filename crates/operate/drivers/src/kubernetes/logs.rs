//! What a rank writes, from the log of its pod. Ranks of one pod share its log, and so do output and errors.

use std::io::{self, Write};

use bedplate_kubernetes::KubernetesError;
use bedplate_kubernetes::kube::core::subresource::LogParams;
use bedplate_report::StepHistory;
use futures_util::AsyncReadExt;

use super::record::{Record, text};
use super::server::{Kind, Server};
use super::{Kubernetes, refused};
use crate::observed::{MOST, steps_in};
use crate::{DriverError, LogQuery};

/// Lines in which a trainer has told of its steps.
const LAST_LINES: i64 = 2_000;

impl Kubernetes {
    /// The steps of a running job by the end of its first rank's output; nothing where that cannot be had.
    pub(super) fn steps(&self, record: &Record) -> Option<StepHistory> {
        let rank = record.ranks().first().map(|(place, _)| place.rank)?;
        let query = LogQuery { rank, ..LogQuery::default() };
        let mut output = Vec::new();
        self.copy_part(record, &query, Some(LAST_LINES), &mut output).ok()?;
        steps_in(&output)
    }

    pub(super) fn copy_log(
        &self,
        record: &Record,
        query: &LogQuery,
        to: &mut dyn Write,
    ) -> Result<u64, DriverError> {
        self.copy_part(record, query, None, to)
    }

    fn copy_part(
        &self,
        record: &Record,
        query: &LogQuery,
        last_lines: Option<i64>,
        to: &mut dyn Write,
    ) -> Result<u64, DriverError> {
        let (id, ranks) = (record.id(), record.ranks());
        let found = ranks.iter().find(|(place, _)| place.rank == query.rank);
        let Some((_, pod)) = found else {
            let text = match ranks.is_empty() {
                true => format!("job {id} has no pods now, and their logs went with them"),
                false => format!("job {id} has {} ranks and no rank {}", ranks.len(), query.rank),
            };
            return Err(refused("no_such_rank", text));
        };
        let parameters = LogParams {
            container: pod["spec"]["containers"][0]["name"].as_str().map(str::to_owned),
            follow: query.follow,
            tail_lines: last_lines,
            limit_bytes: last_lines.map(|_| MOST as i64),
            ..LogParams::default()
        };
        let name = text(&pod["metadata"]["name"]);
        let request = Server::requests(Kind::Pods, record.namespace()).logs(name, &parameters);
        let request = self.server.checked(request)?;
        let client = self.server.connection.client();
        let stream = self.server.connection.ask(async move { client.request_stream(request).await });
        let mut stream = Box::pin(stream.map_err(|error| without_log(error, name))?);
        let mut copy = Copy { skip: query.offset, written: 0, to };
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = self.server.connection.wait(stream.read(&mut bytes));
            match read {
                Ok(0) => return Ok(query.offset.max(copy.written)),
                Ok(count) => copy
                    .add(&bytes[..count])
                    .map_err(|source| DriverError::State { path: "the log".into(), source })?,
                Err(source) => {
                    return Err(DriverError::Unreachable {
                        server: self.server.connection.server().to_owned(),
                        source,
                    });
                }
            }
        }
    }
}

/// Passes on what lies behind the place where the last reading ended.
struct Copy<'a> {
    skip: u64,
    written: u64,
    to: &'a mut dyn Write,
}

impl Copy<'_> {
    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        let old = self.skip.saturating_sub(self.written).min(bytes.len() as u64);
        self.written += bytes.len() as u64;
        self.to.write_all(&bytes[old as usize..])?;
        self.to.flush()
    }
}

/// The server asks the node for a log; where there is no answer it says so in many ways.
fn without_log(error: KubernetesError, pod: &str) -> DriverError {
    match error {
        KubernetesError::Refused { status, .. } => {
            refused("no_log", format!("the server cannot give the log of pod {pod}: {}", status.message))
        }
        other => other.into(),
    }
}
