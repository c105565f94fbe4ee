//! Keys and values from one process to another: a prefill worker computes prompts, a decode worker continues them.
//!
//! A decode worker sends a prompt's tokens and gets its blocks while later ones are still being computed; it adopts them and then asks its own
//! engine, which finds them as a cached prefix and computes the few tokens behind the last full block. Whatever goes wrong on the way costs
//! time and never an answer: what has not come is computed where it is needed. Both sides show that they know a secret, without sending it;
//! what follows is not encrypted.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

use crate::{About, Answer, Ask, Engine, Event, Refusal, Replica, State, Teller, Wants};

/// What engines must have in common to take over each other's blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvKind {
    pub config: String,
    pub weights: String,
    pub activations: String,
    pub block_tokens: u32,
    pub block_bytes: u64,
}

impl KvKind {
    fn text(&self) -> String {
        let Self { config, weights, activations, block_tokens, block_bytes } = self;
        format!("1 {weights} {activations} {block_tokens} {block_bytes} {config}")
    }
}

/// What both sides know.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl Secret {
    pub fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }
}

/// The longest prompt that is taken, in tokens, and the longest message otherwise.
const MOST_TOKENS: usize = 16 << 20;
const LONGEST: usize = 1 << 20;
/// How long a silent peer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection and the proofs of the secret may take: a worker that does not answer must not delay the prompt for longer than computing it would.
const CONNECTING: Duration = Duration::from_secs(2);
/// Blocks of one message.
const MOST_BLOCKS: usize = 256;
/// Connections that a prefill worker serves at once.
const MOST_CONNECTIONS: usize = 256;

