//! Slurm by its REST server.
//!
//! What it can do and how it calls things is read from its OpenAPI document when it is first needed. A token goes into
//! the header of a request and nowhere else.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use bedplate_http::blocking::{Caller, Connection, Request};
use serde_json::{Value, json};

use super::complaint::Complaint;
use super::error::SlurmError;
use super::fields;
use super::job::JobRecord;
use super::node::NodeRecord;
use super::openapi::OpenApi;
use super::past;
use super::site::{Partition, Qos, Share};
use super::transport::{Ability, HistoryQuery, SlurmTransport, Submission};
use super::value::{number, text};
use crate::tls;
use crate::{DriverError, JobId, JobOrder};

/// An answer beyond this is read no further.
const LARGEST_ANSWER: u64 = 256 << 20;
/// Accounting looks through years of jobs.
const SLOW: u32 = 3;

/// Where slurmrestd listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    Socket(PathBuf),
    Address { address: String, fingerprint: Option<String> },
}

pub(super) struct Rest {
    endpoint: Endpoint,
    /// As people write it.
    place: String,
    /// Who asks, and the JWT that says so.
    token: Option<(String, String)>,
    patience: Duration,
    idle: Mutex<Vec<Connection>>,
    api: OnceLock<OpenApi>,
}

/// An answer: its status, and the JSON that it has.
struct Answer {
    status: u16,
    value: Value,
}

impl Rest {
    pub(super) fn new(
        endpoint: Endpoint,
        place: String,
        token: Option<(String, String)>,
        patience: Duration,
    ) -> Self {
        Self { endpoint, place, token, patience, idle: Mutex::default(), api: OnceLock::new() }
    }

    /// The document of the server, asked for once.
    pub(super) fn api(&self) -> Result<&OpenApi, DriverError> {
        if let Some(api) = self.api.get() {
            return Ok(api);
        }
        let mut answer = self.ask("GET", "/openapi/v3", None, self.patience)?;
        if answer.status == 404 {
            answer = self.ask("GET", "/openapi.json", None, self.patience)?;
        }
        self.check(&answer)?;
        let api = OpenApi::read(&answer.value)
            .ok_or_else(|| self.not_understood("its OpenAPI document describes no Slurm".to_owned()))?;
        Ok(self.api.get_or_init(|| api))
    }

    fn slurm(&self, path: &str) -> Result<String, DriverError> {
        Ok(format!("/slurm/{}{path}", self.api()?.version))
    }

    /// A value of the controller; complaints are errors.
    fn get(&self, path: &str) -> Result<Value, DriverError> {
        let answer = self.ask("GET", &self.slurm(path)?, None, self.patience)?;
        self.check(&answer)?;
        Ok(answer.value)
    }

    fn list<T>(
        &self,
        path: &str,
        key: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, DriverError> {
        let value = self.get(path)?;
        let list =
            value[key].as_array().ok_or_else(|| self.not_understood(format!("GET {path} lists no {key}")))?;
        Ok(list.iter().filter_map(read).collect())
    }

    /// A value of accounting; nothing where the site keeps none or the server does not serve it.
    fn account(&self, path: &str) -> Result<Option<Value>, DriverError> {
        let Some(version) = &self.api()?.accounting else { return Ok(None) };
        let answer = match self.ask("GET", &format!("/slurmdb/{version}{path}"), None, self.patience * SLOW) {
            Err(DriverError::Slurm(SlurmError::TooSlow { what, seconds })) => {
                let message = format!("{what} has not answered within {seconds} s");
                return Err(SlurmError::Accounting { message }.into());
            }
            other => other?,
        };
        match complaint(&answer) {
            None => Ok(Some(answer.value)),
            Some((Complaint::NoAccounting, _)) => Ok(None),
            Some((_, message)) if message.contains("Nothing found") => Ok(Some(json!({ "jobs": [] }))),
            Some((Complaint::NotAllowed, message)) => Err(Complaint::NotAllowed.error(message)),
            Some((_, message)) => Err(SlurmError::Accounting { message }.into()),
        }
    }

    fn check(&self, answer: &Answer) -> Result<(), DriverError> {
        match complaint(answer) {
            None => Ok(()),
            // Some versions do not say that it is the token.
            Some((Complaint::Other, message))
                if self.token.is_some() && message.starts_with("Unspecified error") =>
            {
                Err(Complaint::Other.error(format!("{message} (the token may be wrong or have expired)")))
            }
            Some((kind, message)) => Err(kind.error(message)),
        }
    }

    fn not_understood(&self, reason: String) -> DriverError {
        SlurmError::NotUnderstood { what: format!("slurmrestd at {}", self.place), reason }.into()
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Answer, DriverError> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let headers: &[(&str, &str)] = match body {
            Some(_) => &[("content-type", "application/json"), ("accept", "application/json")],
            None => &[("accept", "application/json")],
        };
        let request = Request { method, path, headers, body: text.as_bytes() };
        let began = Instant::now();
        self.exchange(&request, patience).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData => self.not_understood(source.to_string()),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock if began.elapsed() >= patience / 2 => {
                let what = format!("slurmrestd at {}", self.place);
                SlurmError::TooSlow { what, seconds: patience.as_secs() }.into()
            }
            _ => SlurmError::Rest { place: self.place.clone(), source }.into(),
        })
    }

    /// On a kept connection where there is one and the request may be repeated, else on a new one.
    fn exchange(&self, request: &Request<'_>, patience: Duration) -> io::Result<Answer> {
        let kept = self.idle.lock().expect("no panic while it is held").pop();
        if let Some(connection) = kept.filter(|_| request.method == "GET")
            && let Ok(answer) = self.exchange_on(connection, request, patience)
        {
            return Ok(answer);
        }
        let connection = match &self.endpoint {
            Endpoint::Socket(path) => Connection::open_socket(path, patience)?,
            Endpoint::Address { address, fingerprint } => {
                tls::open(address, fingerprint.as_deref(), patience)?
            }
        };
        self.exchange_on(connection, request, patience)
    }

    fn exchange_on(
        &self,
        connection: Connection,
        request: &Request<'_>,
        patience: Duration,
    ) -> io::Result<Answer> {
        let host = match &self.endpoint {
            Endpoint::Socket(_) => "localhost",
            Endpoint::Address { address, .. } => address,
        };
        let credentials: Vec<(&str, &str)> = match &self.token {
            Some((user, token)) => vec![("x-slurm-user-name", user), ("x-slurm-user-token", token)],
            None => Vec::new(),
        };
        let deadline = Instant::now() + patience;
        let mut body = connection.ask(request, &Caller { host, credentials: &credentials })?;
        let status = body.status;
        let bytes = read_until(&mut body, deadline)?;
        if let Some(connection) = body.into_connection() {
            self.idle.lock().expect("no panic while it is held").push(connection);
        }
        let value = match serde_json::from_slice(&bytes) {
            Ok(value) => value,
            // Refusals of the server itself are plain text.
            Err(_) if status >= 400 => {
                Value::String(String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).trim().to_owned())
            }
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
        };
        Ok(Answer { status, value })
    }
}

