//! A layout as settings for the software that will run it.

use bedplate_layout::{ComputePrecision, Layout, Recompute, Sharding};
use bedplate_perf::Workload;

/// Flags for Megatron-LM's `pretrain_gpt.py`, one per line.
pub(super) fn megatron(layout: &Layout, workload: &Workload, layers: u64) -> String {
    let mut flags = vec![
        format!("--tensor-model-parallel-size {}", layout.tensor),
        format!("--pipeline-model-parallel-size {}", layout.pipeline),
        format!("--context-parallel-size {}", layout.context),
        format!("--micro-batch-size {}", layout.micro_batch),
        format!("--global-batch-size {}", workload.global_batch),
        format!("--seq-length {}", workload.sequence),
    ];
    if layout.is_sequence_parallel {
        flags.push("--sequence-parallel".into());
    }
    if layout.virtual_stages > 1 {
        let chunk = layers / (u64::from(layout.pipeline) * u64::from(layout.virtual_stages));
        flags.push(format!("--num-layers-per-virtual-pipeline-stage {chunk}"));
    }
    if layout.expert > 1 {
        flags.push(format!("--expert-model-parallel-size {}", layout.expert));
        flags.push(format!("--expert-tensor-parallel-size {}", layout.expert_tensor));
    }
    flags.extend(match layout.sharding {
        Sharding::None => vec![],
        Sharding::Optimizer => vec!["--use-distributed-optimizer".to_owned()],
        Sharding::Gradients => {
            vec!["--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads".into()]
        }
        Sharding::Weights => {
            vec!["--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params".into()]
        }
        Sharding::WeightsWithin(group) => vec![
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params".into(),
            format!("--num-distributed-optimizer-instances {}", layout.data * layout.context / group),
        ],
    });
    flags.extend(match layout.recompute {
        Recompute::None => None,
        Recompute::Selective => Some("--recompute-granularity selective".to_owned()),
        Recompute::Full => {
            Some("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1".into())
        }
    });
    flags.push(match layout.precision {
        ComputePrecision::Fp32 => "--no-bf16".into(),
        ComputePrecision::Bf16 => "--bf16".into(),
        ComputePrecision::Fp16 => "--fp16".into(),
        ComputePrecision::Fp8 => "--bf16 --fp8-format hybrid".into(),
        ComputePrecision::Fp4 => "--bf16 --fp4-format e2m1".into(),
    });
    flags.join(" \\\n")
}

/// The `[parallelism]` and `[training]` tables of a torchtitan configuration.
pub(super) fn torchtitan(layout: &Layout, workload: &Workload) -> String {
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
    format!(
        "[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\n\n\
         [parallelism]\ndata_parallel_replicate_degree = {replicate}\ndata_parallel_shard_degree = {shard}\n\
         tensor_parallel_degree = {}\ncontext_parallel_degree = {}\npipeline_parallel_degree = {}\n\
         pipeline_parallel_microbatch_size = {}\nexpert_parallel_degree = {}\n\n\
         [activation_checkpoint]\nmode = \"{recompute}\"",
        if layout.pipeline > 1 { per_rank } else { u64::from(layout.micro_batch) },
        workload.global_batch,
        workload.sequence,
        layout.tensor,
        layout.context,
        layout.pipeline,
        layout.micro_batch,
        layout.expert,
    )
}

/// The same for `bedplate train`, whose configuration takes a layout as it is written everywhere else.
pub(super) fn bedplate(layout: &Layout, workload: &Workload) -> String {
    format!(
        "layout = \"{layout}\"\nsequence = {}\nglobal_batch = {}",
        workload.sequence, workload.global_batch
    )
}
