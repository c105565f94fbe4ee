//! The targets, by the parser they feed.

use std::sync::LazyLock;

use bedplate_calibrate::serving::ServingCases;
use bedplate_catalog::{Bound, Catalog};
use bedplate_checkpoint::{Manifest, PartEntry};
use bedplate_control::wire::{FromAgent, ToAgent};
use bedplate_daemon::intake::{self, JobFormat, Unreadable};
use bedplate_data::{ChatTemplate, DataError, Digest, Header, Index, Message, Tokenizer, Width};
use bedplate_deploy::Pattern;
use bedplate_diag::{Diagnostic, Source, render_json, render_text};
use bedplate_doctor::nccl::{LogReader, judge_log};
use bedplate_doctor::{NodeFacts, examine, parse_nvidia_smi};
use bedplate_gangs::Settings;
use bedplate_job::{FileNames, Job};
use bedplate_layout::Layout;
use bedplate_network::{Architecture, SafetensorsFile};
use bedplate_perf::serving::Site;
use bedplate_replay::jobs::{openb_cluster, read, write_jsonl};
use bedplate_replay::requests::{Fleet, LinearEngine, Pool, TracedLoad, Traffic, read_trace, simulate};
use bedplate_report::{Report, StepHistory};
use bedplate_topology::{
    Cluster, ExportFormat, Format, ImportOptions, expand_hostlist, export, import, import_detected,
};
use bedplate_train::TrainConfig;
use bedplate_transformer::{Configuration, from_config, to_config_json};
use bedplate_units::{Bandwidth, Bytes, DollarRate, Dollars, FlopRate, Flops, Seconds, Tokens, Watts};

use crate::{diagnosis, observe};

/// A parser under test, with seeds for mutation.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: &'static [&'static str],
    /// How often the ordinary test runs it; slow parsers less.
    pub rounds: usize,
}

