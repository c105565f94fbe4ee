//! A log taken in by pieces of any size.
//!
//! Only lines with a known text are looked at; the others cost one pass of an automaton. What is kept is bounded: the
//! newest steps, the first errors of each kind.

use std::collections::{HashMap, VecDeque};
use std::sync::OnceLock;

use regex::bytes::Regex;

use crate::lines::{LONGEST_LINE, line_around};
use crate::log::{Log, PhaseMark, Sign, StepLine};
use crate::origin::{Labelled, Origin, labels};
use crate::recognizer::Candidate;
use crate::settings;
use crate::{FormatKind, Recognizer, Stamp, plain};

/// Steps that are kept; a run of years prints fewer.
const MOST_STEPS: usize = 1 << 20;
/// Lines of one signature that are kept, and of all.
const MOST_OF_A_KIND: u64 = 400;
const MOST_SIGNS: usize = 20_000;
const MOST_PHASES: usize = 200_000;
const MOST_ORIGINS: usize = 100_000;
const LONGEST_TEXT: usize = 400;
const LONGEST_PART: usize = 4000;
/// The end of a log is kept for people.
const TAIL_LINES: usize = 12;
const TAIL_BYTES: usize = 16 << 10;
/// The year of times without one, until somebody says better.
const DEFAULT_YEAR: u64 = 1970;

pub struct LogReader<'a> {
    recognizer: &'a Recognizer,
    log: Log,
    /// The beginning of a line whose end has not come.
    pending: Vec<u8>,
    /// What the file's name says of its writer.
    file: Origin,
    origins: HashMap<Origin, usize>,
    /// How often each signature was seen, and all of them.
    seen: Vec<u64>,
    signs_seen: u64,
    tail: VecDeque<u8>,
    zeros: u64,
    year: u64,
}

impl<'a> LogReader<'a> {
    pub fn new(recognizer: &'a Recognizer) -> Self {
        Self {
            recognizer,
            log: Log::default(),
            pending: Vec::new(),
            file: Origin::default(),
            origins: HashMap::new(),
            seen: vec![0; recognizer.signatures().len()],
            signs_seen: 0,
            tail: VecDeque::new(),
            zeros: 0,
            year: DEFAULT_YEAR,
        }
    }

    /// Says who wrote lines without labels.
    pub fn of(mut self, origin: Origin) -> Self {
        self.file = origin;
        self
    }

    /// The year of times that have none.
    pub fn in_year(mut self, year: u64) -> Self {
        self.year = year;
        self
    }

    /// Takes the next piece of the log.
    pub fn feed(&mut self, piece: &[u8]) {
        self.log.bytes += piece.len() as u64;
        let Some(end) = memchr::memrchr2(b'\n', b'\r', piece).map(|at| at + 1) else {
            self.keep(piece);
            return;
        };
        let (whole, rest) = piece.split_at(end);
        if self.pending.is_empty() {
            self.take(whole);
        } else {
            // The first line is in two pieces; the others are taken where they lie.
            let first = memchr::memchr2(b'\n', b'\r', whole).map_or(whole.len(), |at| at + 1);
            let mut line = std::mem::take(&mut self.pending);
            line.extend_from_slice(&whole[..first]);
            self.take(&line);
            line.clear();
            self.pending = line;
            self.take(&whole[first..]);
        }
        self.keep(rest);
    }

    fn keep(&mut self, rest: &[u8]) {
        self.pending.extend_from_slice(rest);
        if self.pending.len() > LONGEST_LINE {
            let line = std::mem::take(&mut self.pending);
            self.take(&line);
        }
    }

    /// The log as far as it was read; more may be fed.
    pub fn so_far(&self) -> &Log {
        &self.log
    }

    /// What was recognised since the last time this was asked, with its places counted from there.
    pub(crate) fn drain(&mut self) -> Log {
        Log {
            steps: std::mem::take(&mut self.log.steps),
            phases: std::mem::take(&mut self.log.phases),
            signs: std::mem::take(&mut self.log.signs),
            ..Log::default()
        }
    }

    /// Which writer a line's number stands for.
    pub(crate) fn origin_of(&self, origin: usize) -> Origin {
        self.log.origins.get(origin).cloned().unwrap_or_default()
    }

