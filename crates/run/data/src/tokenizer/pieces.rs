//! Text from tokens that come one by one: never half a character, and joined the same as decoding all of them at once.

use super::Tokenizer;
use super::spelling::{Spelling, single_byte};

/// Tokens of a prompt among which one is looked for that shows how the next one is written.
const CONTEXT: usize = 6;

/// The text of tokens as they come.
///
/// Byte-level tokenizers spell bytes, so complete characters leave at once. Others decode in a context: a byte token counts with
/// the byte tokens around it, so a run of them is kept until it ends, and the text of a token is what it adds after the one before it.
pub struct Pieces<'a> {
    tokenizer: &'a Tokenizer,
    /// Byte-level: bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Others: tokens from the last one that has left, which is the context, on.
    tokens: Vec<u32>,
    /// The text of the context, as far as it has left.
    left: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, bytes: Vec::new(), tokens: Vec::new(), left: 0 }
    }

    /// The same after other tokens, whose text is there already: the space before the first word is a part of what follows.
    pub(super) fn after(tokenizer: &'a Tokenizer, before: &[u32]) -> Self {
        let mut pieces = Self::new(tokenizer);
        let is_word = |token: &&u32| {
            !tokenizer.is_special(**token)
                && tokenizer.spelled(**token).is_some_and(|token| single_byte(&token).is_none())
        };
        let context = before.iter().rev().take(CONTEXT).find(is_word);
        if let (Spelling::Fallback { .. }, Some(context)) = (&tokenizer.spelling, context) {
            pieces.tokens = vec![*context];
            pieces.left = tokenizer.decode(&pieces.tokens).map_or(0, |context| context.len());
        }
        pieces
    }

    /// The text that a token completes; often empty.
    pub fn push(&mut self, token: u32) -> String {
        match self.tokenizer.spelling {
            Spelling::ByteLevel => {
                self.bytes.extend(self.tokenizer.token_bytes(token));
                self.take_characters(false)
            }
            Spelling::Fallback { .. } => {
                self.tokens.push(token);
                let is_byte =
                    self.tokenizer.spelled(token).is_some_and(|token| single_byte(&token).is_some());
                if is_byte { String::new() } else { self.take_tokens() }
            }
        }
    }

    /// What is left when no more tokens come.
    pub fn finish(&mut self) -> String {
        match self.tokenizer.spelling {
            Spelling::ByteLevel => self.take_characters(true),
            Spelling::Fallback { .. } => self.take_tokens(),
        }
    }

    /// Complete characters; what can never become one is replaced. At the end an incomplete one is replaced too.
    fn take_characters(&mut self, is_end: bool) -> String {
        let mut text = String::new();
        let mut kept = 0;
        let mut chunks = self.bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let may_go_on = chunks.peek().is_none() && is_beginning(invalid);
            if may_go_on && !is_end {
                kept = invalid.len();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        drop(chunks);
        self.bytes.drain(..self.bytes.len() - kept);
        text
    }

    fn take_tokens(&mut self) -> String {
        let Some(last) = self.tokens.last().copied() else { return String::new() };
        let whole = self.tokenizer.decode(&self.tokens).unwrap_or_default();
        let text = whole.get(self.left..).unwrap_or_default().to_owned();
        self.tokens = vec![last];
        self.left = self.tokenizer.decode(&self.tokens).map_or(0, |context| context.len());
        text
    }
}

/// Whether the bytes begin a character that more bytes may complete: an error at the end that is not an error yet.
fn is_beginning(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::{TrainingOptions, train_tokenizer};

    fn byte_level() -> Tokenizer {
        let texts = ["the garden is green, über 日本語 🌍🌎"; 4];
        train_tokenizer(texts, &TrainingOptions { vocabulary: 300, ..TrainingOptions::default() }).unwrap()
    }

    /// In the manner of Llama 2: spaces are `▁`, unknown characters are byte tokens, the first space is stripped.
    fn sentence_pieces(decoder: &Value) -> Tokenizer {
        let mut vocabulary = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
        vocabulary.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        vocabulary.extend(["▁", "▁the", "a", "b", "é", "日", "▁▁", "\u{301}", "�"].map(str::to_owned));
        let ids: serde_json::Map<String, Value> =
            vocabulary.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
        let special = |id: u32, content: &str| {
            json!({ "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false })
        };
        let document = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": decoder,
            "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
            "model": { "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                       "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                       "vocab": ids, "merges": [] },
        });
        Tokenizer::parse(&document.to_string(), None, "test").unwrap()
    }

    static TOKENIZERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
        let llama = json!({ "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" }, { "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 1, "stop": 0 } ] });
        let metaspace =
            json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false });
        vec![byte_level(), sentence_pieces(&llama), sentence_pieces(&metaspace)]
    });

    fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
        let mut pieces = tokenizer.pieces();
        let mut texts: Vec<String> = ids.iter().map(|id| pieces.push(*id)).collect();
        texts.push(pieces.finish());
        texts
    }

    #[test]
    fn the_space_before_the_first_word_of_a_continuation_is_kept() {
        let the = 3 + 256 + 1;
        for tokenizer in &TOKENIZERS[1..] {
            let word = tokenizer.id("▁the").unwrap();
            assert_eq!(word, the);
            let begun = |before: &[u32]| tokenizer.pieces_after(before).push(word);
            assert_eq!(
                [begun(&[]), begun(&[1]), begun(&[1, the]), begun(&[the, 2])],
                ["the", "the", " the", " the"]
            );
            assert_eq!(begun(&[the, 3 + 0xc3]), " the", "half a character shows nothing");
        }
    }

    #[test]
    fn a_character_leaves_with_its_last_byte() {
        let tokenizer =
            train_tokenizer([], &TrainingOptions { vocabulary: 259, ..TrainingOptions::default() }).unwrap();
        let ids = tokenizer.encode("é!").unwrap();
        assert_eq!(pieces(&tokenizer, &ids), ["", "é", "!", ""]);
        assert_eq!(pieces(&tokenizer, &ids[..1]), ["", "\u{fffd}"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn pieces_joined_are_the_text_of_all_tokens(
            numbers in proptest::collection::vec(prop_oneof![0u32..5000, Just(3u32 + 0xe6), Just(3u32 + 0x97), Just(3u32 + 0xa5)], 0..24),
        ) {
            for tokenizer in TOKENIZERS.iter() {
                let ids: Vec<u32> = numbers.iter().map(|number| number % tokenizer.vocabulary()).collect();
                prop_assert_eq!(pieces(tokenizer, &ids).concat(), tokenizer.decode(&ids).unwrap(), "{:?}", ids);
            }
        }

        #[test]
        fn text_survives(text in r"(the garden| |日本|🌍|é|\PC){0,12}") {
            let tokenizer = &TOKENIZERS[0];
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(pieces(tokenizer, &ids).concat(), text);
        }
    }
}
