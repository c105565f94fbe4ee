//! Queries against a slow, obvious reference that works on plain lists.

use crate::support::random::{KINDS, RandomCluster, Shape, clusters};
use crate::support::{CATALOG, read};
use bedplate_topology::{Cluster, Format, GpuId, ImportOptions, Level, NodeId, PathStage, ScaleOut};
use bedplate_units::Bandwidth;
use proptest::prelude::*;

/// A GPU as the reference sees it.
type Gpu = (usize, u32);

struct Reference<'a> {
    random: &'a RandomCluster,
    cluster: &'a Cluster,
}

impl Reference<'_> {
    fn gpus(&self) -> Vec<Gpu> {
        let count = |node: usize| KINDS[self.random.nodes[node].kind].iter().sum::<u32>();
        (0..self.random.nodes.len())
            .flat_map(|node| (0..count(node)).map(move |local| (node, local)))
            .collect()
    }

    fn id(&self, gpu: Gpu) -> GpuId {
        let node = self.cluster.find_node(&self.random.node_name(gpu.0)).unwrap();
        self.cluster.gpu(node, gpu.1).unwrap()
    }

    fn above(&self, node: usize) -> Vec<usize> {
        std::iter::successors(self.random.nodes[node].switch, |below| self.random.parents[*below]).collect()
    }

    fn height(&self, switch: usize) -> u8 {
        let children =
            (0..self.random.parents.len()).filter(|child| self.random.parents[*child] == Some(switch));
        1 + children.map(|child| self.height(child)).max().unwrap_or(0)
    }

    fn common(&self, a: usize, b: usize) -> Option<usize> {
        let above_b = self.above(b);
        self.above(a).into_iter().find(|switch| above_b.contains(switch))
    }

    /// The domain that a node shares with others; a domain of a single node does not count.
    fn shared_domain(&self, node: usize) -> Option<usize> {
        let domain = self.random.nodes[node].domain?;
        let members = self.random.nodes.iter().filter(|other| other.domain == Some(domain)).count();
        (members > 1).then_some(domain)
    }

    /// Which of its node's own domains a GPU is in.
    fn domain_within(&self, gpu: Gpu) -> Option<usize> {
        let mut end = 0;
        KINDS[self.random.nodes[gpu.0].kind].iter().position(|size| {
            end += size;
            gpu.1 < end
        })
    }

    fn shares_domain(&self, a: Gpu, b: Gpu) -> bool {
        match (self.shared_domain(a.0), self.shared_domain(b.0)) {
            (None, None) => a.0 == b.0 && self.domain_within(a) == self.domain_within(b),
            (first, second) => first == second,
        }
    }

    fn meet(&self, a: Gpu, b: Gpu) -> Level {
        if a == b {
            return Level::Gpu;
        }
        if self.shares_domain(a, b) {
            return Level::Domain;
        }
        if a.0 == b.0 {
            return Level::Node;
        }
        self.common(a.0, b.0).map_or(Level::Cluster, |switch| Level::Switch(self.height(switch)))
    }

    fn hops(&self, a: Gpu, b: Gpu) -> u32 {
        if a.0 == b.0 || self.shares_domain(a, b) {
            return 0;
        }
        let top = self.common(a.0, b.0);
        let below =
            |node: usize| self.above(node).iter().take_while(|switch| Some(**switch) != top).count() as u32;
        below(a.0) + below(b.0) + 1
    }

    fn scale_out(&self, set: &[Gpu]) -> Bandwidth {
        let of_node = |node: usize| f64::from(KINDS[self.random.nodes[node].kind].iter().sum::<u32>());
        let tops: Vec<usize> = set.iter().map(|gpu| gpu.0).collect();
        let top =
            self.above(tops[0]).into_iter().find(|s| tops.iter().all(|node| self.above(*node).contains(s)));
        let share = |node: usize| {
            let crossed = self.above(node).into_iter().take_while(|switch| Some(*switch) != top);
            crossed.map(|switch| self.random.ratios[switch]).product::<f64>()
        };
        let figure =
            |node: usize| 100.0 * (self.random.nodes[node].kind + 1) as f64 / of_node(node) / share(node);
        Bandwidth::gb_per_s(tops.iter().map(|node| figure(*node)).fold(f64::INFINITY, f64::min))
    }
}

fn close(a: Bandwidth, b: Bandwidth) -> bool {
    (a.get() - b.get()).abs() <= 1e-9 * b.get()
}

