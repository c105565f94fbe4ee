//! The table of what is recognised, read from TOML, and the search for all of it at once.
//!
//! Every entry names short texts of which its lines have one (`contains`). One automaton looks for all of them, so a log
//! costs one pass, and a pattern is tried only on lines that may match it.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use bedplate_diag::Source;
use bedplate_document::Table;
use regex::bytes::{Regex, RegexBuilder};

use crate::format::{LineReading, Slot};
use crate::log::PhaseKind;
use crate::origin::labels;
use crate::pairs::Notation;
use crate::{Field, Format, FormatKind, LogsError, Role, Signature, Where, plain};

const FORMATS: &str = include_str!("../../../../data/logs/formats.toml");
const SIGNATURES: &str = include_str!("../../../../data/logs/signatures.toml");

/// A number as programs print it, for `{number}` in patterns.
const NUMBER: &str = r"(?:[-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?[KMBGT]?|nan|NaN|-?inf|N/A)";
/// No entry of a table has a longer pattern, and no compiled one takes more memory.
const LONGEST_PATTERN: usize = 4000;
const LARGEST_PATTERN: usize = 4 << 20;
const MOST_ENTRIES: usize = 2000;

/// What a failure may be said to be; `unknown` is of lines that follow from failures of any class.
const CLASSES: [&str; 6] = ["hardware", "network", "storage", "application", "out-of-memory", "unknown"];

/// A line of a phase.
#[derive(Debug, Clone)]
pub(crate) struct Phase {
    pub(crate) kind: PhaseKind,
    pub(crate) pattern: Option<Regex>,
}

/// What a line may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Candidate {
    Format(usize),
    Phase(usize),
    Signature(usize),
}

/// What one line is.
#[derive(Debug, Clone, PartialEq)]
pub enum Recognized {
    /// By the name of its format.
    Step {
        format: usize,
        step: Option<u64>,
        seconds: Option<f64>,
        elapsed: Option<f64>,
        values: Vec<(Field, f64)>,
    },
    Phase(PhaseKind),
    /// By its number among the signatures.
    Signature(usize),
}

/// What an entry made of its own sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    pub entry: String,
    pub line: String,
    pub read: Recognized,
}

/// All formats, phases and signatures, ready to be searched for.
#[derive(Debug, Clone)]
pub struct Recognizer {
    formats: Vec<Format>,
    phases: Vec<Phase>,
    signatures: Vec<Signature>,
    literals: AhoCorasick,
    /// What each literal may mean.
    meanings: Vec<Vec<Candidate>>,
    /// Entries without literals are tried on every line.
    unbound: Vec<Candidate>,
}

impl Recognizer {
    pub fn built_in() -> Self {
        Self::read(&[]).expect("the built-in tables are right: a test reads them")
    }

