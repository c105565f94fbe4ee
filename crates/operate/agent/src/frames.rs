//! What an agent sends to the `srun` of a step: who it is, then output and ends of tasks.
//!
//! A connection begins with a line of JSON, [`Greeting`]. Frames follow: a byte for the kind, the task and the length
//! as four bytes each, little-endian, then the bytes. The other way go signals, a decimal number a line.

use serde::{Deserialize, Serialize};

/// Proves that the agent was asked, and tells how much is to come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Greeting {
    pub(crate) secret: String,
    pub(crate) node: String,
    pub(crate) node_count: u32,
    pub(crate) tasks: Vec<u32>,
    pub(crate) task_count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Stdout,
    Stderr,
    /// The bytes are the status as four bytes.
    Ended,
}

pub(crate) const HEAD: usize = 9;
/// The longest frame.
pub(crate) const LONGEST: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: FrameKind,
    pub(crate) task: u32,
    pub(crate) length: usize,
}

pub(crate) fn encode(kind: FrameKind, task: u32, bytes: &[u8]) -> Vec<u8> {
    let kind = match kind {
        FrameKind::Stdout => 1,
        FrameKind::Stderr => 2,
        FrameKind::Ended => 3,
    };
    let mut frame = vec![kind];
    frame.extend_from_slice(&task.to_le_bytes());
    frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    frame.extend_from_slice(bytes);
    frame
}

/// `None` when it is not the head of a frame.
pub(crate) fn decode_head(head: &[u8; HEAD]) -> Option<Head> {
    let [kind, t0, t1, t2, t3, l0, l1, l2, l3] = *head;
    let kind = match kind {
        1 => FrameKind::Stdout,
        2 => FrameKind::Stderr,
        3 => FrameKind::Ended,
        _ => return None,
    };
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    (length <= LONGEST).then_some(Head { kind, task: u32::from_le_bytes([t0, t1, t2, t3]), length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written_and_nonsense_is_not() {
        let frame = encode(FrameKind::Stderr, 70_000, b"hello");
        let head: [u8; HEAD] = frame[..HEAD].try_into().unwrap();
        assert_eq!(decode_head(&head), Some(Head { kind: FrameKind::Stderr, task: 70_000, length: 5 }));
        assert_eq!(&frame[HEAD..], b"hello");
        assert_eq!(decode_head(&[9, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(decode_head(&[1, 0, 0, 0, 0, 255, 255, 255, 255]), None);
    }
}
