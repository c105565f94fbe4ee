//! Calls that a thread of the group carries out while its rank computes.

use bedplate_kernels::Device;

use super::{Elements, Group};
use crate::pending::Pending;
use crate::{CommError, Number, Operation, Reduction};

impl Group {
    /// As [`all_reduce`](Self::all_reduce), while this rank computes.
    pub fn start_all_reduce<E: Number, B: Elements<E>>(
        &self,
        device: &Device,
        mut elements: B,
        by: Reduction,
    ) -> Result<Pending<B>, CommError> {
        let span = self.span_mut(device, elements.view_mut())?;
        self.start(self.all_reducing::<E>(span, span, by), elements)
    }

    /// As [`all_gather`](Self::all_gather), while this rank computes.
    pub fn start_all_gather<E: Number, A: Elements<E>, B: Elements<E>>(
        &self,
        device: &Device,
        mine: A,
        mut all: B,
    ) -> Result<Pending<(A, B)>, CommError> {
        let (source, target) = (self.span(device, mine.view())?, self.span_mut(device, all.view_mut())?);
        let request = self.all_gathering::<E>(source, target)?;
        self.start(request, (mine, all))
    }

    /// As [`reduce_scatter_in_place`](Self::reduce_scatter_in_place), while this rank computes.
    pub fn start_reduce_scatter_in_place<E: Number, B: Elements<E>>(
        &self,
        device: &Device,
        mut all: B,
        by: Reduction,
    ) -> Result<Pending<B>, CommError> {
        let source = self.span_mut(device, all.view_mut())?;
        let request = self.reduce_scattering::<E>(source, self.own_part::<E>(source)?, by)?;
        self.start(request, all)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), while this rank computes.
    pub fn start_reduce_scatter<E: Number, A: Elements<E>, B: Elements<E>>(
        &self,
        device: &Device,
        all: A,
        mut mine: B,
        by: Reduction,
    ) -> Result<Pending<(A, B)>, CommError> {
        let (source, target) = (self.span(device, all.view())?, self.span_mut(device, mine.view_mut())?);
        let request = self.reduce_scattering::<E>(source, target, by)?;
        self.start(request, (all, mine))
    }

    /// As [`send`](Self::send), while this rank computes.
    pub fn start_send<E: Number, B: Elements<E>>(
        &self,
        device: &Device,
        elements: B,
        to: usize,
    ) -> Result<Pending<B>, CommError> {
        let span = self.span(device, elements.view())?;
        let request = self.between::<E>(Operation::Send, Some((to, span)), None)?;
        self.start(request, elements)
    }

    /// As [`receive`](Self::receive), while this rank computes.
    pub fn start_receive<E: Number, B: Elements<E>>(
        &self,
        device: &Device,
        mut elements: B,
        from: usize,
    ) -> Result<Pending<B>, CommError> {
        let span = self.span_mut(device, elements.view_mut())?;
        let request = self.between::<E>(Operation::Receive, None, Some((from, span)))?;
        self.start(request, elements)
    }
}
