//! Dates and times of the Gregorian calendar, from and to days and seconds since 1970.
//!
//! The arithmetic is Hinnant's (days_from_civil, civil_from_days): years begin in March, so that the leap day is the
//! last of its year, and repeat every 400 years.

use std::fmt;

/// A date in UTC. Prints as `2026-11-15`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    pub year: u64,
    pub month: u64,
    pub day: u64,
}

const DAYS_IN_400_YEARS: u64 = 146_097;
/// From 0000-03-01 to 1970-01-01.
const DAYS_BEFORE_1970: u64 = 719_468;

impl Date {
    /// The date of a day counted from 1970-01-01.
    pub fn of_day(day: u64) -> Self {
        let day = day + DAYS_BEFORE_1970;
        let (era, day) = (day / DAYS_IN_400_YEARS, day % DAYS_IN_400_YEARS);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        Self { year: era * 400 + year + carry, month, day }
    }

    /// Days since 1970-01-01, negative before it. The month is 1 to 12; a day beyond its end counts into the next.
    pub fn days_since_1970(self) -> i64 {
        let year = self.year as i64 - i64::from(self.month <= 2);
        let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        let day_of_year = (153 * ((self.month + 9) % 12) + 2) / 5 + self.day - 1;
        year * 365 + leap_days + day_of_year as i64 - DAYS_BEFORE_1970 as i64
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// A second of the calendar in UTC. Prints as `2026-11-15 12:40:07`, and with `#` as `2026-11-15T12:40:07`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcTime {
    pub date: Date,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
}

impl UtcTime {
    pub fn of(unix_seconds: u64) -> Self {
        let (day, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
        Self { date: Date::of_day(day), hour: second / 3600, minute: second / 60 % 60, second: second % 60 }
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = if f.alternate() { 'T' } else { ' ' };
        write!(f, "{}{between}{:02}:{:02}:{:02}", self.date, self.hour, self.minute, self.second)
    }
}

/// A time as files and servers write it: a date, a time of day where there is one, with a fraction and a zone or without,
/// as in `2026-11-16T02:00:00.25+01:00`. Without a zone it is read as UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenTime {
    pub unix_seconds: i64,
    /// After that second.
    pub picoseconds: u64,
    pub has_zone: bool,
}

impl WrittenTime {
    pub fn read(text: &str) -> Option<Self> {
        let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
        let (time, offset, has_zone) = split_zone(time)?;
        let [year, month, day] = numbers(date, '-')?[..] else { return None };
        let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let (hour, minute, second) = match numbers(clock, ':')?[..] {
            [hour, minute] => (hour, minute, 0),
            [hour, minute, second] => (hour, minute, second),
            _ => return None,
        };
        // The last minute of a day may have a leap second.
        if hour > 23 || minute > 59 || second > 60 || !(1..=12).contains(&fraction.len()) {
            return None;
        }
        let picoseconds = digits(fraction)? * 10_u64.pow(12 - fraction.len() as u32);
        let time_of_day = hour * 3600 + minute * 60 + second;
        let unix_seconds = checked_day(year, month, day)? * 86_400 + time_of_day as i64 - offset;
        Some(Self { unix_seconds, picoseconds, has_zone })
    }

    /// Whole milliseconds since 1970; nothing before that.
    pub fn unix_ms(self) -> Option<u64> {
        Some(u64::try_from(self.unix_seconds).ok()? * 1000 + self.picoseconds / 1_000_000_000)
    }
}

/// Days since 1970 of a date that the calendar has.
fn checked_day(year: u64, month: u64, day: u64) -> Option<i64> {
    let first = |year, month| Date { year, month, day: 1 }.days_since_1970();
    let end = if month == 12 { first(year + 1, 1) } else { first(year, month + 1) };
    let is_month = (1..=12).contains(&month) && day >= 1;
    Some(Date { year, month, day })
        .filter(|_| is_month)
        .map(Date::days_since_1970)
        .filter(|found| *found < end)
}

/// The time without its zone, the zone's seconds east of Greenwich, and whether there is one.
fn split_zone(time: &str) -> Option<(&str, i64, bool)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return Some((time, 0, true));
    }
    let Some(at) = time.find(['+', '-']) else { return Some((time, 0, false)) };
    let [hours, minutes] = numbers(&time[at + 1..], ':')?[..] else { return None };
    let seconds = (hours <= 23 && minutes <= 59).then_some((hours * 3600 + minutes * 60) as i64)?;
    Some((&time[..at], if time[at..].starts_with('-') { -seconds } else { seconds }, true))
}

/// Numbers of at most four digits.
fn numbers(text: &str, separator: char) -> Option<Vec<u64>> {
    text.split(separator).map(|part| digits(part).filter(|_| part.len() <= 4)).collect()
}

fn digits(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_four_centuries_is_the_one_after_the_last() {
        for day in 0..DAYS_IN_400_YEARS {
            let (date, next) = (Date::of_day(day), Date::of_day(day + 1));
            assert_eq!(date.days_since_1970(), day as i64, "{date}");
            assert!(date < next, "{date} {next}");
        }
        assert_eq!(Date::of_day(11_016).to_string(), "2000-02-29");
        assert_eq!(Date { year: 1969, month: 12, day: 31 }.days_since_1970(), -1);
    }

    #[test]
    fn times_are_read_as_people_and_servers_write_them() {
        let seconds = |text: &str| WrittenTime::read(text).map(|time| time.unix_seconds);
        for (text, expected) in [
            ("1970-01-01", Some(0)),
            ("1969-12-31 23:59:59", Some(-1)),
            ("2017-10-09 07:01:55", Some(1_507_532_515)),
            ("2024-02-29T23:59:59Z", Some(1_709_251_199)),
            ("2024-03-01T00:59:59+01:00", Some(1_709_251_199)),
            ("2024-02-29T18:29:59-05:30", Some(1_709_251_199)),
            ("2016-12-31T23:59:60Z", Some(1_483_228_800)),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2023-13-01",
            "2023-00-01",
            "2023-02-29",
            "2023-04-31",
            "2023-11-00",
            "2023-11-16 25:00:00",
            "2023-11-16T02:60",
            "2023-11-16T02:00:00.",
            "2023-11-16T02:00+25:00",
            "12023-11-16",
            "2023-11-+6",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
        let precise = WrittenTime::read("1970-01-01 00:00:01.0625").unwrap();
        assert_eq!((precise.picoseconds, precise.unix_ms()), (62_500_000_000, Some(1062)));
        assert!(!precise.has_zone);
    }

    #[test]
    fn a_printed_time_reads_back() {
        for unix_seconds in [0, 951_782_399, 951_827_696, 4_107_542_399, 253_402_300_799] {
            let time = UtcTime::of(unix_seconds);
            for text in [format!("{time}"), format!("{time:#}Z")] {
                assert_eq!(WrittenTime::read(&text).unwrap().unix_seconds, unix_seconds as i64, "{text}");
            }
        }
        assert_eq!(format!("{:#}", UtcTime::of(951_827_696)), "2000-02-29T12:34:56");
    }
}
