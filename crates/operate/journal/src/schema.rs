//! The tables of the journal, and how an older file gets to them step by step.
//!
//! `PRAGMA user_version` counts the steps that a file has gone; each step is one transaction. A step, once released,
//! never changes.

use std::path::Path;

use rusqlite::Connection;

use crate::JournalError;

/// Step `i` leads from format `i` to format `i + 1`.
const STEPS: [&str; 6] = [
    include_str!("schema/1.sql"),
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
    include_str!("schema/5.sql"),
    include_str!("schema/6.sql"),
];
/// Marks the file as ours: "bedj".
const APPLICATION: i32 = 0x6265_646a;

/// The first format that says what all its rows amount to.
pub(crate) const FIRST_WITH_CHAIN: u32 = 5;

/// The format that this program writes.
pub const FORMAT: u32 = STEPS.len() as u32;

/// Files of other programs and of later releases stay untouched.
pub(crate) fn refuse_others(connection: &Connection, path: &Path) -> Result<(), JournalError> {
    refuse_newer(format_of(connection, path)?, FORMAT, path)
}

/// Makes the tables of a new file, or brings those of an older one up to date.
pub(crate) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), JournalError> {
    migrate(connection, path, &STEPS)
}

/// For readers, which must not change the file.
pub(crate) fn check(connection: &Connection, path: &Path) -> Result<(), JournalError> {
    let found = format_of(connection, path)?;
    refuse_newer(found, FORMAT, path)?;
    if found < FORMAT {
        return Err(JournalError::Older { path: path.to_owned(), found, known: FORMAT });
    }
    Ok(())
}

fn refuse_newer(found: u32, known: u32, path: &Path) -> Result<(), JournalError> {
    if found > known {
        return Err(JournalError::Newer { path: path.to_owned(), found, known });
    }
    Ok(())
}

fn migrate(connection: &mut Connection, path: &Path, steps: &[&str]) -> Result<(), JournalError> {
    let found = format_of(connection, path)?;
    refuse_newer(found, steps.len() as u32, path)?;
    for (step, to) in steps.iter().zip(1..).skip(found as usize) {
        take(connection, step, to).map_err(|source| JournalError::Migrate {
            path: path.to_owned(),
            to,
            source,
        })?;
    }
    Ok(())
}

fn take(connection: &mut Connection, step: &str, to: u32) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(step)?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", to)?;
    transaction.commit()
}

/// The format of our file; zero when the file is new. A file of another program is an error.
pub(crate) fn format_of(connection: &Connection, path: &Path) -> Result<u32, JournalError> {
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let failed = JournalError::opening(path);
    let read = || -> rusqlite::Result<(i64, i64, i64)> {
        let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        Ok((number("application_id")?, number("user_version")?, tables))
    };
    match read().map_err(failed)? {
        (0, 0, 0) => Ok(0),
        (application, version, _) if application == i64::from(APPLICATION) => Ok(version as u32),
        _ => Err(JournalError::NotAJournal { path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Connection {
        Connection::open_in_memory().unwrap()
    }

    const FIRST: &str = "CREATE TABLE a (x INTEGER); INSERT INTO a VALUES (1)";
    const SECOND: &str = "ALTER TABLE a ADD COLUMN y INTEGER; UPDATE a SET y = x + 1";

    #[test]
    fn an_older_file_takes_the_steps_it_lacks_and_keeps_what_it_holds() {
        let (mut connection, path) = (memory(), Path::new("j"));
        migrate(&mut connection, path, &[FIRST]).unwrap();
        migrate(&mut connection, path, &[FIRST, SECOND]).unwrap();
        migrate(&mut connection, path, &[FIRST, SECOND]).unwrap();
        let row = connection.query_row("SELECT x, y FROM a", [], |row| Ok((row.get(0)?, row.get(1)?)));
        assert_eq!(row, Ok((1, 2)));
        assert_eq!(format_of(&connection, path).unwrap(), 2);
    }

    #[test]
    fn a_step_that_fails_leaves_the_file_at_the_step_before() {
        let (mut connection, path) = (memory(), Path::new("j"));
        let broken = "CREATE TABLE b (x INTEGER); INSERT INTO nothing VALUES (1)";
        let error = migrate(&mut connection, path, &[FIRST, broken]).unwrap_err();
        assert!(matches!(error, JournalError::Migrate { to: 2, .. }), "{error}");
        assert_eq!(format_of(&connection, path).unwrap(), 1);
        assert!(connection.prepare("SELECT * FROM b").is_err());
    }

    #[test]
    fn a_newer_file_and_a_file_of_another_program_are_refused() {
        let (mut connection, path) = (memory(), Path::new("j"));
        migrate(&mut connection, path, &[FIRST, SECOND]).unwrap();
        let error = migrate(&mut connection, path, &[FIRST]).unwrap_err();
        assert!(matches!(error, JournalError::Newer { found: 2, known: 1, .. }), "{error}");

        let mut other = memory();
        other.execute_batch("CREATE TABLE theirs (x INTEGER)").unwrap();
        let error = migrate(&mut other, path, &[FIRST]).unwrap_err();
        assert!(matches!(error, JournalError::NotAJournal { .. }), "{error}");
    }
}
