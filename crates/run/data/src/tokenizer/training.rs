//! Training a byte-level BPE tokenizer: the most frequent pair of neighbours becomes a token, repeatedly.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use serde_json::{Map, Value, json};

use super::Tokenizer;
use super::bytes::character;
use super::splitter::Splitter;
use crate::error::DataError;

#[derive(Debug, Clone)]
pub struct TrainingOptions {
    /// Total tokens: the special ones, 256 bytes, and one for each merge. Fewer where pairs run out.
    pub vocabulary: u32,
    /// Tokens that no text is split into, in the order of their ids from 0; the first one is the end of text.
    pub special: Vec<String>,
    /// A pair that occurs less often is not merged.
    pub least_count: u64,
}

impl Default for TrainingOptions {
    fn default() -> Self {
        let special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
        Self { vocabulary: 4096, special: special.map(str::to_owned).to_vec(), least_count: 2 }
    }
}

/// Makes a tokenizer for texts like these. The same texts in any order give the same one.
pub fn train_tokenizer<'a>(
    texts: impl IntoIterator<Item = &'a str>,
    options: &TrainingOptions,
) -> Result<Tokenizer, DataError> {
    let first_merge = options.special.len() as u32 + 256;
    if options.vocabulary < first_merge || options.vocabulary > 1 << 20 {
        return Err(DataError::BadChoice {
            what: format!("a vocabulary cannot have {} tokens", options.vocabulary),
            remedy: "give it room for the special tokens and 256 bytes, and at most a million tokens in all",
        });
    }
    let mut learner = Learner::new(count_words(texts), options.special.len() as u32);
    let mut spellings: Vec<String> = (0..=255u8).map(|byte| character(byte).to_string()).collect();
    let mut merges: Vec<String> = Vec::new();
    while first_merge + (merges.len() as u32) < options.vocabulary {
        let Some(pair) = learner.best_pair(options.least_count) else { break };
        learner.merge(pair, first_merge + merges.len() as u32);
        let spelling = |id: u32| spellings[(id - options.special.len() as u32) as usize].as_str();
        let (left, right) = (spelling(pair.0), spelling(pair.1));
        merges.push(format!("{left} {right}"));
        spellings.push(format!("{left}{right}"));
    }
    let json = serde_json::to_string_pretty(&document(&options.special, &spellings, merges))
        .expect("a tokenizer has only text keys");
    Tokenizer::parse(&json, None, "the trained tokenizer")
}

fn count_words<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeMap<&'a str, u64> {
    let mut counts = BTreeMap::new();
    for word in texts.into_iter().flat_map(|text| Splitter::QWEN2.words(text)) {
        *counts.entry(word).or_default() += 1;
    }
    counts
}

type Pair = (u32, u32);

/// The words as tokens so far, and how often each pair of neighbours occurs in them.
struct Learner {
    words: Vec<(Vec<u32>, u64)>,
    counts: BTreeMap<Pair, u64>,
    /// Words that a pair occurs in, or used to.
    places: BTreeMap<Pair, BTreeSet<usize>>,
    /// A heap of the counts, largest first, ties by lowest ids; entries may be stale.
    largest: BinaryHeap<(u64, std::cmp::Reverse<Pair>)>,
}

impl Learner {
    fn new(words: BTreeMap<&str, u64>, first_byte: u32) -> Self {
        let ids = |word: &str| word.bytes().map(|byte| first_byte + u32::from(byte)).collect();
        let words = words.into_iter().map(|(word, count)| (ids(word), count)).collect();
        let mut learner =
            Self { words, counts: BTreeMap::new(), places: BTreeMap::new(), largest: BinaryHeap::new() };
        for word in 0..learner.words.len() {
            learner.count(word);
        }
        learner.largest =
            learner.counts.iter().map(|(pair, count)| (*count, std::cmp::Reverse(*pair))).collect();
        learner
    }

    /// Adds a word's pairs to the counts and returns them.
    fn count(&mut self, word: usize) -> Vec<Pair> {
        let (ids, times) = &self.words[word];
        let pairs: Vec<Pair> = ids.windows(2).map(|two| (two[0], two[1])).collect();
        for pair in &pairs {
            *self.counts.entry(*pair).or_default() += times;
            self.places.entry(*pair).or_default().insert(word);
        }
        pairs
    }

    fn uncount(&mut self, word: usize) {
        let (ids, times) = &self.words[word];
        for two in ids.windows(2) {
            if let Some(count) = self.counts.get_mut(&(two[0], two[1])) {
                *count -= times;
            }
        }
    }

    fn best_pair(&mut self, least: u64) -> Option<Pair> {
        loop {
            let (count, std::cmp::Reverse(pair)) = self.largest.pop()?;
            let now = self.counts.get(&pair).copied().unwrap_or(0);
            if now == count {
                return (count >= least).then_some(pair);
            }
            // The count is stale after merges; the current one is pushed again.
            if now >= least && now < count {
                self.largest.push((now, std::cmp::Reverse(pair)));
            }
        }
    }

    fn merge(&mut self, pair: Pair, id: u32) {
        let mut changed = BTreeSet::new();
        for word in self.places.remove(&pair).unwrap_or_default() {
            self.uncount(word);
            join(&mut self.words[word].0, pair, id);
            changed.extend(self.count(word));
        }
        self.counts.remove(&pair);
        for pair in changed {
            if let Some(count) = self.counts.get(&pair) {
                self.largest.push((*count, std::cmp::Reverse(pair)));
            }
        }
    }
}

/// Replaces every occurrence of a pair, from the left.
fn join(ids: &mut Vec<u32>, pair: Pair, id: u32) {
    let (mut read, mut write) = (0, 0);
    while read < ids.len() {
        if ids.get(read..read + 2) == Some(&[pair.0, pair.1]) {
            ids[write] = id;
            read += 2;
        } else {
            ids[write] = ids[read];
            read += 1;
        }
        write += 1;
    }
    ids.truncate(write);
}

/// The tokenizer in Hugging Face's format.
fn document(special: &[String], spellings: &[String], merges: Vec<String>) -> Value {
    let tokens = special.iter().chain(spellings).enumerate();
    let vocabulary: Map<String, Value> = tokens.map(|(id, token)| (token.clone(), json!(id))).collect();
    let added: Vec<Value> = special.iter().enumerate().map(|(id, token)| added_token(id, token)).collect();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            {
                "type": "Split",
                "pattern": { "Regex": Splitter::QWEN2.pattern() },
                "behavior": "Isolated",
                "invert": false,
            },
            byte_level,
        ]},
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocabulary,
            "merges": merges,
        },
    })
}

fn added_token(id: usize, token: &str) -> Value {
    json!({
        "id": id,
        "content": token,
        "single_word": false,
        "lstrip": false,
        "rstrip": false,
        "normalized": false,
        "special": true,
    })
}
