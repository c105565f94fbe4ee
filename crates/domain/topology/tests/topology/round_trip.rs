//! What is written reads back as the same cluster.

use crate::support::random::{Shape, clusters};
use crate::support::*;
use bedplate_topology::{
    Blocks, Cluster, ExportFormat, Format, GpuId, Health, ImportOptions, NodeId, export,
};
use expect_test::{Expect, expect};
use proptest::prelude::*;

fn reread_toml(cluster: &Cluster) -> Cluster {
    let text = export(cluster, ExportFormat::Document);
    read(Format::Document, &[("cluster.toml", &text)], &ImportOptions::default()).unwrap()
}

fn reread_slurm(cluster: &Cluster, topology: ExportFormat, options: &ImportOptions) -> Cluster {
    let nodes = export(cluster, ExportFormat::SlurmNodes);
    let topology = export(cluster, topology);
    let name = if topology.contains("- topology") { "topology.yaml" } else { "topology.conf" };
    read(Format::Slurm, &[(name, &topology), ("slurm.conf", &nodes)], options).unwrap()
}

/// The samples, each read by its importer.
fn samples() -> Vec<Cluster> {
    let with = |accelerator: &str| ImportOptions {
        accelerator: Some(accelerator.into()),
        ..ImportOptions::default()
    };
    let none = ImportOptions::default();
    let spec = "p5.48xlarge:3+u-p6e-gb200x72:2+p5.4xlarge+u-trn2x64:2+trn2u.48xlarge";
    [
        read(Format::Spec, &[("spec", spec)], &none),
        read(Format::Slurm, &[("topology.conf", TOPOLOGY_CONF), ("slurm.conf", SLURM_CONF)], &none),
        read(Format::Slurm, &[("topology.conf", BLOCK_CONF), ("slurm.conf", BLOCK_SLURM_CONF)], &none),
        read(Format::Document, &[("cluster.toml", CLUSTER_TOML)], &none),
        read(Format::Ec2, &[("ec2.json", EC2)], &none),
        read(Format::Kubernetes, &[("nodes.json", NODES_JSON)], &none),
        read(Format::Kubernetes, &[("nodes.yaml", NODES_YAML)], &none),
        read(Format::NvidiaSmi, &[("topo.txt", NVIDIA_SMI)], &with("h100")),
        read(Format::NvidiaSmi, &[("topo.txt", NVIDIA_SMI_PAIRS)], &with("h100-nvl")),
    ]
    .into_iter()
    .map(Result::unwrap)
    .collect()
}

#[test]
fn every_sample_survives_cluster_toml() {
    for cluster in samples() {
        assert_eq!(reread_toml(&cluster), cluster);
    }
}

#[test]
fn slurm_files_read_back_as_themselves() {
    let options = ImportOptions::default();
    for cluster in samples() {
        for format in [ExportFormat::SlurmTree, ExportFormat::SlurmBlock, ExportFormat::SlurmYaml] {
            let once = reread_slurm(&cluster, format, &options);
            assert_eq!(reread_slurm(&once, format, &options), once, "{}", format.name());
        }
    }
}

#[test]
fn a_slurm_cluster_survives_slurm() {
    let files = [("topology.conf", TOPOLOGY_CONF), ("slurm.conf", SLURM_CONF)];
    let options = ImportOptions { name: Some("research".into()), ..ImportOptions::default() };
    let cluster = read(Format::Slurm, &files, &options).unwrap();
    assert_eq!(
        describe(&reread_slurm(&cluster, ExportFormat::SlurmTree, &options)).replace("fans  2", "fans #2"),
        describe(&cluster)
    );
    let files = [("topology.conf", BLOCK_CONF), ("slurm.conf", BLOCK_SLURM_CONF)];
    let options = ImportOptions { name: Some("grace".into()), ..ImportOptions::default() };
    let cluster = read(Format::Slurm, &files, &options).unwrap();
    assert_eq!(reread_slurm(&cluster, ExportFormat::SlurmBlock, &options), cluster);
    assert_eq!(reread_slurm(&cluster, ExportFormat::SlurmYaml, &options), cluster);
}

