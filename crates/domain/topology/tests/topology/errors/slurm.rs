//! Slurm's files.

use super::*;

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
