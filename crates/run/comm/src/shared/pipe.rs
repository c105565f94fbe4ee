//! A stream of bytes from one member to another of the same host.

use std::sync::Arc;
use std::time::Duration;

use super::flag::WaitPace;
use super::segment::{PIPE, SharedSegment};

/// Both directions between this member and a peer.
pub(crate) struct Pipe {
    segment: Arc<SharedSegment>,
    me: usize,
    peer: usize,
    /// Bytes written to the peer and read from it, which wrap around.
    written: u32,
    read: u32,
}

#[expect(unsafe_code, reason = "copies to and from shared memory")]
impl Pipe {
    pub(crate) fn new(segment: Arc<SharedSegment>, me: usize, peer: usize) -> Self {
        Self { segment, me, peer, written: 0, read: 0 }
    }

    /// Writes as much as there is room for.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> usize {
        let (ends, ring) = self.segment.pipe(self.me, self.peer);
        let room = PIPE - self.written.wrapping_sub(ends.tail.value()) as usize;
        let count = bytes.len().min(room);
        let (first, rest) = around(self.written, count);
        // SAFETY: the room is not read before the head says so, and the two parts lie inside the ring.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                ring.wrapping_add(self.written as usize % PIPE),
                first,
            );
            std::ptr::copy_nonoverlapping(bytes.as_ptr().wrapping_add(first), ring, rest);
        }
        if count > 0 {
            self.written = self.written.wrapping_add(count as u32);
            ends.head.set(self.written);
        }
        count
    }

    /// Reads what there is.
    pub(crate) fn try_receive(&mut self, bytes: &mut [u8]) -> usize {
        let (ends, ring) = self.segment.pipe(self.peer, self.me);
        let there = ends.head.value().wrapping_sub(self.read) as usize;
        let count = bytes.len().min(there);
        let (first, rest) = around(self.read, count);
        // SAFETY: the bytes are not overwritten before the tail says so, and the two parts lie inside the ring.
        unsafe {
            std::ptr::copy_nonoverlapping(
                ring.wrapping_add(self.read as usize % PIPE),
                bytes.as_mut_ptr(),
                first,
            );
            std::ptr::copy_nonoverlapping(ring, bytes.as_mut_ptr().wrapping_add(first), rest);
        }
        if count > 0 {
            self.read = self.read.wrapping_add(count as u32);
            ends.tail.set(self.read);
        }
        count
    }

    /// Waits until there is something to read.
    pub(crate) fn wait_to_receive<E>(
        &self,
        pace: WaitPace,
        check: impl FnMut(Duration) -> Result<(), E>,
    ) -> Result<(), E> {
        let (ends, _) = self.segment.pipe(self.peer, self.me);
        ends.head.wait(self.read.wrapping_add(1), pace, check).map(drop)
    }

    /// Waits until there is room to write.
    pub(crate) fn wait_to_send<E>(
        &self,
        pace: WaitPace,
        check: impl FnMut(Duration) -> Result<(), E>,
    ) -> Result<(), E> {
        let (ends, _) = self.segment.pipe(self.me, self.peer);
        ends.tail.wait(self.written.wrapping_sub(PIPE as u32 - 1), pace, check).map(drop)
    }
}

/// How much of `count` bytes lies before the end of the ring, and how much after its start.
fn around(position: u32, count: usize) -> (usize, usize) {
    let first = count.min(PIPE - position as usize % PIPE);
    (first, count - first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_on_after_four_gigabytes() {
        let segment = Arc::new(SharedSegment::new(2).expect("the system shares memory"));
        let start = u32::MAX - 200_000;
        let (ends, _) = segment.pipe(0, 1);
        ends.head.set(start);
        ends.tail.set(start);
        let pipe = |me: usize, peer: usize| Pipe {
            written: start,
            read: start,
            ..Pipe::new(Arc::clone(&segment), me, peer)
        };
        let (mut sender, mut receiver) = (pipe(0, 1), pipe(1, 0));
        let byte = |at: usize| (at % 251) as u8;
        let (mut sent, mut received) = (0, 0);
        while received < 1_000_000 {
            let outgoing: Vec<u8> = (sent..(sent + 70_001).min(1_000_000)).map(byte).collect();
            sent += sender.try_send(&outgoing);
            let never = |_: Duration| Err(());
            receiver.wait_to_receive(WaitPace::BACKGROUND, never).expect("something was sent");
            let mut incoming = vec![0; 50_003];
            let count = receiver.try_receive(&mut incoming);
            assert!(incoming[..count].iter().enumerate().all(|(at, found)| *found == byte(received + at)));
            received += count;
            sender.wait_to_send(WaitPace::BACKGROUND, never).expect("something was taken");
        }
    }
}
