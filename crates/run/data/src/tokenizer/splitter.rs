//! Splitting text into the words inside which tokens are merged.
//!
//! Tokenizers describe this by a regular expression, and nearly all by one of a few. Those are implemented here
//! directly, which is several times faster than a general regex engine and gives the same words.

use std::sync::LazyLock;

/// A known rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Splitter {
    Gpt2,
    /// As in GPT-4, Llama 3 and Qwen, which differ in the maximum number of digits per word.
    Modern {
        digits: usize,
    },
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Splitter {
    /// Every digit is its own word, which helps arithmetic.
    pub(crate) const QWEN2: Self = Splitter::Modern { digits: 1 };
    #[cfg(test)]
    const LLAMA3: Self = Splitter::Modern { digits: 3 };

    /// The rule for a regular expression, if it is a known one.
    pub(crate) fn for_pattern(pattern: &str) -> Option<Self> {
        match pattern {
            GPT2 => Some(Splitter::Gpt2),
            LLAMA3 => Some(Splitter::Modern { digits: 3 }),
            QWEN2 => Some(Splitter::QWEN2),
            _ => None,
        }
    }

    pub(crate) fn pattern(self) -> &'static str {
        match self {
            Splitter::Gpt2 => GPT2,
            Splitter::Modern { digits: 1 } => QWEN2,
            Splitter::Modern { .. } => LLAMA3,
        }
    }

    /// The words of a text, which together are the text.
    pub(crate) fn words(self, text: &str) -> impl Iterator<Item = &str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (word, behind) = rest.split_at(self.first_word(rest));
            rest = behind;
            Some(word)
        })
    }

    /// The length in bytes of the first word of a text that is not empty.
    fn first_word(self, text: &str) -> usize {
        match self {
            Splitter::Gpt2 => gpt2_word(text),
            Splitter::Modern { digits } => modern_word(text, digits),
        }
    }
}

fn gpt2_word(text: &str) -> usize {
    if let Some(length) = contraction(text, |letter| letter) {
        return length;
    }
    let space = usize::from(text.starts_with(' '));
    match class_at(text, space) {
        Some(class) if class != Class::Space => space + run(&text[space..], class),
        _ => spaces(text),
    }
}

fn modern_word(text: &str, digits: usize) -> usize {
    if let Some(length) = contraction(text, fold) {
        return length;
    }
    let first = text.chars().next().expect("the text is not empty");
    let behind = first.len_utf8();
    match class(first) {
        Class::Letter => return run(text, Class::Letter),
        Class::Number => {
            return text
                .chars()
                .take(digits)
                .take_while(|c| class(*c) == Class::Number)
                .map(char::len_utf8)
                .sum();
        }
        _ if !is_line_end(first) && class_at(text, behind) == Some(Class::Letter) => {
            return behind + run(&text[behind..], Class::Letter);
        }
        _ => {}
    }
    let space = usize::from(first == ' ');
    if class_at(text, space) == Some(Class::Other) {
        let signs = space + run(&text[space..], Class::Other);
        return signs + text[signs..].bytes().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    }
    let blank = run(text, Class::Space);
    text[..blank].rfind(['\r', '\n']).map_or_else(|| spaces(text), |last| last + 1)
}

/// `'s`, `'re` and the like at the beginning of a text.
fn contraction(text: &str, fold: impl Fn(char) -> char) -> Option<usize> {
    let mut letters = text.strip_prefix('\'')?.chars();
    let first = letters.next()?;
    let length = 1 + first.len_utf8();
    match fold(first) {
        's' | 't' | 'm' | 'd' => Some(length),
        first => {
            let second = letters.next()?;
            let is_pair = matches!((first, fold(second)), ('r' | 'v', 'e') | ('l', 'l'));
            is_pair.then(|| length + second.len_utf8())
        }
    }
}

/// Lower case as in case-insensitive regular expressions, for the letters that matter here.
fn fold(letter: char) -> char {
    if letter == 'ſ' { 's' } else { letter.to_ascii_lowercase() }
}

/// White space except the last character before a word, which belongs to that word; a single one stands alone.
fn spaces(text: &str) -> usize {
    let blank = run(text, Class::Space);
    if blank == text.len() {
        return blank;
    }
    let last = text[..blank].chars().next_back().map_or(0, char::len_utf8);
    if blank == last { blank } else { blank - last }
}

fn is_line_end(character: char) -> bool {
    matches!(character, '\r' | '\n')
}

/// Bytes of the characters of one class at the beginning of a text.
fn run(text: &str, wanted: Class) -> usize {
    text.find(|character| class(character) != wanted).unwrap_or(text.len())
}

fn class_at(text: &str, offset: usize) -> Option<Class> {
    text[offset..].chars().next().map(class)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

fn class(character: char) -> Class {
    CLASSES[character as usize]
}

/// The class of every code point: a megabyte, and no search.
static CLASSES: LazyLock<Vec<Class>> = LazyLock::new(|| {
    let mut classes = vec![Class::Other; char::MAX as usize + 1];
    for (pattern, class) in [(r"\p{L}", Class::Letter), (r"\p{N}", Class::Number), (r"\s", Class::Space)] {
        let parsed = regex_syntax::parse(pattern).expect("the three patterns are right");
        let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(set)) = parsed.kind() else {
            unreachable!("each of the patterns is a class of characters");
        };
        for range in set.iter() {
            classes[range.start() as usize..=range.end() as usize].fill(class);
        }
    }
    classes
});

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    static EXPRESSIONS: LazyLock<Vec<(Splitter, fancy_regex::Regex)>> = LazyLock::new(|| {
        let compiled = |splitter: Splitter| (splitter, fancy_regex::Regex::new(splitter.pattern()).unwrap());
        [Splitter::Gpt2, Splitter::LLAMA3, Splitter::QWEN2].map(compiled).into()
    });

    fn reference(expression: &fancy_regex::Regex, text: &str) -> Vec<String> {
        expression.find_iter(text).map(|found| found.unwrap().as_str().to_owned()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn words_are_those_of_the_regular_expression(
            text in r"([a-zA-Z]{0,3}|'(s|T|re|VE|m|lL|ſ|x)|[0-9]{1,5}|[ \t\r\n]{0,4}|\u{a0}|[.,!?(){}'-]{1,3}|\PC|é|漢字|½|٣){0,12}"
        ) {
            for (splitter, expression) in EXPRESSIONS.iter() {
                let words: Vec<&str> = splitter.words(&text).collect();
                prop_assert_eq!(words, reference(expression, &text), "{:?}", splitter);
            }
        }
    }

    #[test]
    fn known_patterns_are_recognised() {
        for splitter in [Splitter::Gpt2, Splitter::LLAMA3, Splitter::QWEN2] {
            assert_eq!(Splitter::for_pattern(splitter.pattern()), Some(splitter));
        }
        assert_eq!(Splitter::for_pattern(r"\w+"), None);
    }
}
