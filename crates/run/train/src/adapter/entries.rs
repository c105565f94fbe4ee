//! Which matrices of a network have adapters, where the numbers of these lie, and how files call them.

use std::ops::Range;

use bedplate_network::{Network, Region, Tensor, TensorKind};
use bedplate_random::{STEP, fraction, mix, nth};
use bedplate_transformer::Family;

use crate::{AdapterConfig, TrainError};

/// One adapted matrix of `outputs x inputs`.
pub(super) struct AdaptedMatrix {
    pub(super) block: usize,
    /// Of the module, as files have it.
    pub(super) name: String,
    pub(super) is_embedding: bool,
    /// In the block.
    pub(super) weight: Range<usize>,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    /// `rank x inputs`, in the adapters' buffer.
    pub(super) a: Range<usize>,
    /// `outputs x rank`, right behind.
    pub(super) b: Range<usize>,
    /// Whether the gradient of `A` on a tensor rank is a share of the whole, and whether all these ranks have the same `A`.
    pub(super) a_sharing: Sharing,
    pub(super) b_sharing: Sharing,
    places: Places,
    pub(super) is_expert: bool,
}

/// Where a matrix lies in the whole.
struct Places {
    /// The outputs that are here; several runs where a matrix has several sections.
    outputs: Vec<Range<usize>>,
    inputs: Range<usize>,
    whole: [usize; 2],
}

/// How tensor ranks have one of an adapter's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Each has a part of its own.
    Sharded,
    /// All have the same, with the same gradient.
    Same,
    /// All have the same, each with a share of the gradient.
    Partial,
}

impl Sharing {
    /// Of `A` and of `B`: where outputs are cut, `B` is, and each rank has a share of the gradient of `A`; where inputs are, the
    /// other way round.
    fn of(tensor: &Tensor) -> [Self; 2] {
        let ([outputs, inputs], [all_outputs, all_inputs]) = (tensor.size(), tensor.matrix_shape());
        match (outputs < all_outputs, inputs < all_inputs) {
            (true, _) => [Sharing::Partial, Sharing::Sharded],
            (_, true) => [Sharing::Sharded, Sharing::Partial],
            _ if tensor.is_partial => [Sharing::Partial; 2],
            _ => [Sharing::Same; 2],
        }
    }
}

pub(super) fn count(entries: &[AdaptedMatrix]) -> (usize, usize) {
    let len = entries.last().map_or(0, |entry| entry.b.end);
    (len, entries.iter().map(|entry| entry.b.len()).max().unwrap_or(0))
}

/// One of the two matrices of an adapter, and how PEFT stores it.
pub(super) struct AdapterMatrix {
    pub(super) name: String,
    pub(super) range: Range<usize>,
    pub(super) shape: [usize; 2],
    pub(super) is_turned: bool,
}

impl AdaptedMatrix {
    pub(super) fn parts(&self, rank: usize) -> [AdapterMatrix; 2] {
        let stem = format!("base_model.model.{}", self.name);
        let (a, b) = (self.a.clone(), self.b.clone());
        let (a_shape, b_shape) = ([rank, self.inputs], [self.outputs, rank]);
        let part = |name: String, range, shape, is_turned| AdapterMatrix { name, range, shape, is_turned };
        if self.is_embedding {
            // What is added is `A B` there, a row of `A` per rank and a column per token.
            return [
                part(format!("{stem}.lora_embedding_A"), b, b_shape, true),
                part(format!("{stem}.lora_embedding_B"), a, a_shape, true),
            ];
        }
        [
            part(format!("{stem}.lora_A.weight"), a, a_shape, false),
            part(format!("{stem}.lora_B.weight"), b, b_shape, false),
        ]
    }
}

impl AdaptedMatrix {
    /// One of the two matrices as parts of the whole adapter's.
    pub(super) fn add_regions(
        &self,
        part: AdapterMatrix,
        rank: usize,
        regions: &mut Vec<(Region, Range<usize>)>,
    ) {
        let Places { outputs, inputs, whole: [all_outputs, all_inputs] } = &self.places;
        if part.range == self.a {
            let shape = [rank, *all_inputs];
            let region = Region { tensor: part.name, shape, rows: 0..rank, columns: inputs.clone() };
            return regions.push((region, part.range));
        }
        let mut start = part.range.start;
        for rows in outputs {
            let (end, shape) = (start + rows.len() * rank, [*all_outputs, rank]);
            let region = Region { tensor: part.name.clone(), shape, rows: rows.clone(), columns: 0..rank };
            regions.push((region, start..end));
            start = end;
        }
    }
}

impl AdapterMatrix {
    pub(super) fn stored_shape(&self) -> Vec<usize> {
        let [rows, columns] = self.shape;
        if self.is_turned { vec![columns, rows] } else { vec![rows, columns] }
    }

