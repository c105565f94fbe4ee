//! A request passed on to a replica, and to another one as long as the client has seen nothing of an answer.

use std::sync::Arc;
use std::time::Duration;

use bedplate_http::client::{self, Call, ClientError, Reply};
use bedplate_http::header::{
    ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE,
    EXPECT, HOST, HeaderName, ORIGIN, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VARY,
};
use bedplate_http::{Answer, Body, HeaderMap, Method, StatusCode, typed};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::warn;

use super::asked::AskedRequest;
use super::front::Front;
use super::member::{RouterMember, Trip};
use super::stream::EventEnd;
use super::url::ReplicaUrl;

use crate::refusal::ApiError;

/// Events that may wait for a client that reads slowly; then the replica waits too.
/// Why a request to a replica that fails its checks is given up.
const OUT: &str = "was out of service";
const MOST_WAITING: usize = 16;
/// An answer that is no stream is not larger.
const MOST_WHOLE: usize = 64 << 20;
/// How long a replica that has fallen silent may still be so in the middle of an answer.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long the text of a refusal may take to come.
const REFUSAL: Duration = Duration::from_secs(5);

/// About one connection only, or set anew.
const NOT_PASSED: [HeaderName; 16] = [
    CONNECTION,
    HOST,
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    TE,
    TRAILER,
    UPGRADE,
    EXPECT,
    // Errors are added to streams, so these must not be compressed.
    ACCEPT_ENCODING,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    ORIGIN,
    ACCESS_CONTROL_ALLOW_ORIGIN,
    VARY,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// A request as it came.
pub(super) struct Passed {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Passed {
    fn call(&self, front: &Front, url: &ReplicaUrl) -> Call {
        let mut headers = passed(&self.headers);
        if let Some(key) = &front.replica_key {
            headers.insert(AUTHORIZATION, key.clone());
        }
        Call { method: self.method.clone(), path: url.path(&self.path), headers, body: self.body.clone() }
    }
}

fn passed(headers: &HeaderMap) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| !NOT_PASSED.contains(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Why an attempt came to nothing.
enum Failure {
    /// The replica takes no more just now.
    Refused(Answer),
    Lost(ClientError),
}

pub(super) async fn pass(
    front: &Arc<Front>,
    request: Passed,
    asked: AskedRequest,
) -> Result<Answer, ApiError> {
    let deadline = Instant::now() + front.request;
    let mut tried = Vec::new();
    let mut last = None;
    while tried.len() < front.tries.max(1) {
        let Some(trip) = front.members.choose(&asked, &tried)? else { break };
        let member = trip.member.clone();
        if last.is_some() {
            front.retries.add(1);
        }
        let seconds = front.request.as_secs();
        let attempt = timeout_at(deadline, attempt(front, &request, trip, deadline)).await;
        match attempt.map_err(|_| ApiError::TookTooLong { seconds })? {
            Ok(answer) => return Ok(answer),
            // Another replica would say as much.
            Err(Failure::Lost(error @ ClientError::TooLarge { .. })) => {
                member.counts.failures.add(1);
                return Err(ApiError::ReplicaLost { why: error.to_string() });
            }
            Err(failure) => last = Some(note(&member, failure)),
        }
        member.counts.given_up.add(1);
        tried.push(member.url.clone());
    }
    match last {
        Some(Failure::Refused(answer)) => Ok(answer),
        Some(Failure::Lost(error)) => Err(ApiError::ReplicaLost { why: error.to_string() }),
        None => Err(ApiError::NoReplica),
    }
}

fn note(member: &RouterMember, failure: Failure) -> Failure {
    if let Failure::Lost(error) = &failure {
        lost(member, error);
    }
    failure
}

/// Counts a failure, and against the replica too where it is the connection's.
fn lost(member: &RouterMember, error: &ClientError) {
    member.counts.failures.add(1);
    if matches!(error, ClientError::Unreachable { .. }) && member.fails(error) {
        warn!(replica = %member.url, "replica {} is out of service: it {error}", member.url);
    }
}

async fn attempt(
    front: &Arc<Front>,
    request: &Passed,
    mut trip: Trip,
    deadline: Instant,
) -> Result<Answer, Failure> {
    let member = trip.member.clone();
    let reply =
        unless_out(&member, client::call(&member.url.authority(), request.call(front, &member.url))).await;
    let mut reply = reply.map_err(Failure::Lost)?;
    if matches!(reply.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        let body = timeout(REFUSAL, reply.whole(MOST_WHOLE)).await.map(Result::unwrap_or_default);
        return Err(Failure::Refused(answer(&reply, Body::whole(body.unwrap_or_default()))));
    }
    if !is_stream(&reply) {
        let body = unless_out(&member, reply.whole(MOST_WHOLE)).await.map_err(Failure::Lost)?;
        member.goes_on();
        return Ok(answer(&reply, Body::whole(body)));
    }
    let first = unless_out(&member, reply.next()).await.map_err(Failure::Lost)?;
    member.goes_on();
    trip.begins();
    let (sender, receiver) = mpsc::channel(MOST_WAITING);
    let answer = answer(&reply, Body::stream(receiver));
    tokio::spawn(pump(front.clone(), trip, reply, first, Client { sender, deadline }));
    Ok(answer)
}

/// What a replica does, as long as it answers anything at all.
async fn unless_out<T>(
    member: &RouterMember,
    doing: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    tokio::select! {
        biased;
        done = doing => done,
        () = member.falls_silent() => Err(ClientError::GivenUp { why: OUT }),
    }
}

fn is_stream(reply: &Reply) -> bool {
    let kind = reply.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    reply.status.is_success() && kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

fn answer(reply: &Reply, body: Body) -> Answer {
    let mut answer = typed(reply.status, "application/json", body);
    *answer.headers_mut() = passed(&reply.headers);
    answer
}

/// Who reads a stream, and until when.
struct Client {
    sender: mpsc::Sender<Bytes>,
    deadline: Instant,
}

enum Next {
    Bytes(Bytes),
    End,
    Gone,
    Failed(ApiError),
}

impl Client {
    /// What comes next from the replica, unless the client goes away or the time is over.
    async fn next(&self, member: &RouterMember, reply: &mut Reply, seconds: u64) -> Next {
        let out = async {
            member.falls_silent().await;
            sleep(LAST_WORDS).await;
        };
        let came = tokio::select! {
            biased;
            () = self.sender.closed() => return Next::Gone,
            came = timeout_at(self.deadline, reply.next()) => came,
            () = out => Ok(Err(ClientError::GivenUp { why: OUT })),
        };
        match came {
            Err(_) => Next::Failed(ApiError::TookTooLong { seconds }),
            Ok(Err(error)) => Next::Failed(ApiError::ReplicaLost { why: error.to_string() }),
            Ok(Ok(Some(bytes))) => Next::Bytes(bytes),
            Ok(Ok(None)) => Next::End,
        }
    }

    async fn send(&self, bytes: Option<Bytes>) {
        if let Some(bytes) = bytes {
            // A client that has gone is noticed before the next bytes.
            let _ = self.sender.send(bytes).await;
        }
    }

    async fn fail(&self, error: &ApiError) {
        self.send(Some(format!("data: {}\n\ndata: [DONE]\n\n", error.to_json()).into())).await;
    }
}

/// Passes events on until the stream ends, breaks, or the client has gone, which ends the request on the replica.
async fn pump(front: Arc<Front>, trip: Trip, mut reply: Reply, first: Option<Bytes>, client: Client) {
    let seconds = front.request.as_secs();
    let mut events = EventEnd::default();
    let Some(first) = first else { return };
    client.send(events.push(first)).await;
    loop {
        match client.next(&trip.member, &mut reply, seconds).await {
            Next::Bytes(bytes) => {
                trip.member.goes_on();
                client.send(events.push(bytes)).await;
            }
            Next::End => return client.send(events.finish()).await,
            Next::Gone => return,
            Next::Failed(error) => {
                trip.member.counts.failures.add(1);
                return client.fail(&error).await;
            }
        }
    }
}
