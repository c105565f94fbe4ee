//! Tokens for training: tokenizers, shards on disk, and an order that is a pure function of the sample's number.
//!
//! A [`Corpus`] is a folder of shards with the tokenizer that made them. A [`Stream`] cuts corpora into samples
//! of one length and gives the n-th sample of an endless, shuffled mixture: it is stateless, so a run resumes
//! from one integer, on any number of ranks. [`Batches`] reads ahead. [`generate`] makes up a corpus,
//! for tests and first steps. This crate does not know models, optimizers or devices.
//!
//! ```
//! use bedplate_data::{
//!     Corpus, CorpusKind, CorpusOptions, CorpusWriter, Packing, Sample, SampleOrder, Stream, StreamOptions,
//!     TrainingOptions, generate, train_tokenizer,
//! };
//!
//! let folder = std::env::temp_dir().join(format!("bedplate-data-example-{}", std::process::id()));
//! let texts: Vec<String> = (0..50).map(|number| generate(CorpusKind::Stories, 1, number)).collect();
//! let options = TrainingOptions { vocabulary: 512, ..TrainingOptions::default() };
//! let tokenizer = train_tokenizer(texts.iter().map(String::as_str), &options)?;
//! let mut writer = CorpusWriter::create(&folder, &tokenizer, CorpusOptions::text(&tokenizer))?;
//! for text in &texts {
//!     writer.push_text(&tokenizer.encode(text)?, text.len() as u64)?;
//! }
//! writer.finish()?;
//!
//! let options = StreamOptions { sequence: 64, seed: 7, packing: Packing::Windows, order: SampleOrder::Shuffled };
//! let stream = Stream::of(Corpus::open(&folder)?, options)?;
//! let mut sample = Sample::default();
//! stream.fill(1_000_000, &mut sample)?;
//! assert_eq!(sample.tokens().len(), 65);
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok::<(), bedplate_data::DataError>(())
//! ```

mod batches;
mod chat;
mod corpus;
mod digest;
mod disk;
mod error;
mod generate;
mod input;
mod order;
mod shard;
mod stream;
mod tokenize;
mod tokenizer;

pub use batches::{Batch, Batches, DocumentMask, IGNORED, Schedule};
pub use chat::{Answers, ChatTemplate, Conversation, Message};
pub use corpus::{
    Content, Corpus, CorpusOptions, CorpusWriter, DocumentLengths, Index, ShardEntry, TokenizerEntry,
};
pub use digest::Digest;
pub use error::{DataError, PAGES};
pub use generate::{
    CorpusKind, GenerateOptions, Generated, generate, generate_conversation, generate_corpus,
};
pub use input::{TextUnit, read_texts};
pub use shard::{Header, Shard, ShardWriter, Width};
pub use stream::{MixtureSource, Packing, Sample, SampleOrder, SourceSummary, Stream, StreamOptions};
pub use tokenize::{
    Skip, Skipped, TokenizeOptions, TokenizeProgress, Tokenized, VALIDATION_FOLDER, tokenize,
};
pub use tokenizer::{Encoder, Pieces, Tokenizer, TrainingOptions, train_tokenizer};
