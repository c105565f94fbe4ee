//! `GET /v1/events`

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bedplate_control::Notice;
use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::answer::{self, Answer, Body, with_header};
use super::call::ApiCall;
use super::error::ApiError;
use super::history;
use crate::hub::{NumberedNotice, Subscription};

/// A comment this often shows both sides that the other is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events on their way to the socket; the rest waits in the hub, up to its limit.
const AHEAD: usize = 64;

/// Which notices are wanted. Conditions that are absent hold for all.
struct Filter {
    jobs: Option<BTreeSet<u64>>,
    node: Option<String>,
}

impl Filter {
    fn admits(&self, notice: &Notice) -> bool {
        let (job, node) = match notice {
            Notice::Job { job, .. } => (Some(*job), None),
            Notice::Note(note) => (note.job, note.node.as_deref()),
        };
        let is_job = self.jobs.as_ref().is_none_or(|jobs| job.is_some_and(|job| jobs.contains(&job)));
        let is_node = self.node.as_ref().is_none_or(|wanted| node == Some(&wanted[..]));
        is_job && is_node
    }
}

pub(crate) async fn events(call: ApiCall) -> Result<Answer, ApiError> {
    let jobs = match call.query.text("job") {
        Some(label) => {
            Some(history::find_jobs(&call.app, label).await?.into_iter().map(|job| job.0).collect())
        }
        None => None,
    };
    let filter = Filter { jobs, node: call.query.text("node").map(str::to_owned) };
    let last = call.header("last-event-id").and_then(|id| id.parse().ok());
    let subscription = call.app.hub.subscribe(last);
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        tokio::select! {
            _ = tell(subscription, filter, &sender) => {}
            () = sender.closed() => {}
            () = call.app.ends() => {}
            () = call.app.tokens.lapses(call.identity()) => {}
        }
    });
    let answer = answer::typed(StatusCode::OK, "text/event-stream", Body::stream(receiver));
    Ok(with_header(answer, "cache-control", "no-store"))
}

/// Sends what was missed and what comes; ends when the client is gone or has fallen too far behind.
async fn tell(
    mut subscription: Subscription,
    filter: Filter,
    sender: &mpsc::Sender<Bytes>,
) -> Result<(), mpsc::error::SendError<Bytes>> {
    sender.send(Bytes::from_static(b": open\n\n")).await?;
    if subscription.has_gap {
        sender.send(Bytes::from_static(b"event: gap\ndata: {\"type\":\"gap\"}\n\n")).await?;
    }
    for event in subscription.missed.iter().filter(|event| filter.admits(&event.notice)) {
        sender.send(event_text(event)).await?;
    }
    loop {
        match timeout(KEEP_ALIVE, subscription.coming.recv()).await {
            Ok(Ok(event)) if filter.admits(&event.notice) => sender.send(event_text(&event)).await?,
            Ok(Ok(_)) => {}
            Ok(Err(RecvError::Lagged(_))) => {
                return sender
                    .send(Bytes::from_static(b"event: dropped\ndata: {\"type\":\"dropped\"}\n\n"))
                    .await;
            }
            Ok(Err(RecvError::Closed)) => return Ok(()),
            Err(_) => sender.send(Bytes::from_static(b": still here\n\n")).await?,
        }
    }
}

fn event_text(event: &Arc<NumberedNotice>) -> Bytes {
    let kind = match event.notice {
        Notice::Job { .. } => "job",
        Notice::Note(_) => "note",
    };
    format!("id: {}\nevent: {kind}\ndata: {}\n\n", event.id, event.data).into()
}
