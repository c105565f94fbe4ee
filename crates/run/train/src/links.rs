//! Messages between neighbouring pipeline stages, on their way while a stage computes.

use std::sync::Arc;

use bedplate_comm::{CommError, Elements, Group, Number, Pending};
use bedplate_kernels::{Device, View, ViewMut};
use bedplate_network::HeldBlock;

use crate::ranks::{Neighbours, RunRanks, other};

/// Messages of one kind with both neighbours.
pub(crate) struct Exchange<E: Number> {
    pub(crate) forward_in: Inbox<E>,
    pub(crate) forward_out: Outbox<E>,
    pub(crate) back_in: Inbox<E>,
    pub(crate) back_out: Outbox<E>,
}

impl<E: Number> Exchange<E> {
    /// Of messages with `len` numbers.
    pub(crate) fn new(neighbours: &Neighbours, len: usize) -> Self {
        Self {
            forward_in: Inbox::new(Arc::clone(&neighbours.from_before), len),
            forward_out: Outbox::new(Arc::clone(&neighbours.to_next)),
            back_in: Inbox::new(Arc::clone(&neighbours.from_next), len),
            back_out: Outbox::new(Arc::clone(&neighbours.to_before)),
        }
    }

    /// Waits until everything has gone.
    pub(crate) fn finish(&mut self, ranks: &RunRanks) -> Result<(), CommError> {
        self.forward_out.finish(ranks)?;
        self.back_out.finish(ranks)
    }
}

/// Messages to a neighbour, each in a buffer of its own until it has gone.
pub(crate) struct Outbox<E: Number> {
    group: Arc<Group>,
    under_way: Vec<Pending<HeldBlock<E>>>,
    spare: Vec<HeldBlock<E>>,
}

/// Messages that may be under way; the next one waits for the first of them.
const AT_ONCE: usize = 2;

impl<E: Number> Outbox<E> {
    fn new(group: Arc<Group>) -> Self {
        Self { group, under_way: Vec::new(), spare: Vec::new() }
    }

    /// Has numbers sent; they may be changed when this returns.
    pub(crate) fn send(
        &mut self,
        device: &Device,
        ranks: &RunRanks,
        numbers: View<'_, E>,
    ) -> Result<(), CommError> {
        if self.under_way.len() >= AT_ONCE {
            let (held, outcome) = ranks.waits.time_bubble(|| self.under_way.remove(0).wait());
            self.spare.push(held);
            outcome?;
        }
        let mut held = match self.spare.pop() {
            Some(held) => held,
            None => ranks.memory(device, numbers.len())?,
        };
        device.copy(numbers, Elements::view_mut(&mut held));
        self.under_way.push(self.group.start_send(device, held, other(&self.group))?);
        Ok(())
    }

    fn finish(&mut self, ranks: &RunRanks) -> Result<(), CommError> {
        for pending in std::mem::take(&mut self.under_way) {
            let (held, outcome) = ranks.waits.time_bubble(|| pending.wait());
            self.spare.push(held);
            outcome?;
        }
        Ok(())
    }
}

/// Messages from a neighbour, one of which may be awaited ahead of time.
pub(crate) struct Inbox<E: Number> {
    group: Arc<Group>,
    awaited: Option<Pending<HeldBlock<E>>>,
    spare: Option<HeldBlock<E>>,
    len: usize,
}

impl<E: Number> Inbox<E> {
    fn new(group: Arc<Group>, len: usize) -> Self {
        Self { group, awaited: None, spare: None, len }
    }

    /// Has the next message come while this rank computes.
    pub(crate) fn expect(&mut self, device: &Device, ranks: &RunRanks) -> Result<(), CommError> {
        if self.awaited.is_some() {
            return Ok(());
        }
        let held = match self.spare.take() {
            Some(held) => held,
            None => ranks.memory(device, self.len)?,
        };
        self.awaited = Some(self.group.start_receive(device, held, other(&self.group))?);
        Ok(())
    }

    /// Waits for the next message.
    pub(crate) fn take(
        &mut self,
        device: &Device,
        ranks: &RunRanks,
        to: ViewMut<'_, E>,
    ) -> Result<(), CommError> {
        self.expect(device, ranks)?;
        let pending = self.awaited.take().expect("a message is awaited");
        let (held, outcome) = ranks.waits.time_bubble(|| pending.wait());
        if outcome.is_ok() {
            device.copy(Elements::view(&held), to);
        }
        self.spare = Some(held);
        outcome
    }
}
