//! NeMo Megatron-Bridge: one of its recipes with the layout as overrides of its configuration.

use bedplate_layout::{ComputePrecision, Recompute, Sharding};
use bedplate_perf::{Dispatcher, Offload, Task};
use bedplate_transformer::Optimizer;

use super::{Lacks, TrainingJob};

/// Our names, and the stem of the recipes of that model.
const STEMS: [(&str, &str); 43] = [
    ("llama-2-7b", "llama2_7b"),
    ("llama-3-8b", "llama3_8b"),
    ("llama-3-70b", "llama3_70b"),
    ("llama-3.1-8b", "llama31_8b"),
    ("llama-3.1-70b", "llama31_70b"),
    ("llama-3.3-70b", "llama31_70b"),
    ("llama-3.1-405b", "llama31_405b"),
    ("llama-3.2-1b", "llama32_1b"),
    ("llama-3.2-3b", "llama32_3b"),
    ("qwen2-0.5b", "qwen2_500m"),
    ("qwen2-1.5b", "qwen2_1p5b"),
    ("qwen2-7b", "qwen2_7b"),
    ("qwen2-72b", "qwen2_72b"),
    ("qwen2.5-0.5b", "qwen25_500m"),
    ("qwen2.5-1.5b", "qwen25_1p5b"),
    ("qwen2.5-7b", "qwen25_7b"),
    ("qwen2.5-14b", "qwen25_14b"),
    ("qwen2.5-32b", "qwen25_32b"),
    ("qwen2.5-72b", "qwen25_72b"),
    ("qwen3-0.6b", "qwen3_600m"),
    ("qwen3-1.7b", "qwen3_1p7b"),
    ("qwen3-4b", "qwen3_4b"),
    ("qwen3-8b", "qwen3_8b"),
    ("qwen3-14b", "qwen3_14b"),
    ("qwen3-32b", "qwen3_32b"),
    ("qwen3-30b-a3b", "qwen3_30b_a3b"),
    ("qwen3-235b-a22b", "qwen3_235b_a22b"),
    ("gemma-2-2b", "gemma2_2b"),
    ("gemma-2-9b", "gemma2_9b"),
    ("gemma-2-27b", "gemma2_27b"),
    ("gemma-3-1b", "gemma3_1b"),
    ("gpt-oss-20b", "gpt_oss_20b"),
    ("gpt-oss-120b", "gpt_oss_120b"),
    ("deepseek-v2-lite", "deepseek_v2_lite"),
    ("deepseek-v2", "deepseek_v2"),
    ("deepseek-v3", "deepseek_v3"),
    ("deepseek-r1", "deepseek_v3"),
    ("kimi-k2", "kimi_k2"),
    ("gpt3-175b", "gpt3_175b"),
    ("qwen3-next-80b-a3b", "qwen3_next_80b_a3b"),
    ("nemotron-h-8b", "nemotronh_8b"),
    ("nemotron-h-56b", "nemotronh_56b"),
    ("nemotron-3-nano-30b-a3b", "nemotron_3_nano"),
];

