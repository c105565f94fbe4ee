//! A layout as settings for the software that will run it.

use bedplate_layout::{ComputePrecision, Layout, Recompute, Sharding};
use bedplate_perf::{Dispatcher, ExpertOverlap, Offload, Task, Workload};
use bedplate_transformer::Transformer;

/// Flags for Megatron-LM's `pretrain_gpt.py`, one per line.
pub(super) fn megatron(layout: &Layout, workload: &Workload, model: &Transformer) -> String {
    let mut flags = vec![
        format!("--tensor-model-parallel-size {}", layout.tensor),
        format!("--pipeline-model-parallel-size {}", layout.pipeline),
        format!("--context-parallel-size {}", layout.context),
        format!("--micro-batch-size {}", layout.micro_batch),
        format!("--global-batch-size {}", workload.global_batch),
        format!("--seq-length {}", workload.sequence),
        // The prediction reduces gradients in two bytes, overlapped with the backward pass.
        "--grad-reduce-in-bf16 --overlap-grad-reduce".into(),
    ];
    if layout.is_sequence_parallel {
        flags.push("--sequence-parallel --tp-comm-overlap".into());
    }
    flags.extend(stage_flags(layout, model.layer_count()));
    if model.is_mixture() {
        flags.extend(expert_flags(layout, workload));
    }
    flags.extend(sharding_flags(layout));
    if workload.offload == Offload::Optimizer {
        flags.push("--optimizer-cpu-offload".into());
    }
    flags.extend(match layout.recompute {
        Recompute::None => None,
        Recompute::Selective => Some("--recompute-granularity selective".to_owned()),
        Recompute::Full => {
            Some("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1".into())
        }
    });
    flags.extend(match layout.precision {
        ComputePrecision::Fp32 => None,
        ComputePrecision::Bf16 => Some("--bf16".to_owned()),
        ComputePrecision::Fp16 => Some("--fp16".into()),
        ComputePrecision::Fp8 => Some("--bf16 --fp8-format hybrid".into()),
        ComputePrecision::Fp4 => Some("--bf16 --fp4-format e2m1".into()),
    });
    let mut text = String::new();
    if layout.tensor > 1 || layout.context > 1 {
        text += "# up to Hopper: export CUDA_DEVICE_MAX_CONNECTIONS=1\n";
    }
    if let Task::Lora { .. } = workload.task {
        text += "# adapters are not part of pretrain_gpt.py; take these sizes to a recipe that has them\n";
    }
    text + &flags.join(" \\\n")
}

/// Interleaving, or stages of unequal length where the layers do not divide.
fn stage_flags(layout: &Layout, layers: u64) -> Option<String> {
    let stages = u64::from(layout.pipeline);
    if layout.virtual_stages > 1 {
        let chunk = layers / (stages * u64::from(layout.virtual_stages));
        return Some(format!("--num-layers-per-virtual-pipeline-stage {chunk}"));
    }
    if layers.is_multiple_of(stages) {
        return None;
    }
    // Megatron allows different lengths only for the first and the last stage.
    let middle = layers.div_ceil(stages);
    let ends = layers.checked_sub(middle * stages.saturating_sub(2)).filter(|ends| *ends >= 2);
    Some(match ends {
        Some(ends) => format!(
            "--decoder-first-pipeline-num-layers {} --decoder-last-pipeline-num-layers {}",
            ends.div_ceil(2),
            ends / 2
        ),
        None => {
            format!("--pipeline-model-parallel-layout '...' # {layers} layers over {stages} stages, by hand")
        }
    })
}

fn expert_flags(layout: &Layout, workload: &Workload) -> Vec<String> {
    // Left out, the expert tensor size would be that of the other matrices.
    let mut flags = vec![
        format!("--expert-model-parallel-size {}", layout.expert),
        format!("--expert-tensor-parallel-size {}", layout.expert_tensor),
        "--moe-grouped-gemm".into(),
    ];
    flags.push(match workload.dispatcher {
        Dispatcher::AllToAll => "--moe-token-dispatcher-type alltoall".into(),
        Dispatcher::Deduplicating => "--moe-token-dispatcher-type flex --moe-enable-deepep".into(),
    });
    if workload.expert_overlap == ExpertOverlap::Overlapped {
        flags.push("--overlap-moe-expert-parallel-comm".into());
    }
    flags
}

fn sharding_flags(layout: &Layout) -> Vec<String> {
    let fsdp = |strategy: &str| format!("--use-megatron-fsdp --data-parallel-sharding-strategy {strategy}");
    match layout.sharding {
        Sharding::None => vec![],
        Sharding::Optimizer => vec!["--use-distributed-optimizer --overlap-param-gather".into()],
        Sharding::Gradients => vec![fsdp("optim_grads")],
        Sharding::Weights => vec![fsdp("optim_grads_params")],
        Sharding::WeightsWithin(group) => vec![
            fsdp("optim_grads_params"),
            format!("--num-distributed-optimizer-instances {}", layout.data * layout.context / group),
        ],
    }
}

/// The tables of a torchtitan configuration. Newer releases configure in Python, with the same degrees.
pub(super) fn torchtitan(layout: &Layout, workload: &Workload, model: &Transformer) -> String {
    let (replicate, shard) = match layout.sharding {
        Sharding::Weights | Sharding::Gradients | Sharding::Optimizer => (1, layout.data),
        Sharding::WeightsWithin(group) => {
            let group = (group / layout.context).max(1);
            (layout.data / group, group)
        }
        Sharding::None => (layout.data, 1),
    };
    let recompute = match layout.recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
    };
    let per_rank = workload.global_batch / u64::from(layout.data);
    let mut text = format!(
        "[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\n\n\
         [parallelism]\ndata_parallel_replicate_degree = {replicate}\ndata_parallel_shard_degree = {shard}\n\
         tensor_parallel_degree = {}\ncontext_parallel_degree = {}\npipeline_parallel_degree = {}\n\
         expert_parallel_degree = {}\n",
        if layout.pipeline > 1 { per_rank } else { u64::from(layout.micro_batch) },
        workload.global_batch,
        workload.sequence,
        layout.tensor,
        layout.context,
        layout.pipeline,
        layout.expert,
    );
    if matches!(layout.sharding, Sharding::Optimizer | Sharding::Gradients) {
        text += "fsdp_reshard_after_forward = \"never\"\n";
    }
    if layout.pipeline > 1 {
        let chunks = u64::from(layout.pipeline) * u64::from(layout.virtual_stages);
        let schedule = if layout.virtual_stages > 1 { "Interleaved1F1B" } else { "1F1B" };
        text += &format!(
            "pipeline_parallel_schedule = \"{schedule}\"\npipeline_parallel_microbatch_size = {}\n\
             pipeline_parallel_layers_per_stage = {}\n",
            layout.micro_batch,
            model.layer_count().div_ceil(chunks)
        );
    }
    text += &format!("\n[activation_checkpoint]\nmode = \"{recompute}\"");
    if layout.precision == ComputePrecision::Fp8 {
        text += "\n\n[model]\nconverters = [\"float8\"]";
    }
    text
}

/// The same for `bedplate train`, whose configuration takes a layout in the usual grammar.
pub(super) fn bedplate(layout: &Layout, workload: &Workload) -> String {
    format!(
        "layout = \"{layout}\"\nsequence = {}\nglobal_batch = {}",
        workload.sequence, workload.global_batch
    )
}
