//! This process's place among the ranks of a run, and the groups that it works with.
//!
//! A run in one process is a run of one rank: it has no groups, and everything that would go through one is done at once.

use std::sync::{Arc, OnceLock};

use bedplate_comm::{CommError, Group, Number, Reduction, World};
use bedplate_kernels::Device;
use bedplate_layout::{Coordinates, Dimension, Layout, RankMap, Sharding};
use bedplate_network::{Architecture, HeldBlock, Network, NetworkError, RankShare, ShardSpec};

use crate::TrainError;
use crate::clock::Waits;
use crate::peers::Company;
use crate::pipeline::Stage;

/// A rank of a run, with its groups. A group of one rank is absent.
pub struct RunRanks {
    layout: Layout,
    at: Coordinates,
    rank: u32,
    everyone: Option<Arc<Group>>,
    pub(crate) tensor: Option<Arc<Group>>,
    pub(crate) context: Option<Arc<Group>>,
    pub(crate) experts: Option<Arc<Group>>,
    data: Option<Arc<Group>>,
    dense: Sharers,
    expert: Sharers,
    /// First and last stage, where embedding and head are one matrix.
    pub(crate) tied: Option<Arc<Group>>,
    /// To and from the neighbouring stages.
    pub(crate) links: Option<NeighbourLinks>,
    /// The ranks before and after this one, where ranks keep copies of each other.
    pub(crate) ring: Option<Ring>,
    /// Why the ranks can no longer work together.
    fault: OnceLock<CommError>,
    pub(crate) waits: Waits,
    /// Last: groups and shared memory end before the world does.
    world: Option<World>,
}

/// The circle in which each rank keeps the state of the one before it.
pub(crate) struct Ring {
    pub(crate) before: u32,
    pub(crate) links: Neighbours,
}

/// The ranks that learn the same weights: those that split them, and those that hold the same part.
#[derive(Clone, Default)]
pub(crate) struct Sharers {
    pub(crate) split: Option<Arc<Group>>,
    pub(crate) copies: Option<Arc<Group>>,
}

impl Sharers {
    /// This rank's place among the ranks that split, and how many they are.
    pub(crate) fn share(&self) -> (usize, usize) {
        self.split.as_ref().map_or((0, 1), |group| (group.member(), group.members()))
    }

    /// Whether this rank speaks for all that learn the same weights.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first_copy() && self.share().0 == 0
    }

    /// Whether this rank speaks for those that hold the same numbers.
    pub(crate) fn is_first_copy(&self) -> bool {
        self.copies.as_ref().is_none_or(|group| group.member() == 0)
    }
}

/// One group for each neighbour and kind of message, so that messages of one kind stay in order and none waits for another kind.
pub(crate) struct NeighbourLinks {
    /// Streams go forward and their gradients back.
    pub(crate) streams: Neighbours,
    /// So does how busy experts are.
    pub(crate) shares: Neighbours,
}

pub(crate) struct Neighbours {
    /// Forward.
    pub(crate) from_before: Arc<Group>,
    pub(crate) to_next: Arc<Group>,
    /// Back.
    pub(crate) from_next: Arc<Group>,
    pub(crate) to_before: Arc<Group>,
}

/// A group of two: the other member.
pub(crate) fn other(group: &Group) -> usize {
    1 - group.member()
}

impl RunRanks {
    /// One rank that does everything.
    pub fn alone() -> Self {
        let layout = Layout::default();
        let map = RankMap::new(&layout).expect("one rank is a layout");
        Self {
            layout,
            at: map.coordinates(0),
            rank: 0,
            everyone: None,
            tensor: None,
            context: None,
            experts: None,
            data: None,
            dense: Sharers::default(),
            expert: Sharers::default(),
            tied: None,
            links: None,
            ring: None,
            fault: OnceLock::new(),
            waits: Waits::default(),
            world: None,
        }
    }

    /// The rank that a process has in a world, by a layout of as many ranks. All ranks call it, and all with their node where
    /// they keep copies of each other's state.
    pub fn of(
        world: World,
        layout: Layout,
        has_tied_ends: bool,
        node: Option<&str>,
    ) -> Result<Self, TrainError> {
        let ranks = Self::among(&world, layout, has_tied_ends, node)?;
        Ok(ranks.in_world(world))
    }

    pub(crate) fn in_world(self, world: World) -> Self {
        Self { world: Some(world), ..self }
    }

