//! Many legal layouts of models of every kind, as jobs to launch.

use bedplate_deploy::training::TrainingJob;
use bedplate_layout::{Batch, Layout};
use bedplate_perf::{Dispatcher, ExpertOverlap, Offload, Task, Workload};
use bedplate_transformer::{Optimizer, Transformer, builtin};

/// One job that owns its parts.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) model: Transformer,
    pub(crate) layout: Layout,
    pub(crate) workload: Workload,
    pub(crate) gpus_per_node: u32,
    pub(crate) is_blackwell: bool,
}

impl Case {
    pub(crate) fn job(&self) -> TrainingJob<'_> {
        let world = u32::try_from(self.layout.world()).expect("layouts of the corpus are small");
        TrainingJob {
            model: &self.model,
            layout: &self.layout,
            workload: &self.workload,
            nodes: world.div_ceil(self.gpus_per_node),
            gpus_per_node: self.gpus_per_node.min(world),
            is_blackwell: self.is_blackwell,
        }
    }

    pub(crate) fn name(&self) -> String {
        format!("{} {} {:?}", self.model.name, self.layout, self.workload)
    }
}

const MODELS: [&str; 19] = [
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-3.2-1b",
    "qwen2.5-7b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "kimi-k2",
    "gpt-oss-20b",
    "gpt3-175b",
    "gpt2",
    "gemma-2-9b",
    "bloom-7b1",
    "qwen3-next-80b-a3b",
    "nemotron-h-8b",
];

const LAYOUTS: [&str; 51] = [
    "dp8",
    "dp8.mb2",
    "dp8.zero1",
    "dp8.zero2",
    "dp8.zero3",
    "dp16.hsdp8",
    "dp64.hsdp8.mb2",
    "dp8.zero1.recompute-selective",
    "dp8.zero3.recompute-full",
    "dp8.zero1.fp16",
    "dp8.zero1.fp8",
    "dp8.zero3.fp8",
    "dp8.zero1.fp4",
    "dp4.tp2",
    "dp4.tp2.sp",
    "dp1.tp8.sp",
    "dp2.tp16.sp.zero1",
    "dp8.tp8.sp.zero1",
    "dp8.tp4.sp.zero3",
    "dp4.tp8.sp.hsdp2",
    "dp4.cp2.zero1",
    "dp4.cp2.zero3",
    "dp4.cp4.hsdp8",
    "dp2.tp8.sp.cp2.pp4.zero1",
    "dp4.tp8.sp.pp4",
    "dp4.tp8.sp.pp4.zero1",
    "dp2.tp4.sp.pp8.zero1",
    "dp1.tp8.sp.pp16.zero1.recompute-selective",
    "dp2.tp8.sp.pp4.vpp2.zero1",
    "dp2.tp8.sp.pp4.vpp4.zero1.recompute-full",
    "dp2.tp2.pp2.vpp4",
    "dp4.tp4.sp.pp3.zero1",
    "dp4.tp2.sp.pp7.zero1",
    "dp2.tp8.sp.pp4.vpp3.zero1",
    "dp2.tp4.sp.pp4.last5.zero1",
    "dp2.tp4.sp.pp4.first6.last5.zero1",
    "dp2.tp4.sp.pp4.vpp2.first6.last6.zero1",
    "dp4.pp2.first14.zero1",
    "dp4.pp2.zero-bubble.zero1",
    "dp8.pp4.dualpipe.ep8.zero1",
    "dp8.pp2.zero1",
    "dp8.pp2.zero1.fp8",
    "dp8.ep8.zero1",
    "dp8.ep4.zero1.recompute-full",
    "dp16.ep8.hsdp8",
    "dp8.ep8.zero3",
    "dp8.tp2.sp.ep8.zero1",
    "dp8.tp2.sp.ep4.etp2.zero1",
    "dp16.pp4.ep8.zero1.fp8",
    "dp16.pp4.vpp2.ep16.zero1",
    "dp64.pp4.ep64.zero1.recompute-full",
];

fn workloads(model: &Transformer) -> Vec<Workload> {
    let usual = Workload { sequence: model.max_context.min(4096), global_batch: 256, ..Workload::default() };
    let tasks = [
        usual,
        Workload { task: Task::FineTune, ..usual },
        Workload { task: Task::Lora { rank: 16 }, ..usual },
        Workload { offload: Offload::Optimizer, ..usual },
        Workload { optimizer: Optimizer::AdamW8bit, ..usual },
        Workload { optimizer: Optimizer::SgdMomentum, ..usual },
    ];
    let experts = [
        Workload { dispatcher: Dispatcher::AllToAll, ..usual },
        Workload { expert_overlap: ExpertOverlap::Overlapped, ..usual },
    ];
    tasks.into_iter().chain(experts.into_iter().filter(|_| model.is_mixture())).collect()
}

/// Every legal combination, on eight GPUs a node; the second half of the workloads on Blackwell as well.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for name in MODELS {
        let model = builtin(name).expect("the corpus names built-in models");
        for (layout, workload) in LAYOUTS.iter().flat_map(|text| {
            let layout: Layout = text.parse().expect("the corpus has layouts of the grammar");
            workloads(&model).into_iter().map(move |workload| (layout, workload))
        }) {
            let batch = Batch { sequence: workload.sequence, global_batch: workload.global_batch };
            if !layout.refusals(&model, Some(layout.world()), Some(batch)).is_empty() {
                continue;
            }
            for is_blackwell in [false, true] {
                cases.push(Case { model: model.clone(), layout, workload, gpus_per_node: 8, is_blackwell });
            }
        }
    }
    cases
}
