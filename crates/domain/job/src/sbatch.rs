//! Jobs from `#SBATCH` scripts, and from the same options on a command line.
//!
//! An option is honoured, or a [`Remark`] says what happens instead, or it is an error; none is dropped in
//! silence. [`OPTIONS`] is the one table of them. A [`Draft`] collects options, the last of a name winning, and
//! [`Draft::finish`] works out the gang, which Slurm's options describe in many ways.

mod draft;
mod options;
mod render;
mod scan;
mod setters;
mod shape;

use bedplate_diag::Source;

pub use draft::{Draft, Imported, Remark};
pub use options::{OPTIONS, SbatchOption, Takes};
pub use render::{Rendered, Setting, render};

use crate::{Job, JobError, Workload};

/// Slurm's own default limit.
const LONGEST_SCRIPT: usize = 4 << 20;

/// Applies an option, by its long name (`nodes`) or its letter (`N`), with or without dashes before it.
pub fn apply(draft: &mut Draft, option: &str, value: Option<&str>) -> Result<(), JobError> {
    draft.apply(option, value)
}

impl Job {
    /// Reads the `#SBATCH` lines of a batch script. The whole script becomes the workload; `name` is what
    /// errors call it, and what the job is called unless an option says otherwise.
    pub fn from_sbatch(script: &str, name: &str) -> Result<Imported, JobError> {
        Draft::from_script(script, name)?.finish()
    }

    /// A job from options, as `--nodes 2 --gpus-per-node 8 -- torchrun train.py` has them.
    ///
    /// The command is started once per task. Without one, `--wrap` must say what runs.
    pub fn from_options(
        options: &[(String, Option<String>)],
        arguments: Vec<String>,
    ) -> Result<Imported, JobError> {
        let program =
            arguments.first().and_then(|program| program.rsplit('/').next()).unwrap_or("").to_owned();
        let mut draft = Draft::new(&program, Workload::Command { arguments });
        for (option, value) in options {
            draft.apply(option, value.as_deref())?;
        }
        draft.finish()
    }
}

impl Draft {
    /// The draft that a script's own options make; options given beside the script can follow.
    pub fn from_script(script: &str, name: &str) -> Result<Self, JobError> {
        let source = Source::new(name, script);
        if script.len() > LONGEST_SCRIPT {
            let too_large = JobError::TooLarge {
                what: "the script",
                bytes: script.len(),
                limit: LONGEST_SCRIPT,
                place: None,
            };
            return Err(too_large.at(source.whole()));
        }
        if !script.starts_with("#!") {
            return Err(JobError::NotAScript { place: None }.at(source.line(1)));
        }
        let file = name.rsplit('/').next().unwrap_or(name);
        let mut draft = Draft::new(file, Workload::Script { text: script.to_owned() });
        for line in scan::lines(script) {
            draft.add_line(&line).map_err(|error| error.at(source.line(line.number)))?;
        }
        draft.line = None;
        Ok(draft)
    }

    fn add_line(&mut self, line: &scan::Line<'_>) -> Result<(), JobError> {
        self.line = Some(line.number);
        match line.kind {
            scan::Kind::Indented => {
                self.remark_on("#SBATCH", "the line is indented, so it is a comment, as for sbatch");
                Ok(())
            }
            scan::Kind::TooLate => {
                self.remark_on("#SBATCH", "the line follows a command, so it is a comment, as for sbatch");
                Ok(())
            }
            scan::Kind::Directive(text) => self.apply_words(scan::words(text)?),
        }
    }

    /// Applies the options among the words of one line.
    fn apply_words(&mut self, words: Vec<String>) -> Result<(), JobError> {
        for (name, value) in settings(words)? {
            self.apply(&name, value.as_deref())?;
        }
        Ok(())
    }
}

/// The options among the words of one line, by their long names.
fn settings(words: Vec<String>) -> Result<Vec<Setting>, JobError> {
    let mut words = words.into_iter();
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        if let Some(long) = word.strip_prefix("--") {
            found.push(long_option(long, &mut words)?);
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            add_letters(letters, &mut words, &mut found)?;
        } else if word == "hetjob" || word == "packjob" {
            return Err(JobError::BadOption {
                option: word,
                reason:
                    "a job of several unequal parts (a heterogeneous job) is written as a job file with a \
                         `[[role]]` for each part"
                        .into(),
                place: None,
            });
        } else {
            return Err(options::unknown(&word, word.clone()));
        }
    }
    Ok(found)
}

/// `nodes=2`, or `nodes` with the next word as its value, where it must have one.
fn long_option(long: &str, words: &mut impl Iterator<Item = String>) -> Result<Setting, JobError> {
    if let Some((name, value)) = long.split_once('=') {
        return Ok((options::find(name)?.name.to_owned(), Some(value.to_owned())));
    }
    let row = options::find(long)?;
    let value = if row.takes == Takes::Value { words.next() } else { None };
    Ok((row.name.to_owned(), value))
}

/// `-N2`, `-N 2`, `-Hk`: letters without values up to one that takes the rest.
fn add_letters(
    letters: &str,
    words: &mut impl Iterator<Item = String>,
    found: &mut Vec<Setting>,
) -> Result<(), JobError> {
    for (at, letter) in letters.char_indices() {
        let row = options::find(&letters[at..at + letter.len_utf8()])?;
        let rest = &letters[at + letter.len_utf8()..];
        if row.takes == Takes::Value {
            let value = if rest.is_empty() { words.next() } else { Some(rest.to_owned()) };
            found.push((row.name.to_owned(), value));
            return Ok(());
        }
        found.push((row.name.to_owned(), None));
    }
    Ok(())
}