proptest! {
    #[test]
    fn pairs_meet_where_the_reference_says(random in clusters(Shape::Any)) {
        let cluster = random.cluster();
        let reference = Reference { random: &random, cluster: &cluster };
        let gpus = reference.gpus();
        prop_assert_eq!(gpus.len() as u32, cluster.gpu_count());
        for a in &gpus {
            for b in &gpus {
                let (id_a, id_b) = (reference.id(*a), reference.id(*b));
                prop_assert_eq!(cluster.meet(id_a, id_b), reference.meet(*a, *b), "{:?} {:?}", a, b);
                prop_assert_eq!(cluster.hops(id_a, id_b), reference.hops(*a, *b), "{:?} {:?}", a, b);
            }
        }
    }

    #[test]
    fn sets_meet_at_the_worst_pair(
        random in clusters(Shape::Any),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..12),
    ) {
        let cluster = random.cluster();
        let reference = Reference { random: &random, cluster: &cluster };
        let gpus = reference.gpus();
        prop_assume!(!gpus.is_empty());
        let set: Vec<Gpu> = picks.iter().map(|pick| gpus[pick.index(gpus.len())]).collect();
        let ids: Vec<GpuId> = set.iter().map(|gpu| reference.id(*gpu)).collect();
        let worst = set.iter().flat_map(|a| set.iter().map(|b| reference.meet(*a, *b))).max();
        prop_assert_eq!(cluster.level_of(ids.iter().copied()), worst);
        let is_joined = worst == Some(Level::Domain);
        prop_assert_eq!(cluster.scale_up_bandwidth(ids.iter().copied()).is_some(), is_joined);
        let network = cluster.scale_out_bandwidth(ids.iter().copied()).unwrap();
        let expected = reference.scale_out(&set);
        prop_assert!(close(network.per_gpu, expected), "{} {}", network.per_gpu, expected);
    }

    #[test]
    fn every_level_divides_the_cluster(random in clusters(Shape::Any)) {
        let cluster = random.cluster();
        for level in cluster.levels() {
            let sets: Vec<_> = cluster.sets(level).collect();
            let covered: Vec<GpuId> = sets.iter().flat_map(|set| set.gpus).collect();
            prop_assert_eq!(covered, cluster.gpus().into_iter().collect::<Vec<_>>());
            for set in &sets {
                for gpu in set.gpus {
                    prop_assert!(set.nodes.contains(cluster.node_of(gpu)));
                }
            }
            let set_of = |gpu: GpuId| sets.iter().position(|set| set.gpus.contains(gpu));
            for a in cluster.gpus() {
                for b in cluster.gpus() {
                    let together = match level {
                        Level::Node => cluster.node_of(a) == cluster.node_of(b),
                        _ => cluster.meet(a, b) <= level,
                    };
                    prop_assert_eq!(set_of(a) == set_of(b), together, "{} {:?} {:?}", level, a, b);
                }
            }
        }
    }

    #[test]
    fn lookups_agree_with_each_other(random in clusters(Shape::Any)) {
        let cluster = random.cluster();
        for id in cluster.nodes() {
            let node = cluster.node(id);
            prop_assert_eq!(cluster.find_node(node.name()), Some(id));
            for (local, gpu) in node.gpus().into_iter().enumerate() {
                prop_assert_eq!(cluster.node_of(gpu), id);
                prop_assert_eq!(cluster.local_index(gpu), local as u32);
                prop_assert_eq!(cluster.gpu(id, local as u32), Some(gpu));
                prop_assert!(cluster.domain_of(gpu).contains(gpu));
            }
            prop_assert_eq!(cluster.gpu(id, node.gpus().len()), None);
        }
        for switch in cluster.switches() {
            let below: u32 = switch.children().map(|child| child.nodes().len()).sum();
            prop_assert_eq!(switch.nodes().len(), switch.own_nodes().len() + below);
            for node in switch.own_nodes() {
                prop_assert_eq!(cluster.node(node).switch().unwrap().id(), switch.id());
            }
        }
    }
}

fn two_leaves() -> Cluster {
    let text = "[[group]]\ninstance = 'p5.48xlarge'\ncount = 4\n[fabric]\nnodes_per_leaf = 2\noversubscription = [2]\n";
    read(Format::Document, &[("cluster.toml", text)], &ImportOptions::default()).unwrap()
}

#[test]
fn the_network_is_as_fast_as_its_narrowest_stage() {
    let cluster = two_leaves();
    let per_gpu = |gpus: &[u32]| cluster.scale_out_bandwidth(gpus.iter().map(|gpu| GpuId(*gpu))).unwrap();
    let of = |gb_per_s: f64, narrowest| ScaleOut { per_gpu: Bandwidth::gb_per_s(gb_per_s), narrowest };
    // Eight GPUs share the node's cards, and the other seven are assumed busy.
    let leaf: Vec<u32> = (0..16).collect();
    assert_eq!(per_gpu(&leaf), of(50.0, PathStage::Cards(NodeId(0))));
    assert_eq!(per_gpu(&[0, 8]), of(50.0, PathStage::Cards(NodeId(0))));
    assert_eq!(per_gpu(&[3]), of(50.0, PathStage::Cards(NodeId(0))));
    // Neither order nor repetition matters.
    assert_eq!(per_gpu(&[9, 0, 8, 0]), of(50.0, PathStage::Cards(NodeId(0))));
    // Between leaves the uplinks have half of it.
    let first_leaf = cluster.node(NodeId(0)).switch().unwrap().id();
    let all: Vec<u32> = (0..32).collect();
    assert_eq!(per_gpu(&all), of(25.0, PathStage::Uplinks(first_leaf)));
    assert_eq!(cluster.scale_out_bandwidth(std::iter::empty()), None);
}

