//! Connections to agents: JSON lines of `bedplate_control::wire` both ways.
//!
//! Who may be which node is asked of `tokens`; what messages mean is known to the control plane alone. Chunks of logs
//! are the exception: they go to whoever reads the log.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bedplate_control::wire::{FromAgent, LogName, ToAgent};
use bedplate_control::{Command, Control, LinkId, Unlinked};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::control_thread::ControlThread;
use crate::diagnosing::Diagnosing;
use crate::leases::Leases;
use crate::run_secrets::RunSecrets;
use crate::tokens::{Identity, TokenStore};

/// No line of the protocol is longer.
const LONGEST_LINE: u64 = 16 << 20;
/// Messages that may wait for an agent; one that takes none any more is cut off.
const OUTBOX: usize = 16_384;
const HELLO_WITHIN: Duration = Duration::from_secs(10);
const CHUNK_WITHIN: Duration = Duration::from_secs(5);
const WRITE_WITHIN: Duration = Duration::from_secs(30);

/// What an agent has said and the control plane has not heard yet; more reports than this are dropped.
const INBOX: usize = 1_024;

/// All open links.
#[derive(Debug)]
pub(crate) struct AgentLinks {
    leases: Arc<Leases>,
    secrets: RunSecrets,
    open: Mutex<BTreeMap<LinkId, mpsc::Sender<ToAgent>>>,
    next_link: AtomicU64,
    reads: Mutex<BTreeMap<u64, oneshot::Sender<LogChunk>>>,
    next_read: AtomicU64,
    diagnosing: Diagnosing,
}

/// A part of a log.
#[derive(Debug)]
pub(crate) struct LogChunk {
    pub(crate) bytes: Vec<u8>,
    pub(crate) next_offset: u64,
    pub(crate) error: Option<String>,
}

impl AgentLinks {
    pub(crate) fn new(leases: Arc<Leases>, secrets: RunSecrets, diagnosing: Diagnosing) -> Self {
        let (open, reads) = (Mutex::default(), Mutex::default());
        let (next_link, next_read) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { leases, secrets, open, next_link, reads, next_read, diagnosing }
    }

    pub(crate) fn count(&self) -> usize {
        self.open().len()
    }

    pub(crate) fn carry_out(&self, command: Command) {
        match command {
            Command::Send { link, message } => self.send(link, message),
            Command::Close { link } => drop(self.open().remove(&link)),
        }
    }

    pub(crate) fn send(&self, link: LinkId, mut message: ToAgent) {
        self.secrets.add_to(&mut message);
        let mut open = self.open();
        if let Some(outbox) = open.get(&link)
            && outbox.try_send(message).is_err()
        {
            open.remove(&link);
        }
    }

    /// Reads a part of a log on its node; nothing when the node does not answer in time.
    pub(crate) async fn read_log(
        &self,
        link: LinkId,
        log: LogName,
        offset: u64,
        most_bytes: u64,
    ) -> Option<LogChunk> {
        let request = self.next_read.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.reads().insert(request, answer);
        self.send(link, ToAgent::ReadLog { request, log, offset, most_bytes });
        let chunk = timeout(CHUNK_WITHIN, answered).await;
        self.reads().remove(&request);
        chunk.ok()?.ok()
    }

