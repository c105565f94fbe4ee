//! The agent's end of its fork server and of the run shims: hands orders over, brings notices back.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::event::AgentEvent;
use crate::fork_server::orders::{ToForkServer, ToRunShim};

/// A running fork server.
pub(crate) struct ForkClient {
    pub(crate) number: u32,
    orders: UnboundedSender<(ToForkServer, Option<OwnedFd>)>,
    child: Child,
}

impl ForkClient {
    /// Starts the fork server that is the `number`th of this agent. It and its run shims have the `mark`, a variable and its value, in their
    /// environment.
    pub(crate) fn start(
        program: &Path,
        number: u32,
        (name, value): (&str, &Path),
        events: &UnboundedSender<AgentEvent>,
    ) -> io::Result<Self> {
        let (ours, theirs) = Socket::pair()?;
        let child = Command::new(program)
            .arg("keeper")
            .env(name, value)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let (reading, writing) = split(ours)?;
        let (orders, waiting) = unbounded_channel();
        tokio::spawn(write_with_files(writing, waiting));
        let told = move |notice| AgentEvent::ForkServerSays { fork_server: number, notice };
        tokio::spawn(read_notices(
            reading,
            told,
            AgentEvent::ForkServerGone { fork_server: number },
            events.clone(),
        ));
        Ok(Self { number, orders, child })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// When the fork server is gone, its end is told as an event.
    pub(crate) fn order(&self, order: ToForkServer) {
        let _ = self.orders.send((order, None));
    }

    /// Has a run shim forked. Orders to it may be given at once; when it cannot be forked, its link closes.
    pub(crate) fn fork_run_shim(
        &self,
        number: u64,
        group: &str,
        is_isolated: bool,
        events: &UnboundedSender<AgentEvent>,
    ) -> io::Result<UnboundedSender<ToRunShim>> {
        let (ours, theirs) = Socket::pair()?;
        let order = ToForkServer::Fork { run_shim: number, group: group.to_owned(), is_isolated };
        let _ = self.orders.send((order, Some(theirs.into())));
        let (reading, writing) = split(ours)?;
        let (orders, waiting) = unbounded_channel();
        tokio::spawn(write_orders(writing, waiting));
        let told = move |notice| AgentEvent::RunShimSays { run_shim: number, notice };
        let end = AgentEvent::RunShimSilent { run_shim: number };
        tokio::spawn(read_notices(reading, told, end, events.clone()));
        Ok(orders)
    }

    /// Closes the link to the fork server, which then sees its run shims off, and waits until it has.
    pub(crate) async fn end(self) {
        let Self { orders, mut child, .. } = self;
        drop(orders);
        for _ in 0..1000 {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Reaps a fork server that has died or stands still. Its run shims live on.
    pub(crate) fn bury(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn split(socket: Socket) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
    socket.set_nonblocking(true)?;
    Ok(UnixStream::from_std(socket)?.into_split())
}

fn line(order: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(order).expect("an order is plain data");
    bytes.push(b'\n');
    bytes
}

async fn write_orders(mut writing: OwnedWriteHalf, mut waiting: UnboundedReceiver<ToRunShim>) {
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, 64).await > 0 {
        let bytes: Vec<u8> = batch.drain(..).flat_map(|order| line(&order)).collect();
        if writing.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn write_with_files(
    mut writing: OwnedWriteHalf,
    mut waiting: UnboundedReceiver<(ToForkServer, Option<OwnedFd>)>,
) {
    while let Some((order, file)) = waiting.recv().await {
        if write_with_file(&mut writing, &line(&order), file).await.is_err() {
            return;
        }
    }
}

/// The file goes with the first bytes.
async fn write_with_file(
    writing: &mut OwnedWriteHalf,
    bytes: &[u8],
    file: Option<OwnedFd>,
) -> io::Result<()> {
    let files: Vec<i32> = file.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&files)];
    let along = if files.is_empty() { &rights[..0] } else { &rights[..] };
    let socket: &UnixStream = writing.as_ref();
    let number = socket.as_raw_fd();
    let send = || Ok(sendmsg::<()>(number, &[IoSlice::new(bytes)], along, MsgFlags::MSG_DONTWAIT, None)?);
    let sent = socket.async_io(Interest::WRITABLE, send).await?;
    writing.write_all(&bytes[sent..]).await
}

async fn read_notices<T: DeserializeOwned>(
    reading: OwnedReadHalf,
    told: impl Fn(T) -> AgentEvent,
    end: AgentEvent,
    events: UnboundedSender<AgentEvent>,
) {
    let mut lines = BufReader::new(reading).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(notice) = serde_json::from_str(&line) else { break };
        if events.send(told(notice)).is_err() {
            return;
        }
    }
    let _ = events.send(end);
}
