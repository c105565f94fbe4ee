//! Small facts about the cluster that must outlive the daemon, such as its id.

use rusqlite::OptionalExtension;

use crate::{Journal, JournalError, Reader};

impl Journal {
    /// Durable when it returns.
    pub fn set_setting(&mut self, key: &str, value: &str) -> Result<(), JournalError> {
        let changed = self
            .connection
            .execute("INSERT OR REPLACE INTO settings (key, value) VALUES (?1, ?2)", [key, value]);
        changed.map(|_| ()).map_err(JournalError::writing)
    }
}

impl Reader {
    pub fn setting(&self, key: &str) -> Result<Option<String>, JournalError> {
        let find = || {
            let mut statement =
                self.connection.prepare_cached("SELECT value FROM settings WHERE key = ?1")?;
            statement.query_row([key], |row| row.get(0)).optional()
        };
        find().map_err(JournalError::reading("a setting"))
    }
}
