//! Metrics as Prometheus reads them.

use bedplate_breakdown::Span;
use bedplate_units::{Bytes, Seconds};
use expect_test::expect;

use super::*;

fn exposed(seconds: f64) -> Span {
    Span::exposed(Seconds::new(seconds))
}

#[test]
fn nothing_is_said_before_the_first_step() {
    assert_eq!(Metrics::default().text(), "");
}

#[test]
fn gauges_hold_the_last_step_and_counters_add_up() {
    let metrics = Metrics::default();
    for step in 1..=2 {
        metrics.set_step(&StepRecord {
            step,
            tokens: 4096 * step,
            loss: 4.5 / step as f64,
            gradient_norm: f64::INFINITY,
            learning_rate: 3e-4,
            tokens_per_second: 1e6,
            memory: Bytes::gib(1.0),
            breakdown: Breakdown::default()
                .with(Part::Compute, exposed(0.75))
                .with(Part::Host, exposed(0.25)),
            seconds: 1.0,
            ..StepRecord::default()
        });
    }
    metrics.set_evaluation(&EvaluationRecord {
        step: 2,
        loss: Some(2.0),
        perplexity: Some(7.5),
        sample: None,
    });
    let text = metrics.text();
    let samples: Vec<&str> =
        text.lines().filter(|line| !line.starts_with('#') && !line.ends_with(" 0")).collect();
    expect![[r#"
        bedplate_train_steps_total 2
        bedplate_train_tokens_total 8192
        bedplate_train_loss 2.25
        bedplate_train_gradient_norm +Inf
        bedplate_train_learning_rate 0.0003
        bedplate_train_tokens_per_second 1000000
        bedplate_train_memory_bytes 1073741824
        bedplate_train_step_seconds 1
        bedplate_train_exposed_seconds_total{part="compute"} 1.5
        bedplate_train_exposed_seconds_total{part="host"} 0.5
        bedplate_train_evaluation_loss 2
        bedplate_train_evaluation_perplexity 7.5"#]]
    .assert_eq(&samples.join("\n"));
    assert!(text.contains("# TYPE bedplate_train_exposed_seconds_total counter\n"));
    assert!(!text.contains("mfu"), "what is unknown is left out");
}

#[test]
fn every_metric_has_help_and_type_before_its_samples() {
    let metrics = Metrics::default();
    let predicted = Some(Breakdown::default().with(Part::Memory, exposed(0.5)));
    metrics.set_step(&StepRecord { mfu: Some(0.4), predicted, ..StepRecord::default() });
    let evaluation =
        EvaluationRecord { loss: Some(2.0), perplexity: Some(7.4), ..EvaluationRecord::default() };
    metrics.set_evaluation(&evaluation);
    let mut described = Vec::new();
    for line in metrics.text().lines() {
        match line.split(' ').collect::<Vec<&str>>()[..] {
            ["#", "TYPE", name, kind] => {
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                described.push(name.to_owned());
            }
            ["#", "HELP", ..] => {}
            [sample, value] => {
                let name = sample.split('{').next().unwrap();
                assert_eq!(described.last().map(String::as_str), Some(name));
                value.parse::<f64>().unwrap();
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!(described.len(), 14);
}
