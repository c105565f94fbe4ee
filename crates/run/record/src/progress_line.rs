//! The state of a run in one line of text.

use bedplate_units::Seconds;

use crate::StepRecord;

/// The content of a progress line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgressLine {
    pub step: u64,
    /// The step at which the run ends.
    pub steps: u64,
    pub loss: f64,
    pub tokens_per_second: f64,
    pub mfu: Option<f64>,
    pub gradient_norm: f64,
    pub learning_rate: f64,
    pub left: Option<Seconds>,
}

/// The narrowest useful bar, and the widest.
const BAR: std::ops::RangeInclusive<usize> = 8..=30;

const GAP: &str = "  ";

impl ProgressLine {
    pub fn new(record: &StepRecord, steps: u64, left: Option<Seconds>) -> Self {
        Self {
            step: record.step,
            steps,
            loss: record.loss,
            tokens_per_second: record.tokens_per_second,
            mfu: record.mfu,
            gradient_norm: record.gradient_norm,
            learning_rate: record.learning_rate,
            left,
        }
    }

    /// At most `width` characters: a bar where there is room for one, and less important words left out where there is
    /// not.
    pub fn within(&self, width: usize) -> String {
        let mut words = self.words();
        let length =
            |words: &[Word]| words.iter().map(|word| word.text.len() + GAP.len()).sum::<usize>() - GAP.len();
        while length(&words) > width && words.len() > 1 {
            let least = words.iter().map(|word| word.rank).max().expect("there are words");
            words.retain(|word| word.rank != least);
        }
        let room = width.saturating_sub(length(&words) + GAP.len() + 2).min(*BAR.end());
        if BAR.contains(&room) {
            words.insert(1, Word { rank: 0, text: self.bar(room) });
        }
        let texts: Vec<String> = words.into_iter().map(|word| word.text).collect();
        texts.join(GAP).chars().take(width).collect()
    }

    /// All words, without a bar.
    pub fn in_full(&self) -> String {
        let texts: Vec<String> = self.words().into_iter().map(|word| word.text).collect();
        texts.join(GAP)
    }

    fn words(&self) -> Vec<Word> {
        let word = |rank, text| Some(Word { rank, text });
        [
            word(0, format!("{}/{}", self.step, self.steps)),
            word(1, format!("loss {}", digits(self.loss, 4))),
            word(3, format!("{} tok/s", scaled(self.tokens_per_second))),
            self.mfu.and_then(|mfu| word(4, format!("MFU {:.0}%", 100.0 * mfu))),
            word(5, format!("norm {}", digits(self.gradient_norm, 3))),
            word(6, format!("lr {}", exponent(self.learning_rate))),
            self.left.and_then(|left| word(2, format!("{} left", duration(left)))),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn bar(&self, room: usize) -> String {
        let share = self.step as f64 / self.steps.max(1) as f64;
        let done = ((share * room as f64) as usize).min(room);
        let head = if done < room { ">" } else { "" };
        format!("[{}{head}{}]", "=".repeat(done), " ".repeat(room - done - head.len()))
    }
}

/// A part of the line; those of higher rank are left out first.
struct Word {
    rank: u8,
    text: String,
}

/// A number of significant digits, without an exponent where that stays short.
fn digits(number: f64, count: usize) -> String {
    if !number.is_finite() || number == 0.0 {
        return number.to_string();
    }
    // Rounded first, since 0.9996 with three digits is 1.00.
    let rounded = format!("{number:.*e}", count - 1);
    let power: i32 = rounded.split('e').nth(1).and_then(|power| power.parse().ok()).unwrap_or(0);
    match power {
        -3..5 => format!("{number:.*}", (count as i32 - 1 - power).max(0) as usize),
        _ => exponent(number),
    }
}

fn exponent(number: f64) -> String {
    if number == 0.0 { "0".into() } else { format!("{number:.1e}") }
}

fn scaled(number: f64) -> String {
    let (number, prefix) = match number {
        number if number >= 999.5e6 => (number / 1e9, "G"),
        number if number >= 999.5e3 => (number / 1e6, "M"),
        number if number >= 999.5 => (number / 1e3, "k"),
        number => (number, ""),
    };
    format!("{}{prefix}", digits(number, 3))
}

/// Two units at most: `41s`, `12m05s`, `3h07m`, `2d04h`.
fn duration(duration: Seconds) -> String {
    let seconds = duration.get().max(0.0).round() as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests;
