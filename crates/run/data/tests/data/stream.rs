//! The stream's laws: an epoch covers the corpus, order depends only on seed and number, documents stay whole.

use std::sync::Arc;

use crate::fixture::{Document, Folder, corpus_of, numbered};
use bedplate_data::{MixtureSource, Packing, Sample, SampleOrder, Stream, StreamOptions};
use bedplate_diag::Diagnostic;
use proptest::prelude::*;

fn options(sequence: usize, seed: u64) -> StreamOptions {
    StreamOptions { sequence, seed, packing: Packing::Windows, order: SampleOrder::Shuffled }
}

fn sample(stream: &Stream, index: u64) -> Sample {
    let mut sample = Sample::default();
    stream.fill(index, &mut sample).unwrap();
    sample
}

fn starts_of(documents: &[Document]) -> Vec<u32> {
    documents.iter().filter_map(|(ids, _)| ids.first().copied()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn windows_of_an_epoch_cover_each_token_once(
        lengths in prop::collection::vec(1usize..400, 4..30),
        sequence in 1usize..64,
        seed: u64,
        shard_tokens in 100u64..2000,
        epoch in 0u64..4,
    ) {
        let folder = Folder::new();
        let documents = numbered(&lengths);
        let corpus = corpus_of(&folder, &documents, shard_tokens);
        let tokens = corpus.tokens();
        prop_assume!(tokens > sequence as u64);
        let stream = Stream::of(corpus, options(sequence, seed)).unwrap();
        let samples = stream.summaries()[0].samples;
        let mut seen = Vec::new();
        for index in epoch * samples..(epoch + 1) * samples {
            let sample = sample(&stream, index);
            prop_assert_eq!(sample.epoch, epoch);
            prop_assert_eq!(sample.tokens().len(), sequence + 1);
            // Tokens are numbered, so each is followed by its successor, round the ring.
            for pair in sample.tokens().windows(2) {
                prop_assert_eq!(u64::from(pair[1]), u64::from(pair[0]) % tokens + 1);
            }
            let expected: Vec<u32> = (0u32..).zip(sample.tokens())
                .filter(|(_, id)| starts_of(&documents).contains(id)).map(|(at, _)| at).collect();
            prop_assert_eq!(sample.starts(), expected);
            prop_assert!(sample.counts().iter().all(|counts| *counts));
            seen.extend_from_slice(&sample.tokens()[..sequence]);
        }
        let left_over = tokens as usize % sequence;
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len() + left_over, tokens as usize);
    }

    #[test]
    fn whole_documents_are_never_split_and_none_is_missing(
        lengths in prop::collection::vec(2usize..60, 2..80),
        seed: u64,
    ) {
        let folder = Folder::new();
        let mut documents = numbered(&lengths);
        for (ids, counts) in &mut documents {
            *counts = (0..ids.len()).map(|at| at * 2 >= ids.len()).collect();
        }
        let corpus = corpus_of(&folder, &documents, 500);
        let stream = Stream::of(corpus, StreamOptions { packing: Packing::Whole, ..options(40, seed) }).unwrap();
        let summary = stream.summaries()[0];
        let mut seen: Vec<Vec<u32>> = Vec::new();
        let mut padding = 0;
        for index in 0..summary.samples {
            let sample = sample(&stream, index);
            prop_assert_eq!(sample.tokens().len(), 41);
            prop_assert_eq!(sample.starts()[0], 0);
            let ends = sample.starts()[1..].iter().map(|start| *start as usize).chain([41]);
            for (start, end) in sample.starts().iter().map(|start| *start as usize).zip(ends) {
                let piece = &sample.tokens()[start..end];
                if piece[0] == 0 {
                    prop_assert!(sample.counts()[start..end].iter().all(|counts| !counts));
                    prop_assert_eq!(sample.padding, piece.len());
                    padding += piece.len() as u64;
                } else {
                    prop_assert!(!sample.counts()[start]);
                    seen.push(piece.to_vec());
                }
            }
        }
        seen.sort();
        let expected: Vec<Vec<u32>> = documents.iter().map(|(ids, _)| ids[..ids.len().min(41)].to_vec()).collect();
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(padding, summary.padding);
        prop_assert_eq!(summary.shortened, lengths.iter().filter(|length| **length > 41).count() as u64);
    }
}

