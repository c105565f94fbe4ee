//! How many sequences a step has when it is given in tokens.

use bedplate_units::Tokens;

/// The size of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BatchSize {
    /// Exactly this many sequences.
    Sequences(u64),
    /// Whole sequences close to a number of tokens, in a number that divides well.
    Tokens(Tokens),
}

impl BatchSize {
    /// Sequences per step on a number of GPUs. From tokens: a multiple of the GPUs, or below that a power of two.
    /// An odd count such as 488 would leave hardly any layout legal.
    pub fn sequences(self, sequence: u64, gpus: u32) -> u64 {
        let tokens = match self {
            BatchSize::Sequences(exact) => return exact,
            BatchSize::Tokens(tokens) => tokens,
        };
        let wanted = tokens.get() / sequence.max(1) as f64;
        let gpus = f64::from(gpus.max(1));
        match wanted >= gpus {
            true => ((wanted / gpus).round() * gpus) as u64,
            false => wanted.max(1.0).log2().round().exp2() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_divide_well_and_stay_near() {
        let four_million = BatchSize::Tokens(Tokens::new(4e6));
        assert_eq!(four_million.sequences(8192, 512), 512);
        assert_eq!(four_million.sequences(8192, 64), 512);
        assert_eq!(four_million.sequences(8192, 144), 432);
        assert_eq!(four_million.sequences(8192, 31), 496);
        assert_eq!(four_million.sequences(8192, 4096), 512);
        assert_eq!(BatchSize::Tokens(Tokens::new(10.0)).sequences(8192, 8), 1);
        assert_eq!(BatchSize::Sequences(488).sequences(8192, 64), 488);
    }
}
