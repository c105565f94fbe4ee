//! What ranks learn together is what one rank learns.

use std::collections::BTreeMap;
use std::ops::Range;

use bedplate_diag::Diagnostic;
use bedplate_kernels::Device;
use bedplate_network::{
    Network, RankShare, Recompute, ShardSpec, Tensor, Weights, Workspace, WorkspaceShape, load, save,
};

use crate::batch::{
    Batch, MODELS, Outcome, SEQUENCE, architecture, batches, folder, learn, learn_with, outcome, shape,
};
use crate::world::{Layout, Place, alone, on_ranks};

const EVERY: [Recompute; 3] = [Recompute::None, Recompute::Cheap, Recompute::Full];

/// A tensor's gradient, or its weights, as one rank has them.
struct Found {
    tensor: Tensor,
    values: Vec<f32>,
}

fn found(network: &Network, outcome: &Outcome) -> Vec<Found> {
    let blocks = network.blocks().iter().zip(&outcome.gradients);
    let tensors = blocks.flat_map(|(block, values)| block.tensors.iter().map(move |tensor| (tensor, values)));
    tensors
        .map(|(tensor, values)| Found {
            tensor: tensor.clone(),
            values: values[tensor.range.clone()].to_vec(),
        })
        .collect()
}

/// Adds what a rank has to whole tensors.
fn join(whole: &mut BTreeMap<String, Vec<f32>>, part: &Found) {
    let len = part.tensor.shape.iter().product();
    let sums = whole.entry(part.tensor.name.clone()).or_insert_with(|| vec![0.0; len]);
    let places = part.tensor.runs().flatten();
    places.zip(&part.values).for_each(|(place, value)| sums[place] += value);
}

/// Compares what ranks learn from fresh weights with the whole.
fn check(name: &str, layout: Layout, recompute: Recompute) {
    check_by(name, layout, recompute, learn);
}

/// How some of the micro-batches of a step are learned from.
type Learn = fn(&Device, &Network, Recompute, &[Batch], usize) -> Outcome;

/// Parts must join to the gradients of the whole, and copies must be the same on all ranks.
fn check_by(name: &str, layout: Layout, recompute: Recompute, learn: Learn) {
    let (device, count) = (Device::apart(1), 3usize.next_multiple_of(layout.data));
    let network = Network::new(&device, architecture(name), SEQUENCE).unwrap();
    let whole = learn(&device, &network, Recompute::None, &batches(&network, count), count);
    let ranks = on_ranks(name, layout, |device, network, place| {
        let all = batches(network, count).into_iter().skip(place.data).step_by(layout.data);
        let own: Vec<_> = all.map(|batch| batch.cut(layout.spec(place).context)).collect();
        let outcome = learn(device, network, recompute, &own, count);
        (place, found(network, &outcome), outcome.loss)
    });
    let what = format!("{name}, {layout:?}, {recompute:?}");
    let counts = |place: &Place| place.tensor == 0 || layout.has_cut_rows;
    let loss: f64 = ranks.iter().filter(|(place, ..)| counts(place)).map(|(.., loss)| loss).sum();
    assert!((loss / whole.loss - 1.0).abs() < 1e-6, "{what}: loss {loss} instead of {}", whole.loss);
    let mut joined = BTreeMap::new();
    for (place, parts, _) in &ranks {
        let first = ranks.iter().find(|(of, ..)| *of == Place { tensor: 0, ..*place }).unwrap();
        for (part, of_first) in parts.iter().zip(&first.1) {
            if part.tensor.is_cut() || part.tensor.is_partial || place.tensor == 0 {
                join(&mut joined, part);
            } else {
                let name = &part.tensor.name;
                assert_eq!(part.values, of_first.values, "{what}, {name}: tensor ranks have the same copy");
            }
        }
    }
    for expected in found(&network, &whole) {
        let joined = &joined[&expected.tensor.name];
        let largest = expected.values.iter().fold(1e-12f32, |most, value| most.max(value.abs()));
        let differences = joined.iter().zip(&expected.values).map(|(a, b)| (a - b).abs());
        let apart = differences.fold(0.0, f32::max);
        assert!(
            apart < 1e-4 * largest,
            "{what}, {}: differs by {:.1e}",
            expected.tensor.name,
            apart / largest
        );
    }
}

