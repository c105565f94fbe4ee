//! What a caller can do about an error.

/// The class of an error decides the exit code, and whether to retry, report or page somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The input or the request is at fault; trying again unchanged gives the same answer.
    User,
    /// The command line itself could not be understood.
    Usage,
    /// The world was busy or away; the same request may succeed later.
    Transient,
    /// We are at fault.
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
