//! Layers combined into a step: stages, bubbles, data parallelism, the optimizer.
//!
//! `step = (stage (m + (pp-1)/vpp) + data + optimizer) (1 + s log2(N/8))`, where `stage` is one micro-batch
//! through the layers of the mean stage, corrected towards the longest one, `m` counts micro-batches and
//! `N` GPUs. Data-parallel traffic hides behind the backward pass of the last micro-batch; sharded weights
//! are gathered and sharded gradients scattered behind every one. Stages are the outermost ranks, so where a
//! layout has more GPUs than a domain some hop between stages crosses the network, and the slowest hop counts.

use bedplate_breakdown::{Breakdown, Part, Predicted, Span};
use bedplate_layout::{Ends, Schedule, Sharding, StageLayers};
use bedplate_units::Seconds;

use crate::collective::{CollectiveTraffic, RankGroup};
use crate::host::HostModel;
use crate::memory::{Fit, MemoryUse, TIGHT};
use crate::problem::{Grid, Problem};
use crate::{LayerCosts, Offload};

/// One predicted training step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedStep {
    pub time: Breakdown<Predicted>,
    pub memory: MemoryUse,
    pub fit: Fit,
    /// GPUs that take part.
    pub gpus: u64,
    /// Tokens of the step over all GPUs.
    pub tokens: f64,
}

impl PredictedStep {
    pub fn seconds(&self) -> Seconds {
        self.time.total()
    }

    /// Whether it is predicted not to fit, but within the model's error: it may still run.
    pub fn is_near_miss(&self) -> bool {
        match self.fit {
            Fit::DoesNotFit { over } => over <= (self.memory.total() - over) * TIGHT,
            _ => false,
        }
    }

    pub fn tokens_per_second_per_gpu(&self) -> f64 {
        self.tokens / (self.seconds().get() * self.gpus as f64)
    }
}

/// Seconds by part while they are summed.
#[derive(Debug, Clone, Copy, Default)]
struct Clock {
    compute: f64,
    memory: f64,
    up: f64,
    up_hidden: f64,
    out: f64,
    out_hidden: f64,
    bubble: f64,
    optimizer: f64,
    host: f64,
    other: f64,
}

impl Clock {
    /// Adds traffic of which `exposed` seconds are not hidden, on the fabrics that carry it.
    fn add(&mut self, traffic: CollectiveTraffic, exposed: f64, times: f64) {
        let busy = traffic.busy();
        if busy <= 0.0 {
            return;
        }
        // Exposed time beyond the traffic itself is computation slowed down by it; it is booked to the traffic.
        let (exposed, hidden) = (exposed * times, (busy - exposed).max(0.0) * times);
        let share = traffic.up / busy;
        self.up += exposed * share;
        self.up_hidden += hidden * share;
        self.out += exposed * (1.0 - share);
        self.out_hidden += hidden * (1.0 - share);
    }

    fn total(&self) -> f64 {
        self.compute
            + self.memory
            + self.up
            + self.out
            + self.bubble
            + self.optimizer
            + self.host
            + self.other
    }

    fn breakdown(&self) -> Breakdown<Predicted> {
        let exposed = |seconds| Span::exposed(Seconds::new(seconds));
        let span = |exposed, hidden| Span { exposed: Seconds::new(exposed), hidden: Seconds::new(hidden) };
        Breakdown::default()
            .with(Part::Compute, exposed(self.compute))
            .with(Part::Memory, exposed(self.memory))
            .with(Part::ScaleUp, span(self.up, self.up_hidden))
            .with(Part::ScaleOut, span(self.out, self.out_hidden))
            .with(Part::Bubble, exposed(self.bubble))
            .with(Part::Optimizer, exposed(self.optimizer))
            .with(Part::Host, exposed(self.host))
            .with(Part::Other, exposed(self.other))
    }
}

