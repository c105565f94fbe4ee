//! Built-in models against published counts.
//!
//! `oracle/builtins.csv` holds what transformers counts when it builds each configuration on the meta
//! device: unique parameters, and those minus the experts that a token does not visit.

use bedplate_transformer::{ParameterPart, builtin, builtin_names};

const COUNTED: &str = include_str!("oracle/builtins.csv");

/// MosaicML's llm-foundry prints these for sequences of 2048, in billions to six places.
const LLM_FOUNDRY: [(&str, &str); 7] = [
    ("mpt-125m", "0.125311"),
    ("mpt-350m", "0.355985"),
    ("mpt-760m", "0.760471"),
    ("mpt-1b", "1.315951"),
    ("mpt-3b", "2.651837"),
    ("mpt-13b", "12.853955"),
    ("mpt-70b", "64.862437"),
];

#[test]
fn totals_and_active_parameters_are_what_transformers_counts() {
    for row in COUNTED.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let parameters = builtin(cells[0]).unwrap().parameters();
        let counted = (cells[1].parse().unwrap(), cells[2].parse().unwrap());
        assert_eq!((parameters.total, parameters.active), counted, "{}", cells[0]);
    }
}

#[test]
fn mpt_benchmark_models_have_the_published_size() {
    for (name, billions) in LLM_FOUNDRY {
        let total = builtin(name).unwrap().parameters().total as f64;
        assert_eq!(format!("{:.6}", total / 1e9), billions, "{name}");
    }
}

#[test]
fn grok_1_adds_up_by_hand() {
    // 64 layers: 8 experts of three 6144 x 32768, 48 and 8 heads of 128, a router, four norms; tied.
    let layer = 8 * 3 * 6144 * 32_768 + 2 * 6144 * 6144 + 2 * 6144 * 1024 + 6144 * 8 + 4 * 6144;
    let total: u64 = 131_072 * 6144 + 64 * layer + 6144;
    assert_eq!(builtin("grok-1").unwrap().parameters().total, total);
}

/// Published sizes: 8.1, 56.3, 31.6 and 79.7 billion.
const HYBRIDS: [(&str, u64, u64); 4] = [
    ("nemotron-h-8b", 8_100_852_736, 8_100_852_736),
    ("nemotron-h-56b", 56_324_350_464, 56_324_350_464),
    ("nemotron-3-nano-30b-a3b", 31_577_940_288, 3_580_076_352),
    ("qwen3-next-80b-a3b", 79_674_391_296, 3_874_929_408),
];

/// A Mamba-2 layer of Nemotron-H 8B: 128 heads of 64, 8 groups of 128.
#[test]
fn hybrids_add_up_by_hand() {
    let (hidden, values, keys) = (4096u64, 128 * 64, 8 * 128);
    let mamba =
        hidden * (2 * keys + 2 * values + 128) + values * hidden + (2 * keys + values) * 5 + 3 * 128 + values;
    let attention = 2 * hidden * 4096 + 2 * hidden * 1024;
    let mlp = 2 * hidden * 21_504;
    let layers = 24 * mamba + 4 * attention + 24 * mlp + 52 * hidden;
    assert_eq!(builtin("nemotron-h-8b").unwrap().parameters().total, 2 * 131_072 * hidden + layers + hidden);
    for (name, total, active) in HYBRIDS {
        let parameters = builtin(name).unwrap().parameters();
        assert_eq!((parameters.total, parameters.active), (total, active), "{name}");
    }
}

#[test]
fn every_name_is_checked_against_something() {
    let counted: Vec<&str> = COUNTED.lines().filter_map(|row| row.split(',').next()).collect();
    let hybrids = HYBRIDS.iter().map(|(name, ..)| *name);
    let elsewhere: Vec<&str> =
        LLM_FOUNDRY.iter().map(|(name, _)| *name).chain(["grok-1"]).chain(hybrids).collect();
    for name in builtin_names() {
        assert!(counted.contains(&name) || elsewhere.contains(&name), "{name} is not checked");
    }
}

/// Model cards give billions, rounded by at most the third column, and do not say whether the input
/// embedding counts: their figure is between our two.
#[test]
fn active_sizes_of_model_cards_lie_between_ours() {
    let cards = [
        ("mixtral-8x7b", 12.9, 0.05),
        ("mixtral-8x22b", 39.0, 0.5),
        ("qwen3-30b-a3b", 3.3, 0.05),
        ("qwen3-235b-a22b", 22.0, 0.5),
        ("deepseek-v2", 21.0, 0.5),
        ("deepseek-v3", 37.0, 0.5),
        ("kimi-k2", 32.0, 0.5),
        ("gpt-oss-20b", 3.6, 0.05),
        ("gpt-oss-120b", 5.1, 0.05),
        ("llama-4-scout", 17.0, 0.5),
        ("llama-4-maverick", 17.0, 0.5),
    ];
    for (name, card, rounding) in cards {
        let parameters = builtin(name).unwrap().parameters();
        let least = parameters.active_without_embedding as f64 / 1e9 - rounding;
        let most = parameters.active as f64 / 1e9 + rounding;
        assert!((least..=most).contains(&card), "{name}: {card} is not in {least}..{most}");
    }
}

#[test]
fn prediction_modules_are_named_and_counted_apart() {
    let model = builtin("deepseek-v3").unwrap();
    assert_eq!(model.prediction_layers, 1);
    // DeepSeek's card: 671B of the main model, 14B of the module with its embedding and head (1.85B).
    let module = model.prediction_parameters() as f64 / 1e9;
    assert!((11.4..11.7).contains(&module), "{module}");
    assert_eq!(model.parameters().total, 671_026_419_200);
}

#[test]
fn tied_embeddings_count_once() {
    let tied = builtin("llama-3.2-1b").unwrap();
    let parameters = tied.parameters();
    assert_eq!(parameters.of(ParameterPart::Head), 0);
    assert_eq!(parameters.of(ParameterPart::Embedding), 128_256 * 2048);
    assert_eq!(parameters.active_without_embedding, parameters.active);
}

#[test]
fn hub_names_find_the_same_model() {
    let same = [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("QWEN/qwen3-30B-A3B-FP8", "qwen3-30b-a3b"),
        ("bigscience/bloom", "bloom-176b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("Kimi_K2", "kimi-k2"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        (" LLAMA3_70B ", "llama-3-70b"),
    ];
    for (spelled, name) in same {
        assert_eq!(builtin(spelled).unwrap(), builtin(name).unwrap(), "{spelled}");
        assert_eq!(builtin(spelled).unwrap().name, name);
    }
}
