//! torchtitan: models, configurations and names that exist, keys with accepted values, and the rules of its trainer.

use std::collections::BTreeMap;

use bedplate_deploy::training::Trainer;

use crate::corpus::{Case, cases};
use crate::table::{accepted, rows};

const TABLE: &str = include_str!("torchtitan.csv");

/// The assignments to the configuration: `config.KEY = VALUE`.
fn assignments(settings: &str) -> BTreeMap<&str, &str> {
    let lines = settings.lines().filter_map(|line| line.trim().strip_prefix("config."));
    lines.filter_map(|line| line.split_once(" = ")).collect()
}

fn unknown_name(settings: &str) -> Option<String> {
    let between = |start: &str, end: &str| {
        settings.split_once(start).and_then(|(_, rest)| rest.split_once(end)).map_or("", |(found, _)| found)
    };
    let module = between("from torchtitan.models.", " import");
    let flavor = format!("{module}/{}", between("model_registry(\"", "\""));
    let base = format!("{module}/{}", between("config = ", "("));
    let mut wanted = vec![("flavor", flavor), ("config", base)];
    for import in settings
        .lines()
        .filter(|line| line.contains("quantization") || line.contains("activation_checkpoint import"))
    {
        wanted.push(("import", import.replacen("from ", "", 1).replace(" import ", "/")));
    }
    if settings.contains("moe_comm_backend") {
        wanted.push(("backend", between("moe_comm_backend=\"", "\"").to_owned()));
    }
    let is_unknown = |(what, name): &(&str, String)| !names(TABLE, what).contains(name);
    wanted.into_iter().find(is_unknown).map(|(what, name)| format!("there is no {what} {name}"))
}

fn wrong_key(settings: &str) -> Option<String> {
    let keys = accepted(TABLE, 1, Some("key"));
    assignments(settings).into_iter().filter(|(key, _)| *key != "model_spec").find_map(|(key, value)| {
        let Some(accepts) = keys.get(key) else { return Some(format!("there is no key {key}")) };
        accepts.objection(value.trim_matches('"')).map(|said| format!("{key}: {said}"))
    })
}

/// What its trainer, its decoder and its pipeline raise errors for.
fn broken_rule(case: &Case, settings: &str) -> Option<&'static str> {
    let keys = assignments(settings);
    let number = |key: &str| -> u64 { keys.get(key).and_then(|value| value.parse().ok()).unwrap_or(1) };
    let pipeline = number("parallelism.pipeline_parallel_degree");
    let (tensor, context) =
        (number("parallelism.tensor_parallel_degree"), number("parallelism.context_parallel_degree"));
    let (replicate, shard) = (
        number("parallelism.data_parallel_replicate_degree"),
        number("parallelism.data_parallel_shard_degree"),
    );
    let local = number("training.local_batch_size");
    let attention = case.model.layers().next().map(|layer| layer.attention);
    let chunks = || {
        let extra = number("parallelism.pipeline_parallel_first_stage_less_layers")
            + number("parallelism.pipeline_parallel_last_stage_less_layers");
        (case.model.layer_count() + extra).div_ceil(number("parallelism.pipeline_parallel_layers_per_stage"))
    };
    let is_single = keys.get("parallelism.pipeline_parallel_schedule").is_none_or(|name| *name == "\"1F1B\"");
    let has_experts = number("parallelism.expert_parallel_degree") > 1;
    let captures = keys.get("training.disable_cuda_graphs") == Some(&"False");
    let checks = [
        (
            "degrees multiply to the world",
            replicate * shard * tensor * context * pipeline == case.layout.world(),
        ),
        ("the batch divides", case.workload.global_batch.is_multiple_of(local * replicate * shard)),
        (
            "micro-batches divide the local batch",
            pipeline == 1 || local.is_multiple_of(number("parallelism.pipeline_parallel_microbatch_size")),
        ),
        ("graphs are captured without pipelines and experts", !captures || pipeline == 1 && !has_experts),
        ("tensor degree divides heads", attention.is_none_or(|it| it.heads().is_multiple_of(tensor))),
        ("tensor degree divides kv heads", attention.is_none_or(|it| it.kv_heads().is_multiple_of(tensor))),
        ("pipelines have no tied weights", pipeline == 1 || !case.model.has_tied_embeddings),
        ("chunks are dealt evenly", pipeline == 1 || chunks().is_multiple_of(pipeline)),
        ("one chunk a rank without interleaving", pipeline == 1 || !is_single || chunks() == pipeline),
        ("two chunks a rank with interleaving", pipeline == 1 || is_single || chunks() >= 2 * pipeline),
        (
            "experts divide the ranks",
            (shard * context * tensor).is_multiple_of(number("parallelism.expert_parallel_degree")),
        ),
        ("sequences fit the context", number("training.seq_len") <= case.model.max_context),
    ];
    checks.into_iter().find(|(_, is_right)| !is_right).map(|(what, _)| what)
}

#[test]
fn configurations_name_what_exists_and_keep_the_rules() {
    let mut checked = 0;
    for case in cases() {
        if let Ok(settings) = Trainer::Torchtitan.settings(&case.job()) {
            assert_eq!(unknown_name(&settings), None, "{}\n{settings}", case.name());
            assert_eq!(wrong_key(&settings), None, "{}\n{settings}", case.name());
            assert_eq!(broken_rule(&case, &settings), None, "{}\n{settings}", case.name());
            checked += 1;
        }
    }
    assert!(checked > 500, "only {checked} layouts were checked");
}

/// The checks themselves find what they should.
#[test]
fn wrong_names_keys_and_values_are_found() {
    let right = cases().iter().find_map(|case| Trainer::Torchtitan.settings(&case.job()).ok()).unwrap();
    assert!(unknown_name(&right.replace("\"8B\"", "\"9B\"")).is_some());
    assert!(unknown_name(&right.replace("llama3_8b", "llama3_9b")).is_some());
    assert!(wrong_key(&right.replace("seq_len", "sequence")).is_some());
    assert!(wrong_key(&right.replace("seq_len = ", "seq_len = x")).is_some());
}

/// The names of one sort in a table with a column `what`.
fn names(text: &str, what: &str) -> Vec<String> {
    rows(text).filter(|row| row[0] == what).map(|row| row[1].to_owned()).collect()
}
