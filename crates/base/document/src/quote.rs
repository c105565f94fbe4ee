//! Texts as other notations write them: TOML, YAML and a shell.

use serde_json::Value;

/// A TOML string with these contents. JSON's escapes are TOML's, except that TOML also escapes DEL.
pub fn toml(text: &str) -> String {
    yaml(text).replace('\u{7f}', "\\u007f")
}

/// A YAML string with these contents; JSON's strings are YAML's too.
pub fn yaml(text: &str) -> String {
    Value::from(text).to_string()
}

/// A word in single quotes that a shell reads as this text.
pub fn shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A word that a shell reads as this text, in quotes only where it needs them.
pub fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./:,@%+=".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => shell(text),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_diag::Source;

    use super::*;
    use crate::Table;

    #[test]
    fn texts_are_quoted_as_each_notation_reads_them() {
        assert_eq!(toml("a \"b\"\\\n\u{7f}"), r#""a \"b\"\\\n\u007f""#);
        assert_eq!(yaml("yes: \"no\""), r#""yes: \"no\"""#);
        assert_eq!(shell_word("--name=a/b,c"), "--name=a/b,c");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!((shell_word("").as_str(), shell("a").as_str()), ("''", "'a'"));
    }

    #[test]
    fn a_quoted_text_reads_back() {
        for text in ["", "plain", "\"\\\u{7f}\u{0}\n\té", "'''"] {
            let document = format!("key = {}", toml(text));
            let table = Table::parse(Source::new("quoted.toml", &document)).unwrap();
            assert_eq!(table.required::<String>("key").unwrap(), text);
        }
    }
}
