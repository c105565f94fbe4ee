//! A step on a host: its layers, embedding and head, what ranks exchange, and the optimizer.

use bedplate_layout::Recompute;
use bedplate_transformer::Positions;
use bedplate_transformer::workspace::{LogitsAtOnce, Widths};

use super::layer::{HostPlace, LayerWork};
use super::operators::{OperatorBytes, Work};
use super::part::{self, BlockWeights, ModelBlocks, Sharers, splits_gradients};
use super::{HostModel, WIDE, element_bytes, mean_keys};
use crate::exchange::{Exchanges, LayerExchange};
use crate::kernel::Passes;
use crate::{Grid, LayerCosts, LayerKey};

/// Seconds of a step by part, of the mean rank.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostStepTime {
    pub(crate) compute: f64,
    pub(crate) memory: f64,
    pub(crate) scale_up: f64,
    pub(crate) bubble: f64,
    pub(crate) optimizer: f64,
}

/// Seconds of one stage.
#[derive(Debug, Clone, Copy, Default)]
struct StageTime {
    /// Of a micro-batch.
    compute: f64,
    memory: f64,
    exchange: f64,
    /// Beyond micro-batches.
    update: Work,
    optimizer: f64,
    shared: f64,
}

impl StageTime {
    fn each(&self) -> f64 {
        self.compute + self.memory + self.exchange
    }
}

impl HostModel {
    pub(crate) fn layer_costs(&self, key: LayerKey) -> LayerCosts {
        let operators = self.operators(key.precision);
        let widths = part::widths(&self.model, key.tensor);
        let rows = self.rows(&key) as f64;
        let place = HostPlace {
            operators: &operators,
            rows,
            own_rows: if key.is_sequence_parallel { rows / f64::from(key.tensor) } else { rows },
            hidden: self.hidden,
            is_rotary: self.positions == Positions::Rotary,
            ranks: part::ranks(&key),
            held: self.held(&key, &widths),
        };
        let (layer, exchanges) = self.mean_layer(&place, &key);
        let again = match key.recompute {
            Recompute::None => Work::default(),
            Recompute::Selective => layer.cheap,
            Recompute::Full => layer.forward,
        };
        let backward = layer.backward + again;
        let around = self.around(&place);
        LayerCosts {
            compute: Passes { forward: layer.forward.compute, backward: backward.compute },
            memory: Passes { forward: layer.forward.memory, backward: backward.memory },
            layer_seconds: (layer.forward + backward).total() + exchanges.exposed(),
            exchanges,
            head_compute: around.compute,
            head_memory: around.memory,
            ..LayerCosts::empty(key)
        }
    }

    fn mean_layer(&self, place: &HostPlace<'_>, key: &LayerKey) -> (LayerWork, Exchanges) {
        let (mut mean, mut exchanges) = (LayerWork::default(), Exchanges::default());
        let layers = self.model.layer_count() as f64;
        for run in self.model.layer_kinds() {
            let share = run.count as f64 / layers;
            let widths = Widths::of(&self.model, &part::cut(&run.layer, key.tensor));
            let work = place.layer(&widths, mean_keys(run.layer.reach, self.sequence as u64));
            mean.forward += work.forward * share;
            mean.backward += work.backward * share;
            mean.cheap += work.cheap * share;
            let of = self.layer_exchanges(key, &widths);
            add(&mut exchanges.tensor, of.tensor, share);
            add(&mut exchanges.context, of.context, share);
            add(&mut exchanges.expert, of.expert, share);
        }
        (mean, exchanges)
    }

    /// Embedding, last norm, logits and losses of a micro-batch, forward and backward.
    fn around(&self, place: &HostPlace<'_>) -> Work {
        let is_frozen = self.adapters.is_some();
        let place = &HostPlace { rows: place.own_rows, ..*place };
        let tables = if matches!(self.positions, Positions::Learned { .. }) { 2.0 } else { 1.0 };
        let mut work = place.stream(2 * self.hidden, 0) * tables
            + place.norm()
            + place.stream(2 * self.hidden, self.hidden)
            + self.head(place, is_frozen);
        if let Some(adapters) = &self.adapters {
            return work + adapters.project(place.operators);
        }
        // The gradient of the stream is added to rows of the tables, in fp32.
        let bytes = place.rows * self.hidden as f64 * (place.operators.element + 2.0 * WIDE);
        work += place.operators.stream(OperatorBytes { fresh: bytes, kept: 0.0 }, place.held) * tables;
        work
    }

    /// Logits of some rows at a time, their losses and their gradients.
    fn head(&self, place: &HostPlace<'_>, is_frozen: bool) -> Work {
        let at_once = LogitsAtOnce::Cached.rows(self.vocab, place.rows as usize) as f64;
        let product = HostPlace { rows: at_once, ..*place }.linear(self.vocab, self.hidden);
        let mut work = place.operators.product(product)
            + place.operators.losses(at_once * self.vocab as f64)
            + place.operators.input_gradient(product);
        if !is_frozen {
            work += place.operators.weight_gradient(product);
        }
        work * (place.rows / at_once)
    }

