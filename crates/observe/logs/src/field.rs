//! The figures that lines of steps carry, under one set of names.

use std::fmt;

/// A figure of a step or of a server's interval. Rates are per second; times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    Epoch,
    Loss,
    GradNorm,
    LearningRate,
    /// Sequences of a step, over all ranks.
    GlobalBatch,
    TokensPerSecond,
    SamplesPerSecond,
    /// TFLOP/s of a device.
    Tflops,
    /// Model FLOPs utilisation in per cent.
    Mfu,
    /// Waiting for the data loader, within the step.
    Data,
    /// Time inside the timed part of the program since it began.
    TrainTime,
    /// GiB of a device.
    Memory,
    /// Steps that were skipped because of overflows, in this step or so far.
    Skipped,
    /// A server's prompt tokens per second.
    Prompt,
    /// A server's generated tokens per second.
    Generation,
    Running,
    Waiting,
    /// Share of the key-value cache in use, 0 to 1.
    Cache,
    Preemptions,
    /// Requests or tokens of a line about one request.
    Tokens,
}

impl Field {
    pub const ALL: [(Field, &'static str); 20] = [
        (Field::Epoch, "epoch"),
        (Field::Loss, "loss"),
        (Field::GradNorm, "grad_norm"),
        (Field::LearningRate, "learning_rate"),
        (Field::GlobalBatch, "global_batch"),
        (Field::TokensPerSecond, "tokens_per_second"),
        (Field::SamplesPerSecond, "samples_per_second"),
        (Field::Tflops, "tflops"),
        (Field::Mfu, "mfu"),
        (Field::Data, "data_seconds"),
        (Field::TrainTime, "train_time"),
        (Field::Memory, "memory_gib"),
        (Field::Skipped, "skipped"),
        (Field::Prompt, "prompt"),
        (Field::Generation, "generation"),
        (Field::Running, "running"),
        (Field::Waiting, "waiting"),
        (Field::Cache, "cache"),
        (Field::Preemptions, "preemptions"),
        (Field::Tokens, "tokens"),
    ];

    pub fn name(self) -> &'static str {
        Field::ALL.into_iter().find(|(field, _)| *field == self).map_or("", |(_, name)| name)
    }

    pub fn find(name: &str) -> Option<Field> {
        Field::ALL.into_iter().find(|(_, known)| *known == name).map(|(field, _)| field)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A number as programs print it: `1,055.9`, `1.31M`, `3.2e+4`, `'0.0618'`, `np.float64(2.5)`, `nan`, `97.3%`.
pub(crate) fn number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim().trim_matches(['\'', '"']);
    let text = match text.split_once('(') {
        Some((name, inner)) if name.starts_with("np.") || name == "tensor" => {
            inner.split([',', ')']).next()?
        }
        _ => text,
    };
    let text = text.trim_end_matches('%').trim_end_matches("GiB").trim();
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let (digits, factor) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 1e3),
        (at, 'M') => (&text[..at], 1e6),
        (at, 'B' | 'G') => (&text[..at], 1e9),
        (at, 'T') => (&text[..at], 1e12),
        _ => (text, 1.0),
    };
    digits.replace(',', "").parse::<f64>().ok().map(|number| number * factor)
}

/// A duration with its unit, as in `1.234s`, `12.3ms`, `50.1µs`; seconds without one.
pub(crate) fn duration(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim().trim_matches(['\'', '"']);
    let units = [("ns", 1e9), ("µs", 1e6), ("us", 1e6), ("ms", 1e3), ("s", 1.0)];
    for (unit, in_a_second) in units {
        if let Some(digits) = text.strip_suffix(unit) {
            return number(digits.as_bytes()).map(|number| number / in_a_second);
        }
    }
    number(text.as_bytes())
}

/// Time since a start as progress bars write it: `04:16`, `1:54:39`, `2 days, 3:04:05`, `1d 02:03:04`.
pub(crate) fn elapsed(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim().trim_matches(['\'', '"']);
    let (days, clock) = match text.rsplit_once([' ', ',']) {
        Some((days, clock)) => {
            let digits = days.trim_start().split(|each: char| !each.is_ascii_digit()).next()?;
            (digits.parse::<f64>().ok()?, clock)
        }
        None => (0.0, text),
    };
    let mut seconds = 0.0;
    let mut parts = 0;
    for part in clock.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok().filter(|part| *part >= 0.0)?;
        parts += 1;
    }
    (2..=3).contains(&parts).then_some(days * 86_400.0 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_programs_print_them() {
        let cases = [
            ("1,055.949", 1055.949),
            ("1.31M", 1.31e6),
            ("290K", 290e3),
            ("3.2e+4", 3.2e4),
            ("'0.0618'", 0.0618),
            ("np.float64(257.5)", 257.5),
            ("tensor(2.5, device='cuda:0')", 2.5),
            ("97.3%", 97.3),
            ("-1e-3", -1e-3),
        ];
        for (text, expected) in cases {
            let read = number(text.as_bytes()).unwrap_or_else(|| panic!("{text}"));
            assert!((read - expected).abs() <= 1e-9 * expected.abs(), "{text}: {read}");
        }
        assert!(number(b"nan").is_some_and(f64::is_nan));
        assert_eq!((number(b"N/A"), number(b""), number("µ".as_bytes())), (None, None, None));
    }

    #[test]
    fn durations_and_clocks() {
        assert_eq!(duration(b"12.5ms"), Some(0.0125));
        assert_eq!(duration("50µs".as_bytes()), Some(50e-6));
        assert_eq!(duration(b"87.0"), Some(87.0));
        assert_eq!(elapsed(b"04:16"), Some(256.0));
        assert_eq!(elapsed(b"1:54:39"), Some(6879.0));
        assert_eq!(elapsed(b"2 days, 3:04:05"), Some(183_845.0));
        assert_eq!((elapsed(b"?"), elapsed(b"7"), elapsed(b"1:2:3:4")), (None, None, None));
    }
}
