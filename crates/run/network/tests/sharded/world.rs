//! Ranks as threads, each with a device of its own, that reach each other through shared memory.

use std::mem;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use bedplate_kernels::{BufferValue, Device, View, ViewMut};
use bedplate_network::{Among, Network, Peers, RankShare, ShardSpec};

use crate::batch::{SEQUENCE, architecture};

/// How a network is cut and how many copies of it there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) tensor: usize,
    pub(crate) has_cut_rows: bool,
    pub(crate) context: usize,
    pub(crate) data: usize,
    /// Divides `context * data`.
    pub(crate) experts: usize,
}

impl Layout {
    pub(crate) const ONE: Self = Self { tensor: 1, has_cut_rows: false, context: 1, data: 1, experts: 1 };

    fn places(self) -> Vec<Place> {
        let place = |rank: usize| Place {
            tensor: rank % self.tensor,
            context: rank / self.tensor % self.context,
            data: rank / self.tensor / self.context,
        };
        (0..self.tensor * self.context * self.data).map(place).collect()
    }

    pub(crate) fn spec(self, place: Place) -> ShardSpec {
        let share = |degree, rank| RankShare { degree, rank };
        ShardSpec {
            tensor: share(self.tensor, place.tensor),
            has_cut_rows: self.has_cut_rows,
            context: share(self.context, place.context),
            experts: share(self.experts, self.expert_place(place) % self.experts),
            unit: 6,
        }
    }

    /// The place of a rank among those with equal tensor coordinate.
    fn expert_place(self, place: Place) -> usize {
        place.context + self.context * place.data
    }
}

/// Where a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) tensor: usize,
    pub(crate) context: usize,
    pub(crate) data: usize,
}

/// A group of ranks, of which each sees what all have given.
struct Meeting {
    round: Mutex<Round>,
    is_over: Condvar,
}

struct Round {
    number: usize,
    given: Vec<Option<Vec<u8>>>,
    seen: Arc<Vec<Vec<u8>>>,
}

impl Meeting {
    fn new(members: usize) -> Self {
        let round = Round { number: 0, given: vec![None; members], seen: Arc::default() };
        Self { round: Mutex::new(round), is_over: Condvar::new() }
    }

    fn meet(&self, member: usize, given: Vec<u8>) -> Arc<Vec<Vec<u8>>> {
        let mut round = self.round.lock().unwrap();
        let number = round.number;
        round.given[member] = Some(given);
        if round.given.iter().all(Option::is_some) {
            let nothing = vec![None; round.given.len()];
            let all = mem::replace(&mut round.given, nothing);
            round.seen = Arc::new(all.into_iter().flatten().collect());
            round.number += 1;
            self.is_over.notify_all();
        }
        let deadline = Duration::from_secs(60);
        let is_waiting = |round: &mut Round| round.number == number;
        let (round, waited) = self.is_over.wait_timeout_while(round, deadline, is_waiting).unwrap();
        assert!(!waited.timed_out(), "a rank did not come");
        Arc::clone(&round.seen)
    }
}

/// One rank's way to the others.
struct Threads {
    tensor: Member,
    context: Member,
    experts: Member,
}

struct Member {
    meeting: Arc<Meeting>,
    number: usize,
}

impl Member {
    fn meet(&self, device: &Device, given: View<'_, u8>) -> Arc<Vec<Vec<u8>>> {
        self.meeting.meet(self.number, read(device, given))
    }

    fn sums(&self, device: &Device, given: View<'_, f32>) -> Vec<f32> {
        let all = self.meet(device, given.bytes());
        let mut sums = vec![0.0; given.len()];
        for of_member in all.iter() {
            let numbers = of_member.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        sums
    }
}

fn read<E: BufferValue>(device: &Device, from: View<'_, E>) -> Vec<E> {
    let mut numbers = vec![E::default(); from.len()];
    device.read(from, &mut numbers);
    numbers
}

impl Peers for Threads {
    fn sum(&self, device: &Device, among: Among, mut partial: ViewMut<'_, f32>) {
        let member = match among {
            Among::Tensor => &self.tensor,
            Among::Context => &self.context,
        };
        let sums = member.sums(device, partial.view());
        device.write(partial.reborrow(), &sums);
    }

