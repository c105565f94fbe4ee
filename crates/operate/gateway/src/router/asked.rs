//! What routing needs to know of a request: the model, how much it asks for, and the identity of its prompt's prefixes.
//!
//! Prefixes are told apart by their text, in pieces of about a block of tokens; no tokenizer is needed, and replicas of any engine
//! can be routed to. What this crate cannot read is passed on all the same: the replica says what is wrong with it.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use bedplate_batching::{BlockKey, BlockKeys};
use bedplate_random::mix;
use serde_json::Value;

/// Bytes of text that a token stands for, more or less.
const TOKEN_BYTES: usize = 4;
/// Tokens of a block, as engines have them.
pub(super) const BLOCK_TOKENS: u32 = 16;
const PIECE: usize = TOKEN_BYTES * BLOCK_TOKENS as usize;
/// Pieces that are told apart; longer prompts share a replica by their beginning.
const MOST_PIECES: usize = 8192;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct AskedRequest {
    pub(super) model: Option<String>,
    pub(super) prompt_tokens: u32,
    pub(super) sequences: u32,
    pub(super) keys: BlockKeys,
}

impl AskedRequest {
    pub(super) fn read(body: &[u8]) -> Self {
        let Ok(Value::Object(fields)) = serde_json::from_slice(body) else {
            return Self { prompt_tokens: tokens(body.len()), sequences: 1, ..Self::default() };
        };
        let model = fields.get("model").and_then(Value::as_str).map(str::to_owned);
        let text = ["messages", "prompt", "input"].iter().find_map(|key| fields.get(*key));
        let text = text.map(prefix_text).unwrap_or_default();
        let tools = fields.get("tools").map(Value::to_string).unwrap_or_default();
        let count = |key: &str| fields.get(key).and_then(Value::as_u64).unwrap_or(1).clamp(1, 1024) as u32;
        let prompts = fields.get("prompt").and_then(Value::as_array).map_or(1, |prompts| texts(prompts));
        Self {
            // Tools come first in most templates, and adapters have caches of their own.
            keys: keys(&[model.as_deref().unwrap_or_default(), &tools], &text),
            prompt_tokens: tokens(text.len() + tools.len()),
            sequences: count("n").max(count("best_of")).saturating_mul(prompts),
            model,
        }
    }
}

/// The text of a prompt, such that prompts with a common beginning have texts with a common beginning.
fn prefix_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Prompts in a list, which may also be the tokens of one.
fn texts(prompts: &[Value]) -> u32 {
    prompts.iter().filter(|prompt| !prompt.is_number()).count().max(1) as u32
}

fn tokens(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(TOKEN_BYTES)).unwrap_or(u32::MAX)
}

fn keys(before: &[&str], text: &str) -> BlockKeys {
    let begin = before.iter().fold(BlockKey(secret()), |key, part| key.then(digest(part.as_bytes())));
    let pieces = text.as_bytes().chunks_exact(PIECE).take(MOST_PIECES);
    let chain = pieces.scan(begin, |key, piece| {
        *key = key.then(digest(piece));
        Some(*key)
    });
    chain.collect()
}

fn digest(bytes: &[u8]) -> u64 {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0u64, |word, byte| (word << 8) | u64::from(*byte));
    bytes.chunks(8).fold(secret() ^ bytes.len() as u64, |state, chunk| mix(state ^ mix(word(chunk))))
}

/// A number of this process that nobody knows, so that nobody can make up prompts whose keys are those of another's, or all alike.
fn secret() -> u64 {
    static SECRET: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
    *SECRET
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> AskedRequest {
        AskedRequest::read(body.to_string().as_bytes())
    }

    fn common(one: &AskedRequest, other: &AskedRequest) -> u32 {
        one.keys.iter().zip(other.keys.iter()).take_while(|(one, other)| one == other).count() as u32
    }

    #[test]
    fn a_longer_chat_begins_with_the_keys_of_the_shorter() {
        let system = json!({ "role": "system", "content": "You are a gardener. ".repeat(50) });
        let ask = |text: &str| json!({ "role": "user", "content": text });
        let one = read(json!({ "model": "m", "messages": [system, ask("red?")] }));
        let other = read(json!({ "model": "m", "messages": [system, ask("red?"), ask("and green?")] }));
        assert!(common(&one, &other) >= one.keys.len() - 1 && one.keys.len() > 10, "{one:?}");
        let adapter = read(json!({ "model": "m-lora", "messages": [system, ask("red?")] }));
        assert_eq!(common(&one, &adapter), 0, "an adapter computes other keys and values");
        let tools = read(json!({ "model": "m", "tools": [{}], "messages": [system, ask("red?")] }));
        assert_eq!(common(&one, &tools), 0, "tools come before the messages");
    }

    #[test]
    fn sequences_are_those_of_all_prompts() {
        let count = |body| read(body).sequences;
        assert_eq!(count(json!({ "prompt": "a" })), 1);
        assert_eq!(count(json!({ "prompt": ["a", "b"], "n": 3, "best_of": 4 })), 8);
        assert_eq!(count(json!({ "prompt": [1, 2, 3] })), 1);
        assert_eq!(count(json!({ "prompt": [[1, 2], [3]], "n": 0 })), 2);
        assert_eq!(count(json!({ "n": 1_000_000_000_000u64 })), 1024);
    }

    #[test]
    fn what_cannot_be_read_counts_by_its_length() {
        for body in [&b"{"[..], b"[]", b"\xff\xfe", b""] {
            let asked = AskedRequest::read(body);
            assert_eq!((asked.model, asked.keys.len(), asked.sequences), (None, 0, 1));
        }
    }
}
