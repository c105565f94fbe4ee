//! Copies of a rank's state in the memory of its neighbour, made while both compute.
//!
//! After a step each rank sends its master weights and moments to the next rank and keeps those of the rank before, chunk by chunk
//! between blocks. All is sent before the optimizer changes it, so a copy is the state after exactly one step. The newest two
//! are kept: while one is being made, the other is whole. A rank that is lost while its copy is being made leaves only the one before;
//! therefore each rank also keeps its own state of the newest copy that is whole, to go back to it with the others.

use std::ops::Range;
use std::sync::Arc;

use bedplate_comm::{CommError, Group, Numbers, Pending};
use bedplate_kernels::{Buffer, Device};
use bedplate_network::Held;

use crate::carry::{Holding, Piece};
use crate::ranks::{Ranks, other};

/// Numbers that go at once.
const CHUNK: usize = 2 << 20;

/// The copies that this rank makes and keeps.
pub(crate) struct Copies {
    to: Arc<Group>,
    from: Arc<Group>,
    /// Steps between copies.
    every: u64,
    /// What the rank before sends, and how many numbers that is; this rank's own are as many as it holds.
    theirs: Vec<Piece>,
    slots: [Slot; 2],
    /// What this rank holds, and held after the step of its last whole copy.
    own: Vec<Piece>,
    before: Slot,
    making: Option<Making>,
    staging: Vec<Held<f32>>,
}

/// A copy of everything that the rank before holds.
struct Slot {
    /// None while it is being written.
    step: Option<u64>,
    numbers: Buffer<f32>,
}

struct Making {
    step: u64,
    slot: usize,
    sent: usize,
    received: usize,
    sending: Option<Pending<Held<f32>>>,
    receiving: Option<Pending<Held<f32>>>,
}

/// Gives numbers of this rank's state: all pieces one after the other.
pub(crate) trait Source {
    fn len(&self) -> usize;
    fn read(&self, range: Range<usize>, values: &mut [f32]);
}

impl Copies {
    /// With the ranks before and after this one. All ranks call it with what they hold.
    pub(crate) fn new(
        device: &Device,
        ranks: &Ranks,
        every: u64,
        own: &[Piece],
    ) -> Result<Option<Self>, CommError> {
        let Some(ring) = ranks.ring.as_ref() else { return Ok(None) };
        let (to, from) = (Arc::clone(&ring.links.to_next), Arc::clone(&ring.links.from_before));
        let all = ranks.gather_bytes(device, crate::carry::to_bytes(own).as_slice())?;
        let theirs = crate::carry::from_bytes(&all[ring.before as usize]).unwrap_or_default();
        let len = theirs.iter().map(|piece| piece.range.len()).sum();
        let slot = |len| Slot { step: None, numbers: device.zeros(len) };
        let own_len = own.iter().map(|piece| piece.range.len()).sum();
        Ok(Some(Self {
            to,
            from,
            every,
            theirs,
            slots: [slot(len), slot(len)],
            own: own.to_vec(),
            before: slot(own_len),
            making: None,
            staging: Vec::new(),
        }))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.iter().chain([&self.before]).map(|slot| slot.numbers.bytes()).sum()
    }

    /// The steps of the whole copies.
    pub(crate) fn steps(&self) -> Vec<u64> {
        self.slots.iter().chain([&self.before]).filter_map(|slot| slot.step).collect()
    }

    /// Begins a copy of the state after a step, where one is due.
    pub(crate) fn begin(&mut self, step: u64) {
        if step.is_multiple_of(self.every) {
            self.begin_now(step);
        }
    }

    pub(crate) fn begin_now(&mut self, step: u64) {
        // The older one gives way.
        let slot = usize::from(self.slots[0].step > self.slots[1].step);
        self.slots[slot].step = None;
        self.making = Some(Making { step, slot, sent: 0, received: 0, sending: None, receiving: None });
    }

    /// Goes on with what can be done without waiting.
    pub(crate) fn advance(
        &mut self,
        device: &Device,
        ranks: &Ranks,
        state: &dyn Source,
    ) -> Result<(), CommError> {
        let Some(making) = &mut self.making else { return Ok(()) };
        if making.sending.as_ref().is_none_or(Pending::is_over) {
            self.send(device, ranks, state)?;
        }
        let Some(making) = &mut self.making else { return Ok(()) };
        if making.receiving.as_ref().is_none_or(Pending::is_over) {
            self.receive(device, ranks)?;
        }
        self.close();
        Ok(())
    }

