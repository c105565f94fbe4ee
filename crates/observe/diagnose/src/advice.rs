//! What would make a healthy run faster, and by how much.
//!
//! Two sources, both fed with what the run itself measured. Parts of a step that should be hidden and are not (data, host,
//! communication) say at most what is to be gained there. Other layouts are priced by the performance model, each part scaled by what
//! this run measured over what the model says of its present layout; so a model that is wrong about this machine in general is
//! not wrong about the difference.
//!
//! A lever's gain has an interval: each part that it changes is right to within the band of a prediction. One whose
//! interval holds no gain is left out: a choice within the error is a tie.

use bedplate_breakdown::{Breakdown, Measured, Part, Predicted};
use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_layout::{Batch, Layout, Recompute};
use bedplate_perf::{Constants, Hardware, Problem, Workload};
use bedplate_report::{Expectation, RunArguments};
use bedplate_transformer::{Transformer, from_config};
use serde::Serialize;

use crate::planned::{Machines, stack};

/// One thing to change, and the share of a step that it saves.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lever {
    pub what: String,
    /// 0.1 for steps that are a tenth shorter.
    pub gain: f64,
    pub low: f64,
    pub high: f64,
    /// What that rests on.
    pub because: String,
}

/// Gains below this are not worth a restart.
const LEAST: f64 = 0.02;
const MOST_LEVERS: usize = 6;
/// A measured part over a predicted one is believed within this.
const RATIOS: std::ops::RangeInclusive<f64> = 0.25..=4.0;

/// Levers that the parts of a step show by themselves.
pub fn levers_of_parts(
    measured: &Breakdown<Measured>,
    predicted: Option<&Breakdown<Predicted>>,
) -> Vec<Lever> {
    let whole = measured.total().get();
    if whole <= 0.0 {
        return Vec::new();
    }
    let mut levers = Vec::new();
    let mut add = |part: Part, what: &str, why: &str| {
        let now = measured[part].exposed.get();
        let should = predicted.map_or(0.0, |predicted| predicted[part].exposed.get());
        let most = (now - should).max(0.0) / whole;
        if most >= LEAST {
            levers.push(Lever {
                what: what.to_owned(),
                gain: most / 2.0,
                low: 0.0,
                high: most,
                because: format!("{:.0} % of a step is {why}", 100.0 * now / whole),
            });
        }
    };
    add(
        Part::Storage,
        "more loader workers, or batches read further ahead",
        "waiting for data, which can be hidden",
    );
    add(
        Part::Host,
        "fewer and larger operators: compiled or captured steps, fewer synchronisations",
        "the host's own work",
    );
    add(
        Part::ScaleOut,
        "more overlap between nodes: larger buckets, prefetching of weights",
        "communication between nodes that computing does not hide",
    );
    add(
        Part::ScaleUp,
        "more overlap within a node, or fewer ranks that split a layer",
        "communication within nodes that computing does not hide",
    );
    add(
        Part::Bubble,
        "more micro-batches for each step, or more chunks for each stage",
        "ranks waiting for other stages",
    );
    levers
}

/// Levers that other layouts of the same run are.
pub fn levers_of_layouts(
    arguments: &RunArguments,
    machines: &Machines,
    measured: &Breakdown<Measured>,
    catalog: &Catalog,
) -> Result<Vec<Lever>, String> {
    let layout: Layout = arguments.layout.parse().map_err(|error| format!("{error}"))?;
    let model =
        from_config(Source::new("the run's model", &arguments.config)).map_err(|error| error.to_string())?;
    let one = Hardware::from_kind(&machines.kind, catalog).map_err(|error| error.to_string())?;
    let hardware = Hardware { gpus: u32::try_from(layout.world()).unwrap_or(u32::MAX), ..one };
    let workload = Workload {
        sequence: arguments.sequence,
        global_batch: arguments.global_batch,
        stack: stack(&arguments.trainer),
        ..Workload::default()
    };
    let problem = Problem::new(&model, &hardware, &workload, &Constants::builtin())
        .map_err(|error| error.to_string())?;
    of_problem(&problem, &model, &layout, measured)
}

/// The same for anything that can be priced.
fn of_problem(
    problem: &Problem,
    model: &Transformer,
    layout: &Layout,
    measured: &Breakdown<Measured>,
) -> Result<Vec<Lever>, String> {
    let present = problem.predict(layout).map_err(|error| error.to_string())?.time;
    let scale = Scale::of(measured, &present);
    let now = scale.step(&present);
    let mut levers: Vec<Lever> = neighbours(layout)
        .into_iter()
        .filter(|other| is_legal(other, model, problem))
        .filter_map(|other| {
            let step = problem.predict(&other).ok().filter(|step| step.fit.is_possible())?;
            scale.lever(layout, &other, &present, &step.time, now)
        })
        .collect();
    levers.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    levers.truncate(MOST_LEVERS);
    Ok(levers)
}

/// What this run measures over what the model says, by part.
struct Scale([f64; Part::ALL.len()]);

impl Scale {
    fn of(measured: &Breakdown<Measured>, predicted: &Breakdown<Predicted>) -> Self {
        let whole = measured.total() / predicted.total();
        Self(Part::ALL.map(|part| {
            let (is, should) = (measured[part].exposed, predicted[part].exposed);
            // A part that either side does not have is scaled as the whole.
            let ratio = if is.is_zero() || should.is_zero() { whole } else { is / should };
            ratio.clamp(*RATIOS.start(), *RATIOS.end())
        }))
    }

