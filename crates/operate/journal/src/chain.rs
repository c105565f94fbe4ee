//! A checksum over everything in the journal, chained from commit to commit.
//!
//! Each table has a sum of the hashes of its rows. Triggers of the one connection that writes keep the sums, whatever statement changes a
//! row, and each transaction stores them with its number and a link that follows from the link before. A row that was altered, lost or
//! added by anything else does not fit its table's sum; an older file does not have the number and link of the mark (`mark.rs`).
//!
//! The hash finds accidents, not forgers: who may write the state directory is the daemon's equal.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bedplate_random::{key, mix};
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension};

/// All that hold anything but the chain.
pub(crate) const TABLES: [&str; 9] =
    ["texts", "jobs", "runs", "run_nodes", "nodes", "shares", "notes", "clock", "tokens"];

/// What a table holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) rows: i64,
    hashes: u64,
}

impl Sum {
    fn add(&mut self, hash: u64) {
        self.rows += 1;
        self.hashes = self.hashes.wrapping_add(hash);
    }

    fn subtract(&mut self, hash: u64) {
        self.rows -= 1;
        self.hashes = self.hashes.wrapping_sub(hash);
    }
}

/// By the place of the table in [`TABLES`].
pub(crate) type Sums = [Sum; TABLES.len()];

/// The end of the chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ChainHead {
    pub(crate) commits: u64,
    pub(crate) records: u64,
    /// When it was committed, by the wall clock.
    pub(crate) at_ms: u64,
    /// The last number given to a job.
    pub(crate) jobs: u64,
    before: u64,
    link: u64,
    pub(crate) sums: Sums,
}

impl ChainHead {
    /// The head after another commit.
    pub(crate) fn next(&self, records: u64, at_ms: u64, jobs: u64, sums: Sums) -> Self {
        let mut next = Self {
            commits: self.commits + 1,
            records: self.records + records,
            at_ms,
            jobs: jobs.max(self.jobs),
            before: self.link,
            link: 0,
            sums,
        };
        next.link = next.computed_link();
        next
    }

    fn is_sound(&self) -> bool {
        self.link == self.computed_link()
    }

    /// Whether both are the end of the same commits.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.commits, self.link) == (other.commits, other.link)
    }

    fn computed_link(&self) -> u64 {
        let sums = self.sums.iter().flat_map(|sum| [sum.rows.cast_unsigned(), sum.hashes]);
        let own = [self.before, self.commits, self.records, self.at_ms, self.jobs];
        key(&own.into_iter().chain(sums).collect::<Vec<u64>>())
    }

    fn sums_text(&self) -> String {
        let mut text = String::new();
        for (table, sum) in TABLES.iter().zip(&self.sums) {
            write!(text, "{table} {} {:016x} ", sum.rows, sum.hashes).expect("a text takes all");
        }
        text
    }

    fn read_sums(text: &str) -> Option<Sums> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let by_table: BTreeMap<&str, Sum> = words
            .chunks(3)
            .map(|words| match words {
                [table, rows, hashes] => {
                    let (rows, hashes) = (rows.parse().ok()?, u64::from_str_radix(hashes, 16).ok()?);
                    Some((*table, Sum { rows, hashes }))
                }
                _ => None,
            })
            .collect::<Option<_>>()?;
        let sums = TABLES.map(|table| by_table.get(table).copied());
        sums.iter().all(Option::is_some).then(|| sums.map(Option::unwrap_or_default))
    }

    /// As the journal and the mark have it.
    pub(crate) fn to_line(&self) -> String {
        let Self { commits, records, at_ms, jobs, before, link, .. } = self;
        format!("{commits} {records} {at_ms} {jobs} {before:016x} {link:016x} {}", self.sums_text())
    }

    /// Nothing where the line is not one, or is not whole.
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let mut words = line.splitn(7, ' ');
        let mut number = |radix| u64::from_str_radix(words.next()?, radix).ok();
        let (commits, records, at_ms, jobs) = (number(10)?, number(10)?, number(10)?, number(10)?);
        let (before, link) = (number(16)?, number(16)?);
        let sums = Self::read_sums(words.next()?)?;
        Some(Self { commits, records, at_ms, jobs, before, link, sums }).filter(Self::is_sound)
    }

    /// Whether the journal has a chain at all. One whose first opening was cut off has none yet.
    pub(crate) fn has_begun(connection: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT count(*) FROM clock WHERE chain IS NULL";
        Ok(connection.query_row(sql, [], |row| row.get::<_, u32>(0))? == 0)
    }

    /// Nothing where the journal has none yet, or it is not one.
    pub(crate) fn load(connection: &Connection) -> rusqlite::Result<Option<Self>> {
        let mut statement = connection.prepare_cached("SELECT chain FROM clock")?;
        let line: Option<Option<String>> = statement.query_row([], |row| row.get(0)).optional()?;
        Ok(line.flatten().and_then(|line| Self::from_line(&line)))
    }

    pub(crate) fn store(&self, connection: &Connection) -> rusqlite::Result<()> {
        let changed = connection.prepare_cached("UPDATE clock SET chain = ?1")?.execute([self.to_line()])?;
        if changed == 1 { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(changed)) }
    }
}