    /// Waits until the copy is whole on both sides of this rank. Once all ranks have done so, [`keep`](Self::keep) comes.
    pub(crate) fn complete(
        &mut self,
        device: &Device,
        ranks: &Ranks,
        state: &dyn Source,
    ) -> Result<(), CommError> {
        while self.making.is_some() {
            // Receiving goes on by itself while sending waits, and the other way round.
            ranks.waits.time(|| -> Result<(), CommError> {
                self.send(device, ranks, state)?;
                self.receive(device, ranks)
            })?;
            self.close();
        }
        Ok(())
    }

    /// Copies this rank's own state, which is about to change, if it is that of the newest copy. While the copy of any rank was not
    /// whole, all might have had to go back to the one before.
    pub(crate) fn keep(&mut self, device: &Device, state: &dyn Source) {
        let newest = self.slots.iter().filter_map(|slot| slot.step).max();
        if newest == self.before.step {
            return;
        }
        self.before.step = newest;
        let mut values = vec![0.0; CHUNK.min(state.len())];
        for start in (0..state.len()).step_by(CHUNK) {
            let range = start..state.len().min(start + CHUNK);
            let values = &mut values[..range.len()];
            state.read(range.clone(), values);
            device.write(self.before.numbers.range_mut(range), values);
        }
    }

    /// A copy that has come and gone whole counts.
    fn close(&mut self) {
        let theirs: usize = self.theirs.iter().map(|piece| piece.range.len()).sum();
        let is_over = |making: &Making| {
            making.sending.is_none()
                && making.receiving.is_none()
                && making.received == theirs
                && making.sent == usize::MAX
        };
        if self.making.as_ref().is_some_and(is_over)
            && let Some(making) = self.making.take()
        {
            self.slots[making.slot].step = Some(making.step);
        }
    }

    fn stage(&mut self, device: &Device, ranks: &Ranks, len: usize) -> Result<Held<f32>, CommError> {
        match self.staging.iter().position(|held| Numbers::view(held).len() == len) {
            Some(index) => Ok(self.staging.swap_remove(index)),
            None => ranks.memory(device, len),
        }
    }

    /// Ends the chunk that is being sent and begins the next; `usize::MAX` says that all has gone.
    fn send(&mut self, device: &Device, ranks: &Ranks, state: &dyn Source) -> Result<(), CommError> {
        let Some(making) = &mut self.making else { return Ok(()) };
        if let Some(pending) = making.sending.take() {
            let (held, outcome) = pending.wait();
            self.staging.push(held);
            outcome?;
        }
        let sent = making.sent;
        if sent == usize::MAX {
            return Ok(());
        }
        let range = sent..state.len().min(sent.saturating_add(CHUNK));
        if range.is_empty() {
            making.sent = usize::MAX;
            return Ok(());
        }
        let mut held = self.stage(device, ranks, range.len())?;
        let mut values = vec![0.0; range.len()];
        state.read(range.clone(), &mut values);
        device.write(Numbers::view_mut(&mut held), &values);
        let pending = self.to.start_send(device, held, other(&self.to))?;
        if let Some(making) = &mut self.making {
            making.sent = range.end;
            making.sending = Some(pending);
        }
        Ok(())
    }

    fn receive(&mut self, device: &Device, ranks: &Ranks) -> Result<(), CommError> {
        let theirs: usize = self.theirs.iter().map(|piece| piece.range.len()).sum();
        let Some(making) = &mut self.making else { return Ok(()) };
        if let Some(pending) = making.receiving.take() {
            let (held, outcome) = pending.wait();
            let len = Numbers::view(&held).len();
            let range = making.received..making.received + len;
            if outcome.is_ok() {
                device.copy(Numbers::view(&held), self.slots[making.slot].numbers.range_mut(range.clone()));
                making.received = range.end;
            }
            self.staging.push(held);
            outcome?;
        }
        let left = theirs - making.received;
        if left > 0 {
            let held = self.stage(device, ranks, left.min(CHUNK))?;
            let pending = self.from.start_receive(device, held, other(&self.from))?;
            if let Some(making) = &mut self.making {
                making.receiving = Some(pending);
            }
        }
        Ok(())
    }

    /// The whole copies, as things that this rank holds.
    pub(crate) fn into_holdings(self) -> Vec<Holding> {
        let mut holdings = Vec::new();
        let Self { theirs, slots, own, before, .. } = self;
        for (pieces, slot) in slots.into_iter().map(|slot| (&theirs, slot)).chain([(&own, before)]) {
            let Some(step) = slot.step else { continue };
            let (mut start, numbers) = (0, Arc::new(slot.numbers));
            for piece in pieces {
                holdings.push(Holding { piece: piece.clone(), step, start, numbers: Arc::clone(&numbers) });
                start += piece.range.len();
            }
        }
        holdings
    }
}
