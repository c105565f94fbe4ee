//! Keys and values from one process to another: a prefill worker computes prompts, a decode worker continues them.
//!
//! A decode worker sends a prompt's tokens and gets its blocks layer by layer, while later layers and chunks are still being computed: through
//! shared memory on one host, over the connection between hosts. It adopts them and then asks its own
//! engine, which finds them as a cached prefix and computes the few tokens behind the last full block. Whatever goes wrong on the way costs
//! time and never an answer: what has not come is computed where it is needed. Both sides show that they know a secret, without sending it,
//! and what follows is encrypted.

mod link;
mod pieces;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring::hmac;
use serde_json::{Value, json};
use tracing::warn;

use self::link::{CONNECTING, Side, TransferLink};
use self::pieces::{Arriving, BlockPiece, SharedBlocks};
use crate::{About, Answer, Ask, Engine, EngineState, Refusal, Replica, SampleEvent, Teller, Wants};

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
        format!("2 {weights} {activations} {block_tokens} {block_bytes} {config}")
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
        let strangers = Arc::new(AtomicBool::new(false));
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
                let strangers = strangers.clone();
                let serve = move || {
                    // The other side computes for itself what does not come.
                    let peer = stream.peer_addr();
                    if let Err(error) = give(stream, &engine, &secret)
                        && error.kind() == io::ErrorKind::PermissionDenied
                        && !strangers.swap(true, Ordering::Relaxed)
                    {
                        let peer = peer.map_or_else(|_| "somebody".to_owned(), |peer| peer.to_string());
                        warn!(
                            "{peer} asked for prompts to be computed and does not know the secret; others who do not are not told"
                        );
                    }
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

/// Computes a prompt for the other side.
fn give(stream: TcpStream, engine: &Engine, secret: &Secret) -> io::Result<()> {
    let mut link = TransferLink::new(stream)?;
    link.prove(secret, Side::Giver)?;
    let header: Value = serde_json::from_slice(&link.receive(LONGEST)?)?;
    let is_check = header["is_check"] == true;
    if header["kind"].as_str() != Some(&engine.kind().text()) {
        return refuse(&mut link, "it serves another model, or with other settings", true);
    }
    if is_check {
        link.send(b"{}")?;
        return link.flush();
    }
    let tokens = link.receive(4 * MOST_TOKENS)?;
    let prompt: Vec<u32> = tokens.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let shared = header["shared"].as_str().and_then(|name| SharedBlocks::open(name).ok());
    let ask = Ask {
        prompt,
        wants: Wants::Blocks,
        tenant: Default::default(),
        priority: 0,
        adapter: header["adapter"].as_str().map(str::to_owned),
    };
    let mut answer = match engine.ask(ask) {
        Ok(answer) => answer,
        Err(refusal) => {
            let is_for_all =
                matches!(refusal, Refusal::Full { .. } | Refusal::Draining | Refusal::Stopped { .. });
            return refuse(&mut link, &refusal.to_string(), is_for_all);
        }
    };
    link.send(json!({ "is_shared": shared.is_some() }).to_string().as_bytes())?;
    while let Some(event) = answer.wait() {
        if let SampleEvent::Blocks { first, offset, blocks } = event {
            for (at, group) in blocks.chunks(MOST_BLOCKS).enumerate() {
                let piece = BlockPiece { first: first + at * MOST_BLOCKS, offset, blocks: group.to_vec() };
                piece.send(&mut link, shared.as_ref(), engine.kind())?;
            }
            link.flush()?;
        }
    }
    // Nothing more comes.
    link.send(b"")?;
    link.flush()
}

/// Says why a prompt is not computed here, and whether any other would be.
fn refuse(link: &mut TransferLink, reason: &str, is_for_all: bool) -> io::Result<()> {
    link.send(json!({ "refused": reason, "is_for_all": is_for_all }).to_string().as_bytes())?;
    link.flush()
}

/// How long a worker that failed is left alone: finding out costs the prompt some seconds.
const LEFT_ALONE: Duration = Duration::from_secs(15);

/// Computes prompts elsewhere.
struct Worker {
    address: SocketAddr,
    /// When it last failed.
    failed: Mutex<Option<Instant>>,
}

impl Worker {
    fn is_usable(&self) -> bool {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_none_or(|when| when.elapsed() > LEFT_ALONE)
    }

    fn note(&self, outcome: &io::Result<()>) {
        let failed = outcome.is_err().then(Instant::now);
        if let Err(error) = outcome {
            warn!("the prefill worker {} gave no blocks: {}", self.address, WorkerFlaw::of(error));
        }
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = failed;
    }
}

/// An engine that has long prompts computed by a prefill worker.
pub struct Disaggregated {
    engine: Arc<Engine>,
    workers: Vec<Arc<Worker>>,
    secret: Secret,
    /// Prompts with fewer new tokens are computed here.
    least_tokens: usize,
    turn: AtomicUsize,
    transferred: Arc<AtomicUsize>,
}

impl Disaggregated {
    pub fn new(engine: Arc<Engine>, workers: Vec<SocketAddr>, secret: Secret, least_tokens: usize) -> Self {
        let worker = |address| Arc::new(Worker { address, failed: Mutex::new(None) });
        let workers = workers.into_iter().map(worker).collect();
        Self { engine, workers, secret, least_tokens, turn: 0.into(), transferred: Arc::default() }
    }

    /// Asks every worker whether it would compute prompts for this engine, and says what those answered that would not.
    pub fn check(&self) -> Vec<(SocketAddr, WorkerFlaw)> {
        let check = |worker: &Arc<Worker>| {
            let flaw = check(worker.address, &self.engine, &self.secret).err()?;
            Some((worker.address, WorkerFlaw::of(&flaw)))
        };
        self.workers.iter().filter_map(check).collect()
    }

    /// Blocks that have come from workers.
    pub fn transferred_blocks(&self) -> usize {
        self.transferred.load(Ordering::Relaxed)
    }
}

/// Why a prefill worker computes nothing for an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerFlaw {
    /// Nobody can tell which of the two has the wrong one.
    #[error("it does not know the secret")]
    WrongSecret,
    #[error("{0}")]
    Other(String),
    /// It may come yet.
    #[error("it cannot be reached ({0})")]
    Away(String),
}

