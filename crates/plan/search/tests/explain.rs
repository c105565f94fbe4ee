//! Explanations: ranked, refused, too large; remedies and what-ifs.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use bedplate_breakdown::Part;
use bedplate_catalog::Catalog;
use bedplate_layout::{Layout, LayoutRefusal, Recompute};
use bedplate_perf::Network;
use bedplate_search::{
    Axes, LayoutExplanation, LayoutVerdict, SearchAnswer, Setup, Space, WhatIf, WhatIfOutcome, explain,
    remedies, search, what_if, what_if_best,
};
use support::bench;

fn explained(setup: &Setup<'_>, layout: &str, questions: &[WhatIf]) -> (SearchAnswer, LayoutExplanation) {
    let axes = Axes::default();
    let space = Space::new(setup, &axes).unwrap();
    let answer = search(setup, &axes, 20).unwrap();
    let explanation = explain(setup, &space, &answer, &layout.parse().unwrap(), questions).unwrap();
    (answer, explanation)
}

#[test]
fn the_best_layout_has_rank_one_and_loses_nothing() {
    let bench = bench("llama-3-8b", "p5.48xlarge:4", 8192, 64);
    let setup = bench.setup();
    let best = search(&setup, &Axes::default(), 1).unwrap().best[0].layout.to_string();
    let (_, explanation) = explained(&setup, &best, &[]);
    let LayoutVerdict::Runs { rank, ratio, losses, limit, .. } = explanation.verdict else { panic!() };
    assert_eq!((rank, ratio), (1, 1.0));
    assert!(losses.is_empty());
    assert_eq!(limit, Some(Part::Compute));
}

#[test]
fn a_slower_layout_says_where_its_time_goes() {
    let bench = bench("llama-3-8b", "p5.48xlarge:4", 8192, 64);
    let (answer, explanation) = explained(&bench.setup(), "dp4.tp8.sp.zero1.recompute-full", &[]);
    let LayoutVerdict::Runs { rank, of, ratio, losses, step, .. } = explanation.verdict else { panic!() };
    assert!(rank > 20 && rank <= of, "{rank} of {of}");
    assert_eq!(of, answer.counts.fits + answer.counts.tight);
    assert!(ratio > 1.1, "{ratio}");
    let lost: f64 = losses.iter().map(|loss| loss.seconds.get()).sum();
    assert!((lost - (step.seconds() - explanation.best.seconds).get()).abs() < 1e-9);
    assert!(losses.is_sorted_by(|a, b| a.seconds >= b.seconds));
}

#[test]
fn a_refused_layout_gives_every_reason_and_the_nearest_that_works() {
    let bench = bench("llama-3-8b", "p5.48xlarge:4", 8192, 64);
    let (_, explanation) = explained(&bench.setup(), "dp2.tp16.vpp3.zero1", &[WhatIf::WithoutRdma]);
    let LayoutVerdict::Refused { refusals, nearest } = explanation.verdict else { panic!() };
    assert!(refusals.contains(&LayoutRefusal::VirtualStagesAlone { virtual_stages: 3 }), "{refusals:?}");
    let nearest = nearest.unwrap();
    assert_eq!(nearest.changed, ["vpp"]);
    assert_eq!(nearest.candidate.layout.tensor, 16);
    assert!(explanation.counterfactuals.is_empty());
}

#[test]
fn a_layout_that_is_too_large_says_by_how_much_and_what_would_help() {
    let bench = bench("llama-3-70b", "p5.48xlarge:8", 8192, 128);
    let setup = bench.setup();
    let (_, explanation) = explained(&setup, "dp16.tp4.sp", &[WhatIf::MemoryTimes(100.0)]);
    let LayoutVerdict::DoesNotFit { step, over, largest, remedies } = explanation.verdict else { panic!() };
    assert_eq!(over.get(), step.memory.total().get() - setup.hardware.memory);
    assert_eq!(largest.0, "optimizer");
    assert!(!remedies.is_empty());
    for remedy in &remedies {
        assert!(setup.predict(&remedy.candidate.layout).unwrap().fit.is_possible());
        assert!(!remedy.changed.is_empty());
    }
    assert!(
        matches!(explanation.counterfactuals[0].outcome, WhatIfOutcome::Runs { ratio, .. } if ratio == 1.0)
    );
}

