//! Every refusal names file, line, text and remedy.

use std::collections::BTreeSet;

use bedplate_diag::{Diagnostic, Source, render_text};
use bedplate_topology::{Blocks, Format, ImportOptions, Level, PAGES, import_detected};
use expect_test::{Expect, expect};

use crate::support::*;

fn check(format: Format, files: Files<'_>, expected: Expect) {
    expected.assert_eq(&outcome(format, files, &ImportOptions::default()));
}

fn slurm(topology: &str, expected: Expect) {
    check(
        Format::Slurm,
        &[("topology.conf", topology), ("slurm.conf", "NodeName=n[1-8] Gres=gpu:h100:8\n")],
        expected,
    );
}

fn nodes(text: &str, expected: Expect) {
    check(Format::Slurm, &[("slurm.conf", text)], expected);
}

fn toml(text: &str, expected: Expect) {
    check(Format::Document, &[("cluster.toml", text)], expected);
}

#[test]
fn specifications() {
    let spec = |text: &str, expected| check(Format::Spec, &[("cluster", text)], expected);
    spec(
        "p5.49xlarge:64",
        expect![[r#"
        error[cluster/unknown-hardware]: the hardware is not in the catalog
          in   cluster:1:1: p5.49xlarge:64
          why  the catalog has no instance called `p5.49xlarge`
        help:  did you mean `p5.4xlarge` or `p5.48xlarge`?
    "#]],
    );
    spec(
        "u-p6e-gb200x71",
        expect![[r#"
        error[cluster/unknown-hardware]: the hardware is not in the catalog
          in   cluster:1:1: u-p6e-gb200x71
          why  the catalog has no UltraServer called `u-p6e-gb200x71`
        help:  did you mean `u-p6e-gb200x72` or `u-p6e-gb200x36`?
    "#]],
    );
    spec(
        "p5.48xlarge:many",
        expect![[r#"
            error[cluster/malformed]: this is not a cluster such as `p5.48xlarge:64`: the count after the colon must be a whole number
              in   cluster:1:1: p5.48xlarge:many
            help:  correct the place shown; the formats are described in the book under `cluster import`
        "#]],
    );
    spec(
        "p5.48xlarge:1++p5.48xlarge",
        expect![[r#"
        error[cluster/malformed]: this is not a cluster such as `p5.48xlarge:64`: the name of an instance or UltraServer is missing
          in   cluster:1:15: p5.48xlarge:1++p5.48xlarge
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    spec(
        "p5.48xlarge:0",
        expect![[r#"
            error[cluster/malformed]: this is not a cluster such as `p5.48xlarge:64`: the count is missing or zero
              in   cluster:1:1: p5.48xlarge:0
            help:  correct the place shown; the formats are described in the book under `cluster import`
        "#]],
    );
    spec(
        "p5.48xlarge:2000000",
        expect![[r#"
        error[cluster/too-many]: 2,000,000 nodes are more than the limit of 1,000,000
          in   cluster:1:1: p5.48xlarge:2000000
        help:  correct the count
    "#]],
    );
}

#[test]
fn accelerators_are_no_machines() {
    check(
        Format::Spec,
        &[("cluster", "h100:64")],
        expect![[r#"
        error[cluster/unknown-hardware]: the hardware is not in the catalog
          in   cluster:1:1: h100:64
          why  the catalog has no instance called `h100`
        help:  that is an accelerator; name a machine that has it, such as `p5.48xlarge`, `dgx-h100`, `p5.4xlarge`
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'gb200'\n",
        expect![[r#"
        error[cluster/unknown-hardware]: the hardware is not in the catalog
          in   cluster.toml:2:12: instance = 'gb200'
          why  the catalog has no instance called `gb200`
        help:  that is an accelerator; name a machine that has it, such as `p6e-gb200.36xlarge`, `dgx-gb200-tray`
    "#]],
    );
    check(
        Format::Spec,
        &[("cluster", "p5.48xlarge:")],
        expect![[r#"
        error[cluster/malformed]: this is not a cluster such as `p5.48xlarge:64`: the count is missing or zero
          in   cluster:1:1: p5.48xlarge:
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
}

#[test]
fn numbered_names_are_no_suggestions() {
    let nodes = "NodeName=n[001-064] Gres=gpu:h100:8\n";
    let check = |topology: &str, expected| {
        check(Format::Slurm, &[("topology.conf", topology), ("slurm.conf", nodes)], expected);
    };
    check(
        "SwitchName=leaf1 Nodes=n[001-065]\n",
        expect![[r#"
        error[cluster/undefined]: there is no node called `n065`
          in   topology.conf:1: SwitchName=leaf1 Nodes=n[001-065]
        help:  define it, or correct the spelling
    "#]],
    );
    check(
        "SwitchName=leaf1 Nodes=m001\n",
        expect![[r#"
        error[cluster/undefined]: there is no node called `m001`
          in   topology.conf:1: SwitchName=leaf1 Nodes=m001
        help:  did you mean `n001`?
    "#]],
    );
    let nodes = "[[group]]\ninstance = 'p5.48xlarge'\nnodes = 'node[001-004]'\n";
    toml(
        &format!("{nodes}[[health]]\nnodes = 'node005'\nstate = 'down'\n"),
        expect![[r#"
        error[cluster/undefined]: there is no node called `node005`
          in   cluster.toml:5:9: nodes = 'node005'
        help:  define it, or correct the spelling
    "#]],
    );
    toml(
        &format!("{nodes}[[health]]\nnodes = 'nod004'\nstate = 'down'\n"),
        expect![[r#"
        error[cluster/undefined]: there is no node called `nod004`
          in   cluster.toml:5:9: nodes = 'nod004'
        help:  did you mean `node004`?
    "#]],
    );
}

#[test]
fn options_that_contradict_the_description() {
    let instance = |name: &str| ImportOptions { instance: Some(name.into()), ..ImportOptions::default() };
    let check = |format, text: &str, options: &ImportOptions, expected: Expect| {
        expected.assert_eq(&outcome(format, &[("input", text)], options));
    };
    let nodes = "NodeName=n[1-2] Gres=gpu:h100:8\n";
    check(
        Format::Slurm,
        nodes,
        &instance("p4d.24xlarge"),
        expect![[r#"
            error[cluster/contradiction]: node `n[1-2]` has h100 GPUs, but p4d.24xlarge has a100-40gb
              in   input:1: NodeName=n[1-2] Gres=gpu:h100:8
            help:  correct the named instance or accelerator, or leave it out
        "#]],
    );
    let nodes = "NodeName=n[1-2] Gres=gpu:8 Feature=p5.48xlarge\n";
    check(
        Format::Slurm,
        nodes,
        &instance("p5en.48xlarge"),
        expect![[r#"
            error[cluster/contradiction]: node `n[1-2]` is a p5.48xlarge, not a p5en.48xlarge
              in   input:1: NodeName=n[1-2] Gres=gpu:8 Feature=p5.48xlarge
            help:  correct the named instance or accelerator, or leave it out
        "#]],
    );
    let nodes = "NodeName=n[1-2] Gres=gpu:a100:8 Feature=p5.48xlarge\n";
    check(
        Format::Slurm,
        nodes,
        &ImportOptions::default(),
        expect![[r#"
            error[cluster/contradiction]: node `n[1-2]` has a100-80gb GPUs, but p5.48xlarge has h100
              in   input:1: NodeName=n[1-2] Gres=gpu:a100:8 Feature=p5.48xlarge
            help:  correct the named instance or accelerator, or leave it out
        "#]],
    );
    check(
        Format::Slurm,
        nodes,
        &instance("h100"),
        expect![[r#"
        error[cluster/unknown-hardware]: the hardware is not in the catalog
          in   input:1: NodeName=n[1-2] Gres=gpu:a100:8 Feature=p5.48xlarge
          why  the catalog has no instance called `h100`
        help:  that is an accelerator; name a machine that has it, such as `p5.48xlarge`, `dgx-h100`, `p5.4xlarge`
    "#]],
    );

    let node = |labels: &str| {
        format!(
            "{{\"kind\": \"List\", \"items\": [\n{{\"metadata\": {{\"name\": \"a\", \"labels\": {{{labels}}}}}}}]}}"
        )
    };
    let product =
        node("\"nvidia.com/gpu.product\": \"NVIDIA-H100-80GB-HBM3\", \"nvidia.com/gpu.count\": \"8\"");
    check(
        Format::Kubernetes,
        &product,
        &instance("p4de.24xlarge"),
        expect![[r#"
            error[cluster/contradiction]: node `a` has h100 GPUs, but p4de.24xlarge has a100-80gb
              in   input:2:24: {"metadata": {"name": "a", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}}}]…
            help:  correct the named instance or accelerator, or leave it out
        "#]],
    );
    let label =
        node("\"node.kubernetes.io/instance-type\": \"p5.48xlarge\", \"nvidia.com/gpu.count\": \"8\"");
    check(
        Format::Kubernetes,
        &label,
        &instance("p5e.48xlarge"),
        expect![[r#"
            error[cluster/contradiction]: node `a` is a p5.48xlarge, not a p5e.48xlarge
              in   input:2:24: {"metadata": {"name": "a", "labels": {"node.kubernetes.io/instance-type": "p5.48xlarge", "nvidia.com/gpu.count": "8"}}}]…
            help:  correct the named instance or accelerator, or leave it out
        "#]],
    );
    check(
        Format::Ec2,
        EC2,
        &instance("p5en.48xlarge"),
        expect![[r#"
            error[cluster/contradiction]: node `i-1111111111example` is a p5.48xlarge, not a p5en.48xlarge
              in   input:4:28: "InstanceId": "i-1111111111example",
            help:  correct the named instance or accelerator, or leave it out
        "#]],
    );

    let both = ImportOptions { accelerator: Some("h100".into()), ..instance("p4d.24xlarge") };
    check(
        Format::NvidiaSmi,
        NVIDIA_SMI,
        &both,
        expect![[r#"
            error[cluster/contradiction]: node `localhost` has h100 GPUs, but p4d.24xlarge has a100-40gb
              in   input
            help:  correct the named instance or accelerator, or leave it out
        "#]],
    );
    let a100 = ImportOptions { accelerator: Some("a100".into()), ..ImportOptions::default() };
    check(
        Format::NvidiaSmi,
        NVIDIA_SMI,
        &a100,
        expect![[r#"
            error[cluster/contradiction]: the matrix shows 18 NVLinks between two GPUs, but a100-80gb has 12 in all
              in   input
            help:  correct the named instance or accelerator, or leave it out
        "#]],
    );
    check(
        Format::NvidiaSmi,
        NVIDIA_SMI,
        &instance("p4d.24xlarge"),
        expect![[r#"
            error[cluster/contradiction]: the matrix shows 18 NVLinks between two GPUs, but a100-40gb has 12 in all
              in   input
            help:  correct the named instance or accelerator, or leave it out
        "#]],
    );
}

#[test]
fn options_that_do_not_apply() {
    let none = ImportOptions::default;
    let instance = ImportOptions { instance: Some("p5.48xlarge".into()), ..none() };
    let accelerator = ImportOptions { accelerator: Some("h100".into()), ..none() };
    let blocks = ImportOptions { blocks: Blocks::Leaves, ..none() };
    let topology = ImportOptions { topology: Some("topo1".into()), ..none() };
    let mut text = String::new();
    for (format, input) in [
        (Format::Spec, "p5.48xlarge"),
        (Format::Document, CLUSTER_TOML),
        (Format::Slurm, SLURM_CONF),
        (Format::Ec2, EC2),
        (Format::Kubernetes, NODES_JSON),
        (Format::NvidiaSmi, NVIDIA_SMI),
    ] {
        for options in [&instance, &accelerator, &blocks, &topology] {
            match read(format, &[("input", input)], options) {
                Err(error) if error.page().code == "cluster/unused-option" => text += &format!("{error}\n"),
                _ => {}
            }
        }
    }
    expect![[r#"
        the option `instance` does not apply to a cluster in one line
        the option `accelerator` does not apply to a cluster in one line
        the option `blocks` does not apply to a cluster in one line
        the option `topology` does not apply to a cluster in one line
        the option `instance` does not apply to cluster.toml
        the option `accelerator` does not apply to cluster.toml
        the option `blocks` does not apply to cluster.toml
        the option `topology` does not apply to cluster.toml
        the option `topology` does not apply to Slurm's files without topology.yaml
        the option `accelerator` does not apply to EC2's instance topology
        the option `blocks` does not apply to EC2's instance topology
        the option `topology` does not apply to EC2's instance topology
        the option `blocks` does not apply to a list of Kubernetes nodes
        the option `topology` does not apply to a list of Kubernetes nodes
        the option `blocks` does not apply to a matrix of `nvidia-smi topo -m`
        the option `topology` does not apply to a matrix of `nvidia-smi topo -m`
    "#]]
    .assert_eq(&text);
    let outcome = outcome(Format::Document, &[("cluster.toml", CLUSTER_TOML)], &instance);
    expect![[r#"
        error[cluster/unused-option]: the option `instance` does not apply to cluster.toml
          in   cluster.toml
        help:  leave the option out
    "#]]
    .assert_eq(&outcome);
}

#[test]
fn slurm_topologies() {
    slurm(
        "SwitchName=s1 Nodes=n[1-8]\nSwichName=s2 Nodes=n9\n",
        expect![[r#"
        error[cluster/unknown-key]: `SwichName` is not a key of topology.conf
          in   topology.conf:2: SwichName=s2 Nodes=n9
        help:  did you mean `SwitchName`?
    "#]],
    );
    slurm(
        "SwitchName=s1 Node=n[1-8]\n",
        expect![[r#"
        error[cluster/unknown-key]: `Node` is not a key of a SwitchName line
          in   topology.conf:1: SwitchName=s1 Node=n[1-8]
        help:  did you mean `Nodes`?
    "#]],
    );
    slurm(
        "SwitchName=a Switches=b\nSwitchName=b Switches=c\nSwitchName=c Switches=a\nSwitchName=d Nodes=n[1-8]\n",
        expect![[r#"
            error[cluster/cycle]: the switches a → b → c → a form a cycle
              in   topology.conf:1: SwitchName=a Switches=b
            help:  remove one of the links of the cycle
        "#]],
    );
    slurm(
        "SwitchName=a Switches=a\nSwitchName=d Nodes=n[1-8]\n",
        expect![[r#"
        error[cluster/cycle]: the switches a → a form a cycle
          in   topology.conf:1: SwitchName=a Switches=a
        help:  remove one of the links of the cycle
    "#]],
    );
    slurm(
        "SwitchName=s1 Nodes=n[1-4]\nSwitchName=s1 Nodes=n[5-8]\n",
        expect![[r#"
        error[cluster/duplicate]: switch `s1` occurs twice
          in   topology.conf:2: SwitchName=s1 Nodes=n[5-8]
        help:  remove or rename one of the two
    "#]],
    );
    slurm(
        "SwitchName=s1 Nodes=n[1-4]\nSwitchName=s2 Nodes=n[4-8]\n",
        expect![[r#"
            error[cluster/two-parents]: node `n4` is attached to both `s1` and `s2`
              in   topology.conf:2: SwitchName=s2 Nodes=n[4-8]
            help:  name it under one switch only; write parallel rails as a single switch
        "#]],
    );
    slurm(
        "SwitchName=s1 Nodes=n[1-8]\nSwitchName=t1 Switches=s1\nSwitchName=t2 Switches=s1\n",
        expect![[r#"
            error[cluster/two-parents]: switch `s1` is attached to both `t1` and `t2`
              in   topology.conf:3: SwitchName=t2 Switches=s1
            help:  name it under one switch only; write parallel rails as a single switch
        "#]],
    );
    slurm(
        "SwitchName=leaf1 Nodes=n[1-9]\n",
        expect![[r#"
        error[cluster/undefined]: there is no node called `n9`
          in   topology.conf:1: SwitchName=leaf1 Nodes=n[1-9]
        help:  define it, or correct the spelling
    "#]],
    );
    slurm(
        "SwitchName=leaf1 Nodes=n[1-8]\nSwitchName=t Switches=laef1\n",
        expect![[r#"
        error[cluster/undefined]: there is no switch called `laef1`
          in   topology.conf:2: SwitchName=t Switches=laef1
        help:  did you mean `leaf1`?
    "#]],
    );
    slurm(
        "SwitchName=s1 Nodes=n[1-7]\n",
        expect![[r#"
            error[cluster/without-switch]: node `n8` is attached to no switch
              in   slurm.conf:1: NodeName=n[1-8] Gres=gpu:h100:8
            help:  add the node to its switch
        "#]],
    );
    slurm(
        "SwitchName=s1\n",
        expect![[r#"
        error[cluster/malformed]: this is not a switch of Slurm's tree: `s1` has neither nodes nor switches below it
          in   topology.conf:1: SwitchName=s1
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    slurm(
        "SwitchName=s1 Nodes=n[1-7] Switches=s2\n",
        expect![[r#"
        error[cluster/malformed]: this is not a switch of Slurm's tree: `s1` has both nodes and switches below it
          in   topology.conf:1: SwitchName=s1 Nodes=n[1-7] Switches=s2
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    slurm(
        "SwitchName=s1 Nodes=n[8-1]\n",
        expect![[r#"
        error[cluster/bad-hostlist]: the node list `n[8-1]` cannot be read: the range `8-1` runs backwards
          in   topology.conf:1: SwitchName=s1 Nodes=n[8-1]
        help:  write ranges as `first-last`, the first not larger than the last, separated by commas within the brackets
    "#]],
    );
    slurm(
        "SwitchName=s1 Nodes=n[1-999999999999]\n",
        expect![[r#"
        error[cluster/too-many]: 999,999,999,999 names in one list are more than the limit of 1,000,000
          in   topology.conf:1: SwitchName=s1 Nodes=n[1-999999999999]
        help:  correct the count
    "#]],
    );
    slurm(
        "BlockName=b1 Nodes=n[1-8]\nBlockSizes=four\n",
        expect![[r#"
        error[cluster/malformed]: this is not a list of block sizes: `four` are not whole numbers separated by commas
          in   topology.conf:2: BlockSizes=four
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    slurm(
        "Include other.conf\n",
        expect![[r#"
        error[cluster/include]: the file includes another one
          in   topology.conf:1: Include other.conf
        help:  give `other.conf` as a further input, and remove the Include line from a copy of this file
    "#]],
    );
}

#[test]
fn slurm_nodes() {
    nodes(
        "NodeName=n[1-2] Gres=gpu:8\n",
        expect![[r#"
        error[cluster/missing-gpu-type]: nothing says which GPU node `n[1-2]` has
          in   slurm.conf:1: NodeName=n[1-2] Gres=gpu:8
        help:  write the type, as in `Gres=gpu:h100:8`, or name it with `--accelerator`
    "#]],
    );
    nodes(
        "NodeName=n[1-2] Gres=gpu:h101:8\n",
        expect![[r#"
        error[cluster/unknown-hardware]: the hardware is not in the catalog
          in   slurm.conf:1: NodeName=n[1-2] Gres=gpu:h101:8
          why  the catalog has no accelerator called `h101`
        help:  did you mean `h100`?
    "#]],
    );
    nodes(
        "NodeName=n[1-2] Gress=gpu:h100:8\n",
        expect![[r#"
        error[cluster/unknown-key]: `Gress` is not a key of a NodeName line
          in   slurm.conf:1: NodeName=n[1-2] Gress=gpu:h100:8
        help:  did you mean `Gres`?
    "#]],
    );
    nodes(
        "NodeName=n[1-2] Gres=gpu:h100:8:9:10\n",
        expect![[r#"
        error[cluster/malformed]: this is not GRES such as `gpu:h100:8`: `Gres=gpu:h100:8:9:10`
          in   slurm.conf:1: NodeName=n[1-2] Gres=gpu:h100:8:9:10
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    nodes(
        "NodeName=n[1-2] Gres=gpu:h100:4,gpu:a100:4\n",
        expect![[r#"
        error[cluster/malformed]: this is not GPUs of one type per node: `Gres=gpu:h100:4,gpu:a100:4`
          in   slurm.conf:1: NodeName=n[1-2] Gres=gpu:h100:4,gpu:a100:4
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    nodes(
        "NodeName=n[1-2] Gres=gpu:h100:8 State=SLEEPY\n",
        expect![[r#"
        error[cluster/malformed]: this is not a node state of Slurm: `State=SLEEPY`
          in   slurm.conf:1: NodeName=n[1-2] Gres=gpu:h100:8 State=SLEEPY
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    nodes(
        "NodeName=n[1-2] Gres=gpu:h100:4 Feature=p5.48xlarge\n",
        expect![[r#"
        error[cluster/gpu-count]: node `n[1-2]` has 4 GPUs, but p5.48xlarge has 8
          in   slurm.conf:1: NodeName=n[1-2] Gres=gpu:h100:4 Feature=p5.48xlarge
        help:  correct the instance, or leave it out so that the node is described by its GPUs alone
    "#]],
    );
    nodes(
        "NodeName=n[1-2] Gres=gpu:h100:4\nNodeName=n2 Gres=gpu:h100:4\n",
        expect![[r#"
        error[cluster/duplicate]: node `n2` occurs twice
          in   slurm.conf:2: NodeName=n2 Gres=gpu:h100:4
        help:  remove or rename one of the two
    "#]],
    );
    nodes(
        "NodeName=n1 CPUs=many\n",
        expect![[r#"
        error[cluster/malformed]: this is not a whole number: `CPUs=many`
          in   slurm.conf:1: NodeName=n1 CPUs=many
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    nodes(
        "NodeName=n1 Gres=gpu:h100:4000\n",
        expect![[r#"
        error[cluster/too-many]: 4,000 GPUs in one node are more than the limit of 1,024
          in   slurm.conf:1: NodeName=n1 Gres=gpu:h100:4000
        help:  correct the count
    "#]],
    );
    nodes(
        "NodeName=n1 Gres\n",
        expect![[r#"
            error[cluster/malformed]: this is not a line of `Key=Value` pairs: `Gres` is not a pair
              in   slurm.conf:1: NodeName=n1 Gres
            help:  correct the place shown; the formats are described in the book under `cluster import`
        "#]],
    );
    nodes(
        "ClusterName=c\n",
        expect![[r#"
        error[cluster/empty]: the description has no nodes
          in   slurm.conf
        help:  check that the right file was given and that it is complete
    "#]],
    );
    nodes(
        "NodeName=n'1 CPUs=1\n",
        expect![[r#"
            error[cluster/bad-name]: `n'1` is not a valid name for a node: it has a blank, a control character or one of []{}(),;=#"'`\|&<>*?$
              in   slurm.conf:1: NodeName=n'1 CPUs=1
            help:  rename it with letters, digits, dots, dashes and underscores
        "#]],
    );
}

#[test]
fn slurm_yaml() {
    let yaml = |text: &str, expected| check(Format::Slurm, &[("topology.yaml", text)], expected);
    yaml(
        "- topology: t\n  tree:\n    switchs: []\n",
        expect![[r#"
        error[cluster/malformed]: this is not Slurm's topology.yaml: unknown field `switchs`, expected one of switches
          in   topology.yaml:3:5: switchs: []
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    yaml(
        "- topology: t\n  tree:\n    switches:\n      - switch: s1\n",
        expect![[r#"
        error[cluster/malformed]: this is not a switch of Slurm's tree: `s1` has neither nodes nor switches below it
          in   topology.yaml:4: - switch: s1
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    yaml(
        "- topology: [\n",
        expect![[r#"
        error[cluster/malformed]: this is not Slurm's topology.yaml: expected string scalar
          in   topology.yaml:1:13: - topology: [
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    yaml(
        "- topology: t\n  flat: true\n",
        expect![[r#"
        error[cluster/empty]: the description has no nodes
          in   topology.yaml
        help:  check that the right file was given and that it is complete
    "#]],
    );
}

#[test]
fn documents() {
    toml(
        "[[group]]\ninstance = 'p5.49xlarge'\n",
        expect![[r#"
        error[cluster/unknown-hardware]: the hardware is not in the catalog
          in   cluster.toml:2:12: instance = 'p5.49xlarge'
          why  the catalog has no instance called `p5.49xlarge`
        help:  did you mean `p5.4xlarge` or `p5.48xlarge`?
    "#]],
    );
    toml(
        "[[group]]\ncount = 4\n",
        expect![[r#"
        error[document/missing-key]: group lacks the key `instance`
          in   cluster.toml:1:1: [[group]]
        help:  add `instance = …`, a text in quotes
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\nkind = 'own'\n",
        expect![[r#"
        error[document/bad-value]: `instance` of group cannot be used: say one of `instance`, `ultraserver` and `kind`
          in   cluster.toml:2:12: instance = 'p5.48xlarge'
        help:  change the value as the message says
    "#]],
    );
    toml(
        "[[group]]\nkind = 'owm'\n[[kind]]\nname = 'own'\n",
        expect![[r#"
        error[cluster/undefined]: there is no kind called `owm`
          in   cluster.toml:2:8: kind = 'owm'
        help:  define it, or correct the spelling
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\ncount = 4\nnodes = 'n[1-5]'\n",
        expect![[r#"
        error[document/bad-value]: `nodes` of group cannot be used: it names 5 nodes, but the group has 4
          in   cluster.toml:4:9: nodes = 'n[1-5]'
        help:  change the value as the message says
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\nnodes = 'n[1-5]'\n[[group]]\ninstance = 'p5.48xlarge'\nnodes = 'n5'\n",
        expect![[r#"
        error[cluster/duplicate]: node `n5` occurs twice
          in   cluster.toml:6:9: nodes = 'n5'
        help:  remove or rename one of the two
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\ncont = 4\n",
        expect![[r#"
            error[document/unknown-key]: group has the unknown key `cont`
              in   cluster.toml:3:1: cont = 4
            help:  did you mean `count`?
        "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\ncount = 5000000\n",
        expect![[r#"
        error[cluster/too-many]: 5,000,000 nodes are more than the limit of 1,000,000
          in   cluster.toml:1:1: [[group]]
        help:  correct the count
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\n[fabric]\nnodes_per_leaf = 0\n",
        expect![[r#"
            error[document/bad-value]: `nodes_per_leaf` of fabric cannot be used: it must be at least 1
              in   cluster.toml:4:18: nodes_per_leaf = 0
            help:  change the value as the message says
        "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\n[fabric]\nleaves_per_spine = 2\n",
        expect![[r#"
        error[document/bad-value]: `leaves_per_spine` of fabric cannot be used: `nodes_per_leaf` is needed first
          in   cluster.toml:4:20: leaves_per_spine = 2
        help:  change the value as the message says
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\n[fabric]\noversubscription = [0.5]\n",
        expect![[r#"
        error[document/bad-value]: `oversubscription` of fabric cannot be used: 0.5 is not a ratio of downlink to uplink bandwidth, which is at least 1
          in   cluster.toml:4:20: oversubscription = [0.5]
        help:  change the value as the message says
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\n[fabric]\nnodes_per_leaf = 2\n[[switch]]\nname = 's'\nnodes = 'n1'\n",
        expect![[r#"
        error[document/bad-value]: `nodes_per_leaf` of fabric cannot be used: the tree is written out in [[switch]] too; keep one of the two
          in   cluster.toml:4:18: nodes_per_leaf = 2
        help:  change the value as the message says
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\ncount = 2\n[[switch]]\nname = 's'\nparent = 't'\nnodes = 'n1'\n[[switch]]\nname = 't'\nparent = 's'\n",
        expect![[r#"
        error[cluster/cycle]: the switches s → t → s form a cycle
          in   cluster.toml:4:1: [[switch]]
        help:  remove one of the links of the cycle
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\n[[switch]]\nname = 's'\nparent = 'spin'\nnodes = 'n1'\n[[switch]]\nname = 'spine'\n",
        expect![[r#"
        error[cluster/undefined]: there is no switch called `spin`
          in   cluster.toml:5:10: parent = 'spin'
        help:  did you mean `spine`?
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\n[[switch]]\nname = 's'\n",
        expect![[r#"
        error[document/bad-value]: `nodes` of switch `s` cannot be used: the switch has neither nodes nor switches below it
          in   cluster.toml:3:1: [[switch]]
        help:  change the value as the message says
    "#]],
    );
    toml(
        "[[group]]\nultraserver = 'u-p6e-gb200x72'\n[fabric]\nnodes_per_leaf = 4\n",
        expect![[r#"
            error[cluster/domain-across-switches]: scale-up domain `u-p6e-gb200x72-1` has nodes on switch `leaf1` and on switch `leaf2`
              in   cluster.toml:1:1: [[group]]
            help:  attach all nodes of the domain to the same switch
        "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\n[[health]]\nnodes = 'n1'\nstate = 'dwon'\n",
        expect![[r#"
        error[document/bad-value]: `state` of health cannot be used: `dwon` is unknown; did you mean `down`?
          in   cluster.toml:5:9: state = 'dwon'
        help:  change the value as the message says
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\n[[health]]\nnodes = 'n1'\nstate = 'degraded'\nfailed_gpus = [8]\n",
        expect![[r#"
        error[document/bad-value]: `failed_gpus` of health cannot be used: node `n1` has 8 GPUs, and 8 is not one of them
          in   cluster.toml:6:15: failed_gpus = [8]
        help:  change the value as the message says
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\n[[storage]]\nclass = 'fsx-luster-scratch'\ncapacity = '1 PB'\n",
        expect![[r#"
        error[cluster/unknown-hardware]: the hardware is not in the catalog
          in   cluster.toml:4:9: class = 'fsx-luster-scratch'
          why  the catalog has no storage class called `fsx-luster-scratch`
        help:  did you mean `fsx-lustre-scratch`?
    "#]],
    );
    toml(
        "name = 'empty'\n",
        expect![[r#"
        error[cluster/empty]: the description has no nodes
          in   cluster.toml
        help:  check that the right file was given and that it is complete
    "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\npart_of = 'u-trn2x64'\n",
        expect![[r#"
            error[document/bad-value]: `part_of` of group cannot be used: u-trn2x64 is made of trn2u.48xlarge
              in   cluster.toml:3:11: part_of = 'u-trn2x64'
            help:  change the value as the message says
        "#]],
    );
    toml(
        "[[group]]\ninstance = 'p5.48xlarge'\nfeatures = ['a,b']\n",
        expect![[r#"
        error[document/bad-value]: `features` of group cannot be used: a feature is a word without commas
          in   cluster.toml:3:12: features = ['a,b']
        help:  change the value as the message says
    "#]],
    );
    toml(
        "[[kind]]\nname = 'k'\naccelerator = 'h100'\n",
        expect![[r#"
        error[document/bad-value]: `domains` of kind `k` cannot be used: `accelerator` and `domains` go together
          in   cluster.toml:1:1: [[kind]]
        help:  change the value as the message says
    "#]],
    );
}

#[test]
fn ec2_answers() {
    let ec2 = |text: &str, expected| check(Format::Ec2, &[("topology.json", text)], expected);
    ec2(
        "{\"Instances\": [{}]}",
        expect![[r#"
        error[cluster/malformed]: this is not an answer of DescribeInstanceTopology: missing field `InstanceId`
          in   topology.json:1:17: {"Instances": [{}]}
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    ec2(
        "{\"Instances\": [\n{\"InstanceId\": \"i-1\"}]}",
        expect![[r#"
        error[cluster/missing-gpu-type]: nothing says which GPU node `i-1` has
          in   topology.json:2:17: {"InstanceId": "i-1"}]}
        help:  the answer has no InstanceType; name the instance with `--instance`
    "#]],
    );
    ec2(
        "{\"Instances\": [], \"NextToken\": \"abc\"}",
        expect![[r#"
            error[cluster/missing-pages]: the list of instances is one page of several
              in   topology.json:1:20: {"Instances": [], "NextToken": "abc"}
            help:  run `aws ec2 describe-instance-topology` without `--max-items` and `--no-paginate`, or give all pages
        "#]],
    );
    ec2(
        "{\"Instances\": []}",
        expect![[r#"
        error[cluster/empty]: the description has no nodes
          in   topology.json
        help:  check that the right file was given and that it is complete
    "#]],
    );
    ec2(
        "{\"Instances\": [\n{\"InstanceId\": \"i-1\", \"InstanceType\": \"p5.48xlarge\"},\n{\"InstanceId\": \"i-1\", \"InstanceType\": \"p5.48xlarge\"}]}",
        expect![[r#"
            error[cluster/duplicate]: node `i-1` occurs twice
              in   topology.json:3:17: {"InstanceId": "i-1", "InstanceType": "p5.48xlarge"}]}
            help:  remove or rename one of the two
        "#]],
    );
    ec2(
        "{\"Instances\": [\n{\"InstanceId\": \"i-1\", \"InstanceType\": \"p5.48xlarge\", \"NetworkNodes\": [\"a\", \"c\"]},\n{\"InstanceId\": \"i-2\", \"InstanceType\": \"p5.48xlarge\", \"NetworkNodes\": [\"b\", \"c\"]}]}",
        expect![[r#"
            error[cluster/two-parents]: switch `c` is attached to both `a` and `b`
              in   topology.json:3:17: {"InstanceId": "i-2", "InstanceType": "p5.48xlarge", "NetworkNodes": ["b", "c"]}]}
            help:  name it under one switch only; write parallel rails as a single switch
        "#]],
    );
    ec2(
        "{\"Instances\": [\n{\"InstanceId\": \"i 1\", \"InstanceType\": \"p5.48xlarge\"}]}",
        expect![[r#"
            error[cluster/bad-name]: `i 1` is not a valid name for a node: it has a blank, a control character or one of []{}(),;=#"'`\|&<>*?$
              in   topology.json:2:17: {"InstanceId": "i 1", "InstanceType": "p5.48xlarge"}]}
            help:  rename it with letters, digits, dots, dashes and underscores
        "#]],
    );
}

#[test]
fn kubernetes_lists() {
    let list = |text: &str, expected| check(Format::Kubernetes, &[("nodes.json", text)], expected);
    list(
        "{\"kind\": \"Pod\"}",
        expect![[r#"
        error[cluster/malformed]: this is not a list of Kubernetes nodes: its kind is `Pod`
          in   nodes.json:1:1: {"kind": "Pod"}
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    list(
        "{\"kind\": \"List\", \"items\": [\n{\"kind\": \"Node\", \"metadata\": {\"name\": \"a\"}, \"status\": {\"capacity\": {\"nvidia.com/gpu\": \"8\"}}}]}",
        expect![[r#"
            error[cluster/missing-gpu-type]: nothing says which GPU node `a` has
              in   nodes.json:2:40: {"kind": "Node", "metadata": {"name": "a"}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}]}
            help:  name the GPU with `--accelerator`, or run NVIDIA's GPU feature discovery, which labels nodes with it
        "#]],
    );
    list(
        "{\"kind\": \"List\", \"items\": [\n{\"metadata\": {\"name\": \"a\", \"labels\": {\"nvidia.com/gpu.product\": \"NVIDIA-X999\", \"nvidia.com/gpu.count\": \"8\"}}}]}",
        expect![[r#"
            error[cluster/unknown-hardware]: the hardware is not in the catalog
              in   nodes.json:2:24: {"metadata": {"name": "a", "labels": {"nvidia.com/gpu.product": "NVIDIA-X999", "nvidia.com/gpu.count": "8"}}}]}
              why  the catalog has no accelerator called `NVIDIA-X999`
            help:  list what exists with `bedplate catalog`, or describe your own hardware in an overlay file
        "#]],
    );
    list(
        "{\"kind\": \"List\", \"items\": [\n{\"metadata\": {\"name\": \"a\", \"labels\": {\"node.kubernetes.io/instance-type\": \"p5.48xlarge\", \"nvidia.com/gpu.count\": \"16\"}}}]}",
        expect![[r#"
            error[cluster/gpu-count]: node `a` has 16 GPUs, but p5.48xlarge has 8
              in   nodes.json:2:24: {"metadata": {"name": "a", "labels": {"node.kubernetes.io/instance-type": "p5.48xlarge", "nvidia.com/gpu.count": "16"}}}…
            help:  correct the instance, or leave it out so that the node is described by its GPUs alone
        "#]],
    );
    list(
        "kind: List\nitems:\n- metadata: {name: [}\n",
        expect![[r#"
        error[cluster/malformed]: this is not a list of Kubernetes nodes: expected string scalar
          in   nodes.json:3:20: - metadata: {name: [}
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
}

#[test]
fn nvidia_matrices() {
    let matrix = |text: &str, expected| check(Format::NvidiaSmi, &[("topo.txt", text)], expected);
    matrix(
        NVIDIA_SMI,
        expect![[r#"
        error[cluster/missing-gpu-type]: nothing says which GPU node `localhost` has
          in   topo.txt
        help:  the matrix does not name the GPU; name it with `--accelerator`, or the machine with `--instance`
    "#]],
    );
    matrix(
        "nothing here\n",
        expect![[r#"
        error[cluster/malformed]: this is not a matrix of `nvidia-smi topo -m`: there is no header with GPU0
          in   topo.txt
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    matrix(
        "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\n",
        expect![[r#"
        error[cluster/malformed]: this is not a matrix of `nvidia-smi topo -m`: the row has 1 of 2 cells
          in   topo.txt:3: GPU1 NV4
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    matrix(
        "\tGPU0\tGPU1\nGPU0\tX\tFOO\n",
        expect![[r#"
            error[cluster/malformed]: this is not a matrix of `nvidia-smi topo -m`: `FOO` is not a kind of link
              in   topo.txt:2: GPU0 X FOO
            help:  correct the place shown; the formats are described in the book under `cluster import`
        "#]],
    );
    matrix(
        "\tGPU0\tGPU1\nGPU0\tX\tX\n",
        expect![[r#"
        error[cluster/malformed]: this is not a matrix of `nvidia-smi topo -m`: cell 2 is `X`
          in   topo.txt:2: GPU0 X X
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
    matrix(
        "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tNV4\n",
        expect![[r#"
        error[cluster/malformed]: this is not a matrix of `nvidia-smi topo -m`: the row of GPU1 is missing
          in   topo.txt
        help:  correct the place shown; the formats are described in the book under `cluster import`
    "#]],
    );
}

#[test]
fn inputs_of_no_format() {
    let render = |text: &str| {
        let error =
            import_detected(&[Source::new("in", text)], &ImportOptions::default(), &CATALOG).unwrap_err();
        render_text(&error)
    };
    expect![[r#"
        error[cluster/unknown-format]: this is not a known description of a cluster
          in   in:1:1: hello world
        help:  name the format with `--format`
    "#]]
    .assert_eq(&render("hello world\n"));
    for text in ["", " \n\t\n", "\u{feff}"] {
        assert!(render(text).starts_with("error[cluster/empty]"), "{text:?}");
    }
    for (_, format) in Format::ALL {
        let outcome = outcome(format, &[("in", "\n")], &ImportOptions::default());
        assert!(outcome.starts_with("error[cluster/empty]"), "{outcome}");
    }
    let named = |name: &str, text: &str| {
        let error =
            import_detected(&[Source::new(name, text)], &ImportOptions::default(), &CATALOG).unwrap_err();
        render_text(&error)
    };
    expect![[r#"
        error[document/unknown-key]: the file has the unknown key `gruop`
          in   cluster.toml:1:3: [[gruop]]
        help:  did you mean `group`?
    "#]]
    .assert_eq(&named("cluster.toml", "[[gruop]]\ninstance = 'p5.48xlarge'\n"));
    expect![[r#"
        error[cluster/unknown-key]: `SwichName` is not a key of Slurm's files
          in   leaves.conf:2: SwichName=s1 Nodes=n1
        help:  did you mean `SwitchName`?
    "#]]
    .assert_eq(&named("leaves.conf", "# by hand\nSwichName=s1 Nodes=n1\n"));
    expect![[r#"
        error[cluster/unknown-level]: `rack` is not a level of a cluster
        help:  use gpu, domain, node, leaf, spine, core or cluster
    "#]]
    .assert_eq(&render_text(&"rack".parse::<Level>().unwrap_err()));
}

#[test]
fn every_page_has_its_own_code_in_the_area() {
    let codes: BTreeSet<&str> = PAGES.iter().map(|page| page.code).collect();
    assert_eq!(codes.len(), PAGES.len());
    assert!(codes.iter().all(|code| code.starts_with("cluster/")));
    let error = "rack".parse::<Level>().unwrap_err();
    assert!(PAGES.contains(&error.page()));
}
