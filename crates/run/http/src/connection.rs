//! A connection that is watched: clients that hold one open and do nothing with it are cut off.
//!
//! Idle ones are closed after a while, heads of requests that trickle in sooner, and so are clients that do not read
//! the answer they asked for.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;

use crate::Limits;

/// How often a connection is looked at; deadlines are kept to within this.
const LOOK: Duration = Duration::from_secs(5);

/// Bytes that a client must read within [`Limits::stall`] once it has held up an answer.
const PROGRESS: u64 = 16 << 10;

const IDLE: u8 = 0;
const HEAD: u8 = 1;
const BUSY: u8 = 2;

/// How a client held things up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// It sent a part of a head.
    Head,
    /// It sent nothing, or did not read.
    Silent,
}

/// What a connection does, shared by its user and its watcher.
#[derive(Debug)]
pub(crate) struct Activity {
    began: Instant,
    phase: AtomicU8,
    /// Milliseconds since it began.
    since: AtomicU64,
    /// One more than when it first could not be written to; zero while it can.
    blocked: AtomicU64,
    /// Bytes written since then.
    written: AtomicU64,
    has_ended: AtomicBool,
}

impl Activity {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            phase: AtomicU8::new(IDLE),
            since: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            written: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Whether the client sends nothing any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// A request is being answered until the result is dropped.
    pub(crate) fn work(self: &Arc<Self>) -> Working {
        self.enter(BUSY);
        Working(self.clone())
    }

    /// Returns once the client has held things up for too long.
    pub(crate) async fn overdue(&self, limits: &Limits) -> Overdue {
        loop {
            let left = self.time_left(limits);
            if left.is_zero() {
                let is_head = self.phase.load(Ordering::Relaxed) == HEAD;
                return if is_head { Overdue::Head } else { Overdue::Silent };
            }
            sleep(left.min(LOOK)).await;
        }
    }

    fn time_left(&self, limits: &Limits) -> Duration {
        let now = self.now();
        let left = |limit: Duration, since: u64| {
            limit.saturating_sub(Duration::from_millis(now.saturating_sub(since)))
        };
        let since = self.since.load(Ordering::Relaxed);
        let by_phase = match self.phase.load(Ordering::Relaxed) {
            IDLE => left(limits.idle, since),
            HEAD => left(limits.head, since),
            _ => LOOK,
        };
        match self.blocked.load(Ordering::Relaxed) {
            0 => by_phase,
            blocked => by_phase.min(left(limits.stall, blocked - 1)),
        }
    }

    fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
        self.since.store(self.now(), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Working(Arc<Activity>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.enter(IDLE);
    }
}

/// A stream that notes what happens to it.
pub(crate) struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }

    pub(crate) fn into_stream(self) -> S {
        self.stream
    }

    /// A client that reads a byte now and then is as good as one that does not read.
    fn note_write(&self, result: &Poll<io::Result<usize>>) {
        let Activity { blocked, written, .. } = &*self.activity;
        match result {
            Poll::Ready(Ok(count)) => {
                let before = written.fetch_add(*count as u64, Ordering::Relaxed);
                if before + *count as u64 >= PROGRESS {
                    self.note_progress();
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending if blocked.load(Ordering::Relaxed) == 0 => {
                blocked.store(self.activity.now() + 1, Ordering::Relaxed);
                written.store(0, Ordering::Relaxed);
            }
            Poll::Pending => {}
        }
    }

    fn note_progress(&self) {
        self.activity.blocked.store(0, Ordering::Relaxed);
        self.activity.written.store(0, Ordering::Relaxed);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if matches!(result, Poll::Ready(Ok(()))) && buffer.filled().len() == before && buffer.remaining() > 0
        {
            self.activity.has_ended.store(true, Ordering::Relaxed);
        }
        if buffer.filled().len() > before && self.activity.phase.load(Ordering::Relaxed) == IDLE {
            self.activity.enter(HEAD);
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_write(&result);
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        // The server flushes once it has nothing more to write.
        if result.is_ready() {
            self.note_progress();
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note_write(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