const CLUSTER_TOML: &str = include_str!("../../../app/bedplate/tests/inputs/cluster.toml");
const TOPOLOGY_CONF: &str = include_str!("../../../app/bedplate/tests/inputs/topology.conf");
const SLURM_CONF: &str = include_str!("../../../app/bedplate/tests/inputs/slurm.conf");
const LATENCIES: &str = include_str!("../../../app/bedplate/tests/inputs/latencies.csv");
const SITE: &str = "[[deployment]]\nname = \"a on h100 with vllm\"\nstep = 1.1\nfirst_token = -0.02\n";
const SITE_RULES: &str = include_str!("../../../../docs/site.toml");
const OVERLAY: &str = include_str!("../../../app/bedplate/tests/inputs/own.toml");
const CONFIG: &str = include_str!("../../../app/bedplate/tests/inputs/config.json");
const DEEPSEEK: &str = include_str!("../../../../data/models/deepseek-v3.json");
const GPT_OSS: &str = include_str!("../../../../data/models/gpt-oss-20b.json");
const JOBS_JSONL: &str = include_str!("../../../app/bedplate/tests/inputs/jobs.jsonl");
const JOBS_CSV: &str = include_str!("../../../app/bedplate/tests/inputs/jobs.csv");
const JOBS_SACCT: &str = include_str!("../seeds/sacct.txt");
const JOBS_SWF: &str = include_str!("../seeds/jobs.swf");
const JOBS_PODS: &str = include_str!("../seeds/pods.csv");
const JOBS_NODES: &str = include_str!("../seeds/pod-nodes.csv");
const JOB_TOML: &str = include_str!("../seeds/job.toml");
const JOB_JSON: &str = include_str!("../seeds/job.json");
const JOB_SET: &str = include_str!("../seeds/jobset.yaml");
const PYTORCH_JOB: &str = include_str!("../seeds/pytorchjob.yaml");
const SBATCH: &str = include_str!("../../../domain/job/tests/scripts/torchrun.sbatch");
const SBATCH_SHORT: &str = include_str!("../../../domain/job/tests/scripts/megatron.sbatch");
const WIRE: &[&str] = &[
    r#"{"type":"hello","node":"n1","address":"127.0.0.1","incarnation":7,"held":[{"run":{"job":1,"number":2},"phase":{"released":{"end":{"failed":null,"was_stopped":false,"was_lost":false,"epilog_failed":null,"cpu_ms":1,"peak_memory_mib":2,"energy_joules":null}}}}],"host":{"name":"h","cores":2,"memory_mib":3,"gpus":0}}"#,
    r#"{"type":"heartbeat","sequence":3,"held":[{"run":{"job":1,"number":1},"phase":"running"}]}"#,
    r#"{"type":"rank_failed","run":{"job":1,"number":1},"rank":3,"end":{"signal":9}}"#,
    r#"{"type":"chunk","request":4,"bytes":[104,105],"next_offset":2,"is_open":true,"error":null}"#,
    r#"{"type":"not_prepared","run":{"job":1,"number":1},"why":{"kind":"prolog","status":1,"output":"no"}}"#,
    r#"{"type":"welcome","keep":[{"job":1,"number":1}],"heartbeat_ms":500,"silence_ms":3000}"#,
    r#"{"type":"read_log","request":1,"log":{"run":{"job":1,"number":1},"rank":0,"stream":"stderr"},"offset":0,"most_bytes":9}"#,
    r#"{"type":"chaos","kind":"cut","for_ms":5000}"#,
    r#"{"type":"findings","findings":[{"rule":"gpu/xid-79","severity":"critical","layer":"hardware","subject":{"kind":"gpu","node":"n1","index":3},"summary":"it is gone","evidence":[],"confidence":1.0,"action":"reboot","since_ms":5,"seen_ms":5,"times":1}]}"#,
];
const REPORTS: &[&str] = &[
    "progress 1200",
    "checkpoint 1000 /shared/ckpt/1000",
    r#"{"version":1,"report":"step","step":7,"seconds":0.5,"tokens":4096,"loss":3.25,"breakdown":{"compute":{"exposed_s":0.25,"hidden_s":0.1},"host":0.2}}"#,
    r#"{"version":1,"report":"predicted","breakdown":{"host":0.25}}"#,
    r#"{"version":1,"report":"phase","phase":"saving"}"#,
    r#"{"version":1,"report":"metrics","address":"127.0.0.1:8000/metrics"}"#,
];
const TRAIN: &str = "[model]\nconfig = \"c.json\"\n[data]\ncorpora = [\"a\", \"b\"]\nweights = [1.0, 2.0]\n[adapter]\nrank = 4\n";
const LLAMA: &str = include_str!("../../../run/network/tests/reference/llama/config.json");
const GPT2: &str = include_str!("../../../run/network/tests/reference/gpt2/config.json");
const SAFETENSORS: &str =
    r#"{"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}"#;
const TOPOLOGY_YAML: &str = include_str!("../seeds/topology.yaml");
const EC2: &str = include_str!("../seeds/ec2.json");
const KUBERNETES: &str = include_str!("../seeds/nodes.json");
const NCCL_GOOD: &str = include_str!("../../../observe/doctor/tests/logs/good-2.28.3-efa-timestamps.log");
const NCCL_BAD: &str = include_str!("../../../observe/doctor/tests/logs/bad-2.24.3-no-efa-provider.log");
const NCCL_OLD: &str = include_str!("../../../observe/doctor/tests/logs/bad-2.18.5-plugin-not-found.log");
const GPU_SETTINGS: &str =
    "0, NVIDIA H200, Enabled, Enabled, Disabled, Default, 1980, 1980, 700.00, 700.00, 16, 16, 143771, 0x1";
const NVIDIA_SMI: &str = include_str!("../seeds/nvidia-smi.txt");

const CORPUS_INDEX: &str = include_str!("../seeds/corpus-index.json");
const TOKENIZER: &str = include_str!("../seeds/tokenizer.json");

