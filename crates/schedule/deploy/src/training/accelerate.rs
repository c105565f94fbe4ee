//! Hugging Face Accelerate: a configuration file for FSDP2, for a training script that uses its `Accelerator` or the
//! `Trainer` of Transformers.

use bedplate_layout::{ComputePrecision, Recompute, Sharding};
use bedplate_perf::{Offload, Task};
use bedplate_transformer::Family;

use super::{Lacks, TrainingJob};

pub(super) fn settings(job: &TrainingJob<'_>) -> Result<String, Lacks> {
    job.check_accelerate()?;
    let mut lines = vec!["# plan.yaml".to_owned()];
    lines.extend(job.accelerate_file()?);
    lines.push(String::new());
    if job.nodes > 1 {
        lines.push(format!(
            "# on each of {} nodes, with NODE_RANK from 0 and HEAD_NODE the address of the first",
            job.nodes
        ));
    }
    if let Task::Lora { rank } = job.workload.task {
        lines.push(format!(
            "# train.py adds the adapters: peft.LoraConfig(r={rank}, target_modules=\"all-linear\")"
        ));
    }
    let (sequences, tokens) = (job.layout.micro_batch, job.workload.sequence);
    lines.push(format!("# train.py is yours; a micro-batch has {sequences} x {tokens} tokens"));
    let mut command = vec!["accelerate launch --config_file plan.yaml".to_owned()];
    if job.nodes > 1 {
        command.push(
            "--machine_rank \"$NODE_RANK\" --main_process_ip \"$HEAD_NODE\" --main_process_port 29500".into(),
        );
    }
    command.push(format!("--gradient_accumulation_steps {} train.py", job.micro_batches()));
    lines.push(command.join(" \\\n  "));
    Ok(lines.join("\n"))
}

/// The class of a family's decoder blocks in Transformers, which FSDP wraps one by one.
pub(super) fn block_class(family: Family) -> Option<&'static str> {
    Some(match family {
        Family::Gpt2 => "GPT2Block",
        Family::Bloom => "BloomBlock",
        Family::Mpt => "MptBlock",
        Family::Llama => "LlamaDecoderLayer",
        Family::Llama4 => "Llama4TextDecoderLayer",
        Family::Mistral => "MistralDecoderLayer",
        Family::Mixtral => "MixtralDecoderLayer",
        Family::Qwen2 => "Qwen2DecoderLayer",
        Family::Qwen2Moe => "Qwen2MoeDecoderLayer",
        Family::Qwen3 => "Qwen3DecoderLayer",
        Family::Qwen3Moe => "Qwen3MoeDecoderLayer",
        Family::DeepseekV2 => "DeepseekV2DecoderLayer",
        Family::DeepseekV3 => "DeepseekV3DecoderLayer",
        // Transformers has no such class yet.
        Family::DeepseekV32 | Family::Grok1 => return None,
        Family::GptOss => "GptOssDecoderLayer",
        Family::Gemma => "GemmaDecoderLayer",
        Family::Gemma2 => "Gemma2DecoderLayer",
        Family::Gemma3 => "Gemma3DecoderLayer",
        Family::Phi3 => "Phi3DecoderLayer",
        Family::Olmo2 => "Olmo2DecoderLayer",
        Family::Olmo3 => "Olmo3DecoderLayer",
        Family::Olmoe => "OlmoeDecoderLayer",
        Family::Glm => "GlmDecoderLayer",
        Family::Glm4 => "Glm4DecoderLayer",
        Family::Glm4Moe => "Glm4MoeDecoderLayer",
        Family::SmolLm3 => "SmolLM3DecoderLayer",
        Family::Granite => "GraniteDecoderLayer",
        Family::Ministral => "MinistralDecoderLayer",
        Family::Nemotron => "NemotronDecoderLayer",
        Family::NemotronH => "NemotronHBlock",
        Family::Qwen3Next => "Qwen3NextDecoderLayer",
    })
}

