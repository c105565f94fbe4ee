//! From a row to layout, workload and machine: what is printed, and a rule for each blank cell.
//!
//! Rules look at the columns `software`, `flops_rule`, `accelerator`, `interconnect`, `task`, `notes` and
//! the printed degrees, never at who published the row.
//!
//! | blank | filled with | because |
//! |---|---|---|
//! | dp | gpus / (tp pp cp) | printed dp is often inconsistent |
//! | cp, ep | 1; ep = min(gpus, 64) for mixtures whose notes name DeepEP | DeepEP without ep makes no sense |
//! | etp | as noted; else tp under `flops_rule` full, 1 otherwise | Megatron's default; Megatron-Bridge recipes |
//! | vpp | L/pp, rounded up, for dense Megatron with pp > 1, and the most up to 4 that divide the stage where the micro-batch is blank too; else 1 | rows of the same models print it; scaling studies used few |
//! | sp | on with tp > 1, except in stacks of 2021–22 unless noted | stack practice |
//! | sharding | optimizer state for Megatron since 2023, weights too where they fill the GPU; none before | distributed optimizer, Megatron-FSDP |
//! | recompute | full in 2021–22, on the stock stack without expert overlap, and for adapters of 30B and more under FSDP; else the least that fits | notes of sibling rows; memory |
//! | offload | activations, where they do not fit, over NVLink-C2C | recipes of Megatron-Bridge |
//! | micro-batch | 8/4/2/1 by width in 2021–22; 2 without stages, else 1 | bubbles ask for small ones |
//! | precision | fp8 on Hopper and later under Megatron, else bf16 | records are set in the narrower format |
//! | stack | Megatron by the release in the notes; stock for fine-grained mixtures before Megatron-Bridge; FSDP with Transformer Engine where its kernels are noted | no recipes yet; other kernels |
//! | dispatcher | NCCL where noted or under `flops_rule` full, else deduplicating | recipes since Megatron-Bridge |
//! | expert overlap | as noted; else off | rows fit better than with a guess |
//! | global batch | micro-batch x gpus where the notes say "per GPU" | FSDP blog |
//! | seq | 4096 nanotron, 8192 FSDP | their documentation |
//! | domain | 72 in NVL72 racks, 64 of each where the job is several times 64 | assumed: placed by segments, so that groups stay inside |
//! | network | 6.25 GB/s per A100 under Megatron-DeepSpeed, else the chip's usual one | Jean Zay |

use bedplate_catalog::Catalog;
use bedplate_diag::shown;
use bedplate_layout::{ComputePrecision, Ends, Layout, Recompute, Schedule, Sharding};
use bedplate_perf::{
    Dispatcher, ExpertOverlap, ExpertRouting, Fp8Scaling, Hardware, Network, Offload, PeerCopies, Stack,
    Task, Workload,
};
use bedplate_transformer::{Optimizer, Transformer};

use crate::Skip;
use crate::record::MeasuredRow;

/// The software class of a row. Releases matter for mixtures only, see `Stack`.
pub(crate) fn stack(record: &MeasuredRow, model: &Transformer) -> Stack {
    let software = record.text("software").to_lowercase();
    let known = match software.as_str() {
        // Before Megatron-Bridge, which halves causal attention, mixtures of many experts had no recipes.
        "megatron" if record.text("flops_rule") == "full" && is_fine_grained(model) => {
            Some(Stack::MegatronStock)
        }
        "megatron" => Some(megatron_release(record.notes())),
        "fsdp" if uses_transformer_engine(record.notes()) => Some(Stack::FsdpTe),
        other => Stack::find(other),
    };
    known.unwrap_or_else(|| guessed_stack(&software, record))
}

/// Notes list the kernels that a row used; attention kernels of PyTorch's own are named where they replace those of Transformer
/// Engine.
fn uses_transformer_engine(notes: &str) -> bool {
    let mut kernels = notes.split(';').next().unwrap_or_default().split(" + ").map(str::trim);
    kernels.clone().any(|kernel| kernel == "TE")
        && !kernels.any(|kernel| matches!(kernel, "FlexAttn" | "TorchSDPA"))
}

