//! Which GPUs of a node: those that share a socket and a scale-up domain, and out of the fullest group that
//! still fits, so that whole groups stay free for gangs that need them.

use bedplate_topology::NodeKind;

/// The groups of GPUs on a kind of node, as masks of local indices, the closest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceGroups {
    /// Sockets, scale-up domains, then the node.
    tiers: Vec<Vec<u64>>,
}

impl DeviceGroups {
    /// Half of the GPUs hang on each of two sockets, as on all eight-GPU machines we know; the catalog does
    /// not say more, and machines with fewer than four GPUs have one socket's worth.
    pub(crate) fn of(kind: &NodeKind) -> Self {
        let count = kind.accelerators.min(64);
        let mut domains = Vec::new();
        let mut start = 0;
        for size in &kind.domain_sizes {
            domains.push(mask(start, (start + size).min(count)));
            start += size;
        }
        let half = if count >= 4 && count.is_multiple_of(2) { count / 2 } else { count };
        let sockets = (0..count).step_by(half.max(1) as usize).map(|at| mask(at, at + half)).collect();
        let mut tiers = vec![sockets, domains, vec![mask(0, count)]];
        tiers.sort_by_key(|groups| groups.iter().map(|group| group.count_ones()).max().unwrap_or(0));
        Self { tiers }
    }

    /// `count` of the free GPUs; `None` when there are not enough.
    pub(crate) fn choose(&self, free: u64, count: u32) -> Option<u64> {
        if free.count_ones() < count {
            return None;
        }
        let fits = |group: &&u64| (*group & free).count_ones() >= count;
        let fullest = |groups: &Vec<u64>| {
            groups.iter().filter(fits).min_by_key(|group| (*group & free).count_ones()).copied()
        };
        let group = self.tiers.iter().find_map(fullest).unwrap_or(u64::MAX);
        Some(lowest(group & free, count))
    }
}

/// Bits `from` up to but not including `until`.
fn mask(from: u32, until: u32) -> u64 {
    let below = |bit: u32| if bit >= 64 { u64::MAX } else { (1 << bit) - 1 };
    below(until) & !below(from)
}

/// The `count` lowest bits that are set.
pub(crate) fn lowest(mut bits: u64, count: u32) -> u64 {
    let mut chosen = 0;
    for _ in 0..count {
        let bit = bits & bits.wrapping_neg();
        chosen |= bit;
        bits ^= bit;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eight() -> DeviceGroups {
        DeviceGroups::of(&NodeKind { accelerators: 8, domain_sizes: vec![8], ..NodeKind::bare("h100-x8") })
    }

    #[test]
    fn devices_share_a_socket_where_they_can() {
        assert_eq!(eight().choose(0b1111_1111, 4), Some(0b0000_1111));
        assert_eq!(eight().choose(0b1111_1110, 4), Some(0b1111_0000));
        assert_eq!(eight().choose(0b1111_1110, 2), Some(0b0000_0110), "the fuller socket first");
        assert_eq!(eight().choose(0b0001_0001, 2), Some(0b0001_0001));
        assert_eq!(eight().choose(0b0001_0001, 3), None);
    }

    #[test]
    fn pairs_with_a_bridge_are_kept_together() {
        let kind = NodeKind { accelerators: 4, domain_sizes: vec![2, 2], ..NodeKind::bare("pairs") };
        assert_eq!(DeviceGroups::of(&kind).choose(0b1110, 2), Some(0b1100));
    }
}
