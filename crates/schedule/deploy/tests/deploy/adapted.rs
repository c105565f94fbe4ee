//! Low-rank adapters beside the weights.

use bedplate_deploy::launch::{Software, launch};
use bedplate_deploy::{DeployError, Pattern, Plan, Workers, fit, search};
use bedplate_diag::Diagnostic;
use bedplate_perf::serving::{LoadedAdapters, StepShape};

use crate::support::{Question, question};

fn with(adapters: Option<LoadedAdapters>) -> Question {
    let mut question = question("llama-3.1-8b", "p5en.48xlarge:1", (1000, 200, 5.0), (500.0, 25.0));
    question.options.adapters = adapters;
    question
}

#[test]
fn they_take_memory_and_time() {
    let measured = |adapters: Option<LoadedAdapters>| {
        let question = with(adapters);
        let need = question.need();
        let layout = "tp1.bf16".parse::<Pattern>().expect("it is a pattern").first.completed(&need);
        let replica = fit(&need, &question.supply, &layout).expect("it fits");
        let step = replica.timer().seconds(&StepShape::decode(32, 32_000));
        (replica.memory().adapters_per_gpu.get(), replica.memory().room.tokens(), step)
    };
    let (none, room, step) = measured(None);
    let (some, less_room, slower) = measured(Some(LoadedAdapters { loaded: 16, rank: 16 }));
    // All projections of Llama 3.1 8B at rank 16 are 42 M parameters, as PEFT counts them.
    assert_eq!((none, some), (0.0, 16.0 * 2.0 * 41_943_040.0));
    assert!(less_room < room);
    assert!(slower > 1.05 * step && slower < 2.0 * step, "{slower} and {step}");
    let (_, _, more) = measured(Some(LoadedAdapters { loaded: 16, rank: 64 }));
    assert!(more > slower);
    // One adapter is read once, whatever the number of sequences.
    let (_, _, one) = measured(Some(LoadedAdapters { loaded: 1, rank: 16 }));
    assert!(one < slower);
}

#[test]
fn too_many_are_refused_with_how_many_would_fit() {
    let question = with(Some(LoadedAdapters { loaded: 100_000, rank: 512 }));
    let error = search(&question.need(), question.supplies()).expect_err("they do not fit");
    assert!(matches!(error, DeployError::DoesNotFit { .. }), "{error}");
    let help = error.help().expect("it says what would fit");
    assert!(help.contains("it fits with ") && help.contains(" adapters ("), "{help}");
}

#[test]
fn none_of_rank_zero_are_no_question() {
    for adapters in [LoadedAdapters { loaded: 0, rank: 8 }, LoadedAdapters { loaded: 8, rank: 0 }] {
        let question = with(Some(adapters));
        let error = search(&question.need(), question.supplies()).expect_err("it asks for nothing");
        assert!(matches!(error, DeployError::NothingAsked { .. }), "{error}");
    }
}

#[test]
fn engines_are_told() {
    let question = with(Some(LoadedAdapters { loaded: 12, rank: 24 }));
    let need = question.need();
    let layout = "tp1.bf16".parse::<Pattern>().expect("it is a pattern").first.completed(&need);
    let plan = Plan::Aggregated(Workers { layout, replicas: 1, max_seqs: 64 });
    let text = |software| launch(&need, &question.supply, &plan, "some/model", software);
    // Its ranks are a list of choices.
    assert!(text(Software::Vllm).contains("--enable-lora --max-loras 12 --max-lora-rank 32"));
    assert!(text(Software::Sglang).contains("--enable-lora --max-loras-per-batch 12 --max-loaded-loras 12"));
    assert!(text(Software::Sglang).contains("--max-lora-rank 24"));
    assert!(text(Software::Bedplate).contains("--adapter NAME=FOLDER"));
}
