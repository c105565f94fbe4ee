//! A replay of requests as text, as JSON and as a page: `replay requests` and `plan serve` show it alike.

pub(crate) mod page;
pub(crate) mod show;