impl Problem {
    /// Combines the costs of a layer into a step. About a hundred flops; allocates nothing.
    ///
    /// The degrees must be at least 1 and the batch must hold a sequence for every data rank;
    /// [`Problem::predict`] checks that.
    pub fn combine(&self, costs: &LayerCosts, grid: &Grid) -> PredictedStep {
        let memory = self.memory(costs, grid);
        let ranks = u64::from(grid.data) * u64::from(costs.key.context) * u64::from(costs.key.tensor);
        PredictedStep {
            time: self.time(costs, grid).breakdown(),
            memory,
            fit: self.fit(&memory),
            gpus: ranks * u64::from(grid.pipeline),
            tokens: self.workload.tokens(),
        }
    }

    /// Seconds of a step, without its parts: the same number as `combine(..).seconds()`, to the bit.
    pub fn seconds(&self, costs: &LayerCosts, grid: &Grid) -> f64 {
        self.time(costs, grid).total()
    }

    fn time(&self, costs: &LayerCosts, grid: &Grid) -> Clock {
        if let Some(host) = &self.host {
            return self.time_on_host(host, costs, grid);
        }
        let pipeline = f64::from(grid.pipeline);
        let chunks = f64::from(grid.virtual_stages);
        let data = f64::from(grid.data);
        let micro_batches = self.micro_batches(costs, grid);
        let layers = self.layers / pipeline;

        let mut clock = Clock::default();
        let each = layers * micro_batches;
        let head = micro_batches / pipeline;
        clock.compute = each * costs.compute.both() + head * costs.head_compute;
        clock.memory = each * costs.memory.both() + head * costs.head_memory;
        clock.host = each * costs.host;
        for shared in [costs.exchanges.tensor, costs.exchanges.context, costs.exchanges.expert] {
            clock.add(shared.traffic, shared.exposed, each);
        }

        let mut stage = layers * costs.layer_seconds + (costs.head_compute + costs.head_memory) / pipeline;
        if pipeline > 1.0 {
            let longest = self.longest_stage(costs, grid);
            let uneven = self.constants.imbalance * (longest - stage).max(0.0);
            stage += uneven;
            clock.bubble += uneven * micro_batches;
            let ranks = f64::from(costs.key.tensor) * f64::from(costs.key.context) * data;
            let send = self.links.send(costs.stage_send, self.links.is_within_domain(pipeline * ranks));
            let waited = STAGE_SEND_EXPOSED * send.busy();
            clock.add(send, waited, 2.0 * chunks * micro_batches);
            stage += 2.0 * chunks * waited;
        }
        if self.workload.offload == Offload::Activations {
            // Copy engines do not slow computation down; only what takes longer than the stage is exposed.
            let travel = self.offloaded_bytes(costs, grid, layers) / self.links.host;
            let exposed = (travel - stage).max(0.0);
            clock.memory += exposed * micro_batches;
            stage += exposed;
        }
        stage += self.add_sharded(&mut clock, costs, grid, stage, layers, micro_batches);
        clock.bubble += stage * bubble_stages(grid.schedule, pipeline, chunks);
        self.add_data_parallel(&mut clock, costs, grid, stage, layers);
        self.add_optimizer(&mut clock, costs, grid, layers);
        let gpus = data * pipeline * f64::from(costs.key.tensor) * f64::from(costs.key.context);
        clock.other = clock.total() * self.constants.straggler * (gpus / 8.0).max(1.0).log2();
        clock
    }

    /// A host that trains by itself, in one process or on ranks that share it.
    fn time_on_host(&self, host: &HostModel, costs: &LayerCosts, grid: &Grid) -> Clock {
        let time = host.time(costs, grid, self.micro_batches(costs, grid));
        Clock {
            compute: time.compute,
            memory: time.memory,
            up: time.scale_up,
            bubble: time.bubble,
            optimizer: time.optimizer,
            ..Clock::default()
        }
    }