#[test]
fn remedies_change_as_little_as_possible() {
    let bench = bench("llama-3-8b", "p5.48xlarge:1", 8192, 32);
    let setup = bench.setup();
    let layout = Layout { data: 8, micro_batch: 4, ..Layout::default() };
    let found = remedies(&setup, &layout, 10);
    assert!(!found.is_empty());
    let fewest = found[0].changed.len();
    assert!(found.iter().all(|remedy| remedy.changed.len() <= fewest.max(4)));
    assert!(found.is_sorted_by(|a, b| a.candidate.rank_order(&b.candidate).is_le()));
}

#[test]
fn worlds_differ_in_the_direction_they_should() {
    let bench = bench("llama-3-70b", "p5.48xlarge:32", 8192, 256);
    let setup = bench.setup();
    let layout: Layout = "dp32.tp8.sp.zero3".parse().unwrap();
    let ratio = |what: &WhatIf| match what_if(&setup, &layout, what).unwrap().outcome {
        WhatIfOutcome::Runs { ratio, .. } => ratio,
        other => panic!("{what}: {other:?}"),
    };
    assert!(ratio(&WhatIf::WithoutRdma) > 1.0);
    assert!(ratio(&WhatIf::ScaleOutTimes(2.0)) <= 1.0);
    assert!(ratio(&WhatIf::Network(Network::EfaV4)) <= 1.0);
    assert!(ratio(&WhatIf::Domain(72)) <= 1.0);
    assert_eq!(ratio(&WhatIf::MemoryTimes(2.0)), 1.0);
    assert!(ratio(&WhatIf::OffloadOptimizer { over: None }) >= 1.0);
    assert!(WhatIf::usual(&setup).len() >= 7);
}

#[test]
fn another_machine_is_priced_on_as_many_gpus_and_searched_when_asked() {
    let bench = bench("llama-3-70b", "p5.48xlarge:8", 8192, 128);
    let setup = bench.setup();
    let catalog = Catalog::builtin();
    let what = WhatIf::machine("p6-b200.48xlarge", &catalog).unwrap();
    let layout = search(&setup, &Axes::default(), 1).unwrap().best[0].layout;
    let there = what_if_best(&setup, &Axes::default(), &layout, &what).unwrap();
    let WhatIfOutcome::Runs { ratio, seconds, .. } = there.outcome else { panic!() };
    assert!(ratio < 0.75, "{ratio}");
    assert!(there.best.unwrap().seconds <= seconds);
    assert!(WhatIf::machine("u-p6e-gb200x72", &catalog).is_some());
    assert!(WhatIf::machine("no-such", &catalog).is_none());
}

#[test]
fn state_in_host_memory_lets_a_layout_fit() {
    let bench = bench("llama-3-70b", "p5.48xlarge:2", 4096, 128);
    let setup = bench.setup();
    let layout = Layout {
        data: 2,
        tensor: 8,
        is_sequence_parallel: true,
        recompute: Recompute::Full,
        sharding: "zero1".parse::<Layout>().unwrap().sharding,
        ..Layout::default()
    };
    let step = setup.predict(&layout).unwrap();
    assert!(!step.fit.is_possible(), "{step:?}");
    let offload = WhatIf::OffloadOptimizer { over: None };
    let over_link = what_if(&setup, &layout, &offload).unwrap().outcome;
    let c2c = WhatIf::offload_over_c2c(&Catalog::builtin()).unwrap();
    let over_c2c = what_if(&setup, &layout, &c2c).unwrap().outcome;
    let (WhatIfOutcome::Runs { seconds: pcie, .. }, WhatIfOutcome::Runs { seconds: c2c, .. }) =
        (&over_link, &over_c2c)
    else {
        panic!("{over_link:?} {over_c2c:?}")
    };
    assert!(c2c <= pcie);
}
