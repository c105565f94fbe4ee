//! A corpus: a folder of shards, the index that lists them, and the tokenizer that made them.

mod index;
mod writer;

use std::ops::Range;
use std::path::{Path, PathBuf};

pub use index::{Content, DocumentLengths, Index, ShardEntry, TokenizerEntry};
pub use writer::{CorpusOptions, CorpusWriter};

use crate::digest::Digest;
use crate::disk;
use crate::error::DataError;
use crate::shard::{Shard, TokenPiece};
use crate::tokenizer::{TOKENIZER_FILE, Tokenizer};

pub(crate) const INDEX_FILE: &str = "index.json";

/// An open corpus. Its documents follow each other, shard by shard, as one sequence of tokens.
#[derive(Debug)]
pub struct Corpus {
    folder: PathBuf,
    index: Index,
    shards: Vec<Shard>,
    /// Tokens up to the end of each shard.
    ends: Vec<u64>,
}

impl Corpus {
    /// Opens a folder and checks that its shards are those of its index.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join(INDEX_FILE);
        let index = Index::parse(&disk::read_text(&path)?, &path.display().to_string())?;
        let open = |entry: &ShardEntry| Self::open_shard(folder, entry, index.tokenizer.digest);
        let shards: Vec<Shard> = index.shards.iter().map(open).collect::<Result<_, _>>()?;
        let mut end = 0;
        let ends = index.shards.iter().map(|entry| {
            end += entry.tokens;
            end
        });
        Ok(Self { folder: folder.to_owned(), ends: ends.collect(), shards, index })
    }

    fn open_shard(folder: &Path, entry: &ShardEntry, tokenizer: Digest) -> Result<Shard, DataError> {
        let shard = Shard::open(&folder.join(&entry.file))?;
        let is_described = *shard.header() == entry.header(shard.header(), tokenizer);
        if is_described { Ok(shard) } else { Err(DataError::ForeignShard { path: shard.path().to_owned() }) }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn index(&self) -> &Index {
        &self.index
    }

    pub fn tokens(&self) -> u64 {
        self.index.tokens
    }

    /// Bytes of all shards on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.header().file_bytes()).sum()
    }

    /// Identifies a corpus: the same tokens in the same shards have the same digest in any folder.
    pub fn digest(&self) -> Digest {
        let contents = self.shards.iter().flat_map(|shard| shard.header().to_bytes());
        Digest::of(&contents.collect::<Vec<u8>>())
    }

    /// The tokenizer in the folder.
    pub fn load_tokenizer(&self) -> Result<Tokenizer, DataError> {
        Tokenizer::load(&self.folder.join(TOKENIZER_FILE))
    }

    /// An error when another corpus was made by another tokenizer, so that an id means something else there.
    pub fn expect_same_tokenizer(&self, other: &Corpus) -> Result<(), DataError> {
        let [first, second] = [self, other].map(|corpus| corpus.index.tokenizer.digest);
        if first == second {
            return Ok(());
        }
        Err(DataError::MixedTokenizers {
            first_folder: self.folder.clone(),
            first,
            other_folder: other.folder.clone(),
            other: second,
        })
    }

    /// Reads every block of every shard, which finds any damage.
    pub fn verify(&self) -> Result<(), DataError> {
        self.shards.iter().try_for_each(Shard::verify)
    }

    /// Appends a range of the corpus's tokens, which may span several shards.
    pub(crate) fn append(&self, range: Range<u64>, piece: &mut TokenPiece) -> Result<(), DataError> {
        let mut from = range.start;
        let mut shard = self.ends.partition_point(|end| *end <= from);
        while from < range.end {
            let first = if shard == 0 { 0 } else { self.ends[shard - 1] };
            let to = range.end.min(self.ends[shard]);
            self.shards[shard].append(from - first..to - first, piece)?;
            from = to;
            shard += 1;
        }
        Ok(())
    }

    /// Calls `each` with every document. Reads the whole corpus.
    pub(crate) fn scan_documents(&self, mut each: impl FnMut(Extent)) -> Result<(), DataError> {
        const STRETCH: u64 = 1 << 20;
        let mut piece = TokenPiece::default();
        let mut open: Option<Extent> = None;
        for from in (0..self.tokens()).step_by(STRETCH as usize) {
            piece.clear();
            self.append(from..self.tokens().min(from + STRETCH), &mut piece)?;
            let ends = piece.starts.iter().map(|start| *start as usize).chain([piece.tokens.len()]);
            let mut at = 0;
            for end in ends {
                if let Some(document) = &mut open {
                    document.extend(&piece.counts[at..end]);
                }
                if end < piece.tokens.len() {
                    let next = Extent { first: from + end as u64, tokens: 0, first_counted: None };
                    open.replace(next).into_iter().for_each(&mut each);
                }
                at = end;
            }
        }
        open.into_iter().for_each(each);
        Ok(())
    }
}

/// The position of a document in its corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The position of its first token.
    pub(crate) first: u64,
    pub(crate) tokens: u64,
    /// The first of its tokens that counts in the loss, except the very first, which cannot be predicted.
    pub(crate) first_counted: Option<u64>,
}

impl Extent {
    fn extend(&mut self, counts: &[bool]) {
        if self.first_counted.is_none() {
            let skipped = usize::from(self.tokens == 0);
            let found = counts.iter().skip(skipped).position(|counts| *counts);
            self.first_counted = found.map(|at| self.tokens + (skipped + at) as u64);
        }
        self.tokens += counts.len() as u64;
    }
}
