//! Which of nearly equal layouts to prefer, and why.
//!
//! Predictions of two layouts of one job differ by a few percent more or less than their measured times do, so the fastest
//! prediction is one of several answers. Each doubt below says by how much a layout must win before it is
//! preferred to one without it; the product of a layout's doubts is its *handicap*, and layouts are ranked by their
//! time with it. Doubts never change a time that is shown.

use bedplate_layout::{Layout, Recompute, Sharding};
use bedplate_perf::{Fit, Stack, Workload};

/// Why a layout is preferred only if it wins clearly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// It fits by less than the error of predicted memory.
    Tight,
    /// The named software does not have it.
    NotInStack,
    /// No measured run of the stack has it: experts whose weights are split over data ranks, a stack of 2021–22 without
    /// recomputation, micro-batches of many sequences through experts, PyTorch's FSDP with other kinds of parallelism or
    /// selective recomputation.
    NotMeasured,
    /// Weights split within groups instead of over all data ranks.
    ShardGroups,
    /// Context parallelism for sequences that fit without it; measured runs use it for long ones.
    ContextForShortSequences,
    /// Matrices of experts are cut.
    CutExperts,
    /// Experts are spread over scale-up domains.
    ExpertsLeaveDomain,
    /// A tensor group that is no power of two, which few runs have had.
    OddTensorGroup,
    /// A tensor group without sequence parallelism.
    WithoutSequenceParallelism,
    /// More chunks per stage than measured runs have.
    ManyChunks,
    /// Activations are computed again.
    Recomputes,
    /// Each kind of parallelism beside data parallelism.
    OneMoreDimension,
}

impl Doubt {
    /// By how much a layout with it must be faster.
    pub fn margin(self) -> f64 {
        match self {
            // Never, unless nothing else fits.
            Doubt::NotInStack => 1e3,
            Doubt::NotMeasured => 0.3,
            Doubt::Tight => 0.2,
            Doubt::ContextForShortSequences | Doubt::CutExperts => 0.06,
            Doubt::ExpertsLeaveDomain | Doubt::OddTensorGroup | Doubt::ShardGroups => 0.04,
            Doubt::WithoutSequenceParallelism | Doubt::ManyChunks => 0.03,
            Doubt::Recomputes | Doubt::OneMoreDimension => 0.03,
        }
    }

    /// What is said about a layout that has it.
    pub fn reason(self) -> &'static str {
        match self {
            Doubt::Tight => "its memory is tight",
            Doubt::NotInStack => "the stack does not have it",
            Doubt::NotMeasured => "no measured run of the stack is like it",
            Doubt::ShardGroups => "it splits weights within groups",
            Doubt::ContextForShortSequences => "it cuts sequences that are short",
            Doubt::CutExperts => "it cuts the matrices of experts",
            Doubt::ExpertsLeaveDomain => "its experts leave the scale-up domain",
            Doubt::OddTensorGroup => "its tensor groups are not a power of two",
            Doubt::WithoutSequenceParallelism => "it has tensor groups without sequence parallelism",
            Doubt::ManyChunks => "its stages have more chunks than measured runs have",
            Doubt::Recomputes => "it recomputes activations",
            Doubt::OneMoreDimension => "it has one more kind of parallelism",
        }
    }
}

/// Sequences from this length on are cut in measured runs.
const LONG: u64 = 16_384;
/// Sequences of a micro-batch with which mixtures have been measured.
const MOST_SEQUENCES: u32 = 8;
/// Chunks per stage up to which runs have been measured.
const MOST_CHUNKS: u32 = 12;

/// What doubts depend on besides the layout.
#[derive(Debug, Clone, Copy)]
pub struct DoubtQuestion<'a> {
    pub workload: &'a Workload,
    /// GPUs of a scale-up domain.
    pub domain: u32,
    pub is_mixture: bool,
}

/// The doubts about a layout; one kind of parallelism each, as often as it has one.
pub fn doubts(layout: &Layout, fit: Fit, job: &DoubtQuestion<'_>) -> Vec<Doubt> {
    let mut all = Vec::new();
    visit(layout, fit, job, |doubt| all.push(doubt));
    all
}

/// The factor on a layout's time by which it is ranked.
#[inline]
pub(crate) fn handicap(layout: &Layout, fit: Fit, job: &DoubtQuestion<'_>) -> f64 {
    let mut factor = 1.0;
    visit(layout, fit, job, |doubt| factor *= 1.0 + doubt.margin());
    factor
}

