//! What stages of a pipeline send each other.

use bedplate_comm::CommError;
use bedplate_kernels::{Buffer, Device};
use bedplate_network::Room;

use crate::links::Exchange;
use crate::pipeline::{Direction, Pass};
use crate::ranks::RunRanks;
use crate::trained::Trained;

/// Messages to and from neighbouring stages.
pub(super) struct Mail<E: Trained> {
    /// And their gradients.
    pub(super) streams: Exchange<E>,
    /// How busy experts are goes along with streams, and all of it comes back with gradients.
    pub(super) shares: Option<Exchange<f32>>,
}

/// Has the message come that the next pass begins with.
pub(super) fn expect<E: Trained>(
    device: &Device,
    ranks: &RunRanks,
    mail: &mut Option<Mail<E>>,
    next: Option<&Pass>,
) -> Result<(), CommError> {
    let (Some(mail), Some(next)) = (mail, next) else { return Ok(()) };
    match next.direction {
        Direction::Forward if !ranks.stage().is_first(next.chunk) => {
            mail.streams.forward_in.expect(device, ranks)
        }
        Direction::Backward if !ranks.stage().is_last(next.chunk) => {
            mail.streams.back_in.expect(device, ranks)
        }
        _ => Ok(()),
    }
}

impl<E: Trained> Mail<E> {
    pub(super) fn finish(&mut self, ranks: &RunRanks) -> Result<(), CommError> {
        self.streams.finish(ranks)?;
        self.shares.as_mut().map_or(Ok(()), |shares| shares.finish(ranks))
    }

    /// Adds the shares of this chunk's layers to those of the layers before.
    pub(super) fn forward_shares(
        &mut self,
        device: &Device,
        ranks: &RunRanks,
        room: &mut Room<'_, E>,
        shares: &mut Buffer<f32>,
        is_first: bool,
        is_last: bool,
    ) -> Result<(), CommError> {
        let Some(mail) = &mut self.shares else { return Ok(()) };
        match is_first {
            true => device.fill(shares.view_mut(), 0.0),
            false => mail.forward_in.take(device, ranks, shares.view_mut())?,
        }
        let own = room.expert_shares_mut();
        if !own.is_empty() {
            device.add(own.view(), shares.view_mut());
        }
        if !is_last {
            mail.forward_out.send(device, ranks, shares.view())?;
        }
        Ok(())
    }

    /// Puts the shares of all layers in place before the backward pass.
    pub(super) fn backward_shares(
        &mut self,
        device: &Device,
        ranks: &RunRanks,
        room: &mut Room<'_, E>,
        shares: &mut Buffer<f32>,
        is_first: bool,
        is_last: bool,
    ) -> Result<(), CommError> {
        let Some(mail) = &mut self.shares else { return Ok(()) };
        if !is_last {
            mail.back_in.take(device, ranks, shares.view_mut())?;
        }
        let own = room.expert_shares_mut();
        if !own.is_empty() {
            device.copy(shares.view(), own);
        }
        if !is_first {
            mail.back_out.send(device, ranks, shares.view())?;
        }
        Ok(())
    }
}
