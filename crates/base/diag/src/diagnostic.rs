//! The trait that every error of the project implements, and the documentation each code must have.

use std::error::Error;

use crate::{Class, Place, Reason};

/// The documentation of one error code; the book's page is generated from it.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// `area/what-is-wrong`, stable across releases.
    pub code: &'static str,
    pub class: Class,
    /// What the code means, in whole sentences.
    pub meaning: &'static str,
    /// The remedy when none more specific is known: one line, lower case, no full stop.
    pub remedy: &'static str,
}

/// Defines the pages of one area as statics, and `PAGES`, the list of them, with the visibility given:
///
/// ```
/// bedplate_diag::pages! { pub PAGES "file":
///     READ "read" User
///         "A file could not be read."
///         "check the path"
/// }
/// assert_eq!(PAGES[0].code, "file/read");
/// # assert_eq!(READ.class, bedplate_diag::Class::User);
/// ```
#[macro_export]
macro_rules! pages {
    ($visibility:vis PAGES $area:literal: $($name:ident $code:literal $class:ident $meaning:literal $remedy:literal)*) => {
        $(static $name: $crate::Page = $crate::Page {
            code: concat!($area, "/", $code),
            class: $crate::Class::$class,
            meaning: $meaning,
            remedy: $remedy,
        };)*

        /// The documentation of every code of this area.
        $visibility const PAGES: &[&$crate::Page] = &[$(&$name),*];
    };
}

/// An error that knows its documentation, its place and its remedy.
pub trait Diagnostic: Error + Send + Sync + 'static {
    fn page(&self) -> &'static Page;

    /// A remedy for this particular case; without one the page's general remedy is shown.
    fn help(&self) -> Option<String> {
        None
    }

    /// What was refused and why, as data, where the error is a refusal.
    fn reason(&self) -> Option<&Reason> {
        None
    }

    /// The offending file, line and text.
    fn place(&self) -> Option<&Place> {
        None
    }
}

impl<E: Diagnostic> From<E> for Box<dyn Diagnostic> {
    fn from(error: E) -> Self {
        Box::new(error)
    }
}
