//! Flags of SGLang, as of the commit that `tests/deploy/sglang.csv` names.

use bedplate_perf::serving::{Parallel, WeightFormat};
use bedplate_transformer::Precision;

use super::{Duty, Sized};

impl Sized<'_> {
    pub(super) fn sglang(&self, remarks: &mut Vec<String>) -> Vec<String> {
        let Parallel { pipeline, expert, attention_data, .. } = self.layout().parallel;
        let nodes = self.nodes();
        // SGLang counts all GPUs of a stage as tensor ranks and splits them into attention data ranks.
        let mut flags = vec![
            format!("python -m sglang.launch_server --model-path {}", self.model),
            format!("--tp-size {}", self.layout().parallel.stage_gpus()),
        ];
        flags.extend((pipeline > 1).then(|| format!("--pp-size {pipeline}")));
        flags.extend(
            (attention_data > 1).then(|| format!("--dp-size {attention_data} --enable-dp-attention")),
        );
        flags.extend((expert > 1).then(|| format!("--ep-size {expert}")));
        flags.extend(
            self.expert_copies().map(|copies| format!("--enable-eplb --ep-num-redundant-experts {copies}")),
        );
        flags.extend(self.has_fast_dispatch().then(|| "--moe-a2a-backend deepep".to_owned()));
        if nodes > 1 {
            flags.push(format!("--nnodes {nodes} --node-rank \"$RANK\""));
            flags.push("--dist-init-addr \"$HEAD\":20000".to_owned());
        }
        flags.push(format!("--max-running-requests {}", self.workers.max_seqs));
        flags.push(format!("--chunked-prefill-size {}", self.layout().chunk));
        flags.push(format!("--context-length {}", self.context()));
        flags.push(format!("--mem-fraction-static {:.2}", self.memory_share()));
        flags.extend(match self.layout().weights {
            WeightFormat::Fp8 => Some("--quantization fp8".to_owned()),
            WeightFormat::Fp4 => Some("--quantization modelopt_fp4".to_owned()),
            WeightFormat::Bf16 | WeightFormat::Int4 => None,
        });
        flags.extend((self.layout().kv == Precision::Fp8).then(|| "--kv-cache-dtype fp8_e4m3".to_owned()));
        if let Some(pictures) = self.need.options.images {
            flags.push(format!("--limit-mm-data-per-request '{{\"image\":{}}}'", pictures.per_request));
        }
        if let Some(adapters) = self.need.options.adapters {
            let loaded = adapters.loaded;
            flags.push(format!("--enable-lora --max-loras-per-batch {loaded} --max-loaded-loras {loaded}"));
            flags.push(format!("--max-lora-rank {}", adapters.rank));
            remarks.push("give adapters as --lora-paths NAME=FOLDER".to_owned());
        }
        if let Some(speculation) = self.need.options.speculation {
            let drafts = speculation.drafts;
            flags.push(format!("--speculative-algorithm EAGLE --speculative-num-steps {drafts}"));
            flags.push(format!("--speculative-eagle-topk 1 --speculative-num-draft-tokens {}", drafts + 1));
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
}