    pub(super) fn to_stored(&self, values: Vec<f32>) -> Vec<f32> {
        let [rows, columns] = self.shape;
        if self.is_turned { transpose(&values, rows, columns) } else { values }
    }

    pub(super) fn read_back(&self, values: Vec<f32>) -> Vec<f32> {
        let [rows, columns] = self.shape;
        if self.is_turned { transpose(&values, columns, rows) } else { values }
    }
}

fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..values.len()).map(|place| values[place % rows * columns + place / rows]).collect()
}

/// The modules that get adapters: those of the configuration, or the usual ones of the family.
pub(super) fn targets(network: &Network, config: &AdapterConfig) -> Vec<String> {
    if !config.targets.is_empty() {
        return config.targets.clone();
    }
    let usual: &[&str] = match network.architecture().transformer.family {
        Family::Gpt2 => &["c_attn"],
        _ => &["q_proj", "k_proj", "v_proj", "o_proj"],
    };
    usual.iter().map(|target| (*target).to_owned()).collect()
}

/// The adapted matrices of the blocks that are here, and where the numbers of their adapters lie.
pub(super) fn entries(
    network: &Network,
    config: &AdapterConfig,
    is_here: &dyn Fn(usize) -> bool,
) -> Result<Vec<AdaptedMatrix>, TrainError> {
    let (targets, rank) = (targets(network, config), config.rank);
    let is_tied = network.architecture().transformer.has_tied_embeddings;
    let tied = targets.iter().find(|target| ["lm_head", "embed_tokens", "wte"].contains(&target.as_str()));
    if let Some(target) = tied.filter(|_| is_tied) {
        return Err(TrainError::TiedTarget { target: target.clone() });
    }
    let is_wanted = |tensor: &Tensor, target: &String| {
        tensor.kind.is_matrix()
            && tensor.shape.len() == 2
            && module(tensor).rsplit('.').next() == Some(target)
    };
    let all = || network.blocks().iter().flat_map(|block| &block.tensors);
    if let Some(unknown) = targets.iter().find(|target| !all().any(|tensor| is_wanted(tensor, target))) {
        return Err(TrainError::NoSuchTarget { target: unknown.clone() });
    }
    let mut entries: Vec<AdaptedMatrix> = Vec::new();
    for (block, table) in network.blocks().iter().enumerate() {
        for tensor in &table.tensors {
            if !targets.iter().any(|target| is_wanted(tensor, target)) {
                continue;
            }
            let ([outputs, inputs], [all_outputs, all_inputs]) = (tensor.size(), tensor.matrix_shape());
            let most = all_outputs.min(all_inputs);
            if config.rank > most {
                let matrix = tensor.name.clone();
                return Err(TrainError::RankTooLarge { rank: config.rank, matrix, most });
            }
            if !is_here(block) {
                continue;
            }
            let [a_sharing, b_sharing] = Sharing::of(tensor);
            let places = Places {
                outputs: tensor.sections().to_vec(),
                inputs: tensor.columns().clone(),
                whole: tensor.matrix_shape(),
            };
            let start = entries.last().map_or(0, |entry| entry.b.end);
            let middle = start + rank * inputs;
            entries.push(AdaptedMatrix {
                block,
                name: module(tensor).to_owned(),
                is_embedding: tensor.kind == TensorKind::Embedding,
                weight: tensor.range.clone(),
                outputs,
                inputs,
                a: start..middle,
                b: middle..middle + rank * outputs,
                a_sharing,
                b_sharing,
                places,
                is_expert: table
                    .sections
                    .iter()
                    .any(|section| section.is_expert && section.range.contains(&tensor.range.start)),
            });
        }
    }
    Ok(entries)
}

/// The name of the module that has a weight.
fn module(tensor: &Tensor) -> &str {
    tensor.name.trim_end_matches(".weight")
}

impl AdaptedMatrix {
    /// The first `A`: uniform within one over the root of the inputs, as PEFT draws it. It depends on the seed and the name of
    /// the matrix alone, however that is cut.
    pub(super) fn first_a(&self, network: &Network, rank: usize, seed: u64) -> Vec<f32> {
        let mut tensors = network.blocks()[self.block].tensors.iter();
        let tensor = tensors.find(|tensor| tensor.range == self.weight).expect("an adapter is of a tensor");
        let ([_, inputs], columns) = (tensor.matrix_shape(), tensor.columns().clone());
        let bound = 1.0 / (inputs as f64).sqrt();
        let start = seed.wrapping_mul(STEP) ^ 0xd1b5_4a32_d192_ed03;
        let key = self.name.bytes().fold(start, |key, byte| mix(key ^ u64::from(byte)));
        let value = |place: usize| ((2.0 * fraction(nth(key, place as u64)) - 1.0) * bound) as f32;
        (0..rank)
            .flat_map(|row| columns.clone().map(move |column| row * inputs + column))
            .map(value)
            .collect()
    }
}
