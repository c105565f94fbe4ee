//! An API server of nodes, pods and Leases that does what a test tells it: refuses, says nothing, forgets what it has done, or cuts an
//! answer off. What a real server does only by accident is asked for here by name.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bedplate_testkit::wait_until;
use serde_json::{Value, json};

/// What becomes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    /// Not done.
    Refused(u16),
    /// Not done, and nothing is said.
    Silent,
    /// Done, and the connection ends before the answer.
    Forgotten,
    /// Done; the answer announces more than it has.
    CutOff,
    /// Not done; what is said is not JSON.
    Garbled,
}

pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    query: String,
    body: Value,
}

impl Request {
    pub(crate) fn is_binding(&self) -> bool {
        self.path.ends_with("/binding")
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.query.contains("watch=")
    }
}

type Decide = Box<dyn FnMut(&Request) -> Fate + Send>;

pub(crate) struct FakeServer {
    shared: Arc<Shared>,
    folder: tempfile::TempDir,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    version: u64,
    /// By the end of their paths: `nodes/a`, `namespaces/default/pods/b`.
    objects: BTreeMap<String, Value>,
    /// What watches are told: when, of which object, how.
    history: Vec<(u64, String, Value)>,
    /// Watches from before this version have expired.
    oldest: u64,
    decide: Decide,
    bindings: Vec<(String, String)>,
    lists: usize,
}

impl FakeServer {
    /// Nodes of eight GPUs each.
    pub(crate) fn start(nodes: u32) -> Self {
        let state = State {
            version: 1,
            objects: BTreeMap::new(),
            history: Vec::new(),
            oldest: 0,
            decide: Box::new(|_| Fate::Answered),
            bindings: Vec::new(),
            lists: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
        let address = listener.local_addr().expect("it is bound");
        let served = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&served);
                std::thread::spawn(move || shared.serve(&stream));
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "users": [{"name": "fake", "user": {}}],
        });
        std::fs::write(folder.path().join("config"), kubeconfig.to_string()).expect("it is written");
        let server = Self { shared, folder };
        (0..nodes).for_each(|index| server.add_node(&format!("n{index}")));
        server
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    pub(crate) fn add_node(&self, name: &str) {
        let room = json!({"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"});
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {},
            "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.shared.lock().put(&format!("nodes/{name}"), node, "ADDED");
        self.shared.changed.notify_all();
    }

    pub(crate) fn add_pod(&self, mut pod: Value) {
        let name = pod["metadata"]["name"].as_str().expect("pods have names").to_owned();
        pod["metadata"]["uid"] = format!("uid-{name}").into();
        pod["metadata"]["namespace"] = "default".into();
        pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        pod["status"] = json!({"phase": "Pending"});
        self.shared.lock().put(&format!("namespaces/default/pods/{name}"), pod, "ADDED");
        self.shared.changed.notify_all();
    }

    /// An object goes, and no watch is told: as when the watch had a gap.
    pub(crate) fn lose(&self, key: &str) {
        self.shared.lock().objects.remove(key).expect("it was there");
    }

    /// What watches could continue from is gone, as after a compaction; those that are open end.
    pub(crate) fn expire_watches(&self) {
        let mut state = self.shared.lock();
        state.version += 1;
        state.oldest = state.version;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// From now on this decides what becomes of requests.
    pub(crate) fn decide(&self, decide: impl FnMut(&Request) -> Fate + Send + 'static) {
        self.shared.lock().decide = Box::new(decide);
    }

    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        wait_until(what, || holds(self));
    }

    /// Pods and the nodes that they were given, in order; a pod that was bound twice is here twice.
    pub(crate) fn bindings(&self) -> Vec<(String, String)> {
        self.shared.lock().bindings.clone()
    }

    pub(crate) fn bound(&self, gang: &str) -> usize {
        let start = format!("{gang}-");
        self.bindings().iter().filter(|(pod, _)| pod.starts_with(&start)).count()
    }

    /// How often nodes or pods were listed.
    pub(crate) fn lists(&self) -> usize {
        self.shared.lock().lists
    }
}