    /// Talks with an agent until the connection ends.
    pub(crate) async fn converse(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send,
        identity: &Identity,
        tokens: &TokenStore,
        thread: &ControlThread,
    ) {
        let (reading, mut writing) = tokio::io::split(stream);
        let mut reading = BufReader::new(Box::pin(reading));
        let hello = match timeout(HELLO_WITHIN, read_line(&mut reading)).await {
            Ok(Ok(FromAgent::Hello(hello))) => hello,
            _ => return,
        };
        if let Err(why) = tokens.admit_node(identity, &hello.node).await {
            let _ = write(&mut writing, &[ToAgent::Unwelcome { why }]).await;
            return;
        }
        let link = LinkId(self.next_link.fetch_add(1, Ordering::Relaxed));
        let (outbox, messages) = mpsc::channel(OUTBOX);
        self.open().insert(link, outbox);
        let node = hello.node.clone();
        let heard_from: Arc<str> = node.as_str().into();
        self.leases.open(link);
        thread.tell(move |control, now| control.linked(link, hello, now)).await;
        let (inbox, said) = mpsc::channel(INBOX);
        let how = tokio::select! {
            ended = self.listen(&mut reading, link, &heard_from, inbox) => match ended {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Unlinked::Closed,
                _ => Unlinked::Broken,
            },
            () = write_all(&mut writing, messages) => Unlinked::Broken,
            () = tokens.node_lapses(identity, &node) => Unlinked::Broken,
            () = self.pass_on(said, link, thread) => Unlinked::Broken,
        };
        self.open().remove(&link);
        self.leases.close(link);
        thread.tell(move |control, now| control.unlinked(link, how, now)).await;
    }

    async fn listen(
        &self,
        reading: &mut (impl AsyncBufRead + Unpin),
        link: LinkId,
        node: &Arc<str>,
        inbox: mpsc::Sender<FromAgent>,
    ) -> io::Result<()> {
        loop {
            let message = read_line(reading).await?;
            self.diagnosing.hear(node, &message);
            let may_answer = self.leases.hear(link);
            match message {
                FromAgent::Chunk { request, bytes, next_offset, error, .. } => {
                    if let Some(reader) = self.reads().remove(&request) {
                        // It may not want to know any more.
                        let _ = reader.send(LogChunk { bytes, next_offset, error });
                    }
                }
                FromAgent::Heartbeat { sequence, .. } => {
                    if may_answer {
                        self.send(link, ToAgent::Alive { sequence });
                    }
                    // The next one says it again.
                    if self.leases.enqueue(link) && inbox.try_send(message).is_err() {
                        self.leases.dequeue(link);
                    }
                }
                // Reading goes on whatever the control plane does, for heartbeats come the same way.
                FromAgent::Report { .. } => drop(inbox.try_send(message)),
                message => inbox.send(message).await.map_err(|_| io::ErrorKind::BrokenPipe)?,
            }
        }
    }

    /// Tells the control plane what an agent says, as fast as it listens.
    async fn pass_on(&self, mut said: mpsc::Receiver<FromAgent>, link: LinkId, thread: &ControlThread) {
        while let Some(message) = said.recv().await {
            let leases = self.leases.clone();
            let hear = move |control: &mut Control, now| {
                if matches!(message, FromAgent::Heartbeat { .. }) {
                    leases.dequeue(link);
                }
                control.heard(link, message, now);
            };
            thread.tell(hear).await;
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<LinkId, mpsc::Sender<ToAgent>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reads(&self) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<LogChunk>>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read_line(reading: &mut (impl AsyncBufRead + Unpin)) -> io::Result<FromAgent> {
    let mut line = Vec::new();
    reading.take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Writes until the link is closed on this side, the other side is gone or takes nothing any more.
async fn write_all(writing: &mut (impl AsyncWrite + Unpin), mut messages: mpsc::Receiver<ToAgent>) {
    let mut batch = Vec::new();
    while messages.recv_many(&mut batch, 256).await > 0 {
        if !matches!(timeout(WRITE_WITHIN, write(writing, &batch)).await, Ok(Ok(()))) {
            return;
        }
        batch.clear();
    }
    let _ = writing.shutdown().await;
}

async fn write(writing: &mut (impl AsyncWrite + Unpin), messages: &[ToAgent]) -> io::Result<()> {
    let mut lines = Vec::new();
    for message in messages {
        serde_json::to_writer(&mut lines, message)?;
        lines.push(b'\n');
    }
    writing.write_all(&lines).await?;
    writing.flush().await
}