pub const TARGETS: &[Target] = &[
    Target { name: "log_text", run: diagnosis::log_text, seeds: diagnosis::LOGS, rounds: 1000 },
    Target { name: "log_table", run: diagnosis::log_table, seeds: diagnosis::TABLES, rounds: 40 },
    Target { name: "flight_record", run: diagnosis::flight_record, seeds: diagnosis::RECORDS, rounds: 3000 },
    Target { name: "kernel_log", run: observe::kernel_log, seeds: observe::KMSG, rounds: 1000 },
    Target { name: "lustre_files", run: observe::lustre_files, seeds: observe::LUSTRE, rounds: 3000 },
    Target { name: "kernel_files", run: observe::kernel_files, seeds: observe::KERNEL_FILES, rounds: 3000 },
    Target { name: "node_files", run: observe::node_files, seeds: observe::NODE_FILES, rounds: 150 },
    Target { name: "mount_table", run: observe::mount_table, seeds: observe::MOUNTS, rounds: 2000 },
    Target { name: "neuron_report", run: observe::neuron_report, seeds: observe::NEURON, rounds: 2000 },
    Target {
        name: "foreign_metrics",
        run: observe::foreign_metrics,
        seeds: observe::EXPOSITION,
        rounds: 3000,
    },
    Target { name: "health_rules", run: observe::health_rules, seeds: &[observe::RULES], rounds: 300 },
    Target {
        name: "units",
        run: units,
        seeds: &["3.35 TB/s", "80 GiB", "15T tokens", "$98.32/h", "1h30m"],
        rounds: 3000,
    },
    Target {
        name: "layout",
        run: layout,
        seeds: &["dp8.tp4.pp2.ep8", "dp64.tp8.sp.zero1.mb2.recompute-full.fp8"],
        rounds: 3000,
    },
    Target {
        name: "deployment_pattern",
        run: deployment_pattern,
        seeds: &["tp4.pp2.fp8.kv-fp8.chunk8192", "tp2+tp1.ep16.adp16.bf16"],
        rounds: 3000,
    },
    Target { name: "nccl_log", run: nccl_log, seeds: &[NCCL_GOOD, NCCL_BAD, NCCL_OLD], rounds: 600 },
    Target { name: "gpu_settings", run: gpu_settings, seeds: &[GPU_SETTINGS], rounds: 2000 },
    Target { name: "serving_rows", run: serving_rows, seeds: &[LATENCIES], rounds: 150 },
    Target { name: "serving_site", run: serving_site, seeds: &[SITE], rounds: 1000 },
    Target { name: "site_rules", run: site_rules, seeds: &[SITE_RULES], rounds: 1000 },
    Target { name: "catalog_overlay", run: catalog_overlay, seeds: &[OVERLAY], rounds: 150 },
    Target { name: "model_config", run: model_config, seeds: &[CONFIG, DEEPSEEK, GPT_OSS], rounds: 2000 },
    Target {
        name: "hostlist",
        run: hostlist,
        seeds: &["n[01-04,07]", "a[1-2]b[3-5],c", "n[1-999999999999]"],
        rounds: 3000,
    },
    Target {
        name: "cluster_spec",
        run: cluster_spec,
        seeds: &["p5.48xlarge:4", "p5.48xlarge:2+p5en.48xlarge:1", "u-p6e-gb200x72:2"],
        rounds: 2000,
    },
    Target { name: "cluster_toml", run: cluster_toml, seeds: &[CLUSTER_TOML], rounds: 1500 },
    Target { name: "slurm", run: slurm, seeds: &[TOPOLOGY_CONF, SLURM_CONF], rounds: 1500 },
    Target { name: "topology_yaml", run: topology_yaml, seeds: &[TOPOLOGY_YAML], rounds: 1500 },
    Target { name: "ec2", run: ec2, seeds: &[EC2], rounds: 1500 },
    Target { name: "kubernetes", run: kubernetes, seeds: &[KUBERNETES], rounds: 1500 },
    Target { name: "request_trace", run: request_trace, seeds: &[AZURE, MOONCAKE], rounds: 1500 },
    Target { name: "nvidia_smi", run: nvidia_smi, seeds: &[NVIDIA_SMI], rounds: 1500 },
    Target {
        name: "detect",
        run: detected,
        seeds: &[CLUSTER_TOML, TOPOLOGY_CONF, EC2, KUBERNETES, NVIDIA_SMI, TOPOLOGY_YAML],
        rounds: 1500,
    },
    Target {
        name: "job_trace",
        run: job_trace,
        seeds: &[JOBS_JSONL, JOBS_CSV, JOBS_SWF, JOBS_PODS, JOBS_NODES, JOBS_SACCT],
        rounds: 3000,
    },
    Target { name: "job_toml", run: job_toml, seeds: &[JOB_TOML], rounds: 3000 },
    Target { name: "job_json", run: job_json, seeds: &[JOB_JSON], rounds: 3000 },
    Target { name: "job_manifest", run: job_manifest, seeds: &[JOB_SET, PYTORCH_JOB], rounds: 1000 },
    Target { name: "job_sbatch", run: job_sbatch, seeds: &[SBATCH, SBATCH_SHORT], rounds: 3000 },
    Target {
        name: "file_pattern",
        run: file_pattern,
        seeds: &["logs/%x-%j_%a.%4t.out", "%A %u/%N %n %s %J 100%%"],
        rounds: 3000,
    },
    Target {
        name: "api_body",
        run: api_body,
        seeds: &[
            "application/toml; charset=utf-8\nname = \"a\"\ncommand = [\"true\"]\narray = \"0-9\"\n",
            "application/json\n{\"name\": \"a\", \"command\": [\"true\"], \"nodes\": 2}",
            "text/x-shellscript\n#!/bin/sh\n#SBATCH -N 2 --array=0-3\nsrun hostname\n",
        ],
        rounds: 3000,
    },
    Target { name: "wire_line", run: wire_line, seeds: WIRE, rounds: 3000 },
    Target { name: "report_line", run: report_line, seeds: REPORTS, rounds: 3000 },
    Target { name: "train_config", run: train_config, seeds: &[TRAIN], rounds: 2000 },
    Target { name: "network_config", run: network_config, seeds: &[LLAMA, GPT2], rounds: 2000 },
    Target { name: "checkpoint_manifest", run: checkpoint_manifest, seeds: &[MANIFEST, PART], rounds: 3000 },
    Target { name: "safetensors", run: safetensors, seeds: &[SAFETENSORS], rounds: 3000 },
    Target {
        name: "shard_header",
        run: shard_header,
        seeds: &["", "\0\0\0\0", "\0\0\0\0\0\0\0\0\0\0\0\0\u{6}"],
        rounds: 3000,
    },
    Target { name: "corpus_index", run: corpus_index, seeds: &[CORPUS_INDEX], rounds: 3000 },
    Target { name: "tokenizer", run: tokenizer, seeds: &[TOKENIZER], rounds: 1000 },
    Target { name: "chat_template", run: chat_template, seeds: &[CHAT_TEMPLATE], rounds: 3000 },
];

