//! Collectives by topology: rings inside and between scale-up domains, and all-to-all by the traffic that leaves one.
//!
//! A ring over `n` ranks moves `(n-1)/n S` bytes past each rank in `n - 1` hops. Ranks are `stride` apart,
//! so `domain / stride` of them share a domain; between domains such a ring uses the network cards of all
//! its members there (multi-rail), and it never runs faster than the scale-up fabric. Hops inside and
//! between domains have their own latencies. All-reduce is a reduce-scatter and an all-gather, or goes over a tree of nodes
//! where latency counts. Over EFA a ring goes at the pace of its slowest step, an all-to-all pays for every peer, and the
//! host drives what the GPU drives itself over RDMA, at a rate that does not follow the cards; `data/training/collectives.csv` has the measurements. Groups are laid
//! out one after another, so where their span does not divide a domain some cross its border; a step waits
//! for those.

use crate::{Constants, Hardware, Network};

/// Effective bandwidths and latencies of one machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MachineLinks {
    up: f64,
    out: f64,
    domain: f64,
    /// The machine is one domain, so no group can cross a border.
    is_one_domain: bool,
    launch: f64,
    hop_up: f64,
    hop_out: f64,
    /// Seconds of each step of a ring between domains, where all steps go at one pace.
    step_out: Option<f64>,
    /// Bandwidth of all-to-all, and of dispatch kernels, between domains.
    alltoall: f64,
    dispatch: f64,
    /// Seconds to start an all-to-all between domains, and for each peer.
    alltoall_start: f64,
    alltoall_peer: f64,
    dispatch_start: f64,
    /// The same inside a domain.
    dispatch_start_up: f64,
    /// Seconds of one message between domains without a protocol.
    message: f64,
    tree: f64,
    device_rate: f64,
    /// Loss of network bandwidth per doubling of domains beyond sixteen.
    growth: f64,
    pub(crate) host: f64,
}

/// Ranks of one collective: `size` of them, `stride` apart in rank order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RankGroup {
    pub(crate) size: f64,
    pub(crate) stride: f64,
}

impl RankGroup {
    pub(crate) fn new(size: f64, stride: f64) -> Self {
        Self { size, stride }
    }
}

/// Seconds on the scale-up fabric and on the network.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct CollectiveTraffic {
    pub(crate) up: f64,
    pub(crate) out: f64,
}

impl CollectiveTraffic {
    pub(crate) fn busy(self) -> f64 {
        self.up + self.out
    }
}

impl std::ops::Add for CollectiveTraffic {
    type Output = CollectiveTraffic;
    fn add(self, other: CollectiveTraffic) -> CollectiveTraffic {
        CollectiveTraffic { up: self.up + other.up, out: self.out + other.out }
    }
}

impl std::ops::Mul<f64> for CollectiveTraffic {
    type Output = CollectiveTraffic;
    fn mul(self, factor: f64) -> CollectiveTraffic {
        CollectiveTraffic { up: self.up * factor, out: self.out * factor }
    }
}

/// Seconds of a ring all-gather or reduce-scatter of `bytes` in total: `n - 1` hops of `1/n` each.
pub(crate) fn ring_gather(ranks: f64, bytes: f64, bandwidth: f64, hop: f64) -> f64 {
    (ranks - 1.0) * (hop + bytes / (ranks * bandwidth))
}

/// Seconds of a ring all-reduce: reduce-scatter, then all-gather.
#[cfg(test)]
pub(crate) fn ring_reduce(ranks: f64, bytes: f64, bandwidth: f64, hop: f64) -> f64 {
    2.0 * ring_gather(ranks, bytes, bandwidth, hop)
}

impl MachineLinks {
    pub(crate) fn new(hardware: &Hardware, constants: &Constants) -> Self {
        let c = constants;
        let cards = hardware.network_bandwidth();
        let (reach, hop, growth) = match hardware.network {
            Network::Rdma => (c.scale_out_reach, 1.0, 0.0),
            Network::EfaV1 => (c.scale_out_reach * c.efa_v1_reach, EFA_V1_HOP, c.network_growth),
            Network::EfaV2 => (c.efa_reach, EFA_V2_HOP, 0.0),
            Network::EfaV3 => (c.efa_reach, EFA_V3_HOP, 0.0),
            Network::EfaV4 => (c.efa_reach, EFA_V4_HOP, 0.0),
            Network::Tcp => (c.scale_out_reach * c.tcp_reach, TCP_HOP, c.network_growth),
        };
        let out = cards * reach;
        let is_efa = matches!(hardware.network, Network::EfaV2 | Network::EfaV3 | Network::EfaV4);
        let (alltoall, dispatch) = if is_efa {
            let driven = c.efa_alltoall.min(cards);
            (driven, driven)
        } else {
            (out * c.alltoall_network, out)
        };
        Self {
            up: hardware.scale_up * c.scale_up_reach,
            out,
            step_out: is_efa.then_some(c.efa_step * hop / EFA_V2_HOP),
            alltoall,
            dispatch,
            alltoall_start: if is_efa { c.alltoall_start } else { 0.0 },
            alltoall_peer: if is_efa { c.alltoall_peer } else { 0.0 },
            dispatch_start: c.dispatch_start + if is_efa { c.dispatch_start_efa } else { 0.0 },
            dispatch_start_up: c.dispatch_start,
            message: c.network_latency,
            tree: c.tree_reach,
            device_rate: c.device_rate,
            domain: f64::from(hardware.domain.max(1)),
            is_one_domain: hardware.gpus <= hardware.domain,
            launch: c.collective_latency,
            hop_up: HOP_UP,
            hop_out: c.network_latency * hop,
            growth,
            host: hardware.host_link * HOST_REACH,
        }
    }

