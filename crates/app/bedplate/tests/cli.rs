//! Golden runs: what a user sees, errors and help included.
//!
//! `UPDATE_EXPECT=1 cargo test -p bedplate` rewrites the files in `tests/golden` after an intended change.

use bedplate_testkit::Transcript;
use expect_test::expect_file;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");
const INPUTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/inputs");

fn terminal() -> Transcript {
    Transcript::of(PROGRAM, INPUTS)
}

bedplate_testkit::golden! {
    help: ["--help", "help catalog", "catalog instances --help", "cluster --help", "model show --help", "layout --help", "replay jobs --help"]
    cluster_help: ["up --help", "submit --help", "queue --help", "job --help", "node --help", "chaos --help"]
    slurm_jobs: [
        "job render heals.toml --for slurm",
        "job render job.sbatch --for slurm",
        "--json job render heals.toml --for slurm",
        "job render missing.toml --for slurm",
        "job render heals.toml --for pbs",
        "launch -- true",
        "launch --here 1 --spares 1 -- true",
        "launch --here 1 -- true",
    ]
    doctor: [
        "doctor --root doctor-node --node n1",
        "doctor --nccl-log nccl-good.log",
        "doctor --nccl-log nccl-sockets.log --like p5.48xlarge",
        "--json doctor --nccl-log nccl-sockets.log",
        "doctor --like p5.49xlarge",
        "doctor --nccl-log missing.log",
        "doctor --help",
    ]
    selftest: ["selftest --help", "selftest --device gpu"]
    observe: [
        "dashboards",
        "dashboards gpu-health",
        "rules --help",
        "rules --profile mine",
        "scrape-config static 'n[01-03]' gpu.example.com:9500 --daemon head:7431 --rules rules.yml --alertmanager head:9093",
        "scrape-config cluster --interval 2",
        "scrape-config ec2 --region us-east-1 --tag cluster=train --amp https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-1/api/v1/remote_write",
        "scrape-config ec2 --region us-east-1 --tag cluster",
        "scrape-config ec2 --region us-east-1 --tag a=b --amp https://example.com",
        "scrape-config kubernetes",
    ]
    health: [
        "health --help",
        "health xid 63",
        "health xid 154",
        "health xid 9999",
        "--json health xid 79",
        "health rules gpu/ecc-single-bit-accelerating",
        "health rules gpu/hott",
        "health rules gpu/hot --own health.toml",
        "health rules --own health-wrong.toml",
        "export --help",
        "export --scrape ftp://x",
        "export --listen 0.0.0.0:1",
        "export --listen localhost:9400",
        "export --once --interval 0s",
        "export --listen 127.0.0.1:99999",
        "export --once --health-rules missing.toml",
    ]
    slurm_help: ["launch --help", "job render --help", "unit --help"]
    tour: ["tour --no-cluster"]
    catalog_lists: ["catalog", "catalog accelerators", "catalog instances", "catalog ultraservers", "catalog fabrics", "catalog storage"]
    catalog_by_need: [
        "catalog instances --memory '>=141GB' --fabric efa",
        "catalog instances --accelerator h100 --purchase capacity-block",
        "catalog instances --price '<$1' --memory '>1TB'",
        "catalog accelerators --vendor aws",
        "catalog storage --tier local",
        "catalog fabrics --family infiniband",
    ]
    catalog_compare: ["catalog compare p5.48xlarge p6-b200.48xlarge", "catalog compare h100 h200 b200", "catalog compare s3-standard s3-express"]
    catalog_show: ["catalog show h200", "catalog show p5.48xlarge", "catalog show trainium2", "catalog show fsx-lustre-scratch", "catalog show mountpoint-s3", "catalog show nvlink-c2c"]
    catalog_overlay: [
        "--catalog own.toml catalog show rack-node",
        "--catalog own.toml catalog instances --provider on-premise",
        "catalog check own.toml",
        "catalog check wrong-figure.toml",
        "catalog check missing.toml",
        "catalog check not-text.toml",
    ]
    catalog_errors: [
        "catalog show h2000",
        "catalog compare h100 p5.48xlarge",
        "catalog compare h100",
        "catalog instances --memory 141",
        "catalog instances --accelerator h10O",
        "catalog instances --fabric efax",
        "catalog storage --tier warm",
        "catalog instances --provider awss",
        "catalog instances --region us-east-9",
        "catalog accelerators --vendor nvidea",
        "catalog fabrics --family nvlnk",
    ]
    comm_flight: [
        "comm --help",
        "comm flight flight",
        "comm flight flight --json",
        "comm flight flight-quiet",
        "comm flight flight-none",
        "comm flight .",
    ]
    cluster_show: ["cluster show p5.48xlarge:64", "cluster show u-p6e-gb200x72:4", "cluster show p5.48xlarge:2+p5en.48xlarge:1", "cluster show cluster.toml", "cluster show topology.conf slurm.conf"]
    cluster_convert: [
        "cluster import topology.conf slurm.conf",
        "cluster export topology.conf slurm.conf --as slurm-tree",
        "cluster export topology.conf slurm.conf --as slurm-yaml",
        "cluster export u-p6e-gb200x72:2 --as slurm-block",
        "cluster export p5.48xlarge:4 --as slurm-nodes",
        "cluster check cluster.toml",
        "cluster check topology.conf slurm.conf",
        "cluster meet cluster.toml n01 n05",
        "cluster meet u-p6e-gb200x72:2 n01 n18",
    ]
    cluster_errors: [
        "cluster show p5.49xlarge:4",
        "cluster show p5.48xlarge:0",
        "cluster show p5.48xlarge:999999999",
        "cluster show p5.48xlarge:many",
        "cluster check cycle.conf slurm.conf",
        "cluster check topology.conf",
        "cluster check config.json",
        "cluster check not-text.toml",
        "cluster meet cluster.toml n01 n99",
    ]
    model_show: ["model show llama-3.1-70b", "model show deepseek-v3 --seq 4096 --attention full", "model show gpt2 --seq 4096", "model show config.json", "model list llama"]
    model_errors: ["model show lama-3.1-8b", "model show wrong-config.json", "model show own.toml", "model show missing.json", "model show gpt2 --seq 0"]
    layout: ["layout dp8.tp4.pp2", "layout fsdp.dp64 --model llama-3.1-8b --gpus 64", "layout dp64.ep8.tp2 --model mixtral-8x7b --seq 4096 --global-batch 512"]
    layout_errors: ["layout dp8.tq4", "layout tp3.dp2 --model llama-3.1-70b --gpus 8", "layout dp8 --seq 4096", "layout tp3.sp.vpp2 --model llama-3.1-70b --gpus 8"]
    plan_train: [
        "plan train --model llama-3.1-405b --cluster p5.48xlarge:2048 --tokens 15T",
        "plan train --model mixtral-8x7b --cluster p5.48xlarge:2 --explain dp4.tp4.sp.ep3 --top 2",
        "plan train --model llama-3.1-70b --cluster p5.48xlarge:8 --explain dp64.zero1 --top 2 --what-if",
        "plan train --model llama-3.1-8b --cluster p5.48xlarge:1 --scaling weak --top 1 --launch",
        "plan train --model llama-3.1-70b --cluster u-p6e-gb200x72:1 --precision fp8 --seq 4k --tokens 100B --top 1",
        "plan train --model llama-3.1-8b --cluster p5.48xlarge:1 --task lora --top 1",
        "plan train --model llama-3.1-8b --cluster p5.48xlarge:1 --tokens 1T --like opt-175b --restart-time 5m --top 1",
    ]
    plan_launch: [
        "plan train --model llama-3.1-70b --cluster p5.48xlarge:8 --layout dp64.zero3.recompute-full --top 1 --launch",
        "plan train --model qwen3-30b-a3b --cluster p6-b200.48xlarge:2 --layout dp16.ep8.zero1 --precision fp8 --top 1 --launch",
        "plan train --model llama-3.1-405b --cluster p5en.48xlarge:128 --layout dp8.tp8.sp.pp16.zero1 --global-batch 256 --top 1 --launch",
    ]
    plan_calibrate: [
        "plan calibrate --runs run-a run-c run-d --host host.toml",
        "plan calibrate --runs run-a --host host-ranks.toml",
        "plan calibrate --jobs job-plan.json=job-reports.jsonl",
        "plan calibrate --runs run-z --host host.toml",
        "plan calibrate --runs run-a --host own.toml",
        "plan calibrate --jobs job-plan.json",
        "plan calibrate --jobs job-plan.json=job-plan.json",
        "plan calibrate --jobs config.json=job-reports.jsonl",
    ]
    plan_host: [
        "--catalog host.toml catalog show host",
        "--catalog host.toml plan train --model gpt2 --cluster host:1 --seq 512 --global-batch 16 --precision fp32 --top 3",
        "--catalog host.toml plan train --model qwen3-0.6b --cluster host:1 --seq 512 --global-batch 8 --layout mb2 --top 1 --what-if",
        "--catalog host.toml plan train --model gpt2 --cluster host:2 --seq 512 --global-batch 16",
        "--catalog host-ranks.toml catalog show host",
        "--catalog host-ranks.toml plan train --model gpt2 --cluster host:2 --seq 512 --global-batch 16 --precision fp32 --top 3",
        "--catalog host-ranks.toml plan train --model gpt2 --cluster host:2 --seq 512 --global-batch 16 --layout tp2.fp32",
        "--catalog host-ranks.toml plan train --model gpt2 --cluster host:3 --seq 512 --global-batch 16",
        "--catalog host.toml plan train --model gpt2 --cluster host:1 --stack fsdp",
        "plan train --model llama-3.1-8b --cluster p5.48xlarge:1 --stack bedplate",
        "--catalog host.toml plan serve --model llama-3.1-8b --cluster host:1 --isl 1000 --osl 200 --rate 1/s --slo ttft=300ms,itl=15ms",
    ]
    plan_choose_and_budget: [
        "plan choose --model llama-3.1-70b --tokens 2T --deadline 30d",
        "plan choose --model llama-3.1-8b --tokens 1T --budget '$500K' --purchase capacity-block",
        "plan budget --dollars '$1M' --instance p5.48xlarge",
        "plan budget --gpu-hours 100000 --instance p5en.48xlarge --mfu 0.45",
    ]
    plan_serving: [
        "plan validate --kind serving --data latencies.csv",
        "plan calibrate --kind serving --data latencies.csv",
        "plan validate --kind serving --data config.json",
    ]
    plan_errors: [
        "plan train --model llama-3.1-405b --cluster p5.48xlarge:1",
        "plan train --model llama-3.1-70b --cluster p5.48xlarge:0",
        "plan train --model llama-3.1-70b --cluster p5.48xlarge:125000000",
        "plan train --model llama-3.1-8b --cluster p5.48xlarge:1 --global-batch 3",
        "plan train --model llama-3.1-8b --cluster p5.48xlarge:1 --tokens 1T --deadline 1d",
        "plan train --model llama-3.1-8b --cluster p5.48xlarge:1 --tokens 1T --purchase spot",
        "plan train --model llama-3.1-8b --cluster p5.48xlarge:1 --layout dp8.tq2",
        "plan budget --dollars '$1M' --instance p5e.48xlarge",
        "plan budget --dollars '$1M' --instance p5.48xlarge --mfu 4",
        "plan choose --model llama-3.1-405b --tokens 15T --deadline 1d",
        "plan choose --model llama-3.1-8b --deadline 30d",
        "plan choose --model llama-3.1-8b --tokens 1T --deadline 30d --region us-eest-1",
        "plan train --model llama-3.1-8b --cluster p5.48xlarge:8 --layout dp64.tp64.zero1",
        "plan validate --data own.toml",
    ]
    replay_jobs: [
        "replay jobs jobs.jsonl --cluster cluster.toml",
        "replay jobs jobs.jsonl --cluster cluster.toml --policy fifo --policy ours-rigid --estimates exact --failures meta-h100 --seeds 3",
        "replay jobs jobs.csv --cluster p5.48xlarge:8 --policy easy",
        "replay jobs --generate llm --jobs 300 --load 0.9 --seed 5 --cluster cluster.toml --policy conservative --policy ours",
    ]
    plan_serve: [
        "plan serve --model llama-3.3-70b --cluster p5en.48xlarge:4 --isl 4000 --osl 500 --rate 20/s --slo ttft=600ms,itl=25ms --explain tp8 --launch dynamo",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 200 --rate 10/s --slo ttft=300ms,itl=15ms --test-time --top 4 --launch bedplate",
        "plan serve --model deepseek-v3 --cluster p5en.48xlarge:2 --isl 2000 --osl 500 --rate 2/s --slo ttft=3s,itl=60ms --precision fp8 --pools aggregated --explain tp16 --top 4 --launch sglang",
        "plan serve --model llama-3.1-8b --isl 1000 --osl 200 --rate 10/s --slo itl=20ms --max-gpus 8 --top 3",
        "plan serve --model llama-3.1-8b --isl 1000 --osl 200 --rate 10/s --slo itl=20ms --max-gpus 8 --top 3 --any-chip",
        "plan serve --model llama-3.1-8b --cluster trn2.48xlarge:1 --isl 1000 --osl 200 --rate 10/s --slo ttft=500ms,itl=20ms --top 3",
    ]
    plan_serve_deployed: [
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --trace requests.jsonl --slo ttft=500ms,itl=20ms --top 3",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --trace requests.csv --rate 20/s --slo ttft=500ms,itl=20ms --top 3",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 200 --rate 10/s --slo itl=20ms --adapters 16 --rank 24 --shared-prefix 50 --launch vllm --top 3",
        "plan serve --model gemma-3-4b-it.json --cluster p5en.48xlarge:1 --isl 200 --osl 200 --rate 5/s --slo ttft=1s,itl=20ms --images-per-request 2 --launch sglang --top 3",
        "plan serve --model llama-3.3-70b --prompt-on p5.48xlarge:1 --decode-on p5en.48xlarge:1 --isl 4000 --osl 500 --rate 5/s --slo ttft=1s,itl=30ms --launch dynamo --top 3",
    ]
    plan_posttrain: [
        "plan posttrain --model llama-3.1-8b --cluster p5en.48xlarge:2 --prompts 128 --samples 8 --isl 500 --osl 200..4000",
        "plan posttrain --model llama-3.3-70b --cluster p5en.48xlarge:4 --prompts 64 --samples 8 --isl 1000 --osl 500..4000 --reward 20s",
    ]
    plan_serve_errors: [
        "plan serve --model llama-3.1-405b --cluster p5.48xlarge:1 --isl 4000 --osl 500 --rate 1/s --precision bf16",
        "plan serve --model llama-3.3-70b --cluster p5en.48xlarge:2 --isl 4000 --osl 500 --rate 1/s --slo itl=3ms",
        "plan serve --model llama-3.3-70b --cluster p5en.48xlarge:1 --isl 4000 --osl 500 --rate 20/s --slo ttft=600ms,itl=25ms",
        "plan serve --model llama-3-8b --cluster p5en.48xlarge:1 --isl 9000 --osl 500 --rate 1/s",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 500 --rate 0/s",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 500 --rate 1/s --explain tq8",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 500 --rate 1/s --slo ttft=600",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --trace wrong-requests.csv",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --trace missing.jsonl",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --trace /dev/null",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --trace one-request.csv",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --trace requests.csv --isl 1000",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 500 --rate 1/s --adapters 4 --rank 0",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 500 --rate 1/s --adapters 100000 --rank 512",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 500 --rate 1/s --images-per-request 1",
        "plan serve --model gemma-3-4b-it.json --cluster p5en.48xlarge:1 --isl 1000 --osl 500 --rate 1/s --images-per-request 1 --image-size 0",
        "plan serve --model gemma-3-4b-it.json --cluster p5en.48xlarge:1 --isl 1000 --osl 500 --rate 1/s --images-per-request 1000",
        "plan serve --model llama-3.1-405b --prompt-on p5.4xlarge:1 --decode-on p5en.48xlarge:1 --isl 1000 --osl 500 --rate 1/s",
        "plan serve --model llama-3.3-70b --prompt-on p5.48xlarge:1 --isl 1000 --osl 500 --rate 1/s",
        "plan posttrain --model llama-3.1-405b --cluster p5.48xlarge:1",
    ]
    replay_modelled: [
        "replay requests requests.csv --model llama-3.1-8b --cluster p5en.48xlarge:1 --layout tp1.fp8 --slo ttft=200ms,itl=12ms",
        "replay requests --generate rate=4/s --requests 300 --prompt 2000 --output 200 --model llama-3.3-70b --cluster p5en.48xlarge:1 --layout tp2.fp8+tp4.fp8 --disaggregate 1+1",
        "replay requests requests.csv --model llama-3.3-70b --cluster p5en.48xlarge:1 --layout tp1.bf16",
        "replay requests requests.csv --model llama-3.3-70b",
        "replay requests requests.csv --model llama-3.1-8b --cluster p5en.48xlarge:1 --step-time step=8ms",
    ]
    replay_requests: [
        "replay requests requests.csv --replicas 2 --step-time step=8ms,token=25us,decode=20us,context=20ns --slo ttft=200ms,itl=12ms --price '$12/h'",
        "replay requests requests.jsonl --step-time step=8ms,token=25us --kv-blocks 700",
        "replay requests --generate users=32 --requests 2000 --prompt 800..1024 --output 100..128 --replicas 2 --step-time step=8ms,token=25us,context=20ns",
        "replay requests --generate rate=20/s --requests 1000 --disaggregate 1+2 --transfer latency=2ms,token=1us --shared-prefix 50 --step-time step=8ms,token=25us",
        "replay requests --generate rate=2,burst=40,every=30s,for=3s --requests 800 --autoscale most=6,sequences=16,every=1s,cold=10s --step-time step=8ms,token=25us --price '$12/h'",
        "replay requests --generate rate=1 --requests 100 --samples 4 --thinking 20 --turns 3 --pause 2s --step-time step=8ms,token=25us --separate-prefill",
    ]
    replay_errors: [
        "replay jobs --cluster p5.48xlarge:8",
        "replay jobs wrong-jobs.jsonl --cluster p5.48xlarge:8",
        "replay jobs own.toml --cluster p5.48xlarge:8",
        "replay jobs jobs.csv --cluster p5.48xlarge:8 --policy eassy",
        "replay jobs jobs.csv --cluster p5.48xlarge:8 --failures llama4",
        "replay jobs too-wide.jsonl --cluster p5.48xlarge:2 --policy easy --policy ours --policy easy",
        "replay jobs jobs.csv --cluster p5.48xlarge:8 --format swf",
        "replay requests wrong-requests.csv --step-time step=8ms",
        "replay requests config.json --step-time step=8ms",
        "replay requests missing.csv --step-time step=8ms",
        "replay requests requests.csv",
        "replay requests --step-time step=8ms",
        "replay requests requests.csv --step-time token=8us",
        "replay requests requests.csv --step-time step=8ms --max-seqs 9000",
        "replay requests requests.csv --step-time step=8ms --kv-blocks 20",
        "replay requests requests.csv --step-time step=8ms --kv-blocks 1",
        "replay requests --generate rate=-3 --step-time step=8ms",
        "replay requests requests.csv --step-time step=8ms --slo ttft=600",
    ]
    no_cluster: [
        "queue --state-dir no-such-state",
        "job show 1 --state-dir no-such-state",
        "submit --nodes 2 --state-dir no-such-state -- hostname",
        "node list --server http://127.0.0.1:9",
        "node list --server lab",
        "down --state-dir no-such-state",
        "node start n1 --state-dir no-such-state",
        "--json queue --state-dir no-such-state",
    ]
    contexts: [
        "context list",
        "context show lab",
        "--json context list",
        "context --help",
        "queue --context labb",
        "queue --context batch",
        "token list --context batch",
        "usage --context batch",
        "context add pods --kind kubernetes --url https://pods:443",
        "context add far --url insecure+http://far:7431",
        "context add both --url http://far:7431 --state-dir here",
        "context use batsh",
    ]
    submit_dry: [
        "submit --nodes 2 --gpus-per-node 8 --time 2:00:00 --dry-run -- torchrun train.py",
        "submit job.sbatch --dry-run --qos urgent",
        "--json submit job.sbatch --dry-run",
        "submit --nodes 2 --mail-type=ALL --dry-run -- true",
    ]
    submit_errors: [
        "submit",
        "submit --nodes 0 -- true",
        "submit --nodes two -- true",
        "submit missing.toml",
        "submit cluster.toml",
        "submit job.sbatch -- true",
        "submit --node 2 -- true",
        "submit --expected config.json --dry-run -- true",
        "chaos fill-disk --state-dir .",
    ]
    error_pages: ["error catalog/unknown-name", "error catalog/unknown-nam", "error"]
    usage_errors: ["", "catalg", "model", "catalog --frobnicate"]
}

