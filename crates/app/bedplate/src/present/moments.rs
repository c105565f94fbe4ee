//! Times and durations for tables.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A duration as in Slurm's tables: `4:05`, `2:00:00`, `3-04:00:00`.
pub(crate) fn clock(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, hours, minutes, seconds) =
        (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{seconds:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// A time in UTC: `2026-11-15 12:40:07`.
pub(crate) fn moment(ms: u64) -> String {
    let seconds = ms / 1000;
    let (year, month, day) = date(seconds / 86_400);
    let (hours, minutes, rest) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02} {hours:02}:{minutes:02}:{rest:02}")
}

/// The date of a day counted from 1970, by the rule that years of 400 have 146,097 days.
fn date(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, so that the leap day is a year's last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + carry, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_and_moments_read_as_people_write_them() {
        assert_eq!(clock(0), "0:00");
        assert_eq!(clock(245_999), "4:05");
        assert_eq!(clock(7_200_000), "2:00:00");
        assert_eq!(clock(273_600_000), "3-04:00:00");
        assert_eq!(moment(0), "1970-01-01 00:00:00");
        assert_eq!(moment(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(moment(1_794_746_407_000), "2026-11-15 12:40:07");
        assert_eq!(moment(4_107_542_399_000), "2100-02-28 23:59:59");
    }
}
