//! What a training run usually is where nothing else is said: its sequence, the size of its step, its software.

use bedplate_perf::{Generation, Hardware, Stack, Task};
use bedplate_transformer::Transformer;
use bedplate_units::Tokens;

use crate::BatchSize;

/// From this many parameters a step has 16M tokens instead of 4M, as in the training of Llama 3.
const LARGE_MODEL: u64 = 100_000_000_000;

/// Tülu 3's supervised fine-tuning (arXiv:2411.15124) and the recipes of Hugging Face's alignment handbook.
const FINE_TUNING_BATCH: u64 = 128;

/// What NVIDIA's published LoRA runs take on one node: most LoRA rows of `data/training/measured.csv`.
const LORA_BATCH: u64 = 32;

/// Tokens per sequence: 8192, for fine-tuning 4096 as in the published runs, or the model's context if shorter.
pub fn usual_sequence(model: &Transformer, task: Task) -> u64 {
    let usual = if task == Task::Pretrain { 8192 } else { 4096 };
    model.max_context.clamp(1, usual)
}

/// The size of a step. Fine-tuning sets are small: a step of millions of tokens would be most of an epoch.
pub fn usual_batch(model: &Transformer, task: Task) -> BatchSize {
    match task {
        Task::FineTune => BatchSize::Sequences(FINE_TUNING_BATCH),
        Task::Lora { .. } => BatchSize::Sequences(LORA_BATCH),
        Task::Pretrain if model.parameters().total >= LARGE_MODEL => {
            BatchSize::Tokens(Tokens::new(16_777_216.0))
        }
        Task::Pretrain => BatchSize::Tokens(Tokens::new(4_194_304.0)),
    }
}

/// The software on such hardware.
pub fn usual_stack(hardware: &Hardware) -> Stack {
    if hardware.generation == Generation::Host { Stack::Bedplate } else { Stack::Megatron }
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
