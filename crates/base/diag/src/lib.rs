//! Diagnostics: errors that say what went wrong, where, and what to do about it.
//!
//! Libraries keep their own error enums and implement [`Diagnostic`] for them. Every variant names its
//! [`Page`]: a static entry with the stable code, the class, and the text of the book's page for that code,
//! so every code is documented. Callers decide by [`Class`], never by message. This crate knows no domain.
//!
//! ```
//! use bedplate_diag::{Class, Diagnostic, Page, render_text};
//!
//! #[derive(Debug, thiserror::Error)]
//! #[error("no instance is called `{0}`")]
//! struct UnknownInstance(String);
//!
//! static UNKNOWN: Page = Page {
//!     code: "catalog/unknown-name",
//!     class: Class::User,
//!     meaning: "The catalog has no entry of that name.",
//!     remedy: "list the names with `bedplate catalog instances`",
//! };
//!
//! impl Diagnostic for UnknownInstance {
//!     fn page(&self) -> &'static Page {
//!         &UNKNOWN
//!     }
//! }
//!
//! let text = render_text(&UnknownInstance("p5.49xlarge".into()));
//! assert!(text.starts_with("error[catalog/unknown-name]: no instance is called `p5.49xlarge`\n"));
//! ```

mod class;
mod diagnostic;
mod nearest;
mod place;
mod reason;
mod render;

pub use class::Class;
pub use diagnostic::{Diagnostic, Page};
pub use nearest::{nearest, nearest_names};
pub use place::{Place, Source, shown};
pub use reason::Reason;
pub use render::{render_json, render_text};
