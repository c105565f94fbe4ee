//! Traces read from text, and what is said about lines that cannot be.

use std::fs;

use bedplate_diag::{Source, render_text};
use bedplate_replay::requests::{
    Fleet, LinearEngine, Planned, Pool, Prefix, Traffic, picoseconds, read_trace, simulate,
};
use expect_test::{Expect, expect};

const MILLISECOND: u64 = 1_000_000_000;

#[test]
fn an_azure_trace_counts_time_from_its_first_request() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n\
                2023-11-16 18:15:50.9951690,396,109\n\n2023-11-16 18:15:46.6800000,10,1\n";
    let requests = read_trace(Source::new("azure.csv", text)).unwrap();
    assert_eq!(
        requests,
        [
            Planned::new(590_000_000, 374, 44),
            Planned::new(4_315_169_000_000, 396, 109),
            Planned::new(0, 10, 1)
        ]
    );
}

#[test]
fn json_lines_have_hashes_of_blocks_and_share_by_them() {
    let text = r#"{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 1002.5, "input_length": 1024, "output_length": 7, "hash_ids": [1, 9], "tenant": 3, "priority": -1, "samples": 2}"#;
    let requests = read_trace(Source::new("mooncake.jsonl", text)).unwrap();
    assert_eq!((requests[0].at, requests[1].at), (0, 2_500_000_000));
    assert_eq!((requests[1].tenant, requests[1].priority, requests[1].samples), (3, -1, 2));
    let keys: Vec<_> =
        requests.iter().map(|planned| planned.prefix.keys(planned.prompt_tokens, 1, 16)).collect();
    assert_eq!((keys[0].len(), keys[1].len()), (1100 / 16, 64));
    let common = keys[0].iter().zip(keys[1].iter()).take_while(|(a, b)| a == b).count();
    assert_eq!(common, 512 / 16);
}

#[test]
fn a_shared_hash_is_computed_once() {
    let request = |at, hashes: &[u64]| Planned {
        prefix: Prefix::Hashes { block_tokens: 512, hashes: hashes.to_vec() },
        ..Planned::new(at, 1536, 4)
    };
    let trace = vec![request(0, &[1, 2, 3]), request(900 * MILLISECOND, &[1, 2, 4])];
    let engine = LinearEngine::default();
    let outcome = simulate(Traffic::Trace(trace), &Fleet::aggregated(Pool::new(1, &engine))).unwrap();
    assert_eq!(outcome.records[1].cached_tokens, 1024);
    assert!(outcome.records[1].ttft() < outcome.records[0].ttft());
}

#[test]
fn prompts_share_only_what_begins_with_the_same_hashes_of_the_same_blocks() {
    let keys = |block_tokens: u32, hashes: &[u64]| {
        let prefix = Prefix::Hashes { block_tokens, hashes: hashes.to_vec() };
        prefix.keys(block_tokens * hashes.len() as u32, 1, 16).iter().collect::<Vec<_>>()
    };
    let all =
        [keys(512, &[5]), keys(512, &[0, 5]), keys(512, &[0, 0, 5]), keys(16, &[5, 5]), keys(32, &[5, 0])];
    for (one, other) in all.iter().enumerate().flat_map(|(at, one)| all[..at].iter().map(move |it| (one, it)))
    {
        let common = one.iter().filter(|key| other.contains(key)).count();
        let both_begin_with_0 = one.len() >= 64 && other.len() >= 64;
        assert_eq!(
            common,
            if both_begin_with_0 { 32 } else { 0 },
            "{} and {} blocks",
            one.len(),
            other.len()
        );
    }
}

fn check(text: &str, expected: Expect) {
    let error = read_trace(Source::new("trace", text)).expect_err("it cannot be read");
    expected.assert_eq(&render_text(&error));
}

#[test]
fn lines_that_cannot_be_read_are_named() {
    check(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:47,x,44\n",
        expect![[r#"
            error[replay/malformed-request]: a line of the trace cannot be read: the prompt is not a count of tokens
              in   trace:3: 2023-11-16 18:15:47,x,44
            help:  correct the line, or remove it from the file
        "#]],
    );
    check(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374\n",
        expect![[r#"
            error[replay/malformed-request]: a line of the trace cannot be read: it has 2 fields and the header 3
              in   trace:2: 2023-11-16 18:15:46,374
            help:  correct the line, or remove it from the file
        "#]],
    );
    check(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,0\n",
        expect![[r#"
            error[replay/malformed-request]: a line of the trace cannot be read: the output is 0
              in   trace:2: 2023-11-16 18:15:46,374,0
            help:  correct the line, or remove it from the file
        "#]],
    );
    check(
        "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,374\n",
        expect![[r#"
            error[replay/missing-column]: the trace has no column `GeneratedTokens`
              in   trace:1: TIMESTAMP,ContextTokens
            help:  give a header such as `TIMESTAMP,ContextTokens,GeneratedTokens`
        "#]],
    );
    check(
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5}\n{\"timestamp\": 0, \"input_length\": 5,\n",
        expect![[r#"
            error[replay/malformed-request]: a line of the trace cannot be read: it is JSON that stops in the middle
              in   trace:2: {"timestamp": 0, "input_length": 5,
            help:  correct the line, or remove it from the file
        "#]],
    );
    check(
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": [1, 2]}\n",
        expect![[r#"
            error[replay/malformed-request]: a line of the trace cannot be read: 2 hashes are more than a prompt of 5 tokens has blocks of 512
              in   trace:1: {"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1, 2]}
            help:  correct the line, or remove it from the file
        "#]],
    );
    check(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        expect![[r#"
            error[replay/empty-trace]: the trace has no requests
              in   trace
            help:  check that it is the right file
        "#]],
    );
    check(
        "hello\n",
        expect![[r#"
            error[replay/unknown-trace]: this is not a known trace of requests
              in   trace:1: hello
            help:  give an Azure LLM trace (CSV) or JSON lines with `timestamp`, `input_length` and `output_length`
        "#]],
    );
}

/// The published conversation trace of 2023, where it is available: 19,366 requests in an hour.
#[test]
fn the_azure_conversation_trace_is_replayed_whole() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../../shared/traces/azure_llm/AzureLLMInferenceTrace_2023_conv.csv"
    );
    let Ok(text) = fs::read_to_string(path) else {
        println!("SKIPPED: replay of the Azure trace: {path} is not there");
        return;
    };
    let trace = read_trace(Source::new("azure", &text)).unwrap();
    assert_eq!(trace.len() + 1, text.lines().count());
    let engine = LinearEngine::default();
    let count = trace.len() as u64;
    let outcome = simulate(Traffic::Trace(trace), &Fleet::aggregated(Pool::new(3, &engine))).unwrap();
    assert_eq!(outcome.finished, count);
    assert!(outcome.duration > picoseconds(3000.0));
}
