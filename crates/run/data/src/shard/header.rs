//! The first 64 bytes of a shard.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic: `89 54 4f 4b 45 4e 53 0a` |
//! | 8..12 | version, 1 |
//! | 12 | bytes per id, 2 or 4 |
//! | 13 | 1 where the shard has a mask, otherwise 0 |
//! | 16..20 | tokens per block, a multiple of 8 |
//! | 24..32 | tokens |
//! | 32..40 | documents |
//! | 40..48 | digest of the tokenizer |
//! | 48..52 | CRC-32 of the blocks' own CRCs |
//! | 60..64 | CRC-32 of the 60 bytes before |
//!
//! Numbers are little endian; unnamed bytes are zero.

use std::path::Path;

use crate::digest::Digest;
use crate::error::DataError;

const MAGIC: [u8; 8] = *b"\x89TOKENS\n";
const VERSION: u32 = 1;
/// More than any disk holds; keeps the arithmetic below from overflowing.
const MOST_TOKENS: u64 = 1 << 48;
const MOST_BLOCK_TOKENS: u32 = 1 << 20;

/// Bytes that an id takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    Two,
    Four,
}

impl Width {
    /// The narrowest that holds all ids of a vocabulary.
    pub fn for_vocabulary(size: u32) -> Self {
        if size <= 1 << 16 { Width::Two } else { Width::Four }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Width::Two => 2,
            Width::Four => 4,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub width: Width,
    /// Whether the shard has a loss mask.
    pub has_mask: bool,
    pub block_tokens: u32,
    pub tokens: u64,
    pub documents: u64,
    pub tokenizer: Digest,
    /// The CRC of all blocks' CRCs: equal for shards with the same content.
    pub content: u32,
}

impl Header {
    pub const BYTES: usize = 64;

    /// Reads a header and checks that a file of `file_bytes` is exactly what it describes.
    pub fn parse(bytes: &[u8], file_bytes: u64, path: &Path) -> Result<Self, DataError> {
        let path = path.to_owned();
        let Some(bytes) =
            bytes.get(..Self::BYTES).and_then(|bytes| <&[u8; Self::BYTES]>::try_from(bytes).ok())
        else {
            return Err(DataError::NotAShard { path });
        };
        if bytes[..8] != MAGIC {
            return Err(DataError::NotAShard { path });
        }
        if number32(bytes, 60) != crc32fast::hash(&bytes[..60]) {
            return Err(DataError::CorruptHeader { path });
        }
        let version = number32(bytes, 8);
        if version != VERSION {
            return Err(DataError::NewerShard { path, found: version, known: VERSION });
        }
        let header = Self::fields(bytes).ok_or_else(|| DataError::CorruptHeader { path: path.clone() })?;
        match header.file_bytes() {
            expected if expected == file_bytes => Ok(header),
            expected => Err(DataError::WrongLength { path, expected, found: file_bytes }),
        }
    }

    fn fields(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let width = match bytes[12] {
            2 => Width::Two,
            4 => Width::Four,
            _ => return None,
        };
        let header = Self {
            width,
            has_mask: bytes[13] == 1,
            block_tokens: number32(bytes, 16),
            tokens: number64(bytes, 24),
            documents: number64(bytes, 32),
            tokenizer: Digest(number64(bytes, 40)),
            content: number32(bytes, 48),
        };
        let block_fits =
            (8..=MOST_BLOCK_TOKENS).contains(&header.block_tokens) && header.block_tokens.is_multiple_of(8);
        let counts_fit = header.tokens <= MOST_TOKENS && header.documents <= header.tokens;
        (bytes[13] <= 1 && block_fits && counts_fit).then_some(header)
    }

    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = self.width.bytes() as u8;
        bytes[13] = u8::from(self.has_mask);
        bytes[16..20].copy_from_slice(&self.block_tokens.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.documents.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.tokenizer.0.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.content.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.tokens.div_ceil(u64::from(self.block_tokens))
    }

    /// Tokens in a block: fewer in the last one.
    pub(crate) fn tokens_of_block(&self, block: u64) -> usize {
        let before = block * u64::from(self.block_tokens);
        u64::from(self.block_tokens).min(self.tokens - before) as usize
    }

    /// The first byte of a block in the file; for the block after the last, the length of the file.
    pub(crate) fn block_offset(&self, block: u64) -> u64 {
        let full = block.min(self.tokens / u64::from(self.block_tokens));
        let rest = if block > full { self.block_bytes(self.tokens_of_block(full)) } else { 0 };
        Self::BYTES as u64 + full * self.block_bytes(self.block_tokens as usize) as u64 + rest as u64
    }

    pub(crate) fn block_bytes(&self, tokens: usize) -> usize {
        let bitmaps = if self.has_mask { 2 } else { 1 };
        tokens * self.width.bytes() + bitmaps * tokens.div_ceil(8) + 4
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.block_offset(self.blocks())
    }
}

fn number32(bytes: &[u8; Header::BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn number64(bytes: &[u8; Header::BYTES], at: usize) -> u64 {
    u64::from(number32(bytes, at)) | u64::from(number32(bytes, at + 4)) << 32
}
