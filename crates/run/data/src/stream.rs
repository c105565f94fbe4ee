//! An endless stream of samples in which the n-th sample is a pure function of the seed and n.
//!
//! No state is kept between samples, so a run resumes from one integer, on any number of machines, and
//! sample n is the same for every reader. A corpus is read in epochs: each cuts it into samples and takes
//! them in its own order.

mod bins;
mod windows;

use std::sync::Arc;

use crate::corpus::Corpus;
use crate::error::DataError;
use crate::order::{Mixture, Permutation};
use crate::shard::TokenPiece;
use bedplate_random::key;

use bins::Bins;
use windows::TokenWindows;

/// How documents become samples of one length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Packing {
    /// The concatenated documents are cut into windows; nothing is padded, nothing left out.
    #[default]
    Windows,
    /// A sample holds whole documents, as many as fit, followed by padding. A document that is too long for a
    /// sample is truncated. For conversations.
    Whole,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SampleOrder {
    /// A new order in each epoch.
    #[default]
    Shuffled,
    /// As in the corpus, every epoch the same: for validation.
    Sequential,
}

#[derive(Debug, Clone, Copy)]
pub struct StreamOptions {
    /// Tokens of a sample that the model sees; the sample has one more, so that each has a successor.
    pub sequence: usize,
    pub seed: u64,
    pub packing: Packing,
    pub order: SampleOrder,
}

/// A corpus of a mixture, and its share; only the ratios of weights matter.
#[derive(Debug, Clone)]
pub struct MixtureSource {
    pub corpus: Arc<Corpus>,
    pub weight: f64,
}

/// One sample, refilled without allocating.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Which source it comes from, in the order of the stream's sources.
    pub source: usize,
    /// The epoch of that source.
    pub epoch: u64,
    /// Padding tokens at the end.
    pub padding: usize,
    piece: TokenPiece,
}

impl Sample {
    /// As many tokens as the sequence is long, and one more.
    pub fn tokens(&self) -> &[u32] {
        &self.piece.tokens
    }

    /// Where documents begin, in ascending order; the first one usually began before the sample. Padding begins
    /// like a document.
    pub fn starts(&self) -> &[u32] {
        &self.piece.starts
    }

    /// Which tokens count in the loss as targets.
    pub fn counts(&self) -> &[bool] {
        &self.piece.counts
    }
}

#[derive(Debug)]
pub struct Stream {
    options: StreamOptions,
    sources: Vec<PackedCorpus>,
    mixture: Mixture,
    end: Option<u32>,
}

/// A corpus divided into samples.
#[derive(Debug)]
enum PackedCorpus {
    Windows(TokenWindows),
    Bins(Bins),
}

/// How one source was divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceSummary {
    /// Samples in an epoch.
    pub samples: u64,
    /// Documents truncated because they were too long for a sample.
    pub shortened: u64,
    /// Documents left out because no token that counts in the loss fits into a sample.
    pub left_out: u64,
    /// Tokens of padding in an epoch.
    pub padding: u64,
}

impl Stream {
    /// Joins corpora, which must have been made by one tokenizer. With [`Packing::Whole`] they are read once,
    /// to plan which documents share a sample.
    pub fn new(sources: Vec<MixtureSource>, options: StreamOptions) -> Result<Self, DataError> {
        check(&sources, &options)?;
        let weights: Vec<f64> = sources.iter().map(|source| source.weight).collect();
        let entry = &sources[0].corpus.index().tokenizer;
        let end = entry.end.or(entry.begin);
        let packed = |source: MixtureSource| match options.packing {
            Packing::Windows => TokenWindows::new(source.corpus, options.sequence).map(PackedCorpus::Windows),
            Packing::Whole => Bins::new(source.corpus, options.sequence).map(PackedCorpus::Bins),
        };
        let sources = sources.into_iter().map(packed).collect::<Result<_, _>>()?;
        Ok(Self { options, sources, mixture: Mixture::new(&weights), end })
    }

    /// A stream of one corpus.
    pub fn of(corpus: Corpus, options: StreamOptions) -> Result<Self, DataError> {
        Self::new(vec![MixtureSource { corpus: Arc::new(corpus), weight: 1.0 }], options)
    }

    pub fn options(&self) -> &StreamOptions {
        &self.options
    }

    /// The token between documents, where the corpora have one.
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    pub fn summaries(&self) -> Vec<SourceSummary> {
        self.sources.iter().map(PackedCorpus::summary).collect()
    }

    /// Fills in the sample with this number; every number below 2^63 has one.
    pub fn fill(&self, index: u64, sample: &mut Sample) -> Result<(), DataError> {
        let pick = self.mixture.pick(index);
        let packed = &self.sources[pick.source];
        let per_epoch = packed.samples();
        let epoch = pick.index / per_epoch;
        let seed = key(&[self.options.seed, pick.source as u64, epoch]);
        sample.source = pick.source;
        sample.epoch = epoch;
        sample.piece.clear();
        let (number, phase) = match self.options.order {
            SampleOrder::Shuffled => (Permutation::new(per_epoch, seed).at(pick.index % per_epoch), seed),
            SampleOrder::Sequential => (pick.index % per_epoch, 0),
        };
        sample.padding = match packed {
            PackedCorpus::Windows(windows) => windows.fill(number, phase, &mut sample.piece).map(|()| 0)?,
            PackedCorpus::Bins(bins) => bins.fill(number, self.end.unwrap_or(0), &mut sample.piece)?,
        };
        Ok(())
    }
}

impl PackedCorpus {
    fn samples(&self) -> u64 {
        match self {
            PackedCorpus::Windows(windows) => windows.samples(),
            PackedCorpus::Bins(bins) => bins.samples(),
        }
    }

    fn summary(&self) -> SourceSummary {
        match self {
            PackedCorpus::Windows(windows) => windows.summary(),
            PackedCorpus::Bins(bins) => bins.summary(),
        }
    }
}

fn check(sources: &[MixtureSource], options: &StreamOptions) -> Result<(), DataError> {
    let bad = |what: &str, remedy| Err(DataError::BadChoice { what: what.to_owned(), remedy });
    let Some(first) = sources.first() else {
        return bad("a stream without a corpus", "name at least one folder of shards");
    };
    if options.sequence == 0 || options.sequence > 1 << 30 {
        return bad("a sequence must have 1 to 2^30 tokens", "choose a sequence such as 2048");
    }
    if sources.iter().any(|source| !(source.weight > 0.0 && source.weight.is_finite())) {
        return bad(
            "the weight of a corpus must be above zero",
            "leave the corpus out, or give it a positive weight",
        );
    }
    sources.iter().try_for_each(|other| first.corpus.expect_same_tokenizer(&other.corpus))
}