#[test]
fn nvlink_counts_within_one_domain_only() {
    let cluster = two_leaves();
    assert_eq!(cluster.scale_up_bandwidth([GpuId(0), GpuId(7)]), Some(Bandwidth::gb_per_s(450.0)));
    assert_eq!(cluster.scale_up_bandwidth([GpuId(7), GpuId(8)]), None);
    assert_eq!(cluster.scale_up_bandwidth([GpuId(7)]), None);
    let rack = Cluster::from_spec("u-p6e-gb200x72", &CATALOG).unwrap();
    assert_eq!(rack.level_of(rack.gpus()), Some(Level::Domain));
    assert_eq!(rack.level_of_nodes(rack.nodes()), Some(Level::Domain));
    assert_eq!(rack.scale_up_bandwidth(rack.gpus()), Some(Bandwidth::gb_per_s(900.0)));
    assert_eq!(rack.hops(GpuId(0), GpuId(71)), 0);
}

#[test]
fn hops_count_switches() {
    let cluster = two_leaves();
    assert_eq!(cluster.hops(GpuId(0), GpuId(1)), 0);
    assert_eq!(cluster.hops(GpuId(0), GpuId(8)), 1);
    assert_eq!(cluster.hops(GpuId(0), GpuId(31)), 3);
    let flat = Cluster::from_spec("p5.48xlarge:2", &CATALOG).unwrap();
    assert_eq!(flat.hops(GpuId(0), GpuId(15)), 1);
}

#[test]
fn levels_are_ordered_by_quality_and_have_names() {
    let levels = ["gpu", "domain", "node", "leaf", "spine", "core", "tier4", "tier200", "cluster"];
    let parsed: Vec<Level> = levels.iter().map(|name| name.parse().unwrap()).collect();
    assert!(parsed.is_sorted());
    for (level, name) in parsed.iter().zip(levels) {
        assert_eq!(level.to_string(), name);
    }
    for wrong in ["", "rack", "tier0", "tier-1", "tier999"] {
        assert!(wrong.parse::<Level>().is_err(), "{wrong}");
    }
}

#[test]
fn health_decides_what_is_usable() {
    use bedplate_topology::Health;
    let mut cluster = two_leaves();
    cluster.set_health(NodeId(1), Health::Down, Some("XID 79".into()));
    cluster.set_failed(GpuId(3), true);
    assert_eq!(cluster.reason(NodeId(1)), Some("XID 79"));
    assert_eq!(cluster.summary().usable_gpus, 23);
    assert!(!cluster.is_usable(GpuId(3)) && !cluster.is_usable(GpuId(8)) && cluster.is_usable(GpuId(4)));
    cluster.set_health(NodeId(1), Health::Healthy, None);
    cluster.set_failed(GpuId(3), false);
    assert_eq!(cluster, two_leaves());
}

#[test]
fn instances_that_come_only_in_ultraservers_become_whole_ones() {
    for (spec, gpus, domain, remark) in [
        ("p6e-gb200.36xlarge:18", 72, 72, "18 of them are taken for 1 u-p6e-gb200x72, 72 GPUs"),
        ("p6e-gb200.36xlarge:20", 144, 72, "20 of them are taken for 2 u-p6e-gb200x72, 144 GPUs"),
        ("p6e-gb200.36xlarge:9", 36, 36, "9 of them are taken for 1 u-p6e-gb200x36, 36 GPUs"),
        ("p6e-gb200.36xlarge", 36, 36, "1 of them are taken for 1 u-p6e-gb200x36, 36 GPUs"),
    ] {
        let cluster = Cluster::from_spec(spec, &CATALOG).unwrap();
        assert_eq!(cluster.gpu_count(), gpus, "{spec}");
        assert_eq!(cluster.domain_of(GpuId(0)).len(), domain, "{spec}");
        let remarks = Cluster::remarks_on_spec(spec, &CATALOG);
        assert!(remarks.len() == 1 && remarks[0].ends_with(remark), "{remarks:?}");
    }
    assert!(Cluster::remarks_on_spec("p5.48xlarge:2+u-p6e-gb200x72", &CATALOG).is_empty());
    assert_eq!(Cluster::from_spec("trn2u.48xlarge:2", &CATALOG).unwrap().nodes().len(), 2);
}
