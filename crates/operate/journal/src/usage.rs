//! Who used how much, between two times.
//!
//! A run counts from its start, when its devices were taken, to its end; only the part inside the interval counts, and
//! a run that has not ended counts until `now`. Energy and processor time, known once for a whole run, are spread
//! evenly over it.

use std::collections::BTreeMap;

pub use bedplate_control::UsageBy;
use bedplate_gangs::Time;
use bedplate_units::Date;
use rusqlite::{Row, params};

use crate::{JournalError, Reader};

const DAY_MS: u64 = 86_400_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageFilter {
    pub since: Time,
    /// Not included.
    pub until: Time,
    pub now: Time,
    /// Only runs of this user, of this account.
    pub user: Option<String>,
    pub account: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageRow {
    pub key: String,
    pub runs: u64,
    pub gpu_ms: u128,
    pub cpu_ms: f64,
    /// Of those runs whose energy is known.
    pub energy_joules: f64,
    pub metered_runs: u64,
}

impl UsageRow {
    pub fn gpu_hours(&self) -> f64 {
        self.gpu_ms as f64 / 3_600_000.0
    }
}

impl Reader {
    /// In the order of the keys; jobs by number.
    pub fn usage(&self, by: UsageBy, filter: &UsageFilter) -> Result<Vec<UsageRow>, JournalError> {
        self.sum_usage(by, filter).map_err(JournalError::reading("usage"))
    }

    fn sum_usage(&self, by: UsageBy, filter: &UsageFilter) -> rusqlite::Result<Vec<UsageRow>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT runs.job, user, account, gpus, runs.started_ms, runs.ended_ms, cpu_ms, energy_joules
             FROM runs JOIN jobs ON jobs.id = runs.job
             WHERE (runs.ended_ms IS NULL OR runs.ended_ms >= ?1) AND runs.started_ms < ?2
                AND (?3 IS NULL OR user = ?3) AND (?4 IS NULL OR account = ?4)",
        )?;
        let bound = |time: Time| time.0.min(Time::NEVER.0);
        let mut rows = statement.query(params![
            bound(filter.since),
            bound(filter.until),
            filter.user,
            filter.account
        ])?;
        let mut sums: BTreeMap<Key, UsageRow> = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let run = Run::read(row, filter.now)?;
            for piece in run.pieces(by, filter) {
                let sum = sums.entry(run.key(by, piece)).or_default();
                run.count(piece, sum);
            }
        }
        Ok(sums.into_iter().map(|(key, sum)| UsageRow { key: key.text(), ..sum }).collect())
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Name(String),
    Number(u64),
    Day(u64),
}

impl Key {
    fn text(self) -> String {
        match self {
            Key::Name(name) => name,
            Key::Number(number) => number.to_string(),
            Key::Day(day) => Date::of_day(day).to_string(),
        }
    }
}

/// A stretch of time, its end not included.
#[derive(Clone, Copy)]
struct Piece {
    from: u64,
    to: u64,
}

struct Run {
    job: u64,
    user: String,
    account: String,
    gpus: u64,
    whole: Piece,
    cpu_ms: u64,
    energy_joules: Option<u64>,
}

impl Run {
    fn read(row: &Row<'_>, now: Time) -> rusqlite::Result<Self> {
        let from = row.get(4)?;
        let to = row.get::<_, Option<u64>>(5)?.unwrap_or(now.0).max(from);
        Ok(Self {
            job: row.get(0)?,
            user: row.get(1)?,
            account: row.get(2)?,
            gpus: row.get(3)?,
            whole: Piece { from, to },
            cpu_ms: row.get(6)?,
            energy_joules: row.get(7)?,
        })
    }

    /// The parts that are added up on their own. A run that took no time is one empty piece where it was.
    fn pieces(&self, by: UsageBy, filter: &UsageFilter) -> Vec<Piece> {
        let Piece { from, to } = self.whole;
        let inside = Piece { from: from.max(filter.since.0), to: to.min(filter.until.0) };
        let touches = inside.from < inside.to || (inside.from == from && inside.to == to && from == to);
        if !touches {
            return Vec::new();
        }
        if by != UsageBy::Day {
            return vec![inside];
        }
        let last = inside.to.max(inside.from + 1) - 1;
        let days = inside.from / DAY_MS..=last / DAY_MS;
        let clipped =
            |day| Piece { from: inside.from.max(day * DAY_MS), to: inside.to.min((day + 1) * DAY_MS) };
        days.map(clipped).collect()
    }

    fn key(&self, by: UsageBy, piece: Piece) -> Key {
        match by {
            UsageBy::User => Key::Name(self.user.clone()),
            UsageBy::Account => Key::Name(self.account.clone()),
            UsageBy::Job => Key::Number(self.job),
            UsageBy::Day => Key::Day(piece.from / DAY_MS),
        }
    }

    fn count(&self, piece: Piece, sum: &mut UsageRow) {
        let lasted = piece.to - piece.from;
        let whole = self.whole.to - self.whole.from;
        let portion = if whole == 0 { 1.0 } else { lasted as f64 / whole as f64 };
        sum.runs += 1;
        sum.gpu_ms += u128::from(self.gpus) * u128::from(lasted);
        sum.cpu_ms += self.cpu_ms as f64 * portion;
        if let Some(energy) = self.energy_joules {
            sum.energy_joules += energy as f64 * portion;
            sum.metered_runs += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_sqlite() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        let mut statement = connection.prepare("SELECT date(?1 * 86400, 'unixepoch')").unwrap();
        for day in (0..200_000).step_by(7).chain([59, 60, 789, 790, 10_956, 10_957, 11_016]) {
            let expected: String = statement.query_row([day], |row| row.get(0)).unwrap();
            assert_eq!(Date::of_day(day).to_string(), expected, "day {day}");
        }
    }
}
