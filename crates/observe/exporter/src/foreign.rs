//! Metrics of other programs, in the text format of Prometheus: read, labelled with their job and rank, and passed on.
//!
//! One line that Prometheus refuses makes it refuse the whole scrape, and with it everything that the node says about itself. So
//! nothing is passed on that was not understood, and nothing under a name that is ours.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use bedplate_record::Exposition;

use crate::metrics;

/// Lines of one program that are passed on; a program with more is cut off.
const MOST_LINES: usize = 20_000;
/// A longer line is none of a metric that anybody reads.
const LONGEST_LINE: usize = 16 << 10;
/// How Prometheus calls a label of a program that has a name of the scraper's own.
const MOVED: &str = "exported_";

/// What the series of a metric are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
    #[default]
    Untyped,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Counter, Kind::Gauge, Kind::Histogram, Kind::Summary, Kind::Untyped];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
            Kind::Untyped => "untyped",
        }
    }

    /// What may stand behind the name of a metric in the names of its series.
    const fn endings(self) -> &'static [&'static str] {
        match self {
            Kind::Counter | Kind::Gauge | Kind::Untyped => &[""],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
            Kind::Summary => &["", "_sum", "_count"],
        }
    }
}

/// A metric with the lines of all its series.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricFamily {
    kind: Kind,
    help: String,
    samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Sample {
    name: String,
    /// Without braces.
    labels: String,
    /// As it was written.
    value: String,
}

/// Metrics by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Families(BTreeMap<String, MetricFamily>);

impl Families {
    /// Reads a text and adds `labels` to every series. Lines that are not in the format are skipped, and so is what has a name of
    /// this exporter's own; of two lines for one series the first counts.
    pub fn read(text: &str, labels: &str) -> Self {
        let added = pairs(labels).unwrap_or_default();
        let mut families = Families::default();
        let mut seen = BTreeSet::new();
        let lines = || text.lines().take(MOST_LINES).filter(|line| is_plain(line));
        // What a name stands for is known before its series, wherever it is said.
        for (name, what) in lines().filter_map(comment) {
            families.describe(name, what);
        }
        for (name, own, value) in lines().filter_map(sample).filter(|(name, ..)| !is_ours(name)) {
            let labels = labelled(&own, &added);
            if seen.insert((name, labels.clone())) {
                families.add(name, &own, labels, value);
            }
        }
        families.0.retain(|name, family| !family.samples.is_empty() && !is_ours(name));
        families
    }

    /// What is said first about a metric counts.
    fn describe(&mut self, name: &str, what: Comment<'_>) {
        let family = self.0.entry(name.to_owned()).or_default();
        match what {
            Comment::Kind(kind) if family.kind == Kind::Untyped => family.kind = kind,
            Comment::Help(help) if family.help.is_empty() => family.help = one_line(help),
            Comment::Kind(_) | Comment::Help(_) => {}
        }
    }

    fn add(&mut self, name: &str, own: &[(&str, &str)], labels: String, value: &str) {
        let (family, ending) = self.family_of(name);
        let family = self.0.entry(family.to_owned()).or_default();
        let bound = |key: &str| own.iter().find(|(known, _)| *known == key).map(|(_, text)| *text);
        let is_legal = match (family.kind, ending) {
            (Kind::Histogram, "_bucket") => bound("le").is_some_and(|le| number(le).is_some()),
            (Kind::Summary, "") => bound("quantile").is_some_and(|part| number(part).is_some()),
            (kind, ending) => kind.endings().contains(&ending),
        };
        if is_legal {
            family.samples.push(Sample { name: name.to_owned(), labels, value: value.to_owned() });
        }
    }

