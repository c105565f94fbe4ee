//! What use of the cluster is added up by.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageBy {
    User,
    Account,
    /// Days of UTC, as `2026-11-15`. A run counts in each day that it touches.
    Day,
    /// By number.
    Job,
}

impl UsageBy {
    pub const ALL: [(&'static str, UsageBy); 4] = [
        ("user", UsageBy::User),
        ("account", UsageBy::Account),
        ("day", UsageBy::Day),
        ("job", UsageBy::Job),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}
