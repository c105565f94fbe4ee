//! Copies of a rank's state in the memory of its neighbour.
//!
//! Each rank keeps the master weights and moments of the rank before it. They come once, in chunks between blocks, while both
//! compute the first step. From then on the neighbour's gradient comes with every step, and this rank does the step for it: a third
//! of the numbers, and the copy is never older than the state. Gradients are here before any rank learns their norm, so
//! whoever knows the norm knows that every other rank can do the step too, for itself and for the rank before it. Where a spare takes
//! the place of a lost rank, most ranks still have the copy that they are to keep, and nothing comes.
//!
//! Copies may be made every few steps instead: then the whole state comes again each time, the newest two are kept, because one is
//! whole while the other is being made, and each rank keeps its own state of the newest whole copy, to go back to it with the others.

use std::ops::Range;
use std::sync::Arc;

use bedplate_comm::{CommError, Elements, Group, Pending};
use bedplate_kernels::{AdamW, Buffer, Device, ViewMut};
use bedplate_network::HeldBlock;

use crate::optimizer;
use crate::ranks::{RunRanks, other};
use crate::recovered_state::{Gradient, Holding, Learned, RecoveredState, SectionPiece};

/// Elements that go at once.
const CHUNK: usize = 2 << 20;

/// The copies that this rank makes and keeps.
pub(crate) struct Copies {
    to: Arc<Group>,
    from: Arc<Group>,
    /// What this rank learns, and the rank before.
    own: Vec<Learned>,
    theirs: Vec<Learned>,
    kept: Kept,
    /// Whether this rank had the first copy from the world before, and the next rank that of this one.
    had: Had,
    making: Option<Making>,
    staging: Vec<HeldBlock<f32>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Had {
    here: bool,
    next: bool,
}

/// What is kept of the rank before.
enum Kept {
    /// Its state, and the gradient that changes it.
    EveryStep { state: Slot, gradient: Slot },
    /// Its state after two steps, and this rank's own after the newest of which all copies are whole.
    Every { steps: u64, states: [Slot; 2], own: Slot },
}

/// Elements for some pieces, each in a buffer of its own.
struct Slot {
    /// None while they are being written.
    step: Option<u64>,
    numbers: Vec<Buffer<f32>>,
}

/// What is on its way from rank to rank.
struct Making {
    what: What,
    sent: Sent,
    received: usize,
    sending: Option<Pending<HeldBlock<f32>>>,
    receiving: Option<Pending<HeldBlock<f32>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// The state after a step, into one of the slots.
    State { step: u64, slot: usize },
    /// The gradient that leads to a step.
    Gradient { step: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Elements(usize),
    All,
}

/// Gives numbers of this rank: those of all pieces one after the other.
pub(crate) trait ElementSource {
    fn len(&self) -> usize;
    fn put(&self, range: Range<usize>, to: ViewMut<'_, f32>);
}

impl Slot {
    fn new(device: &Device, lengths: impl Iterator<Item = usize>) -> Self {
        Self { step: None, numbers: lengths.map(|len| device.zeros(len)).collect() }
    }

    fn len(&self) -> usize {
        self.numbers.iter().map(Buffer::len).sum()
    }

    fn bytes(&self) -> usize {
        self.numbers.iter().map(Buffer::bytes).sum()
    }

    /// Calls with the parts of buffers that a range of all numbers lies in, and where they are in that range.
    fn parts(&mut self, range: Range<usize>, mut each: impl FnMut(Range<usize>, ViewMut<'_, f32>)) {
        let mut start = 0;
        for buffer in &mut self.numbers {
            let own = range.start.max(start)..range.end.min(start + buffer.len());
            if !own.is_empty() {
                let to = buffer.range_mut(own.start - start..own.end - start);
                each(own.start - range.start..own.end - range.start, to);
            }
            start += buffer.len();
        }
    }

    fn into_holdings(self, pieces: Vec<SectionPiece>) -> Vec<Holding> {
        let Some(step) = self.step else { return Vec::new() };
        let holding = |(piece, numbers)| Holding { piece, step, numbers };
        pieces.into_iter().zip(self.numbers).map(holding).collect()
    }
}

impl Kept {
    fn slots(&self) -> impl Iterator<Item = &Slot> {
        match self {
            Self::EveryStep { state, gradient } => vec![state, gradient],
            Self::Every { states: [one, other], own, .. } => vec![one, other, own],
        }
        .into_iter()
    }

