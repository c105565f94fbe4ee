//! Slurm's notation for lists of names: `n[001-064,100]`, `rack[1-2]node[1-8]`, `login,n1`.
//!
//! Entries are separated by commas or blanks. Brackets hold numbers and ranges; the width of a range's first
//! number is kept (`[08-10]` is 08, 09, 10). Several brackets multiply, the last running fastest. Text
//! after the last bracket is accepted, although Slurm itself refuses it, and is never written. Writing keeps the
//! order of the names, so reading gives back the same list. All this agrees with `scontrol show hostnames`
//! and `scontrol show hostlist` of Slurm 22.05.

use bedplate_diag::Source;

use crate::TopologyError;
use crate::draft::{MAX_NODES, shown};

/// Slurm refuses ranges of more than 64 × 1024 names.
const LONGEST_RANGE: u64 = 65_536;
/// More digits than this are part of the name, not a number.
const MAX_DIGITS: usize = 18;
const MAX_BRACKETS: usize = 8;

/// All the names of a list, in order. Lists of more than a million names are refused.
pub fn expand_hostlist(text: &str) -> Result<Vec<String>, TopologyError> {
    let list = Hostlist::parse(text).map_err(|error| error.at(text, Source::new("node list", text)))?;
    let mut names = Vec::with_capacity(list.count as usize);
    list.visit(|name| {
        names.push(name.to_owned());
        Ok::<(), std::convert::Infallible>(())
    })
    .unwrap_or_else(|never| match never {});
    Ok(names)
}

/// The shortest list that keeps the order: runs of numbers at the end of names become ranges.
pub fn compress_hostlist<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut writer = Writer::default();
    for name in names {
        writer.add(name);
    }
    writer.finish()
}

/// A parsed list. Its names are generated one by one, so a long list costs no memory.
#[derive(Debug)]
pub(crate) struct Hostlist<'a> {
    entries: Vec<Vec<Part<'a>>>,
    pub(crate) count: u64,
}

#[derive(Debug)]
enum Part<'a> {
    Text(&'a str),
    Numbers(Vec<Numbers>),
}

/// The numbers from `first` to `last`, padded to `width`.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    first: u64,
    last: u64,
    width: usize,
}

/// Why a list cannot be read.
#[derive(Debug)]
pub(crate) struct HostlistError {
    reason: String,
    too_many: Option<u64>,
}

impl HostlistError {
    fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), too_many: None }
    }

    /// The error for a list in a file; the column is found by searching for the list there.
    pub(crate) fn at(self, list: &str, source: Source<'_>) -> TopologyError {
        let place = match source.text.find(list) {
            Some(offset) => source.place(offset),
            None => source.whole(),
        };
        self.with_place(list, place)
    }

    pub(crate) fn with_place(self, list: &str, place: bedplate_diag::Place) -> TopologyError {
        match self.too_many {
            Some(count) => {
                TopologyError::TooMany { what: "names in one list", count, limit: MAX_NODES, place }
            }
            None => TopologyError::BadHostlist { text: shown(list), reason: self.reason, place },
        }
    }
}

impl<'a> Hostlist<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, HostlistError> {
        let mut entries = Vec::new();
        let mut count: u64 = 0;
        for entry in Entries(text) {
            let parts = parts(entry)?;
            count = count.saturating_add(size(&parts));
            if count > MAX_NODES {
                return Err(HostlistError { reason: String::new(), too_many: Some(count) });
            }
            entries.push(parts);
        }
        Ok(Self { entries, count })
    }

    /// Calls `visit` with every name in order, and stops at its first error.
    pub(crate) fn visit<E>(&self, mut visit: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let mut name = String::new();
        self.entries.iter().try_for_each(|parts| visit_parts(parts, &mut name, &mut visit))
    }
}

/// Recursion is as deep as an entry has parts, which `parts` bounds.
fn visit_parts<E>(
    parts: &[Part<'_>],
    name: &mut String,
    visit: &mut impl FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let length = name.len();
    match parts {
        [] => visit(name)?,
        [Part::Text(text), rest @ ..] => {
            name.push_str(text);
            visit_parts(rest, name, visit)?;
        }
        [Part::Numbers(ranges), rest @ ..] => {
            for (number, width) in
                ranges.iter().flat_map(|range| (range.first..=range.last).map(|n| (n, range.width)))
            {
                push_number(name, number, width);
                visit_parts(rest, name, visit)?;
                name.truncate(length);
            }
        }
    }
    name.truncate(length);
    Ok(())
}

/// Appends a padded number. `write!` does the same at several times the cost.
fn push_number(name: &mut String, number: u64, width: usize) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    let mut rest = number;
    while rest > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let start = at.min(digits.len() - width.min(digits.len()));
    name.extend(digits[start..].iter().map(|digit| *digit as char));
}

