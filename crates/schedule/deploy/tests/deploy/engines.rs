//! What a serving plan prints is what the engines' own programs accept.

use std::collections::BTreeMap;
use std::process::Command;

use bedplate_deploy::launch::{Pool, Software, launch, pools};
use bedplate_deploy::{Pattern, Pictures, Plan, Workers};
use bedplate_perf::serving::LoadedAdapters;
use bedplate_transformer::Image;

use crate::support::question;
use crate::table::{Accepts, accepted};

const VLLM: &str = include_str!("vllm.csv");
const SGLANG: &str = include_str!("sglang.csv");

/// Plans of all sorts: one node and several, one pool and two, tensor, pipeline, data and expert ranks, all formats.
const PLANS: [(&str, &str, &str); 12] = [
    ("llama-3.1-8b", "p5en.48xlarge:1", "tp1.bf16"),
    ("llama-3.1-8b", "g6e.48xlarge:1", "tp2.int4"),
    ("llama-3.3-70b", "p5en.48xlarge:2", "tp4.pp2.fp8.kv-fp8.chunk8192"),
    ("llama-3.3-70b", "p5en.48xlarge:2", "tp2.fp8+tp4.fp8"),
    ("llama-3.3-70b", "p6-b200.48xlarge:1", "tp2.fp4"),
    ("llama-3.1-405b", "p5.48xlarge:4", "tp8.pp2.bf16"),
    ("deepseek-v3", "p5en.48xlarge:4", "tp1.ep16.adp16.fp8"),
    ("deepseek-v3", "p5en.48xlarge:4", "tp8.pp2.fp8"),
    ("deepseek-v3", "p6-b200.48xlarge:2", "tp1.ep8.adp8.fp8+tp1.ep8.adp8.fp8"),
    ("qwen3-30b-a3b", "p5.48xlarge:1", "tp2.ep2.bf16"),
    ("gpt-oss-120b", "p5en.48xlarge:1", "tp4.bf16"),
    ("mixtral-8x22b", "p4d.24xlarge:2", "tp8.pp2.bf16"),
];

fn each_plan(mut see: impl FnMut(&str, &dyn Fn(Software) -> Vec<Pool>, &dyn Fn(Software) -> String)) {
    for (at, (model, cluster, pattern)) in PLANS.into_iter().enumerate() {
        let mut question = question(model, cluster, (4000, 500, 1.0), (0.0, 0.0));
        // Adapters of a rank that is no choice of vLLM's, and images, with every other plan.
        if at % 2 == 1 {
            question.options.adapters = Some(LoadedAdapters { loaded: 6, rank: 24 });
            let image = Image { patches: 4096, tokens: 256 };
            question.options.images = Some(Pictures { per_request: 2, image });
        }
        let need = question.need();
        let pattern: Pattern = pattern.parse().expect("it is a pattern");
        let workers = |layout, replicas| Workers { layout, replicas, max_seqs: 64 };
        let first = pattern.first.completed(&need);
        let plan = match pattern.second {
            None => Plan::Aggregated(workers(first, 2)),
            Some(second) => Plan::Disaggregated {
                prefill: workers(first, 1),
                decode: workers(second.completed(&need), 2),
            },
        };
        let name = format!("{model} on {cluster}: {plan}");
        let supply = &question.supply;
        see(&name, &|software| pools(&need, supply, &plan, "some/model", software), &|software| {
            launch(&need, supply, &plan, "some/model", software)
        });
    }
}

/// The words of a command as a shell gives them to a program on one node.
fn words(pool: &Pool, rank: u32) -> Vec<String> {
    let script = format!("printf '%s\\n' {}", pool.command.join(" "));
    let output = Command::new("sh")
        .args(["-euc", &script])
        .env("RANK", rank.to_string())
        .env("HEAD", "10.0.0.1")
        .env("PREFILL", "10.0.0.2")
        .output()
        .expect("there is a shell");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect()
}

/// Checks flags and their values against a table.
fn check(name: &str, words: &[String], table: &BTreeMap<String, Accepts>) -> BTreeMap<String, String> {
    let mut given = BTreeMap::new();
    let mut words = words.iter().peekable();
    while let Some(flag) = words.next() {
        let accepts = table.get(flag).unwrap_or_else(|| panic!("{name}: no flag `{flag}`"));
        let value = words.next_if(|word| !word.starts_with("--")).cloned();
        match (&accepts.kind[..], &value) {
            ("switch", None) => {}
            ("json", Some(value)) => {
                serde_json::from_str::<serde_json::Value>(value)
                    .unwrap_or_else(|why| panic!("{name}: {value}: {why}"));
            }
            (_, Some(value)) => assert_eq!(accepts.objection(value), None, "{name}: {flag}"),
            (kind, None) => panic!("{name}: {flag} needs a {kind}"),
        }
        let twice = given.insert(flag.clone(), value.unwrap_or_default());
        assert_eq!(twice, None, "{name}: {flag} is given twice");
    }
    given
}

