//! Megatron-Bridge: recipes that exist for the task, and overrides of keys that its configuration has.

use bedplate_deploy::training::Trainer;

use crate::corpus::cases;
use crate::shell::Command;
use crate::table::{accepted, rows};

const TABLE: &str = include_str!("megatron_bridge.csv");

fn objection(settings: &str) -> Option<String> {
    let keys = accepted(TABLE, 1, Some("key"));
    let command = Command::read(settings);
    let words = command.after("scripts/training/run_recipe.py");
    let value =
        |flag: &str| words.iter().skip_while(|word| *word != flag).nth(1).cloned().unwrap_or_default();
    let (model, mode) = (value("--model"), value("--mode"));
    let recipe = if mode == "lora" { "peft" } else { &mode };
    if !rows(TABLE).any(|row| row[0] == "recipe" && row[1] == model && row[2] == recipe) {
        return Some(format!("there is no recipe {model} for {mode}"));
    }
    let overrides = words.iter().skip(6);
    overrides.filter_map(|word| word.split_once('=')).find_map(|(key, value)| {
        let Some(accepts) = keys.get(key) else { return Some(format!("there is no key {key}")) };
        if value == "null" { None } else { accepts.objection(value).map(|said| format!("{key}: {said}")) }
    })
}

#[test]
fn recipes_exist_and_overrides_name_keys_with_accepted_values() {
    let mut checked = 0;
    for case in cases() {
        if let Ok(settings) = Trainer::MegatronBridge.settings(&case.job()) {
            assert_eq!(objection(&settings), None, "{}\n{settings}", case.name());
            let is_fsdp = settings.contains("dist.use_megatron_fsdp=true");
            assert_eq!(is_fsdp, settings.contains("checkpoint.ckpt_format=fsdp_dtensor"), "{settings}");
            assert!(!is_fsdp || !settings.contains("CUDA_DEVICE_MAX_CONNECTIONS=1"), "{settings}");
            checked += 1;
        }
    }
    assert!(checked > 1000, "only {checked} layouts were checked");
}

/// The checks themselves find what they should.
#[test]
fn wrong_recipes_keys_and_values_are_found() {
    let right = cases().iter().find_map(|case| Trainer::MegatronBridge.settings(&case.job()).ok()).unwrap();
    let finds = |from: &str, to: &str| {
        assert!(right.contains(from), "{right}");
        assert!(objection(&right.replace(from, to)).is_some(), "{to} was not found");
    };
    finds("--model llama31_8b", "--model llama9_8b");
    finds("model.sequence_parallel=", "model.sequence_split=");
    finds("mixed_precision=bf16_mixed", "mixed_precision=bf17_mixed");
    finds("train.micro_batch_size=1", "train.micro_batch_size=one");
}
