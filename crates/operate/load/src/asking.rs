//! One request to a server, and when the parts of its answer came.

use std::time::{Duration, Instant};

use bedplate_http::client::{Call, Connection, Reply};
use bedplate_http::header::{AUTHORIZATION, CONTENT_TYPE};
use bedplate_http::{HeaderMap, HeaderValue, Method};
use bytes::Bytes;
use serde_json::Value;
use tokio::time::timeout;

use crate::events::EventReader;
use crate::target::LoadTarget;

const CONNECT: Duration = Duration::from_secs(30);
/// The most of an error's text that is read.
const MOST_TEXT: usize = 64 << 10;

/// What became of a request. Times count from when it was sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct AskedOutcome {
    pub(crate) first: Option<Duration>,
    /// Between pieces of text.
    pub(crate) gaps: Vec<Duration>,
    pub(crate) whole: Duration,
    pub(crate) prompt_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) cached_tokens: u64,
    /// Why it failed.
    pub(crate) failure: Option<String>,
}

/// A connection that requests are sent over, opened anew where it was closed.
pub(crate) struct Client<'a> {
    target: &'a LoadTarget,
    connection: Option<Connection>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(target: &'a LoadTarget) -> Self {
        Self { target, connection: None }
    }

    /// Sends a request and reads its stream to the end.
    pub(crate) async fn ask(&mut self, path: &str, body: Bytes, patience: Duration) -> AskedOutcome {
        let mut asked = AskedOutcome::default();
        let began = Instant::now();
        let ended = timeout(patience, self.read(path, body, began, &mut asked)).await;
        asked.whole = began.elapsed();
        asked.failure = match ended {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some(format!("no end after {} s", patience.as_secs())),
        };
        if asked.failure.is_some() {
            self.connection = None;
        }
        asked
    }

    /// The answer to a `GET` as JSON.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Value, String> {
        let asked = async {
            let response = self.send(Method::GET, path, Bytes::new()).await?;
            let status = response.status;
            let text = text(response).await?;
            if !status.is_success() {
                return Err(complaint(status.as_u16(), &text));
            }
            serde_json::from_slice(&text).map_err(|error| format!("it is not JSON: {error}"))
        };
        timeout(CONNECT, asked).await.unwrap_or_else(|_| Err("no answer in 30 s".into()))
    }

    async fn read(
        &mut self,
        path: &str,
        body: Bytes,
        began: Instant,
        asked: &mut AskedOutcome,
    ) -> Result<(), String> {
        let mut response = self.send(Method::POST, path, body).await?;
        let status = response.status.as_u16();
        if status != 200 {
            return Err(complaint(status, &text(response).await?));
        }
        let mut events = EventReader::default();
        let mut reading = Reading { asked, began, last: None, failure: None, is_done: false };
        while let Some(bytes) = response.next().await.map_err(|error| format!("the answer {error}"))? {
            let now = Instant::now();
            events.push(&bytes, |data| reading.take(data, now));
        }
        match reading {
            Reading { failure: Some(failure), .. } => Err(failure),
            Reading { is_done: false, .. } => Err("the answer ended without [DONE]".into()),
            Reading { asked: AskedOutcome { first: None, .. }, .. } => Err("the answer is empty".into()),
            _ => Ok(()),
        }
    }

    async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Reply, String> {
        let mut headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        if let Some(key) = &self.target.key {
            let key = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|error| error.to_string())?;
            headers.insert(AUTHORIZATION, key);
        }
        let is_open = match &mut self.connection {
            Some(connection) => connection.is_open().await,
            None => false,
        };
        let authority = &self.target.authority;
        if !is_open {
            let opened = Connection::open(authority, CONNECT).await;
            self.connection = Some(opened.map_err(|error| format!("the server {error}"))?);
        }
        let connection = self.connection.as_mut().expect("it was just opened");
        let call = Call { method, path: format!("{}{path}", self.target.prefix), headers, body };
        connection.ask(authority, call).await.map_err(|error| format!("the connection {error}"))
    }
}

async fn text(mut response: Reply) -> Result<Vec<u8>, String> {
    response.whole(MOST_TEXT * 16).await.map(|body| body.to_vec()).map_err(|error| error.to_string())
}

/// What a server says of a request that it refuses, in one line.
fn complaint(status: u16, text: &[u8]) -> String {
    let value: Value = serde_json::from_slice(text).unwrap_or(Value::Null);
    let message =
        value["error"]["message"].as_str().or(value["message"].as_str()).or(value["detail"].as_str());
    let said = message.map_or_else(|| String::from_utf8_lossy(text).into_owned(), str::to_owned);
    let line: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    format!("status {status}: {line}")
}

/// A stream that is being read.
struct Reading<'a> {
    asked: &'a mut AskedOutcome,
    began: Instant,
    last: Option<Instant>,
    failure: Option<String>,
    is_done: bool,
}

impl Reading<'_> {
    fn take(&mut self, data: &[u8], now: Instant) {
        if data == b"[DONE]" {
            self.is_done = true;
            return;
        }
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            self.failure = Some("an event is not JSON".into());
            return;
        };
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            self.failure =
                Some(error["message"].as_str().unwrap_or("the server failed").chars().take(200).collect());
        }
        self.take_usage(&event["usage"]);
        if event["choices"].as_array().is_some_and(|choices| choices.iter().any(has_text)) {
            match self.last {
                None => self.asked.first = Some(now - self.began),
                Some(last) => self.asked.gaps.push(now - last),
            }
            self.last = Some(now);
        }
    }

    fn take_usage(&mut self, usage: &Value) {
        if let Some(output) = usage["completion_tokens"].as_u64() {
            self.asked.output_tokens = output;
            self.asked.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
            self.asked.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        }
    }
}

/// Whether a choice of an event brings anything that was generated. A piece may be empty: bytes of a character that is not complete.
fn has_text(choice: &Value) -> bool {
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let delta = &choice["delta"];
    is_text(&choice["text"])
        || is_text(&delta["content"])
        || is_text(&delta["reasoning_content"])
        || delta["tool_calls"].is_array()
}
