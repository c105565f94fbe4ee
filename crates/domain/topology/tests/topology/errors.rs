//! Every refusal names file, line, text and remedy.

mod slurm;
mod specifications;

use std::collections::BTreeSet;

use bedplate_diag::{Diagnostic, Source, render_text};
use bedplate_topology::{Blocks, Format, ImportOptions, Level, PAGES, import_detected};
use expect_test::{Expect, expect};

use crate::support::*;

fn check(format: Format, files: Files<'_>, expected: Expect) {
    expected.assert_eq(&outcome(format, files, &ImportOptions::default()));
}

fn toml(text: &str, expected: Expect) {
    check(Format::Document, &[("cluster.toml", text)], expected);
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
