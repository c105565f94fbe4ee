//! How much a tokenizer may make of a text before any token is counted, and how much text a token may stand for.

use serde_json::Value;

use super::spelling::Spelling;

/// Texts grow threefold where `▁` stands for the space, and elevenfold by the widest character of Unicode's compatibility forms.
const MOST_GROWTH: usize = 64;
/// The most that Unicode's normal forms shrink a text: three characters of a syllable become one.
const SHRINKING: usize = 3;

/// Refuses a tokenizer whose normalizer or decoder makes very much of a little text.
pub(super) fn check(document: &Value) -> Result<(), String> {
    for (part, list) in
        [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")]
    {
        let growth = growth(&document[part], list);
        if growth > MOST_GROWTH {
            return Err(format!("its {part} makes texts {growth} times as long, more than {MOST_GROWTH}"));
        }
    }
    Ok(())
}

/// How many bytes a part makes of one, at most.
fn growth(part: &Value, list: &str) -> usize {
    let length = |value: &Value| value.as_str().map_or(0, str::len);
    match part["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            let parts = part[list].as_array().into_iter().flatten();
            parts.map(|part| growth(part, list)).fold(1, usize::saturating_mul)
        }
        "Replace" => match &part["pattern"]["String"] {
            // A regular expression may match between any two characters.
            Value::Null => length(&part["content"]).saturating_add(1),
            pattern => length(&part["content"]).div_ceil(length(pattern).max(1)).max(1),
        },
        "Prepend" => length(&part["prepend"]).saturating_add(1),
        "NFKC" | "NFKD" => 11,
        "NFC" | "NFD" | "ByteLevel" | "Metaspace" => 3,
        _ => 1,
    }
}

/// The most bytes of a text that become one token, of tokenizers that lose nothing of it: byte-level ones and those with bytes for
/// what they do not know.
pub(super) fn bytes_per_token(
    document: &Value,
    spelling: &Spelling,
    spelled: impl Iterator<Item = String>,
) -> Option<usize> {
    let model = &document["model"];
    let has_all_bytes = *spelling == Spelling::ByteLevel || model["byte_fallback"] == true;
    let loses = |part: &Value| {
        let kind = part["type"].as_str().unwrap_or_default();
        match kind {
            "" | "NFC" | "NFD" | "Prepend" | "ByteLevel" | "Metaspace" | "Digits" => false,
            "Replace" => !is_space(part),
            "Split" => part["behavior"] == "Removed",
            _ => true,
        }
    };
    let parts = [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")];
    let is_whole = parts.iter().all(|(part, list)| {
        let part = &document[*part];
        let single = std::slice::from_ref(part);
        let several = part[*list].as_array().map(Vec::as_slice).filter(|_| part["type"] == "Sequence");
        !several.unwrap_or(single).iter().any(loses)
    });
    // Tokens that take the spaces around them take any number of them.
    let takes_spaces = |token: &Value| token["lstrip"] == true || token["rstrip"] == true;
    let is_plain = !document["added_tokens"].as_array().into_iter().flatten().any(takes_spaces);
    let longest = spelled.map(|token| spelling.bytes(&token).len().max(token.len())).max()?;
    (model["type"] == "BPE" && has_all_bytes && is_whole && is_plain).then_some(longest * SHRINKING)
}

/// `▁` for the space.
fn is_space(part: &Value) -> bool {
    part["pattern"]["String"] == " "
        && part["content"].as_str().is_some_and(|content| content.chars().count() == 1)
}