    /// A stage with more layers than others, or the last one, which has the head.
    fn longest_stage(&self, costs: &LayerCosts, grid: &Grid) -> f64 {
        let split = self.stage_layers(costs, grid);
        let head = costs.head_compute + costs.head_memory;
        let first = costs.of_stage(split.first as f64, self.leading_of_first(grid, &split)).seconds;
        let inside = if grid.pipeline > 2 { split.longest as f64 } else { 0.0 };
        let longest = first.max(costs.of_stage(inside, 0.0).seconds);
        longest.max(costs.of_stage(split.last as f64, 0.0).seconds + head)
    }

    /// Layers of the first kind on the first stage, whose first chunk has them.
    pub(crate) fn leading_of_first(&self, grid: &Grid, split: &StageLayers) -> f64 {
        self.leading.min(split.first as f64 / f64::from(grid.virtual_stages))
    }

    pub(crate) fn stage_layers(&self, costs: &LayerCosts, grid: &Grid) -> StageLayers {
        let layers = self.layers as u64;
        if self.profile.balances_stages && grid.pipeline > 1 && grid.ends == Ends::default() {
            return balanced(
                layers,
                grid.pipeline,
                (costs.head_compute + costs.head_memory) / costs.layer_seconds,
            );
        }
        // Ends that do not fit are refused before.
        let even = StageLayers { first: layers, longest: layers, last: layers };
        self.split(grid.pipeline, grid.ends).unwrap_or(even)
    }

    /// Gathers of sharded weights and scatters of sharded gradients behind each micro-batch; what they add to
    /// a stage.
    fn add_sharded(
        &self,
        clock: &mut Clock,
        costs: &LayerCosts,
        grid: &Grid,
        stage: f64,
        layers: f64,
        micro_batches: f64,
    ) -> f64 {
        let replicas = self.replicas(costs, grid);
        let group = match grid.sharding {
            Sharding::Weights => replicas.dense,
            Sharding::WeightsWithin(group) => f64::from(group),
            Sharding::Gradients if micro_batches > 1.0 => replicas.dense,
            _ => return 0.0,
        };
        let inner = f64::from(costs.key.tensor);
        let tables = self.table_parameters(costs) / self.layers;
        let trained_tables = self.trained_tables(costs) / self.layers;
        let dense = RankGroup::new(group, inner);
        let gather = |group: RankGroup, parameters: f64, bytes: f64| {
            if self.profile.is_single_rail {
                self.links.gather_single_rail(group, parameters * bytes)
            } else {
                self.links.gather(group, parameters * bytes)
            }
        };
        // Weights are gathered for the forward and, unless kept, for the backward pass; gradients are scattered once.
        let splits_weights = grid.sharding != Sharding::Gradients;
        let times = if splits_weights { self.profile.weight_gathers } else { 0.0 };
        let weights = gather(dense, costs.dense_parameters + tables, 2.0) * times;
        let gradients = gather(dense, costs.trained_dense + trained_tables, self.profile.gradient_bytes);
        let mut traffic = weights + gradients;
        if costs.expert_parameters > 0.0 {
            let stride = f64::from(costs.key.expert) * f64::from(costs.key.expert_tensor);
            let expert = RankGroup::new(group.min(replicas.expert), stride);
            traffic = traffic
                + gather(expert, costs.expert_parameters, 2.0) * times
                + gather(expert, costs.trained_expert, self.profile.gradient_bytes);
        }
        let traffic = traffic * layers;
        let exposed = self.contention.exposed(stage, traffic.busy());
        clock.add(traffic, exposed, micro_batches);
        exposed
    }

