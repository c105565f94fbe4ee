//! How things look on a terminal: tables, lists of facts, wrapped prose.

mod facts;
mod table;
mod wrap;

pub(crate) use facts::Facts;
pub(crate) use table::{Column, Table};
pub(crate) use wrap::wrap;
