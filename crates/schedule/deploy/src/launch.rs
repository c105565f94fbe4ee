//! A plan as engine flags. One command per pool; each is run once per replica.

use bedplate_perf::serving::{Parallel, Replica, WeightFormat};
use bedplate_transformer::Precision;

use crate::{Cut, Need, Plan, Supply, Workers};

/// What is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Software {
    Vllm,
    Sglang,
    Dynamo,
    Bedplate,
}

impl Software {
    pub const ALL: [(&'static str, Software); 4] = [
        ("vllm", Software::Vllm),
        ("sglang", Software::Sglang),
        ("dynamo", Software::Dynamo),
        ("bedplate", Software::Bedplate),
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Duty {
    Both,
    Prefill,
    Decode,
}

/// Commands with a remark above each. `model` is what the engine loads: a name or a path.
pub fn launch(need: &Need<'_>, supply: &Supply, plan: &Plan, model: &str, software: Software) -> String {
    let pools: Vec<(Duty, &Workers)> = match plan {
        Plan::Aggregated(workers) => vec![(Duty::Both, workers)],
        Plan::Disaggregated { prefill, decode } => vec![(Duty::Prefill, prefill), (Duty::Decode, decode)],
    };
    let mut blocks = Vec::new();
    if software == Software::Dynamo {
        blocks.push("# once, in front of all workers\npython -m dynamo.frontend --router-mode kv".to_owned());
    }
    for (duty, workers) in pools {
        let sized = Sized { need, supply, model, workers, duty };
        let flags = match software {
            Software::Vllm => sized.vllm("vllm serve", ""),
            Software::Dynamo => sized.vllm("python -m dynamo.vllm --model", dynamo_duty(duty)),
            Software::Sglang => sized.sglang(),
            Software::Bedplate => sized.bedplate(),
        };
        blocks.push(format!("{}\n{}", sized.remark(software), flags.join(" \\\n  ")));
    }
    if plan_needs_router(plan, software) {
        blocks.push("# a router in front of the replicas spreads requests over them".to_owned());
    }
    blocks.join("\n\n")
}

fn plan_needs_router(plan: &Plan, software: Software) -> bool {
    let has_own = matches!(software, Software::Dynamo | Software::Bedplate);
    let replicas = plan.decoders().replicas;
    !has_own && (replicas > 1 || matches!(plan, Plan::Disaggregated { .. }))
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn dynamo_duty(duty: Duty) -> &'static str {
    match duty {
        Duty::Both => "",
        Duty::Prefill => "--disaggregation-mode prefill",
        Duty::Decode => "--disaggregation-mode decode",
    }
}

struct Sized<'a> {
    need: &'a Need<'a>,
    supply: &'a Supply,
    model: &'a str,
    workers: &'a Workers,
    duty: Duty,
}

impl Sized<'_> {
    fn cut(&self) -> &Cut {
        &self.workers.cut
    }

    fn remark(&self, software: Software) -> String {
        let duty = match self.duty {
            Duty::Both => "replica",
            Duty::Prefill => "prompt worker",
            Duty::Decode => "decode worker",
        };
        let gpus = self.cut().gpus();
        let count = if software == Software::Bedplate { 1 } else { self.workers.replicas };
        let times = if count > 1 { format!("{count} times") } else { "once".to_owned() };
        let (plural, gpu) = (plural(self.workers.replicas), plural(gpus));
        let mut remark =
            format!("# {} {duty}{plural} of {gpus} GPU{gpu} each: run {times}", self.workers.replicas);
        if self.cut().weights == WeightFormat::Int4 {
            remark += "; the model must be a four-bit checkpoint (AWQ or GPTQ)";
        }
        remark
    }

    /// Tokens of a request, plus some for chat templates.
    fn context(&self) -> u64 {
        let asked = self.need.load.context();
        let roomy = asked + asked / 16 + 64;
        match self.need.model.transformer.max_context {
            0 => roomy,
            longest => roomy.min(longest),
        }
    }

    fn replica(&self) -> Option<Replica> {
        self.cut().replica(self.need, self.supply).ok()
    }

    fn memory_share(&self) -> f64 {
        self.replica().map_or(0.9, |replica| replica.deployment().settings.memory_share)
    }

    fn vllm(&self, command: &str, duty: &str) -> Vec<String> {
        let Parallel { tensor, pipeline, expert, attention_data } = self.cut().parallel;
        let seats = self.workers.seats.div_ceil(attention_data);
        let mut flags = vec![format!("{command} {}", self.model), format!("--tensor-parallel-size {tensor}")];
        flags.extend((pipeline > 1).then(|| format!("--pipeline-parallel-size {pipeline}")));
        flags.extend((attention_data > 1).then(|| format!("--data-parallel-size {attention_data}")));
        flags.extend((expert > 1).then(|| "--enable-expert-parallel".to_owned()));
        flags.push(format!("--max-num-seqs {seats}"));
        flags.push(format!("--max-num-batched-tokens {}", self.cut().chunk.max(seats)));
        flags.push(format!("--max-model-len {}", self.context()));
        flags.push(format!("--gpu-memory-utilization {:.2}", self.memory_share()));
        flags.extend(match self.cut().weights {
            WeightFormat::Fp8 => Some("--quantization fp8".to_owned()),
            WeightFormat::Fp4 => Some("--quantization modelopt_fp4".to_owned()),
            WeightFormat::Bf16 | WeightFormat::Int4 => None,
        });
        flags.extend((self.cut().kv == Precision::Fp8).then(|| "--kv-cache-dtype fp8".to_owned()));
        if let Some(speculation) = self.need.options.speculation {
            let drafts = speculation.drafts;
            flags.push(format!(
                "--speculative-config '{{\"method\":\"mtp\",\"num_speculative_tokens\":{drafts}}}'"
            ));
        }
        if self.duty != Duty::Both {
            flags.push(
                "--kv-transfer-config '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}'"
                    .to_owned(),
            );
        }
        flags.extend((!duty.is_empty()).then(|| duty.to_owned()));
        flags
    }

    fn sglang(&self) -> Vec<String> {
        let Parallel { pipeline, expert, attention_data, .. } = self.cut().parallel;
        // SGLang counts all GPUs of a stage as tensor ranks and splits them into attention data ranks.
        let mut flags = vec![
            format!("python -m sglang.launch_server --model-path {}", self.model),
            format!("--tp-size {}", self.cut().parallel.stage_gpus()),
        ];
        flags.extend((pipeline > 1).then(|| format!("--pp-size {pipeline}")));
        flags.extend(
            (attention_data > 1).then(|| format!("--dp-size {attention_data} --enable-dp-attention")),
        );
        flags.extend((expert > 1).then(|| format!("--ep-size {expert}")));
        flags.push(format!("--max-running-requests {}", self.workers.seats));
        flags.push(format!("--chunked-prefill-size {}", self.cut().chunk));
        flags.push(format!("--context-length {}", self.context()));
        flags.push(format!("--mem-fraction-static {:.2}", self.memory_share()));
        flags.extend(match self.cut().weights {
            WeightFormat::Fp8 => Some("--quantization fp8".to_owned()),
            WeightFormat::Fp4 => Some("--quantization modelopt_fp4".to_owned()),
            WeightFormat::Bf16 | WeightFormat::Int4 => None,
        });
        flags.extend((self.cut().kv == Precision::Fp8).then(|| "--kv-cache-dtype fp8_e4m3".to_owned()));
        if let Some(speculation) = self.need.options.speculation {
            let drafts = speculation.drafts;
            flags.push(format!(
                "--speculative-algorithm EAGLE --speculative-num-steps {drafts} --speculative-eagle-topk 1 --speculative-num-draft-tokens {}",
                drafts + 1
            ));
        }
        let duty = match self.duty {
            Duty::Both => None,
            Duty::Prefill => Some("prefill"),
            Duty::Decode => Some("decode"),
        };
        flags.extend(
            duty.map(|duty| format!("--disaggregation-mode {duty} --disaggregation-transfer-backend nixl")),
        );
        flags
    }

    fn bedplate(&self) -> Vec<String> {
        let Parallel { tensor, pipeline, expert, attention_data } = self.cut().parallel;
        let degrees = [("tp", tensor), ("pp", pipeline), ("ep", expert), ("adp", attention_data)];
        let layout: Vec<String> = degrees
            .into_iter()
            .filter(|(name, degree)| *name == "tp" || *degree > 1)
            .map(|(name, degree)| format!("{name}{degree}"))
            .collect();
        let mut flags = vec![
            format!("bedplate serve --model {}", self.model),
            format!("--layout {}", layout.join(".")),
            format!("--replicas {}", self.workers.replicas),
            format!("--weights {} --kv {}", self.cut().weights.name(), self.cut().kv),
            format!("--seats {} --chunk {}", self.workers.seats, self.cut().chunk),
            format!("--context {}", self.context()),
        ];
        flags.extend(match self.duty {
            Duty::Both => None,
            Duty::Prefill => Some("--role prefill".to_owned()),
            Duty::Decode => Some("--role decode".to_owned()),
        });
        flags
    }
}
