//! A network cut into stages and blocks.

use bedplate_kernels::Device;
use bedplate_network::{Network, Recompute, Weights, Workspace};

use crate::batch::{
    Batch, MODELS, Outcome, SEQUENCE, architecture, batches, learn, outcome, shape, weights_of,
};

const COUNT: usize = 3;

/// The same in two stages with three micro-batches in flight: all forward passes come before the first backward pass.
pub(crate) fn learn_in_stages(
    device: &Device,
    network: &Network,
    cut: usize,
    recompute: Recompute,
    batches: &[Batch],
) -> Outcome {
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
    let (scale, balance) = weights_of(batches.len());
    let mut loss = 0.0;
    for number in 0..batches.len() {
        let (mut room, mut next) = (early.room(number), late.room(number));
        let head = network.head_weights(&late_weights);
        let (own, table) = network.head_gradients(&mut late_gradients);
        loss += network.head_backward(device, head, &mut next, scale, Some(own), table);
        network.backward(device, &late_weights, &mut next, &mut late_gradients, balance);
        device.copy(next.input_gradient(), room.output_gradient_mut());
        if is_tied {
            // The table's gradient grows in the order of the whole network: the head's part first.
            device.copy(late_gradients.block(0), gradients.block_mut(0));
        }
        network.backward(device, &weights, &mut room, &mut gradients, balance);
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
            let batches = batches(&network, COUNT);
            let whole = learn(&device, &network, recompute, &batches, COUNT);
            for cut in [1, 2, network.blocks().len() - 1] {
                let staged = learn_in_stages(&device, &network, cut, recompute, &batches);
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
        room.load(&device, batches(&network, COUNT)[0].tokens());
        device.fill(room.input_mut(), 0.5);
        network.forward_block(&device, 1, weights.block(1), &mut room);
        device.fill(room.output_gradient_mut(), 0.25);
        network.backward_block(&device, 1, weights.block(1), &mut room, Some(gradients.block_mut(1)), 1.0);
        assert!(device.sum_of_squares(gradients.block(1)) > 0.0, "{name}");
        assert!(device.first_non_finite(room.input_gradient()).is_none(), "{name}");
    }
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
    let (scale, balance) = weights_of(COUNT);
    let before = device.traffic();
    for batch in batches(&network, COUNT) {
        room.load(&device, batch.tokens());
        network.learn(&device, &weights, &mut room, &mut gradients, scale, balance);
    }
    let after = device.traffic();
    assert_eq!(before.bytes, after.bytes);
    // Tokens, targets, positions, what is padding, and first keys go in; nothing is read back but the loss, which an operator returns.
    assert_eq!((after.writes - before.writes, after.reads - before.reads), (3 * 5, 0));
}
