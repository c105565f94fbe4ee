//! torchtitan: a Python configuration, the form that its releases from 0.3 have.

use bedplate_layout::{ComputePrecision, Ends, Recompute, Schedule, Sharding, StageLayers};
use bedplate_perf::{Dispatcher, Offload, Task};
use bedplate_transformer::{Optimizer, Transformer, builtin};

use super::{Lacks, TrainingJob};

/// A model of torchtitan: where it is, and the configuration to start from.
struct Known {
    /// Names of our models with this shape.
    names: &'static [&'static str],
    module: &'static str,
    flavor: &'static str,
    base: &'static str,
}

const fn known(
    names: &'static [&'static str],
    module: &'static str,
    flavor: &'static str,
    base: &'static str,
) -> Known {
    Known { names, module, flavor, base }
}

/// Where a flavor has no configuration of its own, or one with other number formats built in, that of a model with the
/// same vocabulary.
const MODELS: [Known; 18] = [
    known(&["llama-3.2-1b"], "llama3", "1B", "llama3_8b"),
    known(&["llama-3.2-3b"], "llama3", "3B", "llama3_8b"),
    known(&["llama-3.1-8b", "llama-3-8b"], "llama3", "8B", "llama3_8b"),
    known(&["llama-3.1-70b", "llama-3-70b", "llama-3.3-70b"], "llama3", "70B", "llama3_70b"),
    known(&["llama-3.1-405b"], "llama3", "405B", "llama3_70b"),
    known(&["qwen3-0.6b"], "qwen3", "0.6B", "qwen3_0_6b"),
    known(&["qwen3-1.7b"], "qwen3", "1.7B", "qwen3_1_7b"),
    known(&["qwen3-4b"], "qwen3", "4B", "qwen3_1_7b"),
    known(&["qwen3-8b"], "qwen3", "8B", "qwen3_14b"),
    known(&["qwen3-14b"], "qwen3", "14B", "qwen3_14b"),
    known(&["qwen3-32b"], "qwen3", "32B", "qwen3_32b"),
    known(&["qwen3-30b-a3b"], "qwen3", "30B-A3B", "qwen3_30b_a3b"),
    known(&["qwen3-235b-a22b"], "qwen3", "235B-A22B", "qwen3_30b_a3b"),
    known(&["deepseek-v2-lite"], "deepseek_v3", "16B", "deepseek_v3_16b"),
    known(&["deepseek-v2"], "deepseek_v3", "236B", "deepseek_v3_16b"),
    known(&["deepseek-v3", "deepseek-r1"], "deepseek_v3", "671B", "deepseek_v3_671b"),
    known(&["gpt-oss-20b"], "gpt_oss", "20b", "gpt_oss_20b"),
    known(&["gpt-oss-120b"], "gpt_oss", "120b", "gpt_oss_120b"),
];

impl Known {
    fn is(&self, model: &Transformer) -> bool {
        let has_its_shape = |name: &&str| {
            builtin(name).is_ok_and(|known| {
                (&known.runs, known.hidden, known.vocab) == (&model.runs, model.hidden, model.vocab)
            })
        };
        self.names.iter().any(|name| *name == model.name) || self.names.iter().any(has_its_shape)
    }
}

pub(super) fn settings(job: &TrainingJob<'_>) -> Result<String, Lacks> {
    let known = MODELS.iter().find(|known| known.is(job.model)).ok_or(Lacks::Model)?;
    job.check_torchtitan(known)?;
    let (imports, registry) = job.titan_model(known)?;
    let mut file = vec!["# plan.py, in the folder of the command below".to_owned()];
    file.extend(imports);
    file.push(String::new());
    file.push("def plan():".into());
    file.push(format!("    config = {}()", known.base));
    file.push(format!("    config.model_spec = {registry}"));
    file.extend(job.titan_keys()?.into_iter().map(|(key, value)| format!("    config.{key} = {value}")));
    file.push("    return config".into());
    let mut command = vec![String::new()];
    command.extend(job.node_remark());
    if job.workload.task == Task::FineTune {
        command.push("# to fine-tune, set config.checkpoint.initial_load_path and config.dataloader".into());
    }
    if job.prediction_layers() > 0 {
        command.push("# trains without the module that predicts a further token".into());
    }
    if job.titan_converter().is_some() {
        command.push("# needs the package torchao".into());
    }
    command.push(
        "# data, tokenizer (config.hf_assets_path) and schedule are those of the configuration above".into(),
    );
    command.push(format!(
        "PYTHONPATH=. {} \\\n  -m torchtitan.train --module plan --config plan",
        job.torchrun()
    ));
    file.extend(command);
    Ok(file.join("\n"))
}