/// The sums as of the statement that is being executed, shared with the triggers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keeper(Arc<Mutex<Sums>>);

const FUNCTION: &str = "bedplate_row";

impl Keeper {
    /// Keeps the sums of this connection's changes from now on.
    pub(crate) fn attach(connection: &Connection, sums: Sums) -> rusqlite::Result<Self> {
        let keeper = Self(Arc::new(Mutex::new(sums)));
        let shared = keeper.clone();
        connection.create_scalar_function(FUNCTION, -1, FunctionFlags::SQLITE_UTF8, move |context| {
            shared.see(context)?;
            Ok(0)
        })?;
        // Rows that are replaced are deleted in the eyes of a trigger only so.
        connection.pragma_update(None, "recursive_triggers", true)?;
        for (place, table) in TABLES.iter().enumerate() {
            connection.execute_batch(&triggers(connection, place, table)?)?;
        }
        Ok(keeper)
    }

    pub(crate) fn sums(&self) -> Sums {
        *self.lock()
    }

    /// After a transaction that was undone.
    pub(crate) fn reset(&self, sums: Sums) {
        *self.lock() = sums;
    }

    fn see(&self, context: &Context<'_>) -> rusqlite::Result<()> {
        let place = usize::try_from(context.get::<i64>(0)?).unwrap_or_default();
        let is_new = context.get::<bool>(1)?;
        let hash = row_hash(place, (2..context.len()).map(|at| context.get_raw(at)));
        let sum = &mut self.lock()[place];
        if is_new {
            sum.add(hash)
        } else {
            sum.subtract(hash)
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All but the chain itself.
fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let sql = format!("SELECT name FROM pragma_table_info('{table}') WHERE name <> 'chain' ORDER BY cid");
    connection.prepare(&sql)?.query_map([], |row| row.get(0))?.collect()
}

fn triggers(connection: &Connection, place: usize, table: &str) -> rusqlite::Result<String> {
    let columns = columns(connection, table)?;
    let values = |row: &str| columns.iter().map(|name| format!(", {row}.{name}")).collect::<String>();
    let (old, new) = (
        format!("SELECT {FUNCTION}({place}, 0{});", values("OLD")),
        format!("SELECT {FUNCTION}({place}, 1{});", values("NEW")),
    );
    let trigger = |event: &str, body: &str| {
        let name = &event[..6];
        format!("CREATE TEMP TRIGGER sum_{table}_{name} AFTER {event} ON {table} BEGIN {body} END;\n")
    };
    let update = format!("UPDATE OF {}", columns.join(", "));
    Ok(trigger("INSERT", &new) + &trigger("DELETE", &old) + &trigger(&update, &(old + &new)))
}

/// Tables that stay small, however long a history is.
const SMALL: [&str; 4] = ["nodes", "shares", "clock", "tokens"];

/// What the tables hold now, by reading all of them.
pub(crate) fn sums_of(connection: &Connection) -> rusqlite::Result<Sums> {
    read_sums(connection, Sums::default(), |_| true)
}

/// The same, where large tables are taken to hold what they should.
pub(crate) fn small_sums_of(connection: &Connection, known: Sums) -> rusqlite::Result<Sums> {
    read_sums(connection, known, |table| SMALL.contains(&table))
}

fn read_sums(
    connection: &Connection,
    mut sums: Sums,
    is_wanted: impl Fn(&str) -> bool,
) -> rusqlite::Result<Sums> {
    for (place, table) in TABLES.iter().enumerate().filter(|(_, table)| is_wanted(table)) {
        sums[place] = Sum::default();
        let columns = columns(connection, table)?.join(", ");
        let mut statement = connection.prepare(&format!("SELECT {columns} FROM {table} NOT INDEXED"))?;
        let count = statement.column_count();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..count).map(|at| row.get_ref(at)).collect::<rusqlite::Result<Vec<_>>>()?;
            sums[place].add(row_hash(place, values.into_iter()));
        }
    }
    Ok(sums)
}

