//! Small corpora in temporary folders.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_data::{
    Content, Corpus, CorpusOptions, CorpusWriter, Tokenizer, TrainingOptions, train_tokenizer,
};

pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bedplate-data-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes and three special tokens, no merges.
pub(crate) fn byte_tokenizer() -> Tokenizer {
    train_tokenizer([], &TrainingOptions { vocabulary: 259, ..TrainingOptions::default() }).unwrap()
}

/// A document as ids, and which of them count in the loss; none means all.
pub(crate) type Document = (Vec<u32>, Vec<bool>);

/// Writes documents as they are into shards of about this many tokens.
pub(crate) fn corpus_of(folder: &Folder, documents: &[Document], shard_tokens: u64) -> Corpus {
    let has_mask = documents.iter().any(|(_, counts)| !counts.is_empty());
    let content = if has_mask { Content::Chat } else { Content::Text };
    let options = CorpusOptions { content, shard_tokens, begin: None, end: Some(0) };
    let mut writer = CorpusWriter::create(folder.path(), &byte_tokenizer(), options).unwrap();
    for (ids, counts) in documents {
        writer.push(ids, counts, 1).unwrap();
    }
    writer.finish().unwrap();
    Corpus::open(folder.path()).unwrap()
}

/// Documents of these lengths with consecutive tokens from 1, and wide ids where needed.
pub(crate) fn numbered(lengths: &[usize]) -> Vec<Document> {
    let mut next = 0u32;
    let mut document = |length: &usize| {
        let ids = (0..*length).map(|_| {
            next += 1;
            next
        });
        (ids.collect(), Vec::new())
    };
    lengths.iter().map(&mut document).collect()
}
