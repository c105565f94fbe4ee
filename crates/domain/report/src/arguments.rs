//! What a program says it trains, and how it shares that out.

use serde::{Deserialize, Serialize};

/// Model and layout of a run, as a trainer prints them when it starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunArguments {
    /// Whose arguments these are: `megatron`, `torchtitan`, `transformers`.
    pub trainer: String,
    /// The model as a config.json.
    pub config: String,
    /// As `dp8.tp2.pp4.zero1`.
    pub layout: String,
    /// Tokens of a sequence, and sequences of a step over all ranks.
    pub sequence: u64,
    pub global_batch: u64,
    /// Steps of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
}

/// The trainer's name in what `bedplate train` says of itself, with the prediction that it makes itself.
pub const OWN_TRAINER: &str = "bedplate";

const LONGEST_NAME: usize = 64;
const LONGEST_LAYOUT: usize = 256;
const LONGEST_CONFIG: usize = 16 << 10;
const MOST: u64 = 1 << 40;

impl RunArguments {
    pub(crate) fn is_plausible(&self) -> bool {
        let is_text =
            |text: &str, longest: usize| text.len() <= longest && !text.chars().any(char::is_control);
        is_text(&self.trainer, LONGEST_NAME)
            && is_text(&self.layout, LONGEST_LAYOUT)
            && is_text(&self.config, LONGEST_CONFIG)
            && (1..=MOST).contains(&self.sequence)
            && (1..=MOST).contains(&self.global_batch)
    }
}
