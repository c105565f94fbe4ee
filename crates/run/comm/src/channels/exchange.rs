//! Messages to and from any number of members at once.

use std::io;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Channel, Channels};
use crate::span::ByteSpan;
use crate::waiting::Waiting;
use crate::{Call, Fault};

/// Bytes before each message.
const HEADER: usize = 32;
/// Messages below this size use one connection.
const CUT: usize = 128 << 10;
/// Waits for connections look for faults this often.
const LOOK: Duration = Duration::from_millis(20);

/// What a message says it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    number: u64,
    signature: u64,
    len: u64,
}

impl Tag {
    pub(super) fn new(number: u64, call: &Call) -> Self {
        Self { number, signature: call.signature(), len: call.len }
    }

    fn header(&self, bytes: usize) -> [u8; HEADER] {
        let words = [self.number, self.signature, self.len, bytes as u64];
        let mut header = [0; HEADER];
        header.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        header
    }

    fn parse(header: &[u8; HEADER]) -> (Self, u64) {
        let word = |index: usize| {
            u64::from_le_bytes(header[index * 8..][..8].try_into().expect("eight bytes are a word"))
        };
        (Self { number: word(0), signature: word(1), len: word(2) }, word(3))
    }

    fn call(&self) -> Option<Call> {
        Call::from_words(self.signature, self.len)
    }
}

/// A message on its way in one direction.
struct Parcel {
    peer: usize,
    span: ByteSpan,
    tag: Tag,
    header: [u8; HEADER],
    header_done: usize,
    /// For each connection what of its part is done, and where the part ends.
    cuts: Vec<(usize, usize)>,
}

impl Parcel {
    fn new(peer: usize, span: ByteSpan, tag: Tag, streams: usize) -> Self {
        let header = tag.header(span.bytes);
        Self { peer, span, tag, header, header_done: 0, cuts: cuts(span.bytes, streams) }
    }

    fn is_done(&self) -> bool {
        self.header_done == HEADER && self.cuts.iter().all(|(at, end)| at == end)
    }

    fn is_stream_done(&self, stream: usize) -> bool {
        let has_header = stream > 0 || self.header_done == HEADER;
        has_header && self.cuts[stream].0 == self.cuts[stream].1
    }
}

fn cuts(bytes: usize, streams: usize) -> Vec<(usize, usize)> {
    let streams = if bytes < CUT { 1 } else { streams };
    let each = bytes.div_ceil(streams).next_multiple_of(64);
    (0..streams).map(|stream| ((stream * each).min(bytes), ((stream + 1) * each).min(bytes))).collect()
}

impl Channels {
    /// Sends and receives messages of one call, at most one in each direction for each member. They carry the call that the
    /// member made, of which this may be a step.
    pub(super) fn exchange(
        &mut self,
        sends: &[(usize, ByteSpan)],
        receives: &[(usize, ByteSpan)],
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        let tag = Tag::new(waiting.number, &waiting.call);
        let tagged = |list: &[(usize, ByteSpan)]| -> Vec<(usize, ByteSpan, Tag)> {
            list.iter().map(|(peer, span)| (*peer, *span, tag)).collect()
        };
        self.exchange_tagged(&tagged(sends), &tagged(receives), waiting)
    }

    pub(super) fn exchange_tagged(
        &mut self,
        sends: &[(usize, ByteSpan, Tag)],
        receives: &[(usize, ByteSpan, Tag)],
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        let parcel =
            |(peer, span, tag): &(usize, ByteSpan, Tag)| Parcel::new(*peer, *span, *tag, self.streams(*peer));
        let mut sends: Vec<Parcel> = sends.iter().map(parcel).collect();
        let mut receives: Vec<Parcel> = receives.iter().map(parcel).collect();
        let mut idle = 0;
        loop {
            let mut has_moved = false;
            for parcel in sends.iter_mut().filter(|parcel| !parcel.is_done()) {
                has_moved |= self.push(parcel).map_err(|error| self.broken(parcel.peer, &error, waiting))?;
            }
            for parcel in receives.iter_mut().filter(|parcel| !parcel.is_done()) {
                has_moved |= self.pull(parcel, waiting)?;
            }
            if sends.iter().chain(&receives).all(Parcel::is_done) {
                return Ok(());
            }
            if has_moved && idle > 0 {
                waiting.note_movement();
            }
            idle = if has_moved { 0 } else { idle + 1 };
            if idle > 0 {
                self.rest(&sends, &receives, idle, waiting)?;
            }
        }
    }

    fn streams(&self, peer: usize) -> usize {
        match &self.channels[peer] {
            Some(Channel::Streams(streams)) => streams.count(),
            _ => 1,
        }
    }

    fn channel(&mut self, peer: usize) -> &mut Channel {
        self.channels[peer].as_mut().expect("no member sends to itself by a channel")
    }

