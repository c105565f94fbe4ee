//! What is trained.

use bedplate_perf::Task;

#[derive(clap::Args)]
pub(crate) struct TaskArguments {
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

impl TaskArguments {
    pub(super) fn task(&self) -> Task {
        match self.task {
            TaskKind::Pretrain => Task::Pretrain,
            TaskKind::FineTune => Task::FineTune,
            TaskKind::Lora => Task::Lora { rank: self.lora_rank },
        }
    }
}
