//! The numbers that the model does not derive, each with its meaning and where it comes from.
//!
//! One table defines the fields, their checked-in values (`data/training/constants.toml`), their origin and
//! how far a fit may move them. A user's own fit is an overlay of the same file format.

use bedplate_diag::Source;
use bedplate_document::{DocumentError, Table};

/// Where a constant comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Fitted to `data/training/measured.csv`.
    Training,
    /// Fitted to measured serving rows: time of engine steps and latency of requests.
    Serving,
    /// Set by hand from scripts, documents or the rows; no fit moves it.
    SetByHand,
    /// Fitted to the measured memory of the same table.
    Memory,
    /// Fitted to the kernel and collective tables of aiconfigurator-core 0.12.0.
    KernelTable,
    /// Fitted to the measured collectives of `data/training/collectives.csv`.
    Collectives,
    /// Fitted to stated figures of GPT-3 175B on p4d over EFA and over TCP.
    EfaTcp,
    /// Counted or stated by a vendor or a paper.
    Stated,
}

impl Origin {
    pub fn name(self) -> &'static str {
        match self {
            Origin::Training => "training",
            Origin::Serving => "serving",
            Origin::SetByHand => "set by hand",
            Origin::Memory => "memory",
            Origin::KernelTable => "kernel table",
            Origin::Collectives => "collectives",
            Origin::EfaTcp => "EFA and TCP",
            Origin::Stated => "stated",
        }
    }
}

/// One constant, for a fit.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub name: &'static str,
    pub meaning: &'static str,
    pub origin: Origin,
    /// The starting value of a fit and the centre of its prior.
    pub prior: f64,
    /// Width of the log-normal prior.
    pub spread: f64,
}

impl Field {
    /// The valid range: above zero, at most 1.2 for shares of a peak, a bandwidth or a time (1 on
    /// the serving side), and at most a hundred times the prior for others, of which rates are at least a megabyte per second.
    pub fn limits(&self) -> (f64, f64) {
        if SHARES.contains(&self.name) {
            (1e-3, 1.2)
        } else if SERVING_SHARES.contains(&self.name) {
            (1e-3, 1.0)
        } else if BYTES_PER_SECOND.contains(&self.name) {
            (1e6, 100.0 * self.prior)
        } else {
            (f64::MIN_POSITIVE, 100.0 * self.prior)
        }
    }
}

/// Constants that are rates, which a share of something cannot be mistaken for.
const BYTES_PER_SECOND: [&str; 2] = ["efa_alltoall", "device_rate"];

/// Constants that are shares of something.
const SHARES: [&str; 30] = [
    "efa_reach",
    "tree_reach",
    "gemm_ampere",
    "gemm_hopper",
    "gemm_blackwell",
    "gemm_other",
    "fp8_hopper",
    "fp8_blackwell",
    "fp8_ultra",
    "fp4_blackwell",
    "fp4_ultra",
    "attention_ampere",
    "attention_hopper",
    "attention_portable",
    "attention_blackwell",
    "wave_weight",
    "memory_reach",
    "grouped",
    "scale_up_reach",
    "scale_out_reach",
    "tensor_uncovered",
    "expert_uncovered",
    "expert_overlap",
    "alltoall_network",
    "data_uncovered",
    "stack_deepspeed",
    "stack_eager",
    "imbalance",
    "efa_v1_reach",
    "tcp_reach",
];

/// Those of the serving side.
const SERVING_SHARES: [&str; 21] = [
    "bf16_rate_ampere",
    "bf16_rate_hopper",
    "bf16_rate_blackwell",
    "fp8_rate_hopper",
    "fp8_rate_blackwell",
    "fp4_rate_blackwell",
    "dense_read_hopper",
    "dense_read_blackwell",
    "expert_read_hopper",
    "expert_read_blackwell",
    "expert_rate_hopper",
    "expert_fp8_rate_hopper",
    "expert_fp8_rate_blackwell",
    "fp4_read_blackwell",
    "expert_rate_blackwell",
    "kv_read",
    "attention_rate_hopper",
    "attention_rate_blackwell",
    "reduce_reach",
    "draft_growth",
    "single_draft",
];

