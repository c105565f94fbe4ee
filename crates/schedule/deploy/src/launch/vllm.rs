//! Flags of vLLM, as of the commit that `tests/deploy/vllm.csv` names.

use bedplate_perf::serving::{Engine, Parallel, WeightFormat};
use bedplate_transformer::Precision;

use super::{Duty, Sized};

const ADAPTERS_LATER: &str = "give adapters as --lora-modules NAME=FOLDER, or load them while it runs";

impl Sized<'_> {
    pub(super) fn vllm(&self, command: &str, remarks: &mut Vec<String>) -> Vec<String> {
        let Parallel { tensor, pipeline, expert, attention_data } = self.layout().parallel;
        let max_seqs = self.workers.max_seqs.div_ceil(attention_data);
        let mut flags = vec![format!("{command} {}", self.model), format!("--tensor-parallel-size {tensor}")];
        flags.extend((pipeline > 1).then(|| format!("--pipeline-parallel-size {pipeline}")));
        flags.extend((attention_data > 1).then(|| format!("--data-parallel-size {attention_data}")));
        flags.extend(self.vllm_nodes(remarks));
        if expert > 1 {
            flags.push("--enable-expert-parallel".to_owned());
            if self.has_fast_dispatch() {
                let kind = if self.duty == Duty::Prefill { "high_throughput" } else { "low_latency" };
                flags.push(format!("--all2all-backend deepep_{kind}"));
            }
            flags.extend(self.expert_copies().map(|copies| {
                format!("--enable-eplb --eplb-config '{{\"num_redundant_experts\":{copies}}}'")
            }));
        }
        flags.push(format!("--max-num-seqs {max_seqs}"));
        flags.push(format!("--max-num-batched-tokens {}", self.layout().chunk.max(max_seqs)));
        flags.push(format!("--max-model-len {}", self.context()));
        flags.push(format!("--gpu-memory-utilization {:.2}", self.memory_share()));
        flags.extend(match self.layout().weights {
            WeightFormat::Fp8 => Some("--quantization fp8".to_owned()),
            WeightFormat::Fp4 => Some("--quantization modelopt_fp4".to_owned()),
            WeightFormat::Bf16 | WeightFormat::Int4 => None,
        });
        flags.extend((self.layout().kv == Precision::Fp8).then(|| "--kv-cache-dtype fp8".to_owned()));
        if let Some(pictures) = self.need.options.images {
            flags.push(format!("--limit-mm-per-prompt '{{\"image\":{}}}'", pictures.per_request));
        }
        if let Some(adapters) = self.need.options.adapters {
            let rank = adapters.reserved_rank(Engine::Vllm);
            flags.push(format!("--enable-lora --max-loras {} --max-lora-rank {rank}", adapters.loaded));
            remarks.push(ADAPTERS_LATER.to_owned());
        }
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
        flags
    }

    /// How the nodes of a replica find each other. Data ranks are started by each node; what lies within one is spread
    /// over nodes by vLLM's own processes. Only the first node answers requests.
    fn vllm_nodes(&self, remarks: &mut Vec<String>) -> Vec<String> {
        let nodes = self.nodes();
        if nodes == 1 {
            return Vec::new();
        }
        let headless = "$([ \"$RANK\" = 0 ] || echo --headless)".to_owned();
        let data = self.layout().parallel.attention_data;
        if data == 1 {
            return vec![
                format!("--nnodes {nodes} --node-rank \"$RANK\""),
                "--master-addr \"$HEAD\"".to_owned(),
                headless,
            ];
        }
        if !data.is_multiple_of(nodes) {
            remarks
                .push(format!("{data} data ranks do not divide over {nodes} nodes: choose another layout"));
        }
        let local = data.div_ceil(nodes);
        vec![
            format!("--data-parallel-size-local {local}"),
            format!("--data-parallel-start-rank \"$((RANK * {local}))\""),
            "--data-parallel-address \"$HEAD\" --data-parallel-rpc-port 13345".to_owned(),
            headless,
        ]
    }
}
