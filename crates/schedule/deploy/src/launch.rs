//! A plan as commands of engines, or as manifests of Kubernetes that run them.
//!
//! A plan has one pool of replicas or two. [`pools`] gives each pool the command that an engine is started with, once
//! on every node of a replica: where there are several, the command names its node's number as `$RANK` and the first
//! node as `$HEAD`. [`launch`] prints them for a shell, [`kubernetes::manifests`] for a cluster.

mod bedplate;
pub mod kubernetes;
mod sglang;
mod vllm;

use bedplate_document::quote;
use bedplate_perf::Network;
use bedplate_perf::serving::{Replica, WeightFormat};

use crate::{Need, Plan, ServingLayout, Supply, Workers};

/// What is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Software {
    Vllm,
    Sglang,
    Dynamo,
    Bedplate,
}

impl Software {
    pub const ALL: [(&'static str, Software); 4] = [
        ("vllm", Software::Vllm),
        ("sglang", Software::Sglang),
        ("dynamo", Software::Dynamo),
        ("bedplate", Software::Bedplate),
    ];

    /// Where the engine listens.
    fn port(self) -> u16 {
        match self {
            Software::Sglang => 30_000,
            Software::Vllm | Software::Dynamo | Software::Bedplate => 8000,
        }
    }
}

/// What the replicas of a pool do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    Both,
    Prefill,
    Decode,
}

impl Duty {
    fn name(self) -> &'static str {
        match self {
            Duty::Both => "replica",
            Duty::Prefill => "prompt worker",
            Duty::Decode => "decode worker",
        }
    }
}

/// Replicas of one kind, and how each is started.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    pub duty: Duty,
    pub replicas: u32,
    /// Nodes of one replica.
    pub nodes: u32,
    /// GPUs that it takes on each of them.
    pub gpus_per_node: u32,
    /// The machine that it needs, where the other pool has another.
    pub machine: Option<String>,
    /// What follows the program's name is a flag, or a flag and its value; nothing where the engine cannot do it.
    pub command: Vec<String>,
    /// What must be known before it is started.
    pub remarks: Vec<String>,
}

/// The pools of a plan for an engine. `model` is what the engine loads: a name of Hugging Face or a path.
pub fn pools(need: &Need<'_>, supply: &Supply, plan: &Plan, model: &str, software: Software) -> Vec<Pool> {
    let model = quote::shell_word(model);
    let pools: Vec<(Duty, &Workers)> = match plan {
        Plan::Aggregated(workers) => vec![(Duty::Both, workers)],
        Plan::Disaggregated { prefill, decode } => vec![(Duty::Prefill, prefill), (Duty::Decode, decode)],
    };
    pools
        .into_iter()
        .map(|(duty, workers)| {
            let gpus = if duty == Duty::Prefill { supply.of_prompts() } else { supply };
            let pool = Sized { need, supply: gpus, model: &model, workers, duty }.pool(software);
            Pool { machine: supply.prompts.as_ref().map(|_| gpus.name.clone()), ..pool }
        })
        .collect()
}

/// Commands with remarks above each.
pub fn launch(need: &Need<'_>, supply: &Supply, plan: &Plan, model: &str, software: Software) -> String {
    let mut blocks = Vec::new();
    if software == Software::Dynamo {
        blocks.push("# once, in front of all workers\npython -m dynamo.frontend --router-mode kv".to_owned());
    }
    let pools = pools(need, supply, plan, model, software);
    for pool in &pools {
        let mut lines = vec![format!("# {}", pool.title())];
        lines.extend(pool.remarks.iter().map(|remark| format!("# {remark}")));
        lines.extend((!pool.command.is_empty()).then(|| pool.command.join(" \\\n  ")));
        blocks.push(lines.join("\n"));
    }
    blocks.extend(router(&pools, software));
    blocks.join("\n\n")
}

impl Pool {
    fn title(&self) -> String {
        let plural = |count: u32| if count == 1 { "" } else { "s" };
        let gpus = self.nodes * self.gpus_per_node;
        let times = match (self.replicas, self.nodes) {
            (1, 1) => "run once".to_owned(),
            (replicas, 1) => format!("run {replicas} times"),
            (_, nodes) => format!(
                "for each run it on {nodes} nodes, with RANK=0 to {} and HEAD=the address of the first",
                nodes - 1
            ),
        };
        let machine = self.machine.as_ref().map_or(String::new(), |machine| format!(" on {machine}"));
        format!(
            "{} {}{} of {gpus} GPU{} each{machine}: {times}",
            self.replicas,
            self.duty.name(),
            plural(self.replicas),
            plural(gpus)
        )
    }
}

