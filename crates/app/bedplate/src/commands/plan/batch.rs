//! How many sequences a step has when it is given in tokens, or not at all.

use bedplate_transformer::Transformer;
use bedplate_units::Tokens;

/// From this many parameters a step has 16M tokens instead of 4M, as in the training of Llama 3.
const LARGE_MODEL: u64 = 100_000_000_000;

pub(super) fn usual_tokens(model: &Transformer) -> Tokens {
    Tokens::new(if model.parameters().total >= LARGE_MODEL { 16_777_216.0 } else { 4_194_304.0 })
}

/// Default tokens per sequence: 8192, or the model's context if shorter.
pub(super) fn usual_sequence(model: &Transformer) -> u64 {
    model.max_context.clamp(1, 8192)
}

/// Whole sequences close to a number of tokens, in a number that divides well: a multiple of the GPUs, or below
/// that a power of two. An odd count such as 488 would leave hardly any layout legal.
pub(super) fn sequences(tokens: Tokens, sequence: u64, gpus: Option<u32>) -> u64 {
    let wanted = tokens.get() / sequence.max(1) as f64;
    match gpus.map(f64::from) {
        Some(gpus) if wanted >= gpus => ((wanted / gpus).round() * gpus) as u64,
        _ => wanted.max(1.0).log2().round().exp2() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_divide_well_and_stay_near() {
        let four_million = Tokens::new(4e6);
        assert_eq!(sequences(four_million, 8192, Some(512)), 512);
        assert_eq!(sequences(four_million, 8192, Some(64)), 512);
        assert_eq!(sequences(four_million, 8192, Some(144)), 432);
        assert_eq!(sequences(four_million, 8192, Some(31)), 496);
        assert_eq!(sequences(four_million, 8192, None), 512);
        assert_eq!(sequences(Tokens::new(10.0), 8192, Some(8)), 1);
    }
}
