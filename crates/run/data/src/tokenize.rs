//! From inputs to a corpus: one thread reads, several encode, one writes, in the order of the input.

mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use bedplate_diag::Place;

use crate::chat::{Answers, ChatTemplate};
use crate::corpus::{Content, CorpusOptions, CorpusWriter, Index};
use crate::disk;
use crate::error::DataError;
use crate::input::{self, Portion, TextUnit, Wanted};
use crate::tokenizer::Tokenizer;

use worker::{Encoded, Worker};

/// The folder inside a corpus for held-out documents.
pub const VALIDATION_FOLDER: &str = "validation";

#[derive(Debug, Clone)]
pub struct TokenizeOptions {
    pub corpus: CorpusOptions,
    /// The key or column that holds the text.
    pub field: String,
    pub unit: TextUnit,
    pub threads: usize,
    /// The share of documents to hold out for validation. Chosen by a hash of the document's text, so that copies of
    /// a document are all on the same side.
    pub held_out: f64,
}

/// How far the work is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenizeProgress {
    /// Bytes of the input files: read, and total.
    pub bytes_read: u64,
    pub bytes_in_all: u64,
    pub documents: u64,
    pub tokens: u64,
}

#[derive(Debug)]
pub struct Tokenized {
    pub index: Index,
    /// The held-out corpus, if requested.
    pub validation: Option<Index>,
    /// Bytes of the input files on disk.
    pub input_bytes: u64,
    /// What becomes of the assistant's turns in conversations.
    pub answers: Answers,
    /// Conversations that could not be used.
    pub skipped: Skipped,
}

/// Records that were passed over.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Skipped {
    pub count: u64,
    /// The first few, in the order of the input.
    pub first: Vec<Skip>,
}

/// Why a record was passed over, and where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Skip {
    pub reason: String,
    pub place: Place,
}

impl Skipped {
    /// Those that are named.
    const NAMED: usize = 5;

    fn add(&mut self, skip: Skip) {
        self.count += 1;
        if self.first.len() < Self::NAMED {
            self.first.push(skip);
        }
    }

    fn extend(&mut self, more: &Skipped) {
        self.count += more.count;
        let room = Self::NAMED - self.first.len();
        self.first.extend(more.first.iter().take(room).cloned());
    }
}

/// Makes a corpus from inputs, files or folders. The result does not depend on the number of threads.
pub fn tokenize(
    inputs: &[PathBuf],
    tokenizer: &Tokenizer,
    folder: &Path,
    options: &TokenizeOptions,
    progress: &mut dyn FnMut(TokenizeProgress),
) -> Result<Tokenized, DataError> {
    if !(0.0..1.0).contains(&options.held_out) {
        let what = format!("a share of {} of the documents", options.held_out);
        return Err(DataError::BadChoice {
            what,
            remedy: "hold out a share from 0 up to less than 1, as in 0.01",
        });
    }
    let files = input::find_files(inputs)?;
    let sizes = files.iter().map(|file| Ok(std::fs::metadata(file).map_err(disk::reading(file))?.len()));
    let input_bytes = sizes.sum::<Result<u64, DataError>>()?;
    let template = match options.corpus.content {
        Content::Chat => Some(ChatTemplate::of(tokenizer)?),
        Content::Text => None,
    };
    let wanted = match &template {
        Some(_) => Wanted::Conversations,
        None => Wanted::Texts { field: &options.field, unit: options.unit },
    };
    let mut output = Output::create(folder, tokenizer, options)?;
    let bytes_read = AtomicU64::new(0);
    let threads = options.threads.max(1);
    thread::scope(|scope| {
        let (portions_in, portions) = sync_channel(threads * 2);
        let (encoded_in, encoded) = sync_channel(threads * 2);
        let portions = Mutex::new(portions);
        let (files, bytes, failures) = (&files, &bytes_read, encoded_in.clone());
        scope.spawn(move || read_all(files, wanted, bytes, &portions_in, &failures));
        // The receiver lives as long as any worker, so the reader stops when all workers have.
        let portions = std::sync::Arc::new(portions);
        for _ in 0..threads {
            let (portions, encoded_in) = (std::sync::Arc::clone(&portions), encoded_in.clone());
            let mut worker = Worker::new(tokenizer, template.as_ref(), options);
            scope.spawn(move || work(&mut worker, &portions, &encoded_in));
        }
        drop((portions, encoded_in));
        collect(encoded, &mut |part| {
            output.push(&part)?;
            let bytes_read = bytes_read.load(Ordering::Relaxed);
            progress(output.progress(bytes_read, input_bytes));
            Ok(())
        })
    })?;
    output.expect_some(inputs)?;
    let validation = output.validation.map(CorpusWriter::finish).transpose()?;
    let (answers, skipped) = (output.answers, output.skipped);
    Ok(Tokenized { index: output.corpus.finish()?, validation, input_bytes, answers, skipped })
}

