//! An error's signature: what a line of it means, whom it blames, what helps.

use std::fmt;

use regex::bytes::Regex;

/// How a line takes part in a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// May be where a failure began.
    Root,
    /// Begins failures and follows them; the order of lines tells.
    Either,
    /// Follows from a failure elsewhere; it is never the cause.
    Cascade,
    /// Says nothing alone, but moves the odds.
    Hint,
}

impl Role {
    pub const ALL: [(&'static str, Role); 4] =
        [("root", Role::Root), ("either", Role::Either), ("cascade", Role::Cascade), ("hint", Role::Hint)];
}

/// Where such a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Where {
    Program,
    Kernel,
    Any,
}

impl Where {
    pub const ALL: [(&'static str, Where); 3] =
        [("program", Where::Program), ("kernel", Where::Kernel), ("any", Where::Any)];
}

#[derive(Debug, Clone)]
pub struct Signature {
    /// Its name in reports and in the book.
    pub name: String,
    pub wherever: Where,
    /// `hardware`, `network`, `storage`, `application`, `out-of-memory`, or `unknown`.
    pub class: String,
    pub role: Role,
    /// How probable the class is when such a line stands alone.
    pub prior: f64,
    /// Who is to blame, in words.
    pub culprit: String,
    pub remedy: String,
    /// It goes by the kind of an error, and counts only on lines that no other signature matches.
    pub is_rule: bool,
    /// Where the line is from: a repository's file, or the thread that explains it.
    pub source: String,
    pub(crate) pattern: Regex,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}
