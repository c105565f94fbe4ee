//! Times that lines carry, in the many ways in which programs write them.
//!
//! A stamp says how much it knows: some have no year, some no zone, some count from the start of the machine. Times of
//! different kinds are compared only after the caller has said what stands for what is missing.

use bedplate_units::Date;

/// What a time is counted from, and how sure that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StampClock {
    /// Seconds since 1970, with a zone.
    Universal,
    /// Seconds since 1970 of a clock in an unknown zone.
    Local,
    /// As `Local`, in a year that was taken from elsewhere.
    NoYear,
    /// Seconds since the machine started.
    Boot,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stamp {
    pub seconds: f64,
    pub clock: StampClock,
}

/// Stamps stand at the beginning of lines, behind a few labels.
const SEARCHED: usize = 160;

impl Stamp {
    /// The first time in a line. Times without a year are put into `year`.
    pub(crate) fn find(line: &[u8], year: u64) -> Option<Stamp> {
        let head = &line[..line.len().min(SEARCHED)];
        let mut at = 0;
        while let Some(&byte) = head.get(at) {
            let is_start = at == 0 || !head[at - 1].is_ascii_alphanumeric();
            if is_start && (byte.is_ascii_digit() || byte.is_ascii_uppercase()) {
                if let Some(stamp) = Stamp::at(&head[at..], year) {
                    return Some(stamp);
                }
            } else if byte == b'['
                && let Some(stamp) = since_boot(&head[at + 1..])
            {
                return Some(stamp);
            }
            at += 1;
        }
        None
    }

    fn at(text: &[u8], year: u64) -> Option<Stamp> {
        iso(text)
            .or_else(|| slashes(text, year))
            .or_else(|| month_day(text, year))
            .or_else(|| glog(text, year))
            .or_else(|| syslog(text, year))
    }
}

/// `2025-12-19 10:49:15.123+01:00`, with `T` or a space, `,` or `.`.
fn iso(text: &[u8]) -> Option<Stamp> {
    let year = digits(text, 0, 4)?;
    let (month, day) = (after(text, 4, b'-', 2)?, after(text, 7, b'-', 2)?);
    if !matches!(text.get(10), Some(b' ' | b'T')) {
        return None;
    }
    let (clock, end) = clock(&text[11..])?;
    let (offset, clock_kind) = match text.get(11 + end) {
        Some(b'Z') => (0.0, StampClock::Universal),
        Some(sign @ (b'+' | b'-')) => match zone(&text[12 + end..]) {
            Some(seconds) => (if *sign == b'+' { -seconds } else { seconds }, StampClock::Universal),
            None => (0.0, StampClock::Local),
        },
        _ => (0.0, StampClock::Local),
    };
    moment(year, month, day, clock + offset, clock_kind)
}

/// `12/06/2025 13:59:05` and `03/29 14:01:08`: the month comes first.
fn slashes(text: &[u8], year: u64) -> Option<Stamp> {
    let (month, day) = (digits(text, 0, 2)?, after(text, 2, b'/', 2)?);
    match (after(text, 5, b'/', 4), text.get(5)) {
        (Some(year), _) => moment(year, month, day, clock(text.get(11..)?)?.0, StampClock::Local),
        (None, Some(b' ')) => moment(year, month, day, clock(&text[6..])?.0, StampClock::NoYear),
        _ => None,
    }
}

/// `04-28 22:54:32`
fn month_day(text: &[u8], year: u64) -> Option<Stamp> {
    let (month, day) = (digits(text, 0, 2)?, after(text, 2, b'-', 2)?);
    (text.get(5) == Some(&b' ')).then_some(())?;
    moment(year, month, day, clock(text.get(6..)?)?.0, StampClock::NoYear)
}