#[inline]
fn visit(layout: &Layout, fit: Fit, job: &DoubtQuestion<'_>, mut take: impl FnMut(Doubt)) {
    let DoubtQuestion { workload, domain, is_mixture } = *job;
    let mut check = |applies: bool, doubt: Doubt| {
        if applies {
            take(doubt);
        }
    };
    check(matches!(fit, Fit::Tight { .. }), Doubt::Tight);
    check(!stack_has(workload.stack, layout), Doubt::NotInStack);
    check(!is_measured(workload.stack, layout, is_mixture), Doubt::NotMeasured);
    check(matches!(layout.sharding, Sharding::WeightsWithin(_)), Doubt::ShardGroups);
    check(layout.context > 1 && workload.sequence < LONG, Doubt::ContextForShortSequences);
    check(layout.expert_tensor > 1, Doubt::CutExperts);
    check(layout.expert > domain, Doubt::ExpertsLeaveDomain);
    check(!layout.tensor.is_power_of_two(), Doubt::OddTensorGroup);
    let has_sequence_parallelism = !matches!(workload.stack, Stack::Megatron2021 | Stack::MegatronDeepSpeed);
    check(
        has_sequence_parallelism && layout.tensor > 1 && !layout.is_sequence_parallel,
        Doubt::WithoutSequenceParallelism,
    );
    check(layout.virtual_stages > MOST_CHUNKS, Doubt::ManyChunks);
    check(layout.recompute != Recompute::None, Doubt::Recomputes);
    for degree in [layout.tensor, layout.context, layout.pipeline] {
        check(degree > 1, Doubt::OneMoreDimension);
    }
}

/// Whether runs of a stack with such parts have been published.
fn is_measured(stack: Stack, layout: &Layout, is_mixture: bool) -> bool {
    let splits_more = !matches!(layout.sharding, Sharding::None | Sharding::Optimizer);
    match stack {
        Stack::Megatron | Stack::MegatronBefore2606 | Stack::MegatronStock => {
            !(is_mixture && (splits_more || layout.micro_batch > MOST_SEQUENCES))
        }
        Stack::Megatron2021 | Stack::MegatronDeepSpeed | Stack::DeepSpeedZero3 => {
            layout.recompute != Recompute::None
        }
        Stack::Fsdp => {
            layout.tensor * layout.pipeline * layout.context == 1 && layout.recompute != Recompute::Selective
        }
        _ => true,
    }
}

/// Whether a stack's documentation knows the combination of parts.
fn stack_has(stack: Stack, layout: &Layout) -> bool {
    let splits_weights = matches!(layout.sharding, Sharding::Weights | Sharding::WeightsWithin(_));
    let splits_more = splits_weights || layout.sharding == Sharding::Gradients;
    match stack {
        // Megatron-FSDP, which splits gradients and weights, has no pipeline.
        Stack::Megatron | Stack::MegatronBefore2606 | Stack::MegatronStock => {
            !splits_more || layout.pipeline == 1
        }
        // Sequence parallelism and selective recomputation are of May 2022, and the distributed optimizer came after them.
        Stack::Megatron2021 => is_of_2021(layout) && layout.sharding == Sharding::None,
        Stack::MegatronDeepSpeed => is_of_2021(layout) && layout.virtual_stages == 1,
        Stack::DeepSpeedZero3 => {
            layout.tensor * layout.pipeline * layout.context == 1 && layout.recompute != Recompute::Selective
        }
        // One of DDP and FSDP; the optimizer alone is not split.
        Stack::Fsdp | Stack::FsdpTe => layout.sharding != Sharding::Optimizer && layout.expert_tensor == 1,
        Stack::MaxText => layout.virtual_stages == 1 && layout.sharding != Sharding::Optimizer,
        Stack::Nanotron => !splits_more && layout.context == 1 && layout.virtual_stages == 1,
        Stack::Bedplate => true,
    }
}

fn is_of_2021(layout: &Layout) -> bool {
    let splits_more = !matches!(layout.sharding, Sharding::None | Sharding::Optimizer);
    let is_newer = layout.is_sequence_parallel || layout.recompute == Recompute::Selective;
    !splits_more && !is_newer && layout.context == 1 && layout.expert == 1
}
