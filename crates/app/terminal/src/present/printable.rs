//! Text of others on a terminal: what would move the cursor or colour the screen is shown as it was written.

use std::borrow::Cow;

/// The text with control characters spelled out (`\x1b`, `\u{202e}`), except for ends of lines and tabs.
pub fn printable(text: &str) -> Cow<'_, str> {
    spelled(text, |code| match code {
        0..=0xff => format!("\\x{code:02x}"),
        _ => format!("\\u{{{code:x}}}"),
    })
}

/// The same for what has one line, such as a name: ends of lines and tabs are spelled out too.
pub fn printable_line(text: &str) -> String {
    printable(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// The same for a JSON document, which remains one: such characters are in its strings only.
pub fn printable_json(document: &str) -> Cow<'_, str> {
    spelled(document, |code| format!("\\u{code:04x}"))
}

fn spelled(text: &str, spell: impl Fn(u32) -> String) -> Cow<'_, str> {
    if !text.chars().any(is_acting) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_acting(c) { shown.push_str(&spell(c.into())) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Control characters, and those that reverse the direction of the text after them.
fn is_acting(c: char) -> bool {
    let reorders = matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (c.is_control() && c != '\n' && c != '\t') || reorders
}

#[cfg(test)]
mod tests {
    use super::{printable, printable_json};

    #[test]
    fn json_stays_json() {
        let value = serde_json::json!("a\u{9b}b\u{202e}c\x1b\u{7f}");
        let shown = printable_json(&value.to_string()).into_owned();
        assert!(shown.is_ascii());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).ok(), Some(value));
    }

    #[test]
    fn what_acts_on_a_terminal_is_spelled_out() {
        let table = [
            ("plain, ünïcode\tand\nlines", "plain, ünïcode\tand\nlines"),
            ("\x1b[2Jgone", "\\x1b[2Jgone"),
            ("over\rwritten \u{7}", "over\\x0dwritten \\x07"),
            ("c1 \u{9b}31m", "c1 \\x9b31m"),
            ("evil\u{202e}txt.exe", "evil\\u{202e}txt.exe"),
        ];
        for (text, shown) in table {
            assert_eq!(printable(text), shown);
        }
        assert_eq!(super::printable_line("a\n 99  root\trunning\x1b"), "a\\n 99  root\\trunning\\x1b");
    }
}
