//! Text from a network: the whole context is computed for each new token.
//!
//! That is slow for long texts, but samples are short, and it uses the same functions as training.

use bedplate_kernels::{Device, Element};
use bedplate_network::{Network, Recompute, Sampler, Tokens, Weights, Workspace, WorkspaceShape};

/// Room to compute one sequence.
pub struct Generator<E: Element> {
    workspace: Workspace<E>,
    logits: Vec<f32>,
}

impl<E: Element> Generator<E> {
    /// For contexts of up to `longest` tokens.
    pub fn new(device: &Device, network: &Network, longest: usize) -> Self {
        let shape = WorkspaceShape {
            sequences: 1,
            sequence: longest,
            recompute: Recompute::None,
            has_gradients: false,
        };
        let vocab = network.architecture().transformer.vocab as usize;
        Self { workspace: Workspace::new(device, network, shape), logits: vec![0.0; vocab] }
    }

    /// The tokens that follow the prompt: at most `count`, ended by `end`. A context that is full moves on by half.
    #[expect(clippy::too_many_arguments, reason = "a network is its table, its weights and where it runs")]
    pub fn generate(
        &mut self,
        device: &Device,
        network: &Network,
        weights: &Weights<E>,
        prompt: &[u32],
        count: usize,
        end: Option<u32>,
        sampler: &mut Sampler,
    ) -> Vec<u32> {
        let mut text = prompt.to_vec();
        while text.len() < prompt.len() + count {
            self.compute(device, network, weights, &text);
            let next = sampler.draw(&self.logits);
            if Some(next) == end {
                break;
            }
            text.push(next);
        }
        text.split_off(prompt.len())
    }

    /// Computes the logits after the text's last token.
    fn compute(&mut self, device: &Device, network: &Network, weights: &Weights<E>, text: &[u32]) {
        let sequence = self.workspace.shape().sequence;
        let context = if text.len() <= sequence { text } else { &text[text.len() - sequence / 2..] };
        // Attention is causal, so rows after the text do not change the text's own rows.
        let mut tokens = context.to_vec();
        tokens.resize(sequence, 0);
        let positions: Vec<u32> = (0..sequence as u32).collect();
        let (targets, first_keys) = (vec![u32::MAX; sequence], vec![0; sequence]);
        let mut room = self.workspace.room(0);
        room.load(
            device,
            Tokens {
                tokens: &tokens,
                targets: &targets,
                positions: &positions,
                first_keys: &first_keys,
                padding: &[],
            },
        );
        network.forward(device, weights, &mut room);
        let last = context.len().max(1) - 1;
        network.logits(device, network.head_weights(weights), &mut room, last, &mut self.logits);
    }
}
