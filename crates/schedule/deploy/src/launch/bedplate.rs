//! Flags of our own engine, and what of a plan it cannot do yet.

use bedplate_perf::serving::{Parallel, WeightFormat};
use bedplate_transformer::Precision;

use super::{Duty, Sized};

impl Sized<'_> {
    pub(super) fn bedplate(&self, remarks: &mut Vec<String>) -> Vec<String> {
        let lacks = self.lacks();
        if !lacks.is_empty() {
            remarks.push(format!(
                "`bedplate serve` cannot do {} yet: choose another engine,",
                lacks.join(" or ")
            ));
            remarks.push("or plan again with --precision bf16,fp8 and GPUs that hold the model".into());
            return Vec::new();
        }
        let weights = self.layout().weights.name();
        let chunk = self.layout().chunk;
        let mut flags = vec![
            format!("bedplate serve {}", self.model),
            format!("--device cuda:0 --weights {weights}"),
            format!(
                "--max-seqs {} --chunk {chunk} --token-budget {}",
                self.workers.max_seqs,
                chunk.max(self.workers.max_seqs)
            ),
            format!("--context {}", self.context()),
        ];
        match self.duty {
            Duty::Both => {}
            Duty::Prefill => flags.push("--kv-listen 0.0.0.0:7500 --kv-secret-file kv.secret".into()),
            Duty::Decode => flags.push("--prefill \"$PREFILL\":7500 --kv-secret-file kv.secret".into()),
        }
        if self.layout().kv == Precision::Fp8 {
            flags.push("--kv fp8".into());
            remarks
                .push("keys and values in fp8 need Hopper GPUs and a model with heads of 64 or 128".into());
        }
        if self.need.options.adapters.is_some() {
            remarks.push("give each adapter as --adapter NAME=FOLDER".into());
        }
        remarks.push("the model is a folder in Hugging Face's format".into());
        flags
    }

    /// What the plan asks for beyond one GPU in formats that the engine computes with.
    fn lacks(&self) -> Vec<String> {
        let Parallel { tensor, pipeline, expert, attention_data } = self.layout().parallel;
        let mut lacks = Vec::new();
        let degrees = tensor.max(pipeline).max(expert).max(attention_data);
        lacks.extend((degrees > 1).then(|| "a replica over several GPUs".to_owned()));
        let weights = self.layout().weights;
        lacks.extend((weights == WeightFormat::Fp4).then(|| format!("weights in {}", weights.name())));
        lacks.extend(self.need.options.images.map(|_| "images".to_owned()));
        lacks.extend(self.need.options.speculation.map(|_| "drafts by the model itself".to_owned()));
        lacks
    }
}
