//! Ranks in stages, in bf16, without gradients, without answers, and what they allocate.

use bedplate_kernels::{Bf16, Device, View, ViewMut};
use bedplate_network::{Among, Network, Peers, Recompute, Weights, Workspace, WorkspaceShape};

use crate::batch::{Batch, MODELS, SEQUENCE, architecture, batches, learn, learn_in, shape};
use crate::stages::learn_in_stages;
use crate::world::{Layout, Place, on_ranks};

const ALL: Layout = Layout { tensor: 2, has_cut_rows: true, context: 2, data: 1, experts: 2 };

/// The parts of some micro-batches that a rank of a layout is given.
fn given(network: &Network, count: usize) -> Vec<Batch> {
    batches(network, count).iter().map(|batch| batch.cut(network.part().context)).collect()
}

#[test]
fn stages_of_a_rank_give_the_bits_of_its_whole_part() {
    for name in MODELS {
        for (layout, recompute) in [(ALL, Recompute::None), (ALL, Recompute::Full)] {
            on_ranks(name, layout, |device, network, _| {
                let batches = given(network, 3);
                let whole = learn(device, network, recompute, &batches, 3);
                for cut in [1, 2, network.blocks().len() - 1] {
                    let staged = learn_in_stages(device, network, cut, recompute, &batches);
                    assert_eq!(whole.loss, staged.loss, "{name}, cut before block {cut}");
                    assert!(whole.gradients == staged.gradients, "{name}, cut before block {cut}");
                }
            });
        }
    }
}

/// Sums of losses that add up to that of the whole, of the ranks that have rows of their own.
fn sum_of_own(layout: Layout, losses: &[(Place, f64)]) -> f64 {
    let counts = |place: &Place| place.tensor == 0 || layout.has_cut_rows;
    losses.iter().filter(|(place, _)| counts(place)).map(|(_, loss)| loss).sum()
}

#[test]
fn ranks_learn_in_bf16_what_one_rank_does() {
    for name in ["llama", "mixtral", "gpt2"] {
        let device = Device::apart(1);
        let network = Network::new(&device, architecture(name), SEQUENCE).unwrap();
        let whole = learn_in::<Bf16>(&device, &network, Recompute::Cheap, &given(&network, 2), 2).loss;
        for layout in [Layout { experts: 1, ..ALL }, ALL] {
            let losses = on_ranks(name, layout, |device, network, place| {
                let outcome = learn_in::<Bf16>(device, network, Recompute::Cheap, &given(network, 2), 2);
                assert!(outcome.gradients.iter().flatten().all(|gradient| gradient.is_finite()));
                (place, outcome.loss)
            });
            let loss = sum_of_own(layout, &losses);
            assert!((loss / whole - 1.0).abs() < 1e-3, "{name}: loss {loss} instead of {whole}");
        }
    }
}

/// The losses of a micro-batch that nothing is learned from.
fn evaluate(device: &Device, network: &Network) -> f64 {
    let mut weights = Weights::<f32>::zeros(device, network);
    network.initialise(device, 5, &mut weights);
    let shape = WorkspaceShape { has_gradients: false, ..shape(Recompute::None) };
    let mut workspace = Workspace::new(device, network, shape);
    let mut room = workspace.room(0);
    room.load(device, given(network, 2)[1].tokens());
    network.forward(device, &weights, &mut room);
    network.head_loss(device, network.head_weights(&weights), &mut room)
}

#[test]
fn ranks_evaluate_without_room_for_gradients() {
    let device = Device::apart(1);
    for name in MODELS {
        let whole = evaluate(&device, &Network::new(&device, architecture(name), SEQUENCE).unwrap());
        let losses = on_ranks(name, ALL, |device, network, place| (place, evaluate(device, network)));
        let loss = sum_of_own(ALL, &losses);
        assert!((loss / whole - 1.0).abs() < 1e-6, "{name}: loss {loss} instead of {whole}");
    }
}

/// Peers that cannot go on: numbers stay as they are, or become any others.
struct Silent {
    is_wild: bool,
}

impl Silent {
    fn leave(&self, device: &Device, to: ViewMut<'_, u8>) {
        if self.is_wild {
            let bytes = vec![0xfd; to.len()];
            device.write(to, &bytes);
        }
    }
}

impl Peers for Silent {
    fn sum(&self, _: &Device, _: Among, _: ViewMut<'_, f32>) {}

    fn gather(&self, device: &Device, _: View<'_, u8>, to: ViewMut<'_, u8>) {
        self.leave(device, to);
    }

    fn scatter_sums(&self, device: &Device, _: View<'_, f32>, to: ViewMut<'_, f32>) {
        self.leave(device, to.bytes());
    }

    fn pass_on(&self, device: &Device, _: View<'_, u8>, incoming: ViewMut<'_, u8>) {
        self.leave(device, incoming);
    }

    fn exchange(
        &self,
        device: &Device,
        _: (View<'_, u8>, &[usize]),
        (incoming, _): (ViewMut<'_, u8>, &[usize]),
    ) {
        self.leave(device, incoming);
    }
}

#[test]
fn a_pass_ends_though_no_rank_answers() {
    for name in MODELS {
        for is_wild in [false, true] {
            let device = Device::apart(1);
            let spec = ALL.spec(Place { tensor: 1, context: 0, data: 0 });
            let peers = Box::new(Silent { is_wild });
            let network = Network::sharded(&device, architecture(name), SEQUENCE, spec, peers).unwrap();
            for recompute in [Recompute::None, Recompute::Full] {
                learn(&device, &network, recompute, &given(&network, 2), 2);
            }
        }
    }
}

#[test]
fn a_rank_allocates_for_its_share_of_the_rows() {
    let bytes = |name: &str, layout: Layout| -> usize {
        let of_rank = on_ranks(name, layout, |device, network, _| {
            let mut workspace = Workspace::<f32>::new(device, network, shape(Recompute::None));
            let own = SEQUENCE * 2 / layout.context / if layout.has_cut_rows { layout.tensor } else { 1 };
            let hidden = network.architecture().transformer.hidden as usize;
            assert_eq!(workspace.room(0).output().len(), own * hidden);
            workspace.bytes()
        });
        assert!(of_rank.iter().all(|bytes| *bytes == of_rank[0]));
        of_rank[0]
    };
    let one = bytes("llama", Layout::ONE);
    let tensor = Layout { tensor: 2, ..Layout::ONE };
    assert!(bytes("llama", tensor) < one);
    assert!(bytes("llama", Layout { has_cut_rows: true, ..tensor }) < bytes("llama", tensor));
    assert!(bytes("llama", Layout { context: 4, ..Layout::ONE }) < one / 2);
    // Every token of both ranks may come to the experts of one.
    let experts = bytes("mixtral", Layout { data: 2, experts: 2, ..Layout::ONE });
    assert!(experts > bytes("mixtral", Layout::ONE));
}

#[test]
fn a_rank_allocates_nothing_on_its_device_while_it_learns() {
    on_ranks("qwen3_moe", ALL, |device, network, _| {
        let mut weights = Weights::<f32>::zeros(device, network);
        network.initialise(device, 5, &mut weights);
        let mut gradients = Weights::zeros(device, network);
        let mut workspace = Workspace::new(device, network, shape(Recompute::Cheap));
        let mut room = workspace.room(0);
        let before = device.traffic().bytes;
        for batch in given(network, 3) {
            room.load(device, batch.tokens());
            network.learn(device, &weights, &mut room, &mut gradients, 1.0, 1.0);
        }
        assert_eq!(device.traffic().bytes, before);
    });
}
