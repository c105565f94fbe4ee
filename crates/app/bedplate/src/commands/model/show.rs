//! `bedplate model show NAME|config.json`

use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console, length};
use bedplate_transformer::{
    Attention, AttentionFlops, FlopsConvention, FlopsPerToken, Mlp, Precision, RecomputeFlops, TrainingState,
    Transformer,
};
use bedplate_units::{Bytes, Count, grouped};
use serde_json::{Map, Value, json};

use crate::models::load_with_remarks;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate model show llama-3.1-70b
  bedplate model show deepseek-v3 --seq 4096 --attention full
  bedplate model show Qwen/Qwen2.5-7B --json
  bedplate model show ~/models/own/config.json

FLOPs count matrix products only (2mkn); the convention is printed with them.
`causal` counts what the mask lets through, `full` the whole square;
recomputation is counted only on request.")]
pub(crate) struct Arguments {
    /// A built-in name (see `bedplate model list`), or a config.json or its folder
    model: String,
    /// Tokens per sequence, for FLOPs and the KV cache
    #[arg(long, default_value_t = 8192, value_parser = length::<u64>(1_000_000_000))]
    seq: u64,
    /// How attention scores are counted
    #[arg(long, value_enum, default_value = "causal")]
    attention: Counting,
    /// Count the forward pass that full recomputation repeats (hardware FLOPs)
    #[arg(long)]
    count_recompute: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Counting {
    Causal,
    Full,
}

impl Arguments {
    fn convention(&self) -> FlopsConvention {
        FlopsConvention {
            attention: match self.attention {
                Counting::Causal => AttentionFlops::CausalHalved,
                Counting::Full => AttentionFlops::Full,
            },
            recompute: match self.count_recompute {
                false => RecomputeFlops::NotCounted,
                true => RecomputeFlops::Counted,
            },
            ..FlopsConvention::default()
        }
    }

    fn convention_name(&self) -> String {
        let attention = match self.attention {
            Counting::Causal => "causal-halved",
            Counting::Full => "full",
        };
        let recompute = if self.count_recompute { "counted" } else { "not counted" };
        format!("{attention} attention, recompute {recompute}")
    }
}

/// Formats in which people keep weights and caches.
const SHOWN: [Precision; 4] = [Precision::Fp32, Precision::Bf16, Precision::Fp8, Precision::Nvfp4];

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let (model, remarks) = load_with_remarks(&arguments.model)?;
    remarks.iter().for_each(|remark| console.say(&format!("note: {remark}")));
    let flops = model.flops_per_token(arguments.seq, arguments.convention());
    if arguments.seq > model.max_context {
        let context = model.max_context;
        console
            .say(&format!("note: {} tokens are more than the model's context of {context}", arguments.seq));
    }
    if console.is_json() {
        return console.json(&model_json(&model, &flops, arguments));
    }
    show_shape(&model, console)?;
    show_flops(&model, &flops, arguments, console)?;
    show_bytes(&model, arguments.seq, console)
}

fn show_shape(model: &Transformer, console: &mut Console) -> Result<(), CliError> {
    let parameters = model.parameters();
    let mut facts = Facts::default();
    let exact = |count: u64| format!("{} ({})", grouped(count), Count(count));
    facts.add("parameters", exact(parameters.total));
    if model.is_mixture() {
        facts.add("active per token", exact(parameters.active));
    }
    if model.prediction_layers > 0 {
        let count = model.prediction_parameters();
        facts.add("not counted", format!("{} of multi-token prediction", exact(count)));
    }
    for left_out in &model.left_out {
        facts.add("left out", left_out.to_string());
    }
    facts.add("layers", layers_text(model));
    let kinds = model.layer_kinds();
    for run in &kinds {
        let of = if kinds.len() > 1 { format!(" of {}", run.count) } else { String::new() };
        facts.add(&format!("attention{of}"), attention_text(&run.layer.attention));
        facts.add(&format!("MLP{of}"), mlp_text(&run.layer.mlp));
    }
    let tied = if model.has_tied_embeddings { "tied" } else { "untied" };
    facts.add("hidden, vocabulary", format!("{}, {} ({tied})", model.hidden, grouped(model.vocab)));
    facts.add("context", format!("{} tokens", grouped(model.max_context)));
    console.text(&format!("{}\n{}", model.name, facts.render(console.width())))?;

    console.line("")?;
    let mut table =
        Table::new(vec![Column::left("PARAMETERS", 0), Column::right("COUNT", 0), Column::right("SHARE", 0)]);
    for (part, count) in parameters.parts().filter(|(_, count)| *count > 0) {
        let share = count as f64 / parameters.total as f64 * 100.0;
        table.row(vec![part.name().into(), grouped(count), format!("{share:.1}%")]);
    }
    console.table(&table)
}

fn layers_text(model: &Transformer) -> String {
    let kinds = model.layer_kinds();
    match kinds.as_slice() {
        [_] => model.layer_count().to_string(),
        several => {
            let counts: Vec<String> = several.iter().map(|run| run.count.to_string()).collect();
            format!("{} ({}, as below)", model.layer_count(), counts.join(" + "))
        }
    }
}

fn attention_text(attention: &Attention) -> String {
    match attention {
        Attention::GroupedQuery(grouped) => {
            format!(
                "{} heads of {}, {} for keys and values",
                grouped.heads, grouped.head_dim, grouped.kv_heads
            )
        }
        Attention::Latent(latent) => {
            let sparse = latent.indexer.map_or(String::new(), |indexer| {
                format!(
                    ", the best {} tokens by {} heads of {}",
                    indexer.keys, indexer.heads, indexer.head_dim
                )
            });
            format!(
                "latent (MLA): {} heads, {} + {} numbers kept per token{sparse}",
                latent.heads, latent.kv_rank, latent.rope_dim
            )
        }
        Attention::Recurrent(recurrent) => format!(
            "none, a state instead: {} heads of {} x {}",
            recurrent.heads, recurrent.key_dim, recurrent.value_dim
        ),
        Attention::Absent => "none".to_owned(),
    }
}

