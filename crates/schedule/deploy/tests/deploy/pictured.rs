//! Images in prompts.

use bedplate_deploy::launch::{Software, launch};
use bedplate_deploy::{OfferedLoad, Pattern, Pictures, Plan, Workers, fit, search};
use bedplate_diag::Source;
use bedplate_perf::serving::{ServedModel, StepShape, WeightFormat};
use bedplate_transformer::Configuration;

use crate::support::{Question, question};

const QWEN: &str = include_str!("../../../../domain/transformer/tests/vision/qwen2.5-vl-7b.json");

fn asked(images: u32, side: u32) -> Question {
    let mut question = question("llama-3.1-8b", "p5en.48xlarge:1", (500, 100, 5.0), (2000.0, 30.0));
    let configuration = Configuration::parse(Source::new("config.json", QWEN)).expect("it is JSON");
    let vision = configuration.vision().expect("it is right");
    let transformer = configuration.transformer().expect("it is right");
    question.model = ServedModel { vision, ..ServedModel::from(transformer) };
    question.options.weights = vec![WeightFormat::Bf16];
    if images > 0 {
        let image = question.model.vision.as_ref().expect("it has one").image(side, side);
        let pictures = Pictures { per_request: images, image };
        question.load = OfferedLoad::new(500 + pictures.tokens() as u32, 100, 5.0);
        question.options.images = Some(pictures);
    }
    question
}

/// Seconds from an idle replica to the first token.
fn first_token(images: u32, side: u32) -> f64 {
    let question = asked(images, side);
    let answer = search(&question.need(), question.supplies()).expect("it holds");
    bedplate_replay::requests::seconds(answer.best.shown.outcome.ttft.p50)
}

#[test]
fn more_and_larger_images_delay_the_first_token() {
    let (none, one, two, larger) =
        (first_token(0, 0), first_token(1, 512), first_token(2, 512), first_token(1, 2048));
    assert!(none < one && one < two && two < larger, "{none} {one} {two} {larger}");
}

#[test]
fn the_encoder_takes_memory_and_time_on_top_of_its_tokens() {
    let question = asked(1, 1024);
    let need = question.need();
    let layout = "tp1.bf16".parse::<Pattern>().expect("it is a pattern").first.completed(&need);
    let with = fit(&need, &question.supply, &layout).expect("it fits");
    assert_eq!(with.memory().encoder_per_gpu.get(), 2.0 * 676_550_144.0);
    let mut text = asked(0, 0);
    text.load = question.load;
    let without = fit(&text.need(), &text.supply, &layout).expect("it fits");
    let mut prompt = StepShape::default();
    prompt.add_prefill(0, u64::from(question.load.input));
    let encoding = with.timer().seconds(&prompt) - without.timer().seconds(&prompt);
    // 7.8 TFLOP at what an H200's products reach, and the latency of 32 layers.
    assert!((0.008..0.025).contains(&encoding), "{encoding}");
}

#[test]
fn stages_encode_an_image_once() {
    let encoding = |stages: u32| {
        let (with, mut without) = (asked(1, 2048), asked(0, 0));
        without.load = with.load;
        let [with, without] = [with, without].map(|question| {
            let need = question.need();
            let pattern = format!("tp1.pp{stages}.bf16").parse::<Pattern>().expect("it is a pattern");
            let replica = fit(&need, &question.supply, &pattern.first.completed(&need)).expect("it fits");
            let prompt = StepShape::prefill(0, u64::from(question.load.input));
            replica.timer().seconds_in_sequence(&prompt)
        });
        with - without
    };
    let (one, four) = (encoding(1), encoding(4));
    assert!((four / one - 1.0).abs() < 0.02, "{four} against {one}");
}

#[test]
fn engines_are_told_how_many_images_may_come() {
    let question = asked(3, 512);
    let need = question.need();
    let layout = "tp1.bf16".parse::<Pattern>().expect("it is a pattern").first.completed(&need);
    let plan = Plan::Aggregated(Workers { layout, replicas: 1, max_seqs: 64 });
    let text = |software| launch(&need, &question.supply, &plan, "some/model", software);
    assert!(text(Software::Vllm).contains(r#"--limit-mm-per-prompt '{"image":3}'"#));
    assert!(text(Software::Sglang).contains(r#"--limit-mm-data-per-request '{"image":3}'"#));
    assert!(text(Software::Bedplate).contains("cannot do images"));
}
