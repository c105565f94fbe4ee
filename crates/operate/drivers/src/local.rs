//! A cluster of our own, driven through its daemon's HTTP API.
//!
//! Failures that pass (no daemon listens while it starts again, its disk or its queue is full) are waited out for a
//! few seconds. That is safe: a submission carries a key, and every other order changes nothing when it is given twice.

mod account;
mod events;

use std::io::{self, BufReader, Read, Write};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_control::wire::Chaos;
use bedplate_diag::Reason;
use bedplate_job::Job;
pub use bedplate_job::JobFormat;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::tls;
use crate::{
    Capability, ClusterEvent, ClusterPlace, ClusterView, Driver, DriverError, Explained, JobDetail, JobId,
    JobOrder, JobQuery, JobSummary, LogQuery, NodeDetail, NodeId, NodeSummary, RankPlace, See, Submitted,
    Watched,
};
pub use account::{Pruned, TokenMade, TokenView, UsageBy, UsageRow};
use bedplate_http::blocking::{Body, Caller, Connection, Request};

/// How long failures that pass are waited out.
const PATIENCE: Duration = Duration::from_secs(4);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long an ordinary answer may take.
const ANSWER: Duration = Duration::from_secs(60);
/// Jobs asked for at a time.
const PAGE: usize = 1000;
/// An answer beyond this is read no further.
const LARGEST_ANSWER: u64 = 256 << 20;

/// A client of a daemon. It keeps one connection; threads that ask at once have others.
pub struct Local {
    place: ClusterPlace,
    patience: Duration,
    answer: Duration,
    idle: Mutex<Vec<Connection>>,
}

/// The one form of the daemon's complaints.
#[derive(Deserialize)]
struct Complaint {
    error: ComplaintBody,
}

#[derive(Deserialize)]
struct ComplaintBody {
    #[serde(default)]
    code: String,
    message: String,
    #[serde(default)]
    help: Option<String>,
    #[serde(default)]
    reason: Option<Reason>,
}

impl Local {
    pub fn new(place: ClusterPlace) -> Self {
        Self { place, patience: PATIENCE, answer: ANSWER, idle: Mutex::new(Vec::new()) }
    }

    /// Waits out failures that pass for this long.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// No step of an answer may take longer than this.
    pub fn with_answer_within(mut self, answer: Duration) -> Self {
        self.answer = answer;
        self
    }

    pub fn place(&self) -> &ClusterPlace {
        &self.place
    }

    /// Submits a job file as it is.
    pub fn submit_text(&self, format: JobFormat, text: &str, key: &str) -> Result<Submitted, DriverError> {
        let headers = [("content-type", format.media_type()), ("idempotency-key", key)];
        let body = text.as_bytes();
        let submitted: Submitted =
            self.value(&Request { method: "POST", path: "/v1/jobs", headers: &headers, body })?;
        // The tasks of an array have numbers that follow each other.
        let first: u64 = submitted.id.as_str().parse().unwrap_or_default();
        let jobs =
            (first..first + u64::from(submitted.count)).map(|number| JobId(number.to_string())).collect();
        Ok(Submitted { jobs, ..submitted })
    }

    /// Whether a daemon answers; asks once.
    pub fn is_up(&self) -> bool {
        let request = Request { method: "GET", path: "/healthz", headers: &[], body: &[] };
        matches!(self.ask_once(&request), Ok(body) if body.status == 200)
    }

    pub fn usage(
        &self,
        by: UsageBy,
        since_ms: Option<u64>,
        user: Option<&str>,
    ) -> Result<Vec<UsageRow>, DriverError> {
        #[derive(Deserialize)]
        struct Answer {
            usage: Vec<UsageRow>,
        }
        let mut path = format!("/v1/usage?by={}", by.name());
        add(&mut path, "since", since_ms.map(|since| since.to_string()).as_deref());
        add(&mut path, "user", user);
        Ok(self.get::<Answer>(&path)?.usage)
    }

    /// Breaks something on a node on purpose.
    pub fn chaos(&self, node: &NodeId, chaos: &Chaos) -> Result<(), DriverError> {
        let body = serde_json::to_value(chaos).expect("a chaos has text keys only");
        self.post(&format!("{}/chaos", node_path(node)), Some(&body)).map(drop)
    }

