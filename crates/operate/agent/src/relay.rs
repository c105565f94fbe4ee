//! A step's connection from its node to its `srun`: output and ends go there, signals come back.

use std::io;
use std::time::Duration;

use bedplate_control::wire::{NodeStep, RankEnd, RunId};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::event::AgentEvent;
use crate::frames::{self, FrameKind, Greeting};

const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long a pipe is read on when its task has ended: what the task wrote is there at once.
const DRAIN_TIME: Duration = Duration::from_millis(20);
/// Frames that wait for the network before tasks have to.
const WAITING_FRAMES: usize = 16;

/// One task of the step on this node.
pub(crate) struct Task {
    pub(crate) number: u32,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
    pub(crate) ended: watch::Receiver<Option<RankEnd>>,
}

/// Serves a step until all its tasks have ended. A lost `srun` takes its tasks with it.
pub(crate) async fn run(
    step: NodeStep,
    node: String,
    tasks: Vec<Task>,
    complaints: UnboundedReceiver<String>,
    events: UnboundedSender<AgentEvent>,
) {
    let kill = AgentEvent::StepSignal { run: step.run, step: step.number, signal: libc::SIGKILL };
    if serve(&step, node, tasks, complaints, &events).await.is_err() {
        let _ = events.send(kill);
    }
    let _ = events.send(AgentEvent::StepOver { run: step.run, step: step.number });
}

async fn serve(
    step: &NodeStep,
    node: String,
    tasks: Vec<Task>,
    complaints: UnboundedReceiver<String>,
    events: &UnboundedSender<AgentEvent>,
) -> io::Result<()> {
    let stream = timeout(CONNECT_TIME, TcpStream::connect(&step.reply.address)).await??;
    stream.set_nodelay(true)?;
    let (reading, mut writing) = stream.into_split();
    let greeting = Greeting {
        secret: step.reply.secret.clone(),
        node,
        node_count: step.node_count,
        tasks: step.tasks.clone(),
        task_count: step.task_count,
    };
    let mut line = serde_json::to_vec(&greeting).map_err(io::Error::from)?;
    line.push(b'\n');
    writing.write_all(&line).await?;
    let (frames, waiting) = channel(WAITING_FRAMES);
    let first = step.tasks.first().copied().unwrap_or(0);
    tokio::spawn(complain(complaints, first, frames.clone()));
    let mut forwarding = tokio::task::JoinSet::new();
    for task in tasks {
        forwarding.spawn(forward(task, frames.clone()));
    }
    drop(frames);
    let forwarded = async { while forwarding.join_next().await.is_some() {} };
    tokio::select! {
        written = write_frames(&mut writing, waiting, forwarded) => written,
        () = pass_signals(reading, step.run, step.number, events) => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

/// Writes frames until all tasks have been forwarded to their ends.
async fn write_frames(
    writing: &mut (impl AsyncWriteExt + Unpin),
    mut waiting: Receiver<Vec<u8>>,
    forwarded: impl Future<Output = ()>,
) -> io::Result<()> {
    tokio::pin!(forwarded);
    loop {
        tokio::select! {
            biased;
            Some(frame) = waiting.recv() => writing.write_all(&frame).await?,
            () = &mut forwarded => break,
        }
    }
    while let Ok(frame) = waiting.try_recv() {
        writing.write_all(&frame).await?;
    }
    writing.shutdown().await
}

async fn complain(mut complaints: UnboundedReceiver<String>, task: u32, frames: Sender<Vec<u8>>) {
    while let Some(complaint) = complaints.recv().await {
        let _ = frames.send(frames::encode(FrameKind::Stderr, task, complaint.as_bytes())).await;
    }
}

async fn forward(task: Task, frames: Sender<Vec<u8>>) {
    let Task { number, stdout, stderr, mut ended } = task;
    let out = forward_stream(stdout, FrameKind::Stdout, number, ended.clone(), frames.clone());
    let err = forward_stream(stderr, FrameKind::Stderr, number, ended.clone(), frames.clone());
    tokio::join!(out, err);
    let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| *end);
    let status = end.map_or(128 + libc::SIGKILL, RankEnd::status);
    let _ = frames.send(frames::encode(FrameKind::Ended, number, &status.to_le_bytes())).await;
}

/// Until the task has ended and its pipe is empty.
async fn forward_stream(
    mut pipe: pipe::Receiver,
    kind: FrameKind,
    task: u32,
    mut ended: watch::Receiver<Option<RankEnd>>,
    frames: Sender<Vec<u8>>,
) {
    let mut buffer = vec![0; frames::LONGEST / 2];
    loop {
        let is_ended = ended.borrow().is_some();
        let length = if is_ended {
            timeout(DRAIN_TIME, pipe.read(&mut buffer)).await.unwrap_or(Ok(0))
        } else {
            tokio::select! {
                length = pipe.read(&mut buffer) => length,
                changed = ended.changed() => match changed {
                    Ok(()) => continue,
                    // The run is gone and will not tell any more.
                    Err(_) => return,
                },
            }
        };
        match length {
            Ok(length) if length > 0 => {
                if frames.send(frames::encode(kind, task, &buffer[..length])).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

/// Until the `srun` hangs up.
async fn pass_signals(reading: OwnedReadHalf, run: RunId, step: u32, events: &UnboundedSender<AgentEvent>) {
    let mut lines = BufReader::new(reading.take(1 << 20)).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Ok(signal) = line.trim().parse() {
            let _ = events.send(AgentEvent::StepSignal { run, step, signal });
        }
    }
}
