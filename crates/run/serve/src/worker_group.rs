//! The ranks of a model that is cut over several: rank 0 plans steps and samples tokens, the others compute what it says.
//!
//! Every rank has its share of all matrices, and of the keys and values of all blocks, under the same block numbers. Rank 0 says before each
//! step what is computed; what it says is short beside what a step reads. While there is nothing to do it says so now and then, so that a rank
//! that waits can tell an idle engine from one that is gone.

use std::sync::{Arc, Mutex, PoisonError};

use bedplate_comm::{CommError, Group, Reduction, World};
use bedplate_kernels::{Buffer, Device, DeviceChoice, Element, KvFormat, View, ViewMut};
use bedplate_network::{
    Among, KvPool, Network, PackedWeights, Peers, RankShare, RowAdapters, ServingRoom, ServingShape,
    ShardSpec, StepRows,
};

use crate::ServeError;

/// This process's place among the ranks of an engine.
pub struct WorkerGroup {
    links: Arc<Links>,
    /// Orders lie in the processor's memory.
    device: Device,
}

struct Links {
    group: Group,
    trouble: Mutex<Option<CommError>>,
    world: World,
}

/// What rank 0 says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkerOrder {
    /// How much memory a rank takes, said once.
    Start {
        blocks: usize,
        block_tokens: usize,
        shape: ServingShape,
    },
    /// The lists of a step but for the rows after which tokens are wanted: only rank 0 samples.
    Compute([Vec<u32>; 6]),
    Copy(Vec<(u32, u32)>),
    Rest,
    End,
}

impl WorkerGroup {
    pub fn new(world: World) -> Result<Self, CommError> {
        let group = world.everyone()?;
        let links = Links { group, trouble: Mutex::new(None), world };
        Ok(Self { links: Arc::new(links), device: Device::cpu(1) })
    }

    pub fn rank(&self) -> usize {
        self.links.group.member()
    }

    pub fn ranks(&self) -> usize {
        self.links.group.members()
    }

    /// Ranks on this host, this one included.
    pub fn ranks_here(&self) -> usize {
        self.links.world.host_ranks().len()
    }

    /// What a choice means for this rank.
    pub(crate) fn choose_device(&self, choice: DeviceChoice) -> Result<DeviceChoice, ServeError> {
        let chosen = self.links.world.choose_device(choice, None);
        chosen.map_err(|trouble| ServeError::Ranks(Box::new(trouble)))
    }

    /// Makes the way between the ranks' GPUs, so that what is missing is found before weights are loaded.
    pub(crate) fn meet(&self, device: &Device) -> Result<(), ServeError> {
        let met = self.links.group.meet(device, &[]);
        met.map_err(|trouble| ServeError::Ranks(Box::new(trouble)))
    }

    /// What this rank has of a network.
    pub(crate) fn shard_spec(&self) -> ShardSpec {
        ShardSpec { tensor: RankShare { degree: self.ranks(), rank: self.rank() }, ..ShardSpec::WHOLE }
    }

    pub(crate) fn peers(&self) -> Box<dyn Peers> {
        Box::new(TensorRanks(self.links.clone()))
    }

    /// Why the ranks can no longer work together, if they cannot.
    pub(crate) fn trouble(&self) -> Option<String> {
        let trouble = self.links.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.as_ref().map(ToString::to_string)
    }

    fn into_result(self) -> Result<(), ServeError> {
        let trouble = self.links.trouble.lock().unwrap_or_else(PoisonError::into_inner).take();
        trouble.map_or(Ok(()), |trouble| Err(ServeError::Ranks(Box::new(trouble))))
    }

    /// Says something to all other ranks.
    pub(crate) fn say(&self, order: &WorkerOrder) {
        let words = order.words();
        let head = [words.len() as u32];
        for part in [&head[..], &words] {
            let mut buffer = self.device.zeros(part.len());
            self.device.write(buffer.view_mut(), part);
            self.links.note(|| self.links.group.broadcast(&self.device, buffer.view_mut(), 0));
        }
    }

    /// What rank 0 says next. It has ended where the ranks cannot work together any more.
    fn hear(&self) -> WorkerOrder {
        let mut head = [0];
        self.receive(&mut head);
        let mut words = vec![0; head[0] as usize];
        self.receive(&mut words);
        if self.trouble().is_some() { WorkerOrder::End } else { WorkerOrder::from_words(&words) }
    }

    fn receive(&self, to: &mut [u32]) {
        let mut buffer: Buffer<u32> = self.device.zeros(to.len());
        self.links.note(|| self.links.group.broadcast(&self.device, buffer.view_mut(), 0));
        self.device.read(buffer.view(), to);
    }

