//! The laws of data: what is written comes back or is an error, and order depends only on seed and number.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod batches;
mod fixture;
mod shards;
mod stream;
mod tokenize;
mod tokenizer;