const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n";
const MOONCAKE: &str = "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 52, \"hash_ids\": [46, 47, 48]}\n{\"timestamp\": 3000, \"input_length\": 900, \"output_length\": 7, \"hash_ids\": [46, 9], \"samples\": 2, \"tenant\": 1}\n";

const CHAT_TEMPLATE: &str = "{%- macro show(m, end='') -%}{{ m.content | trim ~ end }}{%- endmacro -%}{% set ns = namespace(n=0, x='ab') %}\
{% for m in messages[1:] if m.role in ['user', 'assistant'] %}{% if loop.first %}{{ '[' + show(m, end='!' * 3) + ']' }}{% elif ns.n is odd %}\
{{ m['content'].split('+')[-1] | replace('a', 'bb') | tojson }}{% else %}{% generation %}{{ '%s-%d' % (m.role, ns.n) }}{% endgeneration %}{% endif %}\
{% set ns.n = ns.n + 1 %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | join('-') }}{% if add_generation_prompt %}>{% endif %}{# a comment #}";

const MANIFEST: &str = r#"{"format":"bedplate-checkpoint","version":3,"written":9,"facts":{"step":7,"samples":28,"layout":"dp2","settings":{"data.seed":1},"model":null},"tensors":[["first/a",4,6],["weights/a",4,6]],"files":[{"file":"part-00000.data","bytes":144,"chunk":4096,"crc32c":[1],"regions":[[0,0,4,0,6],[1,0,2,0,6]]},{"file":"x/part-00001.data","bytes":48,"chunk":16,"crc32c":[1,2,3],"regions":[[1,2,4,0,3],[1,2,4,3,6]]}],"crc32c":0}"#;
const PART: &str = r#"{"file":"part-00000.data","bytes":96,"chunk":64,"crc32c":[1,2],"regions":[["weights/a",4,6,0,4,0,6]]}"#;

