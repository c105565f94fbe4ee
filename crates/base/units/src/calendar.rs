//! Dates of the Gregorian calendar, from and to days since 1970.
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
}