type Numbered<T> = (u64, T);
type Outcome = Result<Encoded, DataError>;

fn read_all(
    files: &[PathBuf],
    wanted: Wanted<'_>,
    bytes_read: &AtomicU64,
    portions: &SyncSender<Numbered<Portion>>,
    failures: &SyncSender<Numbered<Outcome>>,
) {
    let mut number = 0;
    for file in files {
        let mut is_wanted = true;
        let mut each = |portion| {
            number += 1;
            is_wanted = portions.send((number - 1, portion)).is_ok();
            is_wanted
        };
        let read = input::read(file, wanted, bytes_read, &mut each);
        if let Err(error) = read {
            // Reported in turn, after everything read before it.
            let _ = failures.send((number, Err(error)));
            return;
        }
        if !is_wanted {
            return;
        }
    }
}

fn work(
    worker: &mut Worker<'_>,
    portions: &Mutex<Receiver<Numbered<Portion>>>,
    encoded: &SyncSender<Numbered<Outcome>>,
) {
    loop {
        let received = portions.lock().expect("no worker panics while it waits").recv();
        let Ok((number, portion)) = received else { return };
        if encoded.send((number, worker.encode(&portion))).is_err() {
            return;
        }
    }
}

/// Collects the workers' results in the order of the input.
fn collect(
    encoded: Receiver<Numbered<Outcome>>,
    each: &mut dyn FnMut(Encoded) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut early: BTreeMap<u64, Outcome> = BTreeMap::new();
    let mut next = 0;
    for (number, outcome) in encoded {
        early.insert(number, outcome);
        while let Some(outcome) = early.remove(&next) {
            each(outcome?)?;
            next += 1;
        }
    }
    Ok(())
}

struct Output {
    corpus: CorpusWriter,
    validation: Option<CorpusWriter>,
    documents: u64,
    answers: Answers,
    skipped: Skipped,
}

impl Output {
    fn create(folder: &Path, tokenizer: &Tokenizer, options: &TokenizeOptions) -> Result<Self, DataError> {
        let corpus = CorpusWriter::create(folder, tokenizer, options.corpus)?;
        let validation = (options.held_out > 0.0)
            .then(|| CorpusWriter::create(&folder.join(VALIDATION_FOLDER), tokenizer, options.corpus));
        Ok(Self {
            corpus,
            validation: validation.transpose()?,
            documents: 0,
            answers: Answers::default(),
            skipped: Skipped::default(),
        })
    }

    fn push(&mut self, part: &Encoded) -> Result<(), DataError> {
        let mut from = 0;
        for document in &part.documents {
            let ids = &part.ids[from..document.end];
            let writer = match &mut self.validation {
                Some(validation) if document.is_held_out => validation,
                _ => &mut self.corpus,
            };
            match part.counts.is_empty() {
                true => writer.push_text(ids, document.bytes)?,
                false => writer.push(ids, &part.counts[from..document.end], document.bytes)?,
            }
            from = document.end;
        }
        self.documents += part.documents.len() as u64;
        self.answers += part.answers;
        self.skipped.extend(&part.skipped);
        Ok(())
    }

    /// An error when nothing was found in the inputs: an empty corpus is of no use to anybody.
    fn expect_some(&self, inputs: &[PathBuf]) -> Result<(), DataError> {
        if self.tokens() > 0 {
            return Ok(());
        }
        Err(match self.skipped.first.first() {
            Some(Skip { reason, place }) => {
                DataError::BadRecord { reason: reason.clone(), place: place.clone() }
            }
            None => DataError::NoDocuments { inputs: inputs.to_vec() },
        })
    }

    fn tokens(&self) -> u64 {
        self.corpus.tokens() + self.validation.as_ref().map_or(0, CorpusWriter::tokens)
    }

    fn progress(&self, bytes_read: u64, bytes_in_all: u64) -> TokenizeProgress {
        TokenizeProgress { bytes_read, bytes_in_all, documents: self.documents, tokens: self.tokens() }
    }
}
