//! The chunks of blocks that a rank computes, and which rows of a micro-batch are its own.

use std::ops::Range;

use bedplate_data::{Batch, IGNORED};
use bedplate_kernels::{Buffer, Device};
use bedplate_network::{Network, Workspace, WorkspaceShape, cut_rows};

use super::mail::Mail;
use crate::links::Exchange;
use crate::pipeline;
use crate::ranks::RunRanks;
use crate::trained::Trained;

/// The chunks of blocks that a rank computes, and its connections to neighbouring stages.
pub(crate) struct Chunks<E: Trained> {
    pub(super) chunks: Vec<SequenceChunk<E>>,
    pub(super) mail: Option<Mail<E>>,
    /// A micro-batch that does not count.
    pub(super) idle: Batch,
    /// The rows of a micro-batch that are this rank's.
    pub(super) own: Batch,
    /// Which those are; none where all are.
    pub(super) rows: Vec<usize>,
}

pub(super) struct SequenceChunk<E: Trained> {
    pub(super) blocks: Range<usize>,
    pub(super) workspace: Workspace<E>,
    pub(super) in_flight: usize,
    /// How busy experts are, of this chunk's layers and those before, for each micro-batch in flight; empty where it does not
    /// matter.
    pub(super) shares: Vec<Buffer<f32>>,
}

impl<E: Trained> Chunks<E> {
    pub(crate) fn new(
        device: &Device,
        network: &Network,
        ranks: &RunRanks,
        shape: WorkspaceShape,
        micro_batches: usize,
    ) -> Self {
        let (stage, layers) = (ranks.stage(), network.layer_count());
        let passes = stage.passes(micro_batches);
        let shares = if stage.stages > 1 { network.balanced_shares() } else { 0 };
        let chunk = |chunk| {
            let blocks = stage.blocks(chunk, layers);
            let in_flight = pipeline::in_flight(&passes, chunk);
            let workspace = Workspace::of_stage(device, network, blocks.clone(), in_flight, shape);
            let shares = (0..in_flight).map(|_| device.zeros(shares)).collect();
            SequenceChunk { blocks, workspace, in_flight, shares }
        };
        let mut chunks: Vec<SequenceChunk<E>> = (0..stage.chunks).map(chunk).collect();
        let stream = chunks[0].workspace.room(0).output().len();
        let mail = ranks.links.as_ref().map(|links| Mail {
            streams: Exchange::new(&links.streams, stream),
            shares: (shares > 0).then(|| Exchange::new(&links.shares, shares)),
        });
        let (rows, own) = (own_rows(network, shape), Batch::default());
        Self { chunks, mail, idle: idle_batch(shape), own, rows }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.workspace.bytes()).sum()
    }

    /// The blocks whose weights this rank needs, in order: its own, and the embedding's where its table serves as the head's matrix.
    pub(crate) fn blocks(&self, network: &Network) -> Vec<usize> {
        let mut blocks: Vec<usize> = self.chunks.iter().flat_map(|chunk| chunk.blocks.clone()).collect();
        let has_head = blocks.contains(&(network.blocks().len() - 1));
        let is_tied = network.architecture().transformer.has_tied_embeddings;
        if has_head && is_tied && !blocks.contains(&0) {
            blocks.push(0);
        }
        blocks.sort_unstable();
        blocks
    }
}

/// The rows of a micro-batch that a rank has where sequences are cut; empty where it has all.
fn own_rows(network: &Network, shape: WorkspaceShape) -> Vec<usize> {
    let (context, sequence) = (network.part().context, shape.sequence);
    if context.is_whole() {
        return Vec::new();
    }
    let of = |number: usize| cut_rows(context, sequence).map(move |row| number * sequence + row);
    (0..shape.sequences).flat_map(of).collect()
}

fn idle_batch(shape: WorkspaceShape) -> Batch {
    let rows = shape.rows();
    Batch {
        tokens: vec![0; rows],
        targets: vec![IGNORED; rows],
        first_keys: vec![0; rows],
        positions: (0..rows).map(|row| (row % shape.sequence) as u32).collect(),
        padding: vec![0; shape.sequences],
        rows: shape.sequences,
        ..Batch::default()
    }
}
