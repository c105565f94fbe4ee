//! The space holds every legal layout once and nothing else, and is priced as `predict` prices.

mod support;

use std::collections::BTreeSet;

use bedplate_layout::{ComputePrecision, Layout, Recompute, Sharding};
use bedplate_perf::{Grid, LayerKey};
use bedplate_search::{Axes, LayoutCandidate, Space, search};
use support::{bench, draws};

#[test]
fn every_layout_of_a_space_is_legal_and_listed_once() {
    for (model, cluster, sequence, batch) in [
        ("llama-3-8b", "p5.48xlarge:3", 8192, 96),
        ("mixtral-8x7b", "p5.48xlarge:1", 4096, 24),
        ("gpt3-175b", "p4de.24xlarge:4", 2048, 36),
    ] {
        let bench = bench(model, cluster, sequence, batch);
        let setup = bench.setup();
        let space = Space::new(&setup, &Axes::default()).unwrap();
        let mut spellings = BTreeSet::new();
        for layout in space.layouts() {
            let refusals = layout.refusals(setup.model, Some(setup.gpus().into()), Some(setup.batch()));
            assert_eq!(refusals, [], "{layout}");
            assert!(Axes::default().contains(&layout), "{layout}");
            assert!(spellings.insert(layout.to_string()), "{layout} twice");
        }
        assert_eq!(spellings.len() as u64, space.len());
    }
}

/// Every combination of small degrees, by brute force and the rules alone.
#[test]
fn a_space_misses_no_legal_layout() {
    let bench = bench("mixtral-8x7b", "p5.48xlarge:2", 4096, 8);
    let setup = bench.setup();
    let axes = Axes { recompute: vec![Recompute::None], ..Axes::default() };
    let space = Space::new(&setup, &axes).unwrap();
    let found: BTreeSet<String> = space.layouts().map(|layout| layout.to_string()).collect();
    let mut legal = BTreeSet::new();
    let degrees = [1, 2, 3, 4, 8, 16, 32];
    for data in degrees {
        for tensor in degrees {
            for context in degrees {
                for (pipeline, expert) in degrees.iter().flat_map(|p| degrees.map(|e| (*p, e))) {
                    if data * tensor * context * pipeline != setup.gpus() {
                        continue;
                    }
                    let trunk = Layout { data, tensor, context, pipeline, expert, ..Layout::default() };
                    legal.extend(
                        variants(trunk)
                            .filter(|layout| {
                                layout.refusals(setup.model, Some(16), Some(setup.batch())).is_empty()
                            })
                            .map(|layout| layout.to_string()),
                    );
                }
            }
        }
    }
    let missing: Vec<_> = legal.difference(&found).collect();
    let extra: Vec<_> = found.difference(&legal).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing {missing:?}, extra {extra:?}");
    assert!(legal.len() > 1000, "{}", legal.len());
}

fn variants(trunk: Layout) -> impl Iterator<Item = Layout> {
    let small = [1, 2, 4, 8, 16, 32];
    let shardings = |ranks: u32, tensor: u32| {
        let mut shardings = vec![Sharding::None];
        if ranks > 1 {
            shardings.extend([Sharding::Optimizer, Sharding::Gradients, Sharding::Weights]);
            let groups = (2..ranks).filter(move |group| (group * tensor).is_multiple_of(8));
            shardings.extend(groups.map(Sharding::WeightsWithin));
        }
        shardings
    };
    let mut variants = Vec::new();
    for expert_tensor in small {
        for virtual_stages in small {
            for micro_batch in small {
                for is_sequence_parallel in [false, true] {
                    for sharding in shardings(trunk.data * trunk.context, trunk.tensor) {
                        variants.push(Layout {
                            expert_tensor,
                            virtual_stages,
                            micro_batch,
                            is_sequence_parallel,
                            sharding,
                            ..trunk
                        });
                    }
                }
            }
        }
    }
    variants.into_iter()
}

