//! What can be wrong with a quantity as typed by a user.

/// Why a text is not a quantity of the wanted kind. Messages carry the text and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("a {kind} is missing; write for example `{example}`")]
    Empty { kind: &'static str, example: &'static str },
    #[error("`{text}` does not begin with a number; a {kind} reads like `{example}`")]
    NotANumber { text: String, kind: &'static str, example: &'static str },
    #[error("`{unit}` in `{text}` is not a unit of {kind}; use one of {expected}")]
    UnknownUnit { text: String, unit: String, kind: &'static str, expected: &'static str },
    #[error("`{text}` has no unit; a {kind} reads like `{example}`")]
    MissingUnit { text: String, kind: &'static str, example: &'static str },
    #[error("`{text}` is negative; a {kind} is zero or more")]
    Negative { text: String, kind: &'static str },
    #[error("`{text}` is too large for a {kind}")]
    TooLarge { text: String, kind: &'static str },
}