/// Defines a struct of constants with its table of fields and its file form.
macro_rules! constants {
    ($(#[$meta:meta])* $group:ident, $file:literal;
     $($name:ident = $prior:literal, $origin:ident, $spread:literal, $meaning:literal;)*) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $group {
            $(#[doc = $meaning] pub $name: f64,)*
        }

        impl $group {
            pub const FIELDS: &'static [$crate::Field] = &[$($crate::Field {
                name: stringify!($name),
                meaning: $meaning,
                origin: $crate::Origin::$origin,
                prior: $prior,
                spread: $spread,
            }),*];

            /// The values from which a fit starts.
            pub const fn priors() -> Self {
                Self { $($name: $prior),* }
            }

            /// In the order of `FIELDS`.
            pub fn values(&self) -> [f64; Self::COUNT] {
                [$(self.$name),*]
            }

            /// The constants with these values, in the order of `FIELDS`.
            pub fn from_values(values: &[f64; Self::COUNT]) -> Self {
                let [$($name),*] = *values;
                Self { $($name),* }
            }

            pub const COUNT: usize = [$(stringify!($name)),*].len();

            /// The built-in fit.
            pub fn builtin() -> Self {
                let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../", $file));
                Self::read(bedplate_diag::Source::new($file, text), Self::priors())
                    .expect("the embedded constants are valid: checked by a test")
            }

            /// `base` with the constants of a file, which may hold any of them.
            pub fn read(
                source: bedplate_diag::Source<'_>,
                base: Self,
            ) -> Result<Self, bedplate_document::DocumentError> {
                let mut values = base.values();
                $crate::constants::read(source, &mut values, Self::FIELDS)?;
                Ok(Self::from_values(&values))
            }

            /// The constants to four significant digits, as the file keeps them.
            pub fn rounded(&self) -> Self {
                Self::from_values(&self.values().map($crate::constants::rounded))
            }

            /// The file form: one line per constant under its meaning and origin.
            pub fn to_toml(&self) -> String {
                $crate::constants::to_toml(&self.values(), Self::FIELDS)
            }

            /// The file form of the constants that differ from `base` in four digits; read over `base`, it
            /// gives these constants. Only a comment where none does.
            pub fn to_toml_changed(&self, base: &Self) -> String {
                let (after, before) = (self.rounded().values(), base.rounded().values());
                $crate::constants::to_toml_changed(&after, &before, Self::FIELDS)
            }
        }
    };
}
pub(crate) use constants;