#[test]
fn two_tensor_ranks_learn_what_one_learns() {
    for name in MODELS {
        for recompute in EVERY {
            check(name, Layout { tensor: 2, ..Layout::ONE }, recompute);
        }
    }
}

#[test]
fn tensor_ranks_with_their_own_rows_learn_what_one_learns() {
    for name in MODELS {
        for recompute in EVERY {
            check(name, Layout { tensor: 2, has_cut_rows: true, ..Layout::ONE }, recompute);
        }
    }
}

const MIXTURES: [&str; 7] = [
    "gpt_oss",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "mixtral_balance",
    "qwen3_moe_balance",
    "qwen3_moe_windows",
];

#[test]
fn ranks_with_their_own_experts_learn_what_one_learns() {
    for name in MIXTURES {
        for recompute in EVERY {
            check(name, Layout { data: 2, experts: 2, ..Layout::ONE }, recompute);
        }
        check(name, Layout { data: 4, experts: 4, ..Layout::ONE }, Recompute::None);
        check(name, Layout { data: 4, experts: 2, ..Layout::ONE }, Recompute::None);
        check(name, Layout { tensor: 2, data: 2, experts: 2, ..Layout::ONE }, Recompute::None);
        let cut_rows = Layout { tensor: 2, has_cut_rows: true, data: 2, experts: 2, ..Layout::ONE };
        check(name, cut_rows, Recompute::Cheap);
    }
}

/// As many rows as there can be come to the first rank, and none to the others.
#[test]
fn tokens_that_all_choose_the_experts_of_one_rank_are_none_of_them_dropped() {
    let learn: Learn = |device, network, recompute, batches, count| {
        let mut weights = Weights::<f32>::zeros(device, network);
        network.initialise(device, 5, &mut weights);
        for (index, block) in network.blocks().iter().enumerate() {
            let is_router = |tensor: &&Tensor| tensor.name.ends_with("gate.weight") && tensor.shape[0] == 4;
            for tensor in block.tensors.iter().filter(is_router) {
                // Equal probabilities: the experts with the lowest numbers are chosen.
                device.fill(weights.block_mut(index).range(tensor.range.clone()), 0.0);
            }
        }
        learn_with(device, network, recompute, &weights, batches, count)
    };
    for name in MIXTURES {
        for recompute in EVERY {
            check_by(name, Layout { data: 2, experts: 2, ..Layout::ONE }, recompute, learn);
        }
        check_by(name, Layout { data: 4, experts: 4, ..Layout::ONE }, Recompute::None, learn);
    }
}

const WINDOWS: [&str; 3] = ["qwen2_windows", "qwen2_moe_windows", "qwen3_moe_windows"];

/// Documents, windows and padding are in the micro-batches and models.
#[test]
fn ranks_that_share_sequences_learn_what_one_learns() {
    for name in MODELS.into_iter().chain(WINDOWS).chain(["mixtral_balance", "qwen3_moe_balance"]) {
        for recompute in EVERY {
            check(name, Layout { context: 2, ..Layout::ONE }, recompute);
        }
        check(name, Layout { context: 4, ..Layout::ONE }, Recompute::None);
    }
}

#[test]
fn axes_combine() {
    let all = Layout { tensor: 2, has_cut_rows: true, context: 2, ..Layout::ONE };
    for name in MODELS.into_iter().chain(WINDOWS) {
        check(name, all, Recompute::Cheap);
        check(name, Layout { has_cut_rows: false, ..all }, Recompute::None);
        check(name, Layout { tensor: 1, data: 2, ..all }, Recompute::None);
    }
    for name in MIXTURES {
        check(name, Layout { context: 2, experts: 2, ..Layout::ONE }, Recompute::Full);
        check(name, Layout { context: 2, data: 2, experts: 4, ..Layout::ONE }, Recompute::None);
        check(name, Layout { experts: 2, ..all }, Recompute::Full);
    }
}