#[test]
fn memory_and_features_leave_slurm_as_they_came() {
    let nodes = "NodeName=n[1-2] CPUs=192 RealMemory=2000000 Gres=gpu:h100:8 Feature=rack1,p5.48xlarge,efa\n\
                 NodeName=n3 CPUs=192 Gres=gpu:h100:8 Feature=p5.48xlarge\n\
                 NodeName=n[4-5] CPUs=64 RealMemory=500000 Gres=gpu:a100:8 Feature=\"big mem\"\n\
                 NodeName=n6 CPUs=64 RealMemory=500000 Gres=gpu:a100:8\n";
    let cluster = read(Format::Slurm, &[("slurm.conf", nodes)], &ImportOptions::default()).unwrap();
    expect![[r##"
        # NodeName lines for slurm.conf, written by Bedplate; they need GresTypes=gpu
        # RealMemory is 95 % of the nominal memory where it is not known: Slurm drains nodes that report less
        NodeName=n[1-2] CPUs=192 RealMemory=2000000 Gres=gpu:h100:8 Feature=p5.48xlarge,rack1,efa State=UNKNOWN
        NodeName=n3 CPUs=192 RealMemory=1992294 Gres=gpu:h100:8 Feature=p5.48xlarge State=UNKNOWN
        NodeName=n[4-5] CPUs=64 RealMemory=500000 Gres=gpu:a100-80gb:8 Feature="big mem" State=UNKNOWN
        NodeName=n6 CPUs=64 RealMemory=500000 Gres=gpu:a100-80gb:8 State=UNKNOWN
    "##]].assert_eq(&export(&cluster, ExportFormat::SlurmNodes));
    assert_eq!(reread_toml(&cluster), cluster);
    let text = export(&cluster, ExportFormat::Document);
    expect![[r#"

        instance = "p5.48xlarge"
        count = 2
        nodes = "n[1-2]"
        reported_memory = "2097152000000 B"
        features = ["rack1", "efa"]

        [[group]]
        instance = "p5.48xlarge"
        count = 1
        nodes = "n3"

        [[group]]
        kind = "a100-80gb-x8"
        count = 2
        nodes = "n[4-5]"
        features = ["big mem"]

        [[group]]
        kind = "a100-80gb-x8"
        count = 1
        nodes = "n6"
    "#]]
    .assert_eq(text.split_once("\n[[group]]").unwrap().1);
}

fn check(format: ExportFormat, expected: Expect) {
    let mut cluster =
        read(Format::Document, &[("cluster.toml", CLUSTER_TOML)], &ImportOptions::default()).unwrap();
    cluster.set_health(NodeId(1), Health::Draining, Some("a # and a \"".into()));
    expected.assert_eq(&export(&cluster, format));
}

#[test]
fn exports_look_as_people_write_them() {
    check(
        ExportFormat::SlurmTree,
        expect![[r#"
        # Slurm topology.conf for TopologyPlugin=topology/tree, written by Bedplate
        SwitchName=spine Switches=leaf[1-3]
        SwitchName=leaf1 Nodes=n[1-4]
        SwitchName=leaf2 Nodes=gb[01-18]
        SwitchName=leaf3 Nodes=own[1-2]
    "#]],
    );
    check(
        ExportFormat::SlurmBlock,
        expect![[r#"
        # Slurm topology.conf for TopologyPlugin=topology/block, written by Bedplate
        BlockName=u-p6e-gb200x72-1 Nodes=gb[01-18]
        BlockSizes=18
    "#]],
    );
    check(
        ExportFormat::SlurmYaml,
        expect![[r#"
        # Slurm topology.yaml, written by Bedplate
        ---
        - topology: tree
          cluster_default: true
          tree:
            switches:
              - switch: spine
                children: leaf[1-3]
              - switch: leaf1
                nodes: n[1-4]
              - switch: leaf2
                nodes: gb[01-18]
              - switch: leaf3
                nodes: own[1-2]
        - topology: block
          cluster_default: false
          block:
            block_sizes:
              - 18
            blocks:
              - block: u-p6e-gb200x72-1
                nodes: gb[01-18]
    "#]],
    );
    check(
        ExportFormat::SlurmNodes,
        expect![[r##"
            # NodeName lines for slurm.conf, written by Bedplate; they need GresTypes=gpu
            # RealMemory is 95 % of the nominal memory where it is not known: Slurm drains nodes that report less
            NodeName=n1 CPUs=192 RealMemory=1992294 Gres=gpu:h100:8 Feature=p5.48xlarge State=UNKNOWN
            NodeName=n2 CPUs=192 RealMemory=1992294 Gres=gpu:h100:8 Feature=p5.48xlarge State=DRAIN Reason="a   and a '"
            NodeName=n[3-4] CPUs=192 RealMemory=1992294 Gres=gpu:h100:8 Feature=p5.48xlarge State=DOWN Reason="XID 79: 'fell off the bus'"
            NodeName=gb[01-18] CPUs=144 RealMemory=933888 Gres=gpu:gb200:4 Feature=p6e-gb200.36xlarge State=UNKNOWN
            NodeName=own[1-2] CPUs=64 RealMemory=524288 Gres=gpu:l40s:4 State=UNKNOWN
        "##]],
    );
    check(
        ExportFormat::Document,
        expect![[r#"
            name = "hall-3"

            [[kind]]
            name = "own"
            accelerator = "l40s"
            domains = [1, 1, 1, 1]
            scale_out = "infiniband-ndr"
            scale_out_bandwidth = "50 GB/s"
            network_cards = 1
            vcpus = 64
            memory = "512 GiB"
            local_storage = { class = "nvme-local", devices = 2, device_size = "3.84 TB" }

            [[group]]
            instance = "p5.48xlarge"
            count = 4
            nodes = "n[1-4]"

            [[group]]
            instance = "p6e-gb200.36xlarge"
            count = 18
            nodes = "gb[01-18]"

            [[group]]
            kind = "own"
            count = 2
            nodes = "own[1-2]"

            [[switch]]
            name = "spine"
            oversubscription = 2.5

            [[switch]]
            name = "leaf1"
            parent = "spine"
            nodes = "n[1-4]"
            oversubscription = 2

            [[switch]]
            name = "leaf2"
            parent = "spine"
            nodes = "gb[01-18]"

            [[switch]]
            name = "leaf3"
            parent = "spine"
            nodes = "own[1-2]"

            [[domain]]
            name = "u-p6e-gb200x72-1"
            nodes = "gb[01-18]"

            [[storage]]
            class = "fsx-lustre-persistent-250"
            capacity = "1.2 PB"

            [[health]]
            nodes = "n2"
            state = "draining"
            reason = "a # and a \""

            [[health]]
            nodes = "n[3-4]"
            state = "down"
            reason = "XID 79: \"fell off the bus\""

            [[health]]
            nodes = "gb07"
            state = "degraded"
            failed_gpus = [3]
        "#]],
    );
}

proptest! {
    #[test]
    fn any_cluster_survives_cluster_toml(
        random in clusters(Shape::Any),
        states in prop::collection::vec((any::<prop::sample::Index>(), 0..6usize, prop::option::of(".{0,12}")), 0..6),
        failed in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut cluster = random.cluster();
        for (node, health, reason) in states {
            let node = NodeId(node.index(cluster.node_count() as usize) as u32);
            cluster.set_health(node, Health::ALL[health].1, reason);
        }
        if cluster.gpu_count() > 0 {
            for gpu in failed {
                cluster.set_failed(GpuId(gpu.index(cluster.gpu_count() as usize) as u32), true);
            }
        }
        prop_assert_eq!(reread_toml(&cluster), cluster);
    }

    #[test]
    fn slurm_trees_survive_slurm(random in clusters(Shape::Slurm), health in 0..3usize) {
        let mut cluster = random.cluster();
        let health = [Health::Healthy, Health::Drained, Health::Down][health];
        cluster.set_health(NodeId(0), health, (health != Health::Healthy).then(|| "why not".to_owned()));
        let options = ImportOptions::default();
        for format in [ExportFormat::SlurmTree, ExportFormat::SlurmBlock, ExportFormat::SlurmYaml] {
            let once = reread_slurm(&cluster, format, &options);
            prop_assert_eq!(&reread_slurm(&once, format, &options), &once);
            prop_assert_eq!(once.gpu_count(), cluster.gpu_count());
        }
        let once = reread_slurm(&cluster, ExportFormat::SlurmTree, &options);
        for (a, b) in cluster.gpus().into_iter().zip(cluster.gpus().into_iter().skip(1)) {
            if cluster.switch_count() > 0 && cluster.node_of(a) != cluster.node_of(b) {
                prop_assert_eq!(once.meet(a, b), cluster.meet(a, b));
                prop_assert_eq!(once.hops(a, b), cluster.hops(a, b));
            }
        }
    }

    #[test]
    fn slurm_blocks_survive_slurm(random in clusters(Shape::Slurm)) {
        let options = ImportOptions { blocks: Blocks::Domains, ..ImportOptions::default() };
        let once = reread_slurm(&random.cluster(), ExportFormat::SlurmBlock, &options);
        // Domains of one node do not count, and without any there are no blocks to compare.
        prop_assume!(once.nodes().into_iter().any(|node| once.multi_node_domain(node).is_some()));
        prop_assert_eq!(&reread_slurm(&once, ExportFormat::SlurmBlock, &options), &once);
        prop_assert_eq!(&reread_slurm(&once, ExportFormat::SlurmYaml, &options), &once);
    }
}