#[test]
fn a_thousand_random_layouts_are_priced_as_predict_prices_them() {
    for (model, cluster, sequence, batch) in
        [("llama-3.1-405b", "p5.48xlarge:2048", 8192, 2048), ("deepseek-v3", "p5en.48xlarge:16", 4096, 512)]
    {
        let bench = bench(model, cluster, sequence, batch);
        let setup = bench.setup();
        let axes = Axes { precision: vec![ComputePrecision::Bf16, ComputePrecision::Fp8], ..Axes::default() };
        let space = Space::new(&setup, &axes).unwrap();
        for index in draws(3, space.len()).take(1000) {
            let layout = space.layout(index).unwrap();
            let step = setup.predict(&layout).unwrap();
            let costs = space.problem().layer_costs(LayerKey::of(&layout));
            let grid = Grid::of(&layout);
            assert_eq!(space.problem().memory(&costs, &grid), step.memory, "{layout}");
            assert_eq!(space.problem().seconds(&costs, &grid), step.seconds().get(), "{layout}");
        }
    }
}

#[test]
fn slices_merge_to_the_same_answer_in_any_order() {
    let bench = bench("llama-3-8b", "p5.48xlarge:4", 8192, 64);
    let setup = bench.setup();
    let axes = Axes::default();
    let whole = search(&setup, &axes, 25).unwrap();
    let space = Space::new(&setup, &axes).unwrap();
    for parts in [1, 2, 3, 7, 100_000] {
        let slices = space.slices(parts);
        assert!(slices.len() <= parts);
        let priced = slices.into_iter().rev().map(|slice| space.price(slice, 25));
        let priced = priced.reduce(|a, b| a.merge(b)).unwrap();
        assert_eq!(priced.counts.priced, space.len());
        assert_eq!(space.answer(&setup, &axes, priced).unwrap(), whole);
    }
}

#[test]
fn the_best_is_the_best_of_all_and_ranks_count_from_it() {
    let bench = bench("llama-3-8b", "p5.48xlarge:2", 8192, 32);
    let setup = bench.setup();
    let answer = search(&setup, &Axes::default(), 40).unwrap();
    let space = Space::new(&setup, &Axes::default()).unwrap();
    let priced: Vec<LayoutCandidate> =
        space.layouts().map(|layout| setup.candidate(&layout, &setup.predict(&layout).unwrap())).collect();
    let fitting = || priced.iter().filter(|candidate| candidate.fit.is_possible());
    assert_eq!(fitting().map(LayoutCandidate::weighted).min(), Some(answer.best[0].weighted()));
    assert_eq!(fitting().map(|candidate| candidate.seconds).min(), Some(answer.front[0].seconds));
    assert!(answer.best.is_sorted_by(|a, b| a.rank_order(b).is_lt()));
    assert_eq!(space.count_better(space.whole(), &answer.best[0]), 0);
    assert!(space.count_better(space.whole(), &answer.best[39]) >= 39);
    let counts = answer.counts;
    assert_eq!(counts.priced, counts.fits + counts.tight + counts.too_large);
}

#[test]
fn refusals_are_counted_by_rule_with_an_example_that_breaks_it() {
    let bench = bench("llama-3.1-405b", "p5.48xlarge:48", 8192, 96);
    let setup = bench.setup();
    let space = Space::new(&setup, &Axes::default()).unwrap();
    assert!(space.refusals().iter().count() >= 3, "{:?}", space.refusals());
    for count in space.refusals().iter() {
        let broken = count.example.refusals(setup.model, None, Some(setup.batch()));
        assert!(broken.contains(&count.refusal), "{count:?} breaks {broken:?}");
    }
}

/// Measured on these: the coarse space loses at most 3 %, the practical one nothing.
#[test]
fn smaller_spaces_hold_a_layout_near_the_best() {
    for (model, cluster, sequence, batch) in [
        ("llama-3-8b", "p5.48xlarge:4", 8192, 64),
        ("llama-3-70b", "p5.48xlarge:16", 8192, 256),
        ("gpt3-175b", "p4de.24xlarge:16", 2048, 256),
        ("mixtral-8x7b", "p5.48xlarge:4", 4096, 128),
    ] {
        let bench = bench(model, cluster, sequence, batch);
        let best = |axes: &Axes| search(&bench.setup(), axes, 1).unwrap().best[0].seconds;
        let complete = best(&Axes::default());
        let (coarse, practical) = (best(&Axes::coarse(8)) / complete, best(&Axes::practical(8)) / complete);
        assert!(coarse <= 1.03, "{model}: {coarse}");
        assert!(practical <= 1.001, "{model}: {practical}");
    }
}