    /// Where numbers of the rank before go.
    fn place(&mut self, what: What) -> &mut Slot {
        match (self, what) {
            (Self::EveryStep { gradient, .. }, What::Gradient { .. }) => gradient,
            (Self::EveryStep { state, .. }, What::State { .. }) => state,
            (Self::Every { states, .. }, What::State { slot, .. }) => &mut states[slot],
            (Self::Every { .. }, What::Gradient { .. }) => {
                unreachable!("gradients come with every step or never")
            }
        }
    }
}

impl Copies {
    /// With the ranks before and after this one. All ranks call it with what they learn, and with what they hold after the step that
    /// they begin with.
    pub(crate) fn new(
        device: &Device,
        ranks: &RunRanks,
        every: u64,
        own: Vec<Learned>,
        (recovered, step): (&mut RecoveredState, u64),
    ) -> Result<Option<Self>, CommError> {
        let Some(ring) = ranks.ring.as_ref() else { return Ok(None) };
        let (to, from) = (Arc::clone(&ring.links.to_next), Arc::clone(&ring.links.from_before));
        let all = ranks.gather_bytes(device, Learned::to_bytes(&own).as_slice())?;
        let theirs = Learned::from_bytes(&all[ring.before as usize]).unwrap_or_default();
        let lengths = |of: &[Learned]| of.iter().map(|each| each.weights.range.len()).collect::<Vec<_>>();
        let state = |of: &[Learned]| Slot::new(device, lengths(of).repeat(3).into_iter());
        let mut kept = match every {
            1 => Kept::EveryStep {
                state: state(&theirs),
                gradient: Slot::new(device, lengths(&theirs).into_iter()),
            },
            steps => Kept::Every { steps, states: [state(&theirs), state(&theirs)], own: state(&own) },
        };
        // Before anything moves: a call that fails leaves all as it was.
        let pieces = Learned::pieces(&theirs);
        let fits = |piece: &SectionPiece| recovered.find(piece, step).is_some_and(Holding::is_exact);
        let here = every == 1 && pieces.iter().all(fits);
        let told = ranks.gather(device, &[f64::from(ring.before), f64::from(u8::from(here))])?;
        let next = told.chunks(2).any(|of| of == [f64::from(ranks.rank()), 1.0]);
        if let (Kept::EveryStep { state, .. }, true) = (&mut kept, here) {
            state.numbers = pieces.iter().filter_map(|piece| recovered.take(piece, step)).collect();
            state.step = Some(step);
        }
        let had = Had { here, next };
        Ok(Some(Self { to, from, own, theirs, kept, had, making: None, staging: Vec::new() }))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.kept.slots().map(Slot::bytes).sum()
    }

    /// Whether they are never older than the state.
    pub(crate) fn follow_every_step(&self) -> bool {
        matches!(self.kept, Kept::EveryStep { .. })
    }

    /// The steps of the whole copies.
    pub(crate) fn steps(&self) -> Vec<u64> {
        self.kept.slots().filter_map(|slot| slot.step).collect()
    }

    /// Begins a copy of the state after a step, where one is due.
    pub(crate) fn begin(&mut self, step: u64) {
        if let Kept::Every { steps, states, .. } = &self.kept
            && step.is_multiple_of(*steps)
        {
            // The older one gives way.
            let slot = usize::from(states[0].step > states[1].step);
            self.start(What::State { step, slot }, Had::default());
        }
    }

    /// Begins the copy of the state with which the ranks of a world begin.
    pub(crate) fn begin_first(&mut self, step: u64) {
        self.start(What::State { step, slot: 0 }, self.had);
    }

    fn start(&mut self, what: What, had: Had) {
        let slot = self.kept.place(what);
        if !had.here {
            slot.step = None;
        }
        let received = if had.here { slot.len() } else { 0 };
        let sent = if had.next { Sent::All } else { Sent::Elements(0) };
        self.making = Some(Making { what, sent, received, sending: None, receiving: None });
    }

