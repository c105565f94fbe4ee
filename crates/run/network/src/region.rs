//! Regions: what a range of a block's buffer is of the whole tensors, in whichever way the network is cut.
//!
//! A tensor counts as a matrix of outputs by inputs here, also where files hold it transposed; a vector has one column. The
//! padding between tensors belongs to no region.

use std::ops::Range;

use crate::table::{Block, Storage, Tensor};

/// A rectangle of a whole tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Region {
    /// Under the name that it has in Hugging Face's files.
    pub tensor: String,
    /// Rows and columns of the whole.
    pub shape: [usize; 2],
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

impl Region {
    /// The whole of a tensor.
    pub fn whole(tensor: impl Into<String>, shape: [usize; 2]) -> Self {
        Self { tensor: tensor.into(), shape, rows: 0..shape[0], columns: 0..shape[1] }
    }

    /// Numbers in it.
    pub fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Tensor {
    /// Rows and columns of the whole, as a matrix of outputs by inputs.
    pub fn matrix_shape(&self) -> [usize; 2] {
        let (first, second) = (self.shape[0], self.shape.get(1).copied().unwrap_or(1));
        match self.storage {
            Storage::AsIs => [first, second],
            Storage::Transposed => [second, first],
            Storage::Experts { inputs, outputs, .. } => [first * outputs, inputs],
        }
    }
}

impl Block {
    /// A range of the block's buffer as rectangles of whole tensors, each with the part of the buffer that holds it, row by row.
    /// A range that begins or ends inside a row gives that part of the row on its own.
    pub fn regions(&self, range: Range<usize>) -> Vec<(Region, Range<usize>)> {
        let mut found = Vec::new();
        for tensor in &self.tensors {
            let mut start = tensor.range.start;
            for rows in tensor.sections() {
                let section = start..start + rows.len() * tensor.columns().len();
                let wanted = range.start.max(section.start)..range.end.min(section.end);
                if !wanted.is_empty() {
                    rectangles(tensor, rows, section.start, wanted, &mut found);
                }
                start = section.end;
            }
        }
        found
    }
}

/// Cuts a range of consecutive rows, which begin at `start` of the buffer, into part of a row, whole rows and part of a row.
fn rectangles(
    tensor: &Tensor,
    rows: &Range<usize>,
    start: usize,
    wanted: Range<usize>,
    found: &mut Vec<(Region, Range<usize>)>,
) {
    let (first, width) = (tensor.columns().start, tensor.columns().len());
    let mut at = wanted.start;
    while at < wanted.end {
        let (row, column) = ((at - start) / width, (at - start) % width);
        let left = wanted.end - at;
        let (count, columns) = if column > 0 || left < width {
            (1, column..width.min(column + left))
        } else {
            (left / width, 0..width)
        };
        let end = at + count * columns.len();
        let region = Region {
            tensor: tensor.name.clone(),
            shape: tensor.matrix_shape(),
            rows: rows.start + row..rows.start + row + count,
            columns: first + columns.start..first + columns.end,
        };
        found.push((region, at..end));
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, RankShare, ShardSpec, table};
    use bedplate_diag::Source;

    const CONFIG: &str = r#"{"model_type": "gpt2", "n_embd": 16, "n_head": 4, "n_layer": 1, "vocab_size": 24,
        "n_positions": 8}"#;

    fn blocks(tensor: RankShare) -> Vec<Block> {
        let architecture = Architecture::from_config(Source::new("config.json", CONFIG)).unwrap();
        table::blocks(&architecture.transformer, &ShardSpec { tensor, ..ShardSpec::WHOLE }).unwrap()
    }

    #[test]
    fn cuts_of_every_kind_give_each_number_of_every_tensor_once() {
        for degree in [1, 2, 4] {
            let mut seen: std::collections::BTreeMap<String, Vec<usize>> = Default::default();
            for rank in 0..degree {
                for block in blocks(RankShare { rank, degree }) {
                    let cuts = [0, block.len / 3, block.len / 3 + 7, block.len / 2, block.len];
                    for range in cuts.windows(2).map(|cut| cut[0]..cut[1]) {
                        for (region, place) in block.regions(range.clone()) {
                            assert_eq!(region.len(), place.len());
                            assert!(range.start <= place.start && place.end <= range.end);
                            let counts = seen
                                .entry(region.tensor.clone())
                                .or_insert_with(|| vec![0; region.shape.iter().product()]);
                            for row in region.rows.clone() {
                                region
                                    .columns
                                    .clone()
                                    .for_each(|column| counts[row * region.shape[1] + column] += 1);
                            }
                        }
                    }
                }
            }
            let whole = blocks(RankShare::WHOLE);
            for tensor in whole.iter().flat_map(|block| &block.tensors) {
                let counts = &seen[&tensor.name];
                // What every rank has as a whole comes from each of them.
                let is_cut = counts.iter().all(|count| *count == 1);
                assert!(is_cut || counts.iter().all(|count| *count == degree), "{} of {degree}", tensor.name);
            }
        }
    }

    #[test]
    fn a_range_inside_rows_is_a_part_whole_rows_and_a_part() {
        let [embedding, ..] = &blocks(RankShare::WHOLE)[..] else { panic!("no blocks") };
        let found = embedding.regions(5..50);
        let said: Vec<_> =
            found.iter().map(|(region, _)| (region.rows.clone(), region.columns.clone())).collect();
        assert_eq!(said, [(0..1, 5..16), (1..3, 0..16), (3..4, 0..2)]);
    }
}