/// Stacks that the table does not name, by what they are made of.
fn guessed_stack(software: &str, record: &MeasuredRow) -> Stack {
    let has = |word: &str| software.contains(word);
    if has("deepspeed") && has("megatron") {
        Stack::MegatronDeepSpeed
    } else if has("megatron") || has("nemo") || has("mlperf") {
        Stack::MegatronBefore2606
    } else if has("maxtext") || has("jax") {
        Stack::MaxText
    } else if has("fsdp")
        || has("titan")
        || has("torch")
        || has("evo")
        || record.text("fsdp_zero").to_lowercase().contains("fsdp")
    {
        Stack::Fsdp
    } else {
        Stack::MegatronBefore2606
    }
}

/// Notes begin with the container release, such as `26.04.01 NeMo Container`.
fn megatron_release(notes: &str) -> Stack {
    let mut parts = notes.split(['.', ' ']);
    let year: Option<u32> = parts.next().and_then(|part| part.parse().ok());
    let month: Option<u32> = parts.next().and_then(|part| part.parse().ok());
    match (year, month) {
        (Some(year), Some(month)) if notes.contains("Container") && (year, month) >= (26, 6) => {
            Stack::Megatron
        }
        _ => Stack::MegatronBefore2606,
    }
}

/// Many experts, several of which each token visits.
fn is_fine_grained(model: &Transformer) -> bool {
    let mut mixtures = model.runs.iter().filter_map(|run| run.layer.mlp.mixture());
    mixtures.any(|mixture| mixture.experts >= 64 && mixture.per_token > 1)
}

fn is_old(stack: Stack) -> bool {
    matches!(stack, Stack::Megatron2021 | Stack::MegatronDeepSpeed | Stack::DeepSpeedZero3)
}

fn is_fsdp(stack: Stack) -> bool {
    matches!(stack, Stack::Fsdp | Stack::FsdpTe)
}

fn is_megatron(stack: Stack) -> bool {
    matches!(stack, Stack::Megatron | Stack::MegatronBefore2606 | Stack::MegatronStock)
}

pub(crate) fn workload(record: &MeasuredRow, stack: Stack) -> Result<Workload, Skip> {
    let notes = record.notes();
    let sequence = record.count("seq_len").or(match stack {
        Stack::Nanotron => Some(4096),
        Stack::Fsdp | Stack::FsdpTe => Some(8192),
        _ => None,
    });
    let dispatcher = if notes.contains("NCCL alltoall") || record.text("flops_rule") == "full" {
        Dispatcher::AllToAll
    } else {
        Dispatcher::Deduplicating
    };
    let is_hidden = notes.contains("overlap on");
    let overlap = if is_hidden { ExpertOverlap::Overlapped } else { ExpertOverlap::Serial };
    let is_forced = matches!(record.text("routing"), "" | "forced-balanced" | "unknown");
    Ok(Workload {
        sequence: sequence.ok_or(Skip::Blank { column: "seq_len" })?,
        global_batch: global_batch(record)?,
        task: match record.text("task") {
            "lora" => Task::Lora { rank: 16 },
            "sft" => Task::FineTune,
            _ => Task::Pretrain,
        },
        optimizer: if notes.contains("SGD") { Optimizer::Sgd } else { Optimizer::AdamW },
        stack,
        routing: if is_forced { ExpertRouting::Balanced } else { ExpertRouting::Skewed(REAL_ROUTING) },
        dispatcher,
        expert_overlap: overlap,
        offload: Offload::Nothing,
        scaling: if record.text("precision").to_uppercase().contains("MX") {
            Fp8Scaling::Block
        } else {
            Fp8Scaling::PerTensor
        },
        trains_prediction: !record.text("model").contains("w/o MTP") && !is_fsdp(stack),
        copies: PeerCopies::None,
    })
}

/// Forced-balanced routing is 9 to 24 % faster than real routing (Megatron-Bridge, Qwen3-235B).
const REAL_ROUTING: f64 = 1.25;

