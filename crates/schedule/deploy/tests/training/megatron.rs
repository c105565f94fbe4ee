//! Megatron-LM: flags, kinds, choices, forbidden combinations, and the arithmetic that it asserts.

use std::collections::BTreeMap;

use bedplate_deploy::training::{Lacks, Trainer};
use bedplate_layout::{Schedule, Sharding};
use bedplate_perf::Task;

use crate::corpus::{Case, cases};
use crate::shell::Command;
use crate::table::{Accepts, accepted, rows};

const FLAGS: &str = include_str!("megatron_lm.csv");
const RULES: &str = include_str!("megatron_lm_rules.csv");

/// The flags of a command; switches have no value.
type Flags = BTreeMap<String, Option<String>>;

fn read(command: &Command, table: &BTreeMap<String, Accepts>) -> Result<Flags, String> {
    let mut flags = Flags::new();
    let mut words = command.after("pretrain_gpt.py").iter();
    while let Some(flag) = words.next() {
        let accepts = table.get(flag).ok_or_else(|| format!("there is no flag {flag}"))?;
        let value = match accepts.kind.as_str() {
            "switch" => None,
            _ => Some(words.next().ok_or_else(|| format!("{flag} has no value"))?.clone()),
        };
        if let Some(objection) = value.as_deref().and_then(|value| accepts.objection(value)) {
            return Err(format!("{flag}: {objection}"));
        }
        if flags.insert(flag.clone(), value).is_some() {
            return Err(format!("{flag} is given twice"));
        }
    }
    Ok(flags)
}

/// Whether a term of the rules holds.
fn holds(term: &str, flags: &Flags, environment: &BTreeMap<String, String>) -> bool {
    if let Some(term) = term.strip_prefix('!') {
        return !holds(term, flags, environment);
    }
    let (name, wanted) = term.split_once('=').map_or((term, None), |(name, value)| (name, Some(value)));
    let found = match name.strip_prefix('$') {
        Some(variable) => environment.get(variable).map(|value| Some(value.clone())),
        None => flags.get(name).cloned(),
    };
    found.is_some_and(|value| wanted.is_none_or(|wanted| value.as_deref() == Some(wanted)))
}

fn broken_rule(flags: &Flags, environment: &BTreeMap<String, String>) -> Option<String> {
    let mut rules = rows(RULES);
    let broken = rules.find(|rule| {
        let applies = rule[0].split('&').all(|term| holds(term, flags, environment));
        applies && !rule[1].split('|').any(|term| holds(term, flags, environment))
    });
    broken.map(|rule| format!("{} needs {}", rule[0], rule[1]))
}

/// The arithmetic of `validate_args` and `TransformerConfig`.
fn broken_arithmetic(case: &Case, flags: &Flags) -> Option<String> {
    let number = |flag: &str| -> u64 {
        flags.get(flag).and_then(Option::as_ref).and_then(|value| value.parse().ok()).unwrap_or(1)
    };
    let world = u64::from(case.job().nodes) * u64::from(case.job().gpus_per_node);
    let (tensor, pipeline) =
        (number("--tensor-model-parallel-size"), number("--pipeline-model-parallel-size"));
    let context = number("--context-parallel-size");
    let data = world / (tensor * pipeline * context);
    let layers = number("--num-layers");
    let chunk = number("--num-layers-per-virtual-pipeline-stage");
    let chunks = u64::from(case.layout.pipeline) * u64::from(case.layout.virtual_stages);
    let layout = flags.get("--pipeline-model-parallel-layout").and_then(Option::as_deref);
    let micro_batches = number("--global-batch-size") / (number("--micro-batch-size") * data.max(1));
    let checks = [
        ("world", world.is_multiple_of(tensor * pipeline * context)),
        ("batch", number("--global-batch-size").is_multiple_of(number("--micro-batch-size") * data.max(1))),
        ("context", context == 1 || number("--seq-length").is_multiple_of(2 * context)),
        ("positions", number("--max-position-embeddings") >= number("--seq-length")),
        (
            "layers",
            layout.is_some() || (layers / pipeline).is_multiple_of(chunk) && layers.is_multiple_of(pipeline),
        ),
        ("dealt layers", layout.is_none_or(|text| dealt(text) == Some((layers, chunks)))),
        (
            "interleaving",
            !flags.contains_key("--num-layers-per-virtual-pipeline-stage")
                || pipeline > 1 && micro_batches.is_multiple_of(pipeline),
        ),
        ("heads", number("--num-attention-heads").is_multiple_of(tensor)),
        ("experts", number("--num-experts").is_multiple_of(number("--expert-model-parallel-size"))),
        (
            "expert ranks",
            (world / pipeline).is_multiple_of(
                number("--expert-model-parallel-size") * number("--expert-tensor-parallel-size"),
            ),
        ),
        ("instances", (data * context).is_multiple_of(number("--num-distributed-optimizer-instances"))),
        (
            "overlap of experts",
            !flags.contains_key("--overlap-moe-expert-parallel-comm")
                || number("--expert-model-parallel-size") > 1
                    && (pipeline == 1 || case.layout.virtual_stages > 1),
        ),
        (
            "flex dispatcher",
            flags.get("--moe-token-dispatcher-type").and_then(Option::as_deref) != Some("flex")
                || number("--expert-model-parallel-size") * number("--expert-tensor-parallel-size") > 1,
        ),
    ];
    checks.into_iter().find(|(_, is_right)| !is_right).map(|(what, _)| format!("the {what} do not work out"))
}

