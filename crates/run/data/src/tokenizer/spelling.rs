//! What each token spells, in bytes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::bytes;

/// How a tokenizer's decoder turns tokens into text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Every character stands for a byte.
    ByteLevel,
    /// A character stands for the space, and tokens such as `<0x0A>` for single bytes.
    Fallback { space: Option<char> },
}

/// Marks of an added token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Added {
    /// A part of the text.
    Plain,
    /// Control: no part of the text.
    Special,
}

impl Spelling {
    /// As the `decoder` of a `tokenizer.json` says.
    pub(super) fn of(document: &Value) -> Self {
        let decoder = &document["decoder"];
        let single = std::slice::from_ref(decoder);
        let parts = decoder["decoders"].as_array().map_or(single, Vec::as_slice);
        if parts.iter().any(|part| part["type"] == "ByteLevel") {
            return Spelling::ByteLevel;
        }
        Spelling::Fallback { space: parts.iter().find_map(space) }
    }

    /// The bytes of a token that is not an added one.
    pub(super) fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Spelling::ByteLevel => bytes::bytes_of(token).unwrap_or_else(|| token.as_bytes().to_vec()),
            Spelling::Fallback { space } => match (single_byte(token), space) {
                (Some(byte), _) => vec![byte],
                (None, Some(space)) => token.replace(*space, " ").into_bytes(),
                (None, None) => token.as_bytes().to_vec(),
            },
        }
    }
}

/// The character that a decoder replaces by a space.
fn space(part: &Value) -> Option<char> {
    let spelled = match part["type"].as_str()? {
        "Metaspace" => part["replacement"].as_str()?,
        "Replace" if part["content"] == " " => part["pattern"]["String"].as_str()?,
        _ => return None,
    };
    let mut characters = spelled.chars();
    characters.next().filter(|_| characters.next().is_none())
}

/// The byte of a token such as `<0x0A>`.
pub(super) fn single_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The added tokens of a `tokenizer.json`.
pub(super) fn added(document: &Value) -> BTreeMap<u32, Added> {
    let listed = document["added_tokens"].as_array().into_iter().flatten();
    let entry = |token: &Value| {
        let mark = if token["special"] == true { Added::Special } else { Added::Plain };
        Some((u32::try_from(token["id"].as_u64()?).ok()?, mark))
    };
    listed.filter_map(entry).collect()
}
