//! What carries a group's calls out: the ways that this group has, and the choice between them.

use crate::channels::Channels;
use crate::choice::{Algorithm, AlgorithmTable};
use crate::gpu::GroupGpus;
use crate::layered::{Layered, alone};
use crate::shared::SharedGroup;
use crate::shared::flag::WaitPace;
use crate::span::ByteSpan;
use crate::waiting::Waiting;
use crate::{Call, Fault, Operation};

/// The ways to the other members; a group of one has none.
pub(crate) struct GroupEngine {
    pub(crate) shared: Option<SharedGroup>,
    pub(crate) layered: Option<Layered>,
    pub(crate) channels: Option<Channels>,
    pub(crate) gpus: GroupGpus,
    pub(crate) table: AlgorithmTable,
    pub(crate) number: u64,
}

/// A call with the addresses that it works on.
#[derive(Debug, Clone)]
pub(crate) enum CallRequest {
    Collective { call: Call, source: ByteSpan, target: ByteSpan },
    Unequal { call: Call, source: ByteSpan, sent: Vec<usize>, target: ByteSpan, received: Vec<usize> },
    Between { call: Call, to: Option<(usize, ByteSpan)>, from: Option<(usize, ByteSpan)> },
}

impl CallRequest {
    pub(crate) fn call(&self) -> Call {
        match self {
            CallRequest::Collective { call, .. }
            | CallRequest::Unequal { call, .. }
            | CallRequest::Between { call, .. } => *call,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            CallRequest::Collective { source, target, .. } | CallRequest::Unequal { source, target, .. } => {
                source.bytes.max(target.bytes)
            }
            CallRequest::Between { to, from, .. } => to.iter().chain(from).map(|(_, span)| span.bytes).sum(),
        }
    }

    /// Whether it is about a GPU's elements. None where it mixes them with the processor's.
    pub(crate) fn is_on_gpu(&self) -> Option<bool> {
        let spans: Vec<ByteSpan> = match self {
            CallRequest::Collective { source, target, .. } | CallRequest::Unequal { source, target, .. } => {
                vec![*source, *target]
            }
            CallRequest::Between { to, from, .. } => to.iter().chain(from).map(|(_, span)| *span).collect(),
        };
        let is_on_gpu = spans.iter().any(|span| span.is_on_gpu);
        let is_mixed = is_on_gpu && spans.iter().any(|span| !span.is_on_gpu && span.bytes > 0);
        (!is_mixed).then_some(is_on_gpu)
    }
}

/// A collective under way: what was called, the elements on this member, and how it waits.
#[derive(Clone, Copy)]
pub(crate) struct CollectiveTask<'a> {
    pub(crate) call: &'a Call,
    pub(crate) source: ByteSpan,
    pub(crate) target: ByteSpan,
    pub(crate) waiting: &'a Waiting<'a>,
}

impl<'a> CollectiveTask<'a> {
    /// A step of this collective: another call, which waits as this one does.
    pub(crate) fn step<'b>(&self, call: &'b Call, source: ByteSpan, target: ByteSpan) -> CollectiveTask<'b>
    where
        'a: 'b,
    {
        CollectiveTask { call, source, target, waiting: self.waiting }
    }
}

impl GroupEngine {
    pub(crate) fn set_pace(&mut self, pace: WaitPace) {
        self.shared.iter_mut().for_each(|shared| shared.set_pace(pace));
        self.layered.iter_mut().for_each(|layered| layered.set_pace(pace));
        self.channels.iter_mut().for_each(|channels| channels.set_pace(pace));
    }

    pub(crate) fn algorithm(&self, operation: Operation, bytes: u64, members: usize) -> Algorithm {
        let call = Call::new(operation, crate::ElementFormat::F32, 0);
        let is_equal = operation.is_collective() && operation != Operation::AllToAllV;
        if self.shared.is_some() && is_equal {
            Algorithm::Shared
        } else if self.layered.as_ref().is_some_and(|layered| is_equal && layered.takes(&call)) {
            Algorithm::Layered
        } else {
            self.table.choose(operation, bytes, members as u32)
        }
    }

    pub(crate) fn run(&mut self, request: &CallRequest, waiting: &Waiting<'_>) -> Result<(), Fault> {
        match request {
            CallRequest::Collective { call, source, target } => {
                self.run_collective(&CollectiveTask { call, source: *source, target: *target, waiting })
            }
            CallRequest::Unequal { call, source, sent, target, received } => match &mut self.channels {
                Some(channels) => {
                    let task = CollectiveTask { call, source: *source, target: *target, waiting };
                    channels.all_to_all_v(&task, sent, received)
                }
                None => {
                    alone(*source, *target);
                    Ok(())
                }
            },
            CallRequest::Between { call, to, from } => {
                let channels = self.channels.as_mut().expect("a peer was checked to be another member");
                channels.between(call, *to, *from, waiting)
            }
        }
    }

    fn run_collective(&mut self, task: &CollectiveTask<'_>) -> Result<(), Fault> {
        let CollectiveTask { call, source, target, .. } = *task;
        let bytes = source.bytes.max(target.bytes) as u64;
        if let Some(shared) = &mut self.shared {
            return shared.run(task);
        }
        if let Some(layered) = self.layered.as_mut().filter(|layered| layered.takes(call)) {
            return layered.run(task);
        }
        match &mut self.channels {
            Some(channels) => {
                let algorithm = self.table.choose(call.operation, bytes, channels.members() as u32);
                channels.run(task, algorithm)
            }
            None => {
                alone(source, target);
                Ok(())
            }
        }
    }
}