    /// The metric that a series belongs to, and what the series' name has behind the metric's.
    fn family_of<'a>(&self, name: &'a str) -> (&'a str, &'a str) {
        let is_described = self.0.get(name).is_some_and(|family| family.kind != Kind::Untyped);
        let part = |ending: &str| {
            let base = name.strip_suffix(ending)?;
            let kind = self.0.get(base)?.kind;
            kind.endings().contains(&ending).then(|| name.split_at(base.len()))
        };
        let of_another = ["_bucket", "_sum", "_count"].into_iter().find_map(part);
        of_another.filter(|_| !is_described).unwrap_or((name, ""))
    }

    /// Adds what another program offers. A metric that is something else there, and a series that is known, are left out.
    pub fn merge(&mut self, other: Families) {
        for (name, family) in other.0 {
            match self.0.get_mut(&name) {
                None => drop(self.0.insert(name, family)),
                Some(known) if known.kind == family.kind => known.merge(family),
                Some(_) => {}
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many series there are.
    pub fn len(&self) -> usize {
        self.0.values().map(|family| family.samples.len()).sum()
    }

    pub fn write(&self, text: &mut Exposition) {
        for (name, family) in &self.0 {
            text.head(name, family.kind.name(), &family.help);
            for Sample { name, labels, value } in &family.samples {
                match labels.is_empty() {
                    true => text.raw(&format!("{name} {value}\n")),
                    false => text.raw(&format!("{name}{{{labels}}} {value}\n")),
                }
            }
        }
    }
}

impl MetricFamily {
    fn merge(&mut self, other: MetricFamily) {
        if self.help.is_empty() {
            self.help = other.help;
        }
        let known: BTreeSet<(&str, &str)> = self.samples.iter().map(Sample::series).collect();
        let new = |sample: &Sample| !known.contains(&sample.series());
        let new: Vec<Sample> = other.samples.into_iter().filter(new).collect();
        self.samples.extend(new);
    }
}

impl Sample {
    fn series(&self) -> (&str, &str) {
        (&self.name, &self.labels)
    }
}

/// Whether the exporter itself writes a metric of this name: what a rank says under it would pass for the node's.
fn is_ours(name: &str) -> bool {
    static OURS: LazyLock<BTreeSet<&str>> =
        LazyLock::new(|| metrics::all().map(|metric| metric.name).collect());
    OURS.contains(name)
}

/// A line of sensible length without control characters.
fn is_plain(line: &str) -> bool {
    line.len() <= LONGEST_LINE && !line.chars().any(|each| each.is_control() && each != '\t')
}

/// Labels with their values as they are escaped.
type Pairs<'a> = Vec<(&'a str, &'a str)>;

enum Comment<'a> {
    Kind(Kind),
    Help(&'a str),
}

fn comment(line: &str) -> Option<(&str, Comment<'_>)> {
    let rest = line.strip_prefix("# ")?;
    let (keyword, rest) = rest.split_once(' ')?;
    let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
    match keyword {
        _ if !is_name(name) => None,
        "TYPE" => Some((name, Comment::Kind(Kind::named(text.trim())?))),
        "HELP" => Some((name, Comment::Help(text))),
        _ => None,
    }
}

/// An explanation in which every backslash means something.
fn one_line(help: &str) -> String {
    let mut text = String::with_capacity(help.len());
    let mut rest = help.trim().chars().peekable();
    while let Some(character) = rest.next() {
        text.push(character);
        if character == '\\' {
            text.push(rest.next_if(|next| ['\\', 'n'].contains(next)).unwrap_or('\\'));
        }
    }
    text
}

/// Name, labels and value of a line; a timestamp at its end is left out.
fn sample(line: &str) -> Option<(&str, Pairs<'_>, &str)> {
    let name_end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => {
            let end = closing_brace(inner)?;
            (&inner[..end], &inner[end + 1..])
        }
        None => ("", rest),
    };
    let value = number(rest.split_whitespace().next()?)?;
    is_name(name).then_some(())?;
    Some((name, pairs(labels)?, value))
}

/// A number as Prometheus reads it too: out of range and in other spellings it refuses them.
fn number(text: &str) -> Option<&str> {
    match text {
        "NaN" | "+Inf" | "-Inf" => Some(text),
        "Inf" => Some("+Inf"),
        _ => {
            let is_digits = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
            let value: f64 = text.parse().ok().filter(|_| is_digits)?;
            value.is_finite().then_some(text)
        }
    }
}

/// Where the labels end: at the first brace that is not within quotation marks.
fn closing_brace(text: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '}' if !is_quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// `key="value"` pairs with values as they are escaped; nothing where a key is there twice or may not be a label.
fn pairs(text: &str) -> Option<Pairs<'_>> {
    let mut found = Pairs::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"")?;
        let (key, end) = (key.trim(), closing_quote(after)?);
        let is_label = is_name(key) && !key.contains(':') && key != "__name__";
        if !is_label || found.iter().any(|(known, _)| *known == key) {
            return None;
        }
        found.push((key, &after[..end]));
        rest = after[end + 1..].trim_start();
        match rest.strip_prefix(',') {
            Some(more) => rest = more.trim_start(),
            None if rest.is_empty() => {}
            None => return None,
        }
    }
    Some(found)
}

/// A program's labels and ours behind them; one of the same name steps aside, as in Prometheus.
fn labelled(own: &[(&str, &str)], added: &[(&str, &str)]) -> String {
    let is_taken = |key: &str| own.iter().chain(added).any(|(known, _)| *known == key);
    let mut written: Vec<String> = Vec::with_capacity(own.len() + added.len());
    for (key, value) in own {
        let mut key = (*key).to_owned();
        if added.iter().any(|(ours, _)| *ours == key) {
            while is_taken(&key) {
                key.insert_str(0, MOVED);
            }
        }
        written.push(format!("{key}=\"{value}\""));
    }
    written.extend(added.iter().map(|(key, value)| format!("{key}=\"{value}\"")));
    written.join(",")
}

/// Where a value ends; nothing where something is escaped that cannot be.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            '\\' | '"' | 'n' if is_escaped => is_escaped = false,
            _ if is_escaped => return None,
            '\\' => is_escaped = true,
            '"' => return Some(at),
            _ => {}
        }
    }
    None
}

fn is_name(name: &str) -> bool {
    let is_in_name = |character: char| character.is_ascii_alphanumeric() || "_:".contains(character);
    !name.is_empty()
        && name.chars().all(is_in_name)
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

#[cfg(test)]
mod tests;
