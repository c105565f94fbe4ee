//! A network cut into stages, blocks and slices computes what the whole network does.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::path::PathBuf;
use std::sync::{Arc, Barrier, Mutex};
use std::{fs, thread};

use bedplate_diag::{Diagnostic, Source};
use bedplate_kernels::{Device, ViewMut};
use bedplate_network::{
    Architecture, Network, Recompute, Reduce, Slice, Tokens, Weights, Workspace, WorkspaceShape, load, save,
};

const SEQUENCE: usize = 12;
const SEQUENCES: usize = 2;
const ROWS: usize = SEQUENCES * SEQUENCE;
const MODELS: [&str; 7] = ["llama", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "gpt2"];

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn architecture(name: &str) -> Architecture {
    let config = fs::read_to_string(folder(name).join("config.json")).unwrap();
    Architecture::from_config(Source::new("config.json", &config)).unwrap()
}

fn shape(recompute: Recompute) -> WorkspaceShape {
    WorkspaceShape { sequences: SEQUENCES, sequence: SEQUENCE, recompute, has_gradients: true }
}

/// The tokens of a micro-batch.
struct Batch {
    tokens: Vec<u32>,
    targets: Vec<u32>,
    positions: Vec<u32>,
    first_keys: Vec<u32>,
}

impl Batch {
    fn new(number: usize, vocab: u64) -> Self {
        let token = |row: usize| ((row * 7 + number * 13) as u64 % vocab) as u32;
        Self {
            tokens: (0..ROWS).map(token).collect(),
            targets: (1..=ROWS).map(token).collect(),
            positions: (0..ROWS).map(|row| (row % SEQUENCE) as u32).collect(),
            first_keys: vec![0; ROWS],
        }
    }

    fn tokens(&self) -> Tokens<'_> {
        let Self { tokens, targets, positions, first_keys } = self;
        Tokens { tokens, targets, positions, first_keys, padding: &[] }
    }
}

fn batches(network: &Network) -> Vec<Batch> {
    (0..3).map(|number| Batch::new(number, network.architecture().transformer.vocab)).collect()
}

const SCALE: f32 = 1.0 / (3 * ROWS) as f32;
const BALANCE: f32 = 1.0 / 3.0;

/// Losses and gradients of three micro-batches.
struct Outcome {
    loss: f64,
    gradients: Vec<Vec<f32>>,
}

fn outcome(device: &Device, network: &Network, gradients: &Weights<f32>, loss: f64) -> Outcome {
    let block = |index: usize| {
        let mut values = vec![0.0; network.blocks()[index].len];
        device.read(gradients.block(index), &mut values);
        values
    };
    Outcome { loss, gradients: (0..network.blocks().len()).map(block).collect() }
}

fn learn(device: &Device, network: &Network, recompute: Recompute) -> Outcome {
    let mut weights = Weights::<f32>::zeros(device, network);
    network.initialise(device, 5, &mut weights);
    let mut gradients = Weights::zeros(device, network);
    let mut workspace = Workspace::new(device, network, shape(recompute));
    let mut room = workspace.room(0);
    let mut loss = 0.0;
    for batch in batches(network) {
        room.load(device, batch.tokens());
        loss += network.learn(device, &weights, &mut room, &mut gradients, SCALE, BALANCE);
    }
    outcome(device, network, &gradients, loss)
}

