//! Text to token ids and back, by a tokenizer in Hugging Face's format.

mod byte_level;
mod bytes;
mod growth;
mod pieces;
mod spelling;
mod splitter;
mod training;

use std::collections::BTreeMap;
use std::path::Path;

use bedplate_diag::Source;
use serde_json::Value;

pub use pieces::Pieces;
pub use training::{TrainingOptions, train_tokenizer};

use byte_level::{ByteLevel, Cache, FastOutcome};
use spelling::{Added, Spelling};

use crate::digest::Digest;
use crate::disk;
use crate::error::DataError;

/// Common spellings of the end-of-text token, used where the configuration does not name it.
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
    /// The fast encoder, where there is one.
    byte_level: Option<ByteLevel>,
    json: String,
    config: Option<String>,
    template: Option<String>,
    tool_template: Option<String>,
    digest: Digest,
    vocabulary: u32,
    /// What it puts before and after a text, where that is the same for all texts.
    marks: Option<(Vec<u32>, Vec<u32>)>,
    begin: Option<u32>,
    end: Option<u32>,
    spelling: Spelling,
    /// Most bytes of a text that become one token, where that has a bound.
    bytes_per_token: Option<usize>,
    added: BTreeMap<u32, Added>,
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
    /// Reads a `tokenizer.json`, and the `tokenizer_config.json` next to it if present.
    pub fn load(path: &Path) -> Result<Self, DataError> {
        let json = disk::read_text(path)?;
        let config = read_beside(path, CONFIG_FILE)?;
        let template = match read_beside(path, TEMPLATE_FILE)? {
            Some(template) => Some(template),
            None => read_beside(path, PROCESSOR_TEMPLATE_FILE)?
                .map(|text| processor_template(&text))
                .transpose()?,
        };
        let tool_template = read_beside(path, TOOL_TEMPLATE_FILE)?;
        let tokenizer = Self::parse(&json, config.as_deref(), &path.display().to_string())?;
        Ok(Self { template, tool_template, ..tokenizer })
    }

    /// Reads a tokenizer from the text of its file and of its configuration. `name` is what errors call it.
    pub fn parse(json: &str, config: Option<&str>, name: &str) -> Result<Self, DataError> {
        let source = Source::new(name, json);
        let bad = |reason: String| DataError::BadTokenizer { reason, place: source.whole() };
        let document: Value = serde_json::from_str(json).map_err(|error| {
            let place = source.place_at(error.line(), error.column());
            DataError::BadTokenizer { reason: "it is not JSON".to_owned(), place }
        })?;
        growth::check(&document).map_err(&bad)?;
        let mut inner: tokenizers::Tokenizer = json.parse().map_err(|error| bad(format!("{error}")))?;
        // Settings for inference that files carry along; a document is encoded as a whole.
        inner.with_truncation(None).map_err(|error| bad(format!("{error}")))?;
        inner.with_padding(None);
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
        let spelling = Spelling::of(&document);
        let spelled = inner.get_vocab(true).into_keys();
        Ok(Self {
            bytes_per_token: growth::bytes_per_token(&document, &spelling, spelled),
            begin: mark(&inner, &settings, "bos_token", &KNOWN_BEGINS),
            end: mark(&inner, &settings, "eos_token", &KNOWN_ENDS),
            marks: marks_of(&inner),
            inner,
            byte_level: ByteLevel::from_document(&document),
            spelling,
            added: spelling::added(&document),
            json: json.to_owned(),
            config: config.map(str::to_owned),
            template: None,
            tool_template: None,
            digest: Digest::of(json.as_bytes()),
            vocabulary,
        })
    }

    /// Writes the tokenizer's files into a folder, which exists.
    pub fn save(&self, folder: &Path) -> Result<(), DataError> {
        if let Some(config) = &self.config {
            disk::write(&folder.join(CONFIG_FILE), config.as_bytes())?;
        }
        if let Some(template) = &self.template {
            disk::write(&folder.join(TEMPLATE_FILE), template.as_bytes())?;
        }
        if let Some(template) = &self.tool_template {
            let path = folder.join(TOOL_TEMPLATE_FILE);
            path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(disk::writing(&path))?;
            disk::write(&path, template.as_bytes())?;
        }
        disk::write(&folder.join(TOKENIZER_FILE), self.json.as_bytes())
    }

    /// The text of its `tokenizer.json`.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// The source of its chat template, from a file next to it or from its configuration.
    pub fn chat_template(&self) -> Option<String> {
        if let Some(template) = &self.template {
            return Some(template.clone());
        }
        let settings: Value = serde_json::from_str(self.config.as_deref()?).ok()?;
        let template = &settings["chat_template"];
        template.as_str().or_else(|| named_template(template, "default")).map(str::to_owned)
    }

    /// The source of the template for conversations with tools, where it has one of its own for them.
    pub fn tool_template(&self) -> Option<String> {
        if let Some(template) = &self.tool_template {
            return Some(template.clone());
        }
        let settings: Value = serde_json::from_str(self.config.as_deref()?).ok()?;
        named_template(&settings["chat_template"], "tool_use").map(str::to_owned)
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
        check_fits(self.vocabulary, vocabulary)
    }

    /// The ids of a text, without marks around it. The spelling of a special token in the text becomes that token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let mut ids = Vec::new();
        self.encoder().encode(text, &mut ids)?;
        Ok(ids)
    }

    /// An encoder for many texts, which caches words; one per thread.
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder { tokenizer: self, cache: Cache::default() }
    }

    /// The ids of a text, with or without the marks around it; `None` where there would be more than `most`, which for almost all
    /// tokenizers is found without encoding all of the text.
    pub fn encode_within(
        &self,
        text: &str,
        is_marked: bool,
        most: usize,
    ) -> Result<Option<Vec<u32>>, DataError> {
        if self.bytes_per_token.is_some_and(|bytes| text.len() / bytes > most) {
            return Ok(None);
        }
        let none = (Vec::new(), Vec::new());
        let marks = if is_marked { self.marks.as_ref() } else { Some(&none) };
        if let (Some(fast), Some((before, after))) = (&self.byte_level, marks) {
            let mut ids = before.clone();
            match fast.encode(text, &mut Cache::default(), &mut ids, most) {
                FastOutcome::Encoded => ids.extend(after),
                FastOutcome::TooMany => return Ok(None),
                FastOutcome::Unsupported => ids = self.encode_whole(text, is_marked)?,
            }
            return Ok((ids.len() <= most).then_some(ids));
        }
        let ids = self.encode_whole(text, is_marked)?;
        Ok((ids.len() <= most).then_some(ids))
    }

    /// By the general engine, with or without the marks that the tokenizer puts around a text, such as a beginning.
    fn encode_whole(&self, text: &str, is_marked: bool) -> Result<Vec<u32>, DataError> {
        let encoded =
            self.inner.encode_fast(text, is_marked).map_err(|error| self.failed(&format!("{error}")))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The spelling of a token in the vocabulary, where there is such a token.
    pub fn spelled(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether a token is for control and no part of the text, such as the end.
    pub fn is_special(&self, id: u32) -> bool {
        self.added.get(&id) == Some(&Added::Special)
    }

    /// How all special tokens are spelled.
    pub fn special_tokens(&self) -> Vec<String> {
        let special = self.added.iter().filter(|(_, added)| **added == Added::Special);
        let mut spelled: Vec<String> = special.filter_map(|(id, _)| self.inner.id_to_token(*id)).collect();
        spelled.sort_unstable();
        spelled
    }

    /// The bytes that a token stands for in a text; a special token spells its name, an unknown one nothing. In a byte-level
    /// text they may be a part of a character.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(token) = self.inner.id_to_token(id) else { return Vec::new() };
        // The decoder treats added tokens of byte-level tokenizers like any other.
        let is_plain = self.spelling != Spelling::ByteLevel && self.added.contains_key(&id);
        if is_plain { token.into_bytes() } else { self.spelling.bytes(&token) }
    }

    /// The text of tokens that come one by one.
    pub fn pieces(&self) -> Pieces<'_> {
        Pieces::new(self)
    }

    /// The text of tokens that continue others.
    pub fn pieces_after(&self, before: &[u32]) -> Pieces<'_> {
        Pieces::after(self, before)
    }

    /// The text of ids, special tokens spelled out. Bytes that are not UTF-8 become `U+FFFD`.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        self.inner.decode(ids, false).map_err(|error| self.failed(&format!("{error}")))
    }

    fn failed(&self, reason: &str) -> DataError {
        DataError::BadTokenizer { reason: reason.to_owned(), place: Source::new("tokenizer", "").whole() }
    }
}

