//! Calls as messages between pairs of members: over TCP to other hosts, through pipes on the same one.
//!
//! A *channel* joins two members and carries messages in order. Every message says which call it belongs to, so members that
//! make different calls find out. Algorithms are loops over [`Channels::exchange`], which moves messages to and from any
//! number of members at once and therefore cannot deadlock by order.

mod algorithms;
mod exchange;
mod streams;

use crate::shared::flag::WaitPace;
use crate::shared::pipe::Pipe;
use crate::waiting::Waiting;
use crate::{Call, Fault, Operation};

pub(crate) use streams::Streams;

pub(crate) enum Channel {
    Pipe(Pipe),
    Streams(Streams),
}

/// This member's channels to the others of its group.
pub(crate) struct Channels {
    me: usize,
    ranks: Vec<u32>,
    /// None for this member itself.
    channels: Vec<Option<Channel>>,
    /// Messages between two members that are not part of a collective.
    counts: Vec<Counts>,
    /// Words, so that it holds elements of any format.
    scratch: Vec<u64>,
    pace: WaitPace,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    sent: u64,
    received: u64,
}

impl Channels {
    pub(crate) fn new(me: usize, ranks: Vec<u32>, channels: Vec<Option<Channel>>, pace: WaitPace) -> Self {
        let counts = vec![Counts::default(); ranks.len()];
        Self { me, ranks, channels, counts, scratch: Vec::new(), pace }
    }

    pub(crate) fn set_pace(&mut self, pace: WaitPace) {
        self.pace = pace;
    }

    pub(crate) fn members(&self) -> usize {
        self.ranks.len()
    }

    /// A send, a receive or both, of messages that only the two members count.
    pub(crate) fn between(
        &mut self,
        call: &Call,
        to: Option<(usize, crate::span::ByteSpan)>,
        from: Option<(usize, crate::span::ByteSpan)>,
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        let tag =
            |number: u64| exchange::Tag::new(number, &Call { operation: Operation::Send, len: 0, ..*call });
        let sends: Vec<_> =
            to.map(|(peer, span)| (peer, span, tag(self.counts[peer].sent))).into_iter().collect();
        let receives: Vec<_> =
            from.map(|(peer, span)| (peer, span, tag(self.counts[peer].received))).into_iter().collect();
        self.exchange_tagged(&sends, &receives, waiting)?;
        sends.iter().for_each(|(peer, ..)| self.counts[*peer].sent += 1);
        receives.iter().for_each(|(peer, ..)| self.counts[*peer].received += 1);
        Ok(())
    }
}