    fn members_per_domain(&self, group: RankGroup) -> f64 {
        let span = group.size * group.stride;
        if self.straddles(span) {
            // The worst cut leaves the greatest common divisor on one side of the border.
            let side = greatest_common_divisor(self.domain as u32, span as u32);
            return (f64::from(side) / group.stride).floor().max(1.0);
        }
        (self.domain / group.stride).floor().max(1.0).min(group.size)
    }

    /// Whether all groups of a kind are inside domains.
    pub(crate) fn is_inside(&self, group: RankGroup) -> bool {
        let span = group.size * group.stride;
        group.size <= 1.0 || span <= self.domain && !self.straddles(span)
    }

    /// Whether some groups of this span cross a border although each would fit inside a domain.
    fn straddles(&self, span: f64) -> bool {
        !self.is_one_domain && span < self.domain && !(self.domain as u32).is_multiple_of(span as u32)
    }

    /// All-gather or reduce-scatter of `bytes` in total, over every card of the members.
    pub(crate) fn gather(&self, group: RankGroup, bytes: f64) -> CollectiveTraffic {
        self.gather_over(group, bytes, self.members_per_domain(group))
    }

    /// The same through one network card per domain, as libraries did before multi-rail rings.
    pub(crate) fn gather_single_rail(&self, group: RankGroup, bytes: f64) -> CollectiveTraffic {
        self.gather_over(group, bytes, 1.0)
    }

    fn gather_over(&self, group: RankGroup, bytes: f64, rails: f64) -> CollectiveTraffic {
        if group.size <= 1.0 {
            return CollectiveTraffic::default();
        }
        if self.is_inside(group) {
            let up = self.launch + ring_gather(group.size, bytes, self.up, self.hop_up);
            return CollectiveTraffic { up, out: 0.0 };
        }
        let domains = group.size / self.members_per_domain(group);
        let bandwidth = (self.thinned(domains) * rails).min(self.up);
        let hops = match self.step_out {
            Some(step) => (group.size - 1.0) * step,
            None => (group.size - domains) * self.hop_up + domains * self.hop_out,
        };
        let out = self.launch + hops + (group.size - 1.0) / group.size * bytes / bandwidth;
        CollectiveTraffic { up: 0.0, out }
    }

    fn thinned(&self, domains: f64) -> f64 {
        if self.growth == 0.0 {
            self.out
        } else {
            self.out / (1.0 + self.growth * (domains / 16.0).max(1.0).log2())
        }
    }

    /// All-to-all in which each rank sends `bytes` in total, spread evenly; `copies` reduces what leaves a domain.
    pub(crate) fn alltoall(&self, group: RankGroup, bytes: f64, copies: TokenCopies) -> CollectiveTraffic {
        if group.size <= 1.0 {
            return CollectiveTraffic::default();
        }
        let inside = self.members_per_domain(group);
        let near = (inside - 1.0) / group.size;
        let far = (group.size - inside) / group.size;
        let up = self.launch + near * bytes / self.up;
        if far <= 0.0 {
            return CollectiveTraffic { up, out: 0.0 };
        }
        let out = match copies {
            TokenCopies::PerExpert => {
                let started = self.alltoall_start + group.size * self.alltoall_peer;
                self.hop_out + started + far * bytes / self.alltoall
            }
            TokenCopies::PerDomain { visits } => {
                let share = deduplicated(group.size / inside, visits);
                self.dispatch_start + far * share * bytes / self.dispatch
            }
        };
        CollectiveTraffic { up, out }
    }

    /// All-reduce of `bytes` over whole domains: a ring, or a tree of domains inside which a switch adds up.
    pub(crate) fn reduce(&self, group: RankGroup, bytes: f64) -> f64 {
        let ring = 2.0 * self.gather(group, bytes).busy();
        if self.is_inside(group) {
            return ring;
        }
        let rails = self.members_per_domain(group);
        let domains = group.size / rails;
        // Two domains swap what they have; in a deeper tree it crosses four times: up and down, between two pairs.
        let share = if domains <= 2.0 { 4.0 * self.tree } else { self.tree };
        let levels = 2.0 * domains.log2().ceil();
        let tree = self.launch + levels * self.hop_out + bytes / (share * self.out * rails);
        ring.min(tree)
    }

