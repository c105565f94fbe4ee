//! What-if in virtual time: recorded or generated work played through the schedulers that decide in earnest.

pub mod requests;