    /// How many lines of a signature were seen, kept or not.
    pub fn seen(&self, signature: usize) -> u64 {
        self.seen[signature]
    }

    pub fn finish(mut self) -> Log {
        let rest = std::mem::take(&mut self.pending);
        if !rest.is_empty() {
            self.take(&rest);
            self.log.lines += 1;
        }
        self.log.is_binary = self.zeros * 10 > self.log.bytes && self.log.bytes > 0;
        let tail: Vec<u8> = self.tail.into_iter().collect();
        let lines =
            tail.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.trim_ascii().is_empty());
        let lines: Vec<&[u8]> = lines.collect();
        for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
            let line = plain(line);
            let stamp = Stamp::find(labels(&line).text, self.year).or_else(|| Stamp::find(&line, self.year));
            self.log.last_stamp = stamp.or(self.log.last_stamp);
            self.log.tail.push(shortened(&line));
        }
        self.log
    }

    /// Takes whole lines.
    fn take(&mut self, text: &[u8]) {
        self.remember_tail(text);
        self.take_settings(text);
        self.zeros += memchr::memchr_iter(0, text).count() as u64;
        let first_line = self.log.lines + 1;
        let mut counted = (0, 0);
        let mut at = 0;
        while at < text.len() {
            let hit = match self.recognizer.reads_every_line() {
                true => Some(0),
                false => self.recognizer.next_literal(&text[at..]),
            };
            let Some(hit) = hit else { break };
            let (start, end) = line_around(text, at + hit, at);
            // Lines are counted up to here once, not once for each line.
            counted = (start, counted.1 + newlines(&text[counted.0..start]));
            let next = text.get(end + 1..).unwrap_or(&[]);
            let next = &next[..memchr::memchr2(b'\n', b'\r', next).unwrap_or(next.len())];
            self.line(&text[start..end], next, first_line + counted.1);
            at = end + 1;
        }
        self.log.lines += counted.1 + newlines(&text[counted.0..]);
    }

    fn take_settings(&mut self, text: &[u8]) {
        if self.log.bytes > settings::LOOKED_AT + text.len() as u64 {
            return;
        }
        for line in text.split(|byte| *byte == b'\n').filter(|line| line.len() < 400) {
            let line = plain(line);
            if self.log.settings.len() < settings::MOST_SETTINGS
                && let Some((name, value)) = settings::of_line(labels(&line).text)
            {
                // What is printed first is what it started with.
                self.log.settings.entry(name).or_insert(value);
            }
        }
    }

    fn remember_tail(&mut self, text: &[u8]) {
        let newest = &text[text.len().saturating_sub(TAIL_BYTES)..];
        self.tail.extend(newest);
        let excess = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
    }

    /// Looks at one line; `next` is the line behind it, in which a line that was wrapped goes on.
    fn line(&mut self, line: &[u8], next: &[u8], number: u64) {
        let line = plain(&line[..line.len().min(LONGEST_LINE)]);
        let labelled = labels(&line);
        let candidates = self.recognizer.candidates(labelled.text);
        let is_known = self.try_all(&candidates, &line, &labelled, labelled.text, number);
        if is_known || candidates.is_empty() || next.is_empty() || labels(next).origin != Origin::default() {
            return;
        }
        let joined = [labelled.text, &plain(next)].concat();
        self.try_all(&candidates, &line, &labelled, &joined, number);
    }

    /// Takes everything that a line is; rules of signatures only where no other signature knows the line.
    fn try_all(
        &mut self,
        candidates: &[Candidate],
        line: &[u8],
        labelled: &Labelled<'_>,
        text: &[u8],
        number: u64,
    ) -> bool {
        let before = self.signs_seen;
        let mut is_known = false;
        for candidate in candidates {
            if self.signs_seen == before || !self.recognizer.is_rule(*candidate) {
                is_known |= self.try_candidate(*candidate, line, labelled, text, number);
            }
        }
        is_known
    }

    fn try_candidate(
        &mut self,
        candidate: Candidate,
        line: &[u8],
        labelled: &Labelled<'_>,
        text: &[u8],
        number: u64,
    ) -> bool {
        match candidate {
            Candidate::Format(format) => self.step(format, line, labelled, text, number),
            Candidate::Phase(phase) => {
                let Some(kind) = self.recognizer.phase(phase, text) else { return false };
                if self.log.phases.len() < MOST_PHASES {
                    let mark = PhaseMark {
                        kind,
                        origin: self.origin(labelled, None),
                        stamp: self.stamp(line, labelled),
                        line: number,
                        after_steps: self.log.steps.len(),
                    };
                    self.log.phases.push(mark);
                }
                true
            }
            Candidate::Signature(signature) => self.sign(signature, line, labelled, text, number),
        }
    }

    fn step(
        &mut self,
        format: usize,
        line: &[u8],
        labelled: &Labelled<'_>,
        text: &[u8],
        number: u64,
    ) -> bool {
        let Some(reading) = self.recognizer.formats()[format].read(text) else { return false };
        if self.log.steps.len() == MOST_STEPS {
            self.log.steps.drain(..MOST_STEPS / 2);
            self.log.dropped += (MOST_STEPS / 2) as u64;
        }
        let counted = match self.recognizer.formats()[format].kind {
            FormatKind::Serving => Some(number),
            FormatKind::Training => None,
        };
        let step = StepLine {
            format,
            origin: self.origin(labelled, reading.rank),
            step: reading.step.or(counted).unwrap_or(0),
            total: reading.total,
            seconds: reading.seconds,
            elapsed: reading.elapsed,
            stamp: self.stamp(line, labelled),
            values: reading.values,
            line: number,
        };
        self.log.steps.push(step);
        true
    }

    fn sign(
        &mut self,
        signature: usize,
        line: &[u8],
        labelled: &Labelled<'_>,
        text: &[u8],
        number: u64,
    ) -> bool {
        let pattern = &self.recognizer.signatures()[signature].pattern;
        let Some(captures) = pattern.captures(text) else { return false };
        self.seen[signature] += 1;
        self.signs_seen += 1;
        if self.seen[signature] > MOST_OF_A_KIND || self.log.signs.len() == MOST_SIGNS {
            self.log.dropped += 1;
            return true;
        }
        let named = pattern.capture_names().flatten();
        let captured: Vec<(String, String)> = named
            .filter_map(|name| Some((name.to_owned(), cut(captures.name(name)?.as_bytes(), LONGEST_PART))))
            .collect();
        let own = rank_in_text().captures(text);
        let own = own.and_then(|own| own.get(1).or(own.get(2))).map(|digits| digits.as_bytes().to_vec());
        let sign = Sign {
            signature,
            origin: self.origin(labelled, None),
            rank: own.and_then(|digits| std::str::from_utf8(&digits).ok()?.parse().ok()),
            stamp: self.stamp(line, labelled),
            line: number,
            after_steps: self.log.steps.len(),
            text: shortened(text.trim_ascii()),
            captured,
        };
        self.log.signs.push(sign);
        true
    }

    fn origin(&mut self, labelled: &Labelled<'_>, rank: Option<u32>) -> usize {
        let mut origin = labelled.origin.or(&self.file);
        origin.rank = rank.or(origin.rank);
        if let Some(known) = self.origins.get(&origin) {
            return *known;
        }
        if self.log.origins.len() == MOST_ORIGINS {
            return 0;
        }
        self.log.origins.push(origin.clone());
        self.origins.insert(origin, self.log.origins.len() - 1);
        self.log.origins.len() - 1
    }

    fn stamp(&self, line: &[u8], labelled: &Labelled<'_>) -> Option<Stamp> {
        labelled
            .stamp
            .or_else(|| Stamp::find(labelled.text, self.year))
            .or_else(|| Stamp::find(line, self.year))
    }
}

/// A rank that a line itself names as its writer.
fn rank_in_text() -> &'static Regex {
    static PATTERN: OnceLock<Regex> = OnceLock::new();
    PATTERN.get_or_init(|| {
        Regex::new(r"(?i-u)\[(?:PG (?:ID )?0 (?:PG GUID \S+ )?)?rank[ :]?(\d{1,7})\]|\bon rank (\d{1,7})\b")
            .expect("a fixed pattern")
    })
}

fn newlines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

fn shortened(text: &[u8]) -> String {
    cut(text, LONGEST_TEXT)
}

fn cut(text: &[u8], longest: usize) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(longest)]);
    text.chars().map(|each| if each.is_control() { ' ' } else { each }).collect()
}
