//! Calls of all kinds against the reference, on every transport.

use bedplate_comm::{Group, Number, Reduction, Registered, Transport, World};
use bedplate_kernels::{Bf16, Buffer, Device};
use bedplate_random::Random;
use half::f16;

use crate::fixture::{TRANSPORTS, options, ranks};
use crate::reference::{elements, number, reduced};

/// A format that the reference can speak.
trait Tested: Number {
    fn from_exact(value: i64) -> Self;
    /// The nearest to a result, as the format rounds it.
    fn from_result(value: f64) -> Self;
}

macro_rules! tested {
    ($($number:ty: |$value:ident| $exact:expr, |$result:ident| $rounded:expr;)*) => {
        $(impl Tested for $number {
            fn from_exact($value: i64) -> Self { $exact }
            fn from_result($result: f64) -> Self { $rounded }
        })*
    };
}

tested! {
    f32: |value| value as f32, |result| result as f32;
    f64: |value| value as f64, |result| result;
    Bf16: |value| Bf16::from_f32(value as f32), |result| Bf16::from_f32(result as f32);
    f16: |value| f16::from_f32(value as f32), |result| f16::from_f32(result as f32);
    i8: |value| value as i8, |result| result as i8;
    u8: |value| value as u8, |result| result as u8;
    i32: |value| value as i32, |result| result as i32;
    u32: |value| value as u32, |result| result as u32;
    i64: |value| value, |result| result as i64;
    u64: |value| value as u64, |result| result as u64;
}

/// One call: what all ranks must agree on, drawn from a seed that they share.
struct Case {
    seed: u64,
    len: usize,
    by: Reduction,
    root: usize,
    is_in_place: bool,
    /// Which ranks have registered their buffers.
    registered: u64,
}

impl Case {
    fn draw(random: &mut Random, members: usize) -> Self {
        let len = match random.below(6) {
            0 => random.below(3),
            1 => random.below(100),
            2 => random.below(3_000),
            3 => 16 * random.below(2_000),
            4 => random.below(60_000),
            _ => random.below(300_000),
        };
        Self {
            seed: random.number(),
            len,
            by: Reduction::ALL[random.below(4)],
            root: random.below(members),
            is_in_place: random.below(2) == 0,
            registered: match random.below(3) {
                0 => 0,
                1 => u64::MAX,
                _ => random.number(),
            },
        }
    }
}

/// A buffer of either kind.
enum Memory<E: Number> {
    Private(Buffer<E>),
    Shared(Registered<E>),
}

impl<E: Number> Memory<E> {
    fn buffer(&mut self) -> &mut Buffer<E> {
        match self {
            Memory::Private(buffer) => buffer,
            Memory::Shared(buffer) => buffer,
        }
    }
}

struct Member<'a> {
    world: &'a World,
    group: &'a Group,
    device: &'a Device,
}