    /// Lets jobs go that ended longer ago than `older_than_s`, and all but the newest `keep`; without either, what is beyond
    /// the limits of the site.
    pub fn prune(
        &self,
        older_than_s: Option<u64>,
        keep: Option<u64>,
        dry_run: bool,
    ) -> Result<Pruned, DriverError> {
        let body = json!({ "older_than_s": older_than_s, "keep": keep, "dry_run": dry_run }).to_string();
        let headers = [("content-type", "application/json")];
        let path = "/v1/history/prune";
        self.value(&Request { method: "POST", path, headers: &headers, body: body.as_bytes() })
    }

    pub fn tokens(&self) -> Result<Vec<TokenView>, DriverError> {
        #[derive(Deserialize)]
        struct Answer {
            tokens: Vec<TokenView>,
        }
        Ok(self.get::<Answer>("/v1/tokens")?.tokens)
    }

    pub fn make_token(
        &self,
        user: &str,
        role: &str,
        expires_s: Option<u64>,
    ) -> Result<TokenMade, DriverError> {
        let mut body = json!({ "user": user, "role": role });
        if let Some(expires_s) = expires_s {
            body["expires_s"] = json!(expires_s);
        }
        let text = body.to_string();
        let headers = [("content-type", "application/json")];
        self.value(&Request { method: "POST", path: "/v1/tokens", headers: &headers, body: text.as_bytes() })
    }

    pub fn revoke_token(&self, id: &str) -> Result<(), DriverError> {
        let path = format!("/v1/tokens/{}", encoded(id));
        self.raw(&Request { method: "DELETE", path: &path, headers: &[], body: &[] }).map(drop)
    }

    /// Ends the daemon, and with `stops_jobs` all jobs and agents.
    pub fn shut_down(&self, stops_jobs: bool) -> Result<(), DriverError> {
        let jobs = if stops_jobs { "stop" } else { "leave" };
        self.post("/v1/shutdown", Some(&json!({ "jobs": jobs }))).map(drop)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, DriverError> {
        self.value(&Request { method: "GET", path, headers: &[], body: &[] })
    }

    fn post(&self, path: &str, body: Option<&Value>) -> Result<Vec<u8>, DriverError> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let headers: &[(&str, &str)] =
            if body.is_some() { &[("content-type", "application/json")] } else { &[] };
        self.raw(&Request { method: "POST", path, headers, body: text.as_bytes() })
    }

    fn value<T: DeserializeOwned>(&self, request: &Request<'_>) -> Result<T, DriverError> {
        let bytes = self.raw(request)?;
        serde_json::from_slice(&bytes).map_err(|error| DriverError::NotUnderstood {
            server: self.place.url(),
            reason: format!("{} {}: {error}", request.method, request.path),
        })
    }

    /// The whole body of an answer that is no complaint.
    fn raw(&self, request: &Request<'_>) -> Result<Vec<u8>, DriverError> {
        let body = self.open(request)?;
        self.read_whole(body).map_err(|source| self.unreachable(source))
    }

    fn read_whole(&self, mut body: Body) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut body).take(LARGEST_ANSWER).read_to_end(&mut bytes)?;
        if let Some(connection) = body.into_connection() {
            self.idle.lock().expect("no panic while it is held").push(connection);
        }
        Ok(bytes)
    }

    /// An answer that is no complaint; what passes has been waited out.
    fn open(&self, request: &Request<'_>) -> Result<Body, DriverError> {
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.ask_once(request) {
                Ok(body) if body.status < 400 => return Ok(body),
                Ok(body) => self.complaint(body),
                Err(source) if source.kind() == io::ErrorKind::InvalidData => {
                    return Err(DriverError::NotUnderstood {
                        server: self.place.url(),
                        reason: source.to_string(),
                    });
                }
                Err(source) => self.unreachable(source),
            };
            let passes = matches!(error, DriverError::Unreachable { .. } | DriverError::Busy { .. });
            if !passes || began.elapsed() + pause > self.patience {
                return Err(error);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Asks on a kept connection, or on a new one when that has been closed meanwhile.
    fn ask_once(&self, request: &Request<'_>) -> io::Result<Body> {
        let token = format!("Bearer {}", self.place.token);
        let credentials = [("authorization", token.as_str())];
        let caller = Caller { host: &self.place.address, credentials: &credentials };
        let kept = self.idle.lock().expect("no panic while it is held").pop();
        if let Some(connection) = kept
            && let Ok(body) = connection.ask(request, &caller)
        {
            return Ok(body);
        }
        let fingerprint = self.place.fingerprint.as_deref();
        tls::open(&self.place.address, fingerprint, self.answer)?.ask(request, &caller)
    }

    fn complaint(&self, body: Body) -> DriverError {
        let status = body.status;
        let server = self.place.url();
        let bytes = self.read_whole(body).unwrap_or_default();
        let ComplaintBody { code, message, help, reason } = match serde_json::from_slice::<Complaint>(&bytes)
        {
            Ok(complaint) => complaint.error,
            Err(_) => {
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).trim().to_owned();
                let message = format!("status {status} {text}");
                ComplaintBody { code: String::new(), message, help: None, reason: None }
            }
        };
        match status {
            401 | 403 => DriverError::NotAllowed { message, help },
            429 | 503 => DriverError::Busy { server, status, message },
            500..=599 => DriverError::Fault { server, message },
            _ => DriverError::Refused { code, message, help, reason },
        }
    }

    fn unreachable(&self, source: io::Error) -> DriverError {
        DriverError::Unreachable { server: self.place.url(), source }
    }
}