impl WorkerFlaw {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => WorkerFlaw::WrongSecret,
            io::ErrorKind::Other => WorkerFlaw::Other(error.to_string()),
            _ => WorkerFlaw::Away(error.to_string()),
        }
    }
}

impl Replica for Disaggregated {
    fn about(&self) -> &About {
        self.engine.about()
    }

    fn ask(&self, ask: Ask) -> Result<Answer, Refusal> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.workers.len().max(1);
        let mut in_turn = self.workers[turn..].iter().chain(&self.workers[..turn]);
        let worker = in_turn.find(|worker| worker.is_usable()).cloned();
        let Some(worker) =
            worker.filter(|_| ask.prompt.len() >= self.least_tokens && ask.wants_prompt().is_none())
        else {
            return self.engine.ask(ask);
        };
        let adapter = self.engine.take(&ask)?;
        let (teller, answer) = Answer::new();
        let (engine, secret, transferred) =
            (self.engine.clone(), self.secret.clone(), self.transferred.clone());
        let fetch = move || {
            // What does not come is computed here.
            worker.note(&take(worker.address, &engine, &secret, &ask, &transferred));
            match teller.is_cancelled() {
                true => engine.give_up(),
                false => forward(engine.answer(ask, adapter), &teller),
            }
        };
        match thread::Builder::new().name("kv".into()).spawn(fetch) {
            Ok(_) => Ok(answer),
            Err(error) => {
                self.engine.give_up();
                Err(Refusal::Stopped { reason: error.to_string() })
            }
        }
    }

    fn state(&self) -> EngineState {
        self.engine.state()
    }

    fn drain(&self) {
        self.engine.drain();
    }
}

/// Tells on what the engine answers.
fn forward(answer: Result<Answer, Refusal>, teller: &Teller) {
    match answer {
        Err(refusal) => teller.tell(SampleEvent::Failed(refusal.to_string())),
        Ok(mut answer) => {
            while let Some(event) = answer.wait() {
                if teller.is_cancelled() {
                    return;
                }
                teller.take_ended().into_iter().for_each(|sample| answer.ender().end(sample));
                teller.tell(event);
            }
        }
    }
}

/// Connects to a worker that knows the secret.
fn meet(worker: SocketAddr, secret: &Secret) -> io::Result<TransferLink> {
    let mut link = TransferLink::new(TcpStream::connect_timeout(&worker, CONNECTING)?)?;
    link.prove(secret, Side::Taker)?;
    Ok(link)
}

fn check(worker: SocketAddr, engine: &Engine, secret: &Secret) -> io::Result<()> {
    let mut link = meet(worker, secret)?;
    link.send(json!({ "kind": engine.kind().text(), "is_check": true }).to_string().as_bytes())?;
    link.flush()?;
    let reply: Value = serde_json::from_slice(&link.receive(LONGEST)?)?;
    reply["refused"].as_str().map_or(Ok(()), |reason| Err(io::Error::other(reason.to_owned())))
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
    let mut link = meet(worker, secret)?;
    let bytes = (ask.prompt.len() as u64 / u64::from(kind.block_tokens.max(1))) * kind.block_bytes;
    let shared = if link.is_local() { SharedBlocks::make(bytes).ok() } else { None };
    let name = shared.as_ref().map(SharedBlocks::name);
    let header = json!({ "kind": kind.text(), "adapter": ask.adapter, "shared": name });
    link.send(header.to_string().as_bytes())?;
    let tokens: Vec<u8> = ask.prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    link.send(&tokens)?;
    link.flush()?;
    let reply: Value = serde_json::from_slice(&link.receive(LONGEST)?)?;
    if let Some(reason) = reply["refused"].as_str() {
        // What is wrong with one request only must not keep the worker from others.
        let is_for_all = reply["is_for_all"] != false;
        return if is_for_all { Err(io::Error::other(reason.to_owned())) } else { Ok(()) };
    }
    let shared = shared.filter(|_| reply["is_shared"] == true);
    let mut arriving = Arriving::new(kind, ask.prompt.len());
    while let Some(piece) = BlockPiece::receive(&mut link, shared.as_ref(), kind)? {
        if let Some((first, blocks)) = arriving.add(piece)? {
            transferred.fetch_add(blocks.len(), Ordering::Relaxed);
            engine.adopt(ask.prompt.clone(), ask.adapter.as_deref(), first, blocks);
        }
    }
    Ok(())
}