/// Entries at commas and blanks outside brackets, empty ones left out.
struct Entries<'a>(&'a str);

impl<'a> Iterator for Entries<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let is_separator = |c: char| c == ',' || c.is_whitespace();
        let text = self.0.trim_start_matches(is_separator);
        if text.is_empty() {
            return None;
        }
        let mut depth = 0usize;
        let end = text.find(|c| {
            match c {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && is_separator(c)
        });
        let (entry, rest) = text.split_at(end.unwrap_or(text.len()));
        self.0 = rest;
        Some(entry)
    }
}

fn parts(entry: &str) -> Result<Vec<Part<'_>>, HostlistError> {
    let mut parts = Vec::new();
    let mut rest = entry;
    while let Some((text, behind)) = rest.split_once('[') {
        let (inside, behind) =
            behind.split_once(']').ok_or_else(|| HostlistError::new("a `[` is never closed"))?;
        if text.contains(']') {
            break;
        }
        parts.push(Part::Text(text));
        parts.push(Part::Numbers(numbers(inside)?));
        if parts.len() > 2 * MAX_BRACKETS {
            return Err(HostlistError::new(format!(
                "one entry has more than {MAX_BRACKETS} pairs of brackets"
            )));
        }
        rest = behind;
    }
    if rest.contains([']', '[']) {
        return Err(HostlistError::new("a `]` closes nothing"));
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

fn numbers(inside: &str) -> Result<Vec<Numbers>, HostlistError> {
    inside.split(',').map(|range| range_of(range.trim())).collect()
}

fn range_of(range: &str) -> Result<Numbers, HostlistError> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (first.trim(), last.trim());
    let number = |digits: &str| match digits.bytes().all(|b| b.is_ascii_digit()) && !digits.is_empty() {
        true if digits.len() <= MAX_DIGITS => Ok(digits.parse::<u64>().unwrap_or(u64::MAX)),
        true => Err(HostlistError::new(format!("`{}` has too many digits", shown(digits)))),
        false => Err(HostlistError::new(format!("`{}` in brackets is not a number or range", shown(range)))),
    };
    let numbers = Numbers { first: number(first)?, last: number(last)?, width: first.len() };
    if numbers.first > numbers.last {
        return Err(HostlistError::new(format!("the range `{}` runs backwards", shown(range))));
    }
    Ok(numbers)
}

fn size(parts: &[Part<'_>]) -> u64 {
    let numbers = parts.iter().filter_map(|part| match part {
        Part::Text(_) => None,
        Part::Numbers(ranges) => {
            Some(ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.last - range.first + 1)))
        }
    });
    numbers.fold(1, u64::saturating_mul)
}

/// Collects names into brackets as they come.
#[derive(Debug, Default)]
struct Writer {
    text: String,
    /// Text before the numbers of the open bracket.
    prefix: String,
    ranges: Vec<Numbers>,
}

impl Writer {
    fn add(&mut self, name: &str) {
        let Some((prefix, number, width)) = split_number(name) else {
            self.close();
            self.start_entry();
            self.text.push_str(name);
            return;
        };
        if self.ranges.is_empty() || self.prefix != prefix {
            self.close();
            prefix.clone_into(&mut self.prefix);
        }
        match self.ranges.last_mut() {
            Some(range) if continues(range, number, width) => range.last = number,
            _ => self.ranges.push(Numbers { first: number, last: number, width }),
        }
    }

    fn start_entry(&mut self) {
        if !self.text.is_empty() {
            self.text.push(',');
        }
    }

    /// Writes the open bracket; a single number needs none.
    fn close(&mut self) {
        if self.ranges.is_empty() {
            return;
        }
        self.start_entry();
        let ranges = std::mem::take(&mut self.ranges);
        self.text.push_str(&self.prefix);
        if let [only] = ranges[..]
            && only.first == only.last
        {
            push_number(&mut self.text, only.first, only.width);
            return;
        }
        let mut opening = '[';
        for range in ranges {
            self.text.push(opening);
            push_number(&mut self.text, range.first, range.width);
            if range.first != range.last {
                self.text.push('-');
                push_number(&mut self.text, range.last, range.width);
            }
            opening = ',';
        }
        self.text.push(']');
    }