/// The printed batch, unless the notes correct it.
fn global_batch(record: &MeasuredRow) -> Result<u64, Skip> {
    let corrected = record
        .noted("printed tok/s matches")
        .filter(|_| record.notes().contains("typo"))
        .or_else(|| record.noted("heading says GBS="));
    let per_gpu = || {
        let is_per_gpu = record.notes().contains("batch size is per GPU");
        is_per_gpu.then(|| Some(record.count("micro_batch")? * record.count("gpus")?)).flatten()
    };
    corrected
        .or_else(|| record.count("global_batch"))
        .or_else(per_gpu)
        .ok_or(Skip::Blank { column: "global_batch" })
}

pub(crate) fn layout(
    record: &MeasuredRow,
    model: &Transformer,
    workload: &Workload,
    hardware: &Hardware,
) -> Result<Layout, Skip> {
    let stack = workload.stack;
    let gpus = hardware.gpus;
    let (tensor, pipeline) = degrees(record, stack)?;
    let context = record.degree("cp").unwrap_or(1);
    let model_ranks = tensor.saturating_mul(pipeline).saturating_mul(context);
    if model_ranks == 0 || !gpus.is_multiple_of(model_ranks) {
        return Err(Skip::DegreesDoNotDivide { tensor, pipeline, context, gpus });
    }
    let data = gpus / model_ranks;
    let micro_batch =
        record.degree("micro_batch").unwrap_or_else(|| usual_micro_batch(model, stack, pipeline));
    let micro_batch = fitting_micro_batch(micro_batch, record, workload, data);
    if u64::from(data) * u64::from(micro_batch) > workload.global_batch {
        return Err(Skip::BatchTooSmall { batch: workload.global_batch, micro_batch, data });
    }
    let mut layout = Layout {
        data,
        tensor,
        is_sequence_parallel: tensor > 1 && uses_sequence_parallel(record, stack),
        context,
        pipeline,
        virtual_stages: virtual_stages(record, model, stack, pipeline),
        ends: Ends::default(),
        schedule: Schedule::default(),
        expert: 1,
        expert_tensor: 1,
        sharding: sharding(
            record,
            stack,
            data * context,
            unsharded_share(model, hardware, tensor * pipeline, workload),
        ),
        micro_batch,
        recompute: recompute(record, model, workload),
        precision: precision(record.text("precision"), stack, hardware),
    };
    if model.is_mixture() {
        cut_experts(&mut layout, record, model);
    }
    Ok(layout)
}

/// Sharded data parallelism without printed degrees has no other degrees.
fn degrees(record: &MeasuredRow, stack: Stack) -> Result<(u32, u32), Skip> {
    let is_sharded = is_fsdp(stack) || stack == Stack::MaxText;
    match (record.degree("tp"), record.degree("pp")) {
        (Some(tensor), Some(pipeline)) => Ok((tensor, pipeline)),
        (tensor, pipeline) if is_sharded => Ok((tensor.unwrap_or(1), pipeline.unwrap_or(1))),
        _ => Err(Skip::NoDegrees),
    }
}

fn usual_micro_batch(model: &Transformer, stack: Stack, pipeline: u32) -> u32 {
    match model.hidden {
        hidden if stack == Stack::Megatron2021 => match hidden {
            0..=4096 => 8,
            4097..=8191 => 4,
            8192..=12287 => 2,
            _ => 1,
        },
        _ if !is_old(stack) && pipeline == 1 => 2,
        _ => 1,
    }
}

/// A guessed micro-batch is halved until it divides the batch of a data rank; a printed one stays.
fn fitting_micro_batch(micro_batch: u32, record: &MeasuredRow, workload: &Workload, data: u32) -> u32 {
    if record.degree("micro_batch").is_some() {
        return micro_batch;
    }
    let per_rank = workload.global_batch / u64::from(data).max(1);
    let mut micro_batch = micro_batch;
    while micro_batch > 1 && (per_rank == 0 || !per_rank.is_multiple_of(u64::from(micro_batch))) {
        micro_batch /= 2;
    }
    micro_batch
}

fn uses_sequence_parallel(record: &MeasuredRow, stack: Stack) -> bool {
    let notes = record.notes();
    if is_old(stack) { notes.contains("sequence parallelism") } else { !notes.contains("no SP") }
}