#[test]
fn latent_attention_is_computed_by_ranks_that_share_sequences_or_experts() {
    for name in ["deepseek_v2", "deepseek_v3"] {
        for recompute in EVERY {
            check(name, Layout { context: 2, ..Layout::ONE }, recompute);
            check(name, Layout { data: 2, experts: 2, ..Layout::ONE }, recompute);
        }
        check(name, Layout { context: 2, data: 2, experts: 2, ..Layout::ONE }, Recompute::Full);
    }
}

#[test]
fn parts_of_files_and_of_fresh_weights_are_those_of_the_whole() {
    let device = Device::apart(1);
    let tensor = Layout { tensor: 2, ..Layout::ONE };
    let experts = Layout { tensor: 2, data: 2, experts: 2, ..Layout::ONE };
    for (name, layout) in [("llama", tensor), ("gpt2", tensor), ("qwen2_moe", tensor), ("qwen2_moe", experts)]
    {
        let read = |device: &Device, network: &Network, is_fresh: bool| {
            let mut weights = Weights::<f32>::zeros(device, network);
            if is_fresh {
                network.initialise(device, 3, &mut weights);
            } else {
                assert!(load(network, device, &folder(name), &mut weights).unwrap().unused.is_empty());
            }
            found(network, &outcome(device, network, &weights, 0.0))
        };
        for is_fresh in [false, true] {
            let network = Network::new(&device, architecture(name), SEQUENCE).unwrap();
            let whole: BTreeMap<String, Vec<f32>> = read(&device, &network, is_fresh)
                .into_iter()
                .map(|found| (found.tensor.name, found.values))
                .collect();
            let ranks = on_ranks(name, layout, |device, network, _| read(device, network, is_fresh));
            let mut seen = BTreeMap::new();
            for part in ranks.into_iter().flatten() {
                let whole = &whole[&part.tensor.name];
                let expected: Vec<f32> = part.tensor.runs().flatten().map(|place| whole[place]).collect();
                assert_eq!(part.values, expected, "{}", part.tensor.name);
                let counts = seen.entry(part.tensor.name.clone()).or_insert_with(|| vec![0; whole.len()]);
                part.tensor.runs().flatten().for_each(|place| counts[place] += 1);
            }
            assert!(seen.keys().eq(whole.keys()) && seen.values().flatten().all(|count| *count > 0));
        }
    }
}

#[test]
fn sections_cover_a_block_at_multiples_of_the_unit_and_experts_are_the_last() {
    let layout = Layout { data: 2, experts: 2, ..Layout::ONE };
    let blocks = on_ranks("qwen2_moe", layout, |_, network, _| network.blocks().to_vec());
    for block in blocks.iter().flatten() {
        let borders: Vec<usize> = block.sections.iter().map(|section| section.range.end).collect();
        assert!(borders.iter().all(|border| border.is_multiple_of(6) && border.is_multiple_of(32)));
        assert_eq!(borders.last(), Some(&block.len));
        let of_experts: Vec<bool> = block.sections.iter().map(|section| section.is_expert).collect();
        let is_layer = block.name.starts_with("layer");
        assert_eq!(of_experts, if is_layer { vec![false, true] } else { vec![false] });
        for tensor in &block.tensors {
            let is_inside =
                |range: &Range<usize>| range.start <= tensor.range.start && tensor.range.end <= range.end;
            let section = block.sections.iter().find(|section| is_inside(&section.range)).unwrap();
            assert_eq!(section.is_expert, tensor.name.contains(".experts."), "{}", tensor.name);
        }
    }
    let device = Device::apart(1);
    let whole = Network::new(&device, architecture("qwen2_moe"), SEQUENCE).unwrap();
    assert!(whole.blocks().iter().all(|block| block.sections.len() == 1 && !block.sections[0].is_expert));
}

