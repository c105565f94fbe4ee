//! Writing a shard: to a temporary file, renamed once everything is on disk.

use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bedplate_host::Replacement;

use super::block;
use super::header::{Header, Width};
use crate::digest::Digest;
use crate::disk;
use crate::error::DataError;

/// A window of 2,049 tokens touches one or two blocks. Larger blocks make windows more expensive, smaller ones files larger.
const BLOCK_TOKENS: u32 = 4096;

pub struct ShardWriter {
    path: PathBuf,
    file: BufWriter<Replacement>,
    header: Header,
    ids: Vec<u32>,
    starts: Vec<bool>,
    mask: Vec<bool>,
    bytes: Vec<u8>,
    content: crc32fast::Hasher,
    blocks: u64,
}

impl ShardWriter {
    /// Begins a shard; the file gets its name in [`finish`](Self::finish).
    pub fn create(path: &Path, width: Width, has_mask: bool, tokenizer: Digest) -> Result<Self, DataError> {
        let file = Replacement::create(path).map_err(disk::writing(path))?;
        let header = Header {
            width,
            has_mask,
            block_tokens: BLOCK_TOKENS,
            tokens: 0,
            documents: 0,
            tokenizer,
            content: 0,
        };
        let mut writer = Self {
            path: path.to_owned(),
            file: BufWriter::with_capacity(1 << 20, file),
            header,
            ids: Vec::with_capacity(BLOCK_TOKENS as usize),
            starts: Vec::with_capacity(BLOCK_TOKENS as usize),
            mask: Vec::with_capacity(BLOCK_TOKENS as usize),
            bytes: Vec::new(),
            content: crc32fast::Hasher::new(),
            blocks: 0,
        };
        writer.write(&[0; Header::BYTES])?;
        Ok(writer)
    }

    pub fn tokens(&self) -> u64 {
        self.header.tokens
    }

    /// Adds a document, which has at least one token. `counts` says for each token whether it counts in the
    /// loss, and is empty where all do.
    pub fn push(&mut self, document: &[u32], counts: &[bool]) -> Result<(), DataError> {
        debug_assert!(counts.is_empty() || counts.len() == document.len());
        debug_assert!(self.header.width == Width::Four || document.iter().all(|id| *id < 1 << 16));
        for (at, id) in document.iter().enumerate() {
            self.ids.push(*id);
            self.starts.push(at == 0);
            self.mask.push(counts.get(at).copied().unwrap_or(true));
            if self.ids.len() == BLOCK_TOKENS as usize {
                self.write_block()?;
            }
        }
        self.header.tokens += document.len() as u64;
        self.header.documents += u64::from(!document.is_empty());
        Ok(())
    }

    /// Makes the shard durable under its name and returns its header.
    pub fn finish(mut self) -> Result<Header, DataError> {
        if !self.ids.is_empty() {
            self.write_block()?;
        }
        self.header.content = std::mem::take(&mut self.content).finalize();
        self.file.seek(SeekFrom::Start(0)).map_err(disk::writing(&self.path))?;
        self.write(&self.header.to_bytes())?;
        let file = self.file.into_inner().map_err(|error| error.into_error());
        file.and_then(Replacement::commit).map_err(disk::writing(&self.path))?;
        Ok(self.header)
    }

    fn write_block(&mut self) -> Result<(), DataError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        block::push_ids(&self.ids, self.header.width, &mut bytes);
        block::push_bits(&self.starts, &mut bytes);
        if self.header.has_mask {
            block::push_bits(&self.mask, &mut bytes);
        }
        let checksum = block::checksum(self.blocks, &bytes).to_le_bytes();
        bytes.extend(checksum);
        self.content.update(&checksum);
        self.blocks += 1;
        self.write(&bytes)?;
        self.bytes = bytes;
        self.ids.clear();
        self.starts.clear();
        self.mask.clear();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.file.write_all(bytes).map_err(disk::writing(&self.path))
    }

    /// The file that will hold the shard.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }
}
