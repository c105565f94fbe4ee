//! Progress on standard error: a redrawn line on a terminal, an occasional line elsewhere.

use std::io::{self, IsTerminal, Stderr, Write};
use std::time::{Duration, Instant};

use bedplate_units::Seconds;

use crate::{ProgressLine, StepRecord};

/// A terminal is redrawn no more often than people can see.
const REDRAW: Duration = Duration::from_millis(100);

/// The width of a terminal that does not report it.
const USUAL_WIDTH: usize = 80;

/// Shows how far a run is. It can never stop the run: output that cannot be written is lost.
pub struct Progress<W: Write = Stderr> {
    to: W,
    surface: Surface,
    steps: u64,
    began: Option<Began>,
    drawn: Option<Instant>,
    last: Option<ProgressLine>,
}

#[derive(Debug, Clone, Copy)]
enum Surface {
    /// Returns its width.
    Terminal(fn() -> usize),
    Lines {
        every: Duration,
    },
}

/// When this process finished its first step: earlier time must not be extrapolated.
#[derive(Debug, Clone, Copy)]
struct Began {
    step: u64,
    at: Instant,
}

impl Progress {
    /// For a run that ends at step `steps`. Where standard error is not a terminal, a line is printed every `every`.
    pub fn on_stderr(steps: u64, every: Duration) -> Self {
        let to = io::stderr();
        let surface = if to.is_terminal() { Surface::Terminal(width) } else { Surface::Lines { every } };
        Self::new(to, surface, steps)
    }
}

impl<W: Write> Progress<W> {
    fn new(to: W, surface: Surface, steps: u64) -> Self {
        Self { to, surface, steps, began: None, drawn: None, last: None }
    }

    pub fn update(&mut self, record: &StepRecord) {
        self.update_at(record, Instant::now());
    }

    /// Prints something else, with the line of progress below it.
    pub fn say(&mut self, text: &str) {
        let _ = match self.surface {
            Surface::Terminal(_) => write!(self.to, "\r\x1b[2K{text}\n"),
            Surface::Lines { .. } => writeln!(self.to, "{text}"),
        };
        if let (Surface::Terminal(width), Some(line)) = (self.surface, self.last) {
            self.draw(&line, width());
        }
    }

    /// Keeps the last line. Call it when the run ends, however it ends.
    pub fn finish(&mut self) {
        let Some(line) = self.last.take() else { return };
        let _ = match self.surface {
            Surface::Terminal(width) => {
                self.draw(&line, width());
                writeln!(self.to)
            }
            Surface::Lines { .. } => writeln!(self.to, "{}", line.in_full()),
        };
    }

    fn update_at(&mut self, record: &StepRecord, now: Instant) {
        let began = *self.began.get_or_insert(Began { step: record.step, at: now });
        let line = ProgressLine::new(record, self.steps, left(began, record.step, self.steps, now));
        self.last = Some(line);
        let pause = match self.surface {
            Surface::Terminal(_) => REDRAW,
            Surface::Lines { every } => every,
        };
        if self.drawn.is_some_and(|drawn| now.duration_since(drawn) < pause) {
            return;
        }
        self.drawn = Some(now);
        match self.surface {
            Surface::Terminal(width) => self.draw(&line, width()),
            Surface::Lines { .. } => {
                let _ = writeln!(self.to, "{}", line.in_full());
                self.last = None;
            }
        }
    }

    fn draw(&mut self, line: &ProgressLine, width: usize) {
        // A terminal may wrap when its last column is written.
        let _ = write!(self.to, "\r\x1b[2K{}", line.within(width.saturating_sub(1)));
        let _ = self.to.flush();
    }
}

fn width() -> usize {
    terminal_size::terminal_size_of(io::stderr()).map_or(USUAL_WIDTH, |(width, _)| usize::from(width.0))
}

/// At the pace of the steps since the first one, evaluations and checkpoints included.
fn left(began: Began, step: u64, steps: u64, now: Instant) -> Option<Seconds> {
    let done = step.checked_sub(began.step).filter(|done| *done > 0)?;
    let pace = now.duration_since(began.at).as_secs_f64() / done as f64;
    Some(Seconds::new(pace * steps.saturating_sub(step) as f64))
}

#[cfg(test)]
mod tests;