    /// Goes on with what can be done without waiting.
    pub(crate) fn advance(
        &mut self,
        device: &Device,
        ranks: &RunRanks,
        state: &dyn ElementSource,
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

    /// Waits until what is on its way is whole on both sides of this rank.
    pub(crate) fn complete(
        &mut self,
        device: &Device,
        ranks: &RunRanks,
        source: &dyn ElementSource,
    ) -> Result<(), CommError> {
        while self.making.is_some() {
            // Receiving goes on by itself while sending waits, and the other way round.
            ranks.waits.time(|| -> Result<(), CommError> {
                self.send(device, ranks, source)?;
                self.receive(device, ranks)
            })?;
            self.close();
        }
        Ok(())
    }

    /// Sends the gradient that leads to a step, and waits for that of the rank before, where copies follow every step.
    pub(crate) fn exchange_gradients(
        &mut self,
        device: &Device,
        ranks: &RunRanks,
        step: u64,
        gradients: &dyn ElementSource,
    ) -> Result<(), CommError> {
        if let Kept::Every { .. } = self.kept {
            return Ok(());
        }
        self.start(What::Gradient { step }, Had::default());
        self.complete(device, ranks, gradients)
    }

    /// Does the step that the gradient of the rank before leads to.
    pub(crate) fn learn(&mut self, device: &Device, adamw: &AdamW) {
        let Kept::EveryStep { state, gradient } = &mut self.kept else { return };
        if state.step.is_none() {
            return;
        }
        let (weights, moments) = state.numbers.split_at_mut(self.theirs.len());
        let (first, second) = moments.split_at_mut(self.theirs.len());
        for (number, learned) in self.theirs.iter().enumerate() {
            let parts = [&mut weights[number], &mut first[number], &mut second[number]];
            let numbers = gradient.numbers[number].view();
            optimizer::learn(device, adamw, &learned.stretches, numbers, parts.map(Buffer::view_mut), None);
        }
        state.step = gradient.step.take();
    }

    /// Copies this rank's own state, which is about to change, if it is that of the newest copy. While the copy of any rank was not
    /// whole, all might have had to go back to the one before.
    pub(crate) fn keep(&mut self, state: &dyn ElementSource) {
        let Kept::Every { states, own, .. } = &mut self.kept else { return };
        let newest = states.iter().filter_map(|slot| slot.step).max();
        if newest == own.step {
            return;
        }
        own.step = newest;
        let mut start = 0;
        for buffer in &mut own.numbers {
            state.put(start..start + buffer.len(), buffer.view_mut());
            start += buffer.len();
        }
    }

    /// What has come and gone whole counts.
    fn close(&mut self) {
        let is_over = |making: &Making, len: usize| {
            let is_quiet = making.sending.is_none() && making.receiving.is_none();
            is_quiet && making.received == len && making.sent == Sent::All
        };
        let Some(what) = self.making.as_ref().map(|making| making.what) else { return };
        let slot = self.kept.place(what);
        if self.making.as_ref().is_some_and(|making| is_over(making, slot.len())) {
            self.making = None;
            let (What::State { step, .. } | What::Gradient { step }) = what;
            slot.step = Some(step);
        }
    }

    fn stage(&mut self, device: &Device, ranks: &RunRanks, len: usize) -> Result<HeldBlock<f32>, CommError> {
        match self.staging.iter().position(|held| Elements::view(held).len() == len) {
            Some(index) => Ok(self.staging.swap_remove(index)),
            None => ranks.memory(device, len),
        }
    }

    /// Ends the chunk that is being sent and begins the next.
    fn send(
        &mut self,
        device: &Device,
        ranks: &RunRanks,
        source: &dyn ElementSource,
    ) -> Result<(), CommError> {
        let Some(making) = &mut self.making else { return Ok(()) };
        if let Some(pending) = making.sending.take() {
            let (held, outcome) = pending.wait();
            self.staging.push(held);
            outcome?;
        }
        let Sent::Elements(sent) = making.sent else { return Ok(()) };
        let range = sent..source.len().min(sent.saturating_add(CHUNK));
        if range.is_empty() {
            making.sent = Sent::All;
            return Ok(());
        }
        let mut held = self.stage(device, ranks, range.len())?;
        source.put(range.clone(), Elements::view_mut(&mut held));
        let pending = self.to.start_send(device, held, other(&self.to))?;
        if let Some(making) = &mut self.making {
            making.sent = Sent::Elements(range.end);
            making.sending = Some(pending);
        }
        Ok(())
    }

    fn receive(&mut self, device: &Device, ranks: &RunRanks) -> Result<(), CommError> {
        let Some(making) = &mut self.making else { return Ok(()) };
        let slot = self.kept.place(making.what);
        if let Some(pending) = making.receiving.take() {
            let (held, outcome) = pending.wait();
            let numbers = Elements::view(&held);
            let range = making.received..making.received + numbers.len();
            if outcome.is_ok() {
                slot.parts(range.clone(), |within, to| device.copy(numbers.range(within), to));
                making.received = range.end;
            }
            self.staging.push(held);
            outcome?;
        }
        let left = slot.len() - making.received;
        if left > 0 {
            let held = self.stage(device, ranks, left.min(CHUNK))?;
            let pending = self.from.start_receive(device, held, other(&self.from))?;
            if let Some(making) = &mut self.making {
                making.receiving = Some(pending);
            }
        }
        Ok(())
    }

    /// The whole copies, as things that this rank holds, and the gradient of the next step, if that is here.
    pub(crate) fn into_holdings(self) -> (Vec<Holding>, Vec<Gradient>) {
        let Self { own: own_learned, theirs, kept, .. } = self;
        let pieces = || Learned::pieces(&theirs);
        match kept {
            Kept::EveryStep { state, gradient } => {
                let is_here = gradient.step.is_some();
                let holdings = state.into_holdings(pieces());
                let gradients = theirs.into_iter().zip(gradient.numbers);
                let gradients = gradients.map(|(of, numbers)| Gradient { of, numbers });
                (holdings, gradients.filter(|_| is_here).collect())
            }
            Kept::Every { states, own, .. } => {
                let mut holdings: Vec<Holding> =
                    states.into_iter().flat_map(|slot| slot.into_holdings(pieces())).collect();
                holdings.extend(own.into_holdings(Learned::pieces(&own_learned)));
                (holdings, Vec::new())
            }
        }
    }
}
