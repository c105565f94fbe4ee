//! The shape of a row's model: a built-in one by name, else from the row's own columns.
//!
//! Rules, in order:
//! - unpublished architectures, and experts and attention of kinds that are not described, are skipped;
//! - the longest built-in name found in the model's name wins, unless the row prints a different width; a
//!   row's own layer count shortens or lengthens it, as benchmarks do;
//! - otherwise layers, hidden and heads must be printed. The MLP is 4h and not gated for GPT, MPT, BLOOM
//!   and Megatron names; otherwise gated, 8h/3 wide, or 7h/2 where key-value heads are shared. A blank vocabulary
//!   is 51,200 (GPT), 250,880 where the notes say 250k, 32,000 or 128,256 (gated, by the same rule);
//! - BLOOM's sweep prints sizes instead of layers: `L = (N - Vh) / 12h^2`, rounded to the stages;
//! - nanotron's four sizes are those of its playbook: h 2048/3072/4096/8192, L 16/28/32/80, V 131,072.

use bedplate_transformer::{
    Attention, Dense, Family, GroupedQuery, Layer, LayerRun, Mlp, Norm, NormPlacement, Positions, QkNorm,
    Reach, Shape, Transformer, builtin, builtin_names,
};

use crate::Skip;
use crate::record::MeasuredRow;

/// The model that a row trained.
pub(crate) fn model(record: &MeasuredRow) -> Result<Transformer, Skip> {
    let name = squeezed(record.text("model"));
    if NOT_DESCRIBED.iter().any(|unknown| name.contains(unknown)) {
        return Err(Skip::UnpublishedArchitecture);
    }
    if let Some(known) = known_model(&name, record) {
        return Ok(known);
    }
    if let Some(size) = nanotron_size(record) {
        return from_sizes(&size);
    }
    from_sizes(&printed_sizes(record)?)
}

/// Names of architectures that are not published, or whose experts or attention the transformer crate does not describe.
const NOT_DESCRIBED: [&str; 9] = [
    "nemotronv3super",
    "nemotronv3ultra",
    "nemotron3super",
    "nemotron3ultra",
    "nemotron35",
    "deepseekv4",
    "qwen35",
    "jamba",
    "mamba",
];

/// Names that publications use for built-in models, beyond those that `squeeze` makes equal.
const ALSO: [(&str, &str); 11] = [
    ("nemotron3nano", "nemotron-3-nano-30b-a3b"),
    ("nemotronv3nano", "nemotron-3-nano-30b-a3b"),
    ("qwen3moe30b", "qwen3-30b-a3b"),
    ("qwen3moe235b", "qwen3-235b-a22b"),
    ("qwen3235b", "qwen3-235b-a22b"),
    ("qwen330b", "qwen3-30b-a3b"),
    ("llama31405b", "llama-3.1-405b"),
    ("llama3405b", "llama-3.1-405b"),
    ("llama4maverick", "llama-4-maverick"),
    ("llama4scout", "llama-4-scout"),
    ("deepseekv3", "deepseek-v3"),
];

fn known_model(name: &str, record: &MeasuredRow) -> Option<Transformer> {
    let also = ALSO.iter().map(|(alias, known)| ((*alias).to_owned(), *known));
    if name == "gpt3" {
        return builtin("gpt3-175b").ok();
    }
    let all = also.chain(builtin_names().map(|known| (squeezed(known), known)));
    let (_, known) = all
        .filter(|(alias, _)| alias.len() > 4 && name.contains(alias.as_str()))
        .max_by_key(|(alias, _)| alias.len())?;
    let model = builtin(known).ok()?;
    if record.count("hidden").is_some_and(|hidden| hidden != model.hidden) {
        return None;
    }
    let printed = record.count("layers").filter(|layers| *layers != model.layer_count());
    match printed {
        Some(layers) if layers < model.layer_count() => model.truncated(layers).ok(),
        Some(layers) if layers < 2 * model.layer_count() => lengthened(&model, layers),
        _ => Some(model),
    }
}

fn lengthened(model: &Transformer, layers: u64) -> Option<Transformer> {
    let more = layers - model.layer_count();
    let mut shape = model.clone().into_shape();
    shape.runs.last_mut()?.count += more;
    Transformer::new(shape).ok()
}

