//! The Llama block, and training steps of models of 25 and 100 million parameters.

use bedplate_data::Batch;
use bedplate_diag::Source;
use bedplate_kernels::{CudaError, Device, Element};
use bedplate_network::{Architecture, Network, Recompute, Room, Weights, Workspace, WorkspaceShape};
use bedplate_train::{Precision, TrainConfig, Trained, Trainer, tokens_of};
use bedplate_transformer::FlopsConvention;

use super::cases::{Case, HIDDEN, INNER, Pass, ROWS, SEQUENCE, Work};

/// Width, inner width, heads, layers, vocabulary.
struct Size(usize, usize, usize, usize, usize);

const BLOCK: Size = Size(HIDDEN, INNER, 8, 1, 256);
const SMALL: Size = Size(512, 1408, 8, 6, 12_000);
const LARGE: Size = Size(768, 2048, 12, 12, 20_000);

/// `open` opens the same device once more, for models own theirs.
pub(super) fn all<E: Trained>(
    device: &Device,
    open: &dyn Fn() -> Result<Device, CudaError>,
) -> Result<Vec<Case<'static>>, CudaError> {
    Ok(vec![
        block::<E>(device),
        model::<E>(open()?, "model_25m", &SMALL),
        model::<E>(open()?, "model_100m", &LARGE),
    ])
}

/// The model of some keys of a configuration.
pub(in super::super) fn architecture(keys: &str, longest: usize) -> Architecture {
    let config = format!("{{{keys}, \"max_position_embeddings\": {longest}}}");
    Architecture::from_config(Source::new("the benchmark's model", &config)).expect("a model that we compute")
}

fn network(device: &Device, size: &Size) -> Network {
    let Size(hidden, inner, heads, layers, vocab) = size;
    let keys = format!(
        r#""model_type": "llama", "hidden_size": {hidden}, "intermediate_size": {inner},
            "num_attention_heads": {heads}, "num_key_value_heads": {heads}, "num_hidden_layers": {layers},
            "vocab_size": {vocab}, "tie_word_embeddings": true"#
    );
    Network::new(device, architecture(&keys, SEQUENCE), SEQUENCE).expect("a Llama network")
}

fn flops(network: &Network) -> f64 {
    let model = &network.architecture().transformer;
    let per_token = model.flops_per_token(SEQUENCE as u64, FlopsConvention::default());
    per_token.training().get() * ROWS as f64
}

/// Forward and backward of one layer, gradients of its weights included.
fn block<E: Element>(device: &Device) -> Case<'static> {
    let network = network(device, &BLOCK);
    let mut weights = Weights::<E>::zeros(device, &network);
    let mut gradients = Weights::<f32>::zeros(device, &network);
    let shape = WorkspaceShape {
        sequences: ROWS / SEQUENCE,
        sequence: SEQUENCE,
        recompute: Recompute::None,
        has_gradients: true,
    };
    let mut workspace = Workspace::new(device, &network, shape);
    let head = 2.0 * 3.0 * (HIDDEN * BLOCK.4 * ROWS) as f64;
    let work = Work::Flops { both: flops(&network) - head };
    let mut is_ready = false;
    let run = move |device: &Device, pass: Pass| {
        let mut room = workspace.room(0);
        if !is_ready {
            network.initialise(device, 1, &mut weights);
            fill(device, &mut room);
            network.learn(device, &weights, &mut room, &mut gradients, 1.0 / ROWS as f32, 1.0);
            is_ready = true;
        }
        network.forward_block(device, 1, weights.block(1), &mut room);
        if pass == Pass::Both {
            let gradient = Some(gradients.block_mut(1));
            network.backward_block(device, 1, weights.block(1), &mut room, gradient, 1.0);
        }
    };
    Case { name: "block", work, run: Box::new(run) }
}

fn fill<E: Element>(device: &Device, room: &mut Room<'_, E>) {
    let batch = batch(256, ROWS / SEQUENCE, SEQUENCE);
    room.load(device, tokens_of(&batch));
}

/// Sequences of tokens that follow a rule.
pub(in super::super) fn batch(vocab: usize, sequences: usize, sequence: usize) -> Batch {
    let rows = sequences * sequence;
    let token = |row: usize| (row * 7919 % vocab) as u32;
    Batch {
        tokens: (0..rows).map(token).collect(),
        targets: (1..=rows).map(token).collect(),
        first_keys: vec![0; rows],
        padding: Vec::new(),
        positions: (0..rows).map(|row| (row % sequence) as u32).collect(),
        first_sample: 0,
        rows: sequences,
        counted: rows,
    }
}

/// A whole step: forward, backward, clipping and AdamW. Without backward, the loss of the same batch.
fn model<E: Trained>(device: Device, name: &'static str, size: &Size) -> Case<'static> {
    let network = network(&device, size);
    let work = Work::Flops { both: flops(&network) };
    let batch = vec![batch(size.4, ROWS / SEQUENCE, SEQUENCE)];
    let mut config = TrainConfig::new("config.json", "corpus");
    config.data.sequence = SEQUENCE;
    config.training.micro_batch = (ROWS / SEQUENCE) as u64;
    config.training.batch = config.training.micro_batch;
    config.training.precision = if E::NAME == "f32" { Precision::F32 } else { Precision::Bf16 };
    let mut parts = Some((network, device));
    let mut trainer: Option<Trainer<E>> = None;
    let run = move |_: &Device, pass: Pass| {
        let trainer = trainer.get_or_insert_with(|| {
            let (network, device) = parts.take().expect("the first call only");
            Trainer::new(network, device, config.clone()).expect("fresh weights need no file")
        });
        match pass {
            Pass::Forward => {
                let batches = batch.iter().map(Ok::<_, bedplate_train::TrainError>);
                trainer.evaluate(batches).expect("one rank needs no other");
            }
            Pass::Both => {
                trainer.step(&batch).expect("a fresh model's loss is finite");
            }
        }
    };
    Case { name, work, run: Box::new(run) }
}
