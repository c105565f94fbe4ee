//! What commands that diagnose share: their tables, jobs of the cluster as cases, and how the answer is shown.

pub(crate) mod job;

use std::path::PathBuf;

use bedplate_diag::Source;
use bedplate_diagnose::Diagnosis;
use bedplate_drivers::JobId;
use bedplate_evidence::Gathered;
use bedplate_logs::Recognizer;
use bedplate_terminal::{CliError, Console, files, verdicts};

/// One input that is the number of a job and no file.
pub(crate) fn named_job(inputs: &[PathBuf]) -> Option<JobId> {
    let [only] = inputs else { return None };
    let text = only.to_str()?;
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
        && text.starts_with(|first: char| first.is_ascii_digit());
    (is_number && !only.exists()).then(|| JobId::from(text))
}

/// The built-in tables with a user's own.
pub(crate) fn recognizer(own: &[String]) -> Result<Recognizer, CliError> {
    let texts: Vec<(String, String)> = own
        .iter()
        .map(|path| Ok((path.clone(), files::read_text(path)?)))
        .collect::<Result<_, CliError>>()?;
    let sources: Vec<Source<'_>> = texts.iter().map(|(path, text)| Source::new(path, text)).collect();
    Ok(Recognizer::with_own(&sources)?)
}

pub(crate) fn show(
    diagnosis: &Diagnosis,
    gathered: &Gathered,
    console: &mut Console,
) -> Result<(), CliError> {
    if console.is_json() {
        return console.json(&verdicts::json(diagnosis, gathered));
    }
    console.text(&verdicts::text(diagnosis, gathered, console.width()))
}
