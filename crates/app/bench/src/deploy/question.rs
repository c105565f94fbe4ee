//! What the script is asked about a measured row, and what it answers: one line of JSON each.

use bedplate_calibrate::serving::{PeerLatency, ServingCase};
use bedplate_perf::serving::{Parallel, ServingConstants};
use bedplate_transformer::Precision;
use serde_json::{Value, json};

/// A row as the script takes it. Tokens per step with drafts are ours, as the row does not state them.
pub(super) fn question(case: &ServingCase, constants: &ServingConstants) -> Value {
    let deployment = &case.deployment;
    let workers = case.pools.as_ref().map_or(1, |pools| pools.decode_workers);
    let prefill = case.pools.as_ref().map(|pools| worker(&pools.prefill.parallel, pools.prefill_workers));
    json!({
        "id": case.id,
        "model": case.model,
        "chip": case.accelerator,
        "engine": deployment.engine.name(),
        "version": case.engine.split_once(' ').map_or("", |(_, version)| version),
        "weights": format(deployment.weights.experts),
        "kv": format(deployment.kv),
        "is_mixture": deployment.model.transformer.is_mixture(),
        "input": case.load.input.longest,
        "output": case.load.output.longest,
        "users": case.load.concurrency,
        "chunk": deployment.settings.chunk,
        "drafts": case.drafts,
        "tokens_per_step": case.tokens_per_step(constants).unwrap_or(1.0),
        "decode": worker(&deployment.parallel, workers),
        "prefill": prefill,
    })
}

fn worker(parallel: &Parallel, workers: u32) -> Value {
    json!({
        "workers": workers,
        "tp": parallel.tensor,
        "pp": parallel.pipeline,
        "ep": parallel.expert,
        "attention_dp": parallel.attention_data,
    })
}

/// The names that tables of measurements use.
fn format(precision: Precision) -> &'static str {
    match precision {
        Precision::Nvfp4 | Precision::Mxfp4 => "fp4",
        Precision::Int4 => "int4",
        Precision::Int8 => "int8",
        Precision::Fp8 => "fp8",
        Precision::Bf16 | Precision::Fp16 | Precision::Fp32 => "bf16",
    }
}

/// What the peer says of itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct About {
    pub(super) version: String,
    /// The systems of its database.
    pub(super) systems: Vec<String>,
    /// CPU-seconds until it could be asked.
    pub(super) import_seconds: f64,
}

impl About {
    pub(super) fn read(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let systems = value["systems"].as_array()?.iter();
        Some(Self {
            version: value["version"].as_str()?.to_owned(),
            systems: systems.map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>()?,
            import_seconds: seconds(&value["import_cpu_s"])?,
        })
    }
}

/// The answer about a row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// CPU-seconds the first time, which may read tables from disk, and once they are read.
    pub(super) first_seconds: f64,
    pub(super) seconds: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    Predicted {
        latency: PeerLatency,
        /// Measured kernels were missing, and the peer filled them in by its own rules.
        is_filled: bool,
        /// The peer warns that some of the users wait for room.
        is_queued: bool,
    },
    Refused(String),
}

impl Answer {
    /// Reads the answer about the row of that id. `None` for anything else: another row's, cut short, latencies that are no times.
    pub(super) fn read(line: &str, id: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        if value["id"].as_str()? != id {
            return None;
        }
        let outcome = match &value["refused"] {
            Value::String(reason) => Outcome::Refused(reason.clone()),
            _ => Outcome::Predicted {
                latency: PeerLatency {
                    first_token: seconds(&value["ttft_s"]).filter(|time| *time > 0.0)?,
                    inter_token: seconds(&value["itl_s"]).filter(|time| *time > 0.0)?,
                },
                is_filled: value["is_filled"].as_bool()?,
                is_queued: value["is_queued"].as_bool()?,
            },
        };
        Some(Self {
            outcome,
            first_seconds: seconds(&value["first_cpu_s"])?,
            seconds: seconds(&value["cpu_s"])?,
        })
    }
}

fn seconds(value: &Value) -> Option<f64> {
    value.as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
}

#[cfg(test)]
mod tests {
    use bedplate_calibrate::serving::ServingCases;
    use bedplate_catalog::Catalog;

    use super::*;

    const HEADER: &str = "id,source,model,accelerator,gpus,tp,pp,ep,dp,precision,engine,isl,osl,concurrency_or_rate,\
        ttft_ms,itl_ms,pools,load_kind,notes\n";

    fn asked(row: &str) -> Value {
        let cases =
            ServingCases::read(&format!("{HEADER}{row}\n"), &Catalog::builtin()).expect("the row is sound");
        question(&cases.used[0], &ServingConstants::builtin())
    }

