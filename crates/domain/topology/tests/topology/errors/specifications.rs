//! What is typed for a cluster: a machine and a count, and options of an import.

use super::*;

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
