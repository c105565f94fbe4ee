//! Why a command ended early, and the exit code of the program.

use std::io;
use std::process::ExitCode;

use bedplate_diag::{Class, Diagnostic, Page, pages, render_json, render_text};
use bedplate_host::panics;

use crate::console::Console;
use crate::present::{printable, printable_json};

/// Why a command ended early.
#[derive(Debug)]
pub enum CliError {
    /// Something is wrong, and the diagnostic says what.
    Failed(Box<dyn Diagnostic>),
    /// The answer is no, and the output says why.
    Refused,
    /// Not our failure: the awaited job ended with this code.
    Job(u8),
    /// The command line asked for help or the version, or could not be parsed.
    CommandLine(clap::Error),
    /// The reader of our output is gone, as after `| head`; not an error.
    Unread,
}

impl CliError {
    /// Usage errors, and the help and version texts that clap hands over in the same way.
    pub fn from_clap(error: clap::Error) -> Self {
        CliError::CommandLine(error)
    }

    /// In one line, for a log.
    pub fn summary(&self) -> String {
        match self {
            CliError::Failed(diagnostic) => diagnostic.to_string(),
            CliError::Refused => "refused".to_owned(),
            CliError::Job(code) => format!("the job ended with {code}"),
            CliError::CommandLine(error) => error.to_string(),
            CliError::Unread => "the reader of the output is gone".to_owned(),
        }
    }

    /// For a failed write to standard output.
    pub fn from_output(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::BrokenPipe => CliError::Unread,
            _ => ProgramError::Output { source }.into(),
        }
    }
}

impl<E: Diagnostic> From<E> for CliError {
    fn from(error: E) -> Self {
        CliError::Failed(Box::new(error))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("{message}")]
    Usage { message: String },
    #[error("cannot write to standard output")]
    Output { source: io::Error },
    #[error("cannot start the program `{name}`")]
    Companion { name: &'static str, source: io::Error },
    #[error("bedplate stopped because of a bug: {what}")]
    Bug { what: String },
}

pages! { pub PAGES "command":
    USAGE "usage" Usage
        "The command line could not be parsed: an unknown command or flag, a missing argument, or a value of the wrong form."
        "see `bedplate help`, or `--help` after any command"
    OUTPUT "output" Transient
        "The result could not be written to standard output, for example because the disk is full."
        "make room or write elsewhere, then run the command again"
    COMPANION "companion" User
        "Benchmarks are a program of their own, `bedplate-bench`, and they measure the program `bedplate`. Each looks for the other in its own folder, then on the PATH."
        "build both with `cargo build --release -p bedplate -p bedplate-bench`, or install them with `cargo install --path crates/app/bedplate` and `cargo install --path crates/app/bench`"
    BUG "bug" Bug
        "The program reached a state that should be impossible. Your input may be fine."
        "please report the command, its input and this message"
}

impl Diagnostic for ProgramError {
    fn page(&self) -> &'static Page {
        match self {
            ProgramError::Usage { .. } => &USAGE,
            ProgramError::Output { .. } => &OUTPUT,
            ProgramError::Companion { .. } => &COMPANION,
            ProgramError::Bug { .. } => &BUG,
        }
    }
}

/// Runs a command; a panic becomes a diagnostic that names the place in our source. From now on panics of all threads are printed.
pub fn catching_bugs(command: impl FnOnce() -> Result<(), CliError>) -> Result<(), CliError> {
    panics::print_all();
    panics::caught(command).unwrap_or_else(|what| Err(ProgramError::Bug { what }.into()))
}

/// Reports how it ended and returns the exit code: 0 done, 1 refused or failed, 2 usage,
/// 3 transient, 70 our bug.
pub fn report(outcome: Result<(), CliError>, console: &Console) -> ExitCode {
    match outcome {
        Ok(()) | Err(CliError::Unread) => ExitCode::SUCCESS,
        Err(CliError::Job(code)) => ExitCode::from(code),
        Err(CliError::Refused) => ExitCode::from(Class::User.exit_code()),
        Err(CliError::Failed(diagnostic)) => report_failure(diagnostic.as_ref(), console),
        Err(CliError::CommandLine(error)) if !error.use_stderr() => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        Err(CliError::CommandLine(error)) => {
            if console.is_json() {
                let message = error.to_string().trim().trim_start_matches("error: ").to_owned();
                return report_failure(&ProgramError::Usage { message }, console);
            }
            let _ = error.print();
            ExitCode::from(Class::Usage.exit_code())
        }
    }
}

fn report_failure(diagnostic: &dyn Diagnostic, console: &Console) -> ExitCode {
    let text = match console.is_json() {
        true => printable_json(&format!("{:#}\n", render_json(diagnostic))).into_owned(),
        false => printable(&render_text(diagnostic)).into_owned(),
    };
    console.say_raw(&text);
    ExitCode::from(diagnostic.page().class.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_bug_report_with_its_place() {
        let outcome = catching_bugs(|| panic!("gang is empty"));
        let Err(CliError::Failed(diagnostic)) = outcome else { panic!("no diagnostic") };
        assert_eq!(diagnostic.page().class.exit_code(), 70);
        let text = diagnostic.to_string();
        assert!(text.contains("gang is empty") && text.contains("cli_error.rs"), "{text}");
    }
}
