//! Megatron-LM: `pretrain_gpt.py` with the flags of a layout, with Megatron-FSDP where weights or gradients are split.

use bedplate_layout::{ComputePrecision, Recompute, Schedule, Sharding};
use bedplate_perf::{Dispatcher, ExpertOverlap, Offload, Task};
use bedplate_transformer::{Mixture, Optimizer};

use super::{Lacks, TrainingJob, megatron_model};

pub(super) fn settings(job: &TrainingJob<'_>) -> Result<String, Lacks> {
    if let Task::Lora { .. } = job.workload.task {
        return Err(Lacks::Adapters);
    }
    job.check_megatron_experts()?;
    job.check_schedule()?;
    let mut text = Vec::new();
    text.extend(job.node_remark());
    text.extend(megatron_model::remarks(job.model).into_iter().map(String::from));
    text.push(
        "# the last two lines train on made-up data: replace them by your data, tokenizer and schedule"
            .into(),
    );
    if job.workload.task == Task::FineTune {
        text.push("# to fine-tune, add --finetune --load CHECKPOINT, and your samples".into());
    }
    text.extend(job.connections());
    let mut lines = vec![format!("{} pretrain_gpt.py", job.torchrun())];
    lines.extend(megatron_model::flags(job.model, job.workload.sequence)?);
    lines.extend(job.prediction_flags());
    lines.extend(job.parallel_flags()?);
    if job.model.is_mixture() {
        lines.extend(job.expert_flags());
    }
    lines.extend(job.sharding_flags()?);
    lines.extend(job.optimizer_flags()?);
    lines.extend(job.recompute_flags());
    lines.extend(job.format_flags()?);
    lines.push(format!("--mock-data --tokenizer-type NullTokenizer --vocab-size {}", job.model.vocab));
    lines.push("--train-iters 50 --lr 1e-4 --eval-iters 0 --log-interval 1".into());
    text.push(lines.join(" \\\n  "));
    Ok(text.join("\n"))
}

