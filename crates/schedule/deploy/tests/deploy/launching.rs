//! Plans as commands.

use bedplate_deploy::launch::{Software, launch};
use bedplate_deploy::{Pattern, Plan, Workers};
use expect_test::{Expect, expect};

use crate::support::question;

fn check(model: &str, pattern: &str, software: Software, expected: Expect) {
    let question = question(model, "p5en.48xlarge:2", (4000, 500, 1.0), (0.0, 0.0));
    let need = question.need();
    let pattern: Pattern = pattern.parse().expect("it is a pattern");
    let workers = |cut, replicas| Workers { cut, replicas, seats: 64 };
    let first = pattern.first.completed(&need);
    let plan = match pattern.second {
        None => Plan::Aggregated(workers(first, 2)),
        Some(second) => {
            Plan::Disaggregated { prefill: workers(first, 1), decode: workers(second.completed(&need), 2) }
        }
    };
    expected.assert_eq(&launch(&need, &question.supply, &plan, "some/model", software));
}

#[test]
fn vllm_gets_degrees_formats_and_limits() {
    check(
        "llama-3.3-70b",
        "tp4.pp2.fp8.kv-fp8.chunk8192",
        Software::Vllm,
        expect![[r#"
        # 2 replicas of 8 GPUs each: run 2 times
        vllm serve some/model \
          --tensor-parallel-size 4 \
          --pipeline-parallel-size 2 \
          --max-num-seqs 64 \
          --max-num-batched-tokens 8192 \
          --max-model-len 4845 \
          --gpu-memory-utilization 0.92 \
          --quantization fp8 \
          --kv-cache-dtype fp8

        # a router in front of the replicas spreads requests over them"#]],
    );
}

#[test]
fn sglang_counts_attention_data_ranks_into_tensor_ranks() {
    check(
        "deepseek-v3",
        "tp1.ep16.adp16.fp8",
        Software::Sglang,
        expect![[r#"
        # 2 replicas of 16 GPUs each: run 2 times
        python -m sglang.launch_server --model-path some/model \
          --tp-size 16 \
          --dp-size 16 --enable-dp-attention \
          --ep-size 16 \
          --max-running-requests 64 \
          --chunked-prefill-size 2048 \
          --context-length 4845 \
          --mem-fraction-static 0.92 \
          --quantization fp8

        # a router in front of the replicas spreads requests over them"#]],
    );
}

#[test]
fn dynamo_gets_a_frontend_and_a_duty_for_each_pool() {
    check(
        "llama-3.3-70b",
        "tp2.fp8+tp4.fp8",
        Software::Dynamo,
        expect![[r##"
            # once, in front of all workers
            python -m dynamo.frontend --router-mode kv

            # 1 prompt worker of 2 GPUs each: run once
            python -m dynamo.vllm --model some/model \
              --tensor-parallel-size 2 \
              --max-num-seqs 64 \
              --max-num-batched-tokens 2048 \
              --max-model-len 4845 \
              --gpu-memory-utilization 0.92 \
              --quantization fp8 \
              --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' \
              --disaggregation-mode prefill

            # 2 decode workers of 4 GPUs each: run 2 times
            python -m dynamo.vllm --model some/model \
              --tensor-parallel-size 4 \
              --max-num-seqs 64 \
              --max-num-batched-tokens 2048 \
              --max-model-len 4845 \
              --gpu-memory-utilization 0.92 \
              --quantization fp8 \
              --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' \
              --disaggregation-mode decode"##]],
    );
}

#[test]
fn bedplate_serve_gets_one_command_for_each_pool() {
    check(
        "llama-3.3-70b",
        "tp2.fp8+tp4.fp8",
        Software::Bedplate,
        expect![[r#"
            # 1 prompt worker of 2 GPUs each: run once
            bedplate serve --model some/model \
              --layout tp2 \
              --replicas 1 \
              --weights fp8 --kv bf16 \
              --seats 64 --chunk 2048 \
              --context 4845 \
              --role prefill

            # 2 decode workers of 4 GPUs each: run once
            bedplate serve --model some/model \
              --layout tp4 \
              --replicas 2 \
              --weights fp8 --kv bf16 \
              --seats 64 --chunk 2048 \
              --context 4845 \
              --role decode"#]],
    );
}
