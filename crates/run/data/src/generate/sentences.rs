//! Sentences by a grammar: number agrees between subject and verb, however much stands between them.

use super::world::TRADES;
use bedplate_random::Random;

const ANIMALS: [&str; 10] = ["bird", "cat", "cow", "dog", "duck", "goat", "hen", "horse", "pig", "rabbit"];
const LOOKS: [&str; 8] = ["brave", "clever", "gray", "hungry", "lazy", "quiet", "tall", "tired"];
/// Verbs without an object, for one and for many.
const ALONE: [(&str, &str); 8] = [
    ("sings", "sing"),
    ("sleeps", "sleep"),
    ("waits", "wait"),
    ("dances", "dance"),
    ("laughs", "laugh"),
    ("dreams", "dream"),
    ("is happy", "are happy"),
    ("was late", "were late"),
];
/// Verbs with an object.
const TOWARDS: [(&str, &str); 8] = [
    ("sees", "see"),
    ("hears", "hear"),
    ("follows", "follow"),
    ("likes", "like"),
    ("feeds", "feed"),
    ("calls", "call"),
    ("knows", "know"),
    ("was watching", "were watching"),
];
const TIMES: [&str; 6] =
    ["in the morning", "at night", "after the rain", "before the feast", "every day", "all winter"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    One,
    Many,
}

/// A sentence about animals and people in general, with clauses in clauses.
pub(super) fn descriptive(draw: &mut Random) -> String {
    let (subject, number) = noun_phrase(draw, 0);
    let verb = verb_phrase(draw, number, 0);
    match draw.below(3) {
        0 => format!("{}, {subject} {verb}.", draw.pick(&TIMES)),
        1 => format!("{subject} {verb} {}.", draw.pick(&TIMES)),
        _ => format!("{subject} {verb}."),
    }
}

fn noun_phrase(draw: &mut Random, depth: usize) -> (String, Number) {
    let noun = if draw.chance(60) { draw.pick(&ANIMALS) } else { draw.pick(&TRADES) };
    let number = if draw.chance(50) { Number::One } else { Number::Many };
    let look = if draw.chance(40) { format!("{} ", draw.pick(&LOOKS)) } else { String::new() };
    let head = match number {
        Number::One => format!("{} {look}{noun}", draw.pick(&["the", "that", "every"])),
        Number::Many => format!("{} {look}{noun}s", draw.pick(&["the", "some", "two", "many"])),
    };
    // Each level is rarer than the last, so that sentences end.
    match draw.chance(if depth == 0 { 45 } else { 20 }) {
        true => (format!("{head} that {}", clause(draw, number, depth + 1)), number),
        false => (head, number),
    }
}

/// What follows `that`: the noun does something, or something is done to it.
fn clause(draw: &mut Random, number: Number, depth: usize) -> String {
    if draw.chance(50) {
        return verb_phrase(draw, number, depth);
    }
    let (subject, inner) = noun_phrase(draw, depth);
    let (one, many) = TOWARDS[draw.below(TOWARDS.len())];
    format!("{subject} {}", if inner == Number::One { one } else { many })
}

fn verb_phrase(draw: &mut Random, number: Number, depth: usize) -> String {
    let choose = |(one, many): (&'static str, &'static str)| if number == Number::One { one } else { many };
    if draw.chance(50) {
        return choose(ALONE[draw.below(ALONE.len())]).to_owned();
    }
    let verb = choose(TOWARDS[draw.below(TOWARDS.len())]);
    format!("{verb} {}", noun_phrase(draw, depth + 1).0)
}

/// The sentence with its first letter large.
pub(super) fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_and_their_length_varies() {
        let mut draw = Random::scattered(1);
        let lengths: Vec<usize> =
            (0..500).map(|_| descriptive(&mut draw).split_whitespace().count()).collect();
        assert!(lengths.iter().all(|words| (3..100).contains(words)));
        assert!(lengths.iter().any(|words| *words > 15) && lengths.contains(&3));
    }
}
