//! Batches: the same samples for any number of ranks.

use std::fs;
use std::sync::Arc;

use crate::fixture::{Document, Folder, corpus_of, numbered};
use bedplate_data::{
    Batch, Batches, DocumentMask, IGNORED, Packing, Sample, SampleOrder, Schedule, Stream, StreamOptions,
};
use bedplate_diag::Diagnostic;

fn stream(folder: &Folder, documents: &[Document], sequence: usize, packing: Packing) -> Arc<Stream> {
    let corpus = corpus_of(folder, documents, 1 << 20);
    let options = StreamOptions { sequence, seed: 1, packing, order: SampleOrder::Sequential };
    Arc::new(Stream::of(corpus, options).unwrap())
}

fn batch(stream: &Stream, rows: u64, mask: DocumentMask) -> Batch {
    let mut batch = Batch::default();
    batch.fill(stream, 0, rows, mask, &mut Sample::default()).unwrap();
    batch
}

#[test]
fn attention_and_positions_begin_anew_with_each_document() {
    let folder = Folder::new();
    let stream = stream(&folder, &numbered(&[3, 4, 9]), 8, Packing::Windows);
    let own = batch(&stream, 2, DocumentMask::Own);
    assert_eq!(own.tokens, (1..=16).collect::<Vec<u32>>());
    assert_eq!(own.first_keys, [0, 0, 0, 3, 3, 3, 3, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(own.positions, [0, 1, 2, 0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(own.targets, [2, 3, IGNORED, 5, 6, 7, IGNORED, 9, 10, 11, 12, 13, 14, 15, 16, IGNORED]);
    assert_eq!((own.counted, &own.padding[..]), (13, &[0, 0][..]));
    let ignored = batch(&stream, 2, DocumentMask::Ignored);
    assert!(ignored.first_keys.iter().all(|first| *first == 0));
    assert_eq!(ignored.positions, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(ignored.counted, 16);
}

#[test]
fn the_mark_that_opens_the_next_document_is_foretold() {
    let folder = Folder::new();
    let documents: Vec<Document> =
        vec![(vec![0, 5, 6], vec![]), (vec![0, 7, 8, 9], vec![]), (vec![0, 4], vec![])];
    let stream = stream(&folder, &documents, 8, Packing::Windows);
    let own = batch(&stream, 1, DocumentMask::Own);
    assert_eq!(own.targets, [5, 6, 0, 7, 8, 9, 0, 4]);
}

#[test]
fn prompts_and_padding_do_not_count() {
    let folder = Folder::new();
    let documents = vec![
        (vec![11, 12, 13, 14], vec![false, false, true, true]),
        (vec![21, 22, 23], vec![false, true, true]),
    ];
    let stream = stream(&folder, &documents, 8, Packing::Whole);
    let own = batch(&stream, 1, DocumentMask::Own);
    let i = IGNORED;
    assert_eq!(own.tokens, [11, 12, 13, 14, 21, 22, 23, 0]);
    assert_eq!(own.padding, [1], "of two tokens of padding, one is only a target");
    assert_eq!(own.targets, [i, 13, 14, i, 22, 23, i, i]);
    assert_eq!(own.first_keys, [0, 0, 0, 0, 4, 4, 4, 7]);
    assert_eq!(own.counted, 4);
}

/// The samples of some global batches, gathered from all ranks.
fn gathered(stream: &Arc<Stream>, ranks: u64, rows: u64) -> Vec<u32> {
    let mut tokens = Vec::new();
    let schedule = |rank| Schedule { first_sample: 24, global_batch: 12, rows, rank, ranks };
    let start = |rank| Batches::start(Arc::clone(stream), schedule(rank), DocumentMask::Own, 2).unwrap();
    let mut readers: Vec<Batches> = (0..ranks).map(start).collect();
    for _step in 0..5 {
        for reader in &mut readers {
            for _ in 0..schedule(0).micro_batches() {
                let batch = reader.next().unwrap();
                tokens.extend_from_slice(&batch.tokens);
                reader.recycle(batch);
            }
        }
    }
    tokens
}

#[test]
fn any_number_of_ranks_replays_the_same_global_batches() {
    let folder = Folder::new();
    let stream = stream(&folder, &numbered(&[700, 800]), 16, Packing::Windows);
    let alone = gathered(&stream, 1, 12);
    assert_eq!(alone.len(), 5 * 12 * 16);
    for (ranks, rows) in [(1, 1), (2, 3), (3, 4), (4, 1), (6, 2), (12, 1)] {
        assert_eq!(gathered(&stream, ranks, rows), alone, "{ranks} ranks, {rows} rows");
    }
}

#[test]
fn a_schedule_without_a_micro_batch_for_each_rank_is_refused() {
    let folder = Folder::new();
    let stream = stream(&folder, &numbered(&[70]), 16, Packing::Windows);
    for (global_batch, rows, rank, ranks) in
        [(8, 3, 0, 1), (8, 2, 0, 5), (0, 1, 0, 1), (8, 0, 0, 1), (8, 1, 2, 2)]
    {
        let schedule = Schedule { first_sample: 0, global_batch, rows, rank, ranks };
        let error = Batches::start(Arc::clone(&stream), schedule, DocumentMask::Own, 1).err().unwrap();
        assert_eq!(error.page().code, "data/bad-choice");
    }
}

#[test]
fn damage_is_an_error_of_the_batch() {
    let folder = Folder::new();
    let stream = stream(&folder, &numbered(&[20_000]), 64, Packing::Windows);
    let path = folder.path().join("00000.tokens");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 10;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let mut batches = Batches::start(stream, Schedule::alone(0, 8, 8), DocumentMask::Own, 4).unwrap();
    let error = (0..100).find_map(|_| batches.next().err()).expect("the damaged block is read");
    assert_eq!(error.page().code, "data/corrupt");
    assert_eq!(batches.next().unwrap_err().page().code, "data/reader-ended");
}
