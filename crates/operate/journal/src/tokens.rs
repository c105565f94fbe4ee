//! Tokens of the API. Only their SHA-256 is kept; who makes the secrets and what a role may do is the daemon's matter.

use bedplate_gangs::Time;
use rusqlite::{Connection, Row, params};

use crate::{Journal, JournalError, Reader};

/// SHA-256 of the secret.
pub type TokenHash = [u8; 32];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    pub hash: TokenHash,
    pub role: String,
    pub user: String,
    /// What it is for, for people.
    pub label: String,
    pub created: Time,
    pub expires: Option<Time>,
    /// It can be redeemed once.
    pub is_one_time: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Names the token in lists and when it is revoked.
    pub id: u64,
    pub token: NewToken,
    /// When a one-time token was redeemed.
    pub used: Option<Time>,
}

impl Token {
    /// Neither expired nor spent.
    pub fn is_valid(&self, now: Time) -> bool {
        self.used.is_none() && self.token.expires.is_none_or(|expires| now < expires)
    }
}

const COLUMNS: &str = "id, hash, role, user, label, created_ms, expires_ms, is_one_time, used_ms";

impl Journal {
    /// Durable when it returns. The same hash twice is refused.
    pub fn add_token(&mut self, token: &NewToken) -> Result<u64, JournalError> {
        self.change(0, 0, |transaction| insert(transaction, token).map_err(JournalError::writing))
    }

    /// Spends a one-time token: true for one caller only, and never after it has expired.
    pub fn redeem_token(&mut self, id: u64, now: Time) -> Result<bool, JournalError> {
        let spend = "UPDATE tokens SET used_ms = ?2
             WHERE id = ?1 AND is_one_time AND used_ms IS NULL AND (expires_ms IS NULL OR expires_ms > ?2)";
        self.change(0, 0, |transaction| {
            let changed = transaction.execute(spend, params![id, now.0]);
            changed.map(|changed| changed == 1).map_err(JournalError::writing)
        })
    }

    /// Whether there was such a token.
    pub fn revoke_token(&mut self, id: u64) -> Result<bool, JournalError> {
        self.change(0, 0, |transaction| {
            let changed = transaction.execute("DELETE FROM tokens WHERE id = ?1", [id]);
            changed.map(|changed| changed == 1).map_err(JournalError::writing)
        })
    }
}

fn insert(connection: &Connection, token: &NewToken) -> rusqlite::Result<u64> {
    connection.execute(
        "INSERT INTO tokens (hash, role, user, label, created_ms, expires_ms, is_one_time)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            token.hash,
            token.role,
            token.user,
            token.label,
            token.created.0,
            token.expires.map(|time| time.0),
            token.is_one_time,
        ],
    )?;
    Ok(connection.last_insert_rowid().cast_unsigned())
}

impl Reader {
    /// All of them, the oldest first.
    pub fn tokens(&self) -> Result<Vec<Token>, JournalError> {
        let list = || -> rusqlite::Result<Vec<Token>> {
            let sql = format!("SELECT {COLUMNS} FROM tokens ORDER BY id");
            self.connection.prepare_cached(&sql)?.query_map([], token)?.collect()
        };
        list().map_err(JournalError::reading("the tokens"))
    }
}

fn token(row: &Row<'_>) -> rusqlite::Result<Token> {
    Ok(Token {
        id: row.get(0)?,
        token: NewToken {
            hash: row.get(1)?,
            role: row.get(2)?,
            user: row.get(3)?,
            label: row.get(4)?,
            created: Time(row.get(5)?),
            expires: row.get::<_, Option<u64>>(6)?.map(Time),
            is_one_time: row.get(7)?,
        },
        used: row.get::<_, Option<u64>>(8)?.map(Time),
    })
}
