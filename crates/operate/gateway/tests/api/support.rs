//! A made-up model that answers by a rule, a gateway over it, and a client.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use bedplate_batching::RequestRefusal;
use bedplate_data::{Tokenizer, TrainingOptions, train_tokenizer};
use bedplate_gateway::{GatewayOptions, RunningGateway, ServedModel, start};
use bedplate_serve::{
    About, Answer, Ask, Continuation, EndReason, EngineState, Logprobs, Parser, Refusal, Replica,
    SampleEvent, Teller, Wants,
};
use serde_json::{Value, json};

/// Longer than any of these tests takes, on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let texts =
        ["the garden is green and the lamp is in the garden", "{\"name\": \"Ada\", \"age\": 36} é 日本語 🌍"];
    let options = TrainingOptions { vocabulary: 400, ..TrainingOptions::default() };
    Arc::new(train_tokenizer(texts, &options).unwrap())
});

/// What a made-up model writes after a prompt.
pub(crate) type Rule = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// A model that writes what its rule says, one token after the other.
pub(crate) struct Parrot {
    about: About,
    rule: Rule,
    pause: Duration,
    max_seqs: u32,
    requests: Arc<AtomicU32>,
    pub(crate) cancelled: Arc<AtomicU32>,
    /// How the last text was asked for.
    pub(crate) asked: Arc<Mutex<Option<Continuation>>>,
    is_draining: AtomicBool,
}

impl Parrot {
    pub(crate) fn new(rule: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let about = About {
            context_limit: 2048,
            vocabulary: TOKENIZER.vocabulary() + 16,
            end_tokens: vec![TOKENIZER.end().unwrap()],
            adapters: vec!["parrot-lora".into()],
            hidden: 4,
            blocks: 128,
            block_tokens: 16,
        };
        Self {
            about,
            rule: Arc::new(rule),
            pause: Duration::ZERO,
            max_seqs: 1000,
            requests: Arc::default(),
            cancelled: Arc::default(),
            asked: Arc::default(),
            is_draining: AtomicBool::new(false),
        }
    }

    /// Repeats the last line of the prompt.
    pub(crate) fn echoing() -> Self {
        Self::new(|prompt| {
            let asked = prompt.rsplit("<|im_start|>user\n").next().unwrap_or_default();
            asked.split("<|im_end|>").next().unwrap_or_default().to_owned()
        })
    }

    /// Waits before every token.
    pub(crate) fn slow(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    pub(crate) fn max_seqs(mut self, max_seqs: u32) -> Self {
        self.max_seqs = max_seqs;
        self
    }
}

impl Replica for Parrot {
    fn about(&self) -> &About {
        &self.about
    }

