//! Every importer on a realistic sample.

use crate::support::*;
use bedplate_diag::Source;
use bedplate_topology::{Blocks, Cluster, Format, ImportOptions, detect, import_detected};
use expect_test::{Expect, expect};

fn check(format: Format, files: Files<'_>, expected: Expect) {
    check_with(format, files, &ImportOptions::default(), expected);
}

fn check_with(format: Format, files: Files<'_>, options: &ImportOptions, expected: Expect) {
    expected.assert_eq(&outcome(format, files, options));
}

#[test]
fn one_line_is_a_flat_cluster() {
    check(
        Format::Spec,
        &[("cluster", "p5.48xlarge:64+p5en.48xlarge:8")],
        expect![[r#"
        p5.48xlarge:64+p5en.48xlarge:8: 72 nodes, 576 GPUs
        kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: n[01-64]
        kind p5en.48xlarge [8] h200, up 450 GB/s, out 400 GB/s, cards 16, vcpus 192, memory 2.199 TB: n[65-72]
        no switch: n[01-72]
    "#]],
    );
    check(
        Format::Spec,
        &[("cluster", "p5.4xlarge")],
        expect![[r#"
        p5.4xlarge: 1 nodes, 1 GPUs
        kind p5.4xlarge [1] h100, out 12.5 GB/s, cards 1, vcpus 16, memory 274.9 GB: n1
        no switch: n1
    "#]],
    );
    check(
        Format::Spec,
        &[("cluster", " u-p6e-gb200x72:2 ")],
        expect![[r#"
        u-p6e-gb200x72:2: 36 nodes, 144 GPUs
        kind p6e-gb200.36xlarge [4] gb200, up 900 GB/s, out 200 GB/s, cards 4, vcpus 144, memory 1.031 TB: n[01-36]
        no switch: n[01-36]
        domain u-p6e-gb200x72-1: n[01-18]
        domain u-p6e-gb200x72-2: n[19-36]
    "#]],
    );
}

#[test]
fn an_ultraserver_has_its_own_scale_up_bandwidth() {
    check(
        Format::Spec,
        &[("cluster", "u-trn2x64+trn2u.48xlarge")],
        expect![[r#"
        u-trn2x64+trn2u.48xlarge: 5 nodes, 80 GPUs
        kind trn2u.48xlarge [16] trainium2, up 640 GB/s, out 400 GB/s, cards 16, vcpus 192, memory 2.199 TB, part of u-trn2x64: n[1-4]
        kind trn2u.48xlarge-2 [16] trainium2, up 512 GB/s, out 400 GB/s, cards 16, vcpus 192, memory 2.199 TB: n5
        no switch: n[1-5]
        domain u-trn2x64-1: n[1-4]
    "#]],
    );
}

#[test]
fn slurm_trees_come_with_their_nodes() {
    let files = [("topology.conf", TOPOLOGY_CONF), ("slurm.conf", SLURM_CONF)];
    check(
        Format::Slurm,
        &files,
        expect![[r#"
            research: 15 nodes, 112 GPUs
            kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB, reported 2.097 TB: p5-[001-008]
            kind p5en.48xlarge [8] h200, up 450 GB/s, out 400 GB/s, cards 16, vcpus 192, memory 2.199 TB, reported 2.097 TB: p5en-[01,03-04,02]
            kind a100-80gb-x8 [8] a100-80gb, up 300 GB/s, vcpus 96, memory 1.153 TB: a100-[1-2]
            kind cpu [] -, vcpus 8, memory 33.55 GB: login
            core core: 
              spine spine1: 
                leaf leaf1: p5-[001-004]
                leaf leaf2: p5-[005-008]
              spine spine2: 
                leaf leaf3: p5en-[01,03-04,02]
                leaf leaf4: a100-[1-2]
            no switch: login
            features static,efa: p5-[001-008]
            down p5-003 "XID 79"
            drained a100-1 "fans #2, slow"
            drained a100-2 "fans #2, slow"
        "#]],
    );
}

#[test]
fn what_scontrol_shows_reads_like_the_file() {
    let shown = "\
        SwitchName=core Level=2 LinkSpeed=1 Nodes=gb-[01-18],n[001-040] Switches=spine1,leaf3\n\
        SwitchName=spine1 Level=1 LinkSpeed=1 Nodes=n[001-040] Switches=leaf[1-2]\n\
        SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[001-016]\n\
        SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[017-040]\n\
        SwitchName=leaf3 Level=0 LinkSpeed=1 Nodes=gb-[01-18]\n";
    let nodes = "NodeName=n[001-040] Gres=gpu:h100:8\nNodeName=gb-[01-18] Gres=gpu:gb200:4\n";
    check(
        Format::Slurm,
        &[("shown", shown), ("slurm.conf", nodes)],
        expect![[r#"
        slurm: 58 nodes, 392 GPUs
        kind h100-x8 [8] h100, up 450 GB/s: n[001-040]
        kind gb200-x4 [4] gb200, up 900 GB/s: gb-[01-18]
        core core: 
          spine spine1: 
            leaf leaf1: n[001-016]
            leaf leaf2: n[017-040]
          leaf leaf3: gb-[01-18]
    "#]],
    );
}

#[test]
fn slurm_nodes_alone_are_flat() {
    check(
        Format::Slurm,
        &[("slurm.conf", SLURM_CONF)],
        expect![[r#"
            research: 15 nodes, 112 GPUs
            kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB, reported 2.097 TB: p5-[001-008]
            kind p5en.48xlarge [8] h200, up 450 GB/s, out 400 GB/s, cards 16, vcpus 192, memory 2.199 TB, reported 2.097 TB: p5en-[01-04]
            kind a100-80gb-x8 [8] a100-80gb, up 300 GB/s, vcpus 96, memory 1.153 TB: a100-[1-2]
            kind cpu [] -, vcpus 8, memory 33.55 GB: login
            no switch: p5-[001-008],p5en-[01-04],a100-[1-2],login
            features static,efa: p5-[001-008]
            down p5-003 "XID 79"
            drained a100-1 "fans #2, slow"
            drained a100-2 "fans #2, slow"
        "#]],
    );
}

#[test]
fn a_slurm_tree_alone_needs_an_instance() {
    let files = [(
        "topology.conf",
        "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-4]\nSwitchName=top Switches=s[1-2]",
    )];
    let options = ImportOptions { instance: Some("p5.48xlarge".into()), ..ImportOptions::default() };
    check_with(
        Format::Slurm,
        &files,
        &options,
        expect![[r#"
        slurm: 4 nodes, 32 GPUs
        kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: n[1-4]
        spine top: 
          leaf s1: n[1-2]
          leaf s2: n[3-4]
    "#]],
    );
    check(
        Format::Slurm,
        &files,
        expect![[r#"
        error[cluster/missing-gpu-type]: nothing says which GPU node `n1` has
          in   topology.conf:1: SwitchName=s1 Nodes=n[1-2]
        help:  give slurm.conf as a further input, or name the instance with `--instance`
    "#]],
    );
}

#[test]
fn slurm_blocks_are_domains_for_grace_and_leaves_otherwise() {
    let files = [("topology.conf", BLOCK_CONF), ("slurm.conf", BLOCK_SLURM_CONF)];
    check(
        Format::Slurm,
        &files,
        expect![[r#"
        grace: 36 nodes, 144 GPUs
        kind gb200-x4 [4] gb200, up 900 GB/s, vcpus 144, memory 1.007 TB: gb[01-36]
        no switch: gb[01-36]
        domain rack1: gb[01-18]
        domain rack2: gb[19-36]
    "#]],
    );
    let leaves = ImportOptions { blocks: Blocks::Leaves, ..ImportOptions::default() };
    check_with(
        Format::Slurm,
        &files,
        &leaves,
        expect![[r#"
        grace: 36 nodes, 144 GPUs
        kind gb200-x4 [4] gb200, up 900 GB/s, vcpus 144, memory 1.007 TB: gb[01-36]
        leaf rack1: gb[01-18]
        leaf rack2: gb[19-36]
    "#]],
    );
    let files = [
        ("topology.conf", "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n"),
        ("slurm.conf", "NodeName=n[1-4] Gres=gpu:h100:8\n"),
    ];
    check(
        Format::Slurm,
        &files,
        expect![[r#"
        slurm: 4 nodes, 32 GPUs
        kind h100-x8 [8] h100, up 450 GB/s: n[1-4]
        leaf b1: n[1-2]
        leaf b2: n[3-4]
    "#]],
    );
}

#[test]
fn topology_yaml_holds_tree_and_blocks() {
    let nodes = "NodeName=node[1-4] Gres=gpu:h100:8\n";
    check(
        Format::Slurm,
        &[("topology.yaml", TOPOLOGY_YAML), ("slurm.conf", nodes)],
        expect![[r#"
        slurm: 4 nodes, 32 GPUs
        kind h100-x8 [8] h100, up 450 GB/s: node[1-4]
        spine sw_root: 
          leaf s1: node[1-2]
          leaf s2: node[3-4]
    "#]],
    );
    let nodes = "NodeName=node[1-4] Gres=gpu:gb300:4\n";
    check(
        Format::Slurm,
        &[("topology.yaml", TOPOLOGY_YAML), ("slurm.conf", nodes)],
        expect![[r#"
        slurm: 4 nodes, 16 GPUs
        kind gb300-x4 [4] gb300, up 900 GB/s: node[1-4]
        spine sw_root: 
          leaf s1: node[1-2]
          leaf s2: node[3-4]
        domain b1: node[1-2]
        domain b2: node[3-4]
    "#]],
    );
    let options = ImportOptions { topology: Some("racks".into()), ..ImportOptions::default() };
    check_with(
        Format::Slurm,
        &[("topology.yaml", TOPOLOGY_YAML), ("slurm.conf", nodes)],
        &options,
        expect![[r#"
        slurm: 4 nodes, 16 GPUs
        kind gb300-x4 [4] gb300, up 900 GB/s: node[1-4]
        no switch: node[1-4]
        domain b1: node[1-2]
        domain b2: node[3-4]
    "#]],
    );
}

#[test]
fn the_documented_topology_yaml_is_read_topology_by_topology() {
    let alone = [("topology.yaml", TOPOLOGY_DOCUMENTED)];
    let instance = ImportOptions { instance: Some("p5.48xlarge".into()), ..ImportOptions::default() };
    check_with(
        Format::Slurm,
        &alone,
        &instance,
        expect![[r#"
        slurm: 4 nodes, 32 GPUs
        kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: node[01-04]
        leaf sw_root: node[01-04]
    "#]],
    );
    let nodes = "NodeName=node[01-16] Gres=gpu:gb200:4\n";
    let files = [("topology.yaml", TOPOLOGY_DOCUMENTED), ("slurm.conf", nodes)];
    check(
        Format::Slurm,
        &files,
        expect![[r#"
        slurm: 16 nodes, 64 GPUs
        kind gb200-x4 [4] gb200, up 900 GB/s: node[01-16]
        leaf sw_root: node[01-04]
        no switch: node[05-16]
    "#]],
    );
    let topology = |name: &str| ImportOptions { topology: Some(name.into()), ..ImportOptions::default() };
    check_with(
        Format::Slurm,
        &files,
        &topology("topo2"),
        expect![[r#"
        slurm: 16 nodes, 64 GPUs
        kind gb200-x4 [4] gb200, up 900 GB/s: node[01-16]
        no switch: node[01-16]
        domain b1: node[01-04]
        domain b2: node[05-08]
        domain b3: node[09-12]
        domain b4: node[13-16]
    "#]],
    );
    check_with(
        Format::Slurm,
        &files,
        &topology("topo3"),
        expect![[r#"
        slurm: 16 nodes, 64 GPUs
        kind gb200-x4 [4] gb200, up 900 GB/s: node[01-16]
        no switch: node[01-16]
    "#]],
    );
}

#[test]
fn blocks_across_leaves_are_another_view_of_the_cluster() {
    let yaml = "- topology: tree\n  tree:\n    switches:\n      - {switch: s1, nodes: 'n[1-2]'}\n      - {switch: s2, nodes: 'n[3-4]'}\n\
                - topology: block\n  block:\n    blocks:\n      - {block: b1, nodes: 'n[2-3]'}\n";
    let nodes = "NodeName=n[1-4] Gres=gpu:gb200:4\n";
    check(
        Format::Slurm,
        &[("topology.yaml", yaml), ("slurm.conf", nodes)],
        expect![[r#"
        slurm: 4 nodes, 16 GPUs
        kind gb200-x4 [4] gb200, up 900 GB/s: n[1-4]
        leaf s1: n[1-2]
        leaf s2: n[3-4]
    "#]],
    );
}

#[test]
fn gpus_of_a_shorter_name_contradict_no_instance() {
    let options = ImportOptions { instance: Some("p4d.24xlarge".into()), ..ImportOptions::default() };
    let nodes = "NodeName=n[1-2] Gres=gpu:a100:8 RealMemory=1100000\nNodeName=login CPUs=4\n";
    check_with(
        Format::Slurm,
        &[("slurm.conf", nodes)],
        &options,
        expect![[r#"
        slurm: 3 nodes, 16 GPUs
        kind p4d.24xlarge [8] a100-40gb, up 300 GB/s, out 50 GB/s, cards 4, vcpus 96, memory 1.237 TB, reported 1.153 TB: n[1-2]
        kind cpu [] -, vcpus 4: login
        no switch: n[1-2],login
    "#]],
    );
}

#[test]
fn cluster_toml_says_everything() {
    check(
        Format::Document,
        &[("cluster.toml", CLUSTER_TOML)],
        expect![[r#"
        hall-3: 24 nodes, 112 GPUs
        kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: n[1-4]
        kind p6e-gb200.36xlarge [4] gb200, up 900 GB/s, out 200 GB/s, cards 4, vcpus 144, memory 1.031 TB: gb[01-18]
        kind own [1, 1, 1, 1] l40s, out 50 GB/s, cards 1, vcpus 64, memory 549.8 GB: own[1-2]
        spine spine 2.5:1: 
          leaf leaf1 2:1: n[1-4]
          leaf leaf2: gb[01-18]
          leaf leaf3: own[1-2]
        domain u-p6e-gb200x72-1: gb[01-18]
        down n3 "XID 79: \"fell off the bus\""
        down n4 "XID 79: \"fell off the bus\""
        degraded gb07 ""
        failed gb07 GPU 3
        storage fsx-lustre-persistent-250 1.2 PB
    "#]],
    );
}

#[test]
fn cluster_toml_makes_regular_trees() {
    let text = "[[group]]\ninstance = 'p5.48xlarge'\ncount = 20\n\n[fabric]\nnodes_per_leaf = 4\nleaves_per_spine = 2\noversubscription = [1, 2]\n";
    check(
        Format::Document,
        &[("cluster.toml", text)],
        expect![[r#"
        cluster: 20 nodes, 160 GPUs
        kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: n[01-20]
        core core1: 
          spine spine1 2:1: 
            leaf leaf1: n[01-04]
            leaf leaf2: n[05-08]
          spine spine2 2:1: 
            leaf leaf3: n[09-12]
            leaf leaf4: n[13-16]
          spine spine3 2:1: 
            leaf leaf5: n[17-20]
    "#]],
    );
    let text = "[[group]]\nultraserver = 'u-p6e-gb200x36'\ncount = 2\n[fabric]\nnodes_per_leaf = 9\n";
    check(
        Format::Document,
        &[("cluster.toml", text)],
        expect![[r#"
        cluster: 18 nodes, 72 GPUs
        kind p6e-gb200.36xlarge [4] gb200, up 900 GB/s, out 200 GB/s, cards 4, vcpus 144, memory 1.031 TB: n[01-18]
        spine spine1: 
          leaf leaf1: n[01-09]
          leaf leaf2: n[10-18]
        domain u-p6e-gb200x36-1: n[01-09]
        domain u-p6e-gb200x36-2: n[10-18]
    "#]],
    );
}

#[test]
fn ec2_instances_hang_on_their_last_network_node() {
    check(
        Format::Ec2,
        &[("topology.json", EC2)],
        expect![[r#"
        ec2: 6 nodes, 40 GPUs
        kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: i-1111111111example,i-2222222222example,i-3333333333example,i-6666666666example
        kind p6e-gb200.36xlarge [4] gb200, up 900 GB/s, out 200 GB/s, cards 4, vcpus 144, memory 1.031 TB: i-4444444444example,i-5555555555example
        core nn-1111111111example: 
          spine nn-2222222222example: 
            leaf nn-3333333333example: i-1111111111example,i-2222222222example
          spine nn-4444444444example: 
            leaf nn-5555555555example: i-3333333333example
            leaf nn-6666666666example: i-4444444444example,i-5555555555example
        no switch: i-6666666666example
        domain cb-0123456789example: i-4444444444example,i-5555555555example
    "#]],
    );
}

#[test]
fn ec2_instances_outside_the_catalog_are_plain_machines() {
    let text = "{\"Instances\": [\n\
        {\"InstanceId\": \"i-1\", \"InstanceType\": \"p5.48xlarge\", \"NetworkNodes\": [\"a\", \"b\"]},\n\
        {\"InstanceId\": \"i-2\", \"InstanceType\": \"m5.large\", \"NetworkNodes\": [\"a\", \"b\"]}]}";
    check(
        Format::Ec2,
        &[("topology.json", text)],
        expect![[r#"
        ec2: 2 nodes, 8 GPUs
        kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: i-1
        kind m5.large [] -: i-2
        spine a: 
          leaf b: i-[1-2]
    "#]],
    );
    // The option is for what the answer leaves out, and says nothing about machines without GPUs.
    let text = text.replace("\"InstanceType\": \"p5.48xlarge\", ", "");
    let options = ImportOptions { instance: Some("p5.48xlarge".into()), ..ImportOptions::default() };
    check_with(
        Format::Ec2,
        &[("topology.json", &text)],
        &options,
        expect![[r#"
        ec2: 2 nodes, 8 GPUs
        kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: i-1
        kind m5.large [] -: i-2
        spine a: 
          leaf b: i-[1-2]
    "#]],
    );
}

#[test]
fn gpus_that_are_not_allocatable_are_not_usable() {
    let cluster = read(Format::Kubernetes, &[("nodes.json", NODES_JSON)], &ImportOptions::default()).unwrap();
    // Eight and eight of the three nodes are cordoned or drained; one of the remaining eight is missing.
    assert_eq!(cluster.summary().usable_gpus, 7);
}

#[test]
fn kubernetes_nodes_tell_hardware_tree_and_health() {
    check(
        Format::Kubernetes,
        &[("nodes.json", NODES_JSON)],
        expect![[r#"
            kubernetes: 4 nodes, 24 GPUs
            kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: ip-10-0-1-11.ec2.internal,ip-10-0-1-12.ec2.internal,ip-10-0-1-13.ec2.internal
            kind m5.large [] -, vcpus 2, memory 8.59 GB: system-1
            core nn-a: 
              spine nn-b: 
                leaf nn-c: ip-10-0-1-11.ec2.internal
                leaf nn-d: ip-10-0-1-12.ec2.internal,ip-10-0-1-13.ec2.internal
            no switch: system-1
            degraded ip-10-0-1-11.ec2.internal "7 of 8 GPUs allocatable"
            draining ip-10-0-1-12.ec2.internal "cordoned"
            drained ip-10-0-1-13.ec2.internal "UnschedulablePendingReplacement"
            down system-1 "NodeStatusUnknown"
            failed ip-10-0-1-11.ec2.internal GPU 7
        "#]],
    );
    check(
        Format::Kubernetes,
        &[("nodes.yaml", NODES_YAML)],
        expect![[r#"
        kubernetes: 3 nodes, 12 GPUs
        kind gb200-x4 [4] gb200, up 900 GB/s, vcpus 144: gb-[1-3]
        spine s3: gb-[1-2]
          leaf s4: gb-3
        domain 7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1: gb-[1-2]
    "#]],
    );
}

#[test]
fn nvidia_smi_is_one_node() {
    let options = ImportOptions { accelerator: Some("h100".into()), ..ImportOptions::default() };
    check_with(
        Format::NvidiaSmi,
        &[("topo.txt", NVIDIA_SMI)],
        &options,
        expect![[r#"
        localhost: 1 nodes, 8 GPUs
        kind h100-x8 [8] h100, up 450 GB/s, cards 4: localhost
        no switch: localhost
    "#]],
    );
    let instance = ImportOptions { instance: Some("p5.48xlarge".into()), ..ImportOptions::default() };
    check_with(
        Format::NvidiaSmi,
        &[("topo.txt", NVIDIA_SMI)],
        &instance,
        expect![[r#"
        localhost: 1 nodes, 8 GPUs
        kind p5.48xlarge [8] h100, up 450 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: localhost
        no switch: localhost
    "#]],
    );
    let h200 = ImportOptions { accelerator: Some("NVIDIA H200".into()), ..ImportOptions::default() };
    check_with(
        Format::NvidiaSmi,
        &[("topo.txt", NVIDIA_SMI_H200)],
        &h200,
        expect![[r#"
        localhost: 1 nodes, 1 GPUs
        kind h200-x1 [1] h200: localhost
        no switch: localhost
    "#]],
    );
    let pairs = ImportOptions { accelerator: Some("h100-nvl".into()), ..ImportOptions::default() };
    check_with(
        Format::NvidiaSmi,
        &[("topo.txt", NVIDIA_SMI_PAIRS)],
        &pairs,
        expect![[r#"
        localhost: 1 nodes, 4 GPUs
        kind h100-nvl-x4 [2, 2] h100-nvl, up 300 GB/s, cards 1: localhost
        no switch: localhost
    "#]],
    );
}

/// A matrix of GPUs that are all joined by the same link.
fn matrix(gpus: usize, link: &str) -> String {
    let names: Vec<String> = (0..gpus).map(|gpu| format!("GPU{gpu}")).collect();
    let mut text = format!("\t{}\n", names.join("\t"));
    for row in 0..gpus {
        let cells: Vec<&str> = (0..gpus).map(|column| if row == column { "X" } else { link }).collect();
        text += &format!("GPU{row}\t{}\n", cells.join("\t"));
    }
    text
}

#[test]
fn nvlinks_are_counted() {
    let up = |accelerator: &str, gpus: usize, link: &str| {
        let options = ImportOptions { accelerator: Some(accelerator.into()), ..ImportOptions::default() };
        let text = matrix(gpus, link);
        let cluster = read(Format::NvidiaSmi, &[("topo.txt", &text)], &options).unwrap();
        cluster.kinds()[0].scale_up_bandwidth.map(|bandwidth| bandwidth.to_string())
    };
    let rate = |text: &str| Some(text.to_owned());
    assert_eq!(up("a100", 8, "NV12"), rate("300 GB/s"));
    assert_eq!(up("h200", 8, "NV18"), rate("450 GB/s"));
    assert_eq!(up("b200", 8, "NV18"), rate("900 GB/s"));
    // Four A100 without a switch: four links to each of three others.
    assert_eq!(up("a100", 4, "NV4"), rate("300 GB/s"));
    assert_eq!(up("a100", 2, "NV4"), rate("100 GB/s"));
    // Two of eighteen links to the switch are down.
    assert_eq!(up("h100", 8, "NV16"), rate("400 GB/s"));
    assert_eq!(up("h800", 8, "NV8"), rate("200 GB/s"));
    assert_eq!(up("h100", 8, "SYS"), None);
    // The catalog has no scale-up fabric for it.
    assert_eq!(up("l40s", 2, "NV4"), None);
    let instance = ImportOptions { instance: Some("p5.48xlarge".into()), ..ImportOptions::default() };
    check_with(
        Format::NvidiaSmi,
        &[("topo.txt", &matrix(8, "NV16"))],
        &instance,
        expect![[r#"
        localhost: 1 nodes, 8 GPUs
        kind p5.48xlarge [8] h100, up 400 GB/s, out 400 GB/s, cards 32, vcpus 192, memory 2.199 TB: localhost
        no switch: localhost
    "#]],
    );
}

#[test]
fn the_format_is_found_by_content() {
    let cases = [
        (TOPOLOGY_CONF, Format::Slurm),
        (SLURM_CONF, Format::Slurm),
        (BLOCK_CONF, Format::Slurm),
        (TOPOLOGY_YAML, Format::Slurm),
        (CLUSTER_TOML, Format::Document),
        (EC2, Format::Ec2),
        (NODES_JSON, Format::Kubernetes),
        (NODES_YAML, Format::Kubernetes),
        (NVIDIA_SMI, Format::NvidiaSmi),
        (NVIDIA_SMI_H200, Format::NvidiaSmi),
        (NVIDIA_SMI_PAIRS, Format::NvidiaSmi),
        ("p5.48xlarge:64+p5en.48xlarge:8\n", Format::Spec),
    ];
    for (text, format) in cases {
        assert_eq!(detect(Source::new("input", text)), Some(format), "{text}");
    }
    for text in ["", "\n\n", "hello world", "{}", "[1, 2]", "\u{0}\u{1}"] {
        assert_eq!(detect(Source::new("input", text)), None, "{text:?}");
    }
    for (text, format) in cases {
        let marked = format!("\u{feff}{text}");
        assert_eq!(detect(Source::new("input", &marked)), Some(format), "{text}");
    }
    let cluster = import_detected(&[Source::new("in", EC2)], &ImportOptions::default(), &CATALOG).unwrap();
    assert_eq!(cluster.node_count(), 6);
}

#[test]
fn the_ending_decides_where_the_content_does_not() {
    let cases = [
        ("cluster.toml", "[[gruop]]\n", Some(Format::Document)),
        ("leaf.CONF", "SwichName=s1 Nodes=n1\n", Some(Format::Slurm)),
        ("topology.yaml", "- topolgy: t\n", Some(Format::Slurm)),
        ("nodes.yml", "itmes: []\n", Some(Format::Kubernetes)),
        ("nodes.json", "{}", None),
        ("cluster.toml", "", None),
        // The content is right even where the ending is not.
        ("cluster.toml", "SwitchName=s1 Nodes=n1\n", Some(Format::Slurm)),
    ];
    for (name, text, format) in cases {
        assert_eq!(detect(Source::new(name, text)), format, "{name}");
    }
    // An undetectable file does not hide the format of the next.
    let sources = [Source::new("a", "# nothing\n"), Source::new("b", SLURM_CONF)];
    assert!(import_detected(&sources, &ImportOptions::default(), &CATALOG).is_ok());
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    let options = ImportOptions::default();
    let matrix = ImportOptions { accelerator: Some("h100".into()), ..ImportOptions::default() };
    for (format, text, options) in [
        (Format::Spec, "p5.48xlarge:2", &options),
        (Format::Slurm, SLURM_CONF, &options),
        (Format::Slurm, "NodeName=n1 Gres=gpu:h100:8\n", &options),
        (Format::Document, CLUSTER_TOML, &options),
        (Format::Ec2, EC2, &options),
        (Format::Kubernetes, NODES_JSON, &options),
        (Format::Kubernetes, NODES_YAML, &options),
        (Format::NvidiaSmi, NVIDIA_SMI, &matrix),
    ] {
        let marked = format!("\u{feff}{text}");
        assert_eq!(
            read(format, &[("input", &marked)], options),
            read(format, &[("input", text)], options),
            "{}",
            format.name()
        );
    }
}

#[test]
fn nodes_without_switches_are_no_leaves() {
    let files = [("topology.conf", TOPOLOGY_CONF), ("slurm.conf", SLURM_CONF)];
    let cluster = read(Format::Slurm, &files, &ImportOptions::default()).unwrap();
    expect![[r#"
        research: 15 nodes, 112 GPUs
          8 x p5.48xlarge (64 GPUs)
          4 x p5en.48xlarge (32 GPUs)
          2 x a100-80gb-x8 (16 GPUs)
          1 x cpu (0 GPUs)
          domain   14 of 8 GPUs
          node     15 of 0 to 8 GPUs
          leaf     4 of 16 to 32 GPUs
          spine    2 of 48 to 64 GPUs
          core     1 of 112 GPUs
          cluster  1 of 112 GPUs
          healthy  12 nodes
          drained  2 nodes
          down     1 node
    "#]]
    .assert_eq(&cluster.summary().to_string());
}

#[test]
fn a_summary_fits_on_a_page() {
    let sources = [Source::new("cluster.toml", CLUSTER_TOML)];
    let cluster: Cluster = import_detected(&sources, &ImportOptions::default(), &CATALOG).unwrap();
    expect![[r#"
        hall-3: 24 nodes, 112 GPUs
          4 x p5.48xlarge (32 GPUs)
          18 x p6e-gb200.36xlarge (72 GPUs)
          2 x own (8 GPUs)
          domain   13 of 1 to 72 GPUs
          node     24 of 4 to 8 GPUs
          leaf     3 of 8 to 72 GPUs
          spine    1 of 112 GPUs
          cluster  1 of 112 GPUs
          healthy  21 nodes
          degraded 1 node
          down     2 nodes
          storage  1.2 PB of fsx-lustre-persistent-250
    "#]]
    .assert_eq(&cluster.summary().to_string());
}