/// JSON is for programs, which read it whole; the golden files pin its shape.
#[test]
fn json() {
    let commands = [
        "--json catalog",
        "--json catalog show h200",
        "--json catalog show p5.48xlarge",
        "--json catalog show mountpoint-s3",
        "--json cluster show p5.48xlarge:4",
        "--json model show llama-3.1-8b",
        "--json layout dp8.tp4.pp2",
        "--json plan train --model gpt2 --cluster p5.48xlarge:1 --seq 1024 --top 1 --tokens 300B",
        "--json replay jobs jobs.csv --cluster p5.48xlarge:8 --policy ours",
        "--json replay requests --generate users=4 --requests 4 --prompt 100 --output 3 --step-time step=1s",
        "--json plan posttrain --model llama-3.1-8b --cluster p5en.48xlarge:1 --prompts 16 --samples 4 --osl 100..500",
        "--json error catalog/duplicate",
        "--json model show lama-3.1-8b",
        "--json catalog check wrong-figure.toml",
        "--json catalog --frobnicate",
    ];
    let runs: Vec<String> = commands.iter().map(|command| terminal().run(command)).collect();
    expect_file!["golden/json.txt"].assert_eq(&runs.join("\n"));
}

#[test]
fn every_json_answer_is_one_document() {
    let commands = [
        "tour --no-cluster",
        "catalog",
        "catalog accelerators",
        "catalog instances",
        "catalog ultraservers",
        "catalog fabrics",
        "catalog storage",
        "catalog sources",
        "catalog compare h100 h200",
        "catalog check own.toml",
        "cluster show cluster.toml",
        "cluster import topology.conf slurm.conf",
        "cluster check cluster.toml",
        "cluster export p5.48xlarge:4 --as slurm-tree",
        "model list",
        "model show gpt2",
        "layout dp2",
        "error",
        "plan train --model llama-3.1-8b --cluster p5.48xlarge:1 --tokens 1T --what-if --scaling strong",
        "plan choose --model llama-3.1-8b --tokens 1T --deadline 30d",
        "plan budget --dollars '$1M' --instance p5.48xlarge",
        "plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --isl 1000 --osl 200 --rate 5/s --slo itl=20ms --explain tp2 --launch vllm --test-time",
    ];
    for command in commands {
        let run = terminal().run(&format!("--json {command}"));
        let (_, document) = run.split_once("--- stdout\n").unwrap_or_else(|| panic!("{run}"));
        let document = document.split("--- stderr\n").next().unwrap();
        serde_json::from_str::<serde_json::Value>(document)
            .unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

#[test]
fn output_fits_80_columns_and_pipes_lose_nothing() {
    let commands = [
        "catalog",
        "catalog instances",
        "catalog accelerators",
        "catalog ultraservers",
        "catalog storage",
        "catalog fabrics",
        "catalog sources",
        "catalog compare h100 h200 b200",
        "catalog compare s3-standard s3-express",
        "catalog show p5.48xlarge",
        "catalog show mountpoint-s3",
        "cluster show p5.48xlarge:64",
        "cluster check cluster.toml",
        "cluster meet cluster.toml n01 n05",
        "model list",
        "model show deepseek-v3",
        "layout dp64.tp2.ep8",
        "error",
        "tour --no-cluster",
        "plan train --model llama-3.1-405b --cluster p5.48xlarge:2048",
        "plan serve --model llama-3.3-70b --cluster p5en.48xlarge:4 --isl 4000 --osl 500 --rate 20/s --slo ttft=600ms,itl=25ms",
        "plan posttrain --model llama-3.1-8b --cluster p5en.48xlarge:2",
    ];
    for command in commands {
        let run = terminal().run(command);
        let stdout = run.split("--- stderr").next().unwrap();
        // Layouts and addresses are single words and are never broken.
        let is_breakable = |line: &&str| !line.contains(".tp") && !line.contains("://");
        // The first line is the command itself.
        for line in stdout.lines().skip(1).filter(is_breakable) {
            assert!(line.chars().count() <= 80, "{command}: {line}");
        }
    }
    let piped = terminal().piped().run("catalog instances");
    assert!(piped.contains("HOST MEMORY") && !piped.contains("not shown"), "{piped}");
}

#[test]
fn the_processor_passes_its_self_test() {
    let run = terminal().run("selftest --device cpu --no-rates");
    assert!(run.contains("checks agree with the processor"), "{run}");
    assert!(run.contains("this processor computes rightly"), "{run}");
}

#[test]
fn completions_and_manual_pages_are_made() {
    for shell in ["bash", "zsh", "fish"] {
        let script = terminal().run(&format!("completions {shell}"));
        assert!(script.contains("exit 0") && script.contains("compare"), "{shell}");
    }
    let manual = terminal().run("man");
    assert!(manual.contains(".TH bedplate 1") && manual.contains("exit 0"), "{}", &manual[..400]);
}

#[test]
fn standard_input_is_read_where_a_dash_is_given() {
    let config = std::fs::read(format!("{INPUTS}/config.json")).unwrap();
    let run = terminal().with_input(config).run("model show -");
    assert!(run.contains("1,235,814,400"), "{run}");
}

#[test]
fn a_hundred_megabytes_of_garbage_are_refused_with_a_place() {
    let garbage = b"\x00garbage[{(\n".repeat(100_000_000 / 12);
    for command in ["cluster check -", "catalog check -", "model show -"] {
        let run = terminal().with_input(garbage.clone()).run(command);
        assert!(run.contains("exit 1") && run.contains("error[") && run.contains("help:"), "{}", &run[..200]);
    }
}

/// The documents of the book are right: each TOML block is checked by the command of its page.
#[test]
fn the_documents_of_the_book_are_valid() {
    let docs = bedplate_testkit::root().join("docs");
    for (page, command) in
        [("catalog.md", "catalog check -"), ("cluster.md", "cluster check - --format toml")]
    {
        let text = std::fs::read_to_string(docs.join(page)).unwrap();
        let blocks: Vec<&str> =
            text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(!blocks.is_empty());
        for block in blocks {
            let run = terminal().with_input(block).run(command);
            assert!(run.contains("\nexit 0\n"), "{page}: {run}");
        }
    }
}

/// The jobs that the book shows are jobs.
#[test]
fn the_job_lines_of_the_book_can_be_replayed() {
    let text = std::fs::read_to_string(bedplate_testkit::root().join("docs/replay.md")).unwrap();
    let block = text.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let run = terminal().with_input(block).run("replay jobs - --cluster p5.48xlarge:16");
    assert!(run.contains("\nexit 0\n") && run.contains("3 jobs"), "{run}");
}

/// The commands of the book work: each `$ bedplate …` line of a console block is run.
#[test]
fn the_commands_of_the_book_run() {
    let docs = bedplate_testkit::root().join("docs");
    let mut ran = 0;
    for page in [
        "catalog.md",
        "cluster.md",
        "model.md",
        "layout.md",
        "plan.md",
        "plan-serve.md",
        "replay.md",
        "replay-requests.md",
    ] {
        let text = std::fs::read_to_string(docs.join(page)).unwrap();
        for command in text.lines().filter_map(|line| line.strip_prefix("$ bedplate ")) {
            let run = terminal().run(command);
            assert!(run.contains("\nexit 0\n"), "{page}: {run}");
            ran += 1;
        }
    }
    assert!(ran > 20, "only {ran} commands found");
}