    /// The same where the world outlives a failure; [`in_world`](Self::in_world) comes next.
    pub(crate) fn among(
        world: &World,
        layout: Layout,
        has_tied_ends: bool,
        node: Option<&str>,
    ) -> Result<Self, TrainError> {
        let map = RankMap::new(&layout).map_err(|refusal| TrainError::Layout { reasons: vec![refusal] })?;
        if world.size() == 1 {
            return Ok(Self { layout, ..Self::alone() });
        }
        let (rank, at) = (world.rank(), map.coordinates(world.rank()));
        let along = |dimension| -> Result<Option<Arc<Group>>, CommError> {
            Ok((map.size(dimension) > 1).then(|| world.along(&map, dimension)).transpose()?.map(Arc::new))
        };
        let everyone = Some(Arc::new(world.everyone()?));
        let (tensor, context) = (along(Dimension::Tensor)?, along(Dimension::Context)?);
        let (data, experts) = (along(Dimension::Data)?, along(Dimension::Expert)?);
        let learners: Vec<u32> = map.group(Dimension::DataWithContext, rank).ranks().collect();
        let dense = sharers(world, "dense", &learners, layout.sharding)?;
        let expert = match layout.expert > 1 {
            true => {
                let copies: Vec<u32> = map.group(Dimension::ExpertData, rank).ranks().collect();
                let sharding = match layout.sharding {
                    Sharding::WeightsWithin(_) => Sharding::Weights,
                    other => other,
                };
                sharers(world, "expert", &copies, sharding)?
            }
            false => dense.clone(),
        };
        let stages: Vec<u32> = map.group(Dimension::Pipeline, rank).ranks().collect();
        let links = || -> Result<NeighbourLinks, CommError> {
            let of = |what| neighbours(world, &stages, what);
            Ok(NeighbourLinks { streams: of("streams")?, shares: of("shares")? })
        };
        let links = (stages.len() > 1).then(links).transpose()?;
        let ring = match (node, &everyone) {
            (Some(node), Some(everyone)) => {
                let order = ring_order(&gather_bytes(everyone, &Device::cpu(1), node.as_bytes())?);
                let me = order.iter().position(|each| *each == rank).expect("every rank is in the ring");
                let before = order[(me + order.len() - 1) % order.len()];
                Some(Ring { before, links: neighbours(world, &order, "copies")? })
            }
            _ => None,
        };
        let (first, last) = (stages[0], stages[stages.len() - 1]);
        let is_tied = has_tied_ends && first != last && (rank == first || rank == last);
        let tied = is_tied.then(|| world.group("tied", &[first, last])).transpose()?.map(Arc::new);
        Ok(Self {
            layout,
            at,
            rank,
            everyone,
            tensor,
            context,
            experts,
            data,
            dense,
            expert,
            tied,
            links,
            ring,
            fault: OnceLock::new(),
            waits: Waits::default(),
            world: None,
        })
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// This process's number among all.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub fn count(&self) -> usize {
        self.everyone.as_ref().map_or(1, |group| group.members())
    }

