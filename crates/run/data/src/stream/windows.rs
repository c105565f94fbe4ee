//! Windows: the corpus as one ring of tokens, cut into pieces of one length.
//!
//! Each epoch begins its first window at a different position, so that documents are not cut at the same places
//! and different tokens are left over each time.

use std::sync::Arc;

use super::SourceSummary;
use crate::corpus::Corpus;
use crate::error::DataError;
use crate::shard::TokenPiece;

#[derive(Debug)]
pub(super) struct TokenWindows {
    corpus: Arc<Corpus>,
    sequence: u64,
}

impl TokenWindows {
    pub(super) fn new(corpus: Arc<Corpus>, sequence: usize) -> Result<Self, DataError> {
        if corpus.tokens() <= sequence as u64 {
            let folder = corpus.folder().to_owned();
            return Err(DataError::TooShort { folder, tokens: corpus.tokens(), sequence });
        }
        Ok(Self { corpus, sequence: sequence as u64 })
    }

    /// Windows in an epoch.
    pub(super) fn samples(&self) -> u64 {
        self.corpus.tokens() / self.sequence
    }

    pub(super) fn summary(&self) -> SourceSummary {
        SourceSummary { samples: self.samples(), shortened: 0, left_out: 0, padding: 0 }
    }

    /// The `number`th window of the epoch whose first window begins at `phase`, wrapped around within a window.
    pub(super) fn fill(&self, number: u64, phase: u64, piece: &mut TokenPiece) -> Result<(), DataError> {
        let tokens = self.corpus.tokens();
        let from = (phase % self.sequence + number * self.sequence) % tokens;
        let to = from + self.sequence + 1;
        self.corpus.append(from..to.min(tokens), piece)?;
        self.corpus.append(0..to.saturating_sub(tokens), piece)
    }
}
