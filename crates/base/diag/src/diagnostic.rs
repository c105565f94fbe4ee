//! The trait that every error of the project implements, and the documentation each code must have.

use std::error::Error;

use crate::{Class, Place, Reason};

/// The documentation of one error code; the book has a page made from each.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// `area/what-is-wrong`, stable across releases.
    pub code: &'static str,
    pub class: Class,
    /// What the code means, in whole sentences.
    pub meaning: &'static str,
    /// What to do when nothing more specific is known: one line, lower case, no full stop.
    pub remedy: &'static str,
}

/// An error that knows its documentation, its place and its remedy.
pub trait Diagnostic: Error + Send + Sync + 'static {
    fn page(&self) -> &'static Page;

    /// A remedy made for this very case. Without one the page's general remedy is shown.
    fn help(&self) -> Option<String> {
        None
    }

    /// What was refused and why, as data, where the error is a refusal.
    fn reason(&self) -> Option<&Reason> {
        None
    }

    /// The file, line and text at fault.
    fn place(&self) -> Option<&Place> {
        None
    }
}

impl<E: Diagnostic> From<E> for Box<dyn Diagnostic> {
    fn from(error: E) -> Self {
        Box::new(error)
    }
}