fn virtual_stages(record: &MeasuredRow, model: &Transformer, stack: Stack, pipeline: u32) -> u32 {
    if pipeline <= 1 {
        return 1;
    }
    let per_stage = model.layer_count().div_ceil(u64::from(pipeline)).max(1) as u32;
    match record.degree("vpp") {
        Some(chunks) => chunks.min(per_stage),
        None if is_megatron(stack) && !model.is_mixture() => match record.degree("micro_batch") {
            Some(_) => per_stage,
            // Chunks had to be of equal length.
            None => (1..=4).rev().find(|chunks| per_stage.is_multiple_of(*chunks)).unwrap_or(1),
        },
        None => 1,
    }
}

fn sharding(record: &MeasuredRow, stack: Stack, replicas: u32, unsharded: f64) -> Sharding {
    let printed = record.text("fsdp_zero").to_lowercase();
    let within = || {
        let number = printed.split(|c: char| !c.is_ascii_digit()).filter(|part| part.len() < 7);
        let groups: Vec<u32> = number.filter_map(|part| part.parse().ok()).collect();
        match printed.contains("shard group") {
            true => groups.last().copied(),
            false => None,
        }
    };
    if printed.contains("zero3")
        || printed.contains("full_shard")
        || printed.starts_with("fsdp") && !printed.contains("zero2")
    {
        return match within() {
            Some(group) if group >= 1 && group < replicas && replicas.is_multiple_of(group) => {
                Sharding::WeightsWithin(group)
            }
            _ => Sharding::Weights,
        };
    }
    match printed.as_str() {
        text if text.contains("zero2") => Sharding::Gradients,
        text if text.contains("zero1") => Sharding::Optimizer,
        text if text.contains("zero0") => Sharding::None,
        _ if is_fsdp(stack) || stack == Stack::MaxText => Sharding::Weights,
        _ if is_old(stack) => Sharding::None,
        _ if unsharded > 0.95 => Sharding::Weights,
        _ => Sharding::Optimizer,
    }
}

/// Weights and gradients in bf16 of a dense model's rank, as a share of the GPU's memory.
fn unsharded_share(model: &Transformer, hardware: &Hardware, ranks: u32, workload: &Workload) -> f64 {
    let bytes = if matches!(workload.task, Task::Lora { .. }) { 2.0 } else { 4.0 };
    if model.is_mixture() {
        return 0.0;
    }
    model.parameters().total as f64 * bytes / f64::from(ranks) / hardware.memory
}

/// Whether a row says what it recomputes, or its stack does.
pub(crate) fn says_recompute(record: &MeasuredRow, model: &Transformer, workload: &Workload) -> bool {
    let is_stock = workload.stack == Stack::MegatronStock && workload.expert_overlap == ExpertOverlap::Serial;
    let is_adapter = matches!(workload.task, Task::Lora { .. }) && is_fsdp(workload.stack);
    let is_large = model.parameters().total > 30_000_000_000;
    !record.text("recompute").is_empty() || is_old(workload.stack) || is_stock || is_adapter && is_large
}

fn recompute(record: &MeasuredRow, model: &Transformer, workload: &Workload) -> Recompute {
    match record.text("recompute") {
        "selective" => Recompute::Selective,
        "none" => Recompute::None,
        "full" => Recompute::Full,
        _ if says_recompute(record, model, workload) => Recompute::Full,
        _ => Recompute::None,
    }
}

fn precision(text: &str, stack: Stack, hardware: &Hardware) -> ComputePrecision {
    let text = text.to_lowercase();
    if text.is_empty() && is_megatron(stack) && hardware.has_fp8 {
        return ComputePrecision::Fp8;
    }
    if text.contains("fp4") {
        ComputePrecision::Fp4
    } else if text.contains("fp8") {
        ComputePrecision::Fp8
    } else if text.contains("fp16") {
        ComputePrecision::Fp16
    } else {
        ComputePrecision::Bf16
    }
}