    /// Computes what rank 0 says, until it ends.
    pub(crate) fn follow<E: Element>(
        self,
        device: &Device,
        network: &Network,
        weights: &PackedWeights<E>,
    ) -> Result<(), ServeError> {
        let mut memory: Option<(KvPool<E>, ServingRoom<E>)> = None;
        loop {
            match (self.hear(), &mut memory) {
                (WorkerOrder::End, _) => return self.into_result(),
                (WorkerOrder::Start { blocks, block_tokens, shape }, _) => {
                    let pool = KvPool::new(device, network, blocks, block_tokens, KvFormat::Stored);
                    memory =
                        Some((pool.map_err(ServeError::NoMemory)?, ServingRoom::new(device, network, shape)));
                }
                (WorkerOrder::Compute(lists), Some((pool, room))) => {
                    let [tokens, positions, starts, contexts, table_starts, tables] = &lists;
                    let wanted = &[];
                    let step = StepRows { tokens, positions, starts, contexts, table_starts, tables, wanted };
                    network.answer(device, weights, pool, &step, RowAdapters { rows: &[] }, room);
                    device.check()?;
                }
                (WorkerOrder::Copy(pairs), Some((pool, _))) => pool.copy(device, &pairs),
                (WorkerOrder::Rest | WorkerOrder::Compute(_) | WorkerOrder::Copy(_), _) => {}
            }
        }
    }
}

impl Links {
    /// Makes a call unless one has failed before.
    fn note(&self, call: impl FnOnce() -> Result<(), CommError>) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble.is_none() {
            *trouble = call().err();
        }
    }
}

/// The other ranks as a network sees them.
struct TensorRanks(Arc<Links>);

const ONLY_SUMS: &str = "a model that answers is cut by its matrices alone";

impl Peers for TensorRanks {
    fn sum(&self, device: &Device, _among: Among, partial: ViewMut<'_, f32>) {
        self.0.note(|| self.0.group.all_reduce(device, partial, Reduction::Sum));
    }

    fn gather(&self, _device: &Device, _from: View<'_, u8>, _to: ViewMut<'_, u8>) {
        unreachable!("{ONLY_SUMS}")
    }

    fn scatter_sums(&self, _device: &Device, _from: View<'_, f32>, _to: ViewMut<'_, f32>) {
        unreachable!("{ONLY_SUMS}")
    }

    fn pass_on(&self, _device: &Device, _outgoing: View<'_, u8>, _incoming: ViewMut<'_, u8>) {
        unreachable!("{ONLY_SUMS}")
    }

    fn exchange(&self, _: &Device, _: (View<'_, u8>, &[usize]), _: (ViewMut<'_, u8>, &[usize])) {
        unreachable!("{ONLY_SUMS}")
    }
}

impl WorkerOrder {
    pub(crate) fn step(step: &StepRows<'_>) -> Self {
        let StepRows { tokens, positions, starts, contexts, table_starts, tables, .. } = *step;
        Self::Compute([tokens, positions, starts, contexts, table_starts, tables].map(<[u32]>::to_vec))
    }

    /// As it is sent: what it is, then its numbers; a list begins with its length.
    fn words(&self) -> Vec<u32> {
        match self {
            WorkerOrder::Rest => vec![0],
            WorkerOrder::End => vec![1],
            WorkerOrder::Start { blocks, block_tokens, shape } => {
                let ServingShape { rows, sequences, table_entries, wanted, adapter_rank } = *shape;
                let numbers = [*blocks, *block_tokens, rows, sequences, table_entries, wanted, adapter_rank];
                std::iter::once(2).chain(numbers.map(|number| number as u32)).collect()
            }
            WorkerOrder::Copy(pairs) => {
                std::iter::once(3).chain(pairs.iter().flat_map(|(from, to)| [*from, *to])).collect()
            }
            WorkerOrder::Compute(lists) => {
                let list = |list: &Vec<u32>| [&[list.len() as u32][..], list].concat();
                std::iter::once(4).chain(lists.iter().flat_map(list)).collect()
            }
        }
    }

    /// What [`words`](Self::words) gave; only ranks that know the secret send any.
    fn from_words(words: &[u32]) -> Self {
        match words {
            [2, numbers @ ..] => {
                let number = |at: usize| numbers[at] as usize;
                let shape = ServingShape {
                    rows: number(2),
                    sequences: number(3),
                    table_entries: number(4),
                    wanted: number(5),
                    adapter_rank: number(6),
                };
                WorkerOrder::Start { blocks: number(0), block_tokens: number(1), shape }
            }
            [3, pairs @ ..] => {
                WorkerOrder::Copy(pairs.as_chunks::<2>().0.iter().map(|[from, to]| (*from, *to)).collect())
            }
            [4, rest @ ..] => {
                let mut rest = rest;
                WorkerOrder::Compute(std::array::from_fn(|_| {
                    let (list, others) = rest[1..].split_at(rest[0] as usize);
                    rest = others;
                    list.to_vec()
                }))
            }
            [1, ..] => WorkerOrder::End,
            _ => WorkerOrder::Rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_heard_as_it_was_said() {
        let shape =
            ServingShape { rows: 512, sequences: 64, table_entries: 9000, wanted: 80, adapter_rank: 0 };
        let lists = [vec![5, 6, 7], vec![0, 1, 2], vec![0, 3], vec![0], vec![0, 1], vec![]];
        for order in [
            WorkerOrder::Rest,
            WorkerOrder::End,
            WorkerOrder::Start { blocks: 77, block_tokens: 16, shape },
            WorkerOrder::Copy(vec![(1, 2), (3, 4)]),
            WorkerOrder::Compute(lists),
        ] {
            assert_eq!(WorkerOrder::from_words(&order.words()), order);
        }
    }
}