fn row_hash<'a>(place: usize, values: impl Iterator<Item = ValueRef<'a>>) -> u64 {
    values.fold(mix(place as u64 + 1), |hash, value| match value {
        // Columns that were added later are empty in older rows.
        ValueRef::Null => key(&[hash, 0]),
        ValueRef::Integer(number) => key(&[hash, 1, number.cast_unsigned()]),
        ValueRef::Real(number) => key(&[hash, 2, number.to_bits()]),
        ValueRef::Text(bytes) => bytes_hash(key(&[hash, 3]), bytes),
        ValueRef::Blob(bytes) => bytes_hash(key(&[hash, 4]), bytes),
    })
}

fn bytes_hash(hash: u64, bytes: &[u8]) -> u64 {
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    };
    let all = bytes.chunks(8).fold(hash, |hash, part| mix(hash.rotate_left(5) ^ word(part)));
    key(&[all, bytes.len() as u64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_mark_is_read_as_it_was_written_and_a_wrong_one_not_at_all() {
        let mut sums = Sums::default();
        sums[3] = Sum { rows: -2, hashes: u64::MAX };
        let head = ChainHead::default().next(3, 5, 7, sums);
        let line = head.to_line();
        assert_eq!(ChainHead::from_line(&line), Some(head));
        for at in 0..line.trim_end().len() {
            let mut bytes = line.clone().into_bytes();
            bytes[at] ^= 1;
            let wrong = String::from_utf8_lossy(&bytes).into_owned();
            assert_eq!(ChainHead::from_line(&wrong), None, "{wrong}");
        }
        assert_eq!(ChainHead::from_line(""), None);
    }

    #[test]
    fn rows_differ_by_value_kind_place_and_length() {
        use ValueRef::{Blob, Integer, Null, Real, Text};
        let rows: [&[ValueRef<'_>]; 12] = [
            &[],
            &[Null],
            &[Null, Null],
            &[Integer(0)],
            &[Integer(1)],
            &[Real(1.0)],
            &[Text(b"")],
            &[Text(b"\0")],
            &[Blob(b"")],
            &[Text(b"ab"), Text(b"c")],
            &[Text(b"a"), Text(b"bc")],
            &[Text(b"abcdefgh"), Text(b"")],
        ];
        let hashes: std::collections::BTreeSet<u64> =
            rows.iter().flat_map(|row| [0, 1].map(|place| row_hash(place, row.iter().copied()))).collect();
        assert_eq!(hashes.len(), 2 * rows.len());
    }
}