    /// The built-in tables with a user's own before them; what has the name of a built-in entry replaces it.
    pub fn with_own(sources: &[Source<'_>]) -> Result<Self, LogsError> {
        Self::read(sources)
    }

    fn read(own: &[Source<'_>]) -> Result<Self, LogsError> {
        let mut draft = Draft::default();
        let built_in = [Source::new("formats.toml", FORMATS), Source::new("signatures.toml", SIGNATURES)];
        for source in own.iter().chain(&built_in) {
            draft.read(*source)?;
        }
        draft.finish()
    }

    pub fn formats(&self) -> &[Format] {
        &self.formats
    }

    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// What the samples of a user's table give, one after the other.
    pub fn try_samples(&self, source: Source<'_>) -> Result<Vec<Trial>, LogsError> {
        let file = Table::parse(source)?;
        let mut trials = Vec::new();
        for key in ["format", "phase", "signature"] {
            for entry in file.tables(key)? {
                let name: String = entry.or("name", key.to_owned())?;
                for line in sample_lines(&entry)? {
                    let read = self.recognize(line.as_bytes()).into_iter().next();
                    let place = entry.place_of("samples");
                    let why = || "no entry of the table recognises it".to_owned();
                    let read =
                        read.ok_or_else(|| LogsError::Sample { name: name.clone(), why: why(), place })?;
                    trials.push(Trial { entry: name.clone(), line, read });
                }
            }
        }
        Ok(trials)
    }

    /// Everything that one whole line is.
    pub fn recognize(&self, line: &[u8]) -> Vec<Recognized> {
        let line = plain(line);
        let text = labels(&line).text;
        let mut found: Vec<Recognized> = Vec::new();
        for candidate in self.candidates(text) {
            let is_known = found.iter().any(|known| matches!(known, Recognized::Signature(_)));
            if is_known && self.is_rule(candidate) {
                continue;
            }
            found.extend(match candidate {
                Candidate::Format(format) => {
                    self.formats[format].read(text).map(|reading| recognized(format, reading))
                }
                Candidate::Phase(phase) => self.phase(phase, text).map(Recognized::Phase),
                Candidate::Signature(signature) => self.signatures[signature]
                    .pattern
                    .is_match(text)
                    .then_some(Recognized::Signature(signature)),
            });
        }
        found
    }

    /// Whether a candidate is for lines that no signature before it matches.
    pub(crate) fn is_rule(&self, candidate: Candidate) -> bool {
        matches!(candidate, Candidate::Signature(signature) if self.signatures[signature].is_rule)
    }

    /// What a line may be, formats first, each once; signatures in the order of their tables.
    pub(crate) fn candidates(&self, line: &[u8]) -> Vec<Candidate> {
        let mut found = self.unbound.clone();
        for hit in self.literals.find_overlapping_iter(line) {
            found.extend(&self.meanings[hit.pattern().as_usize()]);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The next position at which some literal ends.
    pub(crate) fn next_literal(&self, text: &[u8]) -> Option<usize> {
        self.literals.find(text).map(|hit| hit.start())
    }

    pub(crate) fn reads_every_line(&self) -> bool {
        !self.unbound.is_empty()
    }

    pub(crate) fn phase(&self, phase: usize, text: &[u8]) -> Option<PhaseKind> {
        let phase = &self.phases[phase];
        phase.pattern.as_ref().is_none_or(|pattern| pattern.is_match(text)).then_some(phase.kind)
    }
}

fn recognized(format: usize, reading: LineReading) -> Recognized {
    let LineReading { step, seconds, elapsed, values, .. } = reading;
    Recognized::Step { format, step, seconds, elapsed, values }
}

/// Tables while they are read.
#[derive(Default)]
struct Draft {
    formats: Vec<Format>,
    phases: Vec<Phase>,
    signatures: Vec<Signature>,
    /// Literals in small letters, with what they may mean.
    literals: BTreeMap<String, Vec<Candidate>>,
    unbound: Vec<Candidate>,
}

impl Draft {
    fn read(&mut self, source: Source<'_>) -> Result<(), LogsError> {
        let file = Table::parse(source)?;
        for table in entries(&file, "format")? {
            self.format(&table)?;
        }
        for table in entries(&file, "phase")? {
            self.phase(&table)?;
        }
        for table in entries(&file, "signature")? {
            self.signature(&table)?;
        }
        Ok(file.finish()?)
    }

    fn format(&mut self, table: &Table) -> Result<(), LogsError> {
        let name: String = table.required("name")?;
        let table = table.clone().titled(format!("format `{name}`"));
        let (format, candidate) = (format(&table, &name)?, Candidate::Format(self.formats.len()));
        let literals = self.contains(&table, &name)?;
        if self.formats.iter().all(|known| known.name != name) {
            check_samples(&table, &format, &literals)?;
            self.formats.push(format);
            self.bind(literals, candidate);
        }
        Ok(table.finish()?)
    }

    fn phase(&mut self, table: &Table) -> Result<(), LogsError> {
        let kind = table.choice("kind", &PhaseKind::ALL)?;
        let table = table.clone().titled(format!("phase `{kind}`"));
        let candidate = Candidate::Phase(self.phases.len());
        let literals = self.contains(&table, kind.name())?;
        let pattern = match table.optional::<String>("pattern")? {
            Some(text) => Some(compile(&text, &table, kind.name())?),
            None => None,
        };
        table.allow("samples");
        self.phases.push(Phase { kind, pattern });
        self.bind(literals, candidate);
        Ok(table.finish()?)
    }

    fn signature(&mut self, table: &Table) -> Result<(), LogsError> {
        let name: String = table.required("name")?;
        let table = table.clone().titled(format!("signature `{name}`"));
        let candidate = Candidate::Signature(self.signatures.len());
        let literals = self.contains(&table, &name)?;
        let classes = CLASSES.map(|class| (class, class));
        let signature = Signature {
            wherever: match table.has("where") {
                true => table.choice("where", &Where::ALL)?,
                false => Where::Program,
            },
            class: table.choice("class", &classes)?.to_owned(),
            role: table.choice("role", &Role::ALL)?,
            prior: table.or("prior", 0.5)?,
            culprit: table.or("culprit", String::new())?,
            remedy: table.or("remedy", String::new())?,
            is_rule: table.or("rule", false)?,
            source: table.or("source", String::new())?,
            pattern: compile(&table.required::<String>("pattern")?, &table, &name)?,
            name,
        };
        if !(0.0..=1.0).contains(&signature.prior) {
            return Err(table.bad_value("prior", "a probability is between 0 and 1").into());
        }
        for line in sample_lines(&table)? {
            let is_found = signature.pattern.is_match(line.as_bytes()) && has_literal(&literals, &line);
            if !is_found {
                let why = "the pattern or `contains` is not in it".to_owned();
                return Err(LogsError::Sample {
                    name: signature.name,
                    why,
                    place: table.place_of("samples"),
                });
            }
        }
        if self.signatures.iter().all(|known| known.name != signature.name) {
            self.signatures.push(signature);
            self.bind(literals, candidate);
        }
        Ok(table.finish()?)
    }

    /// The texts of which an entry's lines have one.
    fn contains(&self, table: &Table, name: &str) -> Result<Vec<String>, LogsError> {
        let entries = self.formats.len() + self.phases.len() + self.signatures.len();
        if entries > MOST_ENTRIES {
            return Err(table
                .bad_value("name", format!("`{name}` is one of more than {MOST_ENTRIES} entries"))
                .into());
        }
        let literals: Vec<String> = table.or("contains", Vec::new())?;
        if literals.iter().any(|literal| literal.len() < 3 || literal.len() > 200) {
            let reason = "each text has 3 to 200 letters, so that few other lines have it";
            return Err(table.bad_value("contains", reason).into());
        }
        Ok(literals)
    }

    fn bind(&mut self, literals: Vec<String>, candidate: Candidate) {
        if literals.is_empty() {
            self.unbound.push(candidate);
        }
        for literal in literals {
            self.literals.entry(literal.to_ascii_lowercase()).or_default().push(candidate);
        }
    }

    fn finish(self) -> Result<Recognizer, LogsError> {
        let Draft { formats, phases, signatures, literals, unbound } = self;
        let (literals, meanings): (Vec<_>, Vec<_>) = literals.into_iter().unzip();
        let literals = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::DFA))
            .build(&literals)
            .expect("some hundred short texts are far below the automaton's limits");
        Ok(Recognizer { formats, phases, signatures, literals, meanings, unbound })
    }
}

fn entries(file: &Table, key: &str) -> Result<Vec<Table>, LogsError> {
    Ok(file.tables(key)?.into_iter().map(|table| table.titled(key)).collect())
}

const NOTATIONS: [(&str, Notation); 4] = [
    ("json", Notation::Json),
    ("python", Notation::Python),
    ("pairs", Notation::Pairs),
    ("bars", Notation::Bars),
];

fn format(table: &Table, name: &str) -> Result<Format, LogsError> {
    let pattern = compile(&table.required::<String>("pattern")?, table, name)?;
    let mut groups = Vec::new();
    for (at, group) in pattern.capture_names().enumerate().skip(1) {
        let Some(group) = group else { continue };
        let slot = Slot::find(group).ok_or_else(|| {
            let known = Field::ALL.map(|(_, name)| name).join(", ");
            table.bad_value("pattern", format!("the group `{group}` has no meaning; groups are step, total, rank, seconds, ms, per_second, time with unit, duration, elapsed, elapsed_seconds, elapsed_hours, values, {known}"))
        })?;
        groups.push((at, slot));
    }
    let notation = match table.has("values") {
        true => Some(table.choice("values", &NOTATIONS)?),
        false => None,
    };
    if notation.is_none() && groups.iter().any(|(_, slot)| *slot == Slot::Values) {
        return Err(table
            .bad_value("pattern", "with a group `values`, the key `values` says json, python, pairs or bars")
            .into());
    }
    Ok(Format {
        name: name.to_owned(),
        title: table.or("title", name.to_owned())?,
        kind: match table.has("kind") {
            true => table
                .choice("kind", &[("training", FormatKind::Training), ("serving", FormatKind::Serving)])?,
            false => FormatKind::Training,
        },
        printed_by: table.or("printed_by", String::new())?,
        is_companion: table.or("companion", false)?,
        unless: match table.optional::<String>("unless")? {
            Some(text) => Some(compile(&text, table, name)?),
            None => None,
        },
        keys: keys(table)?,
        pattern,
        groups,
        notation,
    })
}

/// `keys = { seconds = ["timing_s/step", "perf/time_per_step"], loss = ["loss"] }`
fn keys(table: &Table) -> Result<Vec<(Slot, Vec<String>)>, LogsError> {
    let Some(keys) = table.table("keys")? else { return Ok(Vec::new()) };
    let names: Vec<String> = keys.keys().map(str::to_owned).collect();
    let mut found = Vec::new();
    for name in names {
        let slot = Slot::find(&name)
            .ok_or_else(|| keys.bad_value(&name, "this name has no meaning; see docs/watch.md"))?;
        found.push((slot, keys.required(&name)?));
    }
    keys.finish()?;
    Ok(found)
}

fn compile(text: &str, table: &Table, name: &str) -> Result<Regex, LogsError> {
    let pattern =
        |why: String| LogsError::Pattern { name: name.to_owned(), why, place: table.place_of("pattern") };
    if text.len() > LONGEST_PATTERN {
        return Err(pattern(format!("it is longer than {LONGEST_PATTERN} letters")));
    }
    let text = text.replace("{number}", NUMBER);
    let mut builder = RegexBuilder::new(&text);
    builder.unicode(false).size_limit(LARGEST_PATTERN).dfa_size_limit(LARGEST_PATTERN);
    builder.build().map_err(|error| {
        // The crate draws the pattern with a mark below; its last line says why.
        let text = error.to_string();
        pattern(text.lines().last().unwrap_or("").trim().trim_start_matches("error: ").to_owned())
    })
}

/// The samples of an entry: lines, or tables with a line and what is read from it.
fn sample_lines(table: &Table) -> Result<Vec<String>, LogsError> {
    Ok(samples(table)?.into_iter().map(|(line, _)| line).collect())
}

fn samples(table: &Table) -> Result<Vec<(String, Option<Table>)>, LogsError> {
    let texts: Result<Vec<String>, _> = table.or("samples", Vec::new());
    if let Ok(texts) = texts {
        return Ok(texts.into_iter().map(|line| (line, None)).collect());
    }
    let mut found = Vec::new();
    for sample in table.tables("samples")? {
        found.push((sample.required("line")?, Some(sample)));
    }
    Ok(found)
}

fn has_literal(literals: &[String], line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    literals.is_empty() || literals.iter().any(|literal| line.contains(&literal.to_ascii_lowercase()))
}

/// Every format reads its samples, and reads from them what they say.
fn check_samples(table: &Table, format: &Format, literals: &[String]) -> Result<(), LogsError> {
    for (line, expected) in samples(table)? {
        let complain = |why: String| LogsError::Sample {
            name: format.name.clone(),
            why,
            place: table.place_of("samples"),
        };
        let plain = plain(line.as_bytes());
        let reading = format
            .read(labels(&plain).text)
            .ok_or_else(|| complain("the pattern does not match".to_owned()))?;
        if !has_literal(literals, &line) {
            return Err(complain("no text of `contains` is in it".to_owned()));
        }
        let Some(expected) = expected else { continue };
        let names: Vec<String> = expected.keys().filter(|key| *key != "line").map(str::to_owned).collect();
        for name in names {
            let wanted: f64 = expected.required(&name)?;
            let read = reading.named(&name);
            let is_right = read.is_some_and(|read| (read - wanted).abs() <= 1e-6 * wanted.abs().max(1e-6));
            if !is_right {
                let read = read.map_or("nothing".to_owned(), |read| read.to_string());
                return Err(complain(format!("{name} is {wanted}, and {read} is read")));
            }
        }
        expected.finish()?;
    }
    Ok(())
}

impl LineReading {
    fn named(&self, name: &str) -> Option<f64> {
        match name {
            "step" => self.step.map(|step| step as f64),
            "total" => self.total.map(|total| total as f64),
            "rank" => self.rank.map(f64::from),
            "seconds" => self.seconds,
            "elapsed" => self.elapsed,
            name => {
                let field = Field::find(name)?;
                self.values.iter().find(|(known, _)| *known == field).map(|(_, value)| *value)
            }
        }
    }
}
