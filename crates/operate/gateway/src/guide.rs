//! Answers in a language: JSON schemas, regular expressions, grammars and choices, enforced token by token by llguidance.
//!
//! A language is compiled before its request has a slot, and bounded: texts that are large or deeply nested are refused before they reach
//! the parser, the parser has limits of its own for every step, and a compilation ends when it takes long or its client has gone.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bedplate_data::Tokenizer;
use bedplate_host::panics::message;
use bedplate_serve::{About, Grammar, Parser};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, panic_utils};
use serde_json::Value;

use crate::presence::Presence;

/// The largest text of a schema or grammar, in bytes.
const MOST_BYTES: usize = 256 << 10;
/// The deepest nesting of brackets in a regular expression or grammar.
const DEEPEST: usize = 128;
const MOST_CHOICES: usize = 4096;
/// White space between parts of JSON: a space, or a new line with an indent. A model that has nothing to say would write it without end.
const WHITE_SPACE: &str = r"( |\n[ \t]{0,64})";
/// Compiling recurses as deep as the text is nested.
const STACK: usize = 64 << 20;
/// States of a lexer, of one to two kilobytes each.
const MOST_STATES: usize = 50_000;
/// How long a compilation may take.
const LONGEST: Duration = Duration::from_secs(10);
const MOST_COMPILING: usize = 16;
/// Languages that are kept, compiled, for the next request.
const MOST_KNOWN: usize = 32;
/// What is said of a compilation that nobody wants any more.
const GIVEN_UP: &str = "it was given up";
/// Tokens without a choice that are followed to see whether they lead anywhere.
const MOST_FORCED: usize = 256;

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Language {
    /// A value of a JSON schema.
    Schema(Value),
    /// The same with at most one space between its parts: nobody reads it but a program.
    Calls(Value),
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
            Language::Schema(schema) | Language::Calls(schema) => (schema.to_string().len(), 0),
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
            Language::Schema(schema) => {
                TopLevelGrammar::from_json_schema(with_white_space(schema, WHITE_SPACE))
            }
            Language::Calls(schema) => TopLevelGrammar::from_json_schema(with_white_space(schema, " ")),
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
fn with_white_space(mut schema: Value, white_space: &str) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.insert("x-guidance".into(), serde_json::json!({ "whitespace_pattern": white_space }));
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
pub(crate) struct Guide {
    factory: Arc<ParserFactory>,
    known: Mutex<VecDeque<(Language, Compiled)>>,
    /// Compilations under way, those included that are just being given up.
    compiling: Arc<()>,
}

type Compiled = Result<Arc<dyn Grammar>, String>;

/// Why there is no grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unguided {
    /// The language cannot be followed.
    Refused(String),
    /// Too many others are being compiled.
    Busy,
    /// Its client has gone.
    Abandoned,
}

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
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MOST_STATES;
        Ok(Self { factory: Arc::new(factory), known: Mutex::default(), compiling: Arc::new(()) })
    }

    /// Compiles a language, or says what is wrong with it. What was compiled lately is known.
    pub(crate) fn compile(
        &self,
        language: Language,
        client: &Presence,
    ) -> Result<Arc<dyn Grammar>, Unguided> {
        language.check().map_err(Unguided::Refused)?;
        if let Some(compiled) = self.recall(&language) {
            return compiled.map_err(Unguided::Refused);
        }
        if Arc::strong_count(&self.compiling) > MOST_COMPILING {
            return Err(Unguided::Busy);
        }
        let (sender, compiled) = mpsc::channel();
        let (factory, counted, wanted) = (self.factory.clone(), self.compiling.clone(), language.clone());
        // Of this compilation alone: it ends with its client or its time.
        let wanting = Presence::default();
        let (of_thread, of_client, gone) = (wanting.clone(), wanting.clone(), sender.clone());
        client.when_gone(move || {
            of_client.end();
            let _ = gone.send(None);
        });
        let compile = move || {
            let _counted = counted;
            // Nobody may wait any more.
            let _ = sender.send(Some(compile(&factory, wanted, &of_thread)));
        };
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
        thread.spawn(compile).map_err(|_| Unguided::Busy)?;
        let compiled = match compiled.recv_timeout(LONGEST) {
            Ok(Some(compiled)) => compiled,
            Ok(None) => return Err(Unguided::Abandoned),
            Err(_) => {
                wanting.end();
                Err(format!("compiling it takes more than {} s", LONGEST.as_secs()))
            }
        };
        self.remember(language, compiled.clone());
        compiled.map_err(Unguided::Refused)
    }

    fn known(&self) -> MutexGuard<'_, VecDeque<(Language, Compiled)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recall(&self, language: &Language) -> Option<Compiled> {
        let mut known = self.known();
        let at = known.iter().position(|(known, _)| known == language)?;
        let found = known.remove(at)?;
        let compiled = found.1.clone();
        known.push_back(found);
        Some(compiled)
    }

    fn remember(&self, language: Language, compiled: Compiled) {
        let mut known = self.known();
        known.push_back((language, compiled));
        if known.len() > MOST_KNOWN {
            known.pop_front();
        }
    }
}