constants! {
    /// All constants of the training side; dimensionless unless the meaning names a unit.
    Constants, "data/training/constants.toml";
    gemm_ampere = 0.787, Training, 0.15, "Share of the bf16 peak that large matrix products reach in training on A100 (kernel tables: 0.78).";
    gemm_hopper = 0.662, Training, 0.15, "The same on H100 and H200; kernel tables 0.80, so the derate of a warm, busy chip is 0.82.";
    gemm_blackwell = 0.510, Training, 0.15, "The same on B200 and GB200; kernel tables 0.67.";
    gemm_ultra = 1.13, KernelTable, 0.1, "B300 and GB300 against B200 and GB200 in bf16.";
    gemm_other = 0.6, Stated, 0.2, "The same on chips without training rows: table efficiency 0.73 times derate 0.82.";
    fp8_hopper = 0.570, Training, 0.15, "Share of the fp8 peak on H100 and H200 (kernel tables: 0.62 and 0.53 by block).";
    fp8_blackwell = 0.470, Training, 0.15, "The same on B200 and GB200 (tables: 0.52 to 0.61).";
    fp8_ultra = 0.637, Training, 0.15, "The same on B300 and GB300 (tables: 0.60 to 0.68).";
    fp4_blackwell = 0.326, Training, 0.15, "Share of the fp4 peak on B200 and GB200 (tables: 0.43).";
    fp4_ultra = 0.368, Training, 0.15, "The same on B300 and GB300 (tables: 0.35).";
    attention_ampere = 0.374, Training, 0.2, "Share of the bf16 peak that the products of fused attention reach, forward and backward together, beside its exponentials on A100.";
    attention_hopper = 0.463, Training, 0.2, "The same with Hopper's own kernels (FlashAttention-3, cuDNN).";
    attention_portable = 0.45, Training, 0.08, "What Ampere's attention kernels reach on Hopper, as a share of Hopper's own.";
    attention_blackwell = 0.53, Training, 0.2, "Fused attention on Blackwell.";
    attention_ramp = 200.0, KernelTable, 0.5, "Sequence length, in tokens, at which attention reaches half of its rate.";
    head_misalignment = 5.0, Training, 0.3, "Slowdown of unfused attention whose heads are not a multiple of 8 wide, which tensor cores need.";
    scan = 0.3, Training, 1.0, "Rate of scans over a state against fused attention on as many keys (Mamba-2, arXiv:2405.21060: as fast as attention over 2,048 tokens).";
    reduction_ampere = 100.0, KernelTable, 0.3, "Inner dimension at which a product reaches half of its rate on A100.";
    reduction_hopper = 120.0, KernelTable, 0.3, "The same on Hopper.";
    reduction_blackwell = 30.0, KernelTable, 0.3, "The same on Blackwell.";
    wave_weight = 0.12, KernelTable, 0.3, "How much of the idle tail of the last wave of tiles costs time; the rest is refilled by split kernels.";
    misalignment = 0.59, Training, 0.5, "Slowdown of a product whose width is not a multiple of 64.";
    memory_reach = 0.75, KernelTable, 0.1, "Share of HBM bandwidth that streaming kernels reach.";
    elementwise = 0.83, Training, 0.3, "Bytes moved by norms, residuals and activations, against a count of unfused reads and writes.";
    elementwise_unfused = 1.65, Training, 0.3, "The same before fused kernels (2021–22).";
    cast = 0.7, Training, 0.3, "Bytes moved by fp8 and fp4 casts against a count of reads and writes.";
    cast_experts = 1.5, Training, 0.4, "The same for routed tokens, whose casts are padded and scattered.";
    cast_block = 1.7, Training, 0.3, "Cost of casts to block-scaled fp8 against one scale per tensor.";
    logit_bytes = 24.0, Stated, 0.3, "Bytes moved per logit by softmax and loss, forward and backward.";
    grouped = 0.74, Training, 0.3, "Rate of grouped expert products against a single product of the same tiles.";
    permute = 1.12, Training, 0.4, "Bytes moved by routing, permuting and combining tokens, against a count of reads and writes.";
    scale_up_reach = 0.72, KernelTable, 0.05, "Share of scale-up bandwidth that collectives reach (tables: 0.65 to 0.72 for gathers).";
    scale_out_reach = 0.85, Training, 0.06, "Share of the network cards' bandwidth that collectives reach over RDMA.";
    collective_latency = 16e-6, KernelTable, 0.5, "Seconds to start a collective inside a domain.";
    network_latency = 8e-6, KernelTable, 0.5, "Seconds per hop between domains.";
    contention_compute = 0.3, Training, 0.15, "How much computation slows while communication runs beside it.";
    contention_network = 0.4, Training, 0.3, "How much communication slows while computation runs beside it.";
    tensor_uncovered = 0.2, Training, 0.5, "Share of tensor-parallel communication that finds no product to hide behind.";
    expert_uncovered = 0.7, Training, 0.2, "Share of expert all-to-all that is waited for.";
    expert_overlap = 0.4, Training, 0.25, "What is left of that share when micro-batches are interleaved to hide it.";
    alltoall_network = 0.8, Training, 0.3, "Bandwidth of NCCL all-to-all between domains over RDMA against other collectives.";
    data_uncovered = 0.3, Training, 0.5, "Share of gradient and weight traffic of data parallelism that the last backward pass cannot cover.";
    stack_deepspeed = 0.79, Training, 0.2, "Rate of matrix products in Megatron-DeepSpeed against Megatron.";
    stack_eager = 0.87, Training, 0.2, "Rate of matrix products in FSDP and nanotron against Megatron.";
    host_tuned = 68e-6, Training, 0.5, "Seconds of launch overhead per layer and micro-batch, Megatron.";
    host_eager = 267e-6, Training, 0.5, "The same in eager PyTorch.";
    host_experts = 6.2e-3, Training, 0.5, "Seconds of routing by the host per MoE layer and micro-batch.";
    host_each = 2.3e-4, Training, 0.5, "Seconds that each local expert adds to it.";
    host_domain = 0.51, Training, 0.5, "Routing by the host in a rack-scale domain, whose recipes replay parts of it as CUDA graphs, against eight-GPU domains.";
    host_stock = 11e-3, Training, 0.5, "Seconds of routing by the host per MoE layer and micro-batch without a recipe.";
    host_latent = 0.3, Stated, 0.5, "How much more overhead latent attention makes there.";
    host_dispatcher = 1.3, Training, 0.3, "Overhead of deduplicating dispatchers against NCCL there.";
    host_unfused = 1.5e-3, Training, 0.7, "Seconds of launch overhead per layer and micro-batch in Megatron-DeepSpeed, whose kernels are not fused.";
    expert_maturity = 0.72, Training, 0.3, "Time of MoE layers on Blackwell since Megatron Core 26.06 against before.";
    imbalance = 0.42, Training, 0.4, "How much of the difference between the longest and the mean stage costs time.";
    straggler = 0.0055, Training, 0.2, "Growth of a step per doubling of GPUs beyond eight.";
    step_host = 14e-3, Stated, 0.5, "Seconds of fixed work per step.";
    ring_hop = 4e-6, Stated, 0.5, "Seconds per rank of a ring for each unbucketed message (nanotron).";
    efa_v1_reach = 0.42, EfaTcp, 0.3, "Bandwidth of EFA v1 against RDMA of equal cards.";
    tcp_reach = 0.22, EfaTcp, 0.5, "Bandwidth of TCP against RDMA on the same cards.";
    network_growth = 0.37, EfaTcp, 0.5, "Loss of network bandwidth per doubling of nodes beyond sixteen, over EFA v1 and TCP.";
    efa_reach = 0.88, Collectives, 0.2, "Share of the cards' bandwidth that rings reach over EFA since v2.";
    efa_step = 10.4e-6, Collectives, 0.3, "Seconds of a ring's step over EFA v2, at whose pace the whole ring goes.";
    efa_alltoall = 41e9, Collectives, 0.2, "Bytes per second and GPU of all-to-all and dispatch over EFA since v2, which the host drives, whatever the cards.";
    tree_reach = 0.25, Collectives, 0.3, "Share of a node's bandwidth that an all-reduce over a tree of nodes delivers, three of them or more.";
    alltoall_start = 2.6e-4, Collectives, 0.3, "Seconds to start an NCCL all-to-all between domains over EFA.";
    alltoall_peer = 2.6e-6, Collectives, 0.3, "Seconds that each peer adds to it.";
    dispatch_start = 4.5e-5, Collectives, 0.3, "Seconds to start a dispatch of tokens by the GPU, over RDMA or inside a domain.";
    dispatch_start_efa = 5e-5, Collectives, 0.3, "Seconds that the host adds to it over EFA, which the GPU cannot drive itself.";
    device_rate = 2.3e9, Collectives, 0.3, "Bytes per second and GPU that GPU-initiated messages reach over EFA.";
    workspace = 2.0, Memory, 0.3, "GiB of context, libraries and communication buffers.";
    workspace_deepspeed = 9.0, Memory, 0.3, "The same in stacks of 2021–22: two flat buckets of 500 million numbers, and ten communicators of half a GiB.";
    eager_activations = 1.0, Memory, 0.1, "Activations that eager PyTorch keeps against what fused kernels keep.";
    fragmentation = 0.04, Memory, 0.5, "Share of activations lost to fragmentation and temporaries.";
}