/// The whole body, however slowly it drips, or none after the deadline.
fn read_until(body: &mut impl Read, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match body.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if bytes.len() as u64 > LARGEST_ANSWER {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is longer than any of Slurm's can be",
            ));
        }
    }
}

/// What an answer complains about.
fn complaint(answer: &Answer) -> Option<(Complaint, String)> {
    if answer.status == 401 || answer.status == 403 {
        let message =
            "slurmrestd does not accept who asks; the token in SLURM_JWT or the token file may have expired"
                .to_owned();
        return Some((Complaint::NotAllowed, message));
    }
    let first = answer.value["errors"].as_array().and_then(|errors| errors.first());
    let Some(error) = first else {
        return (answer.status >= 400).then(|| {
            let message =
                answer.value.as_str().map_or_else(|| format!("status {}", answer.status), str::to_owned);
            (Complaint::of(&message), message)
        });
    };
    let code = ["error_number", "errno", "error_code"].iter().find_map(|name| number(&error[*name]));
    let words: Vec<String> = ["error", "description"]
        .iter()
        .map(|name| text(&error[*name]))
        .filter(|text| !text.is_empty())
        .collect();
    let message = words.join(": ");
    Some((Complaint::of_number(code.unwrap_or(0), &message), message))
}

impl SlurmTransport for Rest {
    fn name(&self) -> String {
        format!("slurmrestd at {}", self.place)
    }

    fn can(&self, ability: Ability) -> bool {
        let operation = match ability {
            // No version has an operation for it.
            Ability::Requeue | Ability::Topology => return false,
            Ability::Drain => "post /node/{node_name}",
            Ability::Shares => "get /shares",
        };
        self.api().is_ok_and(|api| api.has(operation))
    }