    /// All micro-batches through all stages, and the update.
    pub(crate) fn time(&self, costs: &LayerCosts, grid: &Grid, micro_batches: f64) -> HostStepTime {
        let (key, count) = (&costs.key, f64::from(grid.pipeline));
        let micro_batches = micro_batches.ceil();
        let blocks = ModelBlocks::of(&self.model, key);
        let stages: Vec<StageTime> = part::stages(grid)
            .map(|stage| {
                let layers: usize = (0..stage.chunks)
                    .map(|chunk| {
                        let range = stage.blocks(chunk, self.model.layer_count() as usize);
                        range.len() - usize::from(stage.is_first(chunk)) - usize::from(stage.is_last(chunk))
                    })
                    .sum();
                let has_head = stage.is_last(stage.chunks - 1);
                self.stage_time(costs, grid, layers as f64, has_head, &blocks.of_stage(stage))
            })
            .collect();
        let mean = |of: &dyn Fn(&StageTime) -> f64| stages.iter().map(of).sum::<f64>() / count;
        let most = |of: &dyn Fn(&StageTime) -> f64| stages.iter().map(of).fold(0.0, f64::max);
        let busy = micro_batches * mean(&StageTime::each);
        HostStepTime {
            compute: micro_batches * mean(&|stage| stage.compute) + most(&|stage| stage.update.compute),
            memory: micro_batches * mean(&|stage| stage.memory) + most(&|stage| stage.update.memory),
            scale_up: micro_batches * mean(&|stage| stage.exchange)
                + most(&|stage| stage.shared)
                + self.step_shares(&blocks, key, grid),
            bubble: self.pipeline_seconds(&stages, grid, micro_batches) - busy,
            optimizer: most(&|stage| stage.optimizer),
        }
    }

    /// The first micro-batch goes through all stages, the others leave the slowest one. Ranks that have no core of their own have
    /// those of waiting ranks, so that no core waits as long as there is work.
    fn pipeline_seconds(&self, stages: &[StageTime], grid: &Grid, micro_batches: f64) -> f64 {
        let each = || stages.iter().map(StageTime::each);
        let (sum, slowest) = (each().sum::<f64>(), each().fold(0.0, f64::max));
        let crowding = (self.ranks / f64::from(self.rates.threads)).max(1.0);
        let filling = (sum - slowest) / f64::from(grid.virtual_stages);
        let alone = (micro_batches * slowest + filling) / crowding;
        alone.max(micro_batches * sum / stages.len() as f64)
    }

    fn stage_time(
        &self,
        costs: &LayerCosts,
        grid: &Grid,
        layers: f64,
        has_head: bool,
        blocks: &[BlockWeights],
    ) -> StageTime {
        let key = &costs.key;
        let head = if has_head { 1.0 } else { 0.0 };
        let shares = self.stage_shares(key, grid, blocks);
        let sends = if grid.pipeline > 1 { 2.0 * f64::from(grid.virtual_stages) } else { 0.0 };
        let stream = self.rows(key) as f64 * self.hidden as f64 * element_bytes(key.precision);
        let stream = if key.is_sequence_parallel { stream / f64::from(key.tensor) } else { stream };
        let (each, once, optimizer) = self.update(key, grid, blocks);
        StageTime {
            compute: layers * costs.compute.both() + head * costs.head_compute + each.compute,
            memory: layers * costs.memory.both() + head * costs.head_memory + each.memory,
            exchange: layers * costs.exchanges.exposed() + shares.each + sends * self.message(stream),
            update: once,
            optimizer,
            shared: shares.once,
        }
    }

    /// What each micro-batch adds to sums that are split; clearing and measuring the gradients; and AdamW.
    fn update(&self, key: &LayerKey, grid: &Grid, blocks: &[BlockWeights]) -> (Work, Work, f64) {
        let operators = self.operators(key.precision);
        let element = element_bytes(key.precision);
        let sweep = |numbers: f64| operators.stream(OperatorBytes { fresh: numbers * WIDE, kept: 0.0 }, 0.0);
        if let Some(adapters) = &self.adapters {
            let trained = adapters.parameters / f64::from(key.tensor);
            let once = sweep(trained) * 2.0 + adapters.merge(&operators);
            return (Work::default(), once, operators.optimizer(trained * ADAMW_BYTES));
        }
        let [dense, expert] = part::sharers(key, grid).map(|Sharers { split, .. }| f64::from(split));
        let all: f64 = blocks.iter().map(BlockWeights::numbers).sum();
        let owned: f64 = blocks.iter().map(|block| block.dense / dense + block.expert / expert).sum();
        let copy = if element < WIDE { element } else { 0.0 };
        let optimizer = operators.optimizer(owned * (ADAMW_BYTES + copy));
        match splits_gradients(grid.sharding) {
            // A block's gradient begins at zero; its share is read, and added to the sum.
            true => (sweep(all + 3.0 * owned), sweep(owned) * 2.0, optimizer),
            false => (Work::default(), sweep(all) + sweep(owned), optimizer),
        }
    }
}

fn add(sum: &mut LayerExchange, of: LayerExchange, share: f64) {
    sum.traffic.up += of.traffic.up * share;
    sum.exposed += of.exposed * share;
}

/// Weight, gradient and two moments read, all but the gradient written.
const ADAMW_BYTES: f64 = 7.0 * WIDE;
