//! What a software stack does and does not do: the few switches and rates that differ between them.

use crate::kernel::AttentionKernel;
use crate::{Constants, Stack};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile {
    /// Rate of matrix products relative to Megatron's.
    pub(crate) rate: f64,
    pub(crate) attention: AttentionKernel,
    pub(crate) elementwise: f64,
    /// Launch overhead per layer and micro-batch, in seconds.
    pub(crate) host: f64,
    /// Seconds of fixed work per step.
    pub(crate) step_host: f64,
    /// Bytes per parameter that the optimizer reads and writes.
    pub(crate) optimizer_bytes: f64,
    /// Share of tensor-parallel traffic that is always exposed; 1 hides nothing.
    pub(crate) tensor_uncovered: f64,
    /// The same of data-parallel traffic.
    pub(crate) data_uncovered: f64,
    /// Bytes per gradient on the wire.
    pub(crate) gradient_bytes: f64,
    /// Bytes per gradient and micro-batch that the product of a weight's gradient moves: more than 2 where it also adds up.
    pub(crate) gradient_write: f64,
    /// The same of a kernel that adds it up afterwards.
    pub(crate) accumulation: f64,
    /// Bytes per gradient in memory, by whether training is in fp16.
    pub(crate) gradient_memory: f64,
    pub(crate) gradient_memory_fp16: f64,
    /// GiB of context, libraries and buffers.
    pub(crate) workspace: f64,
    /// Activations kept, relative to what fused kernels must keep.
    pub(crate) activation_memory: f64,
    /// Bytes of a logit at the worst moment.
    pub(crate) logit_memory: f64,
    /// Inputs gathered from a tensor group are kept whole instead of being gathered again.
    pub(crate) keeps_gathered: bool,
    /// Bytes of a parameter's state beyond moments and master weight, split like them.
    pub(crate) extra_state: f64,
    /// Stages are cut by what their layers and the head take, not by the number of layers.
    pub(crate) balances_stages: bool,
    /// Rings use one network card per domain.
    pub(crate) is_single_rail: bool,
    /// Messages per layer that each pay a full ring of latencies.
    pub(crate) unbucketed_messages: f64,
    pub(crate) expert_maturity: f64,
    /// How often sharded weights are gathered per micro-batch.
    pub(crate) weight_gathers: f64,
    /// What selective recomputation repeats and keeps, where it does not go by norms and activation functions.
    pub(crate) selective: Option<Selective>,
}

/// Gradient, master weight and two moments read, three of them written, and the weight.
const OPTIMIZER_BYTES: f64 = 22.0;

/// What our kernels move beside products, against the same count as `elementwise`: fitted to six models on an H200 (docs/gpu-log.md,
/// 17 November 2026).
const BEDPLATE_ELEMENTWISE: f64 = 0.5;

/// Shares of a layer: products that are repeated, and activations that are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selective {
    pub(crate) products: f64,
    pub(crate) kept: f64,
}

impl Profile {
    pub(crate) fn new(stack: Stack, constants: &Constants) -> Self {
        let c = constants;
        let megatron = Self {
            rate: 1.0,
            attention: AttentionKernel::Native,
            elementwise: c.elementwise,
            host: c.host_tuned,
            step_host: c.step_host,
            optimizer_bytes: OPTIMIZER_BYTES,
            tensor_uncovered: c.tensor_uncovered,
            data_uncovered: c.data_uncovered,
            gradient_bytes: 2.0,
            // Read and written in bf16 by the product itself.
            gradient_write: 4.0,
            accumulation: 0.0,
            gradient_memory: 2.0,
            gradient_memory_fp16: 2.0,
            workspace: c.workspace,
            activation_memory: 1.0,
            // fp32, and the gradient in bf16.
            logit_memory: 6.0,
            keeps_gathered: false,
            extra_state: 0.0,
            balances_stages: false,
            is_single_rail: false,
            unbucketed_messages: 0.0,
            expert_maturity: 1.0,
            // Megatron-FSDP gathers twice too, but its buffers hide one of the gathers.
            weight_gathers: 1.0,
            selective: None,
        };
        let old = Self {
            attention: AttentionKernel::Unfused,
            elementwise: c.elementwise_unfused,
            tensor_uncovered: 1.0,
            data_uncovered: 1.0,
            gradient_bytes: 4.0,
            // The gradient is read, and the sum is read and written in fp32.
            gradient_write: 2.0,
            accumulation: 10.0,
            // DeepSpeed accumulates bf16 gradients in an extra fp32 copy.
            gradient_memory: 6.0,
            weight_gathers: 2.0,
            workspace: c.workspace_deepspeed,
            // The optimizer widens its share of the gradients before it uses them.
            extra_state: 4.0,
            ..megatron
        };
        let fsdp = Self {
            rate: c.stack_eager,
            attention: AttentionKernel::Portable,
            host: c.host_eager,
            tensor_uncovered: 0.5,
            // PyTorch's policy keeps every other product and no element-wise result (torchtitan).
            selective: Some(Selective { products: 0.5, kept: 0.5 }),
            weight_gathers: 2.0,
            // Scattered before they are added up.
            gradient_write: 2.0,
            gradient_memory: 4.0,
            activation_memory: c.eager_activations,
            // Fused losses keep bf16 logits and their gradient.
            logit_memory: 4.0,
            ..megatron
        };
        match stack {
            Stack::Megatron => Self { expert_maturity: c.expert_maturity, ..megatron },
            Stack::MegatronBefore2606 => megatron,
            // On a host, `host` prices it instead.
            Stack::Bedplate => Self {
                elementwise: BEDPLATE_ELEMENTWISE,
                step_host: 0.0,
                // Master weight, two moments and gradient in fp32, all but the last written again, and a copy in bf16.
                optimizer_bytes: 30.0,
                // Read and written in fp32 by the product itself.
                gradient_write: 8.0,
                gradient_memory: 4.0,
                // Logits exist for 2,048 rows at a time.
                logit_memory: 0.5,
                ..megatron
            },
            Stack::MegatronStock => Self { gradient_write: 8.0, gradient_memory: 4.0, ..megatron },
            Stack::Megatron2021 => old,
            Stack::MegatronDeepSpeed => Self { rate: c.stack_deepspeed, host: c.host_unfused, ..old },
            Stack::DeepSpeedZero3 => Self { rate: c.stack_deepspeed, is_single_rail: true, ..old },
            Stack::Fsdp => fsdp,
            Stack::FsdpTe => Self { attention: AttentionKernel::Native, ..fsdp },
            // MaxText's policy keeps queries, keys, values and attention; the rest, most of it the MLP, is repeated.
            Stack::MaxText => Self {
                weight_gathers: 2.0,
                gradient_write: 2.0,
                selective: Some(Selective { products: 0.8, kept: 0.135 }),
                ..megatron
            },
            Stack::Nanotron => Self {
                rate: c.stack_eager,
                attention: AttentionKernel::Portable,
                host: c.host_eager,
                data_uncovered: 1.0,
                gradient_bytes: 4.0,
                gradient_write: 2.0,
                unbucketed_messages: 12.0,
                gradient_memory: 6.0,
                activation_memory: c.eager_activations,
                // bf16, fp32 and exponentials in fp32: its loss is not fused.
                logit_memory: 10.0,
                keeps_gathered: true,
                balances_stages: true,
                ..megatron
            },
        }
    }
}