impl Member<'_> {
    /// The ranks of the group by member, as the reference counts them.
    fn all(&self) -> Vec<usize> {
        self.group.ranks().iter().map(|rank| *rank as usize).collect()
    }

    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn memory<E: Tested>(&self, case: &Case, values: &[i64]) -> Memory<E> {
        let exact: Vec<E> = values.iter().map(|value| E::from_exact(*value)).collect();
        let is_shared = case.registered >> (self.rank() % 64) & 1 == 1;
        let mut memory = match is_shared {
            true => Memory::Shared(self.world.shared(self.device, exact.len()).unwrap()),
            false => Memory::Private(self.device.zeros(exact.len())),
        };
        self.device.write(memory.buffer().view_mut(), &exact);
        memory
    }

    fn check<E: Tested>(&self, what: &str, memory: &mut Memory<E>, expected: impl Fn(usize) -> f64) {
        let buffer = memory.buffer();
        let mut found = vec![E::default(); buffer.len()];
        self.device.read(buffer.view(), &mut found);
        for (index, found) in found.into_iter().enumerate() {
            let expected = E::from_result(expected(index));
            assert_eq!(found, expected, "{what}, {}, number {index} of rank {}", E::FORMAT, self.rank());
        }
    }

    fn all_reduce<E: Tested>(&self, case: &Case) {
        let own = elements(case.seed, self.rank(), case.len);
        let mut source = self.memory::<E>(case, &own);
        let expected = |index| reduced(case.seed, &self.all(), index, case.by);
        if case.is_in_place {
            self.group.all_reduce(self.device, source.buffer().view_mut(), case.by).unwrap();
            return self.check("all_reduce in place", &mut source, expected);
        }
        let mut target = self.memory::<E>(case, &vec![1; case.len]);
        let (from, to) = (source.buffer().view(), target.buffer().view_mut());
        self.group.all_reduce_into(self.device, from, to, case.by).unwrap();
        self.check("all_reduce", &mut target, expected);
        self.check("source of all_reduce", &mut source, |index| own[index] as f64);
    }

    fn all_gather<E: Tested>(&self, case: &Case) {
        let (members, me, all) = (self.group.members(), self.group.member(), self.all());
        let own = elements(case.seed, self.rank(), case.len);
        let mut whole = vec![99; case.len * members];
        whole[me * case.len..][..case.len].copy_from_slice(&own);
        let mut target = self.memory::<E>(case, &whole);
        if case.is_in_place {
            self.group.all_gather_in_place(self.device, target.buffer().view_mut()).unwrap();
        } else {
            let mut source = self.memory::<E>(case, &own);
            let (from, to) = (source.buffer().view(), target.buffer().view_mut());
            self.group.all_gather(self.device, from, to).unwrap();
        }
        self.check("all_gather", &mut target, |index| {
            number(case.seed, all[index / case.len], index % case.len) as f64
        });
    }

    fn reduce_scatter<E: Tested>(&self, case: &Case) {
        let (members, me) = (self.group.members(), self.group.member());
        let mut source = self.memory::<E>(case, &elements(case.seed, self.rank(), case.len * members));
        let expected = |index| reduced(case.seed, &self.all(), me * case.len + index, case.by);
        let mut target = self.memory::<E>(case, &vec![77; case.len]);
        if case.is_in_place {
            self.group.reduce_scatter_in_place(self.device, source.buffer().view_mut(), case.by).unwrap();
            let mut part = vec![E::default(); case.len];
            let own = me * case.len..(me + 1) * case.len;
            self.device.read(source.buffer().range(own), &mut part);
            self.device.write(target.buffer().view_mut(), &part);
        } else {
            let (from, to) = (source.buffer().view(), target.buffer().view_mut());
            self.group.reduce_scatter(self.device, from, to, case.by).unwrap();
        }
        self.check("reduce_scatter", &mut target, expected);
    }

    fn all_to_all<E: Tested>(&self, case: &Case) {
        let (members, me, all) = (self.group.members(), self.group.member(), self.all());
        let mut source = self.memory::<E>(case, &elements(case.seed, self.rank(), case.len * members));
        let mut target = self.memory::<E>(case, &vec![55; case.len * members]);
        let (from, to) = (source.buffer().view(), target.buffer().view_mut());
        self.group.all_to_all(self.device, from, to).unwrap();
        self.check("all_to_all", &mut target, |index| {
            number(case.seed, all[index / case.len], me * case.len + index % case.len) as f64
        });
    }

    fn all_to_all_v<E: Tested>(&self, case: &Case) {
        let (members, me, all) = (self.group.members(), self.group.member(), self.all());
        let count =
            |from: usize, to: usize| number(case.seed, 100 + from, to) as usize * (case.len % 5_000) / 12;
        let sent: Vec<usize> = (0..members).map(|to| count(me, to)).collect();
        let received: Vec<usize> = (0..members).map(|from| count(from, me)).collect();
        let mut source = self.memory::<E>(case, &elements(case.seed, self.rank(), sent.iter().sum()));
        let mut target = self.memory::<E>(case, &vec![33; received.iter().sum()]);
        let (from, to) = (source.buffer().view(), target.buffer().view_mut());
        self.group.all_to_all_v(self.device, from, &sent, to, &received).unwrap();
        let expected: Vec<i64> = (0..members)
            .flat_map(|from| {
                let first: usize = (0..me).map(|to| count(from, to)).sum();
                let rank = all[from];
                (first..first + count(from, me)).map(move |index| number(case.seed, rank, index))
            })
            .collect();
        self.check("all_to_all_v", &mut target, |index| expected[index] as f64);
    }

    fn rooted<E: Tested>(&self, case: &Case) {
        let (members, me, all) = (self.group.members(), self.group.member(), self.all());
        let is_root = me == case.root;
        let own = elements(case.seed, self.rank(), case.len);
        let mut mine = self.memory::<E>(case, &own);
        self.group.broadcast(self.device, mine.buffer().view_mut(), case.root).unwrap();
        self.check("broadcast", &mut mine, |index| number(case.seed, all[case.root], index) as f64);

        let mut source = self.memory::<E>(case, &own);
        let mut sum = self.memory::<E>(case, &vec![11; case.len]);
        let into = is_root.then(|| sum.buffer().view_mut());
        self.group.reduce(self.device, source.buffer().view(), into, case.root, case.by).unwrap();
        if is_root {
            self.check("reduce", &mut sum, |index| reduced(case.seed, &all, index, case.by));
        }

        let mut whole = self.memory::<E>(case, &vec![22; case.len * members]);
        let into = is_root.then(|| whole.buffer().view_mut());
        self.group.gather(self.device, source.buffer().view(), into, case.root).unwrap();
        if is_root {
            self.check("gather", &mut whole, |index| {
                number(case.seed, all[index / case.len], index % case.len) as f64
            });
        }

        let mut whole = self.memory::<E>(case, &elements(case.seed, self.rank(), case.len * members));
        let mut part = self.memory::<E>(case, &vec![44; case.len]);
        let from = is_root.then(|| whole.buffer().view());
        self.group.scatter(self.device, from, part.buffer().view_mut(), case.root).unwrap();
        self.check("scatter", &mut part, |index| {
            number(case.seed, all[case.root], me * case.len + index) as f64
        });
    }

    fn neighbours<E: Tested>(&self, case: &Case) {
        let (members, me, all) = (self.group.members(), self.group.member(), self.all());
        if members == 1 {
            return;
        }
        let (next, previous) = ((me + 1) % members, (me + members - 1) % members);
        let mut outgoing = self.memory::<E>(case, &elements(case.seed, self.rank(), case.len));
        let mut incoming = self.memory::<E>(case, &vec![66; case.len]);
        let (out, into) = (outgoing.buffer().view(), incoming.buffer().view_mut());
        self.group.exchange(self.device, (out, next), (into, previous)).unwrap();
        self.check("exchange", &mut incoming, |index| number(case.seed, all[previous], index) as f64);
        // A chain: the first sends, the others receive and pass on.
        if me > 0 {
            self.group.receive(self.device, incoming.buffer().view_mut(), previous).unwrap();
            self.check("receive", &mut incoming, |index| number(case.seed, all[0], index) as f64);
            self.device.write(outgoing.buffer().view_mut(), &read(self.device, incoming.buffer()));
        }
        if next > me {
            self.group.send(self.device, outgoing.buffer().view(), next).unwrap();
        }
    }

    fn anything(&self, random: &mut Random) {
        let case = Case::draw(random, self.group.members());
        match random.below(10) {
            0 => self.any_of::<f32>(&case, random),
            1 => self.any_of::<f64>(&case, random),
            2 => self.any_of::<Bf16>(&case, random),
            3 => self.any_of::<f16>(&case, random),
            4 => self.any_of::<i8>(&case, random),
            5 => self.any_of::<u8>(&case, random),
            6 => self.any_of::<i32>(&case, random),
            7 => self.any_of::<u32>(&case, random),
            8 => self.any_of::<i64>(&case, random),
            _ => self.any_of::<u64>(&case, random),
        }
    }

    fn any_of<E: Tested>(&self, case: &Case, random: &mut Random) {
        match random.below(8) {
            0 => self.all_gather::<E>(case),
            1 => self.reduce_scatter::<E>(case),
            2 => self.all_to_all::<E>(case),
            3 => self.all_to_all_v::<E>(case),
            4 => self.rooted::<E>(case),
            5 => self.neighbours::<E>(case),
            6 => self.group.barrier().unwrap(),
            _ => self.all_reduce::<E>(case),
        }
    }
}

