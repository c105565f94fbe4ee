//! Loading 100,000 GPUs: 12,500 nodes below leaves of 32 and spines of 16 leaves.
//!
//! Every time is shown next to a named limit: the least that the input or the result can cost. Run with
//! `cargo bench -p bedplate-topology`.

#![expect(clippy::print_stdout, reason = "a bench prints its result")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_topology::{Cluster, ExportFormat, Format, ImportOptions, Level, export, import};

const NODES: usize = 12_500;
const PER_LEAF: usize = 32;
const PER_SPINE: usize = 16;
const RUNS: usize = 7;

fn main() {
    let catalog = Catalog::builtin();
    let load = |format, files: &[(&str, &str)]| {
        let sources: Vec<Source<'_>> = files.iter().map(|(name, text)| Source::new(name, text)).collect();
        import(format, &sources, &ImportOptions::default(), &catalog).expect("the input is sound")
    };
    println!("{:<30} {:>9} {:>10} {:>9}  against", "load", "input", "seconds", "B/GPU");

    let (topology, nodes) = slurm();
    let short = [("topology.conf", topology.as_str()), ("slurm.conf", nodes.as_str())];
    report(
        "topology.conf + slurm.conf",
        &short,
        &|| load(Format::Slurm, &short),
        "listing the node names",
        &list_names,
    );

    let long = long_slurm_conf();
    let long = [("topology.conf", topology.as_str()), ("slurm.conf", long.as_str())];
    report(
        "… with a line per node",
        &long,
        &|| load(Format::Slurm, &long),
        "str::lines and words",
        &|| words(long[1].1),
    );

    let cluster = load(Format::Slurm, &short);
    let toml = export(&cluster, ExportFormat::Document);
    let toml = [("cluster.toml", toml.as_str())];
    report("cluster.toml", &toml, &|| load(Format::Document, &toml), "listing the node names", &list_names);

    let ec2 = ec2();
    let ec2 = [("topology.json", ec2.as_str())];
    let parse = || {
        let value: serde_json::Value = serde_json::from_str(ec2[0].1).expect("the input is sound");
        value["Instances"].as_array().map_or(0, Vec::len)
    };
    report("EC2 DescribeInstanceTopology", &ec2, &|| load(Format::Ec2, &ec2), "serde_json::Value", &parse);

    queries(&cluster);
}

fn report(
    title: &str,
    files: &[(&str, &str)],
    load: &dyn Fn() -> Cluster,
    limit: &str,
    least: &dyn Fn() -> usize,
) {
    let cluster = load();
    let input: usize = files.iter().map(|(_, text)| text.len()).sum();
    let seconds = best(&|| load().gpu_count() as usize);
    let per_gpu = cluster.heap_bytes() as f64 / f64::from(cluster.gpu_count());
    let ratio = seconds / best(least);
    println!("{title:<30} {:>6} KB {seconds:>10.6} {per_gpu:>9.2}  {ratio:.1} x {limit}", input / 1000);
}

/// The shortest of several runs: noise only ever adds time.
fn best(run: &dyn Fn() -> usize) -> f64 {
    let time = |_| {
        let start = Instant::now();
        black_box(run());
        start.elapsed().as_secs_f64()
    };
    (0..RUNS).map(time).fold(f64::INFINITY, f64::min)
}

/// The least that any reader has to do with the names.
fn list_names() -> usize {
    (1..=NODES).map(|node| format!("n{node:05}")).collect::<Vec<_>>().len()
}

fn words(text: &str) -> usize {
    text.lines().map(|line| line.split_whitespace().count()).sum()
}

fn queries(cluster: &Cluster) {
    let gpus = f64::from(cluster.gpu_count());
    let sum = best(&|| cluster.gpus().into_iter().map(|gpu| gpu.0 as usize).max().unwrap_or(0));
    println!("\n{:<30} {:>10} {:>9}  against", "query over all GPUs", "seconds", "ns/GPU");
    let show = |title: &str, run: &dyn Fn() -> usize| {
        let seconds = best(run);
        println!(
            "{title:<30} {seconds:>10.6} {:>9.2}  {:.1} x a pass over the ids",
            seconds / gpus * 1e9,
            seconds / sum
        );
    };
    show("level_of", &|| {
        cluster.level_of(cluster.gpus()).map_or(0, |level| usize::from(level == Level::CORE))
    });
    show("scale_out_bandwidth", &|| cluster.scale_out_bandwidth(cluster.gpus()).map_or(0, |_| 1));
    show("sets(leaf)", &|| cluster.sets(Level::LEAF).count());
    show("node_of each", &|| {
        cluster.gpus().into_iter().map(|gpu| cluster.node_of(gpu).0 as usize).max().unwrap_or(0)
    });
}

fn slurm() -> (String, String) {
    let mut topology = String::new();
    let leaves = NODES.div_ceil(PER_LEAF);
    for leaf in 0..leaves {
        let (first, last) = (leaf * PER_LEAF + 1, ((leaf + 1) * PER_LEAF).min(NODES));
        let _ = writeln!(topology, "SwitchName=leaf{leaf} Nodes=n[{first:05}-{last:05}]");
    }
    let spines = leaves.div_ceil(PER_SPINE);
    for spine in 0..spines {
        let (first, last) = (spine * PER_SPINE, ((spine + 1) * PER_SPINE).min(leaves) - 1);
        let _ = writeln!(topology, "SwitchName=spine{spine} Switches=leaf[{first}-{last}]");
    }
    let _ = writeln!(topology, "SwitchName=core Switches=spine[0-{}]", spines - 1);
    let nodes = format!(
        "ClusterName=large\nNodeName=n[00001-{NODES:05}] CPUs=192 RealMemory=2000000 Gres=gpu:h100:8 Feature=p5.48xlarge\n"
    );
    (topology, nodes)
}

fn long_slurm_conf() -> String {
    let mut text = String::from("ClusterName=large\n");
    for node in 1..=NODES {
        let _ = writeln!(
            text,
            "NodeName=n{node:05} NodeAddr=10.1.{}.{} Sockets=2 CoresPerSocket=48 ThreadsPerCore=2 RealMemory=2000000 Gres=gpu:h100:8(S:0-1) Feature=p5.48xlarge,efa State=UNKNOWN",
            node / 250,
            node % 250 + 1
        );
    }
    text
}

fn ec2() -> String {
    let mut text = String::from("{\n    \"Instances\": [\n");
    for node in 0..NODES {
        let leaf = node / PER_LEAF;
        let _ = write!(
            text,
            "        {{\n            \"InstanceId\": \"i-{node:017x}\",\n            \"InstanceType\": \"p5.48xlarge\",\n            \"GroupName\": \"pg-1\",\n            \"NetworkNodes\": [\n                \"nn-{:017x}\",\n                \"nn-{:017x}\",\n                \"nn-{:017x}\"\n            ],\n            \"AvailabilityZone\": \"us-west-2a\",\n            \"ZoneId\": \"usw2-az2\"\n        }}{}\n",
            1,
            0x1000 + leaf / PER_SPINE,
            0x10_0000 + leaf,
            if node + 1 < NODES { "," } else { "" }
        );
    }
    text.push_str("    ]\n}\n");
    text
}
