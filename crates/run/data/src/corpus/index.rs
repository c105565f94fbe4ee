//! The index of a corpus, `index.json`: which shards there are, what is in them, which tokenizer made the ids.

use bedplate_diag::Source;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::DataError;
use crate::shard::{EXTENSION, Header};
use crate::tokenizer::check_fits;

const FORMAT: &str = "bedplate-tokens-1";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    pub format: String,
    pub content: Content,
    pub tokenizer: TokenizerEntry,
    pub documents: u64,
    pub tokens: u64,
    /// Bytes of the text that the tokens were made from.
    pub bytes: u64,
    pub lengths: DocumentLengths,
    pub shards: Vec<ShardEntry>,
}

/// What a document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Running text; every token counts in the loss.
    Text,
    /// A conversation; what the assistant says counts in the loss.
    Chat,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerEntry {
    pub digest: Digest,
    /// The highest id plus one.
    pub vocabulary: u32,
    /// The token put before each document.
    pub begin: Option<u32>,
    /// The token put after each document.
    pub end: Option<u32>,
}

impl TokenizerEntry {
    /// Whether a model of this vocabulary has an embedding for every id.
    pub fn check_fits(&self, vocabulary: u32) -> Result<(), DataError> {
        check_fits(self.vocabulary, vocabulary)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    pub file: String,
    pub documents: u64,
    pub tokens: u64,
    /// The content's checksum, as in the shard's header.
    pub content: u32,
}

impl ShardEntry {
    /// The expected header of the shard, with the block layout taken as found.
    pub(super) fn header(&self, found: &Header, tokenizer: Digest) -> Header {
        Header { tokens: self.tokens, documents: self.documents, content: self.content, tokenizer, ..*found }
    }
}

/// Histogram of document lengths: entry `k` counts documents of `2^k` to `2^(k+1) - 1` tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DocumentLengths(pub Vec<u64>);

impl DocumentLengths {
    pub(crate) fn add(&mut self, tokens: usize) {
        let Some(power) = tokens.checked_ilog2().map(|power| power as usize) else { return };
        if self.0.len() <= power {
            self.0.resize(power + 1, 0);
        }
        self.0[power] += 1;
    }
}

impl Index {
    pub(super) fn new(content: Content, tokenizer: TokenizerEntry) -> Self {
        Self {
            format: FORMAT.to_owned(),
            content,
            tokenizer,
            documents: 0,
            tokens: 0,
            bytes: 0,
            lengths: DocumentLengths::default(),
            shards: Vec::new(),
        }
    }

    /// Reads an index. `name` is what errors call it.
    pub fn parse(text: &str, name: &str) -> Result<Self, DataError> {
        let source = Source::new(name, text);
        let index: Index = serde_json::from_str(text).map_err(|error| DataError::BadIndex {
            reason: plain(&error.to_string()),
            place: source.place_at(error.line(), error.column()),
        })?;
        match index.flaw() {
            Some(reason) => Err(DataError::BadIndex { reason, place: source.whole() }),
            None => Ok(index),
        }
    }

    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("an index has only text keys");
        text.push('\n');
        text
    }

    fn flaw(&self) -> Option<String> {
        if self.format != FORMAT {
            return Some(format!("its format is `{}`; this program knows `{FORMAT}`", self.format));
        }
        if let Some(entry) = self.shards.iter().find(|entry| !is_file_name(&entry.file)) {
            return Some(format!("`{}` is not the name of a shard in this folder", entry.file));
        }
        let sum = |count: fn(&ShardEntry) -> u64| {
            self.shards.iter().try_fold(0u64, |sum, entry| sum.checked_add(count(entry)))
        };
        let adds_up = sum(|entry| entry.tokens) == Some(self.tokens)
            && sum(|entry| entry.documents) == Some(self.documents);
        (!adds_up).then(|| "the shards' tokens or documents do not add up to the whole".to_owned())
    }
}

/// A plain name, so that a foreign index cannot point outside its folder.
fn is_file_name(name: &str) -> bool {
    let stem = name.strip_suffix(EXTENSION).and_then(|stem| stem.strip_suffix('.'));
    stem.is_some_and(|stem| {
        !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    })
}

/// The parser's message without its position, which the place gives.
fn plain(message: &str) -> String {
    message.split(" at line ").next().unwrap_or(message).to_owned()
}
