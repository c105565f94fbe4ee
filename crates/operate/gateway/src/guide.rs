//! Answers in a language: JSON schemas, regular expressions, grammars and choices, enforced token by token by llguidance.
//!
//! A language is compiled once for a request and bounded: texts that are large or deeply nested are refused before they reach the
//! parser, and the parser has limits of its own for every step.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bedplate_data::Tokenizer;
use bedplate_host::panics::message;
use bedplate_serve::{About, Grammar, Parser};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, panic_utils};
use serde_json::Value;

/// The largest text of a schema or grammar, in bytes.
const MOST_BYTES: usize = 256 << 10;
/// The deepest nesting of brackets in a regular expression or grammar.
const DEEPEST: usize = 128;
const MOST_CHOICES: usize = 4096;
/// White space between parts of JSON: a space, or a new line with an indent. A model that has nothing to say would write it without end.
const WHITE_SPACE: &str = r"( |\n[ \t]{0,64})";
/// Compiling recurses as deep as the text is nested.
const STACK: usize = 64 << 20;

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Language {
    /// A value of a JSON schema.
    Schema(Value),
    Regex(String),
    /// A grammar in Lark's notation.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

impl Language {
    /// Any JSON object.
    pub(crate) fn any_object() -> Self {
        Language::Schema(serde_json::json!({ "type": "object" }))
    }

    fn check(&self) -> Result<(), String> {
        let (bytes, depth) = match self {
            Language::Schema(schema) => (schema.to_string().len(), 0),
            Language::Regex(text) | Language::Lark(text) => (text.len(), nesting(text)),
            Language::Choice(texts) if texts.is_empty() => {
                return Err("there is nothing to choose from".into());
            }
            Language::Choice(texts) if texts.len() > MOST_CHOICES => {
                return Err(format!("{} choices are more than {MOST_CHOICES}", texts.len()));
            }
            Language::Choice(texts) => (texts.iter().map(String::len).sum(), 0),
        };
        match (bytes, depth) {
            (bytes, _) if bytes > MOST_BYTES => Err(format!("it has {bytes} bytes, more than {MOST_BYTES}")),
            (_, depth) if depth > DEEPEST => Err(format!("it is nested {depth} deep, more than {DEEPEST}")),
            _ => Ok(()),
        }
    }

    fn into_grammar(self) -> TopLevelGrammar {
        match self {
            Language::Schema(schema) => TopLevelGrammar::from_json_schema(with_white_space(schema)),
            Language::Regex(text) => TopLevelGrammar::from_regex(&text),
            Language::Lark(text) => TopLevelGrammar::from_lark(text),
            Language::Choice(texts) => {
                let quoted: Vec<String> =
                    texts.into_iter().map(|text| Value::String(text).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", quoted.join(" | ")))
            }
        }
    }
}

/// The schema with llguidance's own key for its options.
fn with_white_space(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.insert("x-guidance".into(), serde_json::json!({ "whitespace_pattern": WHITE_SPACE }));
    }
    schema
}

/// How deep brackets are nested at most, whatever they mean.
fn nesting(text: &str) -> usize {
    let mut depth = 0_usize;
    let deepest = text.bytes().map(|byte| {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth
    });
    deepest.max().unwrap_or(0)
}

/// Compiles languages for the tokens of one model.
pub(crate) struct Guide(ParserFactory);

impl Guide {
    /// Takes a moment for a large vocabulary.
    pub(crate) fn new(tokenizer: &Tokenizer, about: &About) -> Result<Self, String> {
        let vocabulary = about.vocabulary.max(tokenizer.vocabulary());
        let words: Vec<Vec<u8>> = (0..vocabulary).map(|id| word(tokenizer, id)).collect();
        let ends: Vec<u32> = about.end_tokens.iter().copied().filter(|id| *id < vocabulary).collect();
        let ends = if ends.is_empty() { vec![tokenizer.end().unwrap_or(0)] } else { ends };
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary, ends[0]), &words).with_eos_tokens(&ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self(factory))
    }

    /// Compiles a language, or says what is wrong with it.
    pub(crate) fn compile(&self, language: Language) -> Result<Arc<dyn Grammar>, String> {
        language.check()?;
        let compile = || {
            let made = || Ok(Matcher::new(self.0.create_parser(language.into_grammar())));
            let matcher = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(made));
            let mut matcher = matcher.map_err(|error| one_line(&error.to_string()))?;
            match matcher.get_error() {
                Some(error) => Err(one_line(&error)),
                // The first mask finds languages that are too costly before a sequence has a slot.
                None => matcher
                    .compute_mask_or_eos()
                    .map(|_| matcher)
                    .map_err(|error| one_line(&error.to_string())),
            }
        };
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, compile).map_err(|error| error.to_string())?;
            thread
                .join()
                .unwrap_or_else(|panic| Err(format!("a bug in its compiler: {}", message(panic.as_ref()))))
        });
        Ok(Arc::new(Guided(Mutex::new(compiled?))))
    }
}

/// The bytes of a token in a text; special tokens are marked, so that no text spells them.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let mut bytes = tokenizer.token_bytes(id);
    if tokenizer.is_special(id) {
        bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
    }
    bytes
}

/// The beginning of a message, which may quote a whole grammar.
fn one_line(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    line.chars().take(300).collect()
}

