//! A group of ranks and what it can be asked to do.
//!
//! Members make the same calls in the same order. A call returns when this member may use its buffers again; one that is
//! [started](Group::start_all_reduce) returns at once, is carried out by a thread of the group, and calls after it wait for it.
//! Roots and peers are *members*: places in the group, not ranks of the world.

mod elements;
mod started;

use std::sync::{Arc, OnceLock};

use bedplate_kernels::{CudaError, Device, Transfers, View, ViewMut};

use crate::choice::Algorithm;
use crate::core::Core;
use crate::engine::{CallRequest, GroupEngine};
use crate::gpu::{GroupGpus, GroupPart, OnGpu, is_staged};
use crate::pending::Pending;
use crate::shared::flag::WaitPace;
use crate::span::ByteSpan;
use crate::turns::{MemberPlace, Turns};
use crate::{Call, CommError, Fault, Number, Operation, Reduction};

pub use elements::Elements;

/// Some ranks of a world, in an order that all of them use.
pub struct Group {
    inner: Arc<Turns>,
    /// Of the GPU whose elements it is asked for, from the first time on.
    transfers: OnceLock<Arc<Transfers>>,
}

impl Group {
    pub(crate) fn new(
        core: Arc<Core>,
        (name, key): (&str, String),
        ranks: Vec<u32>,
        me: usize,
        pace: WaitPace,
        engine: GroupEngine,
    ) -> Self {
        let recorded = core.recorder.add_group(name, &key, &ranks);
        let name = name.to_owned();
        let inner = Turns::new(MemberPlace { core, name, key, ranks, me, recorded, pace }, engine);
        Self { inner: Arc::new(inner), transfers: OnceLock::new() }
    }

    pub fn name(&self) -> &str {
        &self.inner.place.name
    }

    /// This rank's place in the group.
    pub fn member(&self) -> usize {
        self.inner.place.me
    }

    pub fn members(&self) -> usize {
        self.inner.place.ranks.len()
    }

    /// The ranks of the members in the world.
    pub fn ranks(&self) -> &[u32] {
        &self.inner.place.ranks
    }

    /// How a call of this size would be carried out.
    pub fn algorithm(&self, operation: Operation, bytes: u64) -> Algorithm {
        let transport = self.inner.place.core.options.transport;
        match self.transfers.get() {
            Some(_) if operation == Operation::Barrier => self.inner.algorithm(operation, bytes),
            Some(_) if is_staged(operation, self.members(), transport) => Algorithm::Staged,
            Some(_) => Algorithm::Nccl,
            None => self.inner.algorithm(operation, bytes),
        }
    }

    /// Makes the way between the members' GPUs now rather than with the first call, and those of groups that are parts of this one: a member names each
    /// that it is in, in the same order as the others, and nothing for one that it is not in. On the processor there is nothing to do.
    pub fn meet(&self, device: &Device, parts: &[Option<&Group>]) -> Result<(), CommError> {
        if device.is_cpu() {
            return Ok(());
        }
        let transfers = self.transfers_of(device)?;
        let mut listed: Vec<Option<GroupPart<'_>>> = Vec::new();
        for part in parts {
            listed.push(match part {
                Some(part) => Some(part.as_part(device)?),
                None => None,
            });
        }
        let call = Call::new(Operation::Barrier, crate::ElementFormat::U8, 0);
        let made = self
            .inner
            .with_engine(call, |engine, waiting| engine.meet_with_parts(transfers, &listed, waiting))?;
        for (part, gpus) in parts.iter().zip(made) {
            if let Some(part) = part {
                drop(part.inner.replace_gpus(gpus));
            }
        }
        Ok(())
    }

