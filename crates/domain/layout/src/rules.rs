//! Which layouts are legal, and why the others are not.
//!
//! A refusal is data: the search counts them, `--explain` prints them. Rules come in three groups: the
//! parts must fit each other, the model, and the batch. Memory is not checked here; `perf` does that.

use bedplate_transformer::{Layer, Mlp, Transformer};

use crate::{Ends, Layout, Schedule, Sharding, StageLayers};

/// The sequences of one optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Tokens per sequence.
    pub sequence: u64,
    /// Sequences per step over all ranks.
    pub global_batch: u64,
}

/// Why a layout cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutRefusal {
    #[error("`{part}` is 0; every degree is at least 1")]
    ZeroDegree { part: &'static str },
    #[error("the degrees multiply to more than four billion ranks")]
    TooManyRanks,
    #[error("the layout uses {uses} GPUs, the cluster has {has}")]
    WrongWorld { uses: u64, has: u64 },
    #[error("sp splits what a tensor group holds, so it needs tp2 or more")]
    SequenceParallelAlone,
    #[error("vpp{virtual_stages} interleaves pipeline stages, so it needs pp2 or more")]
    VirtualStagesAlone { virtual_stages: u32 },
    #[error("ep{expert} x etp{expert_tensor} does not divide the {ranks} ranks of a stage (dp x tp x cp)")]
    ExpertsDoNotDivideStage { expert: u32, expert_tensor: u32, ranks: u32 },
    #[error("hsdp{group} does not divide the {ranks} ranks that hold the same weights (dp x cp)")]
    ShardGroupDoesNotDivide { group: u32, ranks: u32 },
    #[error("tp{tensor} does not divide the {heads} attention heads")]
    TensorDoesNotDivideHeads { tensor: u32, heads: u64 },
    #[error("tp{tensor} and {kv_heads} key-value heads: neither divides the other")]
    TensorDoesNotFitKvHeads { tensor: u32, kv_heads: u64 },
    #[error("tp{tensor} does not divide the MLP width {width}")]
    TensorDoesNotDivideWidth { tensor: u32, width: u64 },
    #[error("pp{pipeline} x vpp{virtual_stages} makes more chunks than the {layers} layers")]
    MoreStagesThanLayers { pipeline: u32, virtual_stages: u32, layers: u64 },
    #[error("{ends} does not go with {layers} layers on pp{pipeline} stages, each of which needs one")]
    EndsDoNotFit { ends: Ends, pipeline: u32, layers: u64 },
    #[error("`{schedule}` orders the work of pipeline stages, so it needs pp2 or more")]
    ScheduleAlone { schedule: &'static str },
    #[error("`{schedule}` cuts no stage into chunks, so it does not go with vpp{virtual_stages}")]
    ScheduleWithVirtualStages { schedule: &'static str, virtual_stages: u32 },
    #[error("dualpipe lets micro-batches in at both ends, so pp{pipeline} must be even")]
    DualPipeOfOddStages { pipeline: u32 },
    #[error("dualpipe needs at least {needed} micro-batches, an even number; a step has {micro_batches}")]
    TooFewForDualPipe { micro_batches: u64, needed: u64 },
    #[error("`{part}` spreads experts, and the model has none")]
    NoExperts { part: &'static str },
    #[error("ep{expert} does not divide the {experts} routed experts")]
    ExpertsDoNotDivide { expert: u32, experts: u64 },
    #[error("etp{expert_tensor} does not divide the expert width {width}")]
    ExpertTensorDoesNotDivide { expert_tensor: u32, width: u64 },
    #[error("cp{context} cuts a causal sequence into {pieces} pieces, which do not divide {sequence} tokens")]
    ContextDoesNotDivideSequence { context: u32, pieces: u64, sequence: u64 },
    #[error("sp cuts each rank's {tokens} tokens over tp{tensor}, which does not divide them")]
    TensorDoesNotDivideSequence { tensor: u32, tokens: u64 },
    #[error("dp{data} x mb{micro_batch} does not divide the global batch of {global_batch} sequences")]
    BatchDoesNotDivide { data: u32, micro_batch: u32, global_batch: u64 },
    #[error("vpp needs the {micro_batches} micro-batches of a step to be a multiple of pp{pipeline}")]
    MicroBatchesDoNotFillStages { micro_batches: u64, pipeline: u32 },
}

impl Layout {
    /// Everything that forbids this layout for `model`, on `gpus` accelerators and with `batch` where
    /// they are given. An empty list means legal.
    pub fn refusals(
        &self,
        model: &Transformer,
        gpus: Option<u64>,
        batch: Option<Batch>,
    ) -> Vec<LayoutRefusal> {
        let mut refusals = fit_each_other(self);
        if is_beyond_counting(&refusals) {
            return refusals;
        }
        refusals.extend(self.misfit_of_world(gpus));
        self.add_misfits_of_model(model, &mut refusals);
        if let Some(batch) = batch {
            self.add_misfits_of_batch(batch, &mut refusals);
        }
        refusals
    }

    /// The refusals that follow from the layout alone and, where given, the number of accelerators.
    pub fn refusals_without_model(&self, gpus: Option<u64>) -> Vec<LayoutRefusal> {
        let mut refusals = fit_each_other(self);
        if !is_beyond_counting(&refusals) {
            refusals.extend(self.misfit_of_world(gpus));
        }
        refusals
    }

    fn misfit_of_world(&self, gpus: Option<u64>) -> Option<LayoutRefusal> {
        let has = gpus?;
        (self.world() != has).then_some(LayoutRefusal::WrongWorld { uses: self.world(), has })
    }

    fn add_misfits_of_model(&self, model: &Transformer, refusals: &mut Vec<LayoutRefusal>) {
        let mut add = |refusal: LayoutRefusal| {
            if !refusals.contains(&refusal) {
                refusals.push(refusal);
            }
        };
        for refusal in self.misfits_of_stages(model.layer_count()).into_iter().flatten() {
            add(refusal);
        }
        for run in &model.runs {
            for refusal in self.misfits_of_layer(&run.layer).into_iter().flatten() {
                add(refusal);
            }
        }
        if !model.is_mixture() {
            for (part, degree) in [("ep", self.expert), ("etp", self.expert_tensor)] {
                if degree > 1 {
                    add(LayoutRefusal::NoExperts { part });
                }
            }
        }
    }

    fn misfits_of_stages(&self, layers: u64) -> [Option<LayoutRefusal>; 2] {
        let (pipeline, virtual_stages) = (self.pipeline, self.virtual_stages);
        let chunks = u64::from(pipeline) * u64::from(virtual_stages);
        let is_too_many = chunks > layers;
        let fits = is_too_many || StageLayers::new(layers, pipeline, self.ends).is_some();
        [
            is_too_many.then_some(LayoutRefusal::MoreStagesThanLayers { pipeline, virtual_stages, layers }),
            (!fits).then_some(LayoutRefusal::EndsDoNotFit { ends: self.ends, pipeline, layers }),
        ]
    }

    fn misfits_of_layer(&self, layer: &Layer) -> [Option<LayoutRefusal>; 5] {
        let tensor = u64::from(self.tensor);
        let (heads, kv_heads) = (layer.attention.heads(), layer.attention.kv_heads());
        let fits_kv = kv_heads.is_multiple_of(tensor) || tensor.is_multiple_of(kv_heads);
        let dense_width = match layer.mlp {
            Mlp::Dense(dense) => Some(dense.width),
            Mlp::Mixture(mixture) => mixture.shared.map(|shared| shared.width),
            Mlp::Absent => None,
        };
        let width = dense_width.filter(|width| !width.is_multiple_of(tensor));
        let mixture = layer.mlp.mixture();
        let experts = mixture.map(|m| m.experts).filter(|n| !n.is_multiple_of(self.expert.into()));
        let expert_width =
            mixture.map(|m| m.expert.width).filter(|width| !width.is_multiple_of(self.expert_tensor.into()));
        [
            (!heads.is_multiple_of(tensor))
                .then_some(LayoutRefusal::TensorDoesNotDivideHeads { tensor: self.tensor, heads }),
            (!fits_kv).then_some(LayoutRefusal::TensorDoesNotFitKvHeads { tensor: self.tensor, kv_heads }),
            width.map(|width| LayoutRefusal::TensorDoesNotDivideWidth { tensor: self.tensor, width }),
            experts.map(|experts| LayoutRefusal::ExpertsDoNotDivide { expert: self.expert, experts }),
            expert_width.map(|width| LayoutRefusal::ExpertTensorDoesNotDivide {
                expert_tensor: self.expert_tensor,
                width,
            }),
        ]
    }

    fn add_misfits_of_batch(&self, batch: Batch, refusals: &mut Vec<LayoutRefusal>) {
        let Batch { sequence, global_batch } = batch;
        // Two pieces per rank, one early and one late, give every rank the same causal work.
        let pieces = if self.context > 1 { 2 * u64::from(self.context) } else { 1 };
        if !sequence.is_multiple_of(pieces) {
            refusals.push(LayoutRefusal::ContextDoesNotDivideSequence {
                context: self.context,
                pieces,
                sequence,
            });
        }
        let tokens = sequence / u64::from(self.context);
        if self.is_sequence_parallel && !tokens.is_multiple_of(self.tensor.into()) {
            refusals.push(LayoutRefusal::TensorDoesNotDivideSequence { tensor: self.tensor, tokens });
        }
        let per_round = u64::from(self.data) * u64::from(self.micro_batch);
        if global_batch == 0 || !global_batch.is_multiple_of(per_round) {
            refusals.push(LayoutRefusal::BatchDoesNotDivide {
                data: self.data,
                micro_batch: self.micro_batch,
                global_batch,
            });
            return;
        }
        let micro_batches = global_batch / per_round;
        let needed = 2 * u64::from(self.pipeline);
        if self.schedule == Schedule::DualPipe && (micro_batches < needed || !micro_batches.is_multiple_of(2))
        {
            refusals.push(LayoutRefusal::TooFewForDualPipe { micro_batches, needed });
        }
        if self.virtual_stages > 1 && !micro_batches.is_multiple_of(self.pipeline.into()) {
            refusals
                .push(LayoutRefusal::MicroBatchesDoNotFillStages { micro_batches, pipeline: self.pipeline });
        }
    }
}

/// Zero or enormous degrees: the other rules divide and multiply by them, so they cannot run.
fn is_beyond_counting(refusals: &[LayoutRefusal]) -> bool {
    refusals
        .iter()
        .any(|refusal| matches!(refusal, LayoutRefusal::ZeroDegree { .. } | LayoutRefusal::TooManyRanks))
}

/// The rules that need only the layout. Later rules and rank maps rely on them.
pub(crate) fn fit_each_other(layout: &Layout) -> Vec<LayoutRefusal> {
    let degrees = [
        ("dp", layout.data),
        ("tp", layout.tensor),
        ("cp", layout.context),
        ("pp", layout.pipeline),
        ("vpp", layout.virtual_stages),
        ("ep", layout.expert),
        ("etp", layout.expert_tensor),
        ("mb", layout.micro_batch),
        ("hsdp", layout.shard_ranks()),
    ];
    if let Some((part, _)) = degrees.into_iter().find(|(_, degree)| *degree == 0) {
        return vec![LayoutRefusal::ZeroDegree { part }];
    }
    let stage = [layout.data, layout.tensor, layout.context];
    let Some(ranks) = stage.into_iter().try_fold(1u32, u32::checked_mul) else {
        return vec![LayoutRefusal::TooManyRanks];
    };
    if ranks.checked_mul(layout.pipeline).is_none() {
        return vec![LayoutRefusal::TooManyRanks];
    }
    let mut refusals = Vec::new();
    if layout.is_sequence_parallel && layout.tensor == 1 {
        refusals.push(LayoutRefusal::SequenceParallelAlone);
    }
    if layout.virtual_stages > 1 && layout.pipeline == 1 {
        refusals.push(LayoutRefusal::VirtualStagesAlone { virtual_stages: layout.virtual_stages });
    }
    refusals.extend(misfits_of_schedule(layout));
    let (expert, expert_tensor) = (layout.expert, layout.expert_tensor);
    let expert_ranks = expert.checked_mul(expert_tensor);
    if !expert_ranks.is_some_and(|needed| ranks.is_multiple_of(needed)) {
        refusals.push(LayoutRefusal::ExpertsDoNotDivideStage { expert, expert_tensor, ranks });
    }
    if let Sharding::WeightsWithin(group) = layout.sharding
        && !(layout.data * layout.context).is_multiple_of(group)
    {
        refusals.push(LayoutRefusal::ShardGroupDoesNotDivide { group, ranks: layout.data * layout.context });
    }
    refusals
}

fn misfits_of_schedule(layout: &Layout) -> Option<LayoutRefusal> {
    let schedule = match layout.schedule {
        Schedule::Alternating => return None,
        Schedule::ZeroBubble => "zero-bubble",
        Schedule::DualPipe => "dualpipe",
    };
    let (pipeline, virtual_stages) = (layout.pipeline, layout.virtual_stages);
    if pipeline == 1 {
        Some(LayoutRefusal::ScheduleAlone { schedule })
    } else if virtual_stages > 1 {
        Some(LayoutRefusal::ScheduleWithVirtualStages { schedule, virtual_stages })
    } else {
        let is_odd = layout.schedule == Schedule::DualPipe && !pipeline.is_multiple_of(2);
        is_odd.then_some(LayoutRefusal::DualPipeOfOddStages { pipeline })
    }
}
