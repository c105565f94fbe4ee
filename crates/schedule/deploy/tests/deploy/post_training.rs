//! Steps of post-training, and the price of thinking longer.

use bedplate_deploy::posttrain::{PostTraining, RlAnswer, RolloutBatch, Sharing, posttrain};
use bedplate_deploy::test_time::{Effort, test_time};
use bedplate_deploy::{DeployError, search};
use bedplate_perf::Constants;
use bedplate_perf::serving::{Engine, ServedModel, ServingConstants, WeightFormat};
use bedplate_replay::requests::Lengths;
use bedplate_units::Seconds;

use crate::support::{question, supply};

fn planned(
    model: &str,
    cluster: &str,
    change: impl Fn(&mut PostTraining<'_>),
) -> Result<RlAnswer, DeployError> {
    let model = ServedModel::named(model).expect("the model is built in");
    let (serving, training) = (ServingConstants::builtin(), Constants::builtin());
    let mut question = PostTraining {
        model: &model,
        batch: RolloutBatch { prompts: 64, samples: 8, input: 500, output: Lengths::Between(200, 2000) },
        engine: Engine::Vllm,
        weights: vec![WeightFormat::Bf16],
        reward: Seconds::new(0.0),
        passes: 2,
        updates: 1,
        serving: &serving,
        training: &training,
        seed: 0,
    };
    change(&mut question);
    posttrain(&question, &supply(cluster))
}

#[test]
fn the_parts_of_a_step_make_up_its_time() {
    let answer = planned("llama-3.1-8b", "p5en.48xlarge:4", |question| question.reward = Seconds::new(3.0))
        .expect("some split works");
    assert!(answer.steps.len() >= 4, "{}", answer.steps.len());
    for step in &answer.steps {
        let (ahead, parts) = (step.rollout + step.reward, step.rollout + step.reward + step.training);
        let expected = match step.sharing {
            Sharing::Colocated { .. } => parts + step.sync,
            Sharing::Separate => ahead.max(step.training) + step.sync,
        };
        assert_eq!(step.total, expected);
        assert!((0.0..=1.0).contains(&step.busy()), "{}", step.busy());
        let gpus = match step.sharing {
            Sharing::Colocated { .. } => step.rollout_gpus,
            Sharing::Separate => step.rollout_gpus + step.training_gpus,
        };
        assert_eq!(gpus, 32);
        assert!(step.replicas * step.rollout_layout.gpus() <= step.rollout_gpus);
    }
    assert!(answer.steps.windows(2).all(|pair| pair[0].total <= pair[1].total));
}

#[test]
fn more_rollout_gpus_shorten_rollouts_and_lengthen_training() {
    let answer = planned("llama-3.1-8b", "p5en.48xlarge:4", |_| {}).expect("some split works");
    let mut separate: Vec<_> = answer.steps.iter().filter(|step| step.sharing == Sharing::Separate).collect();
    separate.sort_by_key(|step| step.rollout_gpus);
    assert!(separate.len() >= 3);
    for pair in separate.windows(2) {
        assert!(pair[0].rollout >= pair[1].rollout && pair[0].training <= pair[1].training);
    }
}

#[test]
fn longer_answers_make_rollouts_longer() {
    let step = |longest: u32| {
        let answer = planned("llama-3.1-8b", "p5en.48xlarge:2", |question| {
            question.batch.output = Lengths::Between(200, longest);
        });
        answer.expect("some split works").best().rollout
    };
    assert!(step(4000) > step(1000));
}

#[test]
fn what_fits_in_no_split_is_refused_with_the_reason() {
    let error = planned("llama-3.1-405b", "p5.48xlarge:1", |_| {}).expect_err("nothing fits");
    assert!(
        matches!(&error, DeployError::NoSplit { reason, .. } if reason.contains("does not fit")),
        "{error}"
    );
    let error = planned("llama-3-8b", "p5.48xlarge:1", |question| question.batch.input = 9000);
    assert!(matches!(error, Err(DeployError::ContextTooLong { .. })));
}

#[test]
fn thinking_longer_costs_more_and_samples_share_their_prompt() {
    let question = question("llama-3.1-8b", "p5en.48xlarge:1", (2000, 200, 5.0), (500.0, 20.0));
    let need = question.need();
    let answer = search(&need, question.supplies()).expect("some deployment holds");
    let efforts = [
        Effort { samples: 1, thinking: 0 },
        Effort { samples: 4, thinking: 0 },
        Effort { samples: 1, thinking: 2000 },
        Effort { samples: 1, thinking: 200_000 },
    ];
    let prices = test_time(&need, &question.supply, &answer.best.plan, &efforts);
    let dollars = |at: usize| {
        prices[at].1.and_then(|price| price.dollars_per_thousand).expect("the machine has a price").get()
    };
    assert!(dollars(1) > dollars(0) && dollars(1) < 4.0 * dollars(0), "{} {}", dollars(0), dollars(1));
    assert!(dollars(2) > 5.0 * dollars(0));
    assert!(prices[3].1.is_none(), "beyond the model's context there is no price");
}