    /// This group as a part of another: its first rank tells it from the others.
    fn as_part(&self, device: &Device) -> Result<GroupPart<'_>, CommError> {
        let colour = *self.ranks().iter().min().expect("a group has members");
        let transfers = self.transfers_of(device)?;
        Ok(GroupPart { colour, me: self.member(), members: self.members(), transfers })
    }

    /// Combines the elements of all members, in place.
    pub fn all_reduce<E: Number>(
        &self,
        device: &Device,
        elements: ViewMut<'_, E>,
        by: Reduction,
    ) -> Result<(), CommError> {
        let span = self.span_mut(device, elements)?;
        self.run(self.all_reducing::<E>(span, span, by))
    }

    /// Combines the elements of all members into a target of the same length.
    pub fn all_reduce_into<E: Number>(
        &self,
        device: &Device,
        from: View<'_, E>,
        to: ViewMut<'_, E>,
        by: Reduction,
    ) -> Result<(), CommError> {
        let (source, target) = (self.span(device, from)?, self.span_mut(device, to)?);
        self.fits(source.bytes == target.bytes, || lengths::<E>("source and target", source, target))?;
        self.run(self.all_reducing::<E>(source, target, by))
    }

    fn all_reducing<E: Number>(&self, source: ByteSpan, target: ByteSpan, by: Reduction) -> CallRequest {
        let call = Call::new(Operation::AllReduce, E::FORMAT, target.bytes / size_of::<E>()).by(by);
        CallRequest::Collective { call, source, target }
    }

    /// Puts the elements of all members one after the other.
    pub fn all_gather<E: Number>(
        &self,
        device: &Device,
        mine: View<'_, E>,
        all: ViewMut<'_, E>,
    ) -> Result<(), CommError> {
        let (source, target) = (self.span(device, mine)?, self.span_mut(device, all)?);
        let request = self.all_gathering::<E>(source, target)?;
        self.run(request)
    }

    /// The same, where each member's elements already lie in their place of `all`.
    pub fn all_gather_in_place<E: Number>(
        &self,
        device: &Device,
        all: ViewMut<'_, E>,
    ) -> Result<(), CommError> {
        let target = self.span_mut(device, all)?;
        let source = self.own_part::<E>(target)?;
        let request = self.all_gathering::<E>(source, target)?;
        self.run(request)
    }

    fn all_gathering<E: Number>(&self, source: ByteSpan, target: ByteSpan) -> Result<CallRequest, CommError> {
        self.fits(source.bytes * self.members() == target.bytes, || {
            format!(
                "{} for all of {} members",
                lengths::<E>("part and whole", source, target),
                self.members()
            )
        })?;
        let call = Call::new(Operation::AllGather, E::FORMAT, source.bytes / size_of::<E>());
        Ok(CallRequest::Collective { call, source, target })
    }

    /// Combines the elements of all members and gives each member its part of the result.
    pub fn reduce_scatter<E: Number>(
        &self,
        device: &Device,
        all: View<'_, E>,
        mine: ViewMut<'_, E>,
        by: Reduction,
    ) -> Result<(), CommError> {
        let (source, target) = (self.span(device, all)?, self.span_mut(device, mine)?);
        let request = self.reduce_scattering::<E>(source, target, by)?;
        self.run(request)
    }

    /// The same, with the result in this member's place of `all`; the other places keep their elements.
    pub fn reduce_scatter_in_place<E: Number>(
        &self,
        device: &Device,
        all: ViewMut<'_, E>,
        by: Reduction,
    ) -> Result<(), CommError> {
        let source = self.span_mut(device, all)?;
        let target = self.own_part::<E>(source)?;
        let request = self.reduce_scattering::<E>(source, target, by)?;
        self.run(request)
    }

    fn reduce_scattering<E: Number>(
        &self,
        source: ByteSpan,
        target: ByteSpan,
        by: Reduction,
    ) -> Result<CallRequest, CommError> {
        self.fits(target.bytes * self.members() == source.bytes, || {
            format!(
                "{} for all of {} members",
                lengths::<E>("whole and part", source, target),
                self.members()
            )
        })?;
        let call = Call::new(Operation::ReduceScatter, E::FORMAT, target.bytes / size_of::<E>()).by(by);
        Ok(CallRequest::Collective { call, source, target })
    }

    /// Gives part `m` of the elements to member `m`, and puts what each member gives one after the other.
    pub fn all_to_all<E: Number>(
        &self,
        device: &Device,
        from: View<'_, E>,
        to: ViewMut<'_, E>,
    ) -> Result<(), CommError> {
        let (source, target) = (self.span(device, from)?, self.span_mut(device, to)?);
        let request = self.all_to_alling::<E>(source, target)?;
        self.run(request)
    }

    fn all_to_alling<E: Number>(&self, source: ByteSpan, target: ByteSpan) -> Result<CallRequest, CommError> {
        let elements = source.bytes / size_of::<E>();
        self.fits(source.bytes == target.bytes && elements.is_multiple_of(self.members()), || {
            format!("{} for {} members", lengths::<E>("source and target", source, target), self.members())
        })?;
        let call = Call::new(Operation::AllToAll, E::FORMAT, elements / self.members());
        Ok(CallRequest::Collective { call, source, target })
    }

    /// As [`all_to_all`](Self::all_to_all) with parts of any lengths: `sent[m]` elements go to member `m`, `received[m]` come from
    /// it. Members that expect another number than is sent get an error.
    pub fn all_to_all_v<E: Number>(
        &self,
        device: &Device,
        from: View<'_, E>,
        sent: &[usize],
        to: ViewMut<'_, E>,
        received: &[usize],
    ) -> Result<(), CommError> {
        let (source, target) = (self.span(device, from)?, self.span_mut(device, to)?);
        let request = self.unequal::<E>(source, sent, target, received)?;
        self.run(request)
    }

    fn unequal<E: Number>(
        &self,
        source: ByteSpan,
        sent: &[usize],
        target: ByteSpan,
        received: &[usize],
    ) -> Result<CallRequest, CommError> {
        let adds_up = |counts: &[usize], span: ByteSpan| {
            counts.len() == self.members()
                && counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count))
                    == Some(span.bytes / size_of::<E>())
        };
        self.fits(
            adds_up(sent, source)
                && adds_up(received, target)
                && sent[self.member()] == received[self.member()],
            || {
                format!(
                    "parts of {sent:?} to and {received:?} from {} members with buffers of {} and {} {}",
                    self.members(),
                    source.bytes / size_of::<E>(),
                    target.bytes / size_of::<E>(),
                    E::FORMAT
                )
            },
        )?;
        let call = Call::new(Operation::AllToAllV, E::FORMAT, 0);
        let (sent, received) = (sent.to_vec(), received.to_vec());
        Ok(CallRequest::Unequal { call, source, sent, target, received })
    }

    /// Gives the root's elements to all.
    pub fn broadcast<E: Number>(
        &self,
        device: &Device,
        elements: ViewMut<'_, E>,
        root: usize,
    ) -> Result<(), CommError> {
        let span = self.span_mut(device, elements)?;
        let request = self.broadcasting::<E>(span, root)?;
        self.run(request)
    }

    fn broadcasting<E: Number>(&self, span: ByteSpan, root: usize) -> Result<CallRequest, CommError> {
        let call =
            Call::new(Operation::Broadcast, E::FORMAT, span.bytes / size_of::<E>()).root(self.checked(root)?);
        Ok(CallRequest::Collective { call, source: span, target: span })
    }

    /// Combines the elements of all members at the root, which alone passes `into`.
    pub fn reduce<E: Number>(
        &self,
        device: &Device,
        from: View<'_, E>,
        into: Option<ViewMut<'_, E>>,
        root: usize,
        by: Reduction,
    ) -> Result<(), CommError> {
        let source = self.span(device, from)?;
        let target = self.of_root(device, into, root)?;
        let is_root = root == self.member();
        self.fits(!is_root || source.bytes == target.bytes, || {
            lengths::<E>("source and target", source, target)
        })?;
        let call = Call::new(Operation::Reduce, E::FORMAT, source.bytes / size_of::<E>());
        let call = call.by(by).root(self.checked(root)?);
        self.run(CallRequest::Collective { call, source, target })
    }

    /// Puts the elements of all members one after the other at the root, which alone passes `all`.
    pub fn gather<E: Number>(
        &self,
        device: &Device,
        mine: View<'_, E>,
        all: Option<ViewMut<'_, E>>,
        root: usize,
    ) -> Result<(), CommError> {
        let source = self.span(device, mine)?;
        let target = self.of_root(device, all, root)?;
        let is_root = root == self.member();
        self.fits(!is_root || source.bytes * self.members() == target.bytes, || {
            format!(
                "{} for all of {} members",
                lengths::<E>("part and whole", source, target),
                self.members()
            )
        })?;
        let call =
            Call::new(Operation::Gather, E::FORMAT, source.bytes / size_of::<E>()).root(self.checked(root)?);
        self.run(CallRequest::Collective { call, source, target })
    }

    /// Gives part `m` of the root's elements to member `m`; the root alone passes `all`.
    pub fn scatter<E: Number>(
        &self,
        device: &Device,
        all: Option<View<'_, E>>,
        mine: ViewMut<'_, E>,
        root: usize,
    ) -> Result<(), CommError> {
        let target = self.span_mut(device, mine)?;
        let source = all.map_or(Ok(ByteSpan::NOTHING), |all| self.span(device, all))?;
        let is_root = root == self.member();
        self.fits(!is_root || target.bytes * self.members() == source.bytes, || {
            format!(
                "{} for all of {} members",
                lengths::<E>("whole and part", source, target),
                self.members()
            )
        })?;
        let source = if is_root { source } else { ByteSpan::NOTHING };
        let call =
            Call::new(Operation::Scatter, E::FORMAT, target.bytes / size_of::<E>()).root(self.checked(root)?);
        self.run(CallRequest::Collective { call, source, target })
    }

    /// Returns when all members have called it.
    pub fn barrier(&self) -> Result<(), CommError> {
        let call = Call::new(Operation::Barrier, crate::ElementFormat::U8, 0);
        self.run(CallRequest::Collective { call, source: ByteSpan::NOTHING, target: ByteSpan::NOTHING })
    }

    /// Gives elements to a member that [receives](Self::receive) as many. Returns when they may be changed, which may be before
    /// the member has them. Two members that both send much before they receive wait for each other: use
    /// [`exchange`](Self::exchange).
    pub fn send<E: Number>(
        &self,
        device: &Device,
        elements: View<'_, E>,
        to: usize,
    ) -> Result<(), CommError> {
        let span = self.span(device, elements)?;
        let request = self.between::<E>(Operation::Send, Some((to, span)), None)?;
        self.run(request)
    }

    pub fn receive<E: Number>(
        &self,
        device: &Device,
        elements: ViewMut<'_, E>,
        from: usize,
    ) -> Result<(), CommError> {
        let span = self.span_mut(device, elements)?;
        let request = self.between::<E>(Operation::Receive, None, Some((from, span)))?;
        self.run(request)
    }

    /// Sends to one member and receives from another, or the same, at once.
    pub fn exchange<E: Number>(
        &self,
        device: &Device,
        (outgoing, to): (View<'_, E>, usize),
        (incoming, from): (ViewMut<'_, E>, usize),
    ) -> Result<(), CommError> {
        let (outgoing, incoming) = (self.span(device, outgoing)?, self.span_mut(device, incoming)?);
        let request = self.between::<E>(Operation::Exchange, Some((to, outgoing)), Some((from, incoming)))?;
        self.run(request)
    }

    fn between<E: Number>(
        &self,
        operation: Operation,
        to: Option<(usize, ByteSpan)>,
        from: Option<(usize, ByteSpan)>,
    ) -> Result<CallRequest, CommError> {
        for (peer, _) in to.iter().chain(&from) {
            self.checked(*peer)?;
            self.fits(*peer != self.member(), || format!("{operation} with member {peer}, which is itself"))?;
        }
        let bytes = to.iter().chain(&from).map(|(_, span)| span.bytes).max().unwrap_or(0);
        let call = Call::new(operation, E::FORMAT, bytes / size_of::<E>());
        Ok(CallRequest::Between { call, to, from })
    }

    /// This member's part of a whole.
    fn own_part<E: Number>(&self, whole: ByteSpan) -> Result<ByteSpan, CommError> {
        let elements = whole.bytes / size_of::<E>();
        self.fits(elements.is_multiple_of(self.members()), || {
            format!("{elements} {} cannot be divided among {} members", E::FORMAT, self.members())
        })?;
        let bytes = whole.bytes / self.members();
        Ok(whole.part(self.member() * bytes, bytes))
    }

    /// The target that only the root has.
    fn of_root<E: Number>(
        &self,
        device: &Device,
        target: Option<ViewMut<'_, E>>,
        root: usize,
    ) -> Result<ByteSpan, CommError> {
        let target = target.map_or(Ok(ByteSpan::NOTHING), |target| self.span_mut(device, target))?;
        Ok(if root == self.member() { target } else { ByteSpan::NOTHING })
    }

    fn checked(&self, member: usize) -> Result<u32, CommError> {
        self.fits(member < self.members(), || format!("member {member} of a group of {}", self.members()))?;
        Ok(member as u32)
    }

    /// Wrong arguments of one member are a fault for all: they would wait for it.
    fn fits(&self, is_right: bool, what: impl FnOnce() -> String) -> Result<(), CommError> {
        if is_right {
            return Ok(());
        }
        let what = format!("{} (group `{}`)", what(), self.name());
        Err(self.inner.place.core.fail(Fault::Arguments { rank: self.inner.place.core.rank, what }).into())
    }

    /// The elements of a call, with the GPU made known that they lie on.
    fn span<E: Number>(&self, device: &Device, view: View<'_, E>) -> Result<ByteSpan, CommError> {
        if !device.is_cpu() {
            self.transfers_of(device)?;
        }
        Ok(ByteSpan::of(device, view))
    }

    fn span_mut<E: Number>(&self, device: &Device, view: ViewMut<'_, E>) -> Result<ByteSpan, CommError> {
        if !device.is_cpu() {
            self.transfers_of(device)?;
        }
        Ok(ByteSpan::of_mut(device, view))
    }

    /// The stream of a GPU's transfers for this group. Panics for the processor.
    fn transfers_of(&self, device: &Device) -> Result<&Arc<Transfers>, CommError> {
        if let Some(transfers) = self.transfers.get() {
            return Ok(transfers);
        }
        let core = &self.inner.place.core;
        let failed = |error: CudaError| core.fail(Fault::Device { rank: core.rank, why: error.to_string() });
        let made = device.transfers().expect("a GPU has transfers").map_err(failed)?;
        Ok(self.transfers.get_or_init(|| made))
    }

    /// What a call on a GPU's elements comes after; nothing for the processor's, whose operators are done.
    fn on_gpu(&self, request: &CallRequest) -> Result<Option<OnGpu>, CommError> {
        let is_on_gpu = request.is_on_gpu();
        self.fits(is_on_gpu.is_some(), || {
            format!("elements of a GPU and of the processor in one {}", request.call())
        })?;
        let transfers = self.transfers.get().filter(|_| is_on_gpu == Some(true));
        Ok(transfers
            .map(|transfers| OnGpu { transfers: Arc::clone(transfers), operators: transfers.operators() }))
    }

    /// Carries a call out here, after those that were started before.
    fn run(&self, request: CallRequest) -> Result<(), CommError> {
        let on = self.on_gpu(&request)?;
        self.inner.run(&request, on)
    }

    /// Has the group's thread carry a call out. The buffers that it works on stay with the pending call.
    fn start<B>(&self, request: CallRequest, buffers: B) -> Result<Pending<B>, CommError> {
        let on = self.on_gpu(&request)?;
        Ok(Pending::new(buffers, Turns::start(&self.inner, request, on)))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.transfers.get().is_some() {
            // Here, and not in the group's thread: the program may end before that does, and NCCL with it.
            let gpus = self.inner.replace_gpus(GroupGpus::default());
            if self.inner.place.core.watch.check().is_ok() {
                gpus.end();
            }
        }
        self.inner.close();
    }
}

fn lengths<E: Number>(what: &str, source: ByteSpan, target: ByteSpan) -> String {
    let count = |span: ByteSpan| span.bytes / size_of::<E>();
    format!("{what} of {} and {} {}", count(source), count(target), E::FORMAT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ElementFormat, Rendezvous, World, WorldOptions};

    #[test]
    fn a_panic_in_a_collective_becomes_a_fault_with_its_words() {
        let alone = Rendezvous::on_this_machine(0, 1, 0, b"a secret of all ranks");
        let world = World::join(&alone, &WorldOptions::default()).unwrap();
        let group = world.everyone().unwrap();
        let call = Call::new(Operation::Barrier, ElementFormat::U8, 0);
        let outcome = group.inner.with_engine::<()>(call, |_, _| panic!("a planted bug"));
        let told = outcome.unwrap_err().to_string();
        assert!(told.contains("a bug in this program ended its") && told.contains("a planted bug"), "{told}");
        assert!(world.fault().is_some(), "the others are told");
        assert!(group.barrier().is_err());
    }
}
