//! What ranks learn together is what one rank learns.

use std::collections::BTreeMap;

use bedplate_diag::Diagnostic;
use bedplate_kernels::Device;
use bedplate_network::{Cut, Network, Recompute, Share, Tensor, Weights, load, save};

use crate::batch::{MODELS, Outcome, SEQUENCE, architecture, batches, folder, learn, outcome};
use crate::world::{Layout, Place, alone, on_ranks};

const EVERY: [Recompute; 3] = [Recompute::None, Recompute::Cheap, Recompute::Full];

/// A tensor's gradient, or its weights, as one rank has them.
struct Found {
    tensor: Tensor,
    values: Vec<f32>,
}

impl Found {
    fn is_cut(&self) -> bool {
        self.tensor.range.len() < self.tensor.shape.iter().product()
    }
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

/// Compares what ranks learn with the whole: parts join to its gradients, and copies are the same on all.
fn check(name: &str, layout: Layout, recompute: Recompute) {
    let (device, count) = (Device::apart(1), 3.max(layout.data));
    let network = Network::new(&device, architecture(name), SEQUENCE).unwrap();
    let whole = learn(&device, &network, Recompute::None, &batches(&network, count), count);
    let ranks = on_ranks(name, layout, |device, network, place| {
        let all = batches(network, count).into_iter().skip(place.data).step_by(layout.data);
        let own: Vec<_> = all.map(|batch| batch.cut(layout.cut(place).context)).collect();
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
            if part.is_cut() || part.tensor.is_partial || place.tensor == 0 {
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
fn parts_of_files_and_of_fresh_weights_are_those_of_the_whole() {
    let device = Device::apart(1);
    for name in ["llama", "gpt2", "qwen2_moe"] {
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
            let whole = read(&device, &network, is_fresh);
            let layout = Layout { tensor: 2, ..Layout::ONE };
            let ranks = on_ranks(name, layout, |device, network, _| read(device, network, is_fresh));
            let mut joined = BTreeMap::new();
            for (part, is_first) in ranks
                .iter()
                .enumerate()
                .flat_map(|(rank, parts)| parts.iter().map(move |part| (part, rank == 0)))
            {
                if part.is_cut() || is_first {
                    join(&mut joined, part);
                }
            }
            for expected in whole {
                assert_eq!(joined[&expected.tensor.name], expected.values, "{}", expected.tensor.name);
            }
        }
    }
}

#[test]
fn a_degree_that_does_not_divide_is_refused_by_name() {
    let device = Device::apart(1);
    let share = |degree| Share { degree, rank: 0 };
    for (name, cut, said) in [
        ("llama", Cut { tensor: share(3), ..Cut::WHOLE }, "4 query heads"),
        ("llama", Cut { tensor: share(4), ..Cut::WHOLE }, "2 key and value heads"),
    ] {
        let refused = Network::cut(&device, architecture(name), SEQUENCE, cut, alone()).err().unwrap();
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