#[test]
fn a_sample_is_the_same_whatever_was_read_before() {
    let (one, two) = (Folder::new(), Folder::new());
    let first = Arc::new(corpus_of(&one, &numbered(&[700, 900, 50]), 600));
    let second = Arc::new(corpus_of(&two, &numbered(&[333, 444]), 600));
    let stream = |seed| {
        let source = |corpus: &Arc<_>, weight| MixtureSource { corpus: Arc::clone(corpus), weight };
        Stream::new(vec![source(&first, 3.0), source(&second, 1.0)], options(16, seed)).unwrap()
    };
    let forwards: Vec<Sample> = (0..500).map(|index| sample(&stream(5), index)).collect();
    let reused = stream(5);
    let mut buffer = Sample::default();
    for index in (0..500u64).rev() {
        reused.fill(index, &mut buffer).unwrap();
        let expected = &forwards[index as usize];
        assert_eq!((buffer.tokens(), buffer.starts()), (expected.tokens(), expected.starts()));
        assert_eq!((buffer.source, buffer.epoch), (expected.source, expected.epoch));
    }
    let from_second = forwards[..400].iter().filter(|sample| sample.source == 1).count();
    assert_eq!(from_second, 100);
    let differing =
        (0..500).filter(|index| sample(&stream(6), *index).tokens() != forwards[*index as usize].tokens());
    assert!(differing.count() > 450, "another seed is another order");
}

#[test]
fn epochs_have_different_orders_and_validation_has_none() {
    let folder = Folder::new();
    corpus_of(&folder, &numbered(&[640]), 10_000);
    let open = |order| {
        let corpus = bedplate_data::Corpus::open(folder.path()).unwrap();
        Stream::of(corpus, StreamOptions { order, ..options(16, 3) }).unwrap()
    };
    let firsts = |stream: &Stream, epoch: u64| -> Vec<u32> {
        (epoch * 40..epoch * 40 + 40).map(|index| sample(stream, index).tokens()[0]).collect()
    };
    let shuffled = open(SampleOrder::Shuffled);
    assert_ne!(firsts(&shuffled, 0), firsts(&shuffled, 1));
    let sequential = open(SampleOrder::Sequential);
    let in_order: Vec<u32> = (0..40).map(|window| window * 16 + 1).collect();
    assert_eq!(firsts(&sequential, 0), in_order);
    assert_eq!(firsts(&sequential, 3), in_order);
}

#[test]
fn what_cannot_be_a_stream_is_refused() {
    let code = |result: Result<Stream, bedplate_data::DataError>| result.err().unwrap().page().code;
    let folder = Folder::new();
    let corpus = || {
        let corpus = bedplate_data::Corpus::open(folder.path()).unwrap();
        Arc::new(corpus)
    };
    corpus_of(&folder, &numbered(&[64]), 10_000);
    let source = |weight| MixtureSource { corpus: corpus(), weight };
    assert_eq!(code(Stream::new(vec![], options(16, 0))), "data/bad-choice");
    assert_eq!(code(Stream::new(vec![source(1.0)], options(64, 0))), "data/too-short");
    assert_eq!(code(Stream::new(vec![source(1.0)], options(0, 0))), "data/bad-choice");
    assert_eq!(code(Stream::new(vec![source(1.0), source(0.0)], options(16, 0))), "data/bad-choice");
    assert_eq!(code(Stream::new(vec![source(f64::NAN)], options(16, 0))), "data/bad-choice");
}

#[test]
fn a_conversation_whose_answer_does_not_fit_is_left_out() {
    let folder = Folder::new();
    let counts = |prompt: usize, answer: usize| [vec![false; prompt], vec![true; answer]].concat();
    let mut documents = numbered(&[30, 30, 6, 1, 5]);
    for (document, (prompt, answer)) in documents.iter_mut().zip([(20, 10), (10, 20), (3, 3), (0, 1), (5, 0)])
    {
        document.1 = counts(prompt, answer);
    }
    let corpus = corpus_of(&folder, &documents, 1000);
    let stream = Stream::of(corpus, StreamOptions { packing: Packing::Whole, ..options(19, 1) }).unwrap();
    let summary = stream.summaries()[0];
    assert_eq!((summary.samples, summary.shortened, summary.left_out), (2, 1, 3));
    for index in 0..10 {
        assert!(sample(&stream, index).counts().contains(&true));
    }
}