/// Letters and digits only, in lower case.
fn squeezed(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[derive(Debug)]
struct Sizes {
    name: String,
    layers: u64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    width: u64,
    vocab: u64,
    is_gated: bool,
    is_tied: bool,
}

fn printed_sizes(record: &MeasuredRow) -> Result<Sizes, Skip> {
    if record.count("experts").is_some() {
        return Err(Skip::UnknownModel);
    }
    let hidden = record.count("hidden").ok_or(Skip::UnknownModel)?;
    let name = record.text("model").to_owned();
    let lower = name.to_lowercase();
    let is_plain = ["gpt", "mpt", "bloom", "megatron", "turing", "mt-nlg", "nemotron", "opt"]
        .iter()
        .any(|family| lower.contains(family));
    let says_250k = record.notes().contains("250k vocab");
    let shares_keys = record.count("kv_heads") < record.count("heads") && record.count("kv_heads").is_some();
    let usual_vocab = match (is_plain, shares_keys) {
        _ if says_250k => 250_880,
        (true, _) => 51_200,
        (false, true) => 128_256,
        (false, false) => 32_000,
    };
    let usual_width = match (is_plain, shares_keys) {
        (true, _) => 4 * hidden,
        (false, true) => 7 * hidden / 2,
        (false, false) => (8 * hidden / 3).next_multiple_of(256),
    };
    let vocab = record.count("vocab").unwrap_or(usual_vocab);
    let layers = match record.count("layers") {
        Some(layers) => layers,
        None => layers_by_size(record, hidden, vocab).ok_or(Skip::UnknownModel)?,
    };
    let heads = record.count("heads").unwrap_or_else(|| usual_heads(hidden, record.count("tp").unwrap_or(1)));
    let width = record.count("ffn").unwrap_or(usual_width);
    let kv_heads = record.count("kv_heads").unwrap_or(heads);
    Ok(Sizes { name, layers, hidden, heads, kv_heads, width, vocab, is_gated: !is_plain, is_tied: is_plain })
}

/// Layers of a GPT of printed size, a multiple of its stages.
fn layers_by_size(record: &MeasuredRow, hidden: u64, vocab: u64) -> Option<u64> {
    let parameters = record.number("params_b")? * 1e9;
    let (hidden, vocab) = (hidden as f64, vocab as f64);
    let layers = (parameters - vocab * hidden) / (12.0 * hidden * hidden);
    let stages = record.number("pp").unwrap_or(1.0);
    let whole = (layers / stages).round().max(1.0) * stages;
    Some(whole as u64)
}

/// The widest heads up to 128 of which a tensor group can take equal parts, else 64 heads.
fn usual_heads(hidden: u64, tensor: u64) -> u64 {
    [128, 96, 64, 112, 120, 100, 80]
        .into_iter()
        .find(|dim| hidden.is_multiple_of(*dim) && (hidden / dim).is_multiple_of(tensor))
        .map_or(64, |dim| hidden / dim)
}

fn nanotron_size(record: &MeasuredRow) -> Option<Sizes> {
    if record.text("software") != "nanotron" || record.count("hidden").is_some() {
        return None;
    }
    let parameters = record.number("params_b")?;
    let (hidden, layers, heads, width) = match parameters {
        size if size < 2.0 => (2048, 16, 16, 8192),
        size if size < 5.0 => (3072, 28, 24, 8192),
        size if size < 20.0 => (4096, 32, 32, 14336),
        _ => (8192, 80, 64, 28672),
    };
    let name = record.text("model").to_owned();
    let is_tied = parameters < 8.0;
    Some(Sizes {
        name,
        layers,
        hidden,
        heads,
        kv_heads: heads,
        width,
        vocab: 131_072,
        is_gated: true,
        is_tied,
    })
}

fn from_sizes(sizes: &Sizes) -> Result<Transformer, Skip> {
    if sizes.heads == 0 || sizes.hidden < sizes.heads {
        return Err(Skip::UnknownModel);
    }
    let attention = GroupedQuery {
        heads: sizes.heads,
        kv_heads: sizes.kv_heads,
        head_dim: sizes.hidden / sizes.heads,
        has_qkv_bias: false,
        has_output_bias: false,
        qk_norm: QkNorm::Absent,
        has_sinks: false,
        has_gate: false,
    };
    let layer = Layer {
        attention: Attention::GroupedQuery(attention),
        reach: Reach::Full,
        mlp: Mlp::Dense(Dense { width: sizes.width, is_gated: sizes.is_gated, has_bias: false }),
    };
    let shape = Shape {
        name: sizes.name.clone(),
        family: Family::Llama,
        vocab: sizes.vocab,
        hidden: sizes.hidden,
        runs: vec![LayerRun { count: sizes.layers, layer }],
        norm: Norm::Rms,
        norm_placement: NormPlacement::Before,
        has_embedding_norm: false,
        positions: Positions::Rotary,
        has_tied_embeddings: sizes.is_tied,
        max_context: 1 << 21,
        prediction_layers: 0,
        left_out: Vec::new(),
    };
    Transformer::new(shape).map_err(|_| Skip::UnknownModel)
}
