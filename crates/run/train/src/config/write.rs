//! A configuration as a file with every key and what it means.

use std::fmt::Write;

use bedplate_data::Packing;
use bedplate_document::quote;

use super::{PACKINGS, RECOMPUTES, TrainConfig};

impl TrainConfig {
    /// All keys, those at their default included.
    pub fn to_toml(&self) -> String {
        let mut file = File(String::new());
        self.write_model(&mut file);
        self.write_data(&mut file);
        self.write_training(&mut file);
        self.write_optimizer(&mut file);
        self.write_evaluation(&mut file);
        self.write_rest(&mut file);
        file.0
    }

    fn write_model(&self, file: &mut File) {
        let model = &self.model;
        file.section("model");
        file.key(
            "config",
            quote::toml(&model.config),
            "a config.json, a folder with one, or a built-in name",
        );
        let weights = model.weights.as_ref().map(|path| quote::toml(&path.to_string_lossy()));
        file.optional("weights", weights, "folder", "safetensors to start from instead of fresh weights");
        file.key("seed", model.seed, "of fresh weights");
    }

    fn write_data(&self, file: &mut File) {
        let data = &self.data;
        file.section("data");
        let paths = data.corpora.iter().map(|corpus| quote::toml(&corpus.path.to_string_lossy()));
        file.key("corpora", list(paths), "folders made by `bedplate data`");
        let weights = data.corpora.iter().map(|corpus| number(corpus.weight));
        file.key("weights", list(weights), "shares of the corpora in the mixture");
        file.key("sequence", data.sequence, "tokens of a sample");
        file.key("packing", word(&PACKINGS, &data.packing), "windows, or whole documents with padding");
        file.key("document_mask", data.has_document_mask, "tokens see only their own document");
        file.key("seed", data.seed, "of the order of samples");
        debug_assert!(matches!(data.packing, Packing::Windows | Packing::Whole));
    }

    fn write_training(&self, file: &mut File) {
        let training = &self.training;
        file.section("training");
        file.key("steps", training.steps, "of the optimizer");
        file.key("batch", training.batch, "sequences of a step");
        file.key("micro_batch", training.micro_batch, "sequences computed at once");
        file.key(
            "precision",
            quote::toml(training.precision.name()),
            "f32, bf16 with f32 master weights, or fp8: bf16 with linear layers that multiply in fp8",
        );
        file.key(
            "recompute",
            word(&RECOMPUTES, &training.recompute),
            "none, cheap (norms and activations) or full",
        );
        let device = quote::toml(&training.device.to_string());
        file.key("device", device, "auto (a GPU, where every rank has its own), cpu, cuda or cuda:0");
        file.key("threads", training.threads, "of a rank; 0: its share of the processors");
        let layout = training.layout.map(|layout| quote::toml(&layout.to_string()));
        file.optional("layout", layout, "dp4.zero3", "how ranks share the work; none: data parallel");
        file.key("copy_every", training.copy_every, "steps; copies for the survival of lost ranks, 0: none");
        file.key("wait_seconds", training.wait_seconds, "how long ranks that are too few wait for others");
        file.key("keep_gathered", training.keeps_gathered, "zero3: keep gathered weights for the way back");
    }

    fn write_optimizer(&self, file: &mut File) {
        let optimizer = &self.optimizer;
        file.section("optimizer");
        file.key("learning_rate", number(optimizer.learning_rate), "at its peak");
        let decay = quote::toml(optimizer.decay.name());
        file.key("decay", decay, "constant, linear, cosine or warmup-stable-decay");
        file.key("warmup", optimizer.warmup, "steps in which the rate rises");
        file.key("final_share", number(optimizer.final_share), "of the peak, at the end");
        file.key("decay_share", number(optimizer.decay_share), "of the run, for warmup-stable-decay");
        file.key("beta1", number(optimizer.beta1), "");
        file.key("beta2", number(optimizer.beta2), "");
        file.key("epsilon", number(optimizer.epsilon), "");
        file.key("weight_decay", number(optimizer.weight_decay), "of matrices, not of norms and biases");
        file.key("clip", number(optimizer.clip), "largest norm of the gradient; 0: none");
    }

    fn write_evaluation(&self, file: &mut File) {
        let evaluation = &self.evaluation;
        file.section("evaluation");
        file.key("every", evaluation.every, "steps; 0: never");
        let corpus = evaluation.corpus.as_ref().map(|path| quote::toml(&path.to_string_lossy()));
        file.optional("corpus", corpus, "folder", "held-out text");
        file.key("batches", evaluation.batches, "micro-batches of an evaluation");
        file.key("prompt", quote::toml(&evaluation.prompt), "a text to go on from; empty: no sample");
        file.key("sample_tokens", evaluation.sample_tokens, "length of the sample");
        file.key("temperature", number(evaluation.temperature), "0: always the most likely token");
    }

    fn write_rest(&self, file: &mut File) {
        file.section("checkpoint");
        file.key("every", self.checkpoint.every, "steps; 0: only after the last");
        file.key("keep", self.checkpoint.keep, "newest ones that stay");
        file.key("keep_hours", number(self.checkpoint.keep_hours), "younger ones stay too");
        let store = self.checkpoint.store.as_ref().map(|store| quote::toml(store));
        file.optional(
            "store",
            store,
            "s3://bucket/prefix",
            "a folder or a bucket for them; none: in the output folder",
        );
        if let Some(adapter) = &self.adapter {
            file.section("adapter");
            file.key("rank", adapter.rank, "of the low-rank update");
            file.key("alpha", number(adapter.alpha), "the update counts alpha / rank");
            let targets = adapter.targets.iter().map(|target| quote::toml(target));
            file.key("targets", list(targets), "matrices that get one; none named: the attention's");
        }
        file.section("output");
        file.key(
            "folder",
            quote::toml(&self.output.folder.to_string_lossy()),
            "checkpoints, metrics, weights",
        );
        file.key("tensorboard", self.output.has_tensorboard, "write event files");
        let address = self.output.metrics_address.map(|address| quote::toml(&address.to_string()));
        file.optional("metrics_address", address, "127.0.0.1:9400", "where Prometheus may ask");
        file.key("metrics_public", self.output.has_public_metrics, "from other machines too");
    }
}

struct File(String);

impl File {
    fn section(&mut self, name: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.0, "{gap}[{name}]");
    }

    fn key(&mut self, key: &str, value: impl std::fmt::Display, comment: &str) {
        let line = format!("{key} = {value}");
        let _ = match comment {
            "" => writeln!(self.0, "{line}"),
            _ => writeln!(self.0, "{line:<34} # {comment}"),
        };
    }

    /// A key without a default stands as a comment when it is absent.
    fn optional(&mut self, key: &str, value: Option<String>, example: &str, comment: &str) {
        match value {
            Some(value) => self.key(key, value, comment),
            None => self.key(&format!("# {key}"), quote::toml(example), comment),
        }
    }
}

/// A number that TOML reads as a float.
fn number(value: f64) -> String {
    format!("{value:?}")
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn word<T: PartialEq>(choices: &[(&str, T)], value: &T) -> String {
    let name = choices.iter().find(|(_, choice)| choice == value).map_or("", |(name, _)| name);
    quote::toml(name)
}
