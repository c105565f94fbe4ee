//! Lines of Slurm's configuration files: continued, commented, and made of `Key=Value` pairs.

use std::borrow::Cow;

use bedplate_diag::Source;

use crate::TopologyError;
use crate::draft::shown;

/// A logical line: continuations joined, comment and escapes gone. Empty lines are left out.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// Of its first physical line, counted from 1.
    pub(super) number: usize,
    text: Cow<'a, str>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair<'a> {
    pub(super) key: &'a str,
    pub(super) value: &'a str,
}

pub(super) struct Lines<'a> {
    physical: std::iter::Enumerate<std::str::Lines<'a>>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { physical: text.lines().enumerate() }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        loop {
            let (index, first) = self.physical.next()?;
            let mut text = clean(first);
            let mut is_continued = ends_in_backslash(first);
            while is_continued {
                let Some((_, next)) = self.physical.next() else { break };
                text.to_mut().push_str(&clean(next));
                is_continued = ends_in_backslash(next);
            }
            if !text.trim().is_empty() {
                return Some(Line { number: index + 1, text });
            }
        }
    }
}

/// A backslash at the end continues the line, unless it is escaped itself.
fn ends_in_backslash(line: &str) -> bool {
    let line = line.trim_end_matches('\r');
    !(line.len() - line.trim_end_matches('\\').len()).is_multiple_of(2)
}

/// The line up to an unescaped `#`, each escaped character standing for itself.
fn clean(line: &str) -> Cow<'_, str> {
    if !line.contains('\\') {
        return Cow::Borrowed(line.split('#').next().unwrap_or(line));
    }
    let mut text = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '#' => break,
            '\\' => text.extend(characters.next().filter(|escaped| *escaped != '\r')),
            _ => text.push(character),
        }
    }
    Cow::Owned(text)
}

impl Line<'_> {
    /// The key of the first pair, as written.
    pub(super) fn first_key(&self) -> Option<&str> {
        let text = self.text.trim_start();
        let end = text.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(text.len());
        Some(&text[..end]).filter(|key| !key.is_empty())
    }

    /// The file of an `Include` line.
    pub(super) fn included(&self) -> Option<&str> {
        let text = self.text.trim();
        let (word, file) = text.split_once(char::is_whitespace)?;
        (word.eq_ignore_ascii_case("include") && !file.trim_start().starts_with('=')).then(|| file.trim())
    }

    /// All pairs of the line. Values with spaces are in double quotes.
    pub(super) fn pairs(&self, source: Source<'_>) -> Result<Vec<Pair<'_>>, TopologyError> {
        let mut pairs = Vec::new();
        let mut rest = self.text.trim();
        while !rest.is_empty() {
            let (pair, behind) = split_pair(rest).ok_or_else(|| TopologyError::Malformed {
                expected: "a line of `Key=Value` pairs",
                reason: format!("`{}` is not a pair", shown(rest)),
                place: source.line(self.number),
            })?;
            pairs.push(pair);
            rest = behind.trim_start();
        }
        Ok(pairs)
    }
}

fn split_pair(text: &str) -> Option<(Pair<'_>, &str)> {
    let (key, behind) = text.split_once('=')?;
    let key = key.trim_end();
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.') {
        return None;
    }
    let behind = behind.trim_start();
    if let Some(quoted) = behind.strip_prefix('"') {
        let (value, rest) = quoted.split_once('"')?;
        return Some((Pair { key, value }, rest));
    }
    let end = behind.find(char::is_whitespace).unwrap_or(behind.len());
    let (value, rest) = behind.split_at(end);
    Some((Pair { key, value }, rest)).filter(|_| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(text: &str, expected: Expect) {
        let source = Source::new("slurm.conf", text);
        let lines: Vec<String> = Lines::new(text)
            .map(|line| match line.pairs(source) {
                Ok(pairs) => format!(
                    "{}: {}",
                    line.number,
                    pairs.iter().map(|p| format!("{}={}", p.key, p.value)).collect::<Vec<_>>().join(" | ")
                ),
                Err(error) => format!("{}: {error}", line.number),
            })
            .collect();
        expected.assert_eq(&lines.join("\n"));
    }

    #[test]
    fn lines_are_joined_and_cut_into_pairs() {
        check(
            "# comment\nNodeName=n1  Gres=gpu:2 # two\n\nNodeName=n2 \\\n  CPUs = 4\\\n Reason=\"no \\#1 fan\"\r\nA=\"b c\"d=e\n",
            expect![[r#"
                2: NodeName=n1 | Gres=gpu:2
                4: NodeName=n2 | CPUs=4 | Reason=no #1 fan
                7: A=b c | d=e"#]],
        );
        check(
            "NodeName=\n=x\nno pair\nA=\"open\n",
            expect![[r#"
            1: this is not a line of `Key=Value` pairs: `NodeName=` is not a pair
            2: this is not a line of `Key=Value` pairs: `=x` is not a pair
            3: this is not a line of `Key=Value` pairs: `no pair` is not a pair
            4: this is not a line of `Key=Value` pairs: `A="open` is not a pair"#]],
        );
    }
}
