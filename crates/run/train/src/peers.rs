//! What blocks need of other ranks while they are computed, through the groups of a run.

use std::sync::Arc;

use bedplate_comm::{Group, Reduction};
use bedplate_kernels::{Device, View, ViewMut};
use bedplate_network::{Among, Peers};

use crate::ranks::RunRanks;

/// The ranks of a run as a network sees them.
pub(crate) struct Company(pub(crate) Arc<RunRanks>);

const HAS_GROUP: &str = "a rank that shares has a group";

impl Company {
    /// Makes a call unless the ranks can no longer work together.
    fn call(&self, call: impl FnOnce() -> Result<(), bedplate_comm::CommError>) {
        if self.0.check().is_ok() {
            self.0.note(self.0.waits.time(call));
        }
    }

    fn tensor(&self) -> &Group {
        self.0.tensor.as_ref().expect(HAS_GROUP)
    }
}

impl Peers for Company {
    fn sum(&self, device: &Device, among: Among, partial: ViewMut<'_, f32>) {
        let group = match among {
            Among::Tensor => self.tensor(),
            Among::Context => self.0.context.as_ref().expect(HAS_GROUP),
        };
        self.call(|| group.all_reduce(device, partial, Reduction::Sum));
    }

    fn gather(&self, device: &Device, from: View<'_, u8>, to: ViewMut<'_, u8>) {
        self.call(|| self.tensor().all_gather(device, from, to));
    }

    fn scatter_sums(&self, device: &Device, from: View<'_, f32>, to: ViewMut<'_, f32>) {
        self.call(|| self.tensor().reduce_scatter(device, from, to, Reduction::Sum));
    }

    fn pass_on(&self, device: &Device, outgoing: View<'_, u8>, incoming: ViewMut<'_, u8>) {
        let group = self.0.context.as_ref().expect(HAS_GROUP);
        let (me, count) = (group.member(), group.members());
        let (next, before) = ((me + 1) % count, (me + count - 1) % count);
        self.call(|| group.exchange(device, (outgoing, next), (incoming, before)));
    }

    fn exchange(
        &self,
        device: &Device,
        (outgoing, sent): (View<'_, u8>, &[usize]),
        (incoming, received): (ViewMut<'_, u8>, &[usize]),
    ) {
        let group = self.0.experts.as_ref().expect(HAS_GROUP);
        self.call(|| group.all_to_all_v(device, outgoing, sent, incoming, received));
    }
}
