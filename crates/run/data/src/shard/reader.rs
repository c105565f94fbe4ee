//! Reading a shard: any range of tokens, each block checked as it is read.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bedplate_host::open_regular;

use super::block::BlockView;
use super::header::Header;
use crate::disk;
use crate::error::DataError;

/// An open shard. Reading takes `&self`, from any number of threads.
#[derive(Debug)]
pub struct Shard {
    file: File,
    path: PathBuf,
    header: Header,
}

/// A stretch of tokens that grows as ranges are appended to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TokenPiece {
    pub(crate) tokens: Vec<u32>,
    /// Where documents begin, as positions in `tokens`.
    pub(crate) starts: Vec<u32>,
    /// Which tokens count in the loss.
    pub(crate) counts: Vec<bool>,
    bytes: Vec<u8>,
}

impl TokenPiece {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.starts.clear();
        self.counts.clear();
    }
}

impl Shard {
    /// Opens a shard and checks its header and length; blocks are checked when they are read.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = open_regular(path).map_err(disk::reading(path))?;
        let file_bytes = file.metadata().map_err(disk::reading(path))?.len();
        let mut bytes = [0; Header::BYTES];
        let head = &mut bytes[..(Header::BYTES as u64).min(file_bytes) as usize];
        file.read_exact_at(head, 0).map_err(disk::reading(path))?;
        let header = Header::parse(head, file_bytes, path)?;
        Ok(Self { file, path: path.to_owned(), header })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads every block, which finds any damage.
    pub fn verify(&self) -> Result<(), DataError> {
        let mut piece = TokenPiece::default();
        let mut documents = 0;
        for block in 0..self.header.blocks() {
            piece.clear();
            let from = block * u64::from(self.header.block_tokens);
            self.append(from..from + self.header.tokens_of_block(block) as u64, &mut piece)?;
            documents += piece.starts.len() as u64;
        }
        if documents != self.header.documents {
            return Err(DataError::CorruptHeader { path: self.path.clone() });
        }
        Ok(())
    }

    /// Appends a range of tokens, which must be in the shard.
    pub(crate) fn append(&self, range: Range<u64>, piece: &mut TokenPiece) -> Result<(), DataError> {
        if range.is_empty() {
            return Ok(());
        }
        let block_tokens = u64::from(self.header.block_tokens);
        let blocks = range.start / block_tokens..range.end.div_ceil(block_tokens);
        let mut bytes = std::mem::take(&mut piece.bytes);
        let read = self.read_blocks(blocks.clone(), &mut bytes);
        let appended = read.and_then(|()| self.append_blocks(blocks, range, &bytes, piece));
        piece.bytes = bytes;
        appended
    }

    fn read_blocks(&self, blocks: Range<u64>, bytes: &mut Vec<u8>) -> Result<(), DataError> {
        let from = self.header.block_offset(blocks.start);
        bytes.resize((self.header.block_offset(blocks.end) - from) as usize, 0);
        self.file.read_exact_at(bytes, from).map_err(disk::reading(&self.path))
    }

    fn append_blocks(
        &self,
        blocks: Range<u64>,
        range: Range<u64>,
        mut bytes: &[u8],
        piece: &mut TokenPiece,
    ) -> Result<(), DataError> {
        for block in blocks {
            let tokens = self.header.tokens_of_block(block);
            let (own, rest) = bytes.split_at(self.header.block_bytes(tokens));
            bytes = rest;
            let view = BlockView::check(&self.header, block, own).ok_or_else(|| DataError::CorruptBlock {
                path: self.path.clone(),
                block,
                blocks: self.header.blocks(),
            })?;
            let first = block * u64::from(self.header.block_tokens);
            let from = range.start.saturating_sub(first) as usize;
            let to = ((range.end - first) as usize).min(tokens);
            view.append_starts(from, to, piece.tokens.len() as u32, &mut piece.starts);
            view.append_ids(from, to, &mut piece.tokens);
            view.append_mask(from, to, &mut piece.counts);
        }
        Ok(())
    }
}