static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);

/// An error must be printable both ways, with a remedy.
pub(crate) fn tell(error: &dyn Diagnostic) {
    let text = render_text(error);
    assert!(text.contains("help:  "), "{text}");
    assert!(text.len() < 100_000, "an error of {} bytes", text.len());
    assert!(render_json(error)["error"]["help"].as_str().is_some_and(|help| !help.is_empty()));
}

fn units(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    macro_rules! survive {
        ($($quantity:ty),*) => {$(
            if let Ok(value) = text.parse::<$quantity>() {
                assert!(value.get() >= 0.0 && value.get().is_finite());
                assert!(!value.to_string().is_empty());
            }
        )*};
    }
    survive!(Bytes, Bandwidth, FlopRate, Flops, Seconds, Tokens, Dollars, DollarRate, Watts);
    let _ = text.parse::<Bound<Bytes>>();
}

fn layout(data: &[u8]) {
    match String::from_utf8_lossy(data).parse::<Layout>() {
        Err(error) => tell(&error),
        Ok(layout) => {
            assert_eq!(layout.to_string().parse::<Layout>().as_ref(), Ok(&layout));
            let _ = layout.refusals_without_model(Some(8));
        }
    }
}

fn deployment_pattern(data: &[u8]) {
    if let Err(error) = String::from_utf8_lossy(data).parse::<Pattern>() {
        tell(&error);
    }
}

fn catalog_overlay(data: &[u8]) {
    if let Err(error) = Catalog::with_overlays(&[Source::new("overlay", &String::from_utf8_lossy(data))]) {
        tell(&error);
    }
}

fn model_config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Configuration::parse(Source::new("config.json", &text)).and_then(|read| read.vision()) {
        Err(error) => tell(&error),
        Ok(vision) => {
            let tokens = vision.map(|vision| vision.image(1280, 720).tokens);
            assert!(tokens.is_none_or(|tokens| tokens > 0));
        }
    }
    match from_config(Source::new("config.json", &text)) {
        Err(error) => tell(&error),
        Ok(model) => {
            let parameters = model.parameters();
            assert!(parameters.active <= parameters.total);
            match to_config_json(&model) {
                Err(error) => tell(&error),
                Ok(text) => {
                    let again = from_config(Source::new("again", &text)).expect("what we write we can read");
                    assert_eq!(again.parameters(), parameters);
                }
            }
        }
    }
}

fn hostlist(data: &[u8]) {
    let _ = expand_hostlist(&String::from_utf8_lossy(data));
}

fn cluster(format: Option<Format>, data: &[u8], options: &ImportOptions) {
    let text = String::from_utf8_lossy(data);
    let sources = [Source::new("input", &text)];
    let read = match format {
        Some(format) => import(format, &sources, options, &CATALOG),
        None => import_detected(&sources, options, &CATALOG),
    };
    match read {
        Err(error) => tell(&error),
        Ok(cluster) => round_trip(&cluster),
    }
}

/// What is written as cluster.toml reads back as the same cluster; the other formats can be written.
fn round_trip(cluster: &Cluster) {
    if cluster.node_count() > 5_000 {
        return;
    }
    for (_, format) in ExportFormat::ALL {
        let _ = export(cluster, format);
    }
    let text = export(cluster, ExportFormat::Document);
    let sources = [Source::new("written", &text)];
    match import(Format::Document, &sources, &ImportOptions::default(), &CATALOG) {
        Ok(again) => assert!(again == *cluster, "differs after writing:\n{text}"),
        Err(error) => panic!("what we wrote we cannot read: {}\n{text}", render_text(&error)),
    }
}