    #[test]
    fn a_dense_row_is_asked_as_it_ran() {
        let row =
            "a,mine,Llama-3.1-70B,H200,4,4,1,,,fp8,trtllm 1.1.0rc2,1024,8192,16,90,9,aggregated,closed_loop,";
        assert_eq!(
            asked(row),
            json!({
                "id": "a", "model": "Llama-3.1-70B", "chip": "H200", "engine": "trtllm", "version": "1.1.0rc2",
                "weights": "fp8", "kv": "fp8", "is_mixture": false, "input": 1024, "output": 8192, "users": 16,
                "chunk": 8192, "drafts": 0, "tokens_per_step": 1.0,
                "decode": { "workers": 1, "tp": 4, "pp": 1, "ep": 1, "attention_dp": 1 },
                "prefill": null,
            })
        );
    }

    #[test]
    fn a_mixture_in_pools_has_both_workers() {
        let row = "b,InferenceX,DeepSeek-V3,GB200,20,,,,,fp4,trtllm,1024,1024,64,400,9,disaggregated,closed_loop,\
            \"prefill={n: 1, tp: 4, adp: 1, ep: 1} decode={n: 2, tp: 1, adp: 8, ep: 8}\"";
        let asked = asked(row);
        assert_eq!(asked["weights"], "fp4");
        assert_eq!(asked["version"], "");
        assert_eq!(asked["prefill"], json!({ "workers": 1, "tp": 4, "pp": 1, "ep": 1, "attention_dp": 1 }));
        assert_eq!(asked["decode"], json!({ "workers": 2, "tp": 1, "pp": 1, "ep": 8, "attention_dp": 8 }));
    }

    #[test]
    fn drafts_are_asked_with_what_they_bring() {
        let row = "c,InferenceX,DeepSeek-R1,B200,8,8,1,8,1,fp8,trtllm,1024,1024,4,200,4,aggregated,closed_loop,source_file=2026";
        let asked = asked(row);
        assert_eq!(asked["drafts"], 3);
        assert!(asked["tokens_per_step"].as_f64().is_some_and(|tokens| tokens > 1.5 && tokens < 4.0));
    }

    #[test]
    fn answers_are_read() {
        let line = r#"{"id": "a", "ttft_s": 0.25, "itl_s": 0.01, "is_filled": false, "is_queued": true, "first_cpu_s": 2.5, "cpu_s": 0.02}"#;
        let latency = PeerLatency { first_token: 0.25, inter_token: 0.01 };
        let outcome = Outcome::Predicted { latency, is_filled: false, is_queued: true };
        assert_eq!(Answer::read(line, "a"), Some(Answer { outcome, first_seconds: 2.5, seconds: 0.02 }));
        let line = r#"{"id": "a", "refused": "no data", "first_cpu_s": 0.1, "cpu_s": 0.02}"#;
        assert_eq!(
            Answer::read(line, "a").map(|answer| answer.outcome),
            Some(Outcome::Refused("no data".into()))
        );
    }

    #[test]
    fn what_is_no_answer_is_none() {
        let whole = r#"{"id": "a", "ttft_s": 0.25, "itl_s": 0.01, "is_filled": false, "is_queued": true, "first_cpu_s": 2.5, "cpu_s": 0.02}"#;
        for end in 0..whole.len() {
            assert_eq!(Answer::read(&whole[..end], "a"), None, "cut at {end}");
        }
        assert_eq!(Answer::read(whole, "b"), None, "another row's");
        for (good, bad) in [
            ("0.25", "NaN"),
            ("0.25", "Infinity"),
            ("0.25", "1e999"),
            ("0.25", "-1"),
            ("0.01", "0"),
            ("0.01", "null"),
            ("0.01", "\"fast\""),
            ("true", "1"),
            ("0.02", "-0.1"),
        ] {
            assert_eq!(Answer::read(&whole.replace(good, bad), "a"), None, "{bad} for {good}");
        }
        for line in ["", "[]", "7", "Traceback (most recent call last):", "{\"id\": 1}"] {
            assert_eq!(Answer::read(line, "a"), None, "{line}");
        }
    }

    #[test]
    fn what_the_peer_says_of_itself_is_read() {
        let line = r#"{"version": "0.12.0", "systems": ["h100_sxm", "l40s"], "import_cpu_s": 2.7}"#;
        let about = About::read(line).expect("it is whole");
        assert_eq!((about.version.as_str(), about.systems.len()), ("0.12.0", 2));
        for line in
            ["", "ready", r#"{"version": 1, "systems": [], "import_cpu_s": 1}"#, &line.replace("2.7", "NaN")]
        {
            assert_eq!(About::read(line), None, "{line}");
        }
    }
}