/// The same in two stages with three micro-batches in flight: all forward passes come before the first backward pass.
fn learn_in_stages(device: &Device, network: &Network, cut: usize, recompute: Recompute) -> Outcome {
    let (count, last) = (network.blocks().len(), network.blocks().len() - 1);
    let is_tied = network.architecture().transformer.has_tied_embeddings;
    let has: [Box<dyn Fn(usize) -> bool>; 2] =
        [Box::new(move |block| block < cut), Box::new(move |block| block >= cut || is_tied && block == 0)];
    let make = |stage: usize| {
        let mut weights = Weights::<f32>::of_blocks(device, network, &has[stage]);
        network.initialise(device, 5, &mut weights);
        (weights, Weights::<f32>::of_blocks(device, network, &has[stage]))
    };
    let ((weights, mut gradients), (late_weights, mut late_gradients)) = (make(0), make(1));
    let batches = batches(network);
    let stage = |blocks| Workspace::of_stage(device, network, blocks, batches.len(), shape(recompute));
    let (mut early, mut late) = (stage(0..cut), stage(cut..count));
    for (number, batch) in batches.iter().enumerate() {
        let (mut room, mut next) = (early.room(number), late.room(number));
        room.load(device, batch.tokens());
        next.load(device, batch.tokens());
        network.forward(device, &weights, &mut room);
        device.copy(room.output(), next.input_mut());
        network.forward(device, &late_weights, &mut next);
        // A stage without experts has nothing to add.
        if !room.expert_shares_mut().is_empty() && !next.expert_shares_mut().is_empty() {
            let mut shares = device.zeros::<f32>(room.expert_shares_mut().len());
            device.add(room.expert_shares_mut().view(), shares.view_mut());
            device.add(next.expert_shares_mut().view(), shares.view_mut());
            device.copy(shares.view(), room.expert_shares_mut());
            device.copy(shares.view(), next.expert_shares_mut());
        }
    }
    let mut loss = 0.0;
    for number in 0..batches.len() {
        let (mut room, mut next) = (early.room(number), late.room(number));
        let head = network.head_weights(&late_weights);
        let (own, table) = network.head_gradients(&mut late_gradients);
        loss += network.head_backward(device, head, &mut next, SCALE, Some(own), table);
        network.backward(device, &late_weights, &mut next, &mut late_gradients, BALANCE);
        device.copy(next.input_gradient(), room.output_gradient_mut());
        if is_tied {
            // The table's gradient grows in the order of the whole network: the head's part first.
            device.copy(late_gradients.block(0), gradients.block_mut(0));
        }
        network.backward(device, &weights, &mut room, &mut gradients, BALANCE);
        if is_tied {
            device.copy(gradients.block(0), late_gradients.block_mut(0));
        }
    }
    let mut whole = Weights::zeros(device, network);
    for index in 0..=last {
        let from = if index < cut { &gradients } else { &late_gradients };
        device.copy(from.block(index), whole.block_mut(index));
    }
    outcome(device, network, &whole, loss)
}

#[test]
fn two_stages_give_the_bits_of_one_with_several_micro_batches_in_flight() {
    let device = Device::apart(1);
    for name in MODELS {
        let network = Network::new(&device, architecture(name), SEQUENCE).unwrap();
        for recompute in [Recompute::None, Recompute::Cheap, Recompute::Full] {
            let whole = learn(&device, &network, recompute);
            for cut in [1, 2, network.blocks().len() - 1] {
                let staged = learn_in_stages(&device, &network, cut, recompute);
                assert_eq!(whole.loss, staged.loss, "{name}, cut before block {cut}, {recompute:?}");
                assert!(whole.gradients == staged.gradients, "{name}, cut before block {cut}, {recompute:?}");
            }
        }
    }
}

#[test]
fn one_stage_and_one_micro_batch_allocate_what_a_whole_workspace_does_and_stages_share_it_out() {
    let device = Device::apart(1);
    let network = Network::new(&device, architecture("llama"), SEQUENCE).unwrap();
    let count = network.blocks().len();
    let bytes = |blocks, in_flight| {
        Workspace::<f32>::of_stage(&device, &network, blocks, in_flight, shape(Recompute::None)).bytes()
    };
    assert_eq!(bytes(0..count, 1), Workspace::<f32>::new(&device, &network, shape(Recompute::None)).bytes());
    let (one, two) = (bytes(1..2, 1), bytes(1..2, 2));
    assert_eq!(bytes(1..2, 3) - two, two - one, "each micro-batch in flight costs the same");
    assert!(two - one < one, "scratch and gradients are shared");
    assert!(bytes(0..2, 1) < bytes(0..count, 1));
}

#[test]
fn a_block_runs_with_only_its_own_weights_present() {
    let device = Device::apart(1);
    for name in MODELS {
        let network = Network::new(&device, architecture(name), SEQUENCE).unwrap();
        let mut weights = Weights::<f32>::of_blocks(&device, &network, |block| block == 1);
        network.initialise(&device, 5, &mut weights);
        let mut gradients = Weights::<f32>::of_blocks(&device, &network, |block| block == 1);
        let mut workspace = Workspace::of_stage(&device, &network, 1..2, 1, shape(Recompute::None));
        let mut room = workspace.room(0);
        room.load(&device, batches(&network)[0].tokens());
        device.fill(room.input_mut(), 0.5);
        network.forward_block(&device, 1, weights.block(1), &mut room);
        device.fill(room.output_gradient_mut(), 0.25);
        network.backward_block(&device, 1, weights.block(1), &mut room, Some(gradients.block_mut(1)), 1.0);
        assert!(device.sum_of_squares(gradients.block(1)) > 0.0, "{name}");
        assert!(device.first_non_finite(room.input_gradient()).is_none(), "{name}");
    }
}