fn with_instance() -> ImportOptions {
    ImportOptions { instance: Some("p5.48xlarge".into()), ..ImportOptions::default() }
}

fn cluster_spec(data: &[u8]) {
    cluster(Some(Format::Spec), data, &ImportOptions::default());
}

fn cluster_toml(data: &[u8]) {
    cluster(Some(Format::Document), data, &ImportOptions::default());
}

fn slurm(data: &[u8]) {
    cluster(Some(Format::Slurm), data, &with_instance());
    cluster(Some(Format::Slurm), data, &ImportOptions::default());
}

fn topology_yaml(data: &[u8]) {
    cluster(Some(Format::Slurm), data, &with_instance());
}

fn ec2(data: &[u8]) {
    cluster(Some(Format::Ec2), data, &ImportOptions::default());
}

fn kubernetes(data: &[u8]) {
    cluster(Some(Format::Kubernetes), data, &ImportOptions::default());
}

fn nvidia_smi(data: &[u8]) {
    let options = ImportOptions { accelerator: Some("h100".into()), ..ImportOptions::default() };
    cluster(Some(Format::NvidiaSmi), data, &options);
}

fn detected(data: &[u8]) {
    cluster(None, data, &with_instance());
}

fn job_trace(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match read(Source::new("trace", &text), None) {
        Err(error) => tell(&error),
        Ok(trace) => {
            let written = write_jsonl(&trace);
            let again = read(Source::new("written", &written), None).expect("what we write we can read");
            assert_eq!(write_jsonl(&again), written);
        }
    }
    match openb_cluster(Source::new("nodes", &text), "h100") {
        Err(error) => tell(&error),
        Ok(toml) => cluster(Some(Format::Document), toml.as_bytes(), &ImportOptions::default()),
    }
}

fn request_trace(data: &[u8]) {
    match read_trace(Source::new("trace", &String::from_utf8_lossy(data))) {
        Err(error) => tell(&error),
        Ok(trace) => {
            let count = trace.len() as u64;
            let taken = TracedLoad::new(trace.clone()).expect("a trace has requests");
            assert!(taken.shared.is_none_or(|shared| (0.0..1.0).contains(&shared.share)));
            assert_eq!(taken.drawn(10, 1.0, count).len(), 10);
            let tokens: u64 =
                trace.iter().map(|each| u64::from(each.prompt_tokens) * u64::from(each.samples)).sum();
            if tokens > 1_000_000 {
                return;
            }
            let engine = LinearEngine::default();
            let fleet = Fleet::aggregated(Pool::new(1, &engine));
            let outcome = simulate(Traffic::Trace(trace), &fleet).expect("the settings are sound");
            assert_eq!(outcome.finished + outcome.refused + outcome.dropped, count);
        }
    }
}

/// Any table of serving rows is read or refused, row by row with a reason.
fn serving_rows(data: &[u8]) {
    static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);
    let text = String::from_utf8_lossy(data);
    if let Err(error) = ServingCases::read(&text, &CATALOG) {
        let _ = render_text(&error);
    }
}

/// A site's file reads back the same after writing.
fn serving_site(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(site) = Site::read(Source::new("site.toml", &text)) else { return };
    assert_eq!(
        Site::read(Source::new("site.toml", &site.to_toml())).map(|again| again.len()),
        Ok(site.len())
    );
}

/// A job file reads back the same after writing, in both formats; flaws can be printed.
fn job_again(job: &Job) {
    let toml = job.to_toml();
    assert_eq!(Job::from_toml(&toml, "written").as_ref(), Ok(job), "{toml}");
    let json = job.to_json().to_string();
    assert_eq!(Job::from_json(&json, "written").as_ref(), Ok(job), "{json}");
    for flaw in job.flaws() {
        assert!(!flaw.to_string().is_empty());
    }
}

