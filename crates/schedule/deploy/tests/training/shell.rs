//! A printed command as a shell reads it.

use std::collections::BTreeMap;

/// The words of one command, with the variables that were exported before it.
#[derive(Debug, Default)]
pub(crate) struct Command {
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) words: Vec<String>,
}

impl Command {
    /// Reads comments, `export`, `unset`, and one command over several lines.
    pub(crate) fn read(settings: &str) -> Self {
        let mut command = Self::default();
        for line in settings.replace("\\\n", " ").lines().filter(|line| !line.trim_start().starts_with('#')) {
            if let Some(assignment) = line.strip_prefix("export ") {
                let (name, value) = assignment.split_once('=').expect("an assignment");
                command.environment.insert(name.into(), value.into());
            } else if !line.starts_with("unset ") {
                command.words.extend(words(line));
            }
        }
        command
    }

    /// The words after `name`.
    pub(crate) fn after(&self, name: &str) -> &[String] {
        let place = self.words.iter().position(|word| word == name).expect("the command names its program");
        &self.words[place + 1..]
    }
}

/// Splits at spaces outside quotes, and removes the quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for character in line.chars() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            (None, ' ') => words.push(std::mem::take(&mut word)),
            _ => word.push(character),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}
