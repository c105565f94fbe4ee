//! A layout as settings for the software that will run it.

use bedplate_deploy::training::{Trainer, TrainingJob, bedplate_settings};
use bedplate_layout::Layout;
use bedplate_perf::Generation;

use super::question::Loaded;

/// Settings of every trainer, or what it lacks; on a host, which only this program trains on, of this program alone.
pub(super) fn settings(layout: &Layout, loaded: &Loaded) -> Vec<(&'static str, String)> {
    let lacks = |what: String| format!("# cannot run this plan: it lacks {what}");
    let own = bedplate_settings(layout, &loaded.workload, &loaded.model, &loaded.named);
    let own = ("bedplate train", own.unwrap_or_else(|what| lacks(what.to_owned())));
    if loaded.hardware.generation == Generation::Host {
        return vec![own];
    }
    let job = job(layout, loaded);
    let others = Trainer::ALL.into_iter().map(|trainer| {
        (trainer.name(), trainer.settings(&job).unwrap_or_else(|what| lacks(what.to_string())))
    });
    others.chain([own]).collect()
}

fn job<'a>(layout: &'a Layout, loaded: &'a Loaded) -> TrainingJob<'a> {
    let ranks = u32::try_from(layout.world()).unwrap_or(u32::MAX).max(1);
    let on_a_node = loaded.cluster.kinds().first().map_or(1, |kind| kind.accelerators).clamp(1, ranks);
    TrainingJob {
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

#[cfg(test)]
mod tests {
    use bedplate_diag::Source;
    use bedplate_perf::{Task, Workload};
    use bedplate_train::TrainConfig;
    use bedplate_transformer::builtin;

    use super::*;

    fn settings(layout: &Layout, workload: &Workload) -> Result<String, &'static str> {
        let model = builtin("llama-3.2-1b").unwrap();
        bedplate_settings(layout, workload, &model, "llama-3.2-1b")
    }

    fn read(layout: &str, task: Task) -> TrainConfig {
        let layout: Layout = layout.parse().unwrap();
        let workload = Workload { sequence: 4096, global_batch: 64, task, ..Workload::default() };
        let text = settings(&layout, &workload).unwrap();
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
            super::tests::settings(&layout, &Workload::default())
        };
        assert_eq!(settings("dp8.fp4"), Err("this number format"));
        assert!(settings("dp8.fp8").unwrap().contains("precision = \"fp8\""));
    }
}
