//! The plan of a program that does not know of us: model and layout as its log tells them, priced on the nodes that it runs on.

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_layout::Layout;
use bedplate_perf::{Constants, Hardware, Stack, Workload, predict};
use bedplate_report::RunArguments;
use bedplate_topology::NodeKind;
use bedplate_transformer::from_config;

/// What a run has: nodes of one kind.
#[derive(Debug, Clone)]
pub struct Machines {
    pub kind: NodeKind,
    pub nodes: u32,
}

/// A step as predicted, and what that rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    pub breakdown: Breakdown<Predicted>,
    pub source: String,
}

/// The plan, or why there is none.
pub fn plan_of(arguments: &RunArguments, machines: &Machines, catalog: &Catalog) -> Result<Planned, String> {
    let Machines { kind, nodes } = machines;
    let layout: Layout = arguments.layout.parse().map_err(|error| format!("{error}"))?;
    let source = Source::new("the configuration in the log", &arguments.config);
    let model = from_config(source).map_err(|error| error.to_string())?;
    let one = Hardware::from_kind(kind, catalog).map_err(|error| error.to_string())?;
    let gpus = u32::try_from(layout.world()).unwrap_or(u32::MAX);
    if gpus > kind.accelerators.saturating_mul(*nodes) {
        return Err(format!("{} is for {gpus} GPUs, and the job has fewer", arguments.layout));
    }
    let hardware = Hardware { gpus, ..one };
    let workload = Workload {
        sequence: arguments.sequence,
        global_batch: arguments.global_batch,
        stack: stack(&arguments.trainer),
        ..Workload::default()
    };
    let step = predict(&model, &hardware, &layout, &workload, &Constants::builtin())
        .map_err(|error| error.to_string())?;
    let source =
        format!("the plan of {layout} on {nodes} x {}, from the log of {}", kind.name, arguments.trainer);
    Ok(Planned { breakdown: step.time, source })
}

/// Programs as their users run them: without recipes for one model.
pub(crate) fn stack(trainer: &str) -> Stack {
    match trainer {
        "megatron" => Stack::MegatronStock,
        _ => Stack::Fsdp,
    }
}

#[cfg(test)]
mod tests {
    use bedplate_topology::Cluster;

    use super::*;

    fn arguments(layout: &str) -> RunArguments {
        let config = r#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"max_position_embeddings":8192}"#;
        RunArguments {
            trainer: "megatron".into(),
            config: config.into(),
            layout: layout.into(),
            sequence: 8192,
            global_batch: 128,
            steps: None,
        }
    }

    #[test]
    fn a_log_and_its_nodes_give_a_plan_or_a_reason() {
        let catalog = Catalog::builtin();
        let cluster = Cluster::from_spec("p5.48xlarge:2", &catalog).unwrap();
        let machines = Machines { kind: cluster.kinds()[0].clone(), nodes: 2 };
        let planned = plan_of(&arguments("dp8.tp2.mb1.sp.zero1"), &machines, &catalog).unwrap();
        // 128 sequences of 8,192 tokens of an 8B model on 16 H100: 0.4 PFLOP/s a GPU make some eight seconds.
        let seconds = planned.breakdown.total().get();
        assert!((5.0..16.0).contains(&seconds), "{seconds}");
        assert!(
            planned.source.ends_with("on 2 x p5.48xlarge, from the log of megatron"),
            "{}",
            planned.source
        );
        let why = plan_of(&arguments("dp64"), &machines, &catalog).unwrap_err();
        assert!(why.contains("64 GPUs"), "{why}");
        assert!(plan_of(&arguments("dp8.pp99"), &machines, &catalog).is_err());
        let other = RunArguments { config: "{}".into(), ..arguments("dp16") };
        assert!(plan_of(&other, &machines, &catalog).is_err());
    }
}
