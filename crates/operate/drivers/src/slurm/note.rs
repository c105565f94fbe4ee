//! What we write into the comment of a job: the key of its submission and what a step should take.
//!
//! `bedplate key=5f… expected=compute:0.4+0.1,scale_out:0.05 out=logs/%j-%t`, then `; ` and the user's own comment. Slurm
//! shows a comment through every transport, and keeps it in accounting where a site stores comments. Seconds are exposed
//! and, behind a plus, hidden ones. `out` and `err` are the files of tasks, where each has its own.

use bedplate_breakdown::{Breakdown, Part, Predicted, Span};
use bedplate_units::Seconds;

/// Slurm refuses longer comments.
pub(super) const LONGEST: usize = 1024;
const BEGIN: &str = "bedplate key=";
/// Stands for a blank in a pattern; no pattern has this letter.
const BLANK: &str = "%_";

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Note {
    pub(super) key: Option<String>,
    pub(super) expected: Option<Breakdown<Predicted>>,
    /// Patterns of the files to which each task writes.
    pub(super) stdout: Option<String>,
    pub(super) stderr: Option<String>,
    /// The user's own comment.
    pub(super) rest: String,
}

impl Note {
    pub(super) fn read(comment: &str) -> Self {
        let Some(ours) = comment.strip_prefix(BEGIN) else {
            return Self { rest: comment.to_owned(), ..Self::default() };
        };
        let (ours, rest) = ours.split_once("; ").unwrap_or((ours, ""));
        let words: Vec<&str> = ours.split(' ').collect();
        let find = |name: &str| words[1..].iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        Self {
            key: Some(words[0].to_owned()),
            expected: find("expected").and_then(breakdown),
            stdout: find("out").map(|pattern| pattern.replace(BLANK, " ")),
            stderr: find("err").map(|pattern| pattern.replace(BLANK, " ")),
            rest: rest.to_owned(),
        }
    }

    pub(super) fn write(&self) -> String {
        let mut comment = format!("{BEGIN}{}", self.key.as_deref().unwrap_or_default());
        if let Some(expected) = &self.expected {
            comment += &format!(" expected={}", breakdown_text(expected));
        }
        for (name, pattern) in [("out", &self.stdout), ("err", &self.stderr)] {
            if let Some(pattern) = pattern {
                comment += &format!(" {name}={}", pattern.replace(' ', BLANK));
            }
        }
        if !self.rest.is_empty() {
            comment += &format!("; {}", self.rest);
        }
        comment
    }
}

/// A key as it stands in a comment: others may have blanks or be long.
pub(super) fn shortened_key(key: &str) -> String {
    // FNV-1a, twice with other beginnings: two keys of one user do not meet.
    let hash = |start: u64| {
        key.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    };
    format!("{:016x}{:016x}", hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142))
}

fn breakdown_text(breakdown: &Breakdown<Predicted>) -> String {
    // Six digits are more than a prediction knows.
    let digits = |seconds: Seconds| {
        let text = format!("{:.6e}", seconds.get());
        text.parse::<f64>().unwrap_or(0.0).to_string()
    };
    let parts = breakdown.parts().filter(|(_, span)| !span.busy().is_zero());
    let written = parts.map(|(part, span)| match span.hidden.is_zero() {
        true => format!("{}:{}", part.name(), digits(span.exposed)),
        false => format!("{}:{}+{}", part.name(), digits(span.exposed), digits(span.hidden)),
    });
    written.collect::<Vec<String>>().join(",")
}

fn breakdown(text: &str) -> Option<Breakdown<Predicted>> {
    let seconds = |text: &str| {
        text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0).map(Seconds::new)
    };
    let mut breakdown = Breakdown::default();
    for entry in text.split(',') {
        let (name, spans) = entry.split_once(':')?;
        let part = Part::ALL.into_iter().find(|part| part.name() == name)?;
        let (exposed, hidden) = spans.split_once('+').unwrap_or((spans, "0"));
        breakdown[part] = Span { exposed: seconds(exposed)?, hidden: seconds(hidden)? };
    }
    Some(breakdown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let mut expected = Breakdown::default();
        expected[Part::Compute] = Span { exposed: Seconds::new(0.4), hidden: Seconds::new(0.125) };
        expected[Part::ScaleOut] = Span::exposed(Seconds::new(1e-7));
        let key = Some(shortened_key("a key"));
        for note in [
            Note {
                key: key.clone(),
                expected: Some(expected),
                stdout: Some("my logs/%j-%t.out".into()),
                stderr: Some("%j-%t.err".into()),
                rest: "for the paper; part 2".into(),
            },
            Note { key: key.clone(), ..Note::default() },
        ] {
            assert_eq!(Note::read(&note.write()), note, "{}", note.write());
        }
        assert_eq!(Note::read("my own").rest, "my own");
        assert_eq!(Note::read("bedplate key=x expected=compute:lots").expected, None);
    }

    #[test]
    fn the_longest_prediction_leaves_room_in_a_comment() {
        let mut expected = Breakdown::default();
        for part in Part::ALL {
            expected[part] =
                Span { exposed: Seconds::new(1.234_567_89e-5), hidden: Seconds::new(123.456_789) };
        }
        let note = Note { key: Some(shortened_key("x")), expected: Some(expected), ..Note::default() };
        assert!(note.write().len() < LONGEST / 2, "{}", note.write().len());
    }

    #[test]
    fn keys_differ_in_their_short_form() {
        assert_ne!(shortened_key("a"), shortened_key("b"));
        assert_eq!(shortened_key("a").len(), 32);
    }
}
