//! A fast way to encode with tokenizers of the common kind: byte-level BPE with a known splitter.
//!
//! The general engine tracks normalisation and offsets that nobody here needs: a hundred bytes for each token. Texts beyond ASCII of
//! tokenizers that normalise, and added tokens that take what is around them, go to the general one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

use super::bytes::character;
use super::splitter::Splitter;
use bedplate_random::mix;

/// The simple way to merge is quadratic in a word's length; hardly any natural word is longer. Longer ones are not remembered either.
const LONGEST_SIMPLE: usize = 64;

pub(super) struct ByteLevel {
    splitter: Splitter,
    /// Whether the tokenizer also normalises; then only ASCII, which is already normal, is encoded here.
    only_ascii: bool,
    added: Option<AddedTokens>,
    bytes: [u32; 256],
    merges: HashMap<u64, Merge, BuildHasherDefault<PairHasher>>,
    /// Ids of whole words, where they take precedence over merging pairs.
    words: Option<HashMap<Vec<u8>, u32>>,
}

/// Tokens that are found in a text before it is split into words.
struct AddedTokens {
    automaton: AhoCorasick,
    /// By the number of their pattern; none where a token takes more than its own spelling.
    ids: Option<Vec<u32>>,
}

/// What became of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FastOutcome {
    Encoded,
    /// It has more tokens than were wanted; some were appended.
    TooMany,
    /// It needs the general engine; nothing was appended.
    Unsupported,
}

#[derive(Clone, Copy)]
struct Merge {
    rank: u32,
    id: u32,
}

impl ByteLevel {
    /// Reads a tokenizer's document; `None` for other kinds.
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

    /// Appends the ids of a text, and stops once there are more than `most` in all.
    pub(super) fn encode(
        &self,
        text: &str,
        cache: &mut Cache,
        ids: &mut Vec<u32>,
        most: usize,
    ) -> FastOutcome {
        if self.only_ascii && !text.is_ascii() {
            return FastOutcome::Unsupported;
        }
        let Some(added) = &self.added else { return self.encode_plain(text, cache, ids, most) };
        let Some(added_ids) = &added.ids else {
            let has_added = added.automaton.is_match(text);
            return if has_added {
                FastOutcome::Unsupported
            } else {
                self.encode_plain(text, cache, ids, most)
            };
        };
        let mut from = 0;
        for found in added.automaton.find_iter(text) {
            if self.encode_plain(&text[from..found.start()], cache, ids, most) == FastOutcome::TooMany {
                return FastOutcome::TooMany;
            }
            ids.push(added_ids[found.pattern().as_usize()]);
            from = found.end();
        }
        self.encode_plain(&text[from..], cache, ids, most)
    }

    fn encode_plain(&self, text: &str, cache: &mut Cache, ids: &mut Vec<u32>, most: usize) -> FastOutcome {
        for word in self.splitter.words(text) {
            self.encode_word(word, cache, ids);
            if ids.len() > most {
                return FastOutcome::TooMany;
            }
        }
        FastOutcome::Encoded
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
                if word.len() <= LONGEST_SIMPLE {
                    self.merge(ids, begin)
                } else {
                    self.merge_long(ids, begin)
                }
            }
        }
        if word.len() <= LONGEST_SIMPLE {
            cache.put(word, &ids[begin..]);
        }
    }

    /// The same as [`ByteLevel::merge`] in a time that grows with the length and not with its square.
    fn merge_long(&self, ids: &mut Vec<u32>, begin: usize) {
        const NONE: usize = usize::MAX;
        let mut tokens: Vec<Option<u32>> = ids[begin..].iter().copied().map(Some).collect();
        let mut before: Vec<usize> = (0..tokens.len()).map(|at| at.checked_sub(1).unwrap_or(NONE)).collect();
        let mut after: Vec<usize> = (1..=tokens.len()).collect();
        let mergeable = |left: u32, right: u32| self.merges.get(&pair(left, right));
        let mut waiting = BinaryHeap::new();
        for (at, two) in ids[begin..].windows(2).enumerate() {
            waiting.extend(mergeable(two[0], two[1]).map(|merge| Reverse((merge.rank, at, two[0], two[1]))));
        }
        while let Some(Reverse((_, at, left, right))) = waiting.pop() {
            let next = after[at];
            // One of the two was merged with another one since.
            if tokens[at] != Some(left) || tokens.get(next).copied().flatten() != Some(right) {
                continue;
            }
            let Some(merge) = mergeable(left, right) else { continue };
            (tokens[at], tokens[next]) = (Some(merge.id), None);
            after[at] = after[next];
            if let Some(link) = before.get_mut(after[at]) {
                *link = at;
            }
            let mut look = |left: usize, right: usize| {
                let two = (tokens.get(left).copied().flatten(), tokens.get(right).copied().flatten());
                if let (Some(one), Some(other)) = two {
                    waiting
                        .extend(mergeable(one, other).map(|merge| Reverse((merge.rank, left, one, other))));
                }
            };
            look(before[at], at);
            look(at, after[at]);
        }
        ids.truncate(begin);
        ids.extend(tokens.into_iter().flatten());
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

/// A cache of words and their ids. One per thread.
#[derive(Default)]
pub(super) struct Cache {
    places: HashMap<Box<str>, (u32, u32)>,
    ids: Vec<u32>,
}

impl Cache {
    /// More words than most languages use; when full it is cleared.
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

/// Whether a model uses none of the rarer rules.
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

/// Finds added tokens in texts; the outer option says whether that is possible.
fn added(tokens: &Value) -> Option<Option<AddedTokens>> {
    let listed = tokens.as_array()?.iter().filter_map(|token| Some((token["content"].as_str()?, token)));
    let listed: Vec<(&str, &Value)> = listed.filter(|(content, _)| !content.is_empty()).collect();
    if listed.is_empty() {
        return Some(None);
    }
    let spellings = listed.iter().map(|(content, _)| content);
    let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(spellings).ok()?;
    let is_alone = |token: &Value| ["lstrip", "rstrip", "single_word"].iter().all(|key| token[key] != true);
    // Those that are found in the normalised text are looked for after the others.
    let is_same = |token: &Value| token["normalized"] == listed[0].1["normalized"];
    let id = |(_, token): &(&str, &Value)| {
        let is_plain = is_alone(token) && is_same(token);
        token["id"].as_u64().filter(|_| is_plain).and_then(|id| u32::try_from(id).ok())
    };
    Some(Some(AddedTokens { ids: listed.iter().map(id).collect(), automaton }))
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

/// Pairs of ids are already numbers; it is enough to mix their bits.
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
