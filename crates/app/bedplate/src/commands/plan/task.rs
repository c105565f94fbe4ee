//! What is trained, and how large a step is where that is not said.

use bedplate_perf::Task;
use bedplate_search::BatchSize;
use bedplate_transformer::Transformer;
use bedplate_units::Tokens;

#[derive(clap::Args)]
pub(super) struct TaskArguments {
    /// What is trained: all weights from scratch, all weights, or adapters
    #[arg(long, value_enum, default_value = "pretrain")]
    task: TaskKind,
    /// Rank of the adapters with --task lora
    #[arg(long, default_value_t = 16)]
    lora_rank: u32,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum TaskKind {
    Pretrain,
    FineTune,
    Lora,
}

/// From this many parameters a step has 16M tokens instead of 4M, as in the training of Llama 3.
const LARGE_MODEL: u64 = 100_000_000_000;

/// Tülu 3's supervised fine-tuning (arXiv:2411.15124) and the recipes of Hugging Face's alignment handbook.
const FINE_TUNING_BATCH: u64 = 128;

/// What NVIDIA's published LoRA runs take on one node: most LoRA rows of `data/training/measured.csv`.
const LORA_BATCH: u64 = 32;

impl TaskArguments {
    pub(super) fn task(&self) -> Task {
        match self.task {
            TaskKind::Pretrain => Task::Pretrain,
            TaskKind::FineTune => Task::FineTune,
            TaskKind::Lora => Task::Lora { rank: self.lora_rank },
        }
    }
}

/// Default tokens per sequence: 8192, for fine-tuning 4096 as in the published runs, or the model's context if
/// shorter.
pub(super) fn usual_sequence(model: &Transformer, task: Task) -> u64 {
    let usual = if task == Task::Pretrain { 8192 } else { 4096 };
    model.max_context.clamp(1, usual)
}

/// Default size of a step. Fine-tuning sets are small: a step of millions of tokens would be most of an epoch.
pub(super) fn usual_batch(model: &Transformer, task: Task) -> BatchSize {
    match task {
        Task::FineTune => BatchSize::Sequences(FINE_TUNING_BATCH),
        Task::Lora { .. } => BatchSize::Sequences(LORA_BATCH),
        Task::Pretrain if model.parameters().total >= LARGE_MODEL => {
            BatchSize::Tokens(Tokens::new(16_777_216.0))
        }
        Task::Pretrain => BatchSize::Tokens(Tokens::new(4_194_304.0)),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_transformer::builtin;

    use super::*;

    #[test]
    fn a_step_of_fine_tuning_is_a_small_part_of_one_of_pre_training() {
        let model = builtin("llama-3.1-8b").unwrap();
        let tokens = |task| {
            let sequence = usual_sequence(&model, task);
            usual_batch(&model, task).sequences(sequence, 8) * sequence
        };
        assert_eq!(tokens(Task::Pretrain), 4_194_304);
        assert_eq!(tokens(Task::FineTune), 524_288);
        assert_eq!(tokens(Task::Lora { rank: 16 }), 131_072);
    }

    #[test]
    fn a_short_context_limits_the_usual_sequence() {
        let model = builtin("gpt2").unwrap();
        assert_eq!(usual_sequence(&model, Task::Pretrain), 1024);
        assert_eq!(usual_sequence(&model, Task::FineTune), 1024);
    }
}