/// What stands in front of several replicas.
fn router(pools: &[Pool], software: Software) -> Option<String> {
    let urls = |duty: Duty, flag: &str| {
        let pool = pools.iter().find(|pool| pool.duty == duty);
        let count = pool.map_or(0, |pool| pool.replicas);
        let url = |at: u32| format!("{flag}http://{}-{at}:{}", duty_host(duty), software.port());
        (0..count).map(url).collect::<Vec<String>>()
    };
    if pools.iter().any(|pool| pool.command.is_empty()) {
        return None;
    }
    let lines = match (software, pools) {
        (Software::Dynamo, _) => return None,
        (Software::Bedplate, [_, _]) => return None,
        (_, [pool]) if pool.replicas == 1 => return None,
        (Software::Sglang, [_]) => {
            let workers = urls(Duty::Both, "").join(" ");
            vec!["python -m sglang_router.launch_router".to_owned(), format!("--worker-urls {workers}")]
        }
        (Software::Sglang, _) => {
            let mut lines =
                vec!["python -m sglang_router.launch_router".to_owned(), "--pd-disaggregation".to_owned()];
            lines.extend(urls(Duty::Prefill, "--prefill "));
            lines.extend(urls(Duty::Decode, "--decode "));
            lines
        }
        (Software::Vllm | Software::Bedplate, [_]) => {
            let mut lines = vec!["bedplate route".to_owned()];
            lines.extend(urls(Duty::Both, "--replica "));
            lines
        }
        (Software::Vllm | Software::Bedplate, _) => {
            return Some(
                "# vLLM brings no router between the pools: use `--launch dynamo`, which does".to_owned(),
            );
        }
    };
    let remark = "# once, in front of the replicas; put their addresses in place of these names";
    Some(format!("{remark}\n{}", lines.join(" \\\n  ")))
}

fn duty_host(duty: Duty) -> &'static str {
    match duty {
        Duty::Both => "replica",
        Duty::Prefill => "prefill",
        Duty::Decode => "decode",
    }
}

/// A pool with what it is sized for.
struct Sized<'a> {
    need: &'a Need<'a>,
    supply: &'a Supply,
    model: &'a str,
    workers: &'a Workers,
    duty: Duty,
}

impl Sized<'_> {
    fn pool(&self, software: Software) -> Pool {
        let mut remarks = Vec::new();
        let command = match software {
            Software::Vllm => self.vllm("vllm serve", &mut remarks),
            Software::Dynamo => {
                let mut flags = self.vllm("python -m dynamo.vllm --model", &mut remarks);
                flags.extend(match self.duty {
                    Duty::Both => None,
                    Duty::Prefill => Some("--disaggregation-mode prefill".to_owned()),
                    Duty::Decode => Some("--disaggregation-mode decode".to_owned()),
                });
                flags
            }
            Software::Sglang => self.sglang(&mut remarks),
            Software::Bedplate => self.bedplate(&mut remarks),
        };
        if self.layout().weights == WeightFormat::Int4
            && !command.is_empty()
            && software != Software::Bedplate
        {
            remarks.push("the model must be a four-bit checkpoint (AWQ or GPTQ)".into());
        }
        let nodes = self.nodes();
        let gpus_per_node = self.layout().gpus().div_ceil(nodes);
        Pool {
            duty: self.duty,
            replicas: self.workers.replicas,
            nodes,
            gpus_per_node,
            machine: None,
            command,
            remarks,
        }
    }

    fn layout(&self) -> &ServingLayout {
        &self.workers.layout
    }

    /// Nodes of one replica.
    fn nodes(&self) -> u32 {
        self.layout().gpus().div_ceil(self.supply.gpus_per_node.max(1))
    }

    /// Tokens of a request, plus some for chat templates, in whole blocks of the caches.
    fn context(&self) -> u64 {
        let asked = self.need.load.context();
        let roomy = (asked + asked / 16 + 64).next_multiple_of(256);
        match self.need.model.transformer.max_context {
            0 => roomy,
            longest => roomy.min(longest),
        }
    }

    fn replica(&self) -> Option<Replica> {
        self.layout().replica(self.need, self.supply).ok()
    }

    fn memory_share(&self) -> f64 {
        self.replica().map_or(0.9, |replica| replica.deployment().settings.memory_share)
    }

    /// Experts that have a copy, where ranks do not divide them.
    fn expert_copies(&self) -> Option<u64> {
        let model = &self.need.model.transformer;
        let mixture = model.runs.iter().find_map(|run| run.layer.mlp.mixture())?;
        let copies = self.layout().parallel.expert_places(mixture.experts) - mixture.experts;
        (copies > 0).then_some(copies)
    }

    /// Whether experts exchange tokens between nodes over a network whose messages GPUs can send themselves.
    fn has_fast_dispatch(&self) -> bool {
        let is_wide = self.layout().parallel.expert > self.supply.hardware.domain;
        is_wide && self.supply.hardware.network == Network::Rdma
    }
}