    fn ask(&self, ask: Ask) -> Result<Answer, Refusal> {
        if self.is_draining.load(Ordering::Relaxed) {
            return Err(Refusal::Draining);
        }
        if self.requests.load(Ordering::Relaxed) >= self.max_seqs {
            return Err(Refusal::Full { limit: self.max_seqs });
        }
        if ask.prompt.len() as u32 > self.about.context_limit {
            let tokens = ask.prompt.len() as u64;
            return Err(Refusal::Never(RequestRefusal::ContextTooLong {
                tokens,
                limit: self.about.context_limit,
            }));
        }
        if let Wants::Text(continuation) = &ask.wants {
            *self.asked.lock().unwrap() = Some(continuation.clone());
        }
        let (teller, answer) = Answer::new();
        let (rule, pause, end) = (self.rule.clone(), self.pause, self.about.end_tokens[0]);
        let (requests, cancelled) = (self.requests.clone(), self.cancelled.clone());
        requests.fetch_add(1, Ordering::Relaxed);
        std::thread::spawn(move || {
            teller.tell(SampleEvent::Admitted { cached_tokens: 0 });
            match &ask.wants {
                Wants::Blocks => teller.tell(SampleEvent::Failed("it has no blocks".into())),
                Wants::Embedding => {
                    teller.tell(SampleEvent::Embedding(vec![0.5, 0.5, 0.5, ask.prompt.len() as f32]))
                }
                Wants::Text(continuation) => {
                    tell_prompt(&teller, &ask.prompt, continuation);
                    let prompt = TOKENIZER.decode(&ask.prompt).unwrap();
                    let text = TOKENIZER.encode(&rule(&prompt)).unwrap();
                    for sample in 0..continuation.samples {
                        if !speak(&teller, sample, &text, continuation, pause, end) {
                            cancelled.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                    }
                }
            }
            requests.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(answer)
    }

    fn state(&self) -> EngineState {
        let requests = self.requests.load(Ordering::Relaxed);
        EngineState {
            requests,
            running: requests,
            total_blocks: 128,
            used_blocks: 32,
            prompt_tokens: 7,
            ..EngineState::default()
        }
    }

    fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }
}

/// Tells a prompt in two parts: the token with the number n has the log-probability -n, and the two tokens behind its own number lead.
fn tell_prompt(teller: &Teller, prompt: &[u32], asked: &Continuation) {
    let Some(top) = asked.prompt_logprobs else { return };
    let one = |at: usize| Logprobs {
        of_token: -(at as f32),
        above: 2,
        top: (1..=u32::from(top)).map(|more| (prompt[at] + more, -0.5 * more as f32)).collect(),
    };
    let half = prompt.len() / 2;
    for range in [1..half, half.max(1)..prompt.len()] {
        let first = range.start;
        teller.tell(SampleEvent::Prompt { first, logprobs: range.map(one).collect() });
    }
}

/// Tells one sample; false where nobody listens any more.
fn speak(
    teller: &Teller,
    sample: u16,
    text: &[u32],
    asked: &Continuation,
    pause: Duration,
    end: u32,
) -> bool {
    if asked.most == 0 {
        teller.tell(SampleEvent::End { sample, reason: EndReason::Length });
        return true;
    }
    let mut parser = asked.grammar.as_ref().map(|grammar| grammar.parser());
    let mut sampled = 0;
    let mut written: Vec<u32> = Vec::new();
    loop {
        if teller.is_cancelled() {
            return false;
        }
        let wanted = text.get(sampled).copied().unwrap_or(end);
        let token =
            parser.as_mut().map_or(wanted, |parser| sample_token(parser.as_mut(), wanted, end, &written));
        if token == end && !asked.ignores_end {
            teller.tell(SampleEvent::End { sample, reason: EndReason::Stop });
            return true;
        }
        std::thread::sleep(pause);
        let logprobs = asked.logprobs.map(|top| Logprobs {
            of_token: -0.5 - f32::from(sample),
            above: 0,
            top: (0..u32::from(top)).map(|at| (token.wrapping_add(at) % 300, -0.5 - at as f32)).collect(),
        });
        teller.tell(SampleEvent::Token { sample, token, logprobs });
        written.push(token);
        sampled += 1;
        if sampled >= asked.most as usize {
            teller.tell(SampleEvent::End { sample, reason: EndReason::Length });
            return true;
        }
    }
}

/// The wanted token where it is allowed, otherwise one that leads to the end of the text.
fn sample_token(parser: &mut dyn Parser, wanted: u32, end: u32, written: &[u32]) -> u32 {
    let mut mask = vec![0; 20];
    parser.allow(&mut mask).unwrap();
    let is_allowed = |token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
    let is_in_string = TOKENIZER.decode(written).unwrap().matches('"').count() % 2 == 1;
    let closing = if is_in_string { ["\""; 8] } else { ["}", "]", "\"", "{", "[", ":", ",", "1"] };
    let closing = closing.map(|text| TOKENIZER.encode(text).unwrap()[0]);
    let mut candidates = [wanted, end].into_iter().chain(closing).chain(0..TOKENIZER.vocabulary());
    let token = candidates.find(|token| is_allowed(*token)).expect("a grammar allows something");
    parser.accept(token).unwrap();
    token
}

/// A gateway over one made-up model called `parrot`.
pub(crate) struct Fixture {
    pub(crate) running: Option<RunningGateway>,
    pub(crate) address: SocketAddr,
}

impl Fixture {
    pub(crate) fn start(parrot: Parrot) -> Self {
        Self::start_with(parrot, |_| {})
    }

    pub(crate) fn start_with(parrot: Parrot, change: impl FnOnce(&mut GatewayOptions)) -> Self {
        Self::start_many(vec![Arc::new(parrot)], change)
    }

    pub(crate) fn start_many(
        replicas: Vec<Arc<dyn Replica>>,
        change: impl FnOnce(&mut GatewayOptions),
    ) -> Self {
        let model = ServedModel::new("parrot", replicas, TOKENIZER.clone()).unwrap();
        let mut options =
            GatewayOptions { listen: "127.0.0.1:0".parse().unwrap(), ..GatewayOptions::default() };
        change(&mut options);
        let running = start(vec![model.with_aliases(vec!["gpt-4o".into()])], options).unwrap();
        Self { address: running.address(), running: Some(running) }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &[], body.to_string().as_bytes())
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"")
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        exchange(self.address, &request(method, path, headers, body))
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A chat that asks for `text`, with more fields.
    pub(crate) fn chat(&self, text: &str, more: Value) -> Reply {
        self.post("/v1/chat/completions", &chat(text, more))
    }
}

/// Sends a request and reads the answer to its end.
pub(crate) fn exchange(address: SocketAddr, request: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A server that refuses a body may not read all of it.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Reply::parse(&bytes)
}

pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: application/json\r\n{more}Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn chat(text: &str, more: Value) -> Value {
    let mut body = json!({ "model": "parrot", "messages": [{ "role": "user", "content": text }] });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let at = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer has a head");
        let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let body = &bytes[at + 4..];
        let is_chunked = headers.get("transfer-encoding").is_some_and(|encoding| encoding == "chunked");
        let body = if is_chunked { unchunk(body) } else { body.to_vec() };
        Self { status, headers, body }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Status, type, code and the field of an error.
    pub(crate) fn error(&self) -> (u16, String, String, String) {
        let error = &self.json()["error"];
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        assert!(!text("message").is_empty(), "{error}");
        (self.status, text("type"), text("code"), text("param"))
    }

    /// The events of a stream; the last one must be `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = self.text();
        let mut events: Vec<&str> =
            text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{text}");
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let at = bytes.windows(2).position(|two| two == b"\r\n").expect("a chunk has a length");
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..at]).unwrap(), 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend(&bytes[at + 2..at + 2 + length]);
        bytes = &bytes[at + 4 + length..];
    }
}

/// How many replicas a router sends requests to.
pub(crate) fn in_service(router: SocketAddr) -> usize {
    let text = exchange(router, &request("GET", "/metrics", &[], b"")).text();
    text.lines().filter(|line| line.starts_with("bedplate_router_replica_up") && line.ends_with(" 1")).count()
}

pub(crate) fn send_chat(server: SocketAddr, text: &str, more: Value) -> Reply {
    let body = chat(text, more).to_string();
    exchange(server, &request("POST", "/v1/chat/completions", &[], body.as_bytes()))
}