impl TrainingJob<'_> {
    fn check_accelerate(&self) -> Result<(), Lacks> {
        let layout = self.layout;
        let is_split = layout.tensor > 1 || layout.context > 1;
        let lacks = [
            (layout.pipeline > 1, Lacks::Pipeline),
            (layout.expert > 1 || layout.expert_tensor > 1, Lacks::Experts),
            (is_split && layout.sharding == Sharding::None && layout.data > 1, Lacks::Tensor),
            // FSDP2 needs a dimension of its own to split over.
            (is_split && layout.data == 1 && layout.context == 1, Lacks::Tensor),
            (layout.precision == ComputePrecision::Fp4, Lacks::Format),
        ];
        lacks.into_iter().find(|(is_needed, _)| *is_needed).map_or(Ok(()), |(_, lack)| Err(lack))
    }

    fn accelerate_file(&self) -> Result<Vec<String>, Lacks> {
        let layout = self.layout;
        let is_split = layout.sharding != Sharding::None || layout.context > 1;
        let kind = match (is_split, layout.world()) {
            (true, _) => "FSDP",
            (false, 1) => "'NO'",
            (false, _) => "MULTI_GPU",
        };
        let mut lines = vec![
            "compute_environment: LOCAL_MACHINE".to_owned(),
            format!("distributed_type: {kind}"),
            format!("mixed_precision: {}", self.accelerate_format()),
            format!("num_machines: {}", self.nodes),
            format!("num_processes: {}", layout.world()),
        ];
        if self.nodes > 1 {
            lines.push("rdzv_backend: c10d".into());
        }
        if layout.precision == ComputePrecision::Fp8 {
            lines.push("fp8_config:\n  backend: AO".into());
        }
        if is_split {
            lines.extend(self.fsdp_section()?);
            lines.extend(self.parallelism_section()?);
        }
        Ok(lines)
    }

    fn accelerate_format(&self) -> &'static str {
        match self.layout.precision {
            ComputePrecision::Fp32 => "'no'",
            ComputePrecision::Fp16 => "fp16",
            ComputePrecision::Fp8 => "fp8",
            _ => "bf16",
        }
    }

    fn fsdp_section(&self) -> Result<Vec<String>, Lacks> {
        let block = block_class(self.model.family).ok_or(Lacks::Model)?;
        let reshards = matches!(self.layout.sharding, Sharding::Weights | Sharding::WeightsWithin(_));
        let recomputes = self.layout.recompute != Recompute::None;
        let offloads = self.workload.offload == Offload::Optimizer;
        Ok(vec![
            "fsdp_config:".into(),
            "  fsdp_version: 2".into(),
            format!("  fsdp_reshard_after_forward: {reshards}"),
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP".into(),
            format!("  fsdp_transformer_layer_cls_to_wrap: {block}"),
            "  fsdp_state_dict_type: SHARDED_STATE_DICT".into(),
            "  fsdp_cpu_ram_efficient_loading: true".into(),
            format!("  fsdp_activation_checkpointing: {recomputes}"),
            format!("  fsdp_offload_params: {offloads}"),
        ])
    }

    fn parallelism_section(&self) -> Result<Vec<String>, Lacks> {
        let layout = self.layout;
        let (replicate, shard) = match layout.sharding {
            Sharding::WeightsWithin(group) => {
                let shard = (group / layout.context.max(1)).max(1);
                if !layout.data.is_multiple_of(shard) {
                    return Err(Lacks::Sharding);
                }
                (layout.data / shard, shard)
            }
            _ => (1, layout.data),
        };
        if layout.tensor == 1 && layout.context == 1 && replicate == 1 {
            return Ok(Vec::new());
        }
        Ok(vec![
            "parallelism_config:".into(),
            format!("  parallelism_config_dp_replicate_size: {replicate}"),
            format!("  parallelism_config_dp_shard_size: {shard}"),
            format!("  parallelism_config_tp_size: {}", layout.tensor),
            format!("  parallelism_config_cp_size: {}", layout.context),
        ])
    }
}