/// A compiled language.
struct Guided(Mutex<Matcher>);

impl fmt::Debug for Guided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guided")
    }
}

impl Grammar for Guided {
    fn parser(&self) -> Box<dyn Parser> {
        Box::new(Following(self.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()))
    }
}

/// Follows one sample.
struct Following(Matcher);

impl Parser for Following {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
        let allowed = self.0.compute_mask_or_eos().map_err(|error| one_line(&error.to_string()))?;
        for (word, bits) in mask.iter_mut().zip(allowed.as_slice()) {
            *word = *bits;
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if self.0.is_stopped() && !self.0.is_error() {
            return Ok(());
        }
        self.0.consume_token(token).map_err(|error| one_line(&error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use bedplate_data::{TrainingOptions, train_tokenizer};
    use serde_json::json;

    use super::*;

    fn fixture() -> (Tokenizer, About) {
        let options = TrainingOptions { vocabulary: 300, ..TrainingOptions::default() };
        let tokenizer = train_tokenizer(["{\"name\": \"Ada\", \"age\": 36}"; 3], &options).unwrap();
        let about = About {
            context_limit: 100,
            // Models round their vocabularies up.
            vocabulary: 320,
            end_tokens: vec![tokenizer.end().unwrap()],
            adapters: Vec::new(),
            hidden: 4,
            blocks: 10,
            block_tokens: 16,
        };
        (tokenizer, about)
    }

    /// Whether a text can be sampled token by token and the end after it.
    fn takes(language: Language, text: &str) -> bool {
        let (tokenizer, about) = fixture();
        let grammar = Guide::new(&tokenizer, &about).unwrap().compile(language).unwrap();
        let mut parser = grammar.parser();
        let mut is_allowed = |token: u32| {
            let mut mask = [0; 10];
            parser.allow(&mut mask).unwrap();
            let is_set = mask[token as usize / 32] >> (token % 32) & 1 == 1;
            is_set && parser.accept(token).is_ok()
        };
        let tokens = tokenizer.encode(text).unwrap();
        tokens.iter().all(|token| is_allowed(*token)) && is_allowed(about.end_tokens[0])
    }

    #[test]
    fn only_the_language_can_be_sampled() {
        let person = || {
            Language::Schema(
                json!({ "type": "object", "required": ["name", "age"], "additionalProperties": false,
                                     "properties": { "name": { "type": "string" }, "age": { "$ref": "#/$defs/age" } },
                                     "$defs": { "age": { "type": "integer" } } }),
            )
        };
        assert!(takes(person(), r#"{"name": "Ada", "age": 36}"#));
        assert!(!takes(person(), r#"{"name": "Ada"}"#));
        assert!(!takes(person(), "Ada"));
        assert!(takes(person(), "{\n  \"name\": \"Ada\",\n  \"age\": 36\n}"));
        assert!(takes(person(), "{\"name\":\"Ada\",\"age\":36}"));
        assert!(!takes(person(), "{  \"name\": \"Ada\", \"age\": 36}"), "white space has an end");
        assert!(takes(Language::any_object(), r#"{"a": [1, {"b": null}]}"#));
        assert!(takes(Language::Regex("a{2,3}[0-9]".into()), "aaa7"));
        assert!(!takes(Language::Regex("a{2,3}[0-9]".into()), "a7"));
        assert!(takes(Language::Choice(vec!["yes".into(), "no \"way\"\n".into()]), "no \"way\"\n"));
        assert!(!takes(Language::Choice(vec!["yes".into(), "no".into()]), "maybe"));
        assert!(takes(Language::Lark("start: \"a\" (\"b\" | start)".into()), "aaab"));
    }

    #[test]
    fn hostile_languages_are_refused() {
        let (tokenizer, about) = fixture();
        let guide = Guide::new(&tokenizer, &about).unwrap();
        let nested =
            (0..100).fold(json!(true), |inner, _| json!({ "type": "array", "items": inner, "minItems": 9 }));
        for language in [
            Language::Regex("(".into()),
            Language::Regex("(".repeat(100_000)),
            Language::Regex("(?=a)b".into()),
            Language::Lark("start: nothing".into()),
            Language::Lark("start: start".into()),
            Language::Lark("start: (".repeat(30_000)),
            Language::Lark(String::new()),
            Language::Choice(Vec::new()),
            Language::Schema(json!({ "type": "nonsense" })),
            Language::Schema(json!({ "$ref": "http://example.com/schema" })),
            Language::Schema(json!({ "$ref": "#/nowhere" })),
            Language::Schema(json!({ "type": "string", "pattern": "(" })),
            Language::Schema(json!({ "type": "string", "minLength": 5, "maxLength": 1 })),
            Language::Schema(json!({ "enum": vec!["x".repeat(200_000); 3] })),
        ] {
            let shown: String = format!("{language:?}").chars().take(80).collect();
            assert!(guide.compile(language).is_err(), "{shown}");
        }
        // Large, but languages: they must end in time, whatever they say.
        let _ = guide.compile(Language::Regex("((a{1000}){1000}){1000}".into()));
        let _ = guide.compile(Language::Schema(nested));
        let _ = guide
            .compile(Language::Schema(json!({ "properties": { "a": { "$ref": "#" } }, "required": ["a"] })));
    }
}
