//! A layout as settings for the software that will run it.

use bedplate_deploy::training::{Trainer, TrainingJob, bedplate_settings};
use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_layout::Layout;
use bedplate_perf::Generation;

use super::question::Loaded;

/// Whose settings are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaunchOf {
    /// Those of every program, one after the other.
    Every,
    Trainer(Trainer),
    /// This program.
    Bedplate,
}

impl LaunchOf {
    pub(super) const ALL: [(&'static str, LaunchOf); 7] = [
        ("megatron-lm", LaunchOf::Trainer(Trainer::MegatronLm)),
        ("megatron-bridge", LaunchOf::Trainer(Trainer::MegatronBridge)),
        ("torchtitan", LaunchOf::Trainer(Trainer::Torchtitan)),
        ("accelerate", LaunchOf::Trainer(Trainer::Accelerate)),
        ("deepspeed", LaunchOf::Trainer(Trainer::DeepSpeed)),
        ("bedplate", LaunchOf::Bedplate),
        ("all", LaunchOf::Every),
    ];
}

/// A program cannot run the plan.
#[derive(Debug, thiserror::Error)]
#[error("{program} cannot run layout {layout}: it lacks {what}")]
pub(super) struct CannotLaunch {
    program: &'static str,
    layout: Layout,
    what: String,
    instead: Option<&'static str>,
}

pub(super) static CANNOT_LAUNCH: Page = Page {
    code: "plan/cannot-launch",
    class: Class::User,
    meaning: "The program that settings were asked for cannot run the planned layout, model or number format, so nothing was printed that would start something else.",
    remedy: "plan with what the program has, or take the settings of another: `--launch` alone shows all",
};

impl Diagnostic for CannotLaunch {
    fn page(&self) -> &'static Page {
        &CANNOT_LAUNCH
    }

    fn help(&self) -> Option<String> {
        self.instead
            .map(|instead| format!("plan with {instead}; `--launch` alone shows what other programs take"))
    }
}

/// What starts the plan: the settings of one program as they are, or those of all under their names.
pub(super) fn launch(of: LaunchOf, layout: &Layout, loaded: &Loaded) -> Result<String, CannotLaunch> {
    let cannot = |program, what: String, instead| CannotLaunch { program, layout: *layout, what, instead };
    match of {
        LaunchOf::Trainer(trainer) => trainer
            .settings(&job(layout, loaded))
            .map_err(|what| cannot(trainer.name(), what.to_string(), what.instead())),
        LaunchOf::Bedplate => bedplate_settings(layout, &loaded.workload, &loaded.model, &loaded.named)
            .map_err(|what| cannot("bedplate train", what.to_owned(), None)),
        LaunchOf::Every => {
            let all = settings(layout, loaded).into_iter();
            let texts: Vec<String> = all.map(|(name, settings)| format!("# {name}\n{settings}")).collect();
            Ok(texts.join("\n\n"))
        }
    }
}

/// Settings of every trainer, or what it lacks; on a host, which only this program trains on, of this program alone.
pub(super) fn settings(layout: &Layout, loaded: &Loaded) -> Vec<(&'static str, String)> {
    let lacks = |what: String, instead: Option<&str>| {
        let instead = instead.map_or(String::new(), |instead| format!("; plan with {instead}"));
        format!("# cannot run this plan: it lacks {what}{instead}")
    };
    let own = bedplate_settings(layout, &loaded.workload, &loaded.model, &loaded.named);
    let own = ("bedplate train", own.unwrap_or_else(|what| lacks(what.to_owned(), None)));
    if loaded.hardware.generation == Generation::Host {
        return vec![own];
    }
    let job = job(layout, loaded);
    let others = Trainer::ALL.into_iter().map(|trainer| {
        let text = trainer.settings(&job).unwrap_or_else(|what| lacks(what.to_string(), what.instead()));
        (trainer.name(), text)
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
