//! A fast way to encode with tokenizers of the common kind: byte-level BPE with a known splitter.
//!
//! The general engine keeps track of normalisation and offsets that training does not ask for. What this way
//! cannot do, a text with added tokens in it or a very long word, is left to the general one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use aho_corasick::AhoCorasick;
use serde_json::Value;

use super::bytes::character;
use super::splitter::Splitter;
use bedplate_random::mix;

/// Merging takes time by the square of a word's length; longer ones are none that people write.
const LONGEST_WORD: usize = 128;

pub(super) struct ByteLevel {
    splitter: Splitter,
    /// Whether the tokenizer also normalises; then only ASCII, which is normal, is encoded here.
    only_ascii: bool,
    added: Option<AhoCorasick>,
    bytes: [u32; 256],
    merges: HashMap<u64, Merge, BuildHasherDefault<PairHasher>>,
    /// Where whole words go before pairs are merged, their ids.
    words: Option<HashMap<Vec<u8>, u32>>,
}

#[derive(Clone, Copy)]
struct Merge {
    rank: u32,
    id: u32,
}

impl ByteLevel {
    /// Reads a tokenizer's document; nothing where it is of another kind.
    pub(super) fn from_document(document: &Value) -> Option<Self> {
        let model = &document["model"];
        if !is_plain(model) {
            return None;
        }
        let vocabulary = model["vocab"].as_object()?;
        let id = |token: &str| vocabulary.get(token)?.as_u64().and_then(|id| u32::try_from(id).ok());
        let mut bytes = [0; 256];
        for (byte, own) in (0..=255u8).zip(&mut bytes) {
            *own = id(character(byte).encode_utf8(&mut [0; 4]))?;
        }
        let only_ascii = match document["normalizer"]["type"].as_str() {
            None => false,
            Some("NFC") => true,
            Some(_) => return None,
        };
        let words = model["ignore_merges"].as_bool() == Some(true);
        Some(Self {
            splitter: splitter(&document["pre_tokenizer"])?,
            only_ascii,
            added: added(&document["added_tokens"])?,
            bytes,
            merges: merges(model["merges"].as_array()?, id)?,
            words: words.then(|| {
                vocabulary
                    .keys()
                    .filter_map(|token| Some((super::bytes::bytes_of(token)?, id(token)?)))
                    .collect()
            }),
        })
    }

    /// Appends the ids of a text; false where that needs the general engine, and then nothing is appended.
    pub(super) fn encode(&self, text: &str, cache: &mut Cache, ids: &mut Vec<u32>) -> bool {
        let has_added = self.added.as_ref().is_some_and(|added| added.is_match(text));
        if has_added || (self.only_ascii && !text.is_ascii()) {
            return false;
        }
        let begin = ids.len();
        for word in self.splitter.words(text) {
            if word.len() > LONGEST_WORD {
                ids.truncate(begin);
                return false;
            }
            self.encode_word(word, cache, ids);
        }
        true
    }

    fn encode_word(&self, word: &str, cache: &mut Cache, ids: &mut Vec<u32>) {
        if let Some(known) = cache.get(word) {
            ids.extend_from_slice(known);
            return;
        }
        let begin = ids.len();
        match self.words.as_ref().and_then(|words| words.get(word.as_bytes())) {
            Some(id) => ids.push(*id),
            None => {
                ids.extend(word.bytes().map(|byte| self.bytes[usize::from(byte)]));
                self.merge(ids, begin);
            }
        }
        cache.put(word, &ids[begin..]);
    }

    /// Merges the pair of the lowest rank, the leftmost first, until none is left.
    fn merge(&self, ids: &mut Vec<u32>, begin: usize) {
        loop {
            let pairs = ids[begin..].windows(2).enumerate();
            let found = pairs.filter_map(|(at, two)| Some((at, self.merges.get(&pair(two[0], two[1]))?)));
            let Some((at, merge)) = found.min_by_key(|(at, merge)| (merge.rank, *at)) else { return };
            ids[begin + at] = merge.id;
            ids.remove(begin + at + 1);
        }
    }
}

/// Words met before, and their ids. One per thread.
#[derive(Default)]
pub(super) struct Cache {
    places: HashMap<Box<str>, (u32, u32)>,
    ids: Vec<u32>,
}

impl Cache {
    /// More words than most languages use; beyond that it begins anew.
    const MOST_WORDS: usize = 1 << 17;

    fn get(&self, word: &str) -> Option<&[u32]> {
        let (from, to) = self.places.get(word)?;
        Some(&self.ids[*from as usize..*to as usize])
    }

    fn put(&mut self, word: &str, ids: &[u32]) {
        if self.places.len() >= Self::MOST_WORDS {
            self.places.clear();
            self.ids.clear();
        }
        let from = self.ids.len() as u32;
        self.ids.extend_from_slice(ids);
        self.places.insert(word.into(), (from, self.ids.len() as u32));
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A model without any of the rarer rules.
fn is_plain(model: &Value) -> bool {
    let is_unset = |key: &str| matches!(&model[key], Value::Null | Value::Bool(false)) || model[key] == "";
    let rules = ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"];
    model["type"] == "BPE" && rules.into_iter().all(is_unset)
}

fn splitter(pre_tokenizer: &Value) -> Option<Splitter> {
    let is_byte_level = |step: &Value| step["type"] == "ByteLevel" && step["add_prefix_space"] == false;
    if is_byte_level(pre_tokenizer) && pre_tokenizer["use_regex"] != false {
        return Some(Splitter::Gpt2);
    }
    let [split, last] = pre_tokenizer["pretokenizers"].as_array()?.as_slice() else { return None };
    let is_split = split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] != true;
    let is_known = is_split && is_byte_level(last) && last["use_regex"] == false;
    is_known.then(|| Splitter::for_pattern(split["pattern"]["Regex"].as_str()?))?
}

/// Finds added tokens in texts; the outer option is about whether that can be done.
fn added(tokens: &Value) -> Option<Option<AhoCorasick>> {
    let spellings: Vec<&str> =
        tokens.as_array()?.iter().filter_map(|token| token["content"].as_str()).collect();
    if spellings.is_empty() {
        return Some(None);
    }
    AhoCorasick::new(spellings).ok().map(Some)
}

fn merges(
    list: &[Value],
    id: impl Fn(&str) -> Option<u32>,
) -> Option<HashMap<u64, Merge, BuildHasherDefault<PairHasher>>> {
    let mut merges = HashMap::default();
    for (rank, entry) in list.iter().enumerate() {
        let (left, right) = match entry {
            Value::String(text) => text.split_once(' ')?,
            entry => (entry[0].as_str()?, entry[1].as_str()?),
        };
        let merge = Merge { rank: rank as u32, id: id(&format!("{left}{right}"))? };
        merges.insert(pair(id(left)?, id(right)?), merge);
    }
    Some(merges)
}

/// Pairs of ids are numbers already; spreading their bits is all that is needed.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(number);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
