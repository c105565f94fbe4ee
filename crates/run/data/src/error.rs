//! What can go wrong with data, and the pages that explain it.

use std::io;
use std::path::PathBuf;

use bedplate_diag::{Diagnostic, Page, Place, pages};
use bedplate_units::grouped;

use crate::digest::Digest;

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} is not a shard of tokens", .path.display())]
    NotAShard { path: PathBuf },
    #[error("the header of the shard {} is damaged", .path.display())]
    CorruptHeader { path: PathBuf },
    #[error("block {block} of {blocks} of the shard {} is damaged", .path.display())]
    CorruptBlock { path: PathBuf, block: u64, blocks: u64 },
    #[error("the shard {} has {} bytes instead of {}", .path.display(), grouped(*.found), grouped(*.expected))]
    WrongLength { path: PathBuf, expected: u64, found: u64 },
    #[error("the shard {} has format {found}; this program knows format {known}", .path.display())]
    NewerShard { path: PathBuf, found: u32, known: u32 },
    #[error("the folder's index cannot be read: {reason}")]
    BadIndex { reason: String, place: Place },
    #[error("the shard {} is not the one that the folder's index describes", .path.display())]
    ForeignShard { path: PathBuf },
    #[error("{} holds a corpus already", .folder.display())]
    Occupied { folder: PathBuf },
    #[error("another process is writing a corpus into {}", folder.display())]
    Writing { folder: PathBuf },
    #[error("the tokenizer cannot be used: {reason}")]
    BadTokenizer { reason: String, place: Place },
    #[error("the tokenizer has ids up to {highest} but the model's vocabulary is {vocabulary}")]
    Vocabulary { highest: u32, vocabulary: u32 },
    #[error("corpora of one run have different tokenizers: {} has {first}, {} has {other}", .first_folder.display(), .other_folder.display())]
    MixedTokenizers { first_folder: PathBuf, first: Digest, other_folder: PathBuf, other: Digest },
    #[error("{} has {} tokens, too few for one sample of {}", .folder.display(), grouped(*.tokens), grouped(*.sequence as u64))]
    TooShort { folder: PathBuf, tokens: u64, sequence: usize },
    #[error("no document of {} has anything to learn within a sample of {} tokens", .folder.display(), grouped(*.sequence as u64))]
    NothingFits { folder: PathBuf, sequence: usize },
    #[error("the conversation cannot be rendered: {reason}")]
    BadTemplate { reason: String },
    #[error("a record cannot be read: {reason}")]
    BadRecord { reason: String, place: Place },
    #[error("{} cannot be read as {format}: {reason}", .path.display())]
    BadInput { path: PathBuf, format: &'static str, reason: String },
    #[error("{} has an extension of no known format", .path.display())]
    UnknownInput { path: PathBuf },
    #[error("there is no text in {}", named(.inputs))]
    NoDocuments { inputs: Vec<PathBuf> },
    #[error("{what}")]
    BadChoice { what: String, remedy: &'static str },
    #[error("the thread that reads batches has ended: {why}")]
    ReaderEnded { why: String },
}

fn named(inputs: &[PathBuf]) -> String {
    inputs.iter().map(|input| input.display().to_string()).collect::<Vec<_>>().join(", ")
}

pages! { pub PAGES "data":
    READ "read" User
        "A file of a corpus, a tokenizer or an input cannot be read: it does not exist, is a folder, or you may not read it."
        "check the path and its permissions"
    WRITE "write" Transient
        "A file of a corpus cannot be written. No unfinished file is left under its final name."
        "check that you may write to the folder and that the disk has room, then run the command again"
    NOT_A_SHARD "not-a-shard" User
        "The file does not begin like a shard of tokens. Another program made it, or its first bytes are damaged."
        "name a folder that `bedplate data tokenize` made, or make the corpus again"
    CORRUPT "corrupt" User
        "A shard is damaged: a checksum is wrong, or the file is too short or too long. Nothing of the damaged block is used."
        "copy the shard again from its source, or make the corpus again with `bedplate data tokenize`"
    NEWER "newer" User
        "The shard was written by a later release, in a format that this one does not know."
        "use the release that wrote it, or tokenize the corpus again with this one"
    INDEX "bad-index" User
        "A folder of shards has an `index.json` that lists them. It is not JSON, lacks a key, or contradicts itself."
        "restore the file, or make the corpus again with `bedplate data tokenize`"
    FOREIGN "foreign-shard" User
        "A shard's header contradicts the folder's index: the file was replaced by one from another corpus or run."
        "copy the whole folder again, or make the corpus again with `bedplate data tokenize`"
    OCCUPIED "occupied" User
        "The output folder already holds a corpus. It is left unchanged, because runs may be reading it."
        "name another folder, or remove this one first"
    WRITING "writing" Transient
        "Two processes would write one corpus. This one has not begun."
        "wait for the other one, or name another folder"
    TOKENIZER "bad-tokenizer" User
        "The file is not a tokenizer in Hugging Face's format, or uses a part of it that is not supported, or lacks a required token."
        "name the `tokenizer.json` of a model, or make one with `bedplate data train-tokenizer`"
    VOCABULARY "vocabulary" User
        "The tokenizer produces ids that the model has no embedding for."
        "use the model's own tokenizer, or set the model's vocabulary to at least the tokenizer's highest id plus one"
    MIXED "mixed-tokenizers" User
        "All corpora of a run feed one model, including the one used for evaluation, so an id must mean the same in all of them."
        "tokenize all corpora with one tokenizer"
    TOO_SHORT "too-short" User
        "A sample is one contiguous run of tokens, and the corpus is shorter than that."
        "use more text or a shorter sequence"
    NOTHING_FITS "nothing-fits" User
        "Documents are packed whole. In each of them the first token that counts in the loss lies beyond the length of a sample, so there is nothing to learn."
        "use a longer sequence"
    TEMPLATE "bad-template" User
        "A conversation cannot be rendered: the chat template is missing or wrong, refuses the conversation, or leaves nothing to learn from it."
        "check the turns of the conversation and the `chat_template` of the tokenizer's configuration"
    RECORD "bad-record" User
        "A line of an input is not a JSON object with the expected text or conversation."
        "name the key of the text with `--field`, or give conversations with `--chat` in one of the shapes that the guide on data lists"
    INPUT "bad-input" User
        "An input does not match its name: it is damaged, compressed differently, not UTF-8, or lacks the requested column."
        "check the file, and name the column of the text with `--field`"
    UNKNOWN_INPUT "unknown-input" User
        "The format of an input is determined by its file extension."
        "use .txt or .md, .jsonl, .ndjson or .json, each optionally followed by .gz or .zst, or .parquet"
    NO_DOCUMENTS "no-documents" User
        "The inputs are empty, or a folder holds no file of a known format, so there is nothing to make a corpus of."
        "check the paths; files with the extension .json are read only when named themselves"
    CHOICE "bad-choice" User
        "Options contradict each other, or a value is out of range."
        "see `bedplate help data` and the guide on data"
    ENDED "reader-ended" Bug
        "The thread that reads batches ahead has stopped without an error, and a batch was requested."
        "report this; the run can be resumed"
}

impl Diagnostic for DataError {
    fn page(&self) -> &'static Page {
        match self {
            DataError::Read { .. } => &READ,
            DataError::Write { .. } => &WRITE,
            DataError::NotAShard { .. } => &NOT_A_SHARD,
            DataError::CorruptHeader { .. }
            | DataError::CorruptBlock { .. }
            | DataError::WrongLength { .. } => &CORRUPT,
            DataError::NewerShard { .. } => &NEWER,
            DataError::BadIndex { .. } => &INDEX,
            DataError::ForeignShard { .. } => &FOREIGN,
            DataError::Occupied { .. } => &OCCUPIED,
            DataError::Writing { .. } => &WRITING,
            DataError::BadTokenizer { .. } => &TOKENIZER,
            DataError::Vocabulary { .. } => &VOCABULARY,
            DataError::MixedTokenizers { .. } => &MIXED,
            DataError::TooShort { .. } => &TOO_SHORT,
            DataError::NothingFits { .. } => &NOTHING_FITS,
            DataError::BadTemplate { .. } => &TEMPLATE,
            DataError::BadRecord { .. } => &RECORD,
            DataError::BadInput { .. } => &INPUT,
            DataError::UnknownInput { .. } => &UNKNOWN_INPUT,
            DataError::NoDocuments { .. } => &NO_DOCUMENTS,
            DataError::BadChoice { .. } => &CHOICE,
            DataError::ReaderEnded { .. } => &ENDED,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            DataError::BadChoice { remedy, .. } => Some((*remedy).to_owned()),
            DataError::Vocabulary { highest, .. } => Some(format!(
                "use the model's own tokenizer, or set the model's vocabulary to {} or more",
                u64::from(*highest) + 1
            )),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            DataError::BadIndex { place, .. }
            | DataError::BadTokenizer { place, .. }
            | DataError::BadRecord { place, .. } => Some(place),
            _ => None,
        }
    }
}
