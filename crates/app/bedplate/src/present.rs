//! How things look on a terminal: tables, lists of facts, wrapped prose, times and bars.

mod bar;
mod facts;
mod moments;
mod table;
mod wrap;

pub(crate) use bar::bar;
pub(crate) use facts::Facts;
pub(crate) use moments::{clock, moment, now_ms};
pub(crate) use table::{Column, Table};
pub(crate) use wrap::wrap;