impl Driver for Local {
    fn name(&self) -> String {
        format!("the cluster at {}", self.place.url())
    }

    fn capabilities(&self) -> &[Capability] {
        &Capability::ALL
    }

    fn submit(&self, job: &Job, key: &str) -> Result<Submitted, DriverError> {
        self.submit_text(JobFormat::Json, &job.to_json().to_string(), key)
    }

    fn jobs(&self, query: &JobQuery) -> Result<Vec<JobSummary>, DriverError> {
        #[derive(Deserialize)]
        struct Answer {
            jobs: Vec<JobSummary>,
            #[serde(default)]
            next: Option<u64>,
        }
        let mut path = format!("/v1/jobs?limit={}", query.limit.unwrap_or(PAGE).min(PAGE));
        let states: Vec<&str> = query.states.iter().map(|state| state.name()).collect();
        add(&mut path, "state", (!states.is_empty()).then(|| states.join(",")).as_deref());
        add(&mut path, "user", query.user.as_deref());
        add(&mut path, "account", query.account.as_deref());
        add(&mut path, "name", query.name.as_deref());
        add(&mut path, "ended", query.with_ended.then_some("true"));
        let mut jobs: Vec<JobSummary> = Vec::new();
        let mut after = None;
        while query.limit.is_none_or(|limit| jobs.len() < limit) {
            let mut page = path.clone();
            add(&mut page, "after", after.map(|after: u64| after.to_string()).as_deref());
            let answer: Answer = self.get(&page)?;
            jobs.extend(answer.jobs);
            if answer.next.is_none() || answer.next == after {
                break;
            }
            after = answer.next;
        }
        jobs.truncate(query.limit.unwrap_or(usize::MAX));
        Ok(jobs)
    }

    fn job(&self, id: &JobId) -> Result<JobDetail, DriverError> {
        self.get(&job_path(id))
    }

    fn order(&self, id: &JobId, order: JobOrder) -> Result<(), DriverError> {
        let path = job_path(id);
        let word = match order {
            JobOrder::Cancel => {
                let request = Request { method: "DELETE", path: &path, headers: &[], body: &[] };
                return self.raw(&request).map(drop);
            }
            JobOrder::Hold => "hold",
            JobOrder::Release => "release",
            JobOrder::Requeue => "requeue",
        };
        self.post(&format!("{path}/{word}"), None).map(drop)
    }

    fn explain(&self, id: &JobId) -> Result<Option<Explained>, DriverError> {
        let value: Value = self.get(&format!("{}/explain", job_path(id)))?;
        if value["wait"].is_null() {
            return Ok(None);
        }
        serde_json::from_value(value).map(Some).map_err(|error| DriverError::NotUnderstood {
            server: self.place.url(),
            reason: error.to_string(),
        })
    }