/// Overrides `values` by the constants of a file.
pub(crate) fn read(source: Source<'_>, values: &mut [f64], fields: &[Field]) -> Result<(), DocumentError> {
    let table = Table::parse(source)?.titled("the constants");
    for (value, field) in values.iter_mut().zip(fields) {
        *value = table.or(field.name, *value)?;
        let (least, most) = field.limits();
        if table.has(field.name) && !(least..=most).contains(value) {
            let lower = if least < 1e-3 { "above 0".to_owned() } else { format!("from {least}") };
            let older = match BYTES_PER_SECOND.contains(&field.name) && (0.0..=1.2).contains(value) {
                true => {
                    "; it is in bytes per second and was a share in earlier versions: leave the line out, or calibrate again"
                }
                false => "",
            };
            let reason = format!("it must be a number {lower} and up to {most}{older}");
            return Err(table.bad_value(field.name, reason));
        }
    }
    table.finish()?;
    Ok(())
}

/// Four significant digits.
pub(crate) fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

pub(crate) fn to_toml(values: &[f64], fields: &[Field]) -> String {
    values.iter().zip(fields).map(|(value, field)| line(*value, field)).collect::<Vec<_>>().join("\n")
}

pub(crate) fn to_toml_changed(after: &[f64], before: &[f64], fields: &[Field]) -> String {
    let changed: Vec<String> = after
        .iter()
        .zip(before)
        .zip(fields)
        .filter(|((after, before), _)| after != before)
        .map(|((after, _), field)| line(*after, field))
        .collect();
    if changed.is_empty() { "# No constant differs.\n".to_owned() } else { changed.join("\n") }
}

/// One constant of a file.
fn line(value: f64, field: &Field) -> String {
    format!("# {} [{}]\n{} = {value:?}\n", field.meaning, field.origin.name(), field.name)
}
