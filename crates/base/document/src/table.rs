//! A table of a document: typed values by key, and the refusal of unknown keys.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use bedplate_diag::{Place, Source, nearest};
use toml::de::DeTable;

use crate::value::{Entry, Located, entries, json_entries};
use crate::{DocumentError, Misfit, Readable, Value};

/// No handwritten document is larger, and parsing one takes fifty times its size in memory.
const LARGEST: usize = 32 << 20;

/// One file, shared by all values read from it so that each can report its place.
#[derive(Debug)]
struct Origin {
    name: String,
    /// None where the parser reports no positions.
    text: Option<String>,
}

impl Origin {
    fn place(&self, span: &Range<usize>) -> Place {
        match &self.text {
            Some(text) => Source::new(&self.name, text).place(span.start),
            None => Source::new(&self.name, "").whole(),
        }
    }
}

#[derive(Debug, Clone)]
struct Field {
    origin: Rc<Origin>,
    key: Range<usize>,
    located: Located,
}

impl Field {
    fn place(&self) -> Place {
        self.origin.place(&self.located.span)
    }
}

/// A TOML table. Reading a key marks it as known; [`finish`](Table::finish) complains about the others.
#[derive(Debug, Clone)]
pub struct Table {
    /// What errors call this table: `accelerator "h100"`.
    title: String,
    origin: Rc<Origin>,
    span: Range<usize>,
    fields: BTreeMap<String, Field>,
    known: RefCell<BTreeSet<String>>,
}

impl Table {
    /// Parses a whole document. Only the syntax is checked here.
    pub fn parse(source: Source<'_>) -> Result<Self, DocumentError> {
        check_size(source)?;
        let table = DeTable::parse(source.text).map_err(|error| DocumentError::Syntax {
            format: "TOML",
            reason: error.message().trim().replace('\n', ", "),
            place: error.span().map_or_else(|| source.whole(), |span| source.place(span.start)),
        })?;
        let origin = Rc::new(Origin { name: source.name.to_owned(), text: Some(source.text.to_owned()) });
        Ok(Self::from_entries("the file", &origin, 0..0, entries(table.into_inner())))
    }

    /// Parses a JSON object with the same keys. Places inside it are known only for faulty syntax.
    pub fn parse_json(source: Source<'_>) -> Result<Self, DocumentError> {
        check_size(source)?;
        let object = serde_json::from_str(source.text).map_err(|error| DocumentError::Syntax {
            format: "JSON",
            reason: error.to_string(),
            place: source.place_at(error.line(), error.column()),
        })?;
        let origin = Rc::new(Origin { name: source.name.to_owned(), text: None });
        Ok(Self::from_entries("the file", &origin, 0..0, json_entries(object)))
    }

    fn from_entries(title: &str, origin: &Rc<Origin>, span: Range<usize>, entries: Vec<Entry>) -> Self {
        let field = |entry: Entry| {
            (entry.key, Field { origin: Rc::clone(origin), key: entry.key_span, located: entry.located })
        };
        Self {
            title: title.to_owned(),
            origin: Rc::clone(origin),
            span,
            fields: entries.into_iter().map(field).collect(),
            known: RefCell::default(),
        }
    }

    /// Sets the name that errors use for the table.
    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    pub fn title(&self) -> &str {
        &self.title
    }

    /// All keys, in alphabetical order, without marking them as known.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }

    pub fn has(&self, key: &str) -> bool {
        self.present(key).is_some()
    }

    fn present(&self, key: &str) -> Option<&Field> {
        self.fields.get(key).filter(|field| field.located.value != Value::Nothing)
    }

    /// Where the table begins.
    pub fn place(&self) -> Place {
        self.origin.place(&self.span)
    }

    /// The place of the value of `key`, or of the table itself when it has no such key.
    pub fn place_of(&self, key: &str) -> Place {
        self.fields.get(key).map_or_else(|| self.place(), Field::place)
    }

    /// The value of a key that must be there.
    pub fn required<T: Readable>(&self, key: &str) -> Result<T, DocumentError> {
        self.optional(key)?.ok_or_else(|| self.missing(key, T::EXPECTED))
    }

    fn missing(&self, key: &str, expected: &'static str) -> DocumentError {
        let known = self.known.borrow();
        let strangers = || self.fields.keys().map(String::as_str).filter(|field| !known.contains(*field));
        // Other keys may be read later, so only a likely typo counts as this key misspelt.
        let misspelt =
            nearest(key, strangers()).filter(|near| !near.starts_with(key) && !key.starts_with(*near));
        let place = misspelt.and_then(|near| self.fields.get(near));
        DocumentError::MissingKey {
            table: self.title.clone(),
            key: key.to_owned(),
            expected,
            misspelt: misspelt.map(str::to_owned),
            place: place.map_or_else(|| self.place(), |field| field.origin.place(&field.key)),
        }
    }