    fn finish(mut self) -> String {
        self.close();
        self.text
    }
}

/// Whether this name continues the range with the same spelling.
fn continues(range: &Numbers, number: u64, width: usize) -> bool {
    let spelt = range.width.max(number.checked_ilog10().unwrap_or(0) as usize + 1);
    number == range.last + 1 && width == spelt && number - range.first < LONGEST_RANGE
}

/// `n007` as `n`, 7 and the width 3.
fn split_number(name: &str) -> Option<(&str, u64, usize)> {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &name[prefix.len()..];
    let is_number = !digits.is_empty() && digits.len() <= MAX_DIGITS;
    is_number.then(|| (prefix, digits.parse().unwrap_or(u64::MAX), digits.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_diag::render_text;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn check(list: &str, expected: Expect) {
        let text = match expand_hostlist(list) {
            Ok(names) => {
                format!("{} = {}", names.join(" "), compress_hostlist(names.iter().map(String::as_str)))
            }
            Err(error) => render_text(&error),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn lists_expand_and_compress_as_in_slurm() {
        check("n[01-04,07]", expect!["n01 n02 n03 n04 n07 = n[01-04,07]"]);
        check("r[0-1]n[0-1]", expect!["r0n0 r0n1 r1n0 r1n1 = r0n[0-1],r1n[0-1]"]);
        check("n[1-03]", expect!["n1 n2 n3 = n[1-3]"]);
        check("n[09-010]", expect!["n09 n10 = n[09-10]"]);
        check("n9,n10,n11", expect!["n9 n10 n11 = n[9-11]"]);
        check("n3,n1,n2", expect!["n3 n1 n2 = n[3,1-2]"]);
        check("n1,n01", expect!["n1 n01 = n[1,01]"]);
        check("n099,n100,n0101", expect!["n099 n100 n0101 = n[099-100,0101]"]);
        check("a,b c", expect!["a b c = a,b,c"]);
        check("n[1-3]-ib", expect!["n1-ib n2-ib n3-ib = n1-ib,n2-ib,n3-ib"]);
        check("[1-3]", expect!["1 2 3 = [1-3]"]);
        check("n[1-2][3-4]", expect!["n13 n14 n23 n24 = n[13-14,23-24]"]);
        check("", expect![" = "]);
    }

    #[test]
    fn bad_lists_say_why() {
        check(
            "n[3-1]",
            expect![[r#"
            error[cluster/bad-hostlist]: the node list `n[3-1]` cannot be read: the range `3-1` runs backwards
              in   node list:1:1: n[3-1]
            help:  write ranges as `first-last`, the first not larger than the last, separated by commas within the brackets
        "#]],
        );
        let reason = |list: &str| expand_hostlist(list).unwrap_err().to_string();
        assert_eq!(reason("n[1"), "the node list `n[1` cannot be read: a `[` is never closed");
        assert_eq!(reason("n1]"), "the node list `n1]` cannot be read: a `]` closes nothing");
        assert_eq!(reason("n]["), "the node list `n][` cannot be read: a `[` is never closed");
        assert_eq!(
            reason("n[]"),
            "the node list `n[]` cannot be read: `` in brackets is not a number or range"
        );
        assert_eq!(
            reason("n[a-c]"),
            "the node list `n[a-c]` cannot be read: `a-c` in brackets is not a number or range"
        );
        assert_eq!(
            reason("n[1-999999999999]"),
            "999,999,999,999 names in one list are more than the limit of 1,000,000"
        );
        assert_eq!(
            reason("n[0-999][0-999][0-999]"),
            "1,000,000,000 names in one list are more than the limit of 1,000,000"
        );
        assert!(reason("n[1-99999999999999999999]").ends_with("has too many digits"));
        assert!(reason(&"[1]".repeat(100)).ends_with("one entry has more than 8 pairs of brackets"));
    }

    proptest! {
        #[test]
        fn compressing_loses_nothing(names in prop::collection::vec("[a-c]{0,2}[0-9]{1,4}|[a-z]{1,3}", 0..60)) {
            let text = compress_hostlist(names.iter().map(String::as_str));
            prop_assert_eq!(expand_hostlist(&text).unwrap(), names);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[n0-9\\[\\],\\- ]{0,40}|.{0,40}") {
            if let Ok(names) = expand_hostlist(&text) {
                prop_assert!(names.len() <= 1_000_000);
            }
        }
    }
}
