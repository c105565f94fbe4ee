//! Questions without an answer name the nearest one that has.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use bedplate_diag::{Diagnostic, render_text};
use bedplate_perf::{Hardware, Workload};
use bedplate_search::{Axes, Nearest, SearchError, Setup, fits_on, search};
use bedplate_transformer::{Attention, Transformer, builtin};
use expect_test::{Expect, expect};
use support::{Bench, bench};

fn check(setup: &Setup<'_>, axes: &Axes, expected: Expect) -> SearchError {
    let error = search(setup, axes, 1).unwrap_err();
    expected.assert_eq(&format!("{}\n", error.page().code));
    error
}

fn nearest_gpus(error: &SearchError) -> Vec<u32> {
    let (SearchError::TooManyGpus { nearest, .. }
    | SearchError::NoLayout { nearest, .. }
    | SearchError::DoesNotFit { nearest, .. }) = error
    else {
        panic!("{error}")
    };
    nearest
        .iter()
        .filter_map(|each| match each {
            Nearest::Gpus(gpus) => Some(*gpus),
            _ => None,
        })
        .collect()
}

#[test]
fn no_gpus_at_all() {
    let bench = bench("llama-3-8b", "p5.48xlarge:1", 8192, 64);
    check(&bench.setup().with_gpus(0), &Axes::default(), expect![["plan/zero-gpus\n"]]);
}

#[test]
fn an_empty_batch_is_refused() {
    let bench = bench("llama-3-8b", "p5.48xlarge:1", 8192, 64);
    let setup = Setup { workload: Workload { global_batch: 0, ..bench.workload }, ..bench.setup() };
    check(&setup, &Axes::default(), expect![["plan/empty-step\n"]]);
}

#[test]
fn a_billion_gpus_are_refused_with_the_largest_number_that_works() {
    let bench = bench("llama-3.1-405b", "p5.48xlarge:2", 8192, 2048);
    let error =
        check(&bench.setup().with_gpus(1_000_000_000), &Axes::default(), expect![["plan/too-many-gpus\n"]]);
    let gpus = nearest_gpus(&error);
    assert!(!gpus.is_empty(), "{}", render_text(&error));
    for count in gpus {
        assert!(search(&bench.setup().with_gpus(count), &Axes::default().clone(), 1).is_ok(), "{count}");
    }
}

#[test]
fn a_model_that_is_too_large_names_the_smallest_cluster_that_holds_it() {
    let bench = bench("llama-3.1-405b", "p5.48xlarge:1", 8192, 64);
    let setup = bench.setup();
    let axes = Axes::default();
    let error = check(&setup, &axes, expect![["plan/does-not-fit\n"]]);
    let [gpus] = nearest_gpus(&error)[..] else { panic!("{error}") };
    assert!(fits_on(&setup, &axes, gpus));
    assert!((40..400).contains(&gpus), "{gpus}");
    assert!(search(&setup.with_gpus(gpus), &axes, 1).is_ok());
    let half = setup.with_gpus(gpus / 2);
    assert!(search(&half, &axes, 1).is_err());
}

#[test]
fn memory_that_would_do_is_named_and_does() {
    let bench = bench("llama-3-70b", "p5.48xlarge:1", 8192, 64);
    let error = check(&bench.setup(), &Axes::default(), expect![["plan/does-not-fit\n"]]);
    let SearchError::DoesNotFit { nearest, .. } = &error else { panic!("{error}") };
    let memory = nearest.iter().find_map(|each| match each {
        Nearest::Memory(memory) => Some(*memory),
        _ => None,
    });
    let hardware = Hardware { memory: memory.unwrap().get(), ..bench.hardware };
    assert!(search(&Setup { hardware, ..bench.setup() }, &Axes::default(), 1).is_ok());
}

/// A model like Llama-3 8B with seven heads, which no even number of tensor ranks divides.
fn seven_heads() -> Bench {
    let mut shape = builtin("llama-3-8b").unwrap().into_shape();
    for run in &mut shape.runs {
        let Attention::GroupedQuery(attention) = &mut run.layer.attention else { panic!("grouped") };
        attention.heads = 7;
        attention.kv_heads = 7;
    }
    Bench { model: Transformer::new(shape).unwrap(), ..bench("llama-3-8b", "p5.48xlarge:1", 8192, 64) }
}

#[test]
fn heads_that_no_tensor_degree_divides_still_train_without_tensor_parallelism() {
    let bench = seven_heads();
    let answer = search(&bench.setup(), &Axes::default(), 5).unwrap();
    assert!(answer.best.iter().all(|candidate| candidate.layout.tensor == 1));
    let refused = answer.refusals.iter().any(|count| count.refusal.to_string().contains("7 attention heads"));
    assert!(refused);
}

#[test]
fn a_tensor_degree_that_was_asked_for_and_does_not_divide_names_those_that_do() {
    let bench = seven_heads();
    let axes = Axes { tensor: Some(vec![8]), ..Axes::default() };
    let error = check(&bench.setup(), &axes, expect![["plan/no-layout\n"]]);
    assert!(render_text(&error).contains("the model allows tp1, tp7"), "{}", render_text(&error));
}

#[test]
fn a_count_whose_factors_fit_nothing_names_its_neighbours() {
    let bench = bench("llama-3-8b", "p5.48xlarge:1", 8192, 64);
    let error = check(&bench.setup().with_gpus(8 * 37), &Axes::default(), expect![["plan/no-layout\n"]]);
    let gpus = nearest_gpus(&error);
    assert_eq!(gpus.len(), 2, "{}", render_text(&error));
    assert!(gpus.iter().any(|count| *count < 296) && gpus.iter().any(|count| *count > 296), "{gpus:?}");
}