#[test]
fn vllm_accepts_every_flag_and_its_ranks_fill_the_nodes() {
    let table = accepted(VLLM, 0, None);
    each_plan(|name, pools, _| {
        for pool in pools(Software::Vllm) {
            for rank in 0..pool.nodes {
                let words = words(&pool, rank);
                assert_eq!(words[..3], ["vllm", "serve", "some/model"], "{name}");
                let given = check(name, &words[3..], &table);
                let number =
                    |flag: &str| given.get(flag).map_or(1, |value| value.parse::<u32>().expect("a number"));
                let ranks = number("--tensor-parallel-size") * number("--pipeline-parallel-size");
                assert_eq!(ranks * number("--data-parallel-size"), pool.nodes * pool.gpus_per_node, "{name}");
                assert_eq!(given.contains_key("--headless"), rank > 0, "{name}: who answers");
                if number("--data-parallel-size") > 1 && pool.nodes > 1 {
                    let local = number("--data-parallel-size-local");
                    assert_eq!(ranks * local, pool.gpus_per_node, "{name}");
                    assert_eq!(given["--data-parallel-start-rank"], (rank * local).to_string(), "{name}");
                } else if pool.nodes > 1 {
                    assert_eq!(given["--node-rank"], rank.to_string(), "{name}");
                    assert_eq!(given["--nnodes"], pool.nodes.to_string(), "{name}");
                }
            }
        }
    });
}

#[test]
fn sglang_accepts_every_flag_and_its_ranks_fill_the_nodes() {
    let table = accepted(SGLANG, 0, None);
    each_plan(|name, pools, _| {
        for pool in pools(Software::Sglang) {
            for rank in 0..pool.nodes {
                let words = words(&pool, rank);
                assert_eq!(words[..3], ["python", "-m", "sglang.launch_server"], "{name}");
                let given = check(name, &words[3..], &table);
                let number =
                    |flag: &str| given.get(flag).map_or(1, |value| value.parse::<u32>().expect("a number"));
                assert_eq!(
                    number("--tp-size") * number("--pp-size"),
                    pool.nodes * pool.gpus_per_node,
                    "{name}"
                );
                assert!(number("--tp-size").is_multiple_of(number("--dp-size")), "{name}");
                assert_eq!(number("--nnodes"), pool.nodes, "{name}");
                assert_eq!(given.contains_key("--dist-init-addr"), pool.nodes > 1, "{name}");
            }
        }
    });
}

#[test]
fn dynamo_takes_vllms_flags_and_a_duty() {
    let mut table = accepted(VLLM, 0, None);
    let choices = ["agg", "prefill", "decode", "encode"].map(String::from).to_vec();
    table.insert("--disaggregation-mode".into(), Accepts { kind: "choice".into(), choices });
    table.insert("--model".into(), Accepts { kind: "text".into(), choices: Vec::new() });
    each_plan(|name, pools, _| {
        let pools = pools(Software::Dynamo);
        for pool in &pools {
            let words = words(pool, 0);
            assert_eq!(words[..3], ["python", "-m", "dynamo.vllm"], "{name}");
            let given = check(name, &words[3..], &table);
            assert_eq!(given.contains_key("--disaggregation-mode"), pools.len() > 1, "{name}");
        }
    });
}

#[test]
fn our_engine_is_given_a_command_or_a_reason() {
    each_plan(|name, pools, text| {
        for pool in pools(Software::Bedplate) {
            assert!(pool.command.is_empty() || pool.nodes * pool.gpus_per_node == 1, "{name}");
            assert!(!pool.remarks.is_empty(), "{name}");
        }
        assert!(!text(Software::Bedplate).is_empty());
    });
}

#[test]
fn a_strange_path_stays_one_word() {
    let question = question("llama-3.1-8b", "p5en.48xlarge:1", (4000, 500, 1.0), (0.0, 0.0));
    let need = question.need();
    let layout = "tp1.bf16".parse::<Pattern>().expect("it is a pattern").first.completed(&need);
    let plan = Plan::Aggregated(Workers { layout, replicas: 1, max_seqs: 64 });
    let path = "it's $(touch x); \"a folder\"";
    for (_, software) in Software::ALL {
        for pool in pools(&need, &question.supply, &plan, path, software) {
            let words = words(&pool, 0);
            assert!(words.iter().any(|word| word == path), "{words:?}");
        }
    }
}