/// Expert degrees as printed or noted, reduced until they divide experts and stage.
fn cut_experts(layout: &mut Layout, record: &MeasuredRow, model: &Transformer) {
    let experts = model.layers().find_map(|layer| layer.mlp.mixture()).map_or(1, |mixture| mixture.experts);
    let is_deep = record.notes().contains("DeepEP") && record.degree("ep").is_none();
    let wanted = record.degree("ep").unwrap_or(if is_deep { layout.stage_ranks().min(64) } else { 1 });
    let noted = record.noted("ETP ").and_then(|degree| u32::try_from(degree).ok());
    layout.expert = wanted.max(1);
    while layout.expert > 1
        && (!experts.is_multiple_of(u64::from(layout.expert))
            || !layout.stage_ranks().is_multiple_of(layout.expert))
    {
        layout.expert -= 1;
    }
    // Megatron Core's own default is the tensor degree; Megatron-Bridge recipes set it to 1.
    let is_bridge = record.text("flops_rule") != "full";
    layout.expert_tensor = noted.unwrap_or(if is_bridge { 1 } else { layout.tensor }).max(1);
    if !layout.stage_ranks().is_multiple_of(layout.expert.saturating_mul(layout.expert_tensor)) {
        layout.expert_tensor = 1;
    }
}

/// The machine of a row: its chip from the catalog, its domain and network from the text.
pub(crate) fn hardware(record: &MeasuredRow, stack: Stack, catalog: &Catalog) -> Result<Hardware, Skip> {
    let name = [record.text("accelerator"), record.text("gpu")].into_iter().find(|name| !name.is_empty());
    let name = name.ok_or(Skip::Blank { column: "accelerator" })?;
    let unknown = || Skip::UnknownAccelerator { name: shown(name) };
    let chip = catalog.accelerator(name).map_err(|_| unknown())?;
    let chip = Hardware::from_accelerator(chip, catalog).map_err(|_| unknown())?;
    let gpus = record.degree("gpus").ok_or(Skip::Blank { column: "gpus" })?;
    let per_node = record.degree("gpus_per_node").unwrap_or(8).max(1);
    let text = record.text("interconnect");
    let is_rack = text.contains("NVL72") || name.to_lowercase().starts_with("gb");
    let is_jean_zay = text.is_empty() && stack == Stack::MegatronDeepSpeed;
    let per_gpu = node_gigabits(text).map(|gigabits| gigabits * 1e9 / 8.0 / f64::from(per_node));
    Ok(Hardware {
        gpus,
        domain: if is_rack { rack_domain(gpus) } else { per_node },
        scale_out: per_gpu.unwrap_or(if is_jean_zay { 6.25e9 } else { chip.scale_out }),
        network: network(text),
        ..chip
    })
}

/// Ranks of a job that share a rack of 72. No row says so, but jobs of several times 64 GPUs are assumed to leave
/// eight GPUs of each rack idle so that no group crosses racks, as Slurm's `--segment=16` places them.
fn rack_domain(gpus: u32) -> u32 {
    if gpus > 72 && gpus.is_multiple_of(64) { 64 } else { 72 }
}

/// `1600 Gbps/node RoCE`, `16x400G EFA/node (6.4 Tb/s)`, `4x EFA, 400 Gb/s per node`.
fn node_gigabits(text: &str) -> Option<f64> {
    let before = |unit: &str| -> Option<f64> {
        let head = text.split_once(unit)?.0.trim_end();
        let start = head.rfind(|c: char| !c.is_ascii_digit() && c != '.').map_or(0, |at| at + 1);
        head[start..].parse().ok()
    };
    before("Tb/s")
        .map(|terabits| terabits * 1000.0)
        .or_else(|| before("Gbps/node"))
        .or_else(|| before("Gb/s per node"))
}

fn network(text: &str) -> Network {
    match text {
        _ if text.contains("TCP") => Network::Tcp,
        _ if text.contains("p4d") => Network::EfaV1,
        _ if text.contains("p6") => Network::EfaV4,
        _ if text.contains("p5en") => Network::EfaV3,
        _ if text.contains("EFA") => Network::EfaV2,
        _ => Network::Rdma,
    }
}