    fn watch(&self, watched: &Watched, see: See<'_>) -> Result<(), DriverError> {
        let mut path = "/v1/events?".to_owned();
        add(&mut path, "job", watched.job.as_ref().map(JobId::as_str));
        add(&mut path, "node", watched.node.as_ref().map(NodeId::as_str));
        let headers = [("accept", "text/event-stream")];
        let body = self.open(&Request { method: "GET", path: &path, headers: &headers, body: &[] })?;
        body.wait_forever().map_err(|source| self.unreachable(source))?;
        let mut stream = BufReader::new(body);
        let mut seen = ClusterEvent::Beat;
        while see(seen).is_continue() {
            let event = events::next_event(&mut stream).map_err(|source| self.unreachable(source))?;
            seen = match event {
                None => break,
                Some(event) if event.data.is_empty() => ClusterEvent::Beat,
                Some(event) => serde_json::from_str(&event.data).unwrap_or(ClusterEvent::Unknown),
            };
        }
        Ok(())
    }

    fn logs(&self, id: &JobId, query: &LogQuery, to: &mut dyn Write) -> Result<u64, DriverError> {
        let stream = query.stream.name();
        let mut path =
            format!("{}/logs?rank={}&stream={stream}&offset={}", job_path(id), query.rank, query.offset);
        add(&mut path, "run", query.run.map(|run| run.to_string()).as_deref());
        add(&mut path, "follow", query.follow.then_some("true"));
        let mut body = self.open(&Request { method: "GET", path: &path, headers: &[], body: &[] })?;
        let next: Option<u64> = body.header("bedplate-next-offset").and_then(|offset| offset.parse().ok());
        if query.follow {
            body.wait_forever().map_err(|source| self.unreachable(source))?;
        }
        let copied = self.copy(&mut body, to)?;
        if let Some(connection) = body.into_connection() {
            self.idle.lock().expect("no panic while it is held").push(connection);
        }
        // Of a long log an answer has a part.
        match next {
            Some(next) if !query.follow && copied > 0 && next > query.offset => {
                self.logs(id, &LogQuery { offset: next, ..query.clone() }, to)
            }
            next => Ok(next.unwrap_or(query.offset + copied)),
        }
    }

    fn ranks(&self, id: &JobId) -> Result<Vec<RankPlace>, DriverError> {
        self.get(&format!("{}/ranks", job_path(id)))
    }

    fn nodes(&self) -> Result<Vec<NodeSummary>, DriverError> {
        #[derive(Deserialize)]
        struct Answer {
            nodes: Vec<NodeSummary>,
        }
        Ok(self.get::<Answer>("/v1/nodes")?.nodes)
    }

    fn node(&self, id: &NodeId) -> Result<NodeDetail, DriverError> {
        self.get(&node_path(id))
    }

    fn drain(&self, node: &NodeId, reason: &str) -> Result<(), DriverError> {
        self.post(&format!("{}/drain", node_path(node)), Some(&json!({ "reason": reason }))).map(drop)
    }

    fn resume(&self, node: &NodeId) -> Result<(), DriverError> {
        self.post(&format!("{}/resume", node_path(node)), None).map(drop)
    }

    fn cluster(&self) -> Result<ClusterView, DriverError> {
        self.get("/v1/cluster")
    }
}

impl Local {
    /// Copies a body as it comes. A reader that has gone away ends it quietly.
    fn copy(&self, body: &mut Body, to: &mut dyn Write) -> Result<u64, DriverError> {
        let mut buffer = vec![0; 64 << 10];
        let mut copied = 0;
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => return Ok(copied),
                Ok(count) => count,
                Err(source) if source.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(self.unreachable(source)),
            };
            if to.write_all(&buffer[..count]).and_then(|()| to.flush()).is_err() {
                return Ok(copied);
            }
            copied += count as u64;
        }
    }
}

fn job_path(id: &JobId) -> String {
    format!("/v1/jobs/{}", encoded(id.as_str()))
}

fn node_path(id: &NodeId) -> String {
    format!("/v1/nodes/{}", encoded(id.as_str()))
}

/// Adds a parameter to a path, if it has a value.
fn add(path: &mut String, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        let joint = match path.chars().last() {
            Some('?' | '&') => "",
            _ if path.contains('?') => "&",
            _ => "?",
        };
        *path += &format!("{joint}{name}={}", encoded(value));
    }
}

/// Text as it may stand in a path or a query.
fn encoded(text: &str) -> String {
    let mut path = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b',' => {
                path.push(char::from(byte));
            }
            _ => path += &format!("%{byte:02X}"),
        }
    }
    path
}