/// Encodes one text after the other.
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    cache: Cache,
}

impl Encoder<'_> {
    /// Appends the ids of a text, the same as those of [`Tokenizer::encode`].
    pub fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        let fast = self.tokenizer.byte_level.as_ref();
        let outcome = fast.map(|fast| fast.encode(text, &mut self.cache, ids, usize::MAX));
        if outcome != Some(FastOutcome::Encoded) {
            ids.extend(self.tokenizer.encode_whole(text, false)?);
        }
        Ok(())
    }
}

pub(crate) const TOKENIZER_FILE: &str = "tokenizer.json";
/// The configuration next to a tokenizer.
const CONFIG_FILE: &str = "tokenizer_config.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";
/// Where the processors of transformers keep theirs.
const PROCESSOR_TEMPLATE_FILE: &str = "chat_template.json";
const TOOL_TEMPLATE_FILE: &str = "additional_chat_templates/tool_use.jinja";

fn processor_template(text: &str) -> Result<String, DataError> {
    let bad = |reason: &str| DataError::BadTokenizer {
        reason: format!("its {PROCESSOR_TEMPLATE_FILE} {reason}"),
        place: Source::new(PROCESSOR_TEMPLATE_FILE, text).whole(),
    };
    let document: Value = serde_json::from_str(text).map_err(|_| bad("is not JSON"))?;
    document["chat_template"].as_str().map(str::to_owned).ok_or_else(|| bad("has no `chat_template`"))
}