fn read<E: Number>(device: &Device, buffer: &Buffer<E>) -> Vec<E> {
    let mut values = vec![E::default(); buffer.len()];
    device.read(buffer.view(), &mut values);
    values
}

fn rounds() -> u64 {
    std::env::var("COMM_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(60)
}

fn fuzz(world_size: u32, transport: Transport, seed: u64) {
    ranks(world_size, &options(transport), |world| {
        let device = if seed.is_multiple_of(2) { Device::cpu(1) } else { Device::apart(1) };
        let everyone = world.everyone().unwrap();
        let mut random = Random::new(seed);
        // Even and odd ranks, and all ranks in another order.
        let halves: Vec<u32> = (0..world_size).filter(|rank| rank % 2 == world.rank() % 2).collect();
        let half = world.group("half", &halves).unwrap();
        let backwards: Vec<u32> = (0..world_size).rev().collect();
        let backwards = world.group("backwards", &backwards).unwrap();
        for _ in 0..rounds() {
            let group = [&everyone, &half, &backwards][random.below(3)];
            // Members of the two halves draw the same, so their calls agree within each half.
            let mut drawn = Random::new(random.number());
            Member { world: &world, group, device: &device }.anything(&mut drawn);
        }
        everyone.barrier().unwrap();
    });
}

#[test]
fn every_call_gives_what_the_reference_gives_on_every_transport() {
    for (index, transport) in TRANSPORTS.into_iter().enumerate() {
        for world_size in [1, 2, 3, 4, 6] {
            fuzz(world_size, transport, 1000 * index as u64 + u64::from(world_size));
        }
    }
}

#[test]
fn worlds_of_many_ranks_sum_and_exchange() {
    for transport in TRANSPORTS {
        ranks(20, &options(transport), |world| {
            let (device, group) = (Device::cpu(1), world.everyone().unwrap());
            let own = world.rank();
            for len in [1, 777, 50_001] {
                let mut elements = device.zeros::<u32>(len);
                device.write(elements.view_mut(), &vec![own; len]);
                group.all_reduce(&device, elements.view_mut(), Reduction::Sum).unwrap();
                let mut found = vec![0; len];
                device.read(elements.view(), &mut found);
                assert!(found.iter().all(|number| *number == 190));
            }
            let (mut from, mut to) = (device.zeros::<u32>(20 * 999), device.zeros::<u32>(20 * 999));
            device.write(from.view_mut(), &vec![own; 20 * 999]);
            group.all_to_all(&device, from.view(), to.view_mut()).unwrap();
            let mut found = vec![0; 20 * 999];
            device.read(to.view(), &mut found);
            assert!(found.iter().enumerate().all(|(at, number)| *number == (at / 999) as u32));
        });
    }
}
