//! Python programs measured as peers on this machine, from an embedded script.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use bedplate_diag::{Diagnostic, Page, shown};
use bedplate_terminal::benchmarks::PEER_FAILED;

#[derive(Debug, thiserror::Error)]
#[error("the peer could not be measured")]
pub(super) struct PeerFailed {
    #[source]
    why: PeerTrouble,
}

impl PeerFailed {
    /// The answer is not one.
    pub(super) fn not_figures(answer: &str) -> Self {
        Self { why: PeerTrouble::NoFigures(shown(answer)) }
    }
}

#[derive(Debug, thiserror::Error)]
enum PeerTrouble {
    #[error("{python} did not start: {error}")]
    NotStarted { python: String, error: std::io::Error },
    #[error("it printed no figures; its last line was: {0}")]
    NoFigures(String),
    #[error("it said nothing for {} s", .0.as_secs())]
    Silent(Duration),
}

impl Diagnostic for PeerFailed {
    fn page(&self) -> &'static Page {
        &PEER_FAILED
    }
}

/// A script, its interpreter and its folder.
pub(super) struct Script<'a> {
    pub(super) python: &'a str,
    pub(super) text: &'a str,
    pub(super) arguments: Vec<String>,
    pub(super) directory: &'a str,
}

impl Script<'_> {
    /// The result of `read` on the lines that the script prints; `None` means that it failed.
    pub(super) fn run<T>(&self, read: impl FnOnce(&str) -> Option<T>) -> Result<T, PeerFailed> {
        let output = Command::new(self.python)
            .arg("-c")
            .arg(self.text)
            .args(&self.arguments)
            .current_dir(self.directory)
            .output()
            .map_err(|error| PeerFailed {
                why: PeerTrouble::NotStarted { python: self.python.to_owned(), error },
            })?;
        let text = String::from_utf8_lossy(&output.stdout);
        read(&text).ok_or_else(|| {
            let told = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
            PeerFailed { why: PeerTrouble::NoFigures(told.lines().last().unwrap_or("nothing").to_owned()) }
        })
    }
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// A script that runs beside us and answers questions line by line.
pub(super) struct Companion {
    child: Child,
    questions: Option<ChildStdin>,
    answers: Receiver<String>,
    errors: thread::JoinHandle<String>,
}

impl Companion {
    /// Starts a script, which says "ready" before it is asked.
    pub(super) fn start(script: &Script<'_>) -> Result<Self, PeerFailed> {
        let mut command = Command::new(script.python);
        command.arg("-c").arg(script.text).args(&script.arguments).current_dir(script.directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed =
            |error| PeerFailed { why: PeerTrouble::NotStarted { python: script.python.to_owned(), error } };
        let mut child = command.spawn().map_err(failed)?;
        let (questions, said, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (send, answers) = channel();
        thread::spawn(move || {
            let lines = said.into_iter().flat_map(|said| BufReader::new(said).lines());
            lines.map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let errors = thread::spawn(move || {
            let mut text = String::new();
            if let Some(mut errors) = errors {
                // What is no text is not shown.
                let _ = errors.read_to_string(&mut text);
            }
            text
        });
        let mut companion = Self { child, questions, answers, errors };
        match companion.hear()?.as_str() {
            "ready" => Ok(companion),
            other => Err(PeerFailed { why: PeerTrouble::NoFigures(other.to_owned()) }),
        }
    }

    pub(super) fn ask(&mut self, question: &str) -> Result<f64, PeerFailed> {
        let answer = self.ask_text(question)?;
        answer.trim().parse().map_err(|_| PeerFailed::not_figures(&answer))
    }

    /// Asks for an answer of one line.
    pub(super) fn ask_text(&mut self, question: &str) -> Result<String, PeerFailed> {
        if let Some(questions) = &mut self.questions {
            // One that has gone is found when it does not answer.
            let _ = writeln!(questions, "{question}");
        }
        self.hear()
    }

    fn hear(&mut self) -> Result<String, PeerFailed> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(PeerFailed { why: PeerTrouble::Silent(PATIENCE) }),
            Err(RecvTimeoutError::Disconnected) => {
                let silent = thread::spawn(String::new);
                let errors = std::mem::replace(&mut self.errors, silent).join().unwrap_or_default();
                let last = errors.lines().last().unwrap_or("nothing").to_owned();
                Err(PeerFailed { why: PeerTrouble::NoFigures(last) })
            }
        }
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