/// `E0513 13:25:57.714000` and PyTorch's `E513 13:25:57.714`: a level, the month with or without its zero, the day.
fn glog(text: &[u8], year: u64) -> Option<Stamp> {
    matches!(text.first()?, b'E' | b'W' | b'I' | b'F').then_some(())?;
    let length = text[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let months = match length {
        3 => 1,
        4 => 2,
        _ => return None,
    };
    let (month, day) = (digits(text, 1, months)?, digits(text, 1 + months, 2)?);
    (text.get(1 + length) == Some(&b' ')).then_some(())?;
    moment(year, month, day, clock(text.get(2 + length..)?)?.0, StampClock::NoYear)
}

/// `Nov 24 03:20:21` of syslog, and `Nov 24 03:20:21 2025` of `dmesg -T`.
fn syslog(text: &[u8], year: u64) -> Option<Stamp> {
    const MONTHS: &[u8] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let name = text.get(..3)?;
    let month = MONTHS.chunks(3).position(|month| month == name)? as u64 + 1;
    (text.get(3) == Some(&b' ')).then_some(())?;
    let day = match text.get(4)? {
        b' ' => digits(text, 5, 1)?,
        _ => digits(text, 4, 2)?,
    };
    (text.get(6) == Some(&b' ')).then_some(())?;
    let (clock, end) = clock(&text[7..])?;
    match after(text, 7 + end, b' ', 4) {
        Some(year) if (1990..2200).contains(&year) => moment(year, month, day, clock, StampClock::Local),
        _ => moment(year, month, day, clock, StampClock::NoYear),
    }
}

/// `[12345.678901]` of the kernel's log, without its bracket.
fn since_boot(text: &[u8]) -> Option<Stamp> {
    let text = text.trim_ascii_start();
    let end = memchr::memchr(b']', text).filter(|end| *end <= 20)?;
    let text = std::str::from_utf8(&text[..end]).ok()?;
    let (whole, part) = text.split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(whole) && is_number(part) && part.len() == 6).then_some(())?;
    Some(Stamp { seconds: text.parse().ok()?, clock: StampClock::Boot })
}

/// Seconds of the day in `13:59:05.25`, and how long that text is.
fn clock(text: &[u8]) -> Option<(f64, usize)> {
    let (hour, minute, second) = (digits(text, 0, 2)?, after(text, 2, b':', 2)?, after(text, 5, b':', 2)?);
    (hour < 24 && minute < 60 && second < 61).then_some(())?;
    let whole = (hour * 3600 + minute * 60 + second) as f64;
    if !matches!(text.get(8), Some(b'.' | b',')) {
        return Some((whole, 8));
    }
    let length = text[9..].iter().take_while(|byte| byte.is_ascii_digit()).count().min(9);
    let fraction = digits(text, 9, length).unwrap_or(0) as f64 / 10_f64.powi(length as i32);
    Some((whole + fraction, if length == 0 { 8 } else { 9 + length }))
}

/// `01:00` or `0100` as seconds.
fn zone(text: &[u8]) -> Option<f64> {
    let minutes = after(text, 2, b':', 2).or_else(|| digits(text, 2, 2))?;
    Some((digits(text, 0, 2)? * 3600 + minutes * 60) as f64)
}

fn digits(text: &[u8], from: usize, length: usize) -> Option<u64> {
    let digits = text.get(from..from + length).filter(|digits| !digits.is_empty())?;
    digits
        .iter()
        .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + u64::from(byte - b'0')))
}

fn after(text: &[u8], at: usize, separator: u8, length: usize) -> Option<u64> {
    (text.get(at) == Some(&separator)).then(|| digits(text, at + 1, length))?
}

fn moment(year: u64, month: u64, day: u64, clock_seconds: f64, clock: StampClock) -> Option<Stamp> {
    ((1..=12).contains(&month) && (1..=31).contains(&day)).then_some(())?;
    let days = Date { year, month, day }.days_since_1970();
    Some(Stamp { seconds: days as f64 * 86_400.0 + clock_seconds, clock })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_writing_the_same_second() {
        let second = 1_763_954_421.0;
        let cases = [
            ("[2025-11-24 03:20:21] iteration 1", StampClock::Local),
            ("2025-11-24T03:20:21Z pod", StampClock::Universal),
            ("2025-11-24T04:20:21+01:00 pod", StampClock::Universal),
            ("[titan] 2025-11-24 03:20:21 - root - INFO", StampClock::Local),
            ("11/24/2025 03:20:21 [INFO|DP=0]", StampClock::Local),
            ("11/24 03:20:21 - mmengine", StampClock::NoYear),
            ("INFO 11-24 03:20:21 [loggers.py:257]", StampClock::NoYear),
            ("[rank0]:[E1124 03:20:21 ProcessGroupNCCL.cpp:616]", StampClock::NoYear),
            ("Nov 24 03:20:21 node7 kernel: NVRM", StampClock::NoYear),
            ("[Mon Nov 24 03:20:21 2025] NVRM", StampClock::Local),
        ];
        for (line, clock) in cases {
            assert_eq!(Stamp::find(line.as_bytes(), 2025), Some(Stamp { seconds: second, clock }), "{line}");
        }
        let may = Stamp::find(b"[E513 13:25:57.714 x]", 2024).unwrap();
        assert_eq!(may.seconds, 1_715_606_757.714);
        let boot = Stamp::find(b"[12345.678901] NVRM: Xid", 2024).unwrap();
        assert_eq!(boot, Stamp { seconds: 12345.678901, clock: StampClock::Boot });
        for line in ["step: 4 loss 2.5", "10:49:15", "[1/19]", "2025-13-40 99:00:00", "12/06"] {
            assert_eq!(Stamp::find(line.as_bytes(), 2025), None, "{line}");
        }
    }
}