fn job_toml(data: &[u8]) {
    match Job::from_toml(&String::from_utf8_lossy(data), "job.toml") {
        Err(error) => tell(&error),
        Ok(job) => job_again(&job),
    }
}

fn job_json(data: &[u8]) {
    match Job::from_json(&String::from_utf8_lossy(data), "job.json") {
        Err(error) => tell(&error),
        Ok(job) => job_again(&job),
    }
}

fn job_manifest(data: &[u8]) {
    match Job::from_manifest(&String::from_utf8_lossy(data), "job.yaml") {
        Err(error) => tell(&error),
        Ok(imported) => job_again(&imported.job),
    }
}

fn job_sbatch(data: &[u8]) {
    match Job::from_sbatch(&String::from_utf8_lossy(data), "job.sh") {
        Err(error) => tell(&error),
        Ok(imported) => job_again(&imported.job),
    }
}

/// A pattern has only the folders written in it, whatever is substituted.
fn file_pattern(data: &[u8]) {
    let pattern = String::from_utf8_lossy(data);
    let odd = "../../etc\0";
    let names =
        FileNames { job: 1, array: None, name: odd, user: odd, host: odd, node: 2, task: 3, step: odd };
    match names.expand(&pattern) {
        Err(error) => tell(&error),
        Ok(path) => assert_eq!(path.matches('/').count(), pattern.matches('/').count()),
    }
}

/// The rules of a scheduler. They are never written, so any answer or error will do.
fn site_rules(data: &[u8]) {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
        Cluster::from_spec("p5.48xlarge:8", &CATALOG).expect("the catalog has this instance")
    });
    match Settings::from_toml(&String::from_utf8_lossy(data), "site.toml", &CLUSTER) {
        Ok(settings) => assert!(!settings.partitions.is_empty() && !settings.qos.is_empty()),
        Err(error) => tell(&error),
    }
}

fn train_config(data: &[u8]) {
    match TrainConfig::from_toml(Source::new("train.toml", &String::from_utf8_lossy(data))) {
        Ok(config) => {
            let again = TrainConfig::from_toml(Source::new("again", &config.to_toml()));
            assert_eq!(again.expect("what we write we can read"), config);
        }
        Err(error) => tell(&error),
    }
}

fn network_config(data: &[u8]) {
    if let Err(error) = Architecture::from_config(Source::new("config.json", &String::from_utf8_lossy(data)))
    {
        tell(&error);
    }
}

/// The header of a file whose tensors have a hundred bytes.
/// The checksum of a mutated manifest is put right, so that what it says is read too.
fn checkpoint_manifest(data: &[u8]) {
    for text in [data.to_vec(), Manifest::with_checksum(data).unwrap_or_default()] {
        if let Ok(manifest) = Manifest::parse(&text) {
            assert_eq!(Manifest::parse(manifest.to_text().as_bytes()).as_ref(), Ok(&manifest));
        }
    }
    if let Some(part) = PartEntry::from_text(&String::from_utf8_lossy(data)) {
        assert_eq!(PartEntry::from_text(&part.to_text()).as_ref(), Some(&part));
    }
}

fn safetensors(data: &[u8]) {
    match SafetensorsFile::check_header(data, 100) {
        Ok(tensors) => assert!(tensors.values().all(|tensor| tensor.shape.iter().product::<usize>() <= 50)),
        Err(error) => tell(&error),
    }
}

/// The first line is the content type, the rest the body of a submission.
fn api_body(data: &[u8]) {
    const MOST_TASKS: u64 = 1_000;
    let (head, body) = data.split_at(data.iter().position(|byte| *byte == b'\n').unwrap_or(0));
    let Some(format) = JobFormat::of(&String::from_utf8_lossy(head)) else { return };
    match intake::read(format, body.get(1..).unwrap_or_default(), MOST_TASKS) {
        Err(Unreadable::Job(error)) => tell(&error),
        Err(Unreadable::NotText | Unreadable::TooManyTasks { .. }) => {}
        Ok(read) => {
            assert!(read.job.policy.array.as_ref().is_none_or(|array| array.count() <= MOST_TASKS));
            job_again(&read.job);
        }
    }
}

