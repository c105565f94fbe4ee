//! What the ranks that share a layer exchange, and how much of it is exposed.
//!
//! Tensor and expert traffic share one cover: the layer's own work, or its work outside attention where
//! context parallelism hides its ring behind attention. Nothing is hidden twice.

use bedplate_transformer::Attention;

use crate::block::{LayerSplit, Sum};
use crate::collective::{CollectiveTraffic, RankGroup, TokenCopies};
use crate::problem::Problem;
use crate::{Dispatcher, ExpertOverlap};

/// Communication of a layer: what moves and how much of it is exposed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LayerExchange {
    pub(crate) traffic: CollectiveTraffic,
    pub(crate) exposed: f64,
}

/// The exchanges of a layer, forward and backward.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Exchanges {
    pub(crate) tensor: LayerExchange,
    pub(crate) context: LayerExchange,
    pub(crate) expert: LayerExchange,
}

impl Exchanges {
    pub(crate) fn exposed(&self) -> f64 {
        self.tensor.exposed + self.context.exposed + self.expert.exposed
    }
}

impl Problem {
    /// Hides the exchanges of a layer behind its work, of which `attention` seconds are attention.
    /// `repeat` is how often the forward pass runs, averaged with the backward pass.
    pub(crate) fn exchanges(
        &self,
        sum: &Sum,
        split: &LayerSplit,
        work: f64,
        attention: f64,
        repeat: f64,
        overlap: ExpertOverlap,
    ) -> Exchanges {
        let tensor = sum.tensor * (2.0 * repeat);
        let expert = sum.expert * repeat;
        let context = sum.context * repeat;
        let is_inside = self.links.is_inside(RankGroup::new(split.tensor, 1.0));
        let tensor_share = if is_inside { self.profile.tensor_uncovered } else { 1.0 };
        let expert_share = match overlap {
            ExpertOverlap::Serial => self.constants.expert_uncovered,
            ExpertOverlap::Overlapped => self.constants.expert_uncovered * self.constants.expert_overlap,
        };
        let cover = if context.busy() > 0.0 { work - attention } else { work };
        let behind = |share: f64, traffic: CollectiveTraffic| (1.0 - share) * traffic.busy();
        let (tensor_behind, expert_behind) = (behind(tensor_share, tensor), behind(expert_share, expert));
        let together = tensor_behind + expert_behind;
        let slowdown = self.contention.exposed(cover, together);
        let part = |share: f64, traffic: CollectiveTraffic, behind: f64| {
            let of_slowdown = if together > 0.0 { slowdown * behind / together } else { 0.0 };
            LayerExchange { traffic, exposed: share * traffic.busy() + of_slowdown }
        };
        Exchanges {
            tensor: part(tensor_share, tensor, tensor_behind),
            context: LayerExchange {
                traffic: context,
                exposed: self.contention.exposed(attention, context.busy()),
            },
            expert: part(expert_share, expert, expert_behind),
        }
    }

    /// The two all-reduces of a tensor-parallel half layer, forward and backward: with sequence
    /// parallelism each is a gather and a scatter of the same bytes.
    pub(crate) fn tensor_exchange(&self, split: &LayerSplit) -> CollectiveTraffic {
        let bytes = split.tokens * self.hidden * 2.0;
        self.links.gather(RankGroup::new(split.tensor, 1.0), bytes) * 2.0
    }

    /// Keys and values of the other context ranks travel around a ring, forward and backward; heads with a state change ranks.
    pub(crate) fn context_exchange(&self, attention: &Attention, split: &LayerSplit) -> CollectiveTraffic {
        if split.context <= 1.0 {
            return CollectiveTraffic::default();
        }
        if let Attention::Recurrent(state) = attention {
            // Ranks swap tokens for heads before the scan and back after it.
            let wide = 2.0 * (state.keys_wide() + state.values_wide()) as f64;
            let bytes = split.tokens * wide / split.tensor * 2.0;
            return self.links.alltoall(
                RankGroup::new(split.context, split.tensor),
                bytes,
                TokenCopies::PerExpert,
            ) * 4.0;
        }
        let kv = attention.kv_heads() as f64 * (attention.query_dim() + attention.value_dim()) as f64;
        let bytes = split.tokens * kv / split.tensor * 2.0;
        let hops =
            self.links.pass(RankGroup::new(split.context, split.tensor), bytes) * (split.context - 1.0);
        // The backward ring carries gradients as well as keys and values.
        hops * 3.0
    }

    /// Dispatch and combine, forward and backward, and the gathers of a tensor group inside experts.
    pub(crate) fn expert_exchange(&self, visits: f64, split: &LayerSplit) -> CollectiveTraffic {
        let bytes = split.tokens / split.tensor
            * visits
            * self.hidden
            * 2.0
            * self.workload.routing.peak(split.expert);
        let copies = match self.workload.dispatcher {
            Dispatcher::AllToAll => TokenCopies::PerExpert,
            Dispatcher::Deduplicating => TokenCopies::PerDomain { visits },
        };
        let alltoall = self.links.alltoall(RankGroup::new(split.expert, split.expert_tensor), bytes, copies);
        let gather = self.links.gather(RankGroup::new(split.expert_tensor, 1.0), bytes * split.expert_tensor);
        (alltoall + gather) * 4.0
    }
}
