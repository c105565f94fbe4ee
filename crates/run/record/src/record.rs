//! The records of one step and of one evaluation.

use std::ops::Range;

use bedplate_breakdown::{Breakdown, Measured, Predicted};
use bedplate_units::Bytes;

/// One step of training.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepRecord {
    /// The first step of a run is 1.
    pub step: u64,
    /// The numbers of its samples, where each of them is known to have been used exactly once.
    pub samples: Option<Range<u64>>,
    /// Tokens trained on since the run began, this step included.
    pub tokens: u64,
    /// Mean over the tokens of the step, in nats.
    pub loss: f64,
    /// Before clipping.
    pub gradient_norm: f64,
    pub learning_rate: f64,
    pub tokens_per_second: f64,
    /// From 0 to 1; unknown where the machine's peak has not been measured.
    pub mfu: Option<f64>,
    /// Memory of the process.
    pub memory: Bytes,
    pub breakdown: Breakdown<Measured>,
    pub predicted: Option<Breakdown<Predicted>>,
    /// From the start of the step to its end.
    pub seconds: f64,
    /// Where several ranks train together.
    pub ranks: Option<RankTimes>,
}

/// How the ranks of a run compare in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankTimes {
    pub count: u32,
    /// The rank that was busy longest.
    pub slowest: u32,
    /// By how much longer than ranks are on average; 0 where all are alike.
    pub imbalance: f64,
    /// Seconds that ranks waited for numbers of others, on average.
    pub communication: f64,
}

/// Ranks were lost or came, and the run went on.
#[derive(Debug, Clone, PartialEq)]
pub struct RanksRecord {
    /// The step from which it went on.
    pub step: u64,
    pub ranks: usize,
    pub layout: String,
}

/// One pass over data that is not trained on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EvaluationRecord {
    /// The step after which the pass was made.
    pub step: u64,
    /// Absent where there is no held-out text.
    pub loss: Option<f64>,
    pub perplexity: Option<f64>,
    /// A sample of the model's output.
    pub sample: Option<String>,
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    /// A temporary folder of a test.
    pub(crate) struct TestFolder(pub(crate) PathBuf);

    impl TestFolder {
        pub(crate) fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("bedplate-record-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }
}