    /// The first rank speaks for the run: records, manifests, finished weights.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    pub fn at(&self) -> &Coordinates {
        &self.at
    }

    pub fn world(&self) -> Option<&World> {
        self.world.as_ref()
    }

    /// The world, for the next one to be made of it.
    pub(crate) fn into_world(self) -> Option<World> {
        let Self { world, .. } = self;
        world
    }

    pub(crate) fn stage(&self) -> Stage {
        Stage {
            stage: self.at.pipeline as usize,
            stages: self.layout.pipeline as usize,
            chunks: self.layout.virtual_stages as usize,
        }
    }

    /// Whether other ranks hold everything that this one holds.
    pub(crate) fn is_copied(&self) -> bool {
        let is_copied = |sharers: &Sharers| sharers.copies.is_some();
        is_copied(&self.dense) && is_copied(&self.expert)
    }

    /// Whether ranks keep copies of each other's state, because no other has it.
    pub(crate) fn keeps_copies(&self) -> bool {
        self.ring.is_some() && !self.is_copied()
    }

    pub(crate) fn sharers(&self, is_expert: bool) -> &Sharers {
        if is_expert { &self.expert } else { &self.dense }
    }

    pub(crate) fn everyone(&self) -> Option<&Arc<Group>> {
        self.everyone.as_ref()
    }

    /// Ranks on this machine.
    pub(crate) fn on_this_host(&self) -> usize {
        self.world.as_ref().map_or(1, |world| world.host_ranks().len())
    }

    /// Waits for all before anybody leaves.
    pub(crate) fn part(&self, device: &Device) -> Result<(), CommError> {
        self.sum_over_all(device, &mut [0.0])
    }

    /// Whether all ranks share a machine.
    pub(crate) fn is_on_one_host(&self) -> bool {
        self.world.as_ref().is_none_or(|world| world.host_ranks().len() == world.size() as usize)
    }

    /// This rank's part of a network, for sequences of at most `longest` tokens.
    pub fn network(
        self: &Arc<Self>,
        device: &Device,
        architecture: Architecture,
        longest: usize,
    ) -> Result<Network, NetworkError> {
        Network::sharded(
            device,
            architecture,
            longest,
            self.shard_spec(),
            Box::new(Company(Arc::clone(self))),
        )
    }

    fn shard_spec(&self) -> ShardSpec {
        let (layout, at) = (&self.layout, &self.at);
        let share = |degree: u32, rank: u32| RankShare { degree: degree as usize, rank: rank as usize };
        let sharers = [&self.dense, &self.expert].map(|sharers| sharers.share().1);
        ShardSpec {
            tensor: share(layout.tensor, at.tensor),
            has_cut_rows: layout.is_sequence_parallel,
            context: share(layout.context, at.context),
            experts: share(layout.expert, at.expert),
            unit: sharers.into_iter().fold(1, least_common_multiple),
        }
    }

    /// Makes the ways between the ranks' GPUs, so that what is missing is found before anything is computed. Pairs of neighbours meet when they first speak.
    pub(crate) fn meet(&self, device: &Device) -> Result<(), CommError> {
        let Some(everyone) = &self.everyone else { return Ok(()) };
        let sharers = [&self.dense, &self.expert].map(|sharers| [&sharers.split, &sharers.copies]);
        let [dense, expert] = sharers;
        let is_apart = self.layout.expert > 1;
        let parts = [&self.tensor, &self.context, &self.data, &self.experts];
        let learners = dense.into_iter().chain(expert.into_iter().filter(|_| is_apart));
        let parts: Vec<Option<&Group>> = parts.into_iter().chain(learners).map(Option::as_deref).collect();
        everyone.meet(device, &parts)
    }

    /// Memory that the other ranks of this host reach too, where there are any.
    pub(crate) fn memory<E: bedplate_comm::Number>(
        &self,
        device: &Device,
        len: usize,
    ) -> Result<HeldBlock<E>, CommError> {
        Ok(match &self.world {
            Some(world) if world.size() > 1 => Box::new(world.shared::<E>(device, len)?),
            _ => Box::new(device.zeros::<E>(len)),
        })
    }

    /// Remembers the first reason why ranks cannot go on; calls made inside a pass cannot return it.
    pub(crate) fn note<T>(&self, outcome: Result<T, CommError>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let _ = self.fault.set(error);
                None
            }
        }
    }

    /// An error when something has been noted, or when a rank is known to be lost: what is computed then would be for nothing.
    pub(crate) fn check(&self) -> Result<(), CommError> {
        let noted = self.fault.get().cloned();
        let lost = || self.world.as_ref().and_then(World::fault).map(CommError::Fault);
        noted.or_else(lost).map_or(Ok(()), Err)
    }

    /// Adds up some totals over all ranks.
    pub(crate) fn sum_over_all(&self, device: &Device, totals: &mut [f64]) -> Result<(), CommError> {
        self.combine(device, self.everyone.as_ref(), totals, Reduction::Sum)
    }

    /// Adds up over the ranks that see different samples.
    pub(crate) fn sum_over_data(&self, device: &Device, totals: &mut [f64]) -> Result<(), CommError> {
        self.combine(device, self.data.as_ref(), totals, Reduction::Sum)
    }

    fn combine(
        &self,
        device: &Device,
        group: Option<&Arc<Group>>,
        totals: &mut [f64],
        by: Reduction,
    ) -> Result<(), CommError> {
        let Some(group) = group else { return Ok(()) };
        let mut numbers = device.zeros::<f64>(totals.len());
        device.write(numbers.view_mut(), totals);
        self.waits.time(|| group.all_reduce(device, numbers.view_mut(), by))?;
        device.read(numbers.view(), totals);
        Ok(())
    }

    /// What every rank gives, one after the other.
    pub(crate) fn gather(&self, device: &Device, own: &[f64]) -> Result<Vec<f64>, CommError> {
        let Some(group) = &self.everyone else { return Ok(own.to_vec()) };
        self.waits.time(|| gather(group, device, own))
    }

    /// Bytes of the first rank for all; the others give any.
    pub(crate) fn broadcast(&self, device: &Device, bytes: Vec<u8>) -> Result<Vec<u8>, CommError> {
        let Some(group) = &self.everyone else { return Ok(bytes) };
        let mut len = device.zeros::<u64>(1);
        device.write(len.view_mut(), &[bytes.len() as u64]);
        group.broadcast(device, len.view_mut(), 0)?;
        let mut count = [0];
        device.read(len.view(), &mut count);
        let mut numbers = device.zeros::<u8>(count[0] as usize);
        if self.is_first() {
            device.write(numbers.view_mut(), &bytes);
        }
        group.broadcast(device, numbers.view_mut(), 0)?;
        let mut found = vec![0; numbers.len()];
        device.read(numbers.view(), &mut found);
        Ok(found)
    }

    /// The bytes of every rank, on all of them.
    pub(crate) fn gather_bytes(&self, device: &Device, own: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        match &self.everyone {
            Some(group) => self.waits.time(|| gather_bytes(group, device, own)),
            None => Ok(vec![own.to_vec()]),
        }
    }
}