/// The side that computes prompts for others.
pub struct KvServer {
    address: SocketAddr,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl KvServer {
    pub fn start(address: SocketAddr, engine: Arc<Engine>, secret: Secret) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let (ending, open) = (is_ending.clone(), Arc::new(AtomicUsize::new(0)));
        let accept = move || {
            for stream in listener.incoming() {
                if ending.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                if open.fetch_add(1, Ordering::AcqRel) >= MOST_CONNECTIONS {
                    open.fetch_sub(1, Ordering::AcqRel);
                    continue;
                }
                let (engine, secret, open) = (engine.clone(), secret.clone(), open.clone());
                let serve = move || {
                    // The other side computes for itself what does not come.
                    let _ = give(stream, &engine, &secret);
                    open.fetch_sub(1, Ordering::AcqRel);
                };
                let _ = thread::Builder::new().name("kv".into()).spawn(serve);
            }
        };
        let thread = thread::Builder::new().name("kv-listener".into()).spawn(accept)?;
        Ok(Self { address, is_ending, thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for KvServer {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        // Wakes the listener.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Both directions of a connection with a deadline for each read and write.
struct Link {
    reader: BufReader<TcpStream>,
    writer: BufWriter<TcpStream>,
}

impl Link {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(CONNECTING))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { reader: BufReader::new(stream.try_clone()?), writer: BufWriter::new(stream) })
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(&(bytes.len() as u64).to_le_bytes())?;
        self.writer.write_all(bytes)
    }

    fn receive(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut length = [0; 8];
        self.reader.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > most as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
        }
        let mut bytes = vec![0; length as usize];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Each side proves that it knows the secret, about a number that the other one made up.
    fn prove(&mut self, secret: &Secret, own: &[u8], others: &[u8]) -> io::Result<()> {
        let denied =
            |_| io::Error::new(io::ErrorKind::PermissionDenied, "the other side does not know the secret");
        let mut challenge = [0; 32];
        SystemRandom::new().fill(&mut challenge).map_err(|_| io::Error::other("no randomness"))?;
        self.send(&challenge)?;
        self.writer.flush()?;
        let asked = self.receive(32)?;
        let tag = hmac::sign(&secret.0, &[own, &asked].concat());
        self.send(tag.as_ref())?;
        self.writer.flush()?;
        let answer = self.receive(64)?;
        hmac::verify(&secret.0, &[others, &challenge].concat(), &answer).map_err(denied)?;
        // From now on the other side may have to compute before it answers.
        self.reader.get_ref().set_read_timeout(Some(PATIENCE))
    }
}

const GIVER: &[u8] = b"gives";
const TAKER: &[u8] = b"takes";

/// Computes a prompt for the other side.
fn give(stream: TcpStream, engine: &Engine, secret: &Secret) -> io::Result<()> {
    let mut link = Link::new(stream)?;
    link.prove(secret, GIVER, TAKER)?;
    let header: Value = serde_json::from_slice(&link.receive(LONGEST)?)?;
    if header["kind"].as_str() != Some(&engine.kind().text()) {
        return link.send(b"another model").and_then(|()| link.writer.flush());
    }
    let tokens = link.receive(4 * MOST_TOKENS)?;
    let prompt = tokens.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let ask = Ask {
        prompt,
        wants: Wants::Blocks,
        tenant: Default::default(),
        priority: 0,
        adapter: header["adapter"].as_str().map(str::to_owned),
    };
    let mut answer = match engine.ask(ask) {
        Ok(answer) => answer,
        Err(refusal) => return link.send(refusal.to_string().as_bytes()).and_then(|()| link.writer.flush()),
    };
    link.send(b"")?;
    while let Some(event) = answer.wait() {
        if let Event::Blocks { blocks, .. } = event {
            let groups = blocks.chunks(MOST_BLOCKS);
            groups.map(|group| group.concat()).try_for_each(|group| link.send(&group))?;
            link.writer.flush()?;
        }
    }
    // Nothing more comes.
    link.send(b"")?;
    link.writer.flush()
}

/// An engine that has long prompts computed by a prefill worker.
pub struct Disaggregated {
    engine: Arc<Engine>,
    workers: Vec<SocketAddr>,
    secret: Secret,
    /// Prompts with fewer new tokens are computed here.
    least_tokens: usize,
    turn: AtomicUsize,
    transferred: Arc<AtomicUsize>,
}

impl Disaggregated {
    pub fn new(engine: Arc<Engine>, workers: Vec<SocketAddr>, secret: Secret, least_tokens: usize) -> Self {
        Self { engine, workers, secret, least_tokens, turn: 0.into(), transferred: Arc::default() }
    }

    /// Blocks that have come from workers.
    pub fn transferred_blocks(&self) -> usize {
        self.transferred.load(Ordering::Relaxed)
    }
}

impl Replica for Disaggregated {
    fn about(&self) -> &About {
        self.engine.about()
    }

    fn ask(&self, ask: Ask) -> Result<Answer, Refusal> {
        if ask.prompt.len() < self.least_tokens || self.workers.is_empty() {
            return self.engine.ask(ask);
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let worker = self.workers[turn % self.workers.len()];
        self.engine.can_answer(&ask)?;
        let (teller, answer) = Answer::new();
        let (engine, secret, transferred) =
            (self.engine.clone(), self.secret.clone(), self.transferred.clone());
        let fetch = move || {
            // What does not come is computed here.
            let _ = take(worker, &engine, &secret, &ask, &transferred);
            if !teller.is_cancelled() {
                forward(&engine, ask, &teller);
            }
        };
        match thread::Builder::new().name("kv".into()).spawn(fetch) {
            Ok(_) => Ok(answer),
            Err(error) => Err(Refusal::Stopped { reason: error.to_string() }),
        }
    }

    fn state(&self) -> State {
        self.engine.state()
    }

    fn drain(&self) {
        self.engine.drain();
    }
}

/// Tells on what the engine answers.
fn forward(engine: &Engine, ask: Ask, teller: &Teller) {
    match engine.ask(ask) {
        Err(refusal) => teller.tell(Event::Failed(refusal.to_string())),
        Ok(mut answer) => {
            while let Some(event) = answer.wait() {
                if teller.is_cancelled() {
                    return;
                }
                teller.tell(event);
            }
        }
    }
}

/// Has a prompt computed elsewhere and adopts its blocks as they come.
fn take(
    worker: SocketAddr,
    engine: &Engine,
    secret: &Secret,
    ask: &Ask,
    transferred: &AtomicUsize,
) -> io::Result<()> {
    let kind = engine.kind();
    let mut link = Link::new(TcpStream::connect_timeout(&worker, CONNECTING)?)?;
    link.prove(secret, TAKER, GIVER)?;
    link.send(json!({ "kind": kind.text(), "adapter": ask.adapter }).to_string().as_bytes())?;
    let tokens: Vec<u8> = ask.prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    link.send(&tokens)?;
    link.writer.flush()?;
    let refusal = link.receive(LONGEST)?;
    if !refusal.is_empty() {
        return Err(io::Error::other(String::from_utf8_lossy(&refusal).into_owned()));
    }
    let size = (kind.block_bytes as usize).max(1);
    let mut first = 0;
    loop {
        let group = link.receive(MOST_BLOCKS * size)?;
        if group.is_empty() {
            return Ok(());
        }
        let blocks: Vec<Box<[u8]>> = group.chunks_exact(size).map(Box::from).collect();
        let count = blocks.len();
        engine.adopt(ask.prompt.clone(), ask.adapter.as_deref(), first, blocks);
        first += count;
        transferred.fetch_add(count, Ordering::Relaxed);
    }
}
