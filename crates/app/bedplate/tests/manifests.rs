//! Serving plans as manifests: a real Kubernetes server takes what the program prints.

use std::collections::BTreeSet;
use std::process::Command;

use bedplate_peers::{Kubernetes, KubernetesShape};

/// Engine and plan: one node and several, one pool and two.
const PLANS: [(&str, &str); 6] = [
    (
        "vllm",
        "--model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 200 --rate 10/s --slo itl=15ms",
    ),
    (
        "bedplate",
        "--model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 200 --rate 2/s --precision bf16 --kv bf16 --pools aggregated",
    ),
    (
        "sglang",
        "--model llama-3.3-70b --cluster p5en.48xlarge:4 --isl 4000 --osl 500 --rate 8/s --slo ttft=600ms,itl=25ms --pools disaggregated",
    ),
    (
        "vllm",
        "--model deepseek-v3 --cluster p5.48xlarge:8 --isl 2000 --osl 500 --rate 4/s --slo itl=60ms --precision fp8 --pools aggregated",
    ),
    (
        "sglang",
        "--model deepseek-v3 --cluster p5.48xlarge:8 --isl 2000 --osl 500 --rate 4/s --slo itl=60ms --precision fp8 --pools aggregated",
    ),
    (
        "vllm",
        "--model llama-3.1-405b --cluster p4d.24xlarge:16 --isl 1000 --osl 200 --rate 0.5/s --precision bf16 --pools aggregated",
    ),
];

/// What is printed for starting a plan.
fn how_to_start(engine: &str, plan: &str) -> String {
    let plan = format!("plan serve {plan} --launch {engine} --json");
    let output =
        Command::new(env!("CARGO_BIN_EXE_bedplate")).args(plan.split(' ')).output().expect("it can be run");
    assert!(output.status.success(), "{plan}: {}", String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    answer["launch"].as_str().expect("it says how to start").to_owned()
}

#[test]
fn a_real_server_takes_serving_plans() {
    let shape = KubernetesShape { nodes: 1, scheduler: false, ..KubernetesShape::default() };
    if let Some(missing) = shape.missing() {
        return println!("SKIPPED: a real Kubernetes: {missing}");
    }
    let kubernetes = Kubernetes::start(&shape).expect("it starts");
    kubernetes.install("lws").expect("LeaderWorkerSets can be defined");
    let mut kinds = BTreeSet::new();
    for (engine, plan) in PLANS {
        let text = how_to_start(engine, &format!("{plan} --kubernetes chat"));
        let made = kubernetes.dry_run(&text).unwrap_or_else(|why| panic!("{engine}, {plan}: {why}\n{text}"));
        kinds.extend(made.lines().filter_map(|object| Some(object.split(['.', '/']).next()?.to_owned())));
    }
    for kind in ["deployment", "horizontalpodautoscaler", "leaderworkerset", "rolebinding", "service"] {
        assert!(kinds.contains(kind), "no {kind} among {kinds:?}");
    }
}

#[test]
fn our_own_engine_takes_the_flags_of_its_plans() {
    let command = how_to_start("bedplate", PLANS[1].1);
    assert!(command.contains("\nbedplate serve meta-llama/Llama-3.1-8B \\\n"), "{command}");
    let program = env!("CARGO_BIN_EXE_bedplate");
    let script = command.replace("\nbedplate serve", &format!("\n'{program}' serve"));
    let output = Command::new("sh").args(["-c", &script]).output().expect("there is a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    // There is no such folder here: that is the only complaint.
    assert!(said.contains("meta-llama/Llama-3.1-8B") && !said.contains("Usage"), "{said}");
}
