//! Bins: whole documents packed into samples, planned once when the stream is made.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SourceSummary;
use crate::corpus::Corpus;
use crate::error::DataError;
use crate::shard::TokenPiece;

#[derive(Debug)]
pub(super) struct Bins {
    corpus: Arc<Corpus>,
    capacity: u32,
    /// All documents, bin by bin.
    members: Vec<BinMember>,
    /// Where each bin's members end.
    ends: Vec<u32>,
    shortened: u64,
    left_out: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BinMember {
    /// The position of the first token in the corpus.
    pub(super) first: u64,
    pub(super) tokens: u32,
}

impl Bins {
    pub(super) fn new(corpus: Arc<Corpus>, sequence: usize) -> Result<Self, DataError> {
        let capacity = sequence as u32 + 1;
        let mut documents = Vec::new();
        let (mut shortened, mut left_out) = (0, 0);
        corpus.scan_documents(|document| {
            if document.first_counted.is_none_or(|first| first >= u64::from(capacity)) {
                left_out += 1;
                return;
            }
            shortened += u64::from(document.tokens > u64::from(capacity));
            let tokens = document.tokens.min(u64::from(capacity)) as u32;
            documents.push(BinMember { first: document.first, tokens });
        })?;
        if documents.is_empty() {
            let folder = corpus.folder().to_owned();
            return Err(DataError::NothingFits { folder, sequence });
        }
        let bins = pack(&documents, capacity);
        let mut end = 0;
        let ends = bins.iter().map(|bin| {
            end += bin.len() as u32;
            end
        });
        let ends = ends.collect();
        let members = bins.concat();
        Ok(Self { corpus, capacity, members, ends, shortened, left_out })
    }

    pub(super) fn samples(&self) -> u64 {
        self.ends.len() as u64
    }

    pub(super) fn summary(&self) -> SourceSummary {
        let used: u64 = self.members.iter().map(|member| u64::from(member.tokens)).sum();
        let padding = self.samples() * u64::from(self.capacity) - used;
        SourceSummary { samples: self.samples(), shortened: self.shortened, left_out: self.left_out, padding }
    }

    /// Appends the documents of a bin, then padding, and returns its length.
    pub(super) fn fill(&self, number: u64, padding: u32, piece: &mut TokenPiece) -> Result<usize, DataError> {
        let number = number as usize;
        let from = if number == 0 { 0 } else { self.ends[number - 1] };
        for member in &self.members[from as usize..self.ends[number] as usize] {
            let begin = piece.counts.len();
            self.corpus.append(member.first..member.first + u64::from(member.tokens), piece)?;
            // The first token of a document cannot be predicted from what precedes it in the sample.
            piece.counts[begin] = false;
        }
        let used = piece.tokens.len();
        if used < self.capacity as usize {
            piece.starts.push(used as u32);
            piece.tokens.resize(self.capacity as usize, padding);
            piece.counts.resize(self.capacity as usize, false);
        }
        Ok(self.capacity as usize - used)
    }
}

/// Best fit, longest first: each document goes into the fullest bin that still has room for it.
fn pack(documents: &[BinMember], capacity: u32) -> Vec<Vec<BinMember>> {
    let mut longest_first: Vec<BinMember> = documents.to_vec();
    longest_first.sort_by_key(|member| (std::cmp::Reverse(member.tokens), member.first));
    let mut bins: Vec<Vec<BinMember>> = Vec::new();
    let mut by_room: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for member in longest_first {
        let (bin, room) = take_tightest(&mut by_room, member.tokens).unwrap_or_else(|| {
            bins.push(Vec::new());
            (bins.len() - 1, capacity)
        });
        bins[bin].push(member);
        by_room.entry(room - member.tokens).or_default().push(bin);
    }
    bins.iter_mut().for_each(|bin| bin.sort_by_key(|member| member.first));
    bins
}

/// Removes the bin with the least sufficient room and returns it with that room.
fn take_tightest(by_room: &mut BTreeMap<u32, Vec<usize>>, needed: u32) -> Option<(usize, u32)> {
    let (room, bins) = by_room.range_mut(needed..).next()?;
    let room = *room;
    let bin = bins.pop()?;
    if bins.is_empty() {
        by_room.remove(&room);
    }
    Some((bin, room))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_document_is_in_one_bin_and_no_bin_overflows(lengths in prop::collection::vec(1u32..=64, 1..200)) {
            let documents: Vec<BinMember> =
                lengths.iter().enumerate().map(|(at, tokens)| BinMember { first: at as u64 * 100, tokens: *tokens }).collect();
            let bins = pack(&documents, 64);
            prop_assert!(bins.iter().all(|bin| bin.iter().map(|member| member.tokens).sum::<u32>() <= 64));
            let mut packed = bins.concat();
            packed.sort_by_key(|member| member.first);
            prop_assert_eq!(packed, documents);
            // No two bins could be merged: best fit would have filled the first.
            let used = |bin: &Vec<BinMember>| bin.iter().map(|member| member.tokens).sum::<u32>();
            let mut half_empty = bins.iter().filter(|bin| used(bin) * 2 <= 64);
            half_empty.next();
            prop_assert!(half_empty.next().is_none());
        }
    }
}