#[test]
fn all_ranks_get_the_logits_of_any_row() {
    let device = Device::apart(1);
    let cut_rows = Layout { tensor: 2, has_cut_rows: true, ..Layout::ONE };
    let context = Layout { context: 4, ..Layout::ONE };
    let both = Layout { context: 2, ..cut_rows };
    for (name, layout) in [("llama", cut_rows), ("gpt2", context), ("qwen3", both)] {
        let logits = |device: &Device, network: &Network, context: RankShare| {
            let mut weights = Weights::<f32>::zeros(device, network);
            network.initialise(device, 5, &mut weights);
            let mut workspace = Workspace::new(device, network, shape(Recompute::None));
            let mut room = workspace.room(0);
            let batch = batches(network, 1).remove(0).cut(context);
            room.load(device, batch.tokens());
            network.forward(device, &weights, &mut room);
            let row = |row: usize| {
                let mut logits = vec![0.0; network.architecture().transformer.vocab as usize];
                network.logits(device, network.head_weights(&weights), &mut room, row, &mut logits);
                logits
            };
            [0, 5, 15, 16, 27, 31].map(row).concat()
        };
        let whole = Network::new(&device, architecture(name), SEQUENCE).unwrap();
        let whole = logits(&device, &whole, RankShare::WHOLE);
        let on_rank = |device: &Device, network: &Network, _| logits(device, network, network.part().context);
        for found in on_ranks(name, layout, on_rank) {
            let apart = found.iter().zip(&whole).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(apart < 1e-5, "{layout:?}: logits differ by {apart:.1e}");
        }
    }
}

#[test]
fn rows_that_cannot_be_cut_evenly_are_refused() {
    let device = Device::apart(1);
    let share = |degree| RankShare { degree, rank: 0 };
    let shape =
        WorkspaceShape { sequences: 1, sequence: 15, recompute: Recompute::None, has_gradients: true };
    for (spec, said) in [
        (
            ShardSpec { tensor: share(2), has_cut_rows: true, ..ShardSpec::WHOLE },
            "15 rows of a micro-batch cannot be divided evenly among 2 tensor-parallel ranks",
        ),
        (
            ShardSpec { context: share(2), ..ShardSpec::WHOLE },
            "15 tokens of a sequence cannot be divided evenly among 4 chunks, two for each context-parallel rank",
        ),
    ] {
        let network = Network::sharded(&device, architecture("llama"), SEQUENCE, spec, alone()).unwrap();
        let refused = network.check_shape(&shape).unwrap_err();
        assert_eq!(refused.page().code, "network/uneven-slices");
        assert!(refused.to_string().contains(said), "{refused}");
    }
}

#[test]
fn a_degree_that_does_not_divide_is_refused_by_name() {
    let device = Device::apart(1);
    let share = |degree| RankShare { degree, rank: 0 };
    for (name, spec, said) in [
        ("llama", ShardSpec { tensor: share(3), ..ShardSpec::WHOLE }, "4 query heads"),
        ("llama", ShardSpec { tensor: share(4), ..ShardSpec::WHOLE }, "2 key and value heads"),
        ("mixtral", ShardSpec { experts: share(3), ..ShardSpec::WHOLE }, "4 routed experts"),
    ] {
        let refused = Network::sharded(&device, architecture(name), SEQUENCE, spec, alone()).err().unwrap();
        assert_eq!(refused.page().code, "network/uneven-slices");
        assert!(refused.to_string().contains(said), "{refused}");
    }
}

#[test]
fn a_part_is_not_written_as_a_model() {
    let refused = on_ranks("llama", Layout { tensor: 2, ..Layout::ONE }, |device, network, _| {
        let weights = Weights::<f32>::zeros(device, network);
        save(network, device, &weights, &std::env::temp_dir().join("bedplate-part")).is_err()
    });
    assert_eq!(refused, [true, true]);
}