/// One of several templates that a configuration lists by name.
fn named_template<'a>(listed: &'a Value, name: &str) -> Option<&'a str> {
    listed.as_array()?.iter().find(|entry| entry["name"] == name)?["template"].as_str()
}

fn read_beside(path: &Path, name: &str) -> Result<Option<String>, DataError> {
    let beside = path.with_file_name(name);
    if beside.exists() { disk::read_text(&beside).map(Some) } else { Ok(None) }
}

/// Ids below `own` must be ids of the model too.
pub(crate) fn check_fits(own: u32, vocabulary: u32) -> Result<(), DataError> {
    match own <= vocabulary {
        true => Ok(()),
        false => Err(DataError::Vocabulary { highest: own - 1, vocabulary }),
    }
}

/// What stands before and after a text that is encoded with its marks.
fn marks_of(inner: &tokenizers::Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let encode = |is_marked| inner.encode_fast("a", is_marked).ok().map(|encoded| encoded.get_ids().to_vec());
    let (plain, marked) = (encode(false)?, encode(true)?);
    let before = marked.windows(plain.len().max(1)).position(|window| window == plain)?;
    Some((marked[..before].to_vec(), marked[before + plain.len()..].to_vec()))
}

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

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::{CorpusKind, generate};

    /// A tokenizer trained here, and variants with the splitters and rules of other families.
    static TOKENIZERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
        let texts: Vec<String> = (0..200).map(|number| generate(CorpusKind::Mixture, 2, number)).collect();
        let options = TrainingOptions { vocabulary: 900, ..TrainingOptions::default() };
        let own = train_tokenizer(texts.iter().map(String::as_str), &options).unwrap();
        let mut documents = vec![own.json().to_owned()];
        documents.push(own.json().replace(r"\\p{N}|", r"\\p{N}{1,3}|"));
        documents.push(own.json().replace(r#""ignore_merges": false"#, r#""ignore_merges": true"#));
        let mut cut: Value = serde_json::from_str(own.json()).unwrap();
        cut["truncation"] = serde_json::json!({ "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0 });
        cut["padding"] = serde_json::json!({ "strategy": { "Fixed": 64 }, "direction": "Right", "pad_to_multiple_of": null,
                                             "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>" });
        documents.push(cut.to_string());
        documents.push(own.json().replace(r#""normalizer": null"#, r#""normalizer": {"type": "NFC"}"#));
        let mut gpt2: Value = serde_json::from_str(own.json()).unwrap();
        gpt2["pre_tokenizer"] =
            serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true });
        documents.push(gpt2.to_string());
        documents.iter().map(|document| Tokenizer::parse(document, None, "test").unwrap()).collect()
    });

    #[test]
    fn the_variants_differ_and_all_have_a_fast_way() {
        assert!(TOKENIZERS.iter().all(|tokenizer| tokenizer.byte_level.is_some()));
        let digests: std::collections::BTreeSet<Digest> = TOKENIZERS.iter().map(Tokenizer::digest).collect();
        assert_eq!(digests.len(), TOKENIZERS.len());
    }

    /// A word that is too long for the fast encoder, so that both are asked.
    #[test]
    fn truncation_and_padding_of_a_file_are_ignored() {
        let long = format!("the garden {}", "x".repeat(200));
        let expected = TOKENIZERS[0].encode(&long).unwrap();
        let cut = TOKENIZERS.iter().find(|tokenizer| tokenizer.json().contains("max_length")).unwrap();
        assert!(expected.len() > 64);
        assert_eq!(cut.encode(&long).unwrap(), expected);
        assert_eq!(cut.encode("the garden").unwrap(), TOKENIZERS[0].encode("the garden").unwrap());
    }

    #[test]
    fn a_prompt_is_counted_before_all_of_it_is_encoded() {
        for tokenizer in TOKENIZERS.iter() {
            let text = "the garden <|im_end|> is green ".repeat(20);
            let all = tokenizer.encode(&text).unwrap();
            let within = |most| tokenizer.encode_within(&text, true, most).unwrap();
            assert_eq!((within(all.len()), within(all.len() - 1)), (Some(all.clone()), None));
            // Would take minutes where a word's merges took the square of its length, and gigabytes where all were encoded.
            let long = "x".repeat(8 << 20);
            assert_eq!(tokenizer.encode_within(&long, true, 4096).unwrap(), None);
        }
    }

    /// A tokenizer as Llama 2's, without merges: every character that is not in the vocabulary is bytes.
    fn sentence_pieces(normalizer: Value) -> Result<Tokenizer, DataError> {
        let mut ids: serde_json::Map<String, Value> =
            (0..256).map(|byte| (format!("<0x{byte:02X}>"), byte.into())).collect();
        ids.insert("<s>".into(), 256.into());
        ids.insert("▁".into(), 257.into());
        let begin = serde_json::json!({ "id": 256, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
                                        "rstrip": false, "normalized": false });
        let marks = serde_json::json!({ "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [], "special_tokens": { "<s>": { "id": "<s>", "ids": [256], "tokens": ["<s>"] } } });
        let document = serde_json::json!({ "version": "1.0", "added_tokens": [begin], "normalizer": normalizer,
            "pre_tokenizer": null, "post_processor": marks, "decoder": null,
            "model": { "type": "BPE", "byte_fallback": true, "vocab": ids, "merges": [] } });
        Tokenizer::parse(&document.to_string(), None, "test")
    }

    #[test]
    fn marks_count_and_long_texts_are_refused_by_their_bytes() {
        let spaces = serde_json::json!({ "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" }, { "type": "Replace", "pattern": { "String": " " }, "content": "▁" } ] });
        let tokenizer = sentence_pieces(spaces).unwrap();
        let ids = tokenizer.encode_within("a b", true, 5).unwrap().unwrap();
        assert_eq!(ids, [256, 257, 97, 257, 98]);
        assert_eq!(tokenizer.encode_within("a b", true, 4).unwrap(), None);
        assert!(tokenizer.bytes_per_token.is_some());
        assert_eq!(tokenizer.encode_within(&"a".repeat(16 << 20), true, 4096).unwrap(), None);
    }

    #[test]
    fn templates_are_found_where_transformers_keeps_them() {
        let own = &TOKENIZERS[0];
        let config = serde_json::json!({ "chat_template": [{ "name": "default", "template": "plain" },
                                                           { "name": "tool_use", "template": "with tools" }] });
        let tokenizer = Tokenizer::parse(own.json(), Some(&config.to_string()), "test").unwrap();
        let render = |tokenizer: &Tokenizer, tools: Option<&[Value]>| {
            let messages = [crate::Message::new("user", "hi")];
            let conversation =
                crate::Conversation { messages: &messages, tools, asks: true, variables: Default::default() };
            crate::ChatTemplate::of(tokenizer).unwrap().render_conversation(&conversation).unwrap()
        };
        assert_eq!(
            [render(&tokenizer, None), render(&tokenizer, Some(&[Value::Null]))],
            ["plain", "with tools"]
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TOKENIZER_FILE);
        own.save(folder.path()).unwrap();
        std::fs::write(folder.path().join(PROCESSOR_TEMPLATE_FILE), r#"{"chat_template": "of a processor"}"#)
            .unwrap();
        assert_eq!(render(&Tokenizer::load(&path).unwrap(), None), "of a processor");
        std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
        std::fs::write(folder.path().join(TOOL_TEMPLATE_FILE), "of tools").unwrap();
        let loaded = Tokenizer::load(&path).unwrap();
        assert_eq!(render(&loaded, Some(&[Value::Null])), "of tools");
        std::fs::write(folder.path().join(PROCESSOR_TEMPLATE_FILE), "{}").unwrap();
        assert!(Tokenizer::load(&path).is_err());
    }

    #[test]
    fn normalizers_that_grow_are_refused() {
        let replace = |pattern: Value, content: String| serde_json::json!({ "type": "Replace", "pattern": pattern, "content": content });
        let letter = serde_json::json!({ "String": "a" });
        let twice = |part: Value| serde_json::json!({ "type": "Sequence", "normalizers": vec![part; 20] });
        for normalizer in [
            replace(letter.clone(), "b".repeat(100_000)),
            replace(serde_json::json!({ "Regex": "" }), "b".repeat(1000)),
            twice(replace(letter.clone(), "aa".into())),
            serde_json::json!({ "type": "Prepend", "prepend": "a".repeat(100_000) }),
        ] {
            let error = sentence_pieces(normalizer).unwrap_err().to_string();
            assert!(error.contains("times as long"), "{error}");
        }
        assert!(sentence_pieces(twice(replace(letter, "b".into()))).is_ok());
    }

    #[test]
    fn a_tokenizer_is_read_from_regular_files_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(Tokenizer::load(&path), Err(DataError::Read { .. })));
        std::fs::remove_file(&path).unwrap();
        TOKENIZERS[0].save(folder.path()).unwrap();
        assert!(Tokenizer::load(&path).is_ok());
        std::os::unix::fs::symlink("/dev/zero", folder.path().join("chat_template.jinja")).unwrap();
        assert!(matches!(Tokenizer::load(&path), Err(DataError::Read { .. })));
    }

    proptest! {
        #[test]
        fn the_fast_way_gives_the_ids_of_the_general_one(
            text in r"(the |The lamp|garden|is in | [a-z]{1,9}|[0-9]{1,4}|'s|<\|im_end\|>|[ \n]{1,3}|\PC|e\u{301}|x{150}){0,20}",
            number in 0u64..1000,
        ) {
            for tokenizer in TOKENIZERS.iter() {
                let mut encoder = tokenizer.encoder();
                for text in [text.clone(), generate(CorpusKind::Mixture, 9, number), format!("{text}{text}")] {
                    let mut ids = Vec::new();
                    encoder.encode(&text, &mut ids).unwrap();
                    prop_assert_eq!(ids, tokenizer.encode_whole(&text, false).unwrap());
                }
            }
        }
    }
}