/// Stems that have recipes for pre-training only.
const PRETRAINING_ONLY: [&str; 6] =
    ["llama2_7b", "deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "kimi_k2", "gpt3_175b"];

pub(super) fn settings(job: &TrainingJob<'_>) -> Result<String, Lacks> {
    let stem = STEMS.iter().find(|(name, _)| *name == job.model.name).map(|(_, stem)| *stem);
    let stem = stem.ok_or(Lacks::Model)?;
    if job.workload.task != Task::Pretrain && PRETRAINING_ONLY.contains(&stem) {
        return Err(Lacks::Model);
    }
    job.check_megatron_experts()?;
    job.check_schedule()?;
    let (mode, data, adapters) = match job.workload.task {
        Task::Pretrain => ("pretrain", "mock", None),
        Task::FineTune => ("sft", "squad", None),
        Task::Lora { rank } => ("lora", "squad", Some(format!("peft.dim={rank}"))),
    };
    let mut text: Vec<String> = job.node_remark().into_iter().collect();
    text.push(
        "# in a checkout of Megatron-Bridge; the data set is an example, your own goes into dataset.*".into(),
    );
    if job.workload.task != Task::Pretrain {
        text.push(
            "# add checkpoint.pretrained_checkpoint=FOLDER, the converted weights to start from".into(),
        );
    }
    let is_ordered = (job.layout.tensor > 1 || job.layout.context > 1) && !job.is_blackwell;
    text.extend(match (job.uses_megatron_fsdp(), is_ordered) {
        (true, _) => Some("unset CUDA_DEVICE_MAX_CONNECTIONS".to_owned()),
        (false, true) => Some("export CUDA_DEVICE_MAX_CONNECTIONS=1".to_owned()),
        (false, false) => None,
    });
    let mut lines = vec![
        format!("{} scripts/training/run_recipe.py", job.torchrun()),
        format!("--model {stem} --mode {mode} --dataset {data}"),
    ];
    lines.extend(job.bridge_overrides()?);
    lines.extend(adapters);
    text.push(lines.join(" \\\n  "));
    Ok(text.join("\n"))
}

impl TrainingJob<'_> {
    fn bridge_overrides(&self) -> Result<Vec<String>, Lacks> {
        let (layout, workload) = (self.layout, self.workload);
        let mut lines = vec![
            format!(
                "train.micro_batch_size={} train.global_batch_size={} dataset.seq_length={}",
                layout.micro_batch, workload.global_batch, workload.sequence
            ),
            format!(
                "model.tensor_model_parallel_size={} model.pipeline_model_parallel_size={} \
                 model.context_parallel_size={}",
                layout.tensor, layout.pipeline, layout.context
            ),
            format!("model.sequence_parallel={}", layout.is_sequence_parallel && layout.tensor > 1),
            self.bridge_stages()?,
        ];
        lines.extend(self.bridge_prediction());
        if self.model.is_mixture() {
            lines.push(self.bridge_experts());
        }
        lines.extend(self.bridge_sharding()?);
        lines.extend(self.bridge_optimizer()?);
        lines.push(match layout.recompute {
            Recompute::None => {
                "model.recompute_granularity=null model.recompute_method=null model.recompute_num_layers=null".into()
            }
            Recompute::Selective => {
                "model.recompute_granularity=selective model.recompute_method=null model.recompute_num_layers=null".into()
            }
            Recompute::Full => {
                "model.recompute_granularity=full model.recompute_method=uniform model.recompute_num_layers=1"
                    .into()
            }
        });
        lines.push(format!("mixed_precision={}", self.bridge_format()?));
        Ok(lines)
    }

    /// Recipes of models with prediction modules train them unless told otherwise.
    fn bridge_prediction(&self) -> Option<String> {
        let modules = self.prediction_layers();
        let wanted = if modules > 0 { modules.to_string() } else { "null".into() };
        (self.model.prediction_layers > 0).then(|| format!("model.mtp_num_layers={wanted}"))
    }

    fn bridge_stages(&self) -> Result<String, Lacks> {
        let layout = self.layout;
        let is_uneven = layout.pipeline > 1 && !self.divides_evenly();
        let chunks =
            if layout.virtual_stages > 1 { layout.virtual_stages.to_string() } else { "null".into() };
        let dealt = if is_uneven { format!("\"{}\"", self.megatron_layout()?) } else { "null".into() };
        Ok(format!(
            "model.virtual_pipeline_model_parallel_size={chunks} 'model.pipeline_model_parallel_layout={dealt}'"
        ))
    }

    fn bridge_experts(&self) -> String {
        let layout = self.layout;
        let is_spread = layout.expert > 1 || layout.expert_tensor > 1;
        let dispatcher = match self.workload.dispatcher {
            Dispatcher::Deduplicating if is_spread => {
                "model.moe_token_dispatcher_type=flex model.moe_flex_dispatcher_backend=deepep \
                 model.moe_router_dtype=fp32"
            }
            _ => "model.moe_token_dispatcher_type=alltoall",
        };
        format!(
            "model.expert_model_parallel_size={} model.expert_tensor_parallel_size={} {dispatcher}",
            layout.expert, layout.expert_tensor
        )
    }

    fn bridge_sharding(&self) -> Result<Vec<String>, Lacks> {
        let layout = self.layout;
        let splits = layout.sharding != Sharding::None;
        let mut lines = vec![format!(
            "ddp.use_distributed_optimizer={splits} optimizer.use_distributed_optimizer={splits} \
             ddp.overlap_grad_reduce=true ddp.overlap_param_gather={splits}"
        )];
        if !self.uses_megatron_fsdp() {
            return Ok(lines);
        }
        let strategy = match layout.sharding {
            Sharding::Gradients => "optim_grads",
            _ => "optim_grads_params",
        };
        lines.push(format!(
            "dist.use_megatron_fsdp=true ddp.use_megatron_fsdp=true ddp.data_parallel_sharding_strategy={strategy}"
        ));
        lines.push("checkpoint.ckpt_format=fsdp_dtensor model.gradient_accumulation_fusion=false".into());
        if let Some(instances) = self.sharding_instances()? {
            lines.push(format!("ddp.num_distributed_optimizer_instances={instances}"));
        }
        Ok(lines)
    }

    fn bridge_optimizer(&self) -> Result<Option<String>, Lacks> {
        match (self.workload.optimizer, self.workload.offload) {
            (Optimizer::AdamW, Offload::Nothing) => Ok(None),
            (Optimizer::AdamW, Offload::Optimizer) => Ok(Some(
                "optimizer.optimizer_cpu_offload=true optimizer.use_precision_aware_optimizer=true".into(),
            )),
            _ => Err(Lacks::Optimizer),
        }
    }

    fn bridge_format(&self) -> Result<&'static str, Lacks> {
        match self.layout.precision {
            ComputePrecision::Bf16 => Ok("bf16_mixed"),
            ComputePrecision::Fp16 => Ok("fp16_mixed"),
            ComputePrecision::Fp8 if self.is_blackwell => Ok("bf16_with_mxfp8_mixed"),
            ComputePrecision::Fp8 => Ok("bf16_with_fp8_current_scaling_mixed"),
            ComputePrecision::Fp4 if self.is_blackwell => Ok("bf16_with_nvfp4_mixed"),
            ComputePrecision::Fp4 | ComputePrecision::Fp32 => Err(Lacks::Format),
        }
    }
}
