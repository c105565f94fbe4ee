//! Messages between ranks outside of calls, and how they travel: a length and JSON.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::choice::AlgorithmTable;
use crate::{Call, Fault};

/// The longest message that is read.
const LONGEST: usize = 4 << 20;
/// The longest from somebody who has not proved anything yet.
const SHORT: usize = 4 << 10;

/// What a rank says of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arrival {
    pub(crate) epoch: u64,
    /// Ranks that there should be; none where the ranks that meet decide.
    pub(crate) world: Option<u32>,
    /// Its rank, in a world that is rebuilt the one it had; none for a newcomer.
    pub(crate) rank: Option<u32>,
    /// The same for ranks that can share memory.
    pub(crate) host: String,
    /// Where it listens for its peers.
    pub(crate) port: u16,
    /// For people: host and process.
    pub(crate) who: String,
    pub(crate) version: String,
}

/// A rank as the others know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankMember {
    pub(crate) host: String,
    /// None for the rank that the others met at: they know its address by having reached it.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) who: String,
}

/// The answer to an arrival.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Welcome(Welcome),
    Refused(Refusal),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The rank that the receiver has in the new world.
    pub(crate) rank: u32,
    pub(crate) epoch: u64,
    /// Known to members alone.
    pub(crate) id: String,
    /// By rank.
    pub(crate) members: Vec<RankMember>,
    pub(crate) table: AlgorithmTable,
    /// Connections between two ranks on different hosts.
    pub(crate) streams: u32,
    /// How long a rank may be silent: each must speak often enough for all others.
    pub(crate) deadline: Duration,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Refusal {
    Twice { rank: u32, first: String, second: String },
    Differs { first: String, second: String, what: String },
    Missing { world: u32, missing: Vec<u32>, seconds: u64, turned_away: u32 },
    LeftOut { why: String },
}

/// What a connection to a rank is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    Arrive(Arrival),
    /// The link over which two ranks tell each other that they live.
    Link {
        world: String,
        rank: u32,
    },
    /// One connection of a channel.
    Stream {
        world: String,
        #[serde(rename = "lanes")]
        channels: String,
        rank: u32,
        index: u32,
    },
}

/// What ranks tell each other over their link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    Alive,
    Fault(Fault),
    /// Comes with a descriptor of the shared segment.
    #[serde(rename = "board")]
    Segment {
        group: String,
        members: u32,
    },
    /// Comes with a descriptor of the memory.
    Window {
        id: u64,
        bytes: u64,
    },
    Forget {
        id: u64,
    },
    /// The sender waits in this call of a group.
    Waits {
        group: String,
        number: u64,
        call: Call,
    },
    /// The sender leaves in good order.
    Leave,
}

pub(crate) fn write_frame<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&frame(message)?)
}

pub(crate) fn frame<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let len = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

pub(crate) fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    read_frame_of(from, LONGEST)
}

/// A message of a stranger.
pub(crate) fn read_short_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    read_frame_of(from, SHORT)
}

fn read_frame_of<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let mut bytes = vec![0; checked(len, most)?];
    from.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn checked(len: [u8; 4], most: usize) -> io::Result<usize> {
    let len = u32::from_le_bytes(len) as usize;
    if len > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    Ok(len)
}

/// Takes the first whole message from bytes that have been read so far.
pub(crate) fn take_frame<T: DeserializeOwned>(bytes: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some(len) = bytes.first_chunk::<4>() else { return Ok(None) };
    let end = 4 + checked(*len, LONGEST)?;
    if bytes.len() < end {
        return Ok(None);
    }
    let message = serde_json::from_slice(&bytes[4..end])?;
    bytes.drain(..end);
    Ok(Some(message))
}

/// A connection whose other side has so long for all that it says, not for every byte of it.
pub(crate) struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Timed<'a> {
    pub(crate) fn new(stream: &'a TcpStream, at_most: Duration) -> Self {
        Self { stream, until: Instant::now() + at_most }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl RankMember {
    /// Where to reach the member, for a rank that met the others at `meeting`.
    pub(crate) fn address(&self, meeting: IpAddr) -> SocketAddr {
        SocketAddr::new(self.address.unwrap_or(meeting), self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, ElementFormat, Operation};
    use proptest::prelude::*;

    fn messages() -> Vec<Message> {
        let call = Call::new(Operation::AllReduce, ElementFormat::Bf16, 7);
        let stalled = Fault::Stalled {
            rank: 1,
            group: "data".into(),
            number: 9,
            call,
            missing: vec![2, 3],
            seconds: 600,
        };
        vec![
            Message::Alive,
            Message::Fault(stalled),
            Message::Fault(Fault::Lost { rank: 3, why: "gone".into() }),
            Message::Segment { group: "world#1:0,1".into(), members: 2 },
            Message::Window { id: 4, bytes: 1 << 30 },
            Message::Forget { id: 4 },
            Message::Leave,
        ]
    }

    #[test]
    fn messages_survive_any_cut_into_pieces() {
        let bytes: Vec<u8> = messages().iter().flat_map(|message| frame(message).unwrap()).collect();
        for piece in 1..40 {
            let (mut kept, mut found) = (Vec::new(), Vec::new());
            for chunk in bytes.chunks(piece) {
                kept.extend_from_slice(chunk);
                while let Some(message) = take_frame::<Message>(&mut kept).unwrap() {
                    found.push(message);
                }
            }
            assert_eq!(found, messages());
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_there_is_room_for_it() {
        let mut bytes = u32::MAX.to_le_bytes().to_vec();
        assert!(take_frame::<Message>(&mut bytes).is_err());
        assert!(read_frame::<Message>(&mut &bytes[..]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_an_error_or_not_yet_whole(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = take_frame::<Message>(&mut bytes.clone());
            let _ = take_frame::<Purpose>(&mut bytes.clone());
            let _ = take_frame::<Reply>(&mut bytes);
        }

        #[test]
        fn damaged_messages_are_an_error_or_another_message(which in 0usize..7, at in 0usize..200, byte: u8) {
            let mut bytes = frame(&messages()[which]).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = take_frame::<Message>(&mut bytes);
        }
    }
}
