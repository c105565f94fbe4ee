//! The agent's end of its keeper and of the guardians: hands orders over, brings notices back.

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

use crate::event::Event;
use crate::keeper::orders::{ToGuardian, ToKeeper};

/// A running keeper.
pub(crate) struct Kept {
    pub(crate) number: u32,
    orders: UnboundedSender<(ToKeeper, Option<OwnedFd>)>,
    child: Child,
}

impl Kept {
    /// Starts the keeper that is the `number`th of this agent.
    pub(crate) fn start(program: &Path, number: u32, events: &UnboundedSender<Event>) -> io::Result<Self> {
        let (ours, theirs) = Socket::pair()?;
        let child = Command::new(program)
            .arg("keeper")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let (reading, writing) = split(ours)?;
        let (orders, waiting) = unbounded_channel();
        tokio::spawn(write_with_files(writing, waiting));
        let told = move |notice| Event::Kept { keeper: number, notice };
        tokio::spawn(read_notices(reading, told, Event::KeeperGone { keeper: number }, events.clone()));
        Ok(Self { number, orders, child })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// When the keeper is gone, its end is told as an event.
    pub(crate) fn order(&self, order: ToKeeper) {
        let _ = self.orders.send((order, None));
    }

    /// Has a guardian forked. Orders to it may be given at once; when it cannot be forked, its link closes.
    pub(crate) fn fork_guardian(
        &self,
        number: u64,
        group: &str,
        is_isolated: bool,
        events: &UnboundedSender<Event>,
    ) -> io::Result<UnboundedSender<ToGuardian>> {
        let (ours, theirs) = Socket::pair()?;
        let order = ToKeeper::Guard { guardian: number, group: group.to_owned(), is_isolated };
        let _ = self.orders.send((order, Some(theirs.into())));
        let (reading, writing) = split(ours)?;
        let (orders, waiting) = unbounded_channel();
        tokio::spawn(write_orders(writing, waiting));
        let told = move |notice| Event::Guarded { guardian: number, notice };
        let end = Event::GuardianSilent { guardian: number };
        tokio::spawn(read_notices(reading, told, end, events.clone()));
        Ok(orders)
    }

    /// Closes the link to the keeper, which then sees its guardians off, and waits until it has.
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

    /// Reaps a keeper that has died or stands still. Its guardians live on.
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

async fn write_orders(mut writing: OwnedWriteHalf, mut waiting: UnboundedReceiver<ToGuardian>) {
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
    mut waiting: UnboundedReceiver<(ToKeeper, Option<OwnedFd>)>,
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
    told: impl Fn(T) -> Event,
    end: Event,
    events: UnboundedSender<Event>,
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