    /// Sends what goes now; says whether anything did.
    #[expect(unsafe_code, reason = "reads what is sent")]
    fn push(&mut self, parcel: &mut Parcel) -> io::Result<bool> {
        let mut has_moved = false;
        for stream in 0..parcel.cuts.len() {
            if parcel.is_stream_done(stream) {
                continue;
            }
            let (at, end) = parcel.cuts[stream];
            // SAFETY: the caller of the exchange keeps the span alive, and nothing writes to what is being sent.
            let body = unsafe { parcel.span.part(at, end - at).as_slice() };
            let head = if stream == 0 { &parcel.header[parcel.header_done..] } else { &[][..] };
            let mut moved = match self.channel(parcel.peer) {
                Channel::Streams(streams) => streams.try_send(stream, [head, body])?,
                Channel::Pipe(pipe) => match pipe.try_send(head) {
                    count if count == head.len() => count + pipe.try_send(body),
                    count => count,
                },
            };
            has_moved |= moved > 0;
            if stream == 0 {
                let of_head = moved.min(head.len());
                parcel.header_done += of_head;
                moved -= of_head;
            }
            parcel.cuts[stream].0 += moved;
        }
        Ok(has_moved)
    }

    /// Receives what is there; says whether anything was.
    #[expect(unsafe_code, reason = "writes what is received")]
    fn pull(&mut self, parcel: &mut Parcel, waiting: &Waiting<'_>) -> Result<bool, Fault> {
        let peer = parcel.peer;
        let mut has_moved = false;
        if parcel.header_done < HEADER {
            let room = &mut parcel.header[parcel.header_done..];
            let count = match self.channel(peer) {
                Channel::Streams(streams) => streams.try_receive(0, room),
                Channel::Pipe(pipe) => Ok(pipe.try_receive(room)),
            };
            let count = count.map_err(|error| self.broken(peer, &error, waiting))?;
            parcel.header_done += count;
            has_moved = count > 0;
            if parcel.header_done < HEADER {
                return Ok(has_moved);
            }
            self.compare(parcel, waiting)?;
        }
        for stream in 0..parcel.cuts.len() {
            let (at, end) = parcel.cuts[stream];
            if at == end {
                continue;
            }
            // SAFETY: the caller of the exchange keeps the span alive, and nothing else uses what is being received.
            let room = unsafe { parcel.span.part(at, end - at).as_slice_mut() };
            let count = match self.channel(peer) {
                Channel::Streams(streams) => streams.try_receive(stream, room),
                Channel::Pipe(pipe) => Ok(pipe.try_receive(room)),
            };
            let count = count.map_err(|error| self.broken(peer, &error, waiting))?;
            parcel.cuts[stream].0 += count;
            has_moved |= count > 0;
        }
        Ok(has_moved)
    }

    /// The message must belong to the call that this member makes.
    fn compare(&self, parcel: &Parcel, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let (theirs, bytes) = Tag::parse(&parcel.header);
        let (me, peer) = (self.ranks[self.me], self.ranks[parcel.peer]);
        if theirs != parcel.tag {
            let their_call = theirs.call().unwrap_or(waiting.call);
            return Err(waiting.mismatch(peer, theirs.number, their_call));
        }
        if bytes == parcel.span.bytes as u64 {
            return Ok(());
        }
        let size = waiting.call.format.size() as u64;
        Err(Fault::UnequalParts {
            group: waiting.group.to_owned(),
            number: waiting.number,
            sender: peer,
            sent: bytes / size,
            receiver: me,
            expected: parcel.span.bytes as u64 / size,
        })
    }

    /// What to say of a connection that failed; a fault that is known already says more.
    fn broken(&self, peer: usize, error: &io::Error, waiting: &Waiting<'_>) -> Fault {
        // The peer may have closed its connections because of a fault.
        let lost = Fault::Lost { rank: self.ranks[peer], why: format!("its connection ended ({error})") };
        waiting.core.explained().unwrap_or(lost)
    }

    /// Waits until something may move.
    fn rest(
        &self,
        sends: &[Parcel],
        receives: &[Parcel],
        idle: u32,
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        let missing = || {
            let undone = receives.iter().chain(sends).filter(|each| !each.is_done());
            undone.map(|each| self.ranks[each.peer]).collect()
        };
        let mut check = waiting.checks(&missing);
        if idle <= self.pace.looks.min(64) {
            std::hint::spin_loop();
            return Ok(());
        }
        let undone = sends.iter().chain(receives).filter(|parcel| !parcel.is_done()).count();
        let mut watched = Vec::new();
        let mut pipe = None;
        for (parcels, events) in [(sends, PollFlags::POLLOUT), (receives, PollFlags::POLLIN)] {
            for parcel in parcels.iter().filter(|parcel| !parcel.is_done()) {
                match &self.channels[parcel.peer] {
                    Some(Channel::Streams(streams)) => {
                        let undone = (0..parcel.cuts.len()).filter(|stream| !parcel.is_stream_done(*stream));
                        watched.extend(undone.map(|stream| PollFd::new(streams.descriptor(stream), events)));
                    }
                    Some(Channel::Pipe(each)) => pipe = Some((each, events)),
                    None => {}
                }
            }
        }
        match (watched.is_empty(), pipe) {
            (true, Some((pipe, events))) if undone == 1 => {
                if events == PollFlags::POLLIN {
                    pipe.wait_to_receive(self.pace, check)
                } else {
                    pipe.wait_to_send(self.pace, check)
                }
            }
            (has_no_streams, Some(_)) => {
                // Pipes and connections cannot be waited for together.
                check(Duration::from_micros(100))?;
                if idle < self.pace.yields + 64 || has_no_streams && !idle.is_multiple_of(8) {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(Duration::from_micros(50));
                }
                Ok(())
            }
            (_, None) => {
                check(LOOK)?;
                // An interrupted wait is one that was short.
                let _ = poll(&mut watched, PollTimeout::try_from(LOOK).expect("a short time"));
                Ok(())
            }
        }
    }
}
