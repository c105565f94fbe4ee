//! DeepSpeed: its JSON configuration, for a training script that takes one, as the `Trainer` of Transformers does.

use bedplate_layout::{ComputePrecision, Recompute, Sharding};
use bedplate_perf::{Offload, Task};
use bedplate_transformer::Optimizer;

use super::accelerate::block_class;
use super::{Lacks, TrainingJob};

pub(super) fn settings(job: &TrainingJob<'_>) -> Result<String, Lacks> {
    job.check_deepspeed()?;
    let mut lines = vec!["# plan.json".to_owned(), job.deepspeed_file()?, String::new()];
    lines.extend(job.node_remark());
    if let Task::Lora { rank } = job.workload.task {
        lines.push(format!(
            "# train.py adds the adapters: peft.LoraConfig(r={rank}, target_modules=\"all-linear\")"
        ));
    }
    if job.layout.recompute != Recompute::None {
        lines.push("# train.py turns recomputation on: model.gradient_checkpointing_enable()".into());
    }
    let (sequences, tokens) = (job.layout.micro_batch, job.workload.sequence);
    lines.push(format!("# train.py is yours; a micro-batch has {sequences} x {tokens} tokens"));
    lines.push(format!("{} train.py --deepspeed plan.json", job.torchrun()));
    Ok(lines.join("\n"))
}

impl TrainingJob<'_> {
    fn check_deepspeed(&self) -> Result<(), Lacks> {
        let layout = self.layout;
        let splits_weights = matches!(layout.sharding, Sharding::Weights | Sharding::WeightsWithin(_));
        let lacks = [
            (block_class(self.model.family).is_none(), Lacks::Model),
            (layout.pipeline > 1, Lacks::Pipeline),
            (layout.context > 1, Lacks::Context),
            (layout.expert > 1 || layout.expert_tensor > 1, Lacks::Experts),
            (layout.tensor > 1 && splits_weights, Lacks::Tensor),
            // Its sharding inside groups, MiCS, was removed.
            (matches!(layout.sharding, Sharding::WeightsWithin(_)), Lacks::Sharding),
            (matches!(layout.precision, ComputePrecision::Fp8 | ComputePrecision::Fp4), Lacks::Format),
            (self.workload.optimizer == Optimizer::AdamW8bit, Lacks::Optimizer),
        ];
        lacks.into_iter().find(|(is_needed, _)| *is_needed).map_or(Ok(()), |(_, lack)| Err(lack))
    }

    fn deepspeed_file(&self) -> Result<String, Lacks> {
        let layout = self.layout;
        let mut entries = vec![
            format!("\"train_batch_size\": {}", self.workload.global_batch),
            format!("\"train_micro_batch_size_per_gpu\": {}", layout.micro_batch),
            format!("\"gradient_accumulation_steps\": {}", self.micro_batches()),
            "\"gradient_clipping\": 1.0".into(),
        ];
        match layout.precision {
            ComputePrecision::Bf16 => entries.push("\"bf16\": { \"enabled\": true }".into()),
            ComputePrecision::Fp16 => entries.push("\"fp16\": { \"enabled\": true }".into()),
            _ => {}
        }
        entries.push(match self.workload.optimizer {
            Optimizer::Sgd => "\"optimizer\": { \"type\": \"SGD\", \"params\": { \"lr\": 1e-4 } }".into(),
            Optimizer::SgdMomentum => {
                "\"optimizer\": { \"type\": \"SGD\", \"params\": { \"lr\": 1e-4, \"momentum\": 0.9 } }".into()
            }
            _ => "\"optimizer\": { \"type\": \"AdamW\", \"params\": { \"lr\": 1e-4 } }".into(),
        });
        entries.push(format!("\"zero_optimization\": {{ {} }}", self.zero_entries()?.join(", ")));
        if layout.tensor > 1 {
            entries.push(format!("\"tensor_parallel\": {{ \"autotp_size\": {} }}", layout.tensor));
        }
        Ok(format!("{{\n  {}\n}}", entries.join(",\n  ")))
    }

    fn zero_entries(&self) -> Result<Vec<String>, Lacks> {
        let stage = match self.layout.sharding {
            Sharding::None => 0,
            Sharding::Optimizer => 1,
            Sharding::Gradients => 2,
            Sharding::Weights | Sharding::WeightsWithin(_) => 3,
        };
        let mut entries = vec![format!("\"stage\": {stage}")];
        if stage > 0 {
            entries.push("\"overlap_comm\": true, \"contiguous_gradients\": true".into());
        }
        if self.workload.offload == Offload::Optimizer {
            if stage == 0 {
                return Err(Lacks::Sharding);
            }
            entries.push("\"offload_optimizer\": { \"device\": \"cpu\", \"pin_memory\": true }".into());
        }
        Ok(entries)
    }
}
