//! A layout as settings for the software that will run it.

use bedplate_deploy::training::{Job, Trainer};
use bedplate_layout::{ComputePrecision, Ends, Layout, Recompute, Schedule};
use bedplate_perf::{Generation, Task, Workload};
use bedplate_transformer::Transformer;

use super::question::Loaded;

/// Settings of every trainer, or what it lacks; on a host, which only this program trains on, of this program alone.
pub(super) fn settings(layout: &Layout, loaded: &Loaded) -> Vec<(&'static str, String)> {
    let own = match own_lack(layout, &loaded.model) {
        Some(lack) => format!("# cannot run this plan: it lacks {lack}"),
        None => bedplate(layout, &loaded.workload, &loaded.named),
    };
    let own = ("bedplate train", own);
    if loaded.hardware.generation == Generation::Host {
        return vec![own];
    }
    let job = job(layout, loaded);
    let others = Trainer::ALL.into_iter().map(|trainer| match trainer.settings(&job) {
        Ok(settings) => (trainer.name(), settings),
        Err(lacks) => (trainer.name(), format!("# cannot run this plan: it lacks {lacks}")),
    });
    others.chain([own]).collect()
}

fn job<'a>(layout: &'a Layout, loaded: &'a Loaded) -> Job<'a> {
    let ranks = u32::try_from(layout.world()).unwrap_or(u32::MAX).max(1);
    let on_a_node = loaded.cluster.kinds().first().map_or(1, |kind| kind.accelerators).clamp(1, ranks);
    Job {
        model: &loaded.model,
        layout,
        workload: &loaded.workload,
        nodes: ranks.div_ceil(on_a_node),
        gpus_per_node: on_a_node,
        is_blackwell: matches!(
            loaded.hardware.generation,
            Generation::Blackwell | Generation::BlackwellUltra
        ),
    }
}

/// What `bedplate train` lacks for a layout.
fn own_lack(layout: &Layout, model: &Transformer) -> Option<&'static str> {
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
fn bedplate(layout: &Layout, workload: &Workload, model: &str) -> String {
    let precision = match layout.precision {
        ComputePrecision::Fp32 => "f32",
        ComputePrecision::Bf16 => "bf16",
        ComputePrecision::Fp8 => "fp8",
        _ => return "# cannot run this plan: it lacks this number format".into(),
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
    text
}

#[cfg(test)]
mod tests {
    use bedplate_diag::Source;
    use bedplate_train::TrainConfig;

    use super::*;

    fn read(layout: &str, task: Task) -> TrainConfig {
        let layout: Layout = layout.parse().unwrap();
        let workload = Workload { sequence: 4096, global_batch: 64, task, ..Workload::default() };
        let text = bedplate(&layout, &workload, "llama-3.2-1b");
        TrainConfig::from_toml(Source::new("plan.toml", &text))
            .unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn our_own_parser_reads_the_settings_of_any_layout() {
        for layout in [
            "dp1",
            "dp4.zero1",
            "dp2.tp2.sp.mb4",
            "dp2.pp2.vpp2.recompute-full",
            "dp4.ep4.zero3",
            "dp2.cp2.fp32",
        ] {
            let config = read(layout, Task::Pretrain);
            let planned: Layout = layout.parse().unwrap();
            let shared = config.training.layout.unwrap();
            assert_eq!((shared.world(), shared.sharding), (planned.world(), planned.sharding));
            assert_eq!(config.training.micro_batch, u64::from(planned.micro_batch));
            assert_eq!((config.data.sequence, config.training.batch), (4096, 64));
            assert!(config.adapter.is_none());
        }
        assert_eq!(read("dp2", Task::Lora { rank: 8 }).adapter.unwrap().rank, 8);
    }

    #[test]
    fn number_formats_that_the_runtime_lacks_are_told() {
        let settings = |layout: &str| {
            let layout: Layout = layout.parse().unwrap();
            bedplate(&layout, &Workload::default(), "llama-3.2-1b")
        };
        assert!(settings("dp8.fp4").starts_with("# cannot"));
        assert!(settings("dp8.fp8").contains("precision = \"fp8\""));
    }
}
