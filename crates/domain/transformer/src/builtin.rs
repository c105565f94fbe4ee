//! Models by name: the table of embedded configurations and how a name is looked up.

use bedplate_diag::{Source, nearest_names};

use crate::{ModelError, Transformer, from_config};

struct Builtin {
    name: &'static str,
    /// Other names of the same shape, beyond those that [`spelled`] makes equal.
    aliases: &'static [&'static str],
    config: &'static str,
}

macro_rules! builtins {
    ($($name:literal $([$($alias:literal),*])?,)*) => {
        static BUILTINS: &[Builtin] = &[$(Builtin {
            name: $name,
            aliases: &[$($($alias),*)?],
            config: include_str!(concat!("../../../../data/models/", $name, ".json")),
        }),*];
    };
}

builtins! {
    "gpt2" ["gpt2-small"],
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "gpt3-125m",
    "gpt3-350m",
    "gpt3-760m",
    "gpt3-1.3b",
    "gpt3-2.7b",
    "gpt3-6.7b",
    "gpt3-13b",
    "gpt3-175b" ["gpt3", "gpt-3", "gpt-3-175b"],
    "megatron-22b",
    "mt-nlg-530b" ["turing-530b"],
    "megatron-1t",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b" ["llama3-8b"],
    "llama-3-70b" ["llama3-70b"],
    "llama-3.1-8b" ["llama3.1-8b"],
    "llama-3.1-70b" ["llama3.1-70b"],
    "llama-3.1-405b" ["llama3.1-405b", "llama-3-405b"],
    "llama-3.2-1b",
    "llama-3.2-3b",
    "llama-3.3-70b",
    "llama-4-scout" ["llama-4-scout-17b-16e"],
    "llama-4-maverick" ["llama-4-maverick-17b-128e"],
    "mistral-7b" ["mistral-7b-v0.1", "mistral-7b-instruct-v0.1"],
    "mistral-7b-v0.3" ["mistral-7b-instruct-v0.3"],
    "mistral-nemo-12b" ["mistral-nemo-base-2407", "mistral-nemo-instruct-2407", "mistral-nemo"],
    "mistral-small-22b" ["mistral-small-instruct-2409"],
    "mistral-small-24b" ["mistral-small-24b-base-2501", "mistral-small-24b-instruct-2501", "mistral-small"],
    "mistral-large-2" ["mistral-large-instruct-2407", "mistral-large-123b"],
    "mixtral-8x7b" ["mixtral-8x7b-v0.1", "mixtral-8x7b-instruct-v0.1"],
    "mixtral-8x22b" ["mixtral-8x22b-v0.1"],
    "qwen2-0.5b",
    "qwen2-1.5b",
    "qwen2-7b",
    "qwen2-72b",
    "qwen2.5-0.5b",
    "qwen2.5-1.5b",
    "qwen2.5-3b",
    "qwen2.5-7b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen2.5-72b",
    "qwen1.5-moe-a2.7b",
    "qwen2-57b-a14b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "qwen3-next-80b-a3b" ["qwen3-next-80b-a3b-instruct", "qwen3-next-80b-a3b-thinking"],
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3" ["deepseek-v3-0324"],
    "deepseek-r1" ["deepseek-r1-0528", "deepseek-r1-zero"],
    "kimi-k2",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "bloom-560m",
    "bloom-1b1",
    "bloom-1b7",
    "bloom-3b",
    "bloom-7b1",
    "bloom-176b" ["bloom"],
    "mpt-125m",
    "mpt-350m",
    "mpt-760m",
    "mpt-1b",
    "mpt-3b",
    "mpt-7b",
    "mpt-13b",
    "mpt-30b",
    "mpt-70b",
    "gemma-2b",
    "gemma-7b",
    "gemma-2-2b",
    "gemma-2-9b",
    "gemma-2-27b",
    "gemma-3-1b",
    "gemma-3-4b",
    "gemma-3-12b",
    "gemma-3-27b",
    "nemotron-4-15b" ["nemotron4-15b"],
    "nemotron-4-340b" ["nemotron4-340b"],
    "nemotron-h-8b" ["nemotron-h-8b-base-8k"],
    "nemotron-h-56b" ["nemotron-h-56b-base-8k"],
    "nemotron-3-nano-30b-a3b" ["nemotron-3-nano"],
    "grok-1" ["grok1"],
}

/// The names of all built-in models, families together and small before large.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    BUILTINS.iter().map(|builtin| builtin.name)
}

/// The name under which Hugging Face has a built-in model that is named by its short name, where it was published there.
pub fn published_as(name: &str) -> Option<&'static str> {
    let builtin = BUILTINS.iter().find(|builtin| builtin.name == name || builtin.aliases.contains(&name))?;
    let source = builtin.config.split_once("\"_source\": \"huggingface.co/")?.1;
    source.split([' ', '"']).next()
}

/// A built-in model by its short name or by its Hugging Face name, in any case.
///
/// The owner (`meta-llama/`) is ignored, as are suffixes that do not change the shape (`-Instruct`).
pub fn builtin(name: &str) -> Result<Transformer, ModelError> {
    let builtin = find(name).ok_or_else(|| unknown(name))?;
    let file = format!("data/models/{}.json", builtin.name);
    let mut shape = from_config(Source::new(&file, builtin.config))?.into_shape();
    shape.name = builtin.name.to_owned();
    Transformer::new(shape)
}

fn find(name: &str) -> Option<&'static Builtin> {
    let wanted = spelled(name);
    let known_as =
        |builtin: &Builtin, wanted: &str| builtin.name == wanted || builtin.aliases.contains(&wanted);
    let without_ending = without_endings(&wanted);
    [wanted.as_str(), without_ending]
        .into_iter()
        .find_map(|wanted| BUILTINS.iter().find(|builtin| known_as(builtin, wanted)))
}

fn unknown(name: &str) -> ModelError {
    let nearest = nearest_names(without_endings(&spelled(name)), builtin_names(), 3);
    ModelError::UnknownName { name: name.to_owned(), nearest }
}

/// The name without its owner, in lower case, with hyphens.
fn spelled(name: &str) -> String {
    let repository = name.trim().rsplit('/').next().unwrap_or("");
    let hyphenated = repository.to_lowercase().replace(['_', ' '], "-");
    hyphenated.strip_prefix("meta-").unwrap_or(&hyphenated).to_owned()
}

/// The name without suffixes for fine-tunes and formats of the same shape.
fn without_endings(name: &str) -> &str {
    const ENDINGS: [&str; 11] =
        ["-instruct", "-chat", "-base", "-hf", "-it", "-pt", "-bf16", "-fp8", "-fp16", "-original", "-text"];
    let mut name = name;
    while let Some(shorter) = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)) {
        name = shorter;
    }
    name
}