impl TrainingJob<'_> {
    fn check_torchtitan(&self, known: &Known) -> Result<(), Lacks> {
        let layout = self.layout;
        let kv_heads = self.model.layers().next().map_or(1, |layer| layer.attention.kv_heads());
        let lacks = [
            (matches!(self.workload.task, Task::Lora { .. }), Lacks::Adapters),
            (layout.expert_tensor > 1, Lacks::ExpertTensor),
            (!kv_heads.is_multiple_of(layout.tensor.into()), Lacks::TensorAboveKvHeads),
            (layout.pipeline > 1 && self.model.has_tied_embeddings, Lacks::TiedPipeline),
            // Its zero-bubble schedules deal at least two chunks to every rank.
            (layout.schedule != Schedule::Alternating, Lacks::Schedule),
            (layout.ends != Ends::default() && layout.virtual_stages > 1, Lacks::Ends),
            (layout.context > 1 && known.module == "gpt_oss", Lacks::Context),
            (layout.precision == ComputePrecision::Fp16, Lacks::Format),
            (layout.precision == ComputePrecision::Fp4 && !self.is_blackwell, Lacks::Format),
            (self.workload.optimizer != Optimizer::AdamW, Lacks::Optimizer),
        ];
        lacks.into_iter().find(|(is_needed, _)| *is_needed).map_or(Ok(()), |(_, lack)| Err(lack))
    }

    /// Import lines, and the expression that makes the model.
    fn titan_model(&self, known: &Known) -> Result<(Vec<String>, String), Lacks> {
        let module = known.module;
        let mut imports = vec![
            format!("from torchtitan.models.{module} import model_registry"),
            format!("from torchtitan.models.{module}.config_registry import {}", known.base),
        ];
        let mut arguments = vec![format!("\"{}\"", known.flavor)];
        if self.layout.expert > 1 {
            let backend = match self.workload.dispatcher {
                Dispatcher::Deduplicating => "deepep",
                Dispatcher::AllToAll => "standard",
            };
            arguments.push(format!("moe_comm_backend=\"{backend}\""));
        }
        if let Some(converter) = self.titan_converter() {
            imports.push(format!("from torchtitan.components.quantization import {converter}"));
            arguments.push(format!("converters=[{converter}.Config(model_compile_enabled=True)]"));
        }
        if self.layout.recompute != Recompute::None {
            let policy = self.titan_recompute();
            imports.push(format!("from torchtitan.distributed.activation_checkpoint import {policy}"));
        }
        Ok((imports, format!("model_registry({})", arguments.join(", "))))
    }

    fn titan_converter(&self) -> Option<&'static str> {
        match self.layout.precision {
            ComputePrecision::Fp8 if self.is_blackwell => Some("MXFP8LinearConverter"),
            ComputePrecision::Fp8 => Some("Float8LinearConverter"),
            ComputePrecision::Fp4 => Some("NVFP4LinearConverter"),
            _ => None,
        }
    }

    fn titan_recompute(&self) -> &'static str {
        if self.layout.recompute == Recompute::Full { "FullAC" } else { "SelectiveAC" }
    }

    /// Keys of the configuration and their values, as Python writes them.
    fn titan_keys(&self) -> Result<Vec<(&'static str, String)>, Lacks> {
        let (layout, workload) = (self.layout, self.workload);
        let (replicate, shard) = self.titan_data()?;
        let has_pipeline = layout.pipeline > 1;
        let local = if has_pipeline { self.sequences_per_rank() } else { layout.micro_batch.into() };
        let mut keys = vec![
            ("training.seq_len", workload.sequence.to_string()),
            ("training.global_batch_size", workload.global_batch.to_string()),
            ("training.local_batch_size", local.to_string()),
            ("parallelism.data_parallel_replicate_degree", replicate.to_string()),
            ("parallelism.data_parallel_shard_degree", shard.to_string()),
            ("parallelism.tensor_parallel_degree", layout.tensor.to_string()),
            ("parallelism.enable_sequence_parallel", python(layout.is_sequence_parallel)),
            ("parallelism.context_parallel_degree", layout.context.to_string()),
            ("parallelism.pipeline_parallel_degree", layout.pipeline.to_string()),
            ("parallelism.expert_parallel_degree", layout.expert.to_string()),
        ];
        if matches!(layout.sharding, Sharding::Optimizer | Sharding::Gradients) {
            keys.push(("parallelism.fsdp_reshard_after_forward", "\"never\"".into()));
        }
        if layout.context > 1 {
            // The masks of FlexAttention, which these models use, are balanced by this one only.
            keys.push(("parallelism.context_parallel_load_balancer", "\"ptrr\"".into()));
        }
        if has_pipeline {
            keys.extend(self.titan_stages()?);
        }
        // Captured graphs allow neither pipelines nor experts that exchange tokens with the host's help.
        keys.push(("training.disable_cuda_graphs", python(has_pipeline || layout.expert > 1)));
        if workload.offload == Offload::Optimizer {
            keys.push(("training.enable_cpu_offload", python(true)));
        }
        if layout.precision == ComputePrecision::Fp32 {
            keys.push(("training.mixed_precision_param", "\"float32\"".into()));
        }
        let compiles = self.titan_converter().is_some();
        keys.push(("compile.enable", python(compiles)));
        keys.push(("compile.enable_async_tensor_parallel", python(false)));
        if compiles {
            keys.push(("compile.components", "[\"model\", \"loss\"]".into()));
        }
        let recompute = match layout.recompute {
            Recompute::None => "None".into(),
            _ => format!("{}.Config()", self.titan_recompute()),
        };
        keys.push(("activation_checkpoint", recompute));
        Ok(keys)
    }

    /// Copies of the model, and ranks that split one. Context ranks split weights too, without being counted here.
    fn titan_data(&self) -> Result<(u32, u32), Lacks> {
        let layout = self.layout;
        match layout.sharding {
            Sharding::None => Ok((layout.data, 1)),
            Sharding::Optimizer | Sharding::Gradients | Sharding::Weights => Ok((1, layout.data)),
            Sharding::WeightsWithin(group) => {
                let shard = (group / layout.context.max(1)).max(1);
                let is_even =
                    layout.data.is_multiple_of(shard) && (shard * layout.context).is_multiple_of(group);
                if is_even { Ok((layout.data / shard, shard)) } else { Err(Lacks::Sharding) }
            }
        }
    }

    /// The schedule, and as many layers a chunk as give the wanted number of chunks. torchtitan rounds up, with the
    /// embedding and the head counted as so many layers.
    fn titan_stages(&self) -> Result<Vec<(&'static str, String)>, Lacks> {
        let TitanStages { input, output, each } = match self.layout.ends == Ends::default() {
            true => self.titan_even_stages().ok_or(Lacks::Chunks)?,
            false => self.titan_stages_by_hand().ok_or(Lacks::Ends)?,
        };
        let schedule = if self.layout.virtual_stages > 1 { "Interleaved1F1B" } else { "1F1B" };
        Ok(vec![
            ("parallelism.pipeline_parallel_schedule", format!("\"{schedule}\"")),
            ("parallelism.pipeline_parallel_microbatch_size", self.layout.micro_batch.to_string()),
            ("parallelism.pipeline_parallel_first_stage_less_layers", input.to_string()),
            ("parallelism.pipeline_parallel_last_stage_less_layers", output.to_string()),
            ("parallelism.pipeline_parallel_layers_per_stage", each.to_string()),
        ])
    }

    fn titan_even_stages(&self) -> Option<TitanStages> {
        let (layers, chunks) = (self.model.layer_count(), self.chunks());
        let mut candidates = [1, 0].into_iter().flat_map(|weight| {
            (1..=layers + 2 * weight).map(move |each| TitanStages { input: weight, output: weight, each })
        });
        candidates.find(|stages| stages.chunks(layers) == chunks)
    }

    /// Weights of the embedding and the head with which torchtitan deals the layers as they were set.
    fn titan_stages_by_hand(&self) -> Option<TitanStages> {
        let layers = self.model.layer_count();
        let wanted = StageLayers::of_each(layers, self.layout.pipeline, self.layout.ends)?;
        let longest = wanted.iter().copied().max()?;
        let mut weights = (0..=longest).flat_map(|input| (0..=longest).map(move |output| (input, output)));
        weights.find_map(|(input, output)| {
            let stages =
                TitanStages { input, output, each: (layers + input + output).div_ceil(self.chunks()) };
            (stages.dealt(layers).as_ref() == Some(&wanted)).then_some(stages)
        })
    }
}

/// How torchtitan deals layers: the embedding and the head count as `input` and `output` layers.
struct TitanStages {
    input: u64,
    output: u64,
    each: u64,
}

impl TitanStages {
    fn chunks(&self, layers: u64) -> u64 {
        (layers + self.input + self.output).div_ceil(self.each)
    }

    /// Layers of every stage: those that are left over go to the first ones.
    fn dealt(&self, layers: u64) -> Option<Vec<u64>> {
        let (whole, chunks) = (layers + self.input + self.output, self.chunks(layers));
        let (each, more) = (whole / chunks, whole % chunks);
        if self.input > each || self.output > each {
            return None;
        }
        let mut stages: Vec<u64> = (0..chunks).map(|stage| each + u64::from(stage < more)).collect();
        *stages.first_mut()? -= self.input;
        let last = stages.last_mut()?;
        *last = last.checked_sub(self.output)?;
        Some(stages)
    }
}

fn python(value: bool) -> String {
    if value { "True".into() } else { "False".into() }
}
