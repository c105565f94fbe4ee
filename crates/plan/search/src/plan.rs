//! A training plan: the best layouts, the one that is taken, and what was asked about it.

use bedplate_calibrate::{ErrorBars, Interval, Similar};
use bedplate_layout::Layout;
use bedplate_perf::PredictedStep;

use crate::{
    Axes, GpuScaling, LayoutExplanation, Priced, ScalingPoint, SearchAnswer, SearchError, Setup, Space,
    WhatIf, explain, scaling_curve, what_if_best,
};

/// What is asked of a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanOptions {
    /// The layout to take instead of the best one.
    pub layout: Option<Layout>,
    /// How many layouts are listed.
    pub top: usize,
    /// A layout to explain against the best one.
    pub explain: Option<Layout>,
    pub what_ifs: Vec<WhatIf>,
    pub scaling: Option<GpuScaling>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TrainingPlan {
    pub layout: Layout,
    pub step: PredictedStep,
    pub answer: SearchAnswer,
    /// The 80 % interval of throughput, as factors of the predicted one; unknown for chips without measured
    /// training runs.
    pub interval: Option<Interval>,
    pub explanation: Option<LayoutExplanation>,
    /// The layout in changed setups, with the best layout of each.
    pub sensitivity: Option<LayoutExplanation>,
    pub scaling: Vec<ScalingPoint>,
}

impl TrainingPlan {
    /// Searches `axes` once and the smaller `coarse` ones for every changed setup; `price` prices a space, which a
    /// caller may do on several cores.
    pub fn make(
        setup: &Setup<'_>,
        axes: &Axes,
        coarse: &Axes,
        options: &PlanOptions,
        price: impl Fn(&Space, usize) -> Priced,
    ) -> Result<Self, SearchError> {
        let space = Space::new(setup, axes)?;
        let answer = space.answer(setup, axes, price(&space, options.top))?;
        let layout = match options.layout {
            Some(layout) => setup.checked(layout)?,
            None => answer.best[0].layout,
        };
        let explained = |layout: &Layout| explain(setup, &space, &answer, layout, &WhatIf::usual(setup));
        let sensitivity = match options.what_ifs.as_slice() {
            [] => None,
            what_ifs => {
                let mut explanation = explain(setup, &space, &answer, &layout, &[])?;
                for what in what_ifs {
                    explanation.counterfactuals.push(what_if_best(setup, coarse, &layout, what)?);
                }
                Some(explanation)
            }
        };
        let generation = setup.hardware.generation;
        let interval = generation
            .is_fitted()
            .then(|| ErrorBars::builtin().interval(Similar::of(setup.model, &layout), generation));
        Ok(Self {
            layout,
            step: setup.predict(&layout)?,
            interval,
            explanation: options.explain.as_ref().map(explained).transpose()?,
            sensitivity,
            scaling: options.scaling.map_or(Vec::new(), |kind| scaling_curve(setup, coarse, kind)),
            answer,
        })
    }
}

#[cfg(test)]
mod tests {
    use bedplate_catalog::Catalog;
    use bedplate_perf::{Constants, Hardware, Workload};
    use bedplate_topology::Cluster;
    use bedplate_transformer::builtin;

    use super::*;

    fn plan(options: &PlanOptions) -> Result<TrainingPlan, SearchError> {
        let catalog = Catalog::builtin();
        let cluster = Cluster::from_spec("p5.48xlarge:2", &catalog).unwrap();
        let (model, constants) = (builtin("llama-3.1-8b").unwrap(), Constants::builtin());
        let setup = Setup {
            model: &model,
            hardware: Hardware::from_cluster(&cluster, &catalog).unwrap(),
            workload: Workload { sequence: 8192, global_batch: 64, ..Workload::default() },
            constants: &constants,
        };
        let axes = setup.small_axes(Default::default());
        TrainingPlan::make(&setup, &axes, &axes, options, |space, top| space.price(space.whole(), top))
    }

    #[test]
    fn a_plan_takes_the_best_layout_or_the_one_that_is_asked_for() {
        let best = plan(&PlanOptions { top: 3, ..PlanOptions::default() }).unwrap();
        assert_eq!(best.layout, best.answer.best[0].layout);
        assert!(best.interval.is_some() && best.sensitivity.is_none() && best.scaling.is_empty());
        let layout = "dp16.zero3".parse().unwrap();
        let asked = PlanOptions { layout: Some(layout), top: 1, ..PlanOptions::default() };
        assert_eq!(plan(&asked).unwrap().layout.world(), 16);
    }

    #[test]
    fn a_layout_that_breaks_a_rule_is_refused_with_the_rule() {
        let layout = "dp3.tp3".parse().unwrap();
        let asked = PlanOptions { layout: Some(layout), top: 1, ..PlanOptions::default() };
        let refused = plan(&asked).unwrap_err();
        assert!(matches!(refused, SearchError::RefusedLayout { .. }), "{refused}");
    }

    #[test]
    fn the_scaling_curve_goes_from_an_eighth_to_eight_times() {
        let asked = PlanOptions { scaling: Some(GpuScaling::Strong), top: 1, ..PlanOptions::default() };
        let counts: Vec<u32> = plan(&asked).unwrap().scaling.iter().map(|point| point.gpus).collect();
        assert_eq!(counts, [2, 4, 8, 16, 32, 64, 128]);
    }
}