impl TrainingJob<'_> {
    /// The variable that orders communication before computation, which Megatron insists on up to Hopper, and which
    /// Megatron-FSDP forbids.
    fn connections(&self) -> Option<String> {
        let layout = self.layout;
        if self.uses_megatron_fsdp() {
            return Some("unset CUDA_DEVICE_MAX_CONNECTIONS".into());
        }
        let is_split = layout.tensor > 1 || layout.context > 1;
        (is_split && !self.is_blackwell).then(|| "export CUDA_DEVICE_MAX_CONNECTIONS=1".into())
    }

    pub(super) fn uses_megatron_fsdp(&self) -> bool {
        matches!(self.layout.sharding, Sharding::Gradients | Sharding::Weights | Sharding::WeightsWithin(_))
    }

    fn prediction_flags(&self) -> Option<String> {
        let modules = self.prediction_layers();
        (modules > 0).then(|| format!("--mtp-num-layers {modules}"))
    }

    /// Megatron's pipelines alternate or interleave.
    pub(super) fn check_schedule(&self) -> Result<(), Lacks> {
        match self.layout.schedule {
            Schedule::Alternating => Ok(()),
            Schedule::ZeroBubble | Schedule::DualPipe => Err(Lacks::Schedule),
        }
    }

    fn parallel_flags(&self) -> Result<Vec<String>, Lacks> {
        let (layout, workload) = (self.layout, self.workload);
        let mut lines = vec![
            format!(
                "--tensor-model-parallel-size {} --pipeline-model-parallel-size {} --context-parallel-size {}",
                layout.tensor, layout.pipeline, layout.context
            ),
            format!(
                "--micro-batch-size {} --global-batch-size {} --seq-length {}",
                layout.micro_batch, workload.global_batch, workload.sequence
            ),
        ];
        if layout.is_sequence_parallel && layout.tensor > 1 {
            // The overlap's buffers are shared by GPUs of one node.
            let overlaps = layout.tensor <= self.gpus_per_node;
            let overlap = if overlaps { " --tp-comm-overlap" } else { "" };
            lines.push(format!("--sequence-parallel{overlap}"));
        }
        lines.extend(self.stage_flags()?);
        Ok(lines)
    }

    /// Interleaving, or chunks of unequal length where the layers do not divide or the ends are set by hand.
    fn stage_flags(&self) -> Result<Option<String>, Lacks> {
        let layout = self.layout;
        if layout.pipeline == 1 {
            return Ok(None);
        }
        if !self.divides_evenly() {
            return Ok(Some(format!("--pipeline-model-parallel-layout '{}'", self.megatron_layout()?)));
        }
        let chunk = self.model.layer_count() / self.chunks();
        Ok((layout.virtual_stages > 1).then(|| format!("--num-layers-per-virtual-pipeline-stage {chunk}")))
    }

    /// Megatron splits the matrices of an expert only where they have no bias.
    pub(super) fn check_megatron_experts(&self) -> Result<(), Lacks> {
        let has_bias = |mixture: &Mixture| mixture.expert.has_bias;
        let is_biased = self.model.layers().filter_map(|layer| layer.mlp.mixture()).any(has_bias);
        if is_biased && self.layout.expert_tensor > 1 { Err(Lacks::ExpertTensor) } else { Ok(()) }
    }

    fn expert_flags(&self) -> Vec<String> {
        let layout = self.layout;
        // Left out, the expert tensor size would be that of the other matrices.
        let mut lines = vec![format!(
            "--expert-model-parallel-size {} --expert-tensor-parallel-size {} --moe-grouped-gemm",
            layout.expert, layout.expert_tensor
        )];
        let is_spread = layout.expert > 1 || layout.expert_tensor > 1;
        lines.push(match self.workload.dispatcher {
            // DeepEP exchanges the router's probabilities in fp32.
            Dispatcher::Deduplicating if is_spread => {
                "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep --moe-router-dtype fp32"
                    .into()
            }
            _ => "--moe-token-dispatcher-type alltoall".into(),
        });
        if self.overlaps_experts() {
            lines.push("--overlap-moe-expert-parallel-comm".into());
        }
        lines
    }

    /// Megatron overlaps experts between micro-batches: with a pipeline only if that is interleaved, and never with
    /// whole blocks computed again.
    pub(super) fn overlaps_experts(&self) -> bool {
        let layout = self.layout;
        self.workload.expert_overlap == ExpertOverlap::Overlapped
            && layout.expert > 1
            && (layout.pipeline == 1 || layout.virtual_stages > 1)
            && layout.recompute != Recompute::Full
            && layout.precision != ComputePrecision::Fp32
    }

    fn sharding_flags(&self) -> Result<Vec<String>, Lacks> {
        let layout = self.layout;
        let mut lines = vec!["--overlap-grad-reduce".to_owned()];
        // The prediction reduces gradients in two bytes.
        if !matches!(layout.precision, ComputePrecision::Fp32 | ComputePrecision::Fp16) {
            lines[0] += " --grad-reduce-in-bf16";
        }
        if layout.sharding != Sharding::None {
            lines.push("--use-distributed-optimizer --overlap-param-gather".into());
        }
        if !self.uses_megatron_fsdp() {
            return Ok(lines);
        }
        let strategy = match layout.sharding {
            Sharding::Gradients => "optim_grads",
            _ => "optim_grads_params",
        };
        lines.push(format!("--use-megatron-fsdp --data-parallel-sharding-strategy {strategy}"));
        lines.push(
            "--ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion --init-model-with-meta-device"
                .into(),
        );
        if let Some(instances) = self.sharding_instances()? {
            lines.push(format!("--num-distributed-optimizer-instances {instances}"));
        }
        Ok(lines)
    }

    /// Groups of ranks that each hold the whole state, where there are several.
    pub(super) fn sharding_instances(&self) -> Result<Option<u32>, Lacks> {
        let layout = self.layout;
        let Sharding::WeightsWithin(group) = layout.sharding else { return Ok(None) };
        let ranks = layout.data * layout.context;
        let instances = ranks / group.max(1);
        // The copies of an expert are dealt to the same number of groups.
        let is_even = ranks.is_multiple_of(group.max(1))
            && (!self.model.is_mixture() || layout.expert_data().is_multiple_of(instances.max(1)));
        if is_even { Ok((instances > 1).then_some(instances)) } else { Err(Lacks::Sharding) }
    }

    fn optimizer_flags(&self) -> Result<Option<String>, Lacks> {
        let is_offloaded = self.workload.offload == Offload::Optimizer;
        match self.workload.optimizer {
            Optimizer::AdamW if is_offloaded => {
                Ok(Some("--optimizer-cpu-offload --use-precision-aware-optimizer".into()))
            }
            Optimizer::AdamW => Ok(None),
            _ if is_offloaded => Err(Lacks::Optimizer),
            Optimizer::AdamW8bit => {
                Ok(Some("--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8".into()))
            }
            Optimizer::SgdMomentum => Ok(Some("--optimizer sgd --sgd-momentum 0.9".into())),
            Optimizer::Sgd => Ok(Some("--optimizer sgd --sgd-momentum 0.0".into())),
        }
    }

    fn recompute_flags(&self) -> Option<String> {
        match self.layout.recompute {
            Recompute::None => None,
            Recompute::Selective => Some("--recompute-granularity selective".into()),
            Recompute::Full => Some(
                "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1".into(),
            ),
        }
    }

    fn format_flags(&self) -> Result<Option<String>, Lacks> {
        Ok(match self.layout.precision {
            ComputePrecision::Fp32 => None,
            ComputePrecision::Bf16 => Some("--bf16".into()),
            ComputePrecision::Fp16 => Some("--fp16".into()),
            ComputePrecision::Fp8 if self.is_blackwell => {
                Some("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8".into())
            }
            ComputePrecision::Fp8 => Some("--bf16 --fp8-format hybrid --fp8-recipe tensorwise".into()),
            ComputePrecision::Fp4 if self.is_blackwell => {
                Some("--bf16 --fp4-format e2m1 --fp4-recipe nvfp4".into())
            }
            ComputePrecision::Fp4 => return Err(Lacks::Format),
        })
    }
}
