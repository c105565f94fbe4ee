//! What a caller can do about an error.

/// The class of an error decides the exit code, and whether to retry, report or page someone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The input or the request is wrong; retrying it unchanged fails again.
    User,
    /// The command line itself could not be parsed.
    Usage,
    /// Something outside was busy or unreachable; the same request may succeed later.
    Transient,
    /// A bug in this program.
    Bug,
}

impl Class {
    pub const fn exit_code(self) -> u8 {
        match self {
            Class::User => 1,
            Class::Usage => 2,
            Class::Transient => 3,
            Class::Bug => 70,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Class::User => "user",
            Class::Usage => "usage",
            Class::Transient => "transient",
            Class::Bug => "bug",
        }
    }
}
