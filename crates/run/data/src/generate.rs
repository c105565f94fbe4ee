//! A corpus that the program writes itself: stories in a small language, and arithmetic with its working.
//!
//! Both have something to learn at every depth: spelling, words, agreement over nested clauses, names that are
//! new in each document and recur in it, and a world whose state the answers depend on. Every document is
//! a pure function of the kind, the seed and its number. All of it is ASCII.

mod arithmetic;
mod conversation;
mod corpus;
mod names;
mod sentences;
mod stories;
mod world;

use std::fmt;
use std::str::FromStr;

pub use conversation::generate_conversation;
pub use corpus::{GenerateOptions, Generated, generate_corpus};

use bedplate_random::{Random, key};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CorpusKind {
    /// People, things and places; who went where, who has what.
    Stories,
    /// Sums, differences and comparisons, worked digit by digit.
    Arithmetic,
    /// Three stories to each arithmetic document.
    Mixture,
}

impl CorpusKind {
    pub const ALL: [CorpusKind; 3] = [CorpusKind::Stories, CorpusKind::Arithmetic, CorpusKind::Mixture];

    pub fn name(self) -> &'static str {
        match self {
            CorpusKind::Stories => "stories",
            CorpusKind::Arithmetic => "arithmetic",
            CorpusKind::Mixture => "mixture",
        }
    }
}

impl fmt::Display for CorpusKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CorpusKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = CorpusKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("`{text}` is not stories, arithmetic or mixture"))
    }
}

/// The document with this number.
pub fn generate(kind: CorpusKind, seed: u64, number: u64) -> String {
    let mut draw = Random::scattered(key(&[seed, number]));
    match kind {
        CorpusKind::Stories => stories::story(&mut draw),
        CorpusKind::Arithmetic => arithmetic::exercises(&mut draw),
        CorpusKind::Mixture if number % 4 == 3 => arithmetic::exercises(&mut draw),
        CorpusKind::Mixture => stories::story(&mut draw),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_depend_on_seed_and_number_alone_and_are_ascii() {
        for kind in CorpusKind::ALL {
            let texts: Vec<String> = (0..200).map(|number| generate(kind, 7, number)).collect();
            assert!(texts.iter().all(|text| text.is_ascii() && text.ends_with('\n') && text.len() > 80));
            assert_eq!(texts[150], generate(kind, 7, 150));
            assert_ne!(texts[150], generate(kind, 8, 150));
            let mut distinct = texts.clone();
            distinct.sort();
            distinct.dedup();
            assert_eq!(distinct.len(), texts.len(), "no two documents are alike");
        }
    }
}
