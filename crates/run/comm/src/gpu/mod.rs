//! Calls on elements in a GPU's memory: by NCCL, or through the processor's memory.
//!
//! A group that is first asked for such elements agrees on a version of NCCL and makes a communicator; the members meet by the ways that they have for
//! the processor's elements. Calls run on a stream of their own, after the operators that were asked for before them, and a wait that is given up
//! [aborts](Communicator) the communicator: a rank that is lost ends GPU calls as it ends all others.
//!
//! Where [the transport](crate::Transport) is set to something else than `auto`, and for single messages in groups of more than two, elements go through the
//! processor's memory instead.
//!
//! A call of the driver that fails, or one inside NCCL, is [the first error of this rank's GPU](Transfers::check): no call is begun on a GPU that has one, so what
//! it computed is not reduced into the elements of other ranks. They learn of it by [`Fault::Device`].
//!
//! What differs from the other ways: NCCL rounds 16-bit numbers at every hop, its reductions of NaN are its own, and members of an `all_to_all_v` that
//! expect other lengths than are sent are found by patience alone.

mod communicator;
mod handshake_info;
mod library;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bedplate_kernels::{CudaError, Moment, Transfers};

use crate::engine::{CallRequest, GroupEngine};
use crate::rendezvous::Transport;
use crate::span::ByteSpan;
use crate::waiting::Waiting;
use crate::{Call, ElementFormat, Fault, Operation};
use communicator::Communicator;
use handshake_info::HandshakeInfo;
use library::{Nccl, UniqueId};

/// A group's way between GPUs.
#[derive(Default)]
pub(crate) struct GroupGpus {
    communicator: Option<Communicator>,
}

impl GroupGpus {
    /// Lets go of it in good order: what was sent may still be on its way to a peer. Merely dropped, it is given up.
    pub(crate) fn end(self) {
        self.communicator.into_iter().for_each(Communicator::end);
    }
}

/// A part of a group, and this member's place in it.
pub(crate) struct GroupPart<'a> {
    pub(crate) colour: u32,
    pub(crate) me: usize,
    pub(crate) members: usize,
    pub(crate) transfers: &'a Arc<Transfers>,
}

/// The GPU whose elements a call is about, and what its operators had been asked for when the call was made.
pub(crate) struct OnGpu {
    pub(crate) transfers: Arc<Transfers>,
    pub(crate) operators: Result<Moment, CudaError>,
}

impl OnGpu {
    /// Orders what comes next on the stream of transfers behind the operators.
    fn begin(&self, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let begun = match &self.operators {
            Ok(operators) => self.transfers.wait_for(operators).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        begun.map_err(|why| trouble(&why, &self.transfers, waiting))
    }

    /// What any collective of one member is.
    fn copy(&self, source: ByteSpan, target: ByteSpan, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let refused = |error: CudaError| trouble(&error.to_string(), &self.transfers, waiting);
        if source.bytes == target.bytes && source.address != target.address {
            let (from, to) = (source.address.addr() as u64, target.address.addr() as u64);
            self.transfers.copy(from, to, source.bytes).map_err(refused)?;
        }
        let done = self.transfers.transfers().map_err(refused)?;
        wait(&self.transfers, waiting, || done.has_passed().map_err(|error| error.to_string()))
    }
}

/// Whether a call goes through the processor's memory, which all members decide alike.
pub(crate) fn is_staged(operation: Operation, members: usize, transport: Transport) -> bool {
    let is_single = matches!(operation, Operation::Send | Operation::Receive);
    (is_single && members > 2) || transport != Transport::Automatic
}

impl GroupEngine {
    /// Carries out a call on a GPU's elements.
    pub(crate) fn run_on_gpu(
        &mut self,
        request: &CallRequest,
        on: &OnGpu,
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        on.begin(waiting)?;
        let members = waiting.ranks.len();
        if let (
            1,
            CallRequest::Collective { source, target, .. } | CallRequest::Unequal { source, target, .. },
        ) = (members, request)
        {
            return on.copy(*source, *target, waiting);
        }
        if is_staged(request.call().operation, members, waiting.core.options.transport) {
            return self.run_staged(request, on, waiting);
        }
        if self.gpus.communicator.is_none() {
            self.meet(&on.transfers, waiting)?;
        }
        let communicator = self.gpus.communicator.as_mut().expect("the members have met");
        communicator.run(request, waiting)
    }

    /// Makes the ways between the GPUs of this group and of parts of it; a part is named by its colour, absent where this member is in none. All members
    /// have as many.
    pub(crate) fn meet_with_parts(
        &mut self,
        transfers: &Arc<Transfers>,
        parts: &[Option<GroupPart<'_>>],
        waiting: &Waiting<'_>,
    ) -> Result<Vec<GroupGpus>, Fault> {
        if is_staged(Operation::AllReduce, waiting.ranks.len(), waiting.core.options.transport) {
            return Ok(parts.iter().map(|_| GroupGpus::default()).collect());
        }
        if self.gpus.communicator.is_none() {
            self.meet(transfers, waiting)?;
        }
        let whole = self.gpus.communicator.as_ref().expect("the members have met");
        let split = |part: &Option<GroupPart<'_>>| match part {
            Some(part) => whole.split(Some(part.colour), (part.me, part.members), part.transfers, waiting),
            None => whole.split(None, (0, 0), transfers, waiting),
        };
        let made: Result<Vec<GroupGpus>, Fault> =
            parts.iter().map(|part| Ok(GroupGpus { communicator: split(part)? })).collect();
        if made.is_err() {
            // NCCL's own threads are still about the split.
            self.gpus = GroupGpus::default();
        }
        made
    }

