//! Words for a shell and for `#SBATCH` lines.

use bedplate_document::quote;

/// Words on one line.
pub(crate) fn line(words: &[String]) -> String {
    words.iter().map(|text| quote::shell_word(text)).collect::<Vec<_>>().join(" ")
}

/// A hook or probe as one line: a single word is a line already.
pub(crate) fn hook(words: &[String]) -> String {
    match words {
        [only] => only.clone(),
        words => line(words),
    }
}

/// A hook as words for `srun`, which starts programs and not lines.
pub(crate) fn hook_words(words: &[String]) -> String {
    match words {
        [only] => format!("sh -c {}", quote::shell_word(only)),
        words => line(words),
    }
}

/// The value of an option as sbatch reads it: quotations as in a shell, but no joining of them.
pub(crate) fn option_value(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,@%+=&[]*()".contains(c);
    if value.chars().all(is_plain) {
        return value.to_owned();
    }
    if !value.contains('\'') {
        return format!("'{value}'");
    }
    format!("\"{}\"", value.replace('\\', r"\\").replace('"', r#"\""#))
}

/// Whether a line such as `#!/bin/bash -l` names a shell whose language has `export` and `trap`.
pub(crate) fn is_shell(first_line: &str) -> bool {
    let mut words = first_line.trim_start_matches("#!").split_whitespace();
    let program = words.next().unwrap_or("");
    let name = |path: &str| path.rsplit('/').next().unwrap_or("").to_owned();
    let program = match name(program).as_str() {
        "env" => name(words.find(|word| !word.starts_with('-')).unwrap_or("")),
        other => other.to_owned(),
    };
    ["sh", "bash", "dash", "ash", "ksh", "zsh"].contains(&program.as_str())
}