/// Recurses as deep as the text is nested.
fn compile(factory: &ParserFactory, language: Language, wanting: &Presence) -> Compiled {
    if wanting.has_gone() {
        return Err(GIVEN_UP.to_owned());
    }
    let made = || Ok(Matcher::new(factory.create_parser(language.into_grammar())));
    let matcher = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(made));
    let matcher = matcher.map_err(|error| one_line(&error.to_string()))?;
    if let Some(error) = matcher.get_error() {
        return Err(one_line(&error));
    }
    // On a copy: what the answer begins with is not decided here.
    let followed = || follow_forced(matcher.deep_clone().into_cancellable(), wanting);
    let followed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(followed));
    followed.unwrap_or_else(|panic| Err(format!("a bug in its compiler: {}", message(panic.as_ref()))))?;
    Ok(Arc::new(Guided(Mutex::new(matcher))))
}

/// Follows a language as long as it leaves no choice. An error where it is too costly, or nothing is in it.
fn follow_forced(mut matcher: Matcher, wanting: &Presence) -> Result<(), String> {
    if let Some(handle) = matcher.cancellation_handle() {
        wanting.when_gone(move || handle.cancel());
    }
    for _ in 0..MOST_FORCED {
        let mask = matcher.compute_mask_or_eos().map_err(|error| one_line(&error.to_string()))?;
        let mut allowed = mask.iter();
        let Some(token) = allowed.next() else {
            return Err("nothing is in it, or what is cannot be written".into());
        };
        if allowed.next().is_some() || matcher.is_accepting().unwrap_or(false) {
            return Ok(());
        }
        matcher.consume_token(token).map_err(|error| one_line(&error.to_string()))?;
        if matcher.is_stopped() {
            return Ok(());
        }
    }
    Ok(())
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
    use bedplate_testkit::{Mutator, wait_until};
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
        let grammar =
            Guide::new(&tokenizer, &about).unwrap().compile(language, &Presence::default()).unwrap();
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
        assert!(takes(Language::Calls(json!({ "type": "array" })), "[1, {\"a\": 2}]"));
        assert!(!takes(Language::Calls(json!({ "type": "array" })), "[\n1]"));
        assert!(takes(Language::any_object(), r#"{"a": [1, {"b": null}]}"#));
        assert!(takes(Language::Regex("a{2,3}[0-9]".into()), "aaa7"));
        assert!(!takes(Language::Regex("a{2,3}[0-9]".into()), "a7"));
        assert!(takes(Language::Choice(vec!["yes".into(), "no \"way\"\n".into()]), "no \"way\"\n"));
        assert!(!takes(Language::Choice(vec!["yes".into(), "no".into()]), "maybe"));
        assert!(takes(Language::Lark("start: \"a\" (\"b\" | start)".into()), "aaab"));
    }

    #[test]
    fn a_language_is_compiled_once() {
        let (tokenizer, about) = fixture();
        let guide = Guide::new(&tokenizer, &about).unwrap();
        let compile = |text: &str| guide.compile(Language::Regex(text.into()), &Presence::default());
        let first = compile("a+").unwrap();
        assert!(Arc::ptr_eq(&first, &compile("a+").unwrap()));
        assert_eq!(compile("(").unwrap_err(), compile("(").unwrap_err());
        for number in 0..MOST_KNOWN {
            compile(&format!("b{{{number},40}}")).unwrap();
        }
        assert!(!Arc::ptr_eq(&first, &compile("a+").unwrap()), "the oldest are forgotten");
        assert_eq!(guide.known().len(), MOST_KNOWN);
    }

    #[test]
    fn no_more_are_compiled_than_the_machine_can_bear() {
        let (tokenizer, about) = fixture();
        let guide = Guide::new(&tokenizer, &about).unwrap();
        let others = vec![guide.compiling.clone(); MOST_COMPILING];
        let compile = || guide.compile(Language::Regex("a+".into()), &Presence::default());
        assert_eq!(compile().unwrap_err(), Unguided::Busy);
        drop(others);
        assert!(compile().is_ok());
    }

    #[test]
    fn a_compilation_ends_with_its_client() {
        let (tokenizer, about) = fixture();
        let guide = Guide::new(&tokenizer, &about).unwrap();
        let client = Presence::default();
        client.end();
        let language = || Language::Regex("((a{1000}){1000}){1000}".into());
        assert_eq!(guide.compile(language(), &client).unwrap_err(), Unguided::Abandoned);
        wait_until("its thread ends", || Arc::strong_count(&guide.compiling) == 1);
        assert!(guide.known().is_empty(), "an outcome that is none is not kept");
        // Nothing is followed for who has gone.
        assert_eq!(compile(&guide.factory, language(), &client).err().as_deref(), Some(GIVEN_UP));
        let forced = guide.factory.create_parser(Language::Regex("a{200}".into()).into_grammar());
        let forced = Matcher::new(forced).into_cancellable();
        assert!(follow_forced(forced.deep_clone().into_cancellable(), &Presence::default()).is_ok());
        assert!(follow_forced(forced, &client).unwrap_err().contains("cancelled"));
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
            Language::Regex("[^\\s\\S]".into()),
            Language::Lark("start: \"a\" /[^\\s\\S]/".into()),
            Language::Schema(json!(false)),
            Language::Schema(json!({ "allOf": [{ "type": "string" }, { "type": "number" }] })),
            Language::Schema(json!({ "type": "object", "properties": { "a": false }, "required": ["a"] })),
        ] {
            let shown: String = format!("{language:?}").chars().take(80).collect();
            assert!(guide.compile(language, &Presence::default()).is_err(), "{shown}");
        }
        // Large, but languages: they must end in time, whatever they say.
        let endless = json!({ "properties": { "a": { "$ref": "#" } }, "required": ["a"] });
        for language in [
            Language::Regex("((a{1000}){1000}){1000}".into()),
            Language::Schema(nested),
            Language::Schema(endless),
        ] {
            let _ = guide.compile(language, &Presence::default());
        }
    }

    /// `BEDPLATE_FUZZ_GRAMMARS=100000` compiles as many.
    #[test]
    fn broken_languages_are_refused_in_time_and_break_nothing() {
        const SEEDS: [&str; 6] = [
            "(a|b)+[0-9]{2,3}(x(y|z)*)?",
            "start: item (\",\" item)*\nitem: /[a-z]+/ | \"(\" start \")\"\n",
            "start: \"a\" (\"b\" | start){1,40}\n%ignore /[ \\t]+/\n",
            r##"{"type":"object","required":["a"],"properties":{"a":{"enum":[1,"b",null]},"c":{"$ref":"#/$defs/d"}},"$defs":{"d":{"type":"array","items":{"type":"integer"},"maxItems":9}}}"##,
            r#"{"anyOf":[{"type":"string","pattern":"^a+$","maxLength":90},{"type":"number","minimum":-3,"multipleOf":0.5}]}"#,
            "[^\\x00-\\x1f]{0,300}",
        ];
        let (tokenizer, about) = fixture();
        let guide = Guide::new(&tokenizer, &about).unwrap();
        let rounds = std::env::var("BEDPLATE_FUZZ_GRAMMARS").ok().and_then(|count| count.parse().ok());
        let mut mutator = Mutator::new(0x5eed);
        let (mut compiled, mut refused) = (0, 0);
        for round in 0..rounds.unwrap_or(150_usize) {
            let text = mutator.mutate(SEEDS[round % SEEDS.len()].as_bytes());
            let text = String::from_utf8_lossy(&text).into_owned();
            let language = match (round % SEEDS.len(), serde_json::from_str(&text)) {
                (3 | 4, Ok(schema)) => Language::Schema(schema),
                (1 | 2, _) => Language::Lark(text.clone()),
                _ => Language::Regex(text.clone()),
            };
            match guide.compile(language, &Presence::default()) {
                Ok(_) => compiled += 1,
                Err(Unguided::Refused(why)) => {
                    assert!(
                        !why.contains("bug in its compiler") && !why.contains("takes more"),
                        "{why} of {text}"
                    );
                    refused += 1;
                }
                Err(other) => panic!("{other:?} of {text}"),
            }
        }
        assert!(compiled > 0 && refused > 0, "{compiled} compiled, {refused} refused");
    }
}