fn mlp_text(mlp: &Mlp) -> String {
    match mlp {
        Mlp::Absent => "none".to_owned(),
        Mlp::Dense(dense) => {
            format!("{}{}", if dense.is_gated { "gated, width " } else { "width " }, dense.width)
        }
        Mlp::Mixture(mixture) => {
            let shared = mixture.shared.map(|shared| format!(", shared width {}", shared.width));
            format!(
                "{} of {} experts, width {}{}",
                mixture.per_token,
                mixture.experts,
                mixture.expert.width,
                shared.unwrap_or_default()
            )
        }
    }
}

fn show_flops(
    model: &Transformer,
    flops: &FlopsPerToken,
    arguments: &Arguments,
    console: &mut Console,
) -> Result<(), CliError> {
    let mut facts = Facts::default();
    facts
        .add("convention", format!("{}, sequence {}", arguments.convention_name(), arguments.seq))
        .add("forward", flops.forward.total().to_string())
        .add("backward", flops.backward.total().to_string());
    if arguments.count_recompute {
        facts.add("recompute", flops.recomputed.total().to_string());
    }
    facts.add("training", flops.training().to_string()).add("6N estimate", model.six_n_flops().to_string());
    console.text(&format!("\nFLOPs per token\n{}", facts.render(console.width())))
}

fn show_bytes(model: &Transformer, sequence: u64, console: &mut Console) -> Result<(), CliError> {
    let mut table = Table::new(vec![
        Column::left("BYTES", 0),
        Column::right("FP32", 0),
        Column::right("BF16", 0),
        Column::right("FP8", 0),
        Column::right("NVFP4", 0),
    ]);
    let mut row = |label: String, bytes: &dyn Fn(Precision) -> Bytes| {
        let cells = SHOWN.iter().map(|precision| bytes(*precision).to_string());
        table.row([label].into_iter().chain(cells).collect());
    };
    row("weights".into(), &|precision| model.weights_bytes(precision));
    row("KV cache per token".into(), &|precision| model.kv_bytes_per_token(precision));
    row(format!("KV cache at {sequence}"), &|precision| model.kv_bytes(sequence, precision));
    console.line("")?;
    console.table(&table)?;
    let state = model.training_bytes(TrainingState::default());
    let mut facts = Facts::default();
    facts
        .add("weights", format!("{} (bf16)", state.weights))
        .add("gradients", format!("{} (fp32)", state.gradients))
        .add("optimizer", format!("{} (AdamW moments and master weights, fp32)", state.optimizer))
        .add("together", format!("{}, before activations", state.total()));
    console.text(&format!("\nTraining state, mixed precision\n{}", facts.render(console.width())))
}

fn model_json(model: &Transformer, flops: &FlopsPerToken, arguments: &Arguments) -> Value {
    let parameters = model.parameters();
    let by_part: Map<String, Value> =
        parameters.parts().map(|(part, count)| (part.name().replace(' ', "_"), json!(count))).collect();
    json!({
        "name": model.name,
        "layers": model.layer_count(),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "max_context": model.max_context,
        "has_tied_embeddings": model.has_tied_embeddings,
        "is_mixture": model.is_mixture(),
        "parameters": {
            "total": parameters.total,
            "active": parameters.active,
            "active_without_embedding": parameters.active_without_embedding,
            "multi_token_prediction_not_counted": model.prediction_parameters(),
            "by_part": by_part,
        },
        "flops_per_token": flops_json(model, flops, arguments),
        "bytes": bytes_json(model, arguments.seq),
    })
}

fn flops_json(model: &Transformer, flops: &FlopsPerToken, arguments: &Arguments) -> Value {
    let parts = flops.forward.parts().into_iter();
    let forward_by_part: Map<String, Value> =
        parts.map(|(name, count)| (name.replace(' ', "_"), json!(count.get()))).collect();
    json!({
        "sequence": arguments.seq,
        "convention": {
            "attention": match arguments.attention {
                Counting::Causal => "causal-halved",
                Counting::Full => "full",
            },
            "recompute_counted": arguments.count_recompute,
        },
        "forward": flops.forward.total().get(),
        "backward": flops.backward.total().get(),
        "recompute": flops.recomputed.total().get(),
        "training": flops.training().get(),
        "forward_by_part": forward_by_part,
        "six_n_estimate": model.six_n_flops().get(),
    })
}

fn bytes_json(model: &Transformer, sequence: u64) -> Value {
    let by_precision = |bytes: &dyn Fn(Precision) -> Bytes| -> Value {
        let each = |precision: Precision| (precision.name().to_owned(), json!(bytes(precision).get()));
        Value::Object(Precision::ALL.into_iter().map(each).collect())
    };
    let state = model.training_bytes(TrainingState::default());
    json!({
        "weights": by_precision(&|precision| model.weights_bytes(precision)),
        "gradients": { "fp32": state.gradients.get(), "bf16": state.gradients.get() / 2.0 },
        "optimizer": { "adamw_fp32_with_master_weights": state.optimizer.get() },
        "training_state": state.total().get(),
        "kv_cache_per_token": by_precision(&|precision| model.kv_bytes_per_token(precision)),
        "kv_cache_at_sequence": by_precision(&|precision| model.kv_bytes(sequence, precision)),
    })
}
