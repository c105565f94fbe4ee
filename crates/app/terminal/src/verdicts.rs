//! How a diagnosis looks: as text, as JSON, as a page with pictures.

mod page;
mod report;

pub use page::{json, text};
pub use report::html;