    /// Makes the communicator: members show their handshake info, and the first has made what they meet by.
    fn meet(&mut self, transfers: &Arc<Transfers>, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let (ranks, rank) = (waiting.ranks, waiting.core.rank);
        let me = ranks.iter().position(|member| *member == rank).expect("the caller is a member");
        let found = Nccl::get();
        let mut id = UniqueId([0; UniqueId::BYTES]);
        if let (0, Ok(nccl)) = (me, found) {
            let answer = nccl.functions.unique_id(&mut id);
            if answer != library::DONE {
                return Err(trouble(&nccl.explain(answer), transfers, waiting));
            }
        }
        let info = HandshakeInfo::new(found.map(|nccl| nccl.version), id).bytes();
        let mut infos = vec![0; ranks.len() * HandshakeInfo::BYTES];
        let call = Call::new(Operation::AllGather, ElementFormat::U8, HandshakeInfo::BYTES);
        // One member may be about to send and another to receive.
        let meeting = Waiting {
            call,
            number: self.number,
            waited: RefCell::default(),
            has_asked: Cell::default(),
            ..*waiting
        };
        let shown = ByteSpan::over(&info);
        let gathered = ByteSpan::over_mut(&mut infos);
        self.run(&CallRequest::Collective { call, source: shown, target: gathered }, &meeting)?;
        self.number += 1;
        let infos: Vec<HandshakeInfo> =
            infos.chunks_exact(HandshakeInfo::BYTES).map(HandshakeInfo::read).collect();
        let id = handshake_info::agree(&infos, ranks).map_err(|(rank, why)| Fault::Gpu { rank, why })?;
        // The library's own words are for the rank that lacks it.
        let nccl = found.map_err(|why| Fault::Gpu { rank, why: why.to_owned() })?;
        let joined = Communicator::join((nccl, id), (me, ranks.len()), transfers, waiting)?;
        self.gpus.communicator = Some(joined);
        Ok(())
    }

    /// Brings elements to the processor's memory, has the call carried out there, and takes what came back.
    fn run_staged(&mut self, request: &CallRequest, on: &OnGpu, waiting: &Waiting<'_>) -> Result<(), Fault> {
        let refused = |error: CudaError| trouble(&error.to_string(), &on.transfers, waiting);
        let fetched = |span: ByteSpan| -> Result<Vec<u8>, Fault> {
            let mut bytes = vec![0; span.bytes];
            if span.bytes > 0 {
                on.transfers.read(span.address.addr() as u64, &mut bytes).map_err(refused)?;
            }
            Ok(bytes)
        };
        let put = |bytes: &[u8], span: ByteSpan| match bytes.is_empty() {
            true => Ok(()),
            false => on.transfers.write(bytes, span.address.addr() as u64).map_err(refused),
        };
        match request {
            CallRequest::Collective { call, source, target } => {
                let (mut given, mut got) = (fetched(*source)?, fetched(*target)?);
                let spans = (ByteSpan::over_mut(&mut given), ByteSpan::over_mut(&mut got));
                self.run(
                    &CallRequest::Collective { call: *call, source: spans.0, target: spans.1 },
                    waiting,
                )?;
                put(&got, *target)
            }
            CallRequest::Unequal { call, source, sent, target, received } => {
                let (given, mut got) = (fetched(*source)?, vec![0; target.bytes]);
                let (source, to, target) = (ByteSpan::over(&given), *target, ByteSpan::over_mut(&mut got));
                let (sent, received) = (sent.clone(), received.clone());
                self.run(&CallRequest::Unequal { call: *call, source, sent, target, received }, waiting)?;
                put(&got, to)
            }
            CallRequest::Between { call, to, from } => {
                let given = to.map(|(_, span)| fetched(span)).transpose()?;
                let mut got = from.map(|(_, span)| vec![0; span.bytes]);
                let staged = CallRequest::Between {
                    call: *call,
                    to: to.zip(given.as_ref()).map(|((peer, _), bytes)| (peer, ByteSpan::over(bytes))),
                    from: from.zip(got.as_mut()).map(|((peer, _), bytes)| (peer, ByteSpan::over_mut(bytes))),
                };
                self.run(&staged, waiting)?;
                from.zip(got).map_or(Ok(()), |((_, span), bytes)| put(&bytes, span))
            }
        }
    }
}

/// Why a call of NCCL or the driver failed: the first error of this rank's GPU, a fault of the world that explains it, or what the library says.
fn trouble(why: &str, transfers: &Transfers, waiting: &Waiting<'_>) -> Fault {
    let rank = waiting.core.rank;
    if let Err(error) = transfers.check() {
        return Fault::Device { rank, why: error.to_string() };
    }
    waiting.core.explained().unwrap_or_else(|| Fault::Gpu { rank, why: why.to_owned() })
}

/// Looks without sleeping, then naps: what is waited for takes from ten microseconds to seconds.
const LOOKS: u32 = 200;
const NAP: Duration = Duration::from_micros(20);
/// Looks after which a wait may take its time.
const SHORT: u32 = 700;
const LONG_NAP: Duration = Duration::from_millis(1);

/// Looks until something is so, the world has a fault or patience has run out.
fn wait(
    transfers: &Transfers,
    waiting: &Waiting<'_>,
    mut is_so: impl FnMut() -> Result<bool, String>,
) -> Result<(), Fault> {
    let nobody = || Vec::new();
    let mut check = waiting.checks(&nobody);
    for round in 0u32.. {
        if is_so().map_err(|why| trouble(&why, transfers, waiting))? {
            break;
        }
        let nap = match round {
            0..LOOKS => Duration::ZERO,
            LOOKS..SHORT => NAP,
            _ => LONG_NAP,
        };
        if nap.is_zero() {
            std::hint::spin_loop();
        } else {
            thread::sleep(nap);
        }
        check(nap)?;
    }
    Ok(())
}
