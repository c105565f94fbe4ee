//! The agent's end of its keeper: starts it, hands orders over, brings notices back.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::event::Event;
use crate::keeper::orders::Order;

/// A running keeper.
pub(crate) struct Kept {
    pub(crate) number: u32,
    orders: UnboundedSender<Order>,
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
        ours.set_nonblocking(true)?;
        let (reading, writing) = UnixStream::from_std(ours)?.into_split();
        let (orders, waiting) = unbounded_channel();
        tokio::spawn(write_orders(writing, waiting));
        tokio::spawn(read_notices(reading, number, events.clone()));
        Ok(Self { number, orders, child })
    }

    pub(crate) fn order(&self, order: Order) {
        // When the keeper is gone, its end is told as an event.
        let _ = self.orders.send(order);
    }

    /// Closes the link to the keeper, which then kills everything, and waits until it has.
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

    /// Reaps a keeper that has died.
    pub(crate) fn bury(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn write_orders(mut writing: OwnedWriteHalf, mut waiting: UnboundedReceiver<Order>) {
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, 64).await > 0 {
        let mut bytes = Vec::new();
        for order in batch.drain(..) {
            serde_json::to_writer(&mut bytes, &order).expect("an order is plain data");
            bytes.push(b'\n');
        }
        if writing.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn read_notices(reading: OwnedReadHalf, keeper: u32, events: UnboundedSender<Event>) {
    let mut lines = BufReader::new(reading).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(notice) = serde_json::from_str(&line) else { break };
        if events.send(Event::Noticed { keeper, notice }).is_err() {
            return;
        }
    }
    let _ = events.send(Event::KeeperGone { keeper });
}