    fn gather(&self, device: &Device, from: View<'_, u8>, to: ViewMut<'_, u8>) {
        device.write(to, &self.tensor.meet(device, from).concat());
    }

    fn scatter_sums(&self, device: &Device, from: View<'_, f32>, to: ViewMut<'_, f32>) {
        let sums = self.tensor.sums(device, from);
        let len = to.len();
        device.write(to, &sums[self.tensor.number * len..][..len]);
    }

    fn pass_on(&self, device: &Device, outgoing: View<'_, u8>, incoming: ViewMut<'_, u8>) {
        let all = self.context.meet(device, outgoing);
        device.write(incoming, &all[(self.context.number + all.len() - 1) % all.len()]);
    }

    fn exchange(
        &self,
        device: &Device,
        (outgoing, sent): (View<'_, u8>, &[usize]),
        (incoming, received): (ViewMut<'_, u8>, &[usize]),
    ) {
        assert_eq!(sent.iter().sum::<usize>(), outgoing.len());
        let mut given: Vec<u8> = sent.iter().flat_map(|count| (*count as u64).to_ne_bytes()).collect();
        given.extend(read(device, outgoing));
        let all = self.experts.meeting.meet(self.experts.number, given);
        let (mut taken, own) = (Vec::new(), self.experts.number);
        for (of_member, expected) in all.iter().zip(received) {
            let (counts, bytes) = of_member.split_at(8 * all.len());
            let counts: Vec<usize> =
                counts.as_chunks().0.iter().map(|count| u64::from_ne_bytes(*count) as usize).collect();
            assert_eq!(counts[own], *expected, "what is sent is what is expected");
            let start: usize = counts[..own].iter().sum();
            taken.extend_from_slice(&bytes[start..start + counts[own]]);
        }
        device.write(incoming, &taken);
    }
}

/// Runs all ranks' parts of a network, each in a thread.
pub(crate) fn on_ranks<R: Send>(
    name: &str,
    layout: Layout,
    work: impl Fn(&Device, &Network, Place) -> R + Sync,
) -> Vec<R> {
    let places = layout.places();
    let meetings = |count: usize, members: usize| -> Vec<Arc<Meeting>> {
        (0..count).map(|_| Arc::new(Meeting::new(members))).collect()
    };
    let of_tensor = meetings(layout.context * layout.data, layout.tensor);
    let of_context = meetings(layout.tensor * layout.data, layout.context);
    let of_experts = meetings(places.len() / layout.experts, layout.experts);
    let threads = |place: Place| {
        let member = |meeting: &Arc<Meeting>, number| Member { meeting: Arc::clone(meeting), number };
        let among_experts = layout.expert_place(place);
        Threads {
            tensor: member(&of_tensor[among_experts], place.tensor),
            context: member(&of_context[place.tensor + layout.tensor * place.data], place.context),
            experts: member(
                &of_experts[place.tensor + layout.tensor * (among_experts / layout.experts)],
                among_experts % layout.experts,
            ),
        }
    };
    thread::scope(|scope| {
        let rank = |place: &Place| {
            let (place, peers, work) = (*place, Box::new(threads(*place)), &work);
            scope.spawn(move || {
                let device = Device::apart(1);
                let spec = layout.spec(place);
                let network = Network::sharded(&device, architecture(name), SEQUENCE, spec, peers).unwrap();
                work(&device, &network, place)
            })
        };
        let threads: Vec<_> = places.iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A rank that is never asked for anything.
pub(crate) fn alone() -> Box<dyn Peers> {
    let member = || Member { meeting: Arc::new(Meeting::new(1)), number: 0 };
    Box::new(Threads { tensor: member(), context: member(), experts: member() })
}