impl State {
    fn put(&mut self, key: &str, mut object: Value, how: &str) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.history.push((self.version, key.to_owned(), json!({"type": how, "object": object})));
        self.objects.insert(key.to_owned(), object.clone());
        object
    }

    /// Carries a request out.
    fn answer(&mut self, request: &Request) -> (u16, Value) {
        let key = key_of(&request.path);
        if request.is_binding() {
            return self.bind(key.trim_end_matches("/binding"), &request.body);
        }
        let key = key.trim_end_matches("/status");
        match (request.method.as_str(), self.objects.get(key).cloned()) {
            ("GET", _) if is_list(key) => (200, self.list(key)),
            ("GET", Some(object)) => (200, object),
            ("PUT", Some(found)) => {
                let sent = &request.body["metadata"]["resourceVersion"];
                match sent.is_null() || *sent == found["metadata"]["resourceVersion"] {
                    true => (200, self.put(key, request.body.clone(), "MODIFIED")),
                    false => refusal(409),
                }
            }
            ("PATCH", Some(mut object)) => {
                merge(&mut object, &request.body);
                (200, self.put(key, object, "MODIFIED"))
            }
            ("DELETE", Some(object)) => {
                self.put(key, object.clone(), "DELETED");
                self.objects.remove(key);
                (200, object)
            }
            ("POST", _) if key.ends_with("/events") => (201, request.body.clone()),
            ("POST", _) => {
                let name = request.body["metadata"]["name"].as_str().unwrap_or_default();
                (201, self.put(&format!("{key}/{name}"), request.body.clone(), "ADDED"))
            }
            _ => refusal(404),
        }
    }

    fn bind(&mut self, key: &str, binding: &Value) -> (u16, Value) {
        let Some(mut pod) = self.objects.get(key).cloned() else { return refusal(404) };
        if !pod["spec"]["nodeName"].is_null() || pod["metadata"]["uid"] != binding["metadata"]["uid"] {
            return refusal(409);
        }
        let (name, node) = (&pod["metadata"]["name"], &binding["target"]["name"]);
        let text = |value: &Value| value.as_str().expect("names are texts").to_owned();
        self.bindings.push((text(name), text(node)));
        pod["spec"]["nodeName"] = node.clone();
        pod["status"] = json!({"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        self.put(key, pod, "MODIFIED");
        (201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn list(&mut self, kind: &str) -> Value {
        self.lists += usize::from(kind == "nodes" || kind == "pods");
        let all = self.objects.iter().filter(|(key, _)| is_of(key, kind));
        json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": self.version.to_string()}, "items": all.map(|(_, object)| object).collect::<Vec<&Value>>()})
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under it")
    }

    /// Answers the requests of one connection until it ends.
    fn serve(&self, stream: &TcpStream) {
        let mut from = BufReader::new(stream.try_clone().expect("it is open"));
        while let Some(request) = read(&mut from) {
            let is_open = match request.is_watch() {
                true => self.watch(stream, &request),
                false => self.respond(stream, &request),
            };
            if is_open.is_none() {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }

    fn respond(&self, mut to: &TcpStream, request: &Request) -> Option<()> {
        let mut state = self.lock();
        let fate = (state.decide)(request);
        let (status, answer) = match fate {
            Fate::Answered | Fate::Forgotten | Fate::CutOff => state.answer(request),
            Fate::Refused(code) => refusal(code),
            Fate::Silent | Fate::Garbled => (200, Value::Null),
        };
        drop(state);
        self.changed.notify_all();
        let text = if fate == Fate::Garbled { "<html>".to_owned() } else { answer.to_string() };
        match fate {
            Fate::Silent => {
                // For as long as the client likes.
                let _ = to.read(&mut [0]);
                return None;
            }
            Fate::Forgotten => return None,
            _ => {}
        }
        let announced = text.len() + if fate == Fate::CutOff { 100 } else { 0 };
        write!(to, "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {announced}\r\n\r\n{text}").ok()?;
        (fate != Fate::CutOff).then_some(())
    }

    /// Streams what happens until the watch's time is up, or what it stands on has expired.
    fn watch(&self, mut to: &TcpStream, request: &Request) -> Option<()> {
        let kind = key_of(&request.path);
        let mut seen: u64 =
            parameter(&request.query, "resourceVersion").and_then(|text| text.parse().ok())?;
        let lasts = parameter(&request.query, "timeoutSeconds").and_then(|text| text.parse().ok())?;
        let until = Instant::now() + Duration::from_secs(lasts);
        write!(to, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            .ok()?;
        let mut state = self.lock();
        while Instant::now() < until {
            if seen < state.oldest {
                let expired = json!({"type": "ERROR", "object": refusal(410).1});
                chunk(to, &expired)?;
                break;
            }
            let news = state.history.iter().filter(|(version, key, _)| *version > seen && is_of(key, kind));
            let news: Vec<Value> = news.map(|(_, _, event)| event.clone()).collect();
            seen = state.version;
            if news.is_empty() {
                state = self.changed.wait_timeout(state, Duration::from_millis(200)).expect("no panic").0;
                continue;
            }
            drop(state);
            news.iter().try_for_each(|event| chunk(to, event))?;
            state = self.lock();
        }
        drop(state);
        write!(to, "0\r\n\r\n").ok()
    }
}

fn chunk(mut to: &TcpStream, event: &Value) -> Option<()> {
    let line = format!("{event}\n");
    write!(to, "{:x}\r\n{line}\r\n", line.len()).ok()
}

fn read(from: &mut impl BufRead) -> Option<Request> {
    let line = |from: &mut dyn BufRead| {
        let mut line = String::new();
        from.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_owned())
    };
    let first = line(from)?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut length = 0;
    loop {
        let head = line(from)?.to_ascii_lowercase();
        if head.is_empty() {
            break;
        }
        if let Some(text) = head.strip_prefix("content-length:") {
            length = text.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some(Request { method, path: path.to_owned(), query: query.to_owned(), body })
}

/// A path without its group and version.
fn key_of(path: &str) -> &str {
    let parts = if path.starts_with("/apis/") { 4 } else { 3 };
    path.splitn(parts + 1, '/').nth(parts).unwrap_or_default()
}

fn is_list(key: &str) -> bool {
    !key.contains('/')
}

fn is_of(key: &str, kind: &str) -> bool {
    let mut parts = key.rsplit('/').skip(1);
    parts.next() == Some(kind)
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

fn refusal(code: u16) -> (u16, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "told to", "reason": reason, "code": code});
    (code, status)
}

/// A merge patch; lists are replaced.
fn merge(object: &mut Value, patch: &Value) {
    match (object.as_object_mut(), patch.as_object()) {
        (Some(object), Some(patch)) => {
            for (key, value) in patch {
                merge(object.entry(key).or_insert(Value::Null), value);
            }
        }
        _ => *object = patch.clone(),
    }
}
