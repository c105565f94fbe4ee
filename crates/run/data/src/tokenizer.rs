//! Text to token ids and back, by a tokenizer in Hugging Face's format.

mod bytes;
mod splitter;
mod training;

use std::path::Path;

use bedplate_diag::Source;
use serde_json::Value;

pub use training::{TrainingOptions, train_tokenizer};

use crate::digest::Digest;
use crate::disk;
use crate::error::DataError;

/// Marks at the end of texts by the names models give them, used where nothing says which it is.
const KNOWN_ENDS: [&str; 7] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|im_end|>",
    "<|eot_id|>",
    "<｜end▁of▁sentence｜>",
];
/// The same for the beginning.
const KNOWN_BEGINS: [&str; 5] =
    ["<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "<｜begin▁of▁sentence｜>"];

/// A tokenizer, the file it was read from, and its marks.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    json: String,
    config: Option<String>,
    digest: Digest,
    vocabulary: u32,
    begin: Option<u32>,
    end: Option<u32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("digest", &self.digest)
            .field("vocabulary", &self.vocabulary)
            .finish()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, and the `tokenizer_config.json` beside it where there is one.
    pub fn load(path: &Path) -> Result<Self, DataError> {
        let json = disk::read_text(path)?;
        let beside = path.with_file_name(CONFIG_FILE);
        let config = if beside.exists() { Some(disk::read_text(&beside)?) } else { None };
        Self::parse(&json, config.as_deref(), &path.display().to_string())
    }

    /// Reads a tokenizer from the text of its file and of its configuration. `name` is what errors call it.
    pub fn parse(json: &str, config: Option<&str>, name: &str) -> Result<Self, DataError> {
        let source = Source::new(name, json);
        let bad = |reason: String| DataError::BadTokenizer { reason, place: source.whole() };
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(json) {
            let place = source.place_at(error.line(), error.column());
            return Err(DataError::BadTokenizer { reason: "it is not JSON".to_owned(), place });
        }
        let inner: tokenizers::Tokenizer = json.parse().map_err(|error| bad(format!("{error}")))?;
        let highest = inner.get_vocab(true).values().copied().max();
        let highest = highest.ok_or_else(|| bad("its vocabulary is empty".to_owned()))?;
        let vocabulary = highest.checked_add(1).ok_or_else(|| bad(format!("it has the id {highest}")))?;
        let settings: Value = match config {
            Some(text) => serde_json::from_str(text).map_err(|error| DataError::BadTokenizer {
                reason: format!("its configuration is not JSON: {error}"),
                place: Source::new(CONFIG_FILE, text).place_at(error.line(), error.column()),
            })?,
            None => Value::Null,
        };
        Ok(Self {
            begin: mark(&inner, &settings, "bos_token", &KNOWN_BEGINS),
            end: mark(&inner, &settings, "eos_token", &KNOWN_ENDS),
            inner,
            json: json.to_owned(),
            config: config.map(str::to_owned),
            digest: Digest::of(json.as_bytes()),
            vocabulary,
        })
    }

    /// Writes the tokenizer's files into a folder, which exists.
    pub fn save(&self, folder: &Path) -> Result<(), DataError> {
        if let Some(config) = &self.config {
            disk::write(&folder.join(CONFIG_FILE), config.as_bytes())?;
        }
        disk::write(&folder.join(TOKENIZER_FILE), self.json.as_bytes())
    }

    /// The text of its `tokenizer.json`.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// The text of its `tokenizer_config.json`.
    pub fn config(&self) -> Option<&str> {
        self.config.as_deref()
    }

    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The highest id plus one.
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// The mark at the beginning of a text, where the tokenizer has one.
    pub fn begin(&self) -> Option<u32> {
        self.begin
    }

    /// The mark at the end of a text, where the tokenizer has one.
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    /// The id of a token by its exact spelling, special ones included.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether a model of this vocabulary has an embedding for every id.
    pub fn check_fits(&self, vocabulary: u32) -> Result<(), DataError> {
        match self.vocabulary {
            own if own <= vocabulary => Ok(()),
            own => Err(DataError::Vocabulary { highest: own - 1, vocabulary }),
        }
    }

    /// The ids of a text, without marks around it. The spelling of a special token in the text becomes that token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoded =
            self.inner.encode_fast(text, false).map_err(|error| self.failed(&format!("{error}")))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The text of ids, special tokens spelled out. Bytes that are not UTF-8 become `U+FFFD`.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        self.inner.decode(ids, false).map_err(|error| self.failed(&format!("{error}")))
    }

    fn failed(&self, reason: &str) -> DataError {
        DataError::BadTokenizer { reason: reason.to_owned(), place: Source::new("tokenizer", "").whole() }
    }
}

pub(crate) const TOKENIZER_FILE: &str = "tokenizer.json";
/// The configuration of a tokenizer, which lies beside it.
const CONFIG_FILE: &str = "tokenizer_config.json";

/// The id that the configuration names, or else the first known spelling that is in the vocabulary.
fn mark(inner: &tokenizers::Tokenizer, settings: &Value, key: &str, known: &[&str]) -> Option<u32> {
    let setting = &settings[key];
    if let Some(named) = setting.as_str().or_else(|| setting["content"].as_str()) {
        return inner.token_to_id(named);
    }
    if settings.get(key).is_some_and(Value::is_null) {
        return None;
    }
    known.iter().find_map(|spelling| inner.token_to_id(spelling))
}