    fn version(&self) -> Result<String, DriverError> {
        let value = self.get("/ping")?;
        let pings = value["pings"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_up = |ping: &Value| {
            ping["ping"] == "UP"
                || ping["pinged"] == "UP"
                || ping["responding"] == true
                || ping["status"] == 0
        };
        if !pings.is_empty() && !pings.iter().any(is_up) {
            return Err(SlurmError::Controller { message: "slurmrestd cannot reach it".to_owned() }.into());
        }
        let meta = &value["meta"];
        let about = if meta["slurm"].is_object() { &meta["slurm"] } else { &meta["Slurm"] };
        Ok(format!("{} by {}", text(&about["release"]), self.api()?.version))
    }

    fn cluster_name(&self) -> Result<String, DriverError> {
        let told = text(&self.get("/ping")?["meta"]["slurm"]["cluster"]);
        if !told.is_empty() {
            return Ok(told);
        }
        let clusters = self.account("/clusters").ok().flatten().unwrap_or_default();
        match clusters["clusters"].as_array().map(Vec::as_slice) {
            Some([only]) => Ok(text(&only["name"])),
            _ => Ok(String::new()),
        }
    }

    fn jobs(&self) -> Result<Vec<JobRecord>, DriverError> {
        self.list("/jobs", "jobs", JobRecord::from_json)
    }

    fn job(&self, id: &JobId) -> Result<Vec<JobRecord>, DriverError> {
        // A task that waits with the others of its array is known only under the number of the array.
        let whole = id.as_str().split('_').next().unwrap_or_default();
        let answer = self.ask("GET", &self.slurm(&format!("/job/{whole}"))?, None, self.patience)?;
        match complaint(&answer) {
            None => {}
            Some((Complaint::NoSuchJob, _)) => return Ok(Vec::new()),
            Some((kind, message)) => return Err(kind.error(message)),
        }
        let jobs = answer.value["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let jobs = jobs.iter().filter_map(JobRecord::from_json);
        Ok(match id.as_str().split_once('_').and_then(|(_, task)| task.parse().ok()) {
            Some(task) => jobs.filter_map(|job| job.task(task)).collect(),
            None => jobs.collect(),
        })
    }

    fn history(&self, query: &HistoryQuery) -> Result<Option<Vec<JobRecord>>, DriverError> {
        let path = match &query.job {
            Some(job) => format!("/job/{}", job.as_str().split('_').next().unwrap_or_default()),
            None => past::path(query, self.api()?.accounting.as_deref().unwrap_or_default()),
        };
        let Some(value) = self.account(&path)? else { return Ok(None) };
        let jobs = value["jobs"]
            .as_array()
            .ok_or_else(|| self.not_understood(format!("GET {path} lists no jobs")))?;
        let jobs = jobs.iter().filter_map(past::from_json);
        let is_asked = |job: &JobRecord| {
            query.job.as_ref().is_none_or(|id| {
                job.job_id() == *id || job.id.to_string() == id.as_str() || !id.as_str().contains('_')
            })
        };
        let of_user = |job: &JobRecord| query.user.as_ref().is_none_or(|user| *user == job.user);
        Ok(Some(jobs.filter(is_asked).filter(of_user).collect()))
    }

    fn submit(&self, submission: &Submission) -> Result<u64, DriverError> {
        let body = fields::body(submission, self.api()?, super::now_s())?;
        let answer = self.ask("POST", &self.slurm("/job/submit")?, Some(&body), self.patience)?;
        let id = number(&answer.value["job_id"]).or_else(|| number(&answer.value["result"]["job_id"]));
        // A job that was taken in may come with a complaint, as "Job is in held state".
        if let Some(id) = id.filter(|id| *id > 0) {
            return Ok(id);
        }
        match complaint(&answer) {
            Some((Complaint::Other | Complaint::NoSuchJob | Complaint::NoSuchNode, message)) => {
                Err(super::complaint::refused("refused", message))
            }
            Some((kind, message)) => Err(kind.error(message)),
            None => Err(self.not_understood("it names no job".to_owned())),
        }
    }

    fn order(&self, id: &JobId, order: JobOrder) -> Result<(), DriverError> {
        let path = self.slurm(&format!("/job/{id}"))?;
        let answer = match order {
            JobOrder::Cancel => self.ask("DELETE", &path, None, self.patience)?,
            JobOrder::Hold => self.ask("POST", &path, Some(&json!({ "hold": true })), self.patience)?,
            JobOrder::Release => self.ask("POST", &path, Some(&json!({ "hold": false })), self.patience)?,
            JobOrder::Requeue => unreachable!("no REST server can, so nothing asks it to"),
        };
        self.check(&answer)
    }

    fn nodes(&self) -> Result<Vec<NodeRecord>, DriverError> {
        self.list("/nodes", "nodes", NodeRecord::from_json)
    }

    fn node(&self, name: &str) -> Result<Option<NodeRecord>, DriverError> {
        let answer = self.ask("GET", &self.slurm(&format!("/node/{name}"))?, None, self.patience)?;
        match complaint(&answer) {
            None => Ok(answer.value["nodes"].get(0).and_then(NodeRecord::from_json)),
            Some((Complaint::NoSuchNode, _)) => Ok(None),
            Some((kind, message)) => Err(kind.error(message)),
        }
    }

    fn set_node(&self, name: &str, reason: Option<&str>) -> Result<(), DriverError> {
        let body = match reason {
            Some(reason) => json!({ "state": ["DRAIN"], "reason": reason }),
            None => json!({ "state": ["RESUME"] }),
        };
        self.check(&self.ask("POST", &self.slurm(&format!("/node/{name}"))?, Some(&body), self.patience)?)
    }

    fn partitions(&self) -> Result<Vec<Partition>, DriverError> {
        self.list("/partitions", "partitions", Partition::from_json)
    }

    fn topology(&self) -> Result<Option<String>, DriverError> {
        Ok(None)
    }

    fn qos(&self) -> Result<Option<Vec<Qos>>, DriverError> {
        let Some(value) = self.account("/qos")? else { return Ok(None) };
        let list = ["qos", "QOS"].iter().find_map(|key| value[*key].as_array());
        Ok(Some(list.into_iter().flatten().filter_map(Qos::from_json).collect()))
    }

    fn shares(&self) -> Result<Option<Vec<Share>>, DriverError> {
        let value = self.get("/shares")?;
        let list = value["shares"]["shares"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(Some(list.iter().filter_map(past::share).collect()))
    }
}