    /// The value of a key that may be there.
    pub fn optional<T: Readable>(&self, key: &str) -> Result<Option<T>, DocumentError> {
        self.mark(key);
        let Some(field) = self.present(key) else { return Ok(None) };
        T::read(&field.located.value).map(Some).map_err(|misfit| match misfit {
            Misfit::Type => self.wrong_type(key, field, T::EXPECTED),
            Misfit::Value(reason) => self.bad_value(key, reason),
        })
    }

    /// The value of a key, or the default where it is absent.
    pub fn or<T: Readable>(&self, key: &str, default: T) -> Result<T, DocumentError> {
        Ok(self.optional(key)?.unwrap_or(default))
    }

    /// One of a few named choices.
    pub fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<T, DocumentError> {
        let text: String = self.required(key)?;
        if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text) {
            return Ok(*value);
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let hint = match nearest(&text, names.iter().copied()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("the choices are {}", names.join(", ")),
        };
        Err(self.bad_value(key, format!("`{text}` is unknown; {hint}")))
    }

    /// The tables of `[[key]]`; none where the key is absent. Inline tables in a list count too.
    pub fn tables(&self, key: &str) -> Result<Vec<Table>, DocumentError> {
        self.mark(key);
        let Some(field) = self.present(key) else { return Ok(Vec::new()) };
        let expected = "a list of tables";
        let Value::List(items) = &field.located.value else {
            return Err(self.wrong_type(key, field, expected));
        };
        items
            .iter()
            .map(|item| self.sub_table(key, field, item).ok_or_else(|| self.wrong_type(key, field, expected)))
            .collect()
    }

    /// The table `[key]`, where there is one.
    pub fn table(&self, key: &str) -> Result<Option<Table>, DocumentError> {
        self.mark(key);
        let Some(field) = self.present(key) else { return Ok(None) };
        match self.sub_table(key, field, &field.located) {
            Some(table) => Ok(Some(table)),
            None => Err(self.wrong_type(key, field, "a table")),
        }
    }

    fn sub_table(&self, key: &str, field: &Field, located: &Located) -> Option<Table> {
        let Value::Table(entries) = &located.value else { return None };
        Some(Self::from_entries(key, &field.origin, located.span.clone(), entries.clone()))
    }

    /// Whether a key has been read from this table.
    pub fn knows(&self, key: &str) -> bool {
        self.known.borrow().contains(key)
    }

    /// Marks a key as known without reading it.
    pub fn allow(&self, key: &str) {
        self.mark(key);
    }

    /// Lays `over` on top of this table: its values win, key by key, and keep their places.
    pub fn overlay(mut self, over: Table) -> Self {
        self.origin = over.origin;
        self.span = over.span;
        self.fields.extend(over.fields);
        self
    }

    /// An error about the value of `key`, at its place.
    pub fn bad_value(&self, key: &str, reason: impl Into<String>) -> DocumentError {
        DocumentError::BadValue {
            table: self.title.clone(),
            key: key.to_owned(),
            reason: reason.into(),
            place: self.place_of(key),
        }
    }

    /// Refuses keys that were never read. Call it last.
    pub fn finish(&self) -> Result<(), DocumentError> {
        let known = self.known.borrow();
        match self.fields.iter().find(|(key, _)| !known.contains(*key)) {
            None => Ok(()),
            Some((key, field)) => Err(DocumentError::UnknownKey {
                table: self.title.clone(),
                key: key.clone(),
                known: known.iter().cloned().collect(),
                place: field.origin.place(&field.key),
            }),
        }
    }

    fn mark(&self, key: &str) {
        self.known.borrow_mut().insert(key.to_owned());
    }

    fn wrong_type(&self, key: &str, field: &Field, expected: &'static str) -> DocumentError {
        DocumentError::WrongType {
            table: self.title.clone(),
            key: key.to_owned(),
            expected,
            found: field.located.value.type_name(),
            place: field.place(),
        }
    }
}

fn check_size(source: Source<'_>) -> Result<(), DocumentError> {
    let bytes = source.text.len();
    if bytes > LARGEST { Err(DocumentError::TooLarge { bytes, place: source.whole() }) } else { Ok(()) }
}
