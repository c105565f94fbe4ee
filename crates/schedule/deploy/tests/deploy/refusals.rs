//! Questions without an answer say why, and name the nearest one that has one.

use bedplate_deploy::{DeployError, DeployOptions, Failing, Pooling, search};
use bedplate_diag::Diagnostic;
use bedplate_perf::serving::WeightFormat;

use crate::support::{Question, question};

fn refused(question: &Question) -> (DeployError, String) {
    let error = search(&question.need(), question.supplies()).expect_err("nothing holds");
    let help = error.help().unwrap_or_default();
    (error, help)
}

#[test]
fn a_model_that_does_not_fit_says_by_how_much_and_where_it_would() {
    let mut question = question("llama-3.1-405b", "p5.48xlarge:1", (1000, 100, 1.0), (0.0, 0.0));
    question.options = DeployOptions { weights: vec![WeightFormat::Bf16], ..DeployOptions::default() };
    let (error, help) = refused(&question);
    assert!(matches!(&error, DeployError::DoesNotFit { .. }), "{error}");
    assert!(error.to_string().contains("GB per GPU more"), "{error}");
    assert!(help.contains("it fits on 16 GPUs of p5.48xlarge"), "{help}");
    assert!(help.contains("it fits with fp8 weights"), "{help}");
}

#[test]
fn a_limit_below_an_empty_replica_is_named() {
    for (limits, bound) in [((0.0, 3.0), "time between tokens"), ((20.0, 0.0), "time to first token")] {
        let (error, help) = refused(&question("llama-3.3-70b", "p5en.48xlarge:1", (4000, 500, 1.0), limits));
        let DeployError::NoneHolds { reason: Failing::Speed { bound: named, best, limit, .. }, .. } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(*named, bound);
        assert!(best > limit && help.contains("can hold at a low rate"), "{help}");
    }
}

#[test]
fn a_rate_beyond_the_gpus_names_the_rate_that_holds() {
    let (error, help) =
        refused(&question("llama-3.3-70b", "p5en.48xlarge:1", (4000, 500, 20.0), (600.0, 25.0)));
    assert!(matches!(&error, DeployError::NoneHolds { reason: Failing::Gpus { .. }, .. }), "{error}");
    assert!(help.contains("requests/s on 8 GPUs") && help.contains("GPUs hold the rate"), "{help}");
}

#[test]
fn the_context_of_the_model_is_respected() {
    let (error, _) = refused(&question("llama-3-8b", "p5en.48xlarge:1", (8000, 500, 1.0), (0.0, 0.0)));
    assert!(matches!(error, DeployError::ContextTooLong { asked: 8500, context: 8192, .. }), "{error}");
}

#[test]
fn questions_about_nothing_are_refused() {
    for load in [(0, 10, 1.0), (10, 0, 1.0), (10, 10, 0.0), (10, 10, f64::NAN)] {
        let (error, _) = refused(&question("llama-3-8b", "p5en.48xlarge:1", load, (0.0, 0.0)));
        assert!(matches!(error, DeployError::NothingAsked { .. }), "{error}");
    }
}

#[test]
fn of_two_pools_the_one_that_is_too_slow_is_blamed() {
    let mut question = question("llama-3.3-70b", "p5en.48xlarge:1", (4000, 500, 1.0), (20.0, 10.0));
    question.options.pooling = Pooling::Disaggregated;
    let (error, _) = refused(&question);
    assert!(error.to_string().contains("time to first token"), "{error}");
}
