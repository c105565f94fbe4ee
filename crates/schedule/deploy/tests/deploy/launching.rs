//! Plans as commands.

use bedplate_deploy::launch::{Software, launch};
use bedplate_deploy::{Pattern, Plan, Workers};
use expect_test::{Expect, expect};

use crate::support::question;

fn check(model: &str, pattern: &str, software: Software, expected: Expect) {
    let question = question(model, "p5en.48xlarge:2", (4000, 500, 1.0), (0.0, 0.0));
    let need = question.need();
    let pattern: Pattern = pattern.parse().expect("it is a pattern");
    let workers = |layout, replicas| Workers { layout, replicas, max_seqs: 64 };
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
              --max-model-len 4864 \
              --gpu-memory-utilization 0.92 \
              --quantization fp8 \
              --kv-cache-dtype fp8

            # once, in front of the replicas; put their addresses in place of these names
            bedplate route \
              --replica http://replica-0:8000 \
              --replica http://replica-1:8000"#]],
    );
}

#[test]
fn sglang_counts_attention_data_ranks_into_tensor_ranks() {
    check(
        "deepseek-v3",
        "tp1.ep16.adp16.fp8",
        Software::Sglang,
        expect![[r##"
            # 2 replicas of 16 GPUs each: for each run it on 2 nodes, with RANK=0 to 1 and HEAD=the address of the first
            python -m sglang.launch_server --model-path some/model \
              --tp-size 16 \
              --dp-size 16 --enable-dp-attention \
              --ep-size 16 \
              --nnodes 2 --node-rank "$RANK" \
              --dist-init-addr "$HEAD":20000 \
              --max-running-requests 64 \
              --chunked-prefill-size 2048 \
              --context-length 4864 \
              --mem-fraction-static 0.92 \
              --quantization fp8

            # once, in front of the replicas; put their addresses in place of these names
            python -m sglang_router.launch_router \
              --worker-urls http://replica-0:30000 http://replica-1:30000"##]],
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
              --max-model-len 4864 \
              --gpu-memory-utilization 0.92 \
              --quantization fp8 \
              --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' \
              --disaggregation-mode prefill

            # 2 decode workers of 4 GPUs each: run 2 times
            python -m dynamo.vllm --model some/model \
              --tensor-parallel-size 4 \
              --max-num-seqs 64 \
              --max-num-batched-tokens 2048 \
              --max-model-len 4864 \
              --gpu-memory-utilization 0.92 \
              --quantization fp8 \
              --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' \
              --disaggregation-mode decode"##]],
    );
}

#[test]
fn bedplate_serve_gets_a_command_or_what_it_cannot_do() {
    check(
        "llama-3.1-8b",
        "tp1.bf16",
        Software::Bedplate,
        expect![[r#"
            # 2 replicas of 1 GPU each: run 2 times
            # the model is a folder in Hugging Face's format
            bedplate serve some/model \
              --device cuda:0 --weights bf16 \
              --max-seqs 64 --chunk 2048 --token-budget 2048 \
              --context 4864

            # once, in front of the replicas; put their addresses in place of these names
            bedplate route \
              --replica http://replica-0:8000 \
              --replica http://replica-1:8000"#]],
    );
    check(
        "llama-3.3-70b",
        "tp2.fp8+tp4.fp8",
        Software::Bedplate,
        expect![[r#"
        # 1 prompt worker of 2 GPUs each: run once
        # `bedplate serve` cannot do a replica over several GPUs yet: choose another engine,
        # or plan again with --precision bf16,fp8 and GPUs that hold the model

        # 2 decode workers of 4 GPUs each: run 2 times
        # `bedplate serve` cannot do a replica over several GPUs yet: choose another engine,
        # or plan again with --precision bf16,fp8 and GPUs that hold the model"#]],
    );
}