/// Layers and chunks of a layout such as `Et*7|(t*8|)*14t*7L`, by Megatron's own rules: repetitions of groups, then of
/// letters.
fn dealt(text: &str) -> Option<(u64, u64)> {
    let mut flat = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('(') {
        let (group, after) = after.split_once(")*")?;
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        flat += before;
        flat += &group.repeat(digits.parse().ok()?);
        rest = &after[digits.len()..];
    }
    flat += rest;
    let (mut letters, mut last) = (String::new(), None);
    let mut characters = flat.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '*' {
            letters.push(character);
            last = Some(character);
            continue;
        }
        let mut count = 0;
        while let Some(digit) = characters.peek().and_then(|next| next.to_digit(10)) {
            count = count * 10 + digit as usize;
            characters.next();
        }
        letters.extend(std::iter::repeat_n(last?, count - 1));
    }
    let is_framed = letters.starts_with('E') && letters.ends_with('L');
    let has_empty_stage = letters.split('|').any(|stage| !stage.contains(['t', 'm']));
    let layers = letters.chars().filter(|letter| *letter == 't').count() as u64;
    (is_framed && !has_empty_stage).then_some((layers, letters.split('|').count() as u64))
}

fn objection(case: &Case, settings: &str) -> Option<String> {
    let table = accepted(FLAGS, 0, None);
    let command = Command::read(settings);
    let flags = match read(&command, &table) {
        Ok(flags) => flags,
        Err(objection) => return Some(objection),
    };
    let is_split = case.layout.tensor > 1 || case.layout.context > 1;
    let is_fsdp = flags.contains_key("--use-megatron-fsdp");
    let is_ordered = command.environment.get("CUDA_DEVICE_MAX_CONNECTIONS").is_some_and(|value| value == "1");
    if is_split && !is_fsdp && !case.is_blackwell && !is_ordered {
        return Some("CUDA_DEVICE_MAX_CONNECTIONS must be 1".into());
    }
    broken_rule(&flags, &command.environment).or_else(|| broken_arithmetic(case, &flags))
}

#[test]
fn settings_have_flags_that_exist_with_values_that_are_accepted_in_combinations_that_are_allowed() {
    let mut checked = 0;
    for case in cases() {
        if let Ok(settings) = Trainer::MegatronLm.settings(&case.job()) {
            assert_eq!(objection(&case, &settings), None, "{}\n{settings}", case.name());
            checked += 1;
        }
    }
    assert!(checked > 1000, "only {checked} layouts were checked");
}

#[test]
fn split_gradients_and_weights_are_trained_with_megatron_fsdp() {
    let split =
        |sharding| matches!(sharding, Sharding::Gradients | Sharding::Weights | Sharding::WeightsWithin(_));
    for case in cases().iter().filter(|case| split(case.layout.sharding)) {
        if let Ok(settings) = Trainer::MegatronLm.settings(&case.job()) {
            assert!(settings.contains("--use-megatron-fsdp"), "{settings}");
            assert!(settings.contains("unset CUDA_DEVICE_MAX_CONNECTIONS"), "{settings}");
        }
    }
}

#[test]
fn what_the_program_lacks_is_said_instead() {
    for case in cases() {
        let lacks = Trainer::MegatronLm.settings(&case.job()).err();
        if matches!(case.workload.task, Task::Lora { .. }) {
            assert_eq!(lacks, Some(Lacks::Adapters));
        }
        if case.layout.schedule != Schedule::default() && !matches!(case.workload.task, Task::Lora { .. }) {
            assert_eq!(lacks, Some(Lacks::Schedule));
        } else if case.model.name.starts_with("bloom") && !matches!(case.workload.task, Task::Lora { .. }) {
            assert_eq!(lacks, Some(Lacks::Alibi));
        }
    }
}

/// The checks themselves find what they should.
#[test]
fn wrong_flags_values_and_combinations_are_found() {
    let case =
        cases().into_iter().find(|case| case.layout.tensor > 1 && case.layout.is_sequence_parallel).unwrap();
    let right = Trainer::MegatronLm.settings(&case.job()).unwrap();
    let finds = |from: &str, to: &str, said: &str| {
        assert!(right.contains(from), "{right}");
        let objection = objection(&case, &right.replace(from, to)).expect("a wrong setting is found");
        assert!(objection.contains(said), "{objection}");
    };
    finds("--hidden-size", "--hidden-width", "no flag");
    finds("--hidden-size ", "--hidden-size x", "is no int");
    finds("--normalization RMSNorm", "--normalization Rms", "is no str");
    finds("--sequence-parallel ", "", "--tp-comm-overlap needs");
    finds("export CUDA_DEVICE_MAX_CONNECTIONS=1", "", "CUDA_DEVICE_MAX_CONNECTIONS");
    finds("--micro-batch-size 1", "--micro-batch-size 77", "batch");
}
