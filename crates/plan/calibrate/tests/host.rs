//! Rates of a host against runs whose truth is known, because another host's rates made them.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use bedplate_breakdown::{Breakdown, Measured, Span};
use bedplate_calibrate::{HostCase, fit_host};
use bedplate_catalog::{Accelerator, Catalog};
use bedplate_diag::Source;
use bedplate_layout::{ComputePrecision, Layout, Recompute};
use bedplate_perf::{HostRun, PeerCopies, Task, predict_on_host};
use bedplate_transformer::builtin;

fn host() -> Accelerator {
    let text = include_str!("../../../app/bedplate/tests/inputs/host-ranks.toml");
    let catalog = Catalog::with_overlays(&[Source::new("host.toml", text)]).unwrap();
    catalog.accelerator("host").unwrap().clone()
}

/// A host on which everything takes longer, by part.
fn slower(compute: f64, memory: f64, optimizer: f64) -> Accelerator {
    let mut host = host();
    let rates = host.measured.as_mut().unwrap();
    rates.optimizer = rates.optimizer / optimizer;
    let format = rates.fp32.as_mut().unwrap();
    for rate in [
        &mut format.products,
        &mut format.input_gradients,
        &mut format.weight_gradients,
        &mut format.attention,
        &mut format.attention_backward,
    ] {
        *rate = *rate / compute;
    }
    format.stream = format.stream / memory;
    format.stream_in_cache = format.stream_in_cache / memory;
    host
}

/// A run of a model as it would go on `truth`.
fn case(model: &str, micro_batch: u32, recompute: Recompute, truth: &Accelerator) -> HostCase {
    let model = builtin(model).unwrap();
    let run = HostRun {
        sequence: 256,
        global_batch: 8,
        micro_batch,
        precision: ComputePrecision::Fp32,
        recompute,
        task: Task::Pretrain,
        copies: PeerCopies::None,
        layout: Layout::ONE,
    };
    let step = predict_on_host(&model, truth, &run).unwrap();
    let mut measured = Breakdown::<Measured>::default();
    for (part, span) in step.time.parts() {
        measured = measured.with(part, Span::exposed(span.exposed));
    }
    HostCase { id: format!("{} mb{micro_batch}", model.name), model, run, measured }
}

fn cases(truth: &Accelerator) -> Vec<HostCase> {
    vec![
        case("gpt2", 1, Recompute::None, truth),
        case("gpt2", 4, Recompute::Full, truth),
        case("qwen2.5-0.5b", 2, Recompute::None, truth),
        case("gpt2-medium", 2, Recompute::Selective, truth),
    ]
}

#[test]
fn runs_on_a_slower_host_move_each_rate_to_where_it_is() {
    let truth = slower(1.5, 2.0, 0.8);
    let fit = fit_host(&cases(&truth), &host());
    assert!(fit.error_before > 0.2, "{}", fit.error_before);
    assert!(fit.error_after < 0.05, "{}", fit.error_after);
    assert!(fit.error_held_out.unwrap() < 0.06, "{:?}", fit.error_held_out);
    let close = |found: f64, wanted: f64, within: f64| {
        assert!((found / wanted - 1.0).abs() < within, "{found} against {wanted}");
    };
    let (found, wanted) = (fit.host.measured.unwrap(), truth.measured.unwrap());
    close(found.fp32.unwrap().products.get(), wanted.fp32.unwrap().products.get(), 0.05);
    // Losses are memory too, and have a rate of their own.
    close(found.fp32.unwrap().stream.get(), wanted.fp32.unwrap().stream.get(), 0.12);
    close(found.optimizer.get(), wanted.optimizer.get(), 0.05);
    assert_eq!(found.bf16, host().measured.unwrap().bf16, "no run was in bf16");
}

#[test]
fn runs_that_went_as_predicted_move_nothing() {
    let fit = fit_host(&cases(&host()), &host());
    assert!(fit.factors.iter().all(|factor| (factor.factor - 1.0).abs() < 1e-9), "{:?}", fit.factors);
    assert!(fit.error_after < 1e-9);
}

#[test]
fn one_run_moves_rates_less_than_many() {
    let truth = slower(2.0, 2.0, 2.0);
    let one = fit_host(&cases(&truth)[..1], &host());
    let many = fit_host(&cases(&truth), &host());
    let compute = |fit: &bedplate_calibrate::HostFit| fit.factors[0].factor;
    assert!(1.0 < compute(&one) && compute(&one) < compute(&many), "{} {}", compute(&one), compute(&many));
    assert!(one.error_after > many.error_after, "{} {}", one.error_after, many.error_after);
    assert_eq!(one.error_held_out, None);
}

#[test]
fn without_runs_the_rates_stay() {
    let fit = fit_host(&[], &host());
    assert_eq!(fit.host, host());
    assert!(fit.factors.is_empty());
}
