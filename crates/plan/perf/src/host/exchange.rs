//! What the ranks of a host exchange: inside layers, and around micro-batches and steps.
//!
//! Nothing is hidden: ranks that exchange through memory do it with the cores that would compute meanwhile.

use bedplate_layout::{Recompute, Sharding};
use bedplate_transformer::workspace::Widths;

use super::collectives::Collective::{self, AllGather, AllReduce, AllToAll, Exchange, ReduceScatter};
use super::part::{self, BlockWeights, ModelBlocks, Sharers, splits_gradients, splits_weights};
use super::{HostModel, WIDE, element_bytes};
use crate::collective::CollectiveTraffic;
use crate::exchange::{Exchanges, LayerExchange};
use crate::{Grid, LayerKey};

/// Seconds of collectives on one stage beyond those inside layers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shares {
    /// For every micro-batch.
    pub(super) each: f64,
    /// Once a step.
    pub(super) once: f64,
}

impl HostModel {
    /// Seconds of one call in a group, of which several may work at once: ranks that have no core of their own take turns.
    fn call(&self, operation: Collective, group: u32, bytes: f64) -> f64 {
        if group < 2 || bytes <= 0.0 {
            return 0.0;
        }
        let turns = (self.ranks / f64::from(group).max(f64::from(self.rates.threads))).max(1.0);
        let measured = self.collectives.seconds(operation, group, bytes);
        turns * measured.unwrap_or_else(|| self.message(bytes))
    }

    /// A message through memory: copied out, over and in, each of which reads and writes it.
    pub(super) fn message(&self, bytes: f64) -> f64 {
        const COPIES: f64 = 3.0;
        COPIES * 2.0 * bytes / self.rates.copy.get()
    }

    /// The first operation of a layout that was not measured, with the size of its group. Messages have a price without that.
    pub(crate) fn unmeasured(&self, key: &LayerKey, grid: &Grid) -> Option<(Collective, u32)> {
        let mut needed = vec![(AllReduce, self.ranks as u32)];
        let tensor: &[Collective] = match key.is_sequence_parallel {
            true => &[AllGather, ReduceScatter, AllReduce],
            false => &[AllReduce],
        };
        needed.extend(tensor.iter().map(|operation| (*operation, key.tensor)));
        needed.push((AllToAll, key.expert));
        for Sharers { split, copies } in part::sharers(key, grid) {
            needed.extend([(AllGather, split), (ReduceScatter, split), (AllReduce, copies)]);
        }
        let is_missing =
            |(operation, group): &(Collective, u32)| *group > 1 && !self.collectives.has(*operation, *group);
        needed.into_iter().find(is_missing)
    }

    /// Of one layer and micro-batch, forward and backward.
    pub(super) fn layer_exchanges(&self, key: &LayerKey, widths: &Widths) -> Exchanges {
        let again = if key.recompute == Recompute::Full { 1.0 } else { 0.0 };
        let shared = |seconds: f64| LayerExchange {
            traffic: CollectiveTraffic { up: seconds, out: 0.0 },
            exposed: seconds,
        };
        Exchanges {
            tensor: shared(self.tensor_exchange(key, again)),
            context: shared(self.ring(key, widths, again)),
            expert: shared(self.dispatch(key, widths)),
        }
    }

    fn tensor_exchange(&self, key: &LayerKey, again: f64) -> f64 {
        let numbers = (self.rows(key) * self.hidden) as f64;
        let sum = |operation| self.call(operation, key.tensor, numbers * WIDE);
        let gather = self.call(AllGather, key.tensor, numbers * element_bytes(key.precision));
        match key.is_sequence_parallel {
            // Two in each pass, one for attention and one for the MLP.
            false => sum(AllReduce) * (4.0 + 2.0 * again),
            // Normed inputs are gathered in both passes, gradients of outputs in the backward pass.
            true => (gather + sum(ReduceScatter)) * (4.0 + 2.0 * again) + 2.0 * gather,
        }
    }

    /// Keys and values go round, and back with their gradients.
    fn ring(&self, key: &LayerKey, widths: &Widths, again: f64) -> f64 {
        let (numbers, context) = ((self.rows(key) * widths.keys_values()) as f64, f64::from(key.context));
        let pass = |bytes: f64| self.call(Exchange, key.context, bytes * numbers);
        (context - 1.0) * (2.0 + again) * pass(element_bytes(key.precision)) + context * pass(WIDE)
    }

    /// Tokens go to their experts and back, and so do gradients.
    fn dispatch(&self, key: &LayerKey, widths: &Widths) -> f64 {
        let numbers = (self.rows(key) * widths.choices * self.hidden) as f64;
        let trips = match key.recompute {
            Recompute::None => 4.0,
            Recompute::Selective => 5.0,
            Recompute::Full => 6.0,
        };
        trips * self.call(AllToAll, key.expert, numbers * element_bytes(key.precision))
    }

    /// Of the blocks of a stage, by who learns them.
    pub(super) fn stage_shares(&self, key: &LayerKey, grid: &Grid, blocks: &[BlockWeights]) -> Shares {
        let mut shares = Shares::default();
        let sharers = part::sharers(key, grid);
        for block in blocks {
            for (numbers, sharers) in [(block.dense, sharers[0]), (block.expert, sharers[1])] {
                self.add_section(&mut shares, key, grid.sharding, numbers, block.uses, sharers);
            }
            if block.is_partial && self.adapters.is_none() {
                let owned = block.dense / f64::from(sharers[0].split);
                shares.once += self.call(AllReduce, key.tensor, owned * WIDE);
            }
        }
        if let Some(adapters) = &self.adapters {
            let learners = grid.data * key.context;
            shares.once += self.call(AllReduce, learners, adapters.parameters * WIDE);
        }
        shares
    }

    fn add_section(
        &self,
        shares: &mut Shares,
        key: &LayerKey,
        sharding: Sharding,
        numbers: f64,
        uses: f64,
        Sharers { split, copies }: Sharers,
    ) {
        let gather = self.call(AllGather, split, numbers * element_bytes(key.precision));
        if splits_weights(sharding) {
            shares.each += uses * gather;
        }
        if self.adapters.is_some() {
            return;
        }
        let scatter = self.call(ReduceScatter, split, numbers * WIDE);
        *if splits_gradients(sharding) { &mut shares.each } else { &mut shares.once } += scatter;
        if !splits_weights(sharding) {
            shares.once += gather;
        }
        shares.once += self.call(AllReduce, copies, numbers * WIDE / f64::from(split));
    }

    /// Totals of a step that all ranks add up, and the table that first and last stage learn together.
    pub(super) fn step_shares(&self, blocks: &ModelBlocks, key: &LayerKey, grid: &Grid) -> f64 {
        const CALLS: f64 = 3.0;
        const BYTES: f64 = 32.0;
        let split = f64::from(part::sharers(key, grid)[0].split);
        let tied = blocks.tied(grid) * WIDE / split;
        let tied = if self.collectives.has(AllReduce, 2) {
            self.call(AllReduce, 2, tied)
        } else {
            self.message(tied)
        };
        CALLS * self.call(AllReduce, self.ranks as u32, BYTES) + tied
    }
}
