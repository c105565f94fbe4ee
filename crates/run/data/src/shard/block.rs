//! One block of a shard as bytes.

use super::header::{Header, Width};

/// The block's CRC covers its number too, so that swapped blocks are noticed.
pub(super) fn checksum(number: u64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// Appends ids in their width; the writer has checked that they fit.
pub(super) fn push_ids(ids: &[u32], width: Width, bytes: &mut Vec<u8>) {
    match width {
        Width::Two => bytes.extend(ids.iter().flat_map(|id| (*id as u16).to_le_bytes())),
        Width::Four => bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes())),
    }
}

/// Appends one bit per entry, the lowest bit first.
pub(super) fn push_bits(bits: &[bool], bytes: &mut Vec<u8>) {
    let packed = |eight: &[bool]| eight.iter().rev().fold(0u8, |byte, bit| byte << 1 | u8::from(*bit));
    bytes.extend(bits.chunks(8).map(packed));
}

/// The parts of a block with a valid checksum.
pub(super) struct BlockView<'a> {
    width: Width,
    ids: &'a [u8],
    starts: &'a [u8],
    mask: Option<&'a [u8]>,
}

impl<'a> BlockView<'a> {
    /// `None` if the checksum is wrong. `bytes` has exactly the length of that block.
    pub(super) fn check(header: &Header, number: u64, bytes: &'a [u8]) -> Option<Self> {
        let (body, checksum_bytes) = bytes.split_at(bytes.len() - 4);
        if checksum(number, body).to_le_bytes() != *checksum_bytes {
            return None;
        }
        let tokens = header.tokens_of_block(number);
        let (ids, bits) = body.split_at(tokens * header.width.bytes());
        let (starts, mask) = bits.split_at(tokens.div_ceil(8));
        Some(Self { width: header.width, ids, starts, mask: header.has_mask.then_some(mask) })
    }

    pub(super) fn append_ids(&self, from: usize, to: usize, ids: &mut Vec<u32>) {
        match self.width {
            Width::Two => {
                let (pairs, _) = self.ids[from * 2..to * 2].as_chunks::<2>();
                ids.extend(pairs.iter().map(|pair| u32::from(u16::from_le_bytes(*pair))));
            }
            Width::Four => {
                let (fours, _) = self.ids[from * 4..to * 4].as_chunks::<4>();
                ids.extend(fours.iter().map(|four| u32::from_le_bytes(*four)));
            }
        }
    }

    /// Appends the positions in `from..to` where documents begin, counted from `base` at `from`.
    pub(super) fn append_starts(&self, from: usize, to: usize, base: u32, starts: &mut Vec<u32>) {
        for byte in from / 8..to.div_ceil(8) {
            let mut bits = self.starts[byte];
            while bits != 0 {
                let at = byte * 8 + bits.trailing_zeros() as usize;
                if (from..to).contains(&at) {
                    starts.push(base + (at - from) as u32);
                }
                bits &= bits - 1;
            }
        }
    }

    /// Appends whether the tokens in `from..to` count in the loss; without a mask all do.
    pub(super) fn append_mask(&self, from: usize, to: usize, mask: &mut Vec<bool>) {
        match self.mask {
            Some(bits) => mask.extend((from..to).map(|at| bits[at / 8] >> (at % 8) & 1 == 1)),
            None => mask.resize(mask.len() + (to - from), true),
        }
    }
}
