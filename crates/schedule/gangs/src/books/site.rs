//! Sites: a cluster of several kinds of node or of two large domains, with limits, quotas and odd settings.

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_topology::{Cluster, Format, ImportOptions, NodeId, import};

use super::random::Random;
use crate::{
    ANY_GPU, Accounts, Grant, Packing, Partition, PriorityWeights, Qos, QosId, QueueOrder, Queues, Settings,
    SizesBy, Span,
};

const MIXED: &str = r#"
[[kind]]
name = "node"
accelerator = "h100"
domains = [8]
vcpus = 64
memory = "1 TB"

[[kind]]
name = "cpu"
vcpus = 64
memory = "1 TB"

[[kind]]
name = "small"
accelerator = "a100"
domains = [4]
vcpus = 32
memory = "1 TB"

[[group]]
kind = "node"
count = 6

[[group]]
kind = "cpu"
count = 2

[[group]]
kind = "small"
count = 2

[fabric]
nodes_per_leaf = 3
oversubscription = [2.0]
"#;

pub(super) fn cluster(random: &mut Random) -> Cluster {
    let catalog = Catalog::builtin();
    if random.chance(20) {
        return Cluster::from_spec("u-p6e-gb200x72:2", &catalog).expect("it is in the catalog");
    }
    let source = Source::new("cluster.toml", MIXED);
    import(Format::Document, &[source], &ImportOptions::default(), &catalog).expect("the text is right")
}

pub(super) fn settings(random: &mut Random) -> Settings {
    let mut settings = Settings::by_arrival();
    vary_the_cycle(&mut settings, random);
    settings.partitions.extend(partitions());
    settings.qos.extend(classes_of_service());
    let parent = settings.accounts.add("a", Accounts::ROOT, 1);
    settings.accounts.add("b", parent, 3);
    if random.chance(60) {
        settings.queues = queues(random);
    }
    if random.chance(50) {
        settings.order = QueueOrder::SmallestFirst;
        settings.weights =
            PriorityWeights { fair_share: settings.weights.fair_share, ..PriorityWeights::default() };
    }
    settings
}

fn vary_the_cycle(settings: &mut Settings, random: &mut Random) {
    settings.backfill.reserved = random.pick(&[1, 3, 2000]);
    settings.backfill.overtakes = !random.chance(10);
    settings.backfill.whole_nodes = random.chance(10);
    settings.backfill.replan_percent = random.pick(&[0, 25, 300]);
    if random.chance(50) {
        settings.backfill.resolution = Span::ZERO;
    }
    if random.chance(30) {
        settings.weights.fair_share = 10_000;
    }
    settings.elastic.is_allowed = !random.chance(10);
    // A copy: the stories of known seeds stay what they are.
    if random.clone().chance(50) {
        settings.elastic.by = SizesBy::Goodput;
    }
    if random.clone().chance(30) {
        settings.backfill.cycle_slice = 1;
    }
    if random.chance(20) {
        settings.packing = Packing::FirstFit;
    }
}

/// Beside the default one.
fn partitions() -> [Partition; 2] {
    [
        Partition { tier: 10, ..Partition::named("high") },
        Partition { nodes: Some(vec![NodeId(1), NodeId(2), NodeId(4)]), ..Partition::named("some") },
    ]
}

/// Beside the default one.
fn classes_of_service() -> [Qos; 2] {
    [
        Qos { most_gpus_per_user: Some(24), most_gpus: Some(40), ..Qos::named("low") },
        Qos {
            priority: 10,
            preempts: vec![QosId(0), QosId(1)],
            most_jobs_per_user: Some(3),
            ..Qos::named("urgent")
        },
    ]
}

/// A cohort of two; jobs go to the queues below its root.
fn queues(random: &mut Random) -> Queues {
    let mut queues = Queues::default();
    let root = queues.add("cohort", None, 1.0);
    let red = queues.add("red", Some(root), 1.0);
    let blue = queues.add("blue", Some(root), 2.0);
    let mut grant = |queue, kind, nominal, borrowing, lending| {
        queues.grant(queue, kind, Grant { nominal, borrowing, lending });
    };
    grant(root, ANY_GPU, 8, None, None);
    grant(red, ANY_GPU, 24, Some(16), None);
    grant(blue, ANY_GPU, 16, None, Some(8));
    if random.chance(50) {
        grant(red, "h100", 16, None, None);
        grant(blue, "h100", 16, Some(8), Some(4));
    }
    queues
}