/// A line that a job writes about itself.
fn report_line(data: &[u8]) {
    if let Ok(report) = Report::from_line(data) {
        assert_eq!(Report::from_line(report.to_line().as_bytes()).expect("it was just written"), report);
        StepHistory::default().take(3, &report);
    }
}

/// A line between the daemon and an agent, either way.
fn wire_line(data: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<FromAgent>(data) {
        let text = serde_json::to_string(&message).expect("messages have text keys");
        assert_eq!(serde_json::from_str::<FromAgent>(&text).expect("it was just written"), message);
    }
    if let Ok(message) = serde_json::from_slice::<ToAgent>(data) {
        let text = serde_json::to_string(&message).expect("messages have text keys");
        assert_eq!(serde_json::from_str::<ToAgent>(&text).expect("it was just written"), message);
    }
}

/// The bytes as they are, and as changes to a good header with its checksum corrected.
fn shard_header(data: &[u8]) {
    let path = std::path::Path::new("00000.tokens");
    if let Err(error) = Header::parse(data, data.len() as u64, path) {
        tell(&error);
    }
    let good = Header {
        width: Width::Two,
        has_mask: false,
        block_tokens: 4096,
        tokens: 10_000,
        documents: 3,
        tokenizer: Digest::of(b"x"),
        content: 7,
    };
    let mut bytes = good.to_bytes();
    for (byte, change) in bytes[..60].iter_mut().zip(data) {
        *byte ^= change;
    }
    let checksum = crc32fast::hash(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    match Header::parse(&bytes, 0, path) {
        Err(DataError::WrongLength { expected, .. }) => {
            let header = Header::parse(&bytes, expected, path).expect("only the length was wrong");
            assert_eq!(
                Header::parse(&header.to_bytes(), expected, path).expect("it was just written"),
                header
            );
        }
        Err(error) => tell(&error),
        Ok(header) => unreachable!("a file has at least its header: {header:?}"),
    }
}

fn corpus_index(data: &[u8]) {
    match Index::parse(&String::from_utf8_lossy(data), "index.json") {
        Ok(index) => assert_eq!(Index::parse(&index.to_json(), "again").expect("it was just written"), index),
        Err(error) => tell(&error),
    }
}

fn tokenizer(data: &[u8]) {
    match Tokenizer::parse(&String::from_utf8_lossy(data), None, "tokenizer.json") {
        Ok(tokenizer) => match tokenizer.encode("The lamp, 12 <|endoftext|> n\u{ef}ve") {
            Ok(ids) => assert!(ids.iter().all(|id| *id < tokenizer.vocabulary())),
            Err(error) => tell(&error),
        },
        Err(error) => tell(&error),
    }
}

/// A template may say anything; it must end, within its limits.
fn chat_template(data: &[u8]) {
    let messages =
        [Message::new("system", "Be brief."), Message::new("user", "2 + 2?"), Message::new("assistant", "4")];
    let rendered = ChatTemplate::from_source(&String::from_utf8_lossy(data))
        .and_then(|template| template.render(&messages, true));
    if let Err(error) = rendered {
        tell(&error);
    }
}

fn nccl_log(data: &[u8]) {
    let mut reader = LogReader::default();
    String::from_utf8_lossy(data).lines().for_each(|line| reader.line(line));
    let log = reader.finish();
    let checks = judge_log(&log, None);
    assert!(!checks.is_empty(), "every log is judged");
    assert!(serde_json::to_string(&checks).is_ok() && serde_json::to_string(&log).is_ok());
}

fn gpu_settings(data: &[u8]) {
    let gpus = parse_nvidia_smi(&String::from_utf8_lossy(data));
    let facts = NodeFacts { node: "n1".to_owned(), gpus, ..NodeFacts::default() };
    let text = serde_json::to_string(&facts).expect("facts are plain data");
    assert_eq!(serde_json::from_str::<NodeFacts>(&text).ok(), Some(facts.clone()));
    static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);
    examine(&facts, &CATALOG, None);
}
