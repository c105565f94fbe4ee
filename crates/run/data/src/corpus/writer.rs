//! Writing a corpus: documents into shards, and at the end the index that makes it a corpus.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::INDEX_FILE;
use super::index::{Content, Index, ShardEntry, TokenizerEntry};
use crate::disk;
use crate::error::DataError;
use crate::shard::{EXTENSION, ShardWriter, Width};
use crate::tokenizer::Tokenizer;

#[derive(Debug, Clone, Copy)]
pub struct CorpusOptions {
    pub content: Content,
    /// A shard ends with the document that brings it to this many tokens.
    pub shard_tokens: u64,
    /// The tokens before each document.
    pub begin: Option<u32>,
    /// The tokens after each document.
    pub end: Option<u32>,
}

impl CorpusOptions {
    /// 100 million tokens: 200 to 400 MB, quick to copy and to check.
    pub const SHARD_TOKENS: u64 = 100_000_000;

    /// Text with this tokenizer's own marks. A tokenizer with a single mark has it at the beginning of each
    /// document, where it also ends the previous one: so a model learns to begin after it, and to end.
    pub fn text(tokenizer: &Tokenizer) -> Self {
        let (begin, end) = match (tokenizer.begin(), tokenizer.end()) {
            (None, only) => (only, None),
            (Some(begin), Some(end)) if begin == end => (Some(begin), None),
            both => both,
        };
        Self { content: Content::Text, shard_tokens: Self::SHARD_TOKENS, begin, end }
    }

    /// Conversations, whose template has its own marks.
    pub fn chat() -> Self {
        Self { content: Content::Chat, shard_tokens: Self::SHARD_TOKENS, begin: None, end: None }
    }
}

pub struct CorpusWriter {
    folder: PathBuf,
    options: CorpusOptions,
    index: Index,
    width: Width,
    shard: Option<(String, ShardWriter)>,
    ids: Vec<u32>,
    /// Nobody else writes a corpus into the folder meanwhile; the system lets go of it with the process.
    _lock: File,
}

impl CorpusWriter {
    /// Begins a corpus in a folder, which is created if missing and must not hold a corpus yet.
    pub fn create(folder: &Path, tokenizer: &Tokenizer, options: CorpusOptions) -> Result<Self, DataError> {
        fs::create_dir_all(folder).map_err(disk::writing(folder))?;
        let lock = File::open(folder).map_err(disk::writing(folder))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DataError::Writing { folder: folder.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(disk::writing(folder)(source)),
        }
        if folder.join(INDEX_FILE).exists() {
            return Err(DataError::Occupied { folder: folder.to_owned() });
        }
        tokenizer.save(folder)?;
        let entry = TokenizerEntry {
            digest: tokenizer.digest(),
            vocabulary: tokenizer.vocabulary(),
            begin: options.begin,
            end: options.end,
        };
        Ok(Self {
            folder: folder.to_owned(),
            options,
            index: Index::new(options.content, entry),
            width: Width::for_vocabulary(tokenizer.vocabulary()),
            shard: None,
            ids: Vec::new(),
            _lock: lock,
        })
    }

    /// Adds a text of `bytes` bytes, with the marks around it. An empty one is left out.
    pub fn push_text(&mut self, tokens: &[u32], bytes: u64) -> Result<(), DataError> {
        if tokens.is_empty() {
            return Ok(());
        }
        let mut ids = std::mem::take(&mut self.ids);
        ids.clear();
        ids.extend(self.options.begin);
        ids.extend(tokens);
        ids.extend(self.options.end);
        let pushed = self.push(&ids, &[], bytes);
        self.ids = ids;
        pushed
    }

    /// Adds a document as it is. `counts` says which tokens count in the loss; empty means all.
    pub fn push(&mut self, document: &[u32], counts: &[bool], bytes: u64) -> Result<(), DataError> {
        if document.is_empty() {
            return Ok(());
        }
        let (_, shard) = match &mut self.shard {
            Some(shard) => shard,
            None => self.shard.insert(self.index.next_shard(&self.folder, self.width)?),
        };
        shard.push(document, counts)?;
        self.index.lengths.add(document.len());
        self.index.bytes += bytes;
        if shard.tokens() >= self.options.shard_tokens {
            self.finish_shard()?;
        }
        Ok(())
    }

    pub fn tokens(&self) -> u64 {
        self.index.tokens + self.shard.as_ref().map_or(0, |(_, shard)| shard.tokens())
    }

    /// Finishes the last shard and writes the index, without which the folder is not a corpus.
    pub fn finish(mut self) -> Result<Index, DataError> {
        self.finish_shard()?;
        disk::write(&self.folder.join(INDEX_FILE), self.index.to_json().as_bytes())?;
        Ok(self.index)
    }

    fn finish_shard(&mut self) -> Result<(), DataError> {
        let Some((file, shard)) = self.shard.take() else { return Ok(()) };
        let header = shard.finish()?;
        self.index.tokens += header.tokens;
        self.index.documents += header.documents;
        let entry =
            ShardEntry { file, documents: header.documents, tokens: header.tokens, content: header.content };
        self.index.shards.push(entry);
        Ok(())
    }
}

impl Index {
    fn next_shard(&self, folder: &Path, width: Width) -> Result<(String, ShardWriter), DataError> {
        let file = format!("{:05}.{EXTENSION}", self.shards.len());
        let has_mask = self.content == Content::Chat;
        let shard = ShardWriter::create(&folder.join(&file), width, has_mask, self.tokenizer.digest)?;
        Ok((file, shard))
    }
}
