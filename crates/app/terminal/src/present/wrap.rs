//! Breaking prose into lines.

/// The words of `text` in lines of at most `width` characters; a longer word gets its own line.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_within_the_width_and_long_words_stand_alone() {
        assert_eq!(wrap("one two three  four", 9), ["one two", "three", "four"]);
        assert_eq!(wrap("a verylongwordindeed b", 6), ["a", "verylongwordindeed", "b"]);
        assert!(wrap("  ", 5).is_empty());
    }
}