    /// The gradient reduction, and the gather of updated weights where only the optimizer is split.
    fn add_data_parallel(&self, clock: &mut Clock, costs: &LayerCosts, grid: &Grid, stage: f64, layers: f64) {
        let replicas = self.replicas(costs, grid);
        let tables = self.trained_tables(costs) / f64::from(grid.pipeline);
        let inner = f64::from(costs.key.tensor);
        // Sharded gradients are already scattered after each micro-batch.
        let has_scattered = grid.sharding == Sharding::Gradients && self.micro_batches(costs, grid) > 1.0;
        let wire = if has_scattered { WEIGHT_WIRE } else { self.profile.gradient_bytes + WEIGHT_WIRE };
        let expert_wire = if has_scattered { WEIGHT_WIRE } else { wire.max(6.0) };
        let traffic = match grid.sharding {
            Sharding::Weights => return,
            Sharding::WeightsWithin(group) => {
                // Groups hold copies: their shards are reduced across groups.
                let across = RankGroup::new(replicas.dense / f64::from(group), inner * f64::from(group));
                let shard =
                    (layers * (costs.trained_dense + costs.trained_expert) + tables) / f64::from(group);
                self.links.gather(across, shard * 2.0 * self.profile.gradient_bytes)
            }
            _ => {
                let dense = self.links.gather(
                    RankGroup::new(replicas.dense, inner),
                    (layers * costs.trained_dense + tables) * wire,
                );
                let stride = f64::from(costs.key.expert) * f64::from(costs.key.expert_tensor);
                let expert = self.links.gather(
                    RankGroup::new(replicas.expert, stride),
                    layers * costs.trained_expert * expert_wire,
                );
                if costs.trained_expert > 0.0 { dense + expert } else { dense }
            }
        };
        let busy = traffic.busy();
        let share = self.profile.data_uncovered;
        let cover = BACKWARD_SHARE * stage;
        let messages = self.profile.unbucketed_messages * layers * replicas.dense * self.constants.ring_hop;
        let exposed = share * busy + self.contention.exposed(cover, (1.0 - share) * busy);
        clock.add(traffic, exposed, 1.0);
        clock.out += messages;
    }

    /// The optimizer reads and writes its shard of the state; offloaded state crosses the host link.
    fn add_optimizer(&self, clock: &mut Clock, costs: &LayerCosts, grid: &Grid, layers: f64) {
        let shards = self.shards(costs, grid);
        let tables = self.trained_tables(costs) / f64::from(grid.pipeline);
        let parameters = (layers * costs.trained_dense + tables) / shards.dense
            + layers * costs.trained_expert / shards.expert;
        clock.optimizer = self.profile.step_host
            + match self.workload.offload {
                Offload::Nothing | Offload::Activations => {
                    self.kernels.stream(parameters * self.profile.optimizer_bytes)
                }
                Offload::Optimizer => parameters * OFFLOAD_BYTES / self.links.host,
            };
    }
}

/// Stages that take about the same time where the head takes as long as `head` layers: earlier ones have at least their share, the
/// last one has what is left.
fn balanced(layers: u64, stages: u32, head: f64) -> StageLayers {
    let share = (layers as f64 + head) / f64::from(stages);
    let each = share.ceil() as u64;
    StageLayers { first: each, longest: each, last: (share - head).max(1.0) as u64 }
}

/// Time in which a stage waits for others, in stages of one micro-batch.
///
/// Forward, input gradients and weight gradients take a third each. Zero-bubble schedules wait `(p-1)(F + B - W)`, DualPipe
/// `(p/2-1)(F&B + B - 3W)` with `F&B` both directions at once and `B` the whole backward pass.
fn bubble_stages(schedule: Schedule, stages: f64, chunks: f64) -> f64 {
    match schedule {
        Schedule::Alternating => (stages - 1.0) / chunks,
        Schedule::ZeroBubble => (stages - 1.0) / 3.0,
        Schedule::DualPipe => (stages / 2.0 - 1.0) * 2.0 / 3.0,
    }
}

/// Bytes of an updated weight on the wire.
const WEIGHT_WIRE: f64 = 2.0;
/// Share of a transfer between stages that is exposed; the rest overlaps with the next micro-batch.
const STAGE_SEND_EXPOSED: f64 = 0.65;
/// Share of a stage's time in which gradients become ready.
const BACKWARD_SHARE: f64 = 0.5;
/// Gradient out and weight back, both in bf16, and the host's own traffic at link speed.
const OFFLOAD_BYTES: f64 = 8.0;
