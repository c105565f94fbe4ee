//! A configuration of `bedplate train` as the plan sees it.

use bedplate_layout::{ComputePrecision, Layout, Recompute};
use bedplate_perf::{HostRun, PeerCopies, Task};
use bedplate_train::{Precision, TrainConfig};

/// The run on ranks of this machine.
pub fn host_run(config: &TrainConfig, ranks: u32, survives: bool) -> HostRun {
    let training = &config.training;
    HostRun {
        sequence: config.data.sequence as u64,
        global_batch: training.batch,
        micro_batch: training.micro_batch as u32,
        precision: match training.precision {
            Precision::F32 => ComputePrecision::Fp32,
            Precision::Bf16 => ComputePrecision::Bf16,
            Precision::Fp8 => ComputePrecision::Fp8,
        },
        recompute: match training.recompute {
            bedplate_network::Recompute::None => Recompute::None,
            bedplate_network::Recompute::Cheap => Recompute::Selective,
            bedplate_network::Recompute::Full => Recompute::Full,
        },
        task: match &config.adapter {
            None => Task::Pretrain,
            Some(adapter) => Task::Lora { rank: adapter.rank as u32 },
        },
        copies: match training.copy_every {
            1 if survives => PeerCopies::EveryStep,
            2.. if survives => PeerCopies::EveryFewSteps,
            _ => PeerCopies::None,
        },
        layout: training.layout.unwrap_or(Layout { data: ranks, ..Layout::ONE }),
    }
}
