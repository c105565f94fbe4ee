//! Shards: token ids of many documents in one file, checked block by block.
//!
//! ```text
//! header   64 bytes; see `header`
//! block 0  ids of the block's tokens, 2 or 4 bytes each, little endian
//!          one bit per token: does a document begin here
//!          one bit per token, where the shard has a mask: does the token count in the loss
//!          CRC-32 of the block's number and all of the above
//! block 1  …
//! ```
//!
//! All blocks have the same number of tokens except the last, which has the rest. So the position of any token is
//! known without an index, and reading a window takes one read and the check of one or two blocks.

mod block;
mod header;
mod reader;
mod writer;

pub use header::{Header, Width};
pub use reader::Shard;
pub use writer::ShardWriter;

pub(crate) use reader::TokenPiece;

/// The extension of a shard's file.
pub(crate) const EXTENSION: &str = "tokens";
