//! How things look on a terminal: tables, lists of facts, wrapped prose, times, bars and curves.

mod bar;
mod curve;
mod facts;
mod moments;
mod printable;
mod table;
mod wrap;

pub(crate) use bar::bar;
pub(crate) use curve::draw_curve;
pub(crate) use facts::Facts;
pub(crate) use moments::{clock, moment, now_ms};
pub(crate) use printable::{printable, printable_json, printable_line};
pub(crate) use table::{Column, Table};
pub(crate) use wrap::wrap;
