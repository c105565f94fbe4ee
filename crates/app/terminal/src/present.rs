//! How things look on a terminal: tables, lists of facts, wrapped prose, times, bars and curves.

mod bar;
mod curve;
mod facts;
mod moments;
mod printable;
mod table;
mod wrap;

pub use bar::bar;
pub use curve::draw_curve;
pub use facts::Facts;
pub use moments::{clock, moment, now_ms};
pub use printable::{printable, printable_json, printable_line};
pub use table::{Column, Table};
pub use wrap::wrap;
