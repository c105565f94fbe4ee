//! Generated documents as a corpus, with a tokenizer trained on them, in one go.

use std::path::Path;

use super::{Kind, generate};
use crate::corpus::{CorpusOptions, CorpusWriter, Index};
use crate::error::DataError;
use crate::tokenize::VALIDATION_FOLDER;
use crate::tokenizer::{Tokenizer, TrainingOptions, train_tokenizer};

/// Documents that a tokenizer is trained on; more of them hardly change it.
const TRAINING_DOCUMENTS: u64 = 2000;

#[derive(Debug, Clone, Copy)]
pub struct GenerateOptions {
    pub kind: Kind,
    pub seed: u64,
    pub documents: u64,
    /// Further documents, for validation; none of them is in the corpus.
    pub validation: u64,
    /// Tokens of the tokenizer that is trained.
    pub vocabulary: u32,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self { kind: Kind::Mixture, seed: 1, documents: 10_000, validation: 200, vocabulary: 1024 }
    }
}

#[derive(Debug)]
pub struct Generated {
    pub index: Index,
    pub validation: Option<Index>,
    pub tokenizer: Tokenizer,
}

/// Writes a corpus into a folder, with documents `0..documents` of the kind, and beneath it one for validation
/// with those that follow. Without a tokenizer one is trained. `progress` is told how many documents are done.
pub fn generate_corpus(
    folder: &Path,
    options: &GenerateOptions,
    tokenizer: Option<Tokenizer>,
    progress: &mut dyn FnMut(u64),
) -> Result<Generated, DataError> {
    let tokenizer = match tokenizer {
        Some(tokenizer) => tokenizer,
        None => trained(options)?,
    };
    let mut done = 0;
    let mut write = |folder: &Path, numbers: std::ops::Range<u64>| -> Result<Index, DataError> {
        let mut writer = CorpusWriter::create(folder, &tokenizer, CorpusOptions::text(&tokenizer))?;
        let mut encoder = tokenizer.encoder();
        let mut ids = Vec::new();
        for number in numbers {
            let text = generate(options.kind, options.seed, number);
            ids.clear();
            encoder.encode(&text, &mut ids)?;
            writer.push_text(&ids, text.len() as u64)?;
            done += 1;
            progress(done);
        }
        writer.finish()
    };
    let index = write(folder, 0..options.documents)?;
    let held_out = options.documents..options.documents + options.validation;
    let validation = match held_out.is_empty() {
        true => None,
        false => Some(write(&folder.join(VALIDATION_FOLDER), held_out)?),
    };
    Ok(Generated { index, validation, tokenizer })
}

fn trained(options: &GenerateOptions) -> Result<Tokenizer, DataError> {
    let numbers = 0..options.documents.min(TRAINING_DOCUMENTS);
    let texts: Vec<String> = numbers.map(|number| generate(options.kind, options.seed, number)).collect();
    let training = TrainingOptions { vocabulary: options.vocabulary, ..TrainingOptions::default() };
    train_tokenizer(texts.iter().map(String::as_str), &training)
}
