//! Stop strings in text that comes piece by piece. No part of one is let through.

/// What ends an answer by its text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stops {
    pub(crate) strings: Vec<String>,
    /// Whether the one that was found stays at the end of the text.
    pub(crate) are_shown: bool,
}

/// Holds back what may be the beginning of a stop string.
#[derive(Debug, Default)]
pub(crate) struct StopSearch {
    held: String,
}

/// What a piece leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) text: String,
    /// Which of the strings ended the text.
    pub(crate) stop: Option<usize>,
}

impl StopSearch {
    /// Takes the next piece of text and says what may be shown now.
    pub(crate) fn push(&mut self, piece: &str, stops: &Stops) -> Released {
        self.held.push_str(piece);
        if let Some((at, stop)) = first(&self.held, &stops.strings) {
            let shown = if stops.are_shown { at + stops.strings[stop].len() } else { at };
            self.held.truncate(shown);
            return Released { text: std::mem::take(&mut self.held), stop: Some(stop) };
        }
        let kept = beginning(&self.held, &stops.strings);
        let rest = self.held.split_off(self.held.len() - kept);
        Released { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// What was held back, when no more text comes.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// The earliest stop string; the longest of those that begin there.
fn first(text: &str, strings: &[String]) -> Option<(usize, usize)> {
    let found =
        strings.iter().enumerate().filter_map(|(which, string)| Some((text.find(string.as_str())?, which)));
    found.min_by_key(|(at, which)| (*at, std::cmp::Reverse(strings[*which].len())))
}

/// Bytes at the end of the text with which a stop string begins: the most of any.
fn beginning(text: &str, strings: &[String]) -> usize {
    let of_one = |string: &String| {
        let most = string.len().saturating_sub(1).min(text.len());
        let is_one = |length: &usize| {
            text.is_char_boundary(text.len() - length) && string.starts_with(&text[text.len() - length..])
        };
        (1..=most).rev().find(is_one).unwrap_or(0)
    };
    strings.iter().map(of_one).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(pieces: &[&str], strings: &[&str], are_shown: bool) -> (Vec<String>, Option<usize>) {
        let stops = Stops { strings: strings.iter().map(|string| (*string).to_owned()).collect(), are_shown };
        let mut search = StopSearch::default();
        let mut texts = Vec::new();
        for piece in pieces {
            let Released { text, stop } = search.push(piece, &stops);
            texts.push(text);
            if stop.is_some() {
                return (texts, stop);
            }
        }
        texts.push(search.finish());
        (texts, None)
    }

    #[test]
    fn what_may_begin_a_stop_string_is_held_back_until_it_is_decided() {
        assert_eq!(
            run(&["a<", "/s", ">b"], &["</s>"], false),
            (vec!["a".into(), "".into(), "".into()], Some(0))
        );
        assert_eq!(
            run(&["a<", "/s", ">b"], &["</s>"], true),
            (vec!["a".into(), "".into(), "</s>".into()], Some(0))
        );
        assert_eq!(run(&["a<", "/b"], &["</s>"], false), (vec!["a".into(), "</b".into(), "".into()], None));
        assert_eq!(run(&["a<"], &["</s>"], false), (vec!["a".into(), "<".into()], None));
        assert_eq!(run(&["xabab", "c"], &["ababc", "ab"], false), (vec!["x".into()], Some(1)));
    }

    proptest! {
        #[test]
        fn the_text_is_the_one_before_the_first_stop_string(
            text in "[ab\u{e9}]{0,20}", strings in proptest::collection::vec("[ab\u{e9}]{1,4}", 0..3), cuts in proptest::collection::vec(0usize..20, 0..6),
        ) {
            let mut pieces: Vec<&str> = Vec::new();
            let mut rest = text.as_str();
            for cut in cuts {
                let at = (0..=cut.min(rest.len())).rev().find(|at| rest.is_char_boundary(*at)).unwrap_or(0);
                pieces.push(&rest[..at]);
                rest = &rest[at..];
            }
            pieces.push(rest);
            let wanted: Vec<&str> = strings.iter().map(String::as_str).collect();
            let (texts, stop) = run(&pieces, &wanted, false);
            let before = wanted.iter().filter_map(|string| text.find(string)).min();
            // A shorter string that ends earlier may be found before a longer one that begins earlier has ended.
            match stop {
                None => prop_assert_eq!((texts.concat(), before), (text.clone(), None)),
                Some(stop) => {
                    let joined = texts.concat();
                    let is_before_one = text.starts_with(&joined) && text[joined.len()..].starts_with(wanted[stop]);
                    prop_assert!(is_before_one && wanted.iter().all(|string| !joined.contains(string)));
                }
            }
        }
    }
}
