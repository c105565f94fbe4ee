//! Times and durations for tables.

pub use bedplate_host::clock::unix_ms as now_ms;
use bedplate_units::UtcTime;

/// A duration as in Slurm's tables: `4:05`, `2:00:00`, `3-04:00:00`.
pub fn clock(ms: u64) -> String {
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
pub fn moment(ms: u64) -> String {
    UtcTime::of(ms / 1000).to_string()
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
