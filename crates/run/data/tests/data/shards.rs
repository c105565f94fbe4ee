//! Shards and folders on disk: what was written comes back, and damage is always found.

use std::fs;

use crate::fixture::{Folder, byte_tokenizer, corpus_of, numbered};
use bedplate_data::{Corpus, Header, Shard};
use bedplate_diag::{Diagnostic, render_text};

#[test]
fn any_changed_byte_of_a_shard_is_an_error() {
    let folder = Folder::new();
    let mut documents = numbered(&[3, 1, 7]);
    documents[2].1 = vec![true, false, true, true, false, false, true];
    corpus_of(&folder, &documents, 1000);
    let path = folder.path().join("00000.tokens");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= flip;
            fs::write(&path, &bytes).unwrap();
            let read = Shard::open(&path).and_then(|shard| shard.verify());
            let error = read.expect_err(&format!("byte {at} changed by {flip:#x}"));
            assert!(error.to_string().contains("00000.tokens"), "{error}");
        }
    }
    fs::write(&path, &good).unwrap();
    Corpus::open(folder.path()).unwrap().verify().unwrap();
}

#[test]
fn a_shard_of_any_other_length_is_an_error() {
    let folder = Folder::new();
    corpus_of(&folder, &numbered(&[3, 1, 7]), 1000);
    let path = folder.path().join("00000.tokens");
    let good = fs::read(&path).unwrap();
    for length in (0..good.len()).chain([good.len() + 1, good.len() + 100]) {
        let mut bytes = good.clone();
        bytes.resize(length, 0);
        fs::write(&path, &bytes).unwrap();
        assert!(Shard::open(&path).is_err(), "{length} bytes");
    }
}

#[test]
fn a_damaged_block_is_named_with_its_file_and_a_remedy() {
    let folder = Folder::new();
    corpus_of(&folder, &numbered(&[5000, 5000]), 1 << 20);
    let path = folder.path().join("00000.tokens");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let text = render_text(&Shard::open(&path).unwrap().verify().unwrap_err());
    assert!(text.contains("block 1 of 3 of the shard") && text.contains("tokenize"), "{text}");
}

#[test]
fn a_shard_of_another_corpus_is_noticed() {
    let (one, other) = (Folder::new(), Folder::new());
    corpus_of(&one, &numbered(&[30, 40]), 1000);
    let mut documents = numbered(&[30, 40]);
    documents[0].0[0] = 200;
    corpus_of(&other, &documents, 1000);
    fs::copy(other.path().join("00000.tokens"), one.path().join("00000.tokens")).unwrap();
    assert_eq!(Corpus::open(one.path()).unwrap_err().page().code, "data/foreign-shard");
}

#[test]
fn a_folder_that_holds_a_corpus_is_not_written_to() {
    let folder = Folder::new();
    let corpus = corpus_of(&folder, &numbered(&[30]), 1000);
    let options = bedplate_data::CorpusOptions::text(&byte_tokenizer());
    let again = bedplate_data::CorpusWriter::create(folder.path(), &byte_tokenizer(), options);
    assert_eq!(again.err().unwrap().page().code, "data/occupied");
    corpus.verify().unwrap();
}

#[test]
fn a_folder_has_one_writer_at_a_time() {
    let folder = Folder::new();
    let create = || {
        let options = bedplate_data::CorpusOptions::text(&byte_tokenizer());
        bedplate_data::CorpusWriter::create(folder.path(), &byte_tokenizer(), options)
    };
    let first = create().unwrap();
    assert_eq!(create().err().unwrap().page().code, "data/writing");
    drop(first);
    assert!(create().is_ok());
}

#[test]
fn an_index_that_leads_out_of_its_folder_is_refused() {
    let folder = Folder::new();
    corpus_of(&folder, &numbered(&[30]), 1000);
    let path = folder.path().join("index.json");
    let text = fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("00000.tokens", "../00000.tokens"),
        ("00000.tokens", "/etc/passwd"),
        ("\"tokens\": 30", "\"tokens\": 31"),
        ("bedplate-tokens-1", "bedplate-tokens-2"),
        ("\"documents\"", "\"dokuments\""),
    ] {
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        assert_eq!(Corpus::open(folder.path()).unwrap_err().page().code, "data/bad-index", "{to}");
    }
}

#[test]
fn documents_are_counted_and_measured() {
    let folder = Folder::new();
    let corpus = corpus_of(&folder, &numbered(&[1, 2, 3, 4, 100, 0]), 5);
    let index = corpus.index();
    assert_eq!((index.documents, index.tokens, index.shards.len()), (5, 110, 2));
    assert_eq!(index.lengths.0, [1, 2, 1, 0, 0, 0, 1]);
    let first = Shard::open(&folder.path().join("00000.tokens")).unwrap();
    assert_eq!((first.header().tokens, first.header().documents), (6, 3));
    assert_eq!(fs::metadata(first.path()).unwrap().len() as usize, Header::BYTES + 6 * 2 + 1 + 4);
}