    fn part(&self, of: &Breakdown<Predicted>, part: Part) -> f64 {
        of[part].exposed.get() * self.0[part as usize]
    }

    fn step(&self, of: &Breakdown<Predicted>) -> f64 {
        Part::ALL.into_iter().map(|part| self.part(of, part)).sum()
    }

    fn lever(
        &self,
        layout: &Layout,
        other: &Layout,
        present: &Breakdown<Predicted>,
        then: &Breakdown<Predicted>,
        now: f64,
    ) -> Option<Lever> {
        let saved = now - self.step(then);
        let changes = |part: &Part| self.part(present, *part) - self.part(then, *part);
        let doubt: f64 = Part::ALL.iter().map(|part| Expectation::WITHIN * changes(part).abs()).sum();
        let (gain, low, high) = (saved / now, (saved - doubt) / now, (saved + doubt) / now);
        if gain < LEAST || low <= 0.0 {
            return None;
        }
        let most = Part::ALL.into_iter().max_by(|a, b| changes(a).total_cmp(&changes(b)))?;
        Some(Lever {
            what: format!("{other} instead of {layout}"),
            gain,
            low,
            high,
            because: format!("{most} would take {:.0} ms less of a step", 1e3 * changes(&most)),
        })
    }
}

fn is_legal(layout: &Layout, model: &Transformer, problem: &Problem) -> bool {
    let workload = problem.workload();
    let batch = Batch { sequence: workload.sequence, global_batch: workload.global_batch };
    layout.refusals(model, Some(u64::from(problem.hardware().gpus)), Some(batch)).is_empty()
}

/// Layouts that differ by one decision: the micro-batch, what is computed again, or a factor of two between two dimensions.
fn neighbours(layout: &Layout) -> Vec<Layout> {
    let mut found = Vec::new();
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
        found.push(Layout { recompute, ..*layout });
    }
    found.push(Layout { micro_batch: layout.micro_batch * 2, ..*layout });
    if layout.micro_batch.is_multiple_of(2) {
        found.push(Layout { micro_batch: layout.micro_batch / 2, ..*layout });
    }
    type Dimension = fn(&mut Layout) -> &mut u32;
    let dimensions: [Dimension; 4] = [
        |layout| &mut layout.data,
        |layout| &mut layout.tensor,
        |layout| &mut layout.pipeline,
        |layout| &mut layout.context,
    ];
    for (at, from) in dimensions.iter().enumerate() {
        for (_, to) in dimensions.iter().enumerate().filter(|(other, _)| *other != at) {
            let mut other = *layout;
            if !from(&mut other).is_multiple_of(2) {
                continue;
            }
            *from(&mut other) /= 2;
            *to(&mut other) *= 2;
            other.is_sequence_parallel = layout.is_sequence_parallel && other.tensor > 1;
            found.push(other);
        }
    }
    found.retain(|other| other != layout);
    found
}

#[cfg(test)]
mod tests {
    use bedplate_breakdown::Span;
    use bedplate_topology::Cluster;
    use bedplate_units::Seconds;

    use super::*;

    const LLAMA: &str = r#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"max_position_embeddings":8192}"#;

    fn machines(catalog: &Catalog) -> Machines {
        let cluster = Cluster::from_spec("p5.48xlarge:4", catalog).unwrap();
        Machines { kind: cluster.kinds()[0].clone(), nodes: 4 }
    }

    fn levers(layout: &str, slower: f64) -> Vec<Lever> {
        let catalog = Catalog::builtin();
        let arguments = RunArguments {
            trainer: "megatron".into(),
            config: LLAMA.into(),
            layout: layout.into(),
            sequence: 8192,
            global_batch: 256,
            steps: None,
        };
        let planned = crate::plan_of(&arguments, &machines(&catalog), &catalog).unwrap();
        let mut measured = Breakdown::<Measured>::default();
        for (part, span) in planned.breakdown.parts() {
            measured[part] = span * slower;
        }
        levers_of_layouts(&arguments, &machines(&catalog), &measured, &catalog).unwrap()
    }

    #[test]
    fn what_is_computed_again_without_need_is_the_first_lever() {
        let found = levers("dp8.tp4.sp.zero1.recompute-full", 1.1);
        let first = &found[0];
        assert!(
            first.gain > 0.05 && first.low > 0.0 && first.low < first.gain && first.gain < first.high,
            "{found:?}"
        );
        assert!(
            found.iter().any(|lever| !lever.what.starts_with("dp8.tp4.sp.zero1.recompute-full")
                && !lever.what.contains("recompute-full instead")),
            "{found:?}"
        );
    }

    #[test]
    fn a_gain_is_a_share_whatever_the_machine_measures() {
        let (fast, slow) =
            (levers("dp8.tp4.sp.zero1.recompute-full", 1.0), levers("dp8.tp4.sp.zero1.recompute-full", 2.0));
        assert_eq!(fast.len(), slow.len());
        assert!((fast[0].gain - slow[0].gain).abs() < 1e-9);
    }

    #[test]
    fn parts_that_should_be_hidden_say_at_most_what_is_to_be_gained() {
        let exposed = |seconds: f64| Span::exposed(Seconds::new(seconds));
        let measured =
            Breakdown::default().with(Part::Compute, exposed(0.8)).with(Part::Storage, exposed(0.2));
        let found = levers_of_parts(&measured, None);
        let [loader] = &found[..] else { panic!("{found:?}") };
        assert_eq!((loader.low, loader.high), (0.0, 0.2));
        assert!(loader.what.contains("loader workers"));
        assert_eq!(levers_of_parts(&Breakdown::default(), None), []);
    }
}