    /// All-to-all in which the host starts messages without a library's protocol.
    pub(crate) fn put_by_host(&self, bytes: f64) -> f64 {
        self.message + bytes / self.alltoall
    }

    /// The same where the GPU starts them: over RDMA at full rate, over EFA through a proxy.
    pub(crate) fn put_by_device(&self, bytes: f64) -> f64 {
        match self.step_out {
            Some(_) => self.dispatch_start + bytes / self.device_rate * (1.0 + bytes / PROXY_HALF),
            None => self.dispatch_start + bytes / self.dispatch,
        }
    }

    /// Tokens to the ranks of their experts, or back: `far` bytes to other domains while `near` ones travel inside.
    pub(crate) fn dispatch(&self, near: f64, far: f64) -> f64 {
        let inside = near / self.up;
        if far <= 0.0 {
            return self.dispatch_start_up + inside;
        }
        self.dispatch_start + inside.max(far / self.dispatch)
    }

    /// One transfer between two ranks.
    pub(crate) fn send(&self, bytes: f64, is_inside: bool) -> CollectiveTraffic {
        if is_inside {
            CollectiveTraffic { up: self.launch + self.hop_up + bytes / self.up, out: 0.0 }
        } else {
            CollectiveTraffic { up: 0.0, out: self.launch + self.hop_out + bytes / self.out }
        }
    }

    /// One step of a ring in which every rank passes on `bytes`.
    pub(crate) fn pass(&self, group: RankGroup, bytes: f64) -> CollectiveTraffic {
        self.send(bytes, self.is_inside(group))
    }

    pub(crate) fn is_within_domain(&self, ranks: f64) -> bool {
        ranks <= self.domain
    }
}

fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// How many copies of a token leave its domain.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TokenCopies {
    PerExpert,
    /// One per domain that holds any of a token's `visits` experts.
    PerDomain {
        visits: f64,
    },
}

/// Domains visited over experts visited: `N (1 - (1 - 1/N)^k) / k` for `k` uniform visits to `N` domains.
fn deduplicated(domains: f64, visits: f64) -> f64 {
    if domains <= 1.0 || visits <= 0.0 {
        return 1.0;
    }
    domains * (1.0 - (1.0 - 1.0 / domains).powf(visits)) / visits
}

/// Latency of a hop against RDMA. Generations differ as the mission states: v3 has 35 % less packet latency
/// than v2, v4 runs collectives 18 % faster than v3; where v1, v2 and TCP start is an assumption.
const EFA_V1_HOP: f64 = 4.0;
const EFA_V2_HOP: f64 = 3.0;
const EFA_V3_HOP: f64 = 0.65 * EFA_V2_HOP;
const EFA_V4_HOP: f64 = 0.82 * EFA_V3_HOP;
const TCP_HOP: f64 = 10.0;
/// Bytes at which the proxy that stands in for the GPU over EFA has half of its rate left.
const PROXY_HALF: f64 = 16.0 * 1024.0 * 1024.0;
/// Seconds per hop of a ring inside a domain.
const HOP_UP: f64 = 0.7e-6;
/// Share of the host link that pinned copies reach.
const HOST_REACH: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;

    /// In each round every rank passes on `1/n`, and no rank starts before it has received that part.
    fn simulated_ring(ranks: usize, rounds: usize, bytes: f64, bandwidth: f64, hop: f64) -> f64 {
        let mut ready = vec![0.0f64; ranks];
        for _ in 0..rounds {
            let sent: Vec<f64> =
                ready.iter().map(|start| start + hop + bytes / ranks as f64 / bandwidth).collect();
            for rank in 0..ranks {
                ready[rank] = sent[(rank + ranks - 1) % ranks].max(sent[rank]);
            }
        }
        ready.into_iter().fold(0.0, f64::max)
    }

    #[test]
    fn ring_formulas_equal_a_simulated_ring() {
        for ranks in 2..=9 {
            for bytes in [1e3, 1e6, 3e9] {
                let (bandwidth, hop) = (2e11, 5e-6);
                let gather = simulated_ring(ranks, ranks - 1, bytes, bandwidth, hop);
                let reduce = simulated_ring(ranks, 2 * (ranks - 1), bytes, bandwidth, hop);
                assert!((ring_gather(ranks as f64, bytes, bandwidth, hop) / gather - 1.0).abs() < 1e-12);
                assert!((ring_reduce(ranks as f64, bytes, bandwidth, hop) / reduce - 1.0).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn deduplication_sends_one_copy_per_domain_at_most() {
        assert_eq!(deduplicated(1.0, 8.0), 1.0);
        assert!((deduplicated(1e9, 8.0) - 1.0).abs() < 1e-6);
        assert!(deduplicated(2.0, 8.0) < 2.0 / 8.0);
    }
}
