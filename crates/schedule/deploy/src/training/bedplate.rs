//! The configuration of `bedplate train`, this program's own trainer.

use bedplate_layout::{ComputePrecision, Ends, Layout, Recompute, Schedule};
use bedplate_perf::{Task, Workload};
use bedplate_transformer::Transformer;

/// Settings for a model as it was named, or what `bedplate train` lacks for the layout.
pub fn bedplate_settings(
    layout: &Layout,
    workload: &Workload,
    model: &Transformer,
    named: &str,
) -> Result<String, &'static str> {
    match lack(layout, model) {
        Some(lack) => Err(lack),
        None => configuration(layout, workload, named),
    }
}

fn lack(layout: &Layout, model: &Transformer) -> Option<&'static str> {
    let is_plain = layout.schedule == Schedule::default() && layout.ends == Ends::default();
    let cuts_alike = !model.is_mixture() || layout.tensor == layout.expert_tensor;
    match (is_plain, cuts_alike, model.is_hybrid()) {
        (.., true) => Some("layers with a state or with one half"),
        (false, ..) => Some("schedules and stages other than alternating, even ones"),
        (_, false, _) => {
            Some("experts that are cut otherwise than the other matrices (`etp` and `tp` differ)")
        }
        _ => None,
    }
}

/// The configuration of `bedplate train`: what a plan decides, and the keys that it needs besides.
fn configuration(layout: &Layout, workload: &Workload, model: &str) -> Result<String, &'static str> {
    let precision = match layout.precision {
        ComputePrecision::Fp32 => "f32",
        ComputePrecision::Bf16 => "bf16",
        ComputePrecision::Fp8 => "fp8",
        _ => return Err("this number format"),
    };
    let recompute = match layout.recompute {
        Recompute::None => "none",
        Recompute::Selective => "cheap",
        Recompute::Full => "full",
    };
    // What is computed at once, and how, are keys of their own.
    let shared = Layout {
        micro_batch: Layout::ONE.micro_batch,
        recompute: Layout::ONE.recompute,
        precision: Layout::ONE.precision,
        ..*layout
    };
    let mut text = format!(
        "[model]\nconfig = {model:?}\n\n[data]\ncorpora = [\"corpus\"] # made by `bedplate data`\nsequence = {}\n\n\
         [training]\nbatch = {}\nmicro_batch = {}\nprecision = \"{precision}\"\nrecompute = \"{recompute}\"\n\
         layout = \"{shared}\"",
        workload.sequence, workload.global_batch, layout.micro_batch
    );
    if let Task::Lora { rank } = workload.task {
        text += &format!("\n\n[adapter]\nrank = {rank}");
    }
    Ok(text)
}