fn gather_bytes(group: &Group, device: &Device, own: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
    let lengths = gather(group, device, &[own.len() as u64])?;
    let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
    let mut mine = own.to_vec();
    mine.resize(longest, 0);
    let found = gather(group, device, &mine)?;
    let of = |(rank, len): (usize, &u64)| found[rank * longest..][..*len as usize].to_vec();
    Ok(lengths.iter().enumerate().map(of).collect())
}

/// What every member gives, one after the other.
fn gather<T: Number + Default>(group: &Group, device: &Device, own: &[T]) -> Result<Vec<T>, CommError> {
    let (mut mine, mut all) = (device.zeros::<T>(own.len()), device.zeros::<T>(own.len() * group.members()));
    device.write(mine.view_mut(), own);
    group.all_gather(device, mine.view(), all.view_mut())?;
    let mut found = vec![T::default(); all.len()];
    device.read(all.view(), &mut found);
    Ok(found)
}

/// Ranks in a circle in which neighbours are on different nodes, as far as that is possible: the first of every node, then
/// the second of every node, and so on.
fn ring_order(nodes: &[Vec<u8>]) -> Vec<u32> {
    let turn = |rank: usize| nodes[..rank].iter().filter(|node| **node == nodes[rank]).count();
    let mut order: Vec<u32> = (0..nodes.len() as u32).collect();
    order.sort_by_key(|rank| turn(*rank as usize));
    order
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut larger, mut smaller) = (a, b);
    while smaller > 0 {
        (larger, smaller) = (smaller, larger % smaller);
    }
    a / larger * b
}

/// Groups among the ranks that learn the same weights.
fn sharers(world: &World, name: &str, ranks: &[u32], sharding: Sharding) -> Result<Sharers, CommError> {
    let make = |kind: &str, ranks: &[u32]| -> Result<Option<Arc<Group>>, CommError> {
        let name = format!("{name} {kind}");
        Ok((ranks.len() > 1).then(|| world.group(&name, ranks)).transpose()?.map(Arc::new))
    };
    let within = match sharding {
        Sharding::None => 1,
        Sharding::WeightsWithin(within) => within as usize,
        Sharding::Optimizer | Sharding::Gradients | Sharding::Weights => ranks.len(),
    };
    let me = ranks.iter().position(|rank| *rank == world.rank()).expect("a rank learns its own weights");
    let first = me / within * within;
    let split = make("shards", &ranks[first..first + within])?;
    let copies: Vec<u32> = ranks.iter().skip(me % within).step_by(within).copied().collect();
    Ok(Sharers { split, copies: make("copies", &copies)? })
}

/// The groups of two with both neighbours; the last stage's next is the first. Pairs are made in the order of stages, so
/// that nobody waits in a circle.
fn neighbours(world: &World, stages: &[u32], what: &str) -> Result<Neighbours, CommError> {
    let count = stages.len();
    let me = stages.iter().position(|rank| *rank == world.rank()).expect("a rank is on its own pipeline");
    let (mut before, mut next) = (None, None);
    for stage in 0..count {
        let after = (stage + 1) % count;
        if me != stage && me != after {
            continue;
        }
        let pair = [stages[stage], stages[after]];
        let forward = Arc::new(world.group(&format!("{what} forward"), &pair)?);
        let back = Arc::new(world.group(&format!("{what} back"), &pair)?);
        if me == stage {
            next = Some((forward, back));
        } else {
            before = Some((forward, back));
        }
    }
    let missing = "a stage has two neighbours";
    let ((to_next, from_next), (from_before, to_before)) = (next.expect(missing), before.expect(missing));
    Ok(Neighbours { from_before, to_next, from_next, to_before })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_to_another_node_wherever_there_is_one() {
        let order = |nodes: &str| ring_order(&nodes.bytes().map(|node| vec![node]).collect::<Vec<_>>());
        assert_eq!(order("aaaa"), [0, 1, 2, 3]);
        assert_eq!(order("abcd"), [0, 1, 2, 3]);
        assert_eq!(order("aabb"), [0, 2, 1, 3]);
        assert_eq!(order("aaabbb"), [0, 3, 1, 4, 2, 5]);
        assert_eq!(order("aabbc"), [0, 2, 4, 1, 3]);
    }
}