/// Two threads that add up what they have, each on a device of its own.
struct Pair {
    rank: usize,
    meeting: Arc<(Barrier, [Mutex<Vec<f32>>; 2])>,
}

impl Reduce for Pair {
    fn sum(&self, device: &Device, mut partial: ViewMut<'_, f32>) {
        let (barrier, shares) = &*self.meeting;
        let mut values = vec![0.0; partial.len()];
        device.read(partial.view(), &mut values);
        *shares[self.rank].lock().unwrap() = values;
        barrier.wait();
        let sum: Vec<f32> = {
            let (a, b) = (shares[0].lock().unwrap(), shares[1].lock().unwrap());
            a.iter().zip(b.iter()).map(|(a, b)| a + b).collect()
        };
        barrier.wait();
        device.write(partial.reborrow(), &sum);
    }
}

/// Runs both slices of a network, each in a thread.
fn on_two_ranks<R: Send>(name: &str, work: impl Fn(&Device, &Network) -> R + Sync) -> Vec<R> {
    let meeting = Arc::new((Barrier::new(2), [const { Mutex::new(Vec::new()) }; 2]));
    thread::scope(|scope| {
        let rank = |rank| {
            let (meeting, work) = (Arc::clone(&meeting), &work);
            scope.spawn(move || {
                let device = Device::apart(1);
                let reduce = Box::new(Pair { rank, meeting });
                let slice = Slice { degree: 2, rank };
                let network = Network::sliced(&device, architecture(name), SEQUENCE, slice, reduce).unwrap();
                work(&device, &network)
            })
        };
        let threads: Vec<_> = (0..2).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The tensors of a gradient by name, with the shape that they have here.
fn tensors(network: &Network, outcome: &Outcome) -> Vec<(String, [usize; 2], Vec<f32>)> {
    let blocks = network.blocks().iter().zip(&outcome.gradients);
    let tensors = blocks.flat_map(|(block, values)| block.tensors.iter().map(move |tensor| (tensor, values)));
    tensors
        .map(|(tensor, values)| (tensor.name.clone(), tensor.size(), values[tensor.range.clone()].to_vec()))
        .collect()
}

/// Compares what two ranks learn with the whole: slices join to its gradients, and copies are the same on both.
fn check_slices(name: &str, recompute: Recompute) {
    let device = Device::apart(1);
    let network = Network::new(&device, architecture(name), SEQUENCE).unwrap();
    let whole = learn(&device, &network, Recompute::None);
    let ranks = on_two_ranks(name, |device, network| {
        let outcome = learn(device, network, recompute);
        (tensors(network, &outcome), outcome.loss)
    });
    for (_, loss) in &ranks {
        assert!((loss / whole.loss - 1.0).abs() < 1e-6, "{name}: loss {loss} instead of {}", whole.loss);
    }
    let mut sliced = 0;
    for (index, (tensor, [outputs, inputs], expected)) in tensors(&network, &whole).into_iter().enumerate() {
        let [a, b] = [&ranks[0].0[index], &ranks[1].0[index]];
        assert_eq!((&a.0, &b.0), (&tensor, &tensor));
        let joined: Vec<f32> = if a.1 == [outputs, inputs] {
            assert_eq!(a.2, b.2, "{tensor}: every rank has the same gradient of what is whole");
            a.2.clone()
        } else if a.1[1] == inputs {
            sliced += 1;
            join_rows(&a.2, &b.2, sections(&tensor, outputs), inputs)
        } else {
            sliced += 1;
            let rows = a.2.chunks(a.1[1]).zip(b.2.chunks(b.1[1]));
            rows.flat_map(|(a, b)| a.iter().chain(b)).copied().collect()
        };
        let largest = expected.iter().fold(1e-12f32, |most, value| most.max(value.abs()));
        let apart = joined.iter().zip(&expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(apart < 1e-4 * largest, "{name}, {tensor}: differs by {:.1e}", apart / largest);
    }
    assert!(sliced > 0);
}

/// Rows of the sections of a matrix: GPT-2 has queries, keys and values in one.
fn sections(tensor: &str, outputs: usize) -> Vec<usize> {
    if tensor.contains("c_attn") { vec![outputs / 3; 3] } else { vec![outputs] }
}

fn join_rows(a: &[f32], b: &[f32], sections: Vec<usize>, inputs: usize) -> Vec<f32> {
    let (mut joined, mut start) = (Vec::new(), 0);
    for section in sections {
        let end = start + section / 2 * inputs;
        joined.extend_from_slice(&a[start..end]);
        joined.extend_from_slice(&b[start..end]);
        start = end;
    }
    joined
}

#[test]
fn two_ranks_learn_what_one_learns() {
    for name in MODELS {
        check_slices(name, Recompute::None);
        check_slices(name, Recompute::Full);
    }
}

#[test]
fn slices_of_files_and_of_fresh_weights_are_parts_of_the_whole() {
    let device = Device::apart(1);
    for name in ["llama", "gpt2", "qwen2_moe"] {
        let read = |device: &Device, network: &Network, is_fresh: bool| {
            let mut weights = Weights::<f32>::zeros(device, network);
            if is_fresh {
                network.initialise(device, 3, &mut weights);
            } else {
                assert!(load(network, device, &folder(name), &mut weights).unwrap().unused.is_empty());
            }
            tensors(network, &outcome(device, network, &weights, 0.0))
        };
        for is_fresh in [false, true] {
            let network = Network::new(&device, architecture(name), SEQUENCE).unwrap();
            let whole = read(&device, &network, is_fresh);
            let ranks = on_two_ranks(name, |device, network| read(device, network, is_fresh));
            for (index, (tensor, size, values)) in whole.iter().enumerate() {
                let parts = [&ranks[0][index], &ranks[1][index]];
                let sorted = |mut values: Vec<f32>| {
                    values.sort_by(f32::total_cmp);
                    values
                };
                if parts[0].1 == *size {
                    assert_eq!([&parts[0].2, &parts[1].2], [values, values], "{tensor}");
                } else {
                    let both: Vec<f32> = parts.iter().flat_map(|part| part.2.clone()).collect();
                    assert_eq!(sorted(both), sorted(values.clone()), "{tensor}");
                }
            }
        }
    }
}

#[test]
fn a_degree_that_does_not_divide_is_refused_by_name() {
    let device = Device::apart(1);
    for (degree, said) in [(3, "query heads"), (4, "key and value heads")] {
        let meeting = Arc::new((Barrier::new(1), [const { Mutex::new(Vec::new()) }; 2]));
        let reduce = Box::new(Pair { rank: 0, meeting });
        let slice = Slice { degree, rank: 0 };
        let refused = Network::sliced(&device, architecture("llama"), SEQUENCE, slice, reduce).err().unwrap();
        assert_eq!(refused.page().code, "network/uneven-slices");
        assert!(refused.to_string().contains(said), "{refused}");
    }
}

#[test]
fn a_slice_is_not_written_as_a_model() {
    let refused = on_two_ranks("llama", |device, network| {
        let weights = Weights::<f32>::zeros(device, network);
        save(network, device, &weights, &std::env::temp_dir().join("bedplate-slice")).is_err()
    });
    assert_eq!(refused, [true, true]);
}

#[test]
fn a_micro_batch_allocates_nothing_on_its_device() {
    let device = Device::apart(1);
    let network = Network::new(&device, architecture("qwen3_moe"), SEQUENCE).unwrap();
    let mut weights = Weights::<f32>::zeros(&device, &network);
    network.initialise(&device, 5, &mut weights);
    let mut gradients = Weights::zeros(&device, &network);
    let mut workspace = Workspace::new(&device, &network, shape(Recompute::Cheap));
    let mut room = workspace.room(0);
    let before = device.traffic();
    for batch in batches(&network) {
        room.load(&device, batch.tokens());
        network.learn(&device, &weights, &mut room, &mut gradients, SCALE, BALANCE);
    }
    let after = device.traffic();
    assert_eq!(before.bytes, after.bytes);
    // Tokens, targets, positions, what is padding, and first keys go in; nothing is read back but the loss, which an operator returns.
    assert_eq!((after.writes - before.writes, after.reads - before.reads), (3 * 5, 0));
}
