//! What carries a group's calls out: the ways that this group has, and the choice between them.

use crate::channels::Channels;
use crate::choice::{Algorithm, Table};
use crate::gpu::Gpus;
use crate::layered::{Layered, alone};
use crate::shared::Shared;
use crate::shared::flag::Pace;
use crate::span::Span;
use crate::waiting::Waiting;
use crate::{Call, Fault, Operation};

/// The ways to the other members; a group of one has none.
pub(crate) struct Engine {
    pub(crate) shared: Option<Shared>,
    pub(crate) layered: Option<Layered>,
    pub(crate) channels: Option<Channels>,
    pub(crate) gpus: Gpus,
    pub(crate) table: Table,
    pub(crate) number: u64,
}

/// A call with the addresses that it works on.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Collective { call: Call, source: Span, target: Span },
    Unequal { call: Call, source: Span, sent: Vec<usize>, target: Span, received: Vec<usize> },
    Between { call: Call, to: Option<(usize, Span)>, from: Option<(usize, Span)> },
}

impl Request {
    pub(crate) fn call(&self) -> Call {
        match self {
            Request::Collective { call, .. }
            | Request::Unequal { call, .. }
            | Request::Between { call, .. } => *call,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Request::Collective { source, target, .. } | Request::Unequal { source, target, .. } => {
                source.bytes.max(target.bytes)
            }
            Request::Between { to, from, .. } => to.iter().chain(from).map(|(_, span)| span.bytes).sum(),
        }
    }

    /// Whether it is about a GPU's elements. None where it mixes them with the processor's.
    pub(crate) fn is_on_gpu(&self) -> Option<bool> {
        let spans: Vec<Span> = match self {
            Request::Collective { source, target, .. } | Request::Unequal { source, target, .. } => {
                vec![*source, *target]
            }
            Request::Between { to, from, .. } => to.iter().chain(from).map(|(_, span)| *span).collect(),
        };
        let is_on_gpu = spans.iter().any(|span| span.is_on_gpu);
        let is_mixed = is_on_gpu && spans.iter().any(|span| !span.is_on_gpu && span.bytes > 0);
        (!is_mixed).then_some(is_on_gpu)
    }
}

impl Engine {
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.shared.iter_mut().for_each(|shared| shared.set_pace(pace));
        self.layered.iter_mut().for_each(|layered| layered.set_pace(pace));
        self.channels.iter_mut().for_each(|channels| channels.set_pace(pace));
    }

    pub(crate) fn algorithm(&self, operation: Operation, bytes: u64, members: usize) -> Algorithm {
        let call = Call::new(operation, crate::Format::F32, 0);
        let is_equal = operation.is_collective() && operation != Operation::AllToAllV;
        if self.shared.is_some() && is_equal {
            Algorithm::Shared
        } else if self.layered.as_ref().is_some_and(|layered| is_equal && layered.takes(&call)) {
            Algorithm::Layered
        } else {
            self.table.choose(operation, bytes, members as u32)
        }
    }

    pub(crate) fn run(&mut self, request: &Request, waiting: &Waiting<'_>) -> Result<(), Fault> {
        match request {
            Request::Collective { call, source, target } => {
                self.run_collective(call, *source, *target, waiting)
            }
            Request::Unequal { call, source, sent, target, received } => match &mut self.channels {
                Some(channels) => channels.all_to_all_v(call, *source, sent, *target, received, waiting),
                None => {
                    alone(*source, *target);
                    Ok(())
                }
            },
            Request::Between { call, to, from } => {
                let channels = self.channels.as_mut().expect("a peer was checked to be another member");
                channels.between(call, *to, *from, waiting)
            }
        }
    }

    fn run_collective(
        &mut self,
        call: &Call,
        source: Span,
        target: Span,
        waiting: &Waiting<'_>,
    ) -> Result<(), Fault> {
        let bytes = source.bytes.max(target.bytes) as u64;
        if let Some(shared) = &mut self.shared {
            return shared.run(call, source, target, waiting);
        }
        if let Some(layered) = self.layered.as_mut().filter(|layered| layered.takes(call)) {
            return layered.run(call, source, target, waiting);
        }
        match &mut self.channels {
            Some(channels) => {
                let algorithm = self.table.choose(call.operation, bytes, channels.members() as u32);
                channels.run(call, source, target, algorithm, waiting)
            }
            None => {
                alone(source, target);
                Ok(())
            }
        }
    }
}
