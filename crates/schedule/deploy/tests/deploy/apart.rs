//! Prompts and decodes on different GPUs.

use bedplate_deploy::launch::kubernetes::Deployment;
use bedplate_deploy::launch::{Software, launch, pools};
use bedplate_deploy::{DeployError, Failing, Pattern, Plan, Supply, Workers, search};
use bedplate_perf::serving::{KvLink, WeightFormat};
use bedplate_replay::requests::picoseconds;

use crate::support::{Question, question, supply};

fn asked(model: &str, prompts: &str, decodes: &str, load: (u32, u32, f64)) -> Question {
    let mut question = question(model, decodes, load, (1500.0, 40.0));
    question.supply = Supply::apart(supply(prompts), supply(decodes));
    question.options.weights = vec![WeightFormat::Bf16];
    question
}

#[test]
fn each_pool_stays_on_its_gpus_and_costs_are_summed() {
    let question = asked("llama-3.1-8b", "p5.48xlarge:1", "p4de.24xlarge:1", (4000, 200, 6.0));
    let answer = search(&question.need(), question.supplies()).expect("it holds");
    let Plan::Disaggregated { prefill, decode } = answer.best.plan else { panic!("two pools") };
    assert!(prefill.gpus() <= 8 && decode.gpus() <= 8);
    let each = |supply: &Supply, gpus: u32| supply.dollars_per_hour(gpus).expect("it has a price");
    let prompts = question.supply.of_prompts();
    let sum = each(prompts, prefill.gpus()) + each(&question.supply, decode.gpus());
    assert_eq!(answer.best.dollars_per_hour, Some(sum));
    assert_eq!(answer.best.plan.link(&question.supply), KvLink::ScaleOut);
    assert!(answer.front.iter().all(|point| matches!(point.plan, Plan::Disaggregated { .. })));
    assert!(answer.front.iter().all(|point| question.supply.holds(&point.plan)));
    assert_eq!(question.supply.label(), "p5.48xlarge for prompts, p4de.24xlarge for decodes");
    let text = launch(&question.need(), &question.supply, &answer.best.plan, "some/model", Software::Dynamo);
    assert!(text.contains(" each on p5.48xlarge: ") && text.contains(" each on p4de.24xlarge: "), "{text}");
    assert!(text.contains("--disaggregation-mode prefill") && text.contains("--disaggregation-mode decode"));
}

#[test]
fn pods_of_each_pool_stay_on_its_machines() {
    let question = asked("llama-3.1-8b", "p5.48xlarge:1", "p4de.24xlarge:1", (4000, 200, 6.0));
    let need = question.need();
    let layout = "tp1.bf16".parse::<Pattern>().expect("it is a pattern").first.completed(&need);
    let workers = Workers { layout, replicas: 1, max_seqs: 8 };
    let plan = Plan::Disaggregated { prefill: workers, decode: workers };
    for software in [Software::Sglang, Software::Dynamo] {
        let pools = pools(&need, &question.supply, &plan, "some/model", software);
        let resource = "nvidia.com/gpu";
        let deployment = Deployment { name: "chat", image: None, software, resource, gpus: 16 };
        let text = deployment.manifests(&pools, 8);
        for machine in ["p5.48xlarge", "p4de.24xlarge"] {
            let selector = format!("nodeSelector: {{node.kubernetes.io/instance-type: \"{machine}\"}}\n");
            assert_eq!(text.matches(&selector).count(), 1, "{text}");
        }
    }
}

#[test]
fn pools_of_one_gpu_serve_what_they_can() {
    let question = asked("llama-3.1-8b", "p5.4xlarge:1", "p5.4xlarge:1", (500, 100, 0.5));
    let answer = search(&question.need(), question.supplies()).expect("it holds");
    assert_eq!(answer.best.plan.gpus(), 2);
    let busy = asked("llama-3.1-8b", "p5.4xlarge:1", "p5.4xlarge:1", (4000, 100, 500.0));
    let error = search(&busy.need(), busy.supplies()).expect_err("it is too much");
    assert!(matches!(error, DeployError::NoneHolds { .. }), "{error}");
}

#[test]
fn a_model_that_fits_on_one_of_the_two_is_refused_by_both_names() {
    let question = asked("llama-3.3-70b", "p5.4xlarge:1", "p5en.48xlarge:1", (500, 100, 0.5));
    let error = search(&question.need(), question.supplies()).expect_err("it does not fit");
    let text = error.to_string();
    assert!(matches!(error, DeployError::DoesNotFit { .. }), "{text}");
    assert!(text.contains("1 GPUs of p5.4xlarge for prompts and 8 of p5en.48xlarge for decodes"), "{text}");
}

#[test]
fn pools_without_a_common_format_or_with_too_strict_limits_are_refused_with_the_reason() {
    let mut question = asked("llama-3.3-70b", "p5.4xlarge:1", "p4de.24xlarge:1", (500, 100, 0.5));
    question.options.weights = vec![WeightFormat::Bf16, WeightFormat::Fp8];
    let error = search(&question.need(), question.supplies()).expect_err("one needs fp8, the other has none");
    assert!(matches!(error, DeployError::NoCommonFormat { .. }), "{error}");
    let mut question = asked("llama-3.1-8b", "p5.48xlarge:1", "p5en.48xlarge:1", (500, 100, 0.5));
    question.objectives.itl = Some(picoseconds(1e-4));
    let error = search(&question.need(), question.supplies()).expect_err("it is too fast");
    let DeployError::NoneHolds { reason: Failing::Speed { best, .. }, .. } = &error else {
        panic!("{error}")
    };
    assert!(best.get() > 1e-4 && best.get() < 0.1, "{error}");
}

#[test]
fn the_slower_of_two_networks_decides_the_transfer() {
    let question = asked("llama-3.1-8b", "p5.48xlarge:1", "p4de.24xlarge:1", (4000, 200, 6.0));
    let need = question.need();
    let layout = "tp1.bf16".parse::<Pattern>().expect("a pattern").first.completed(&need);
    let fast = layout.replica(&need, question.supply.of_prompts()).expect("it is legal");
    let slow = layout.replica(&need, &question.supply).expect("it is legal");
    let alone = slow.kv_transfer(4000, KvLink::ScaleOut);
    assert!(fast.kv_transfer(4000, KvLink::ScaleOut) < alone);
    assert_eq!(fast.kv_transfer_to(&slow, 4000, KvLink::ScaleOut), alone);
    assert_eq!(slow.kv_transfer_to(&fast, 4000, KvLink::ScaleOut), alone);
}
