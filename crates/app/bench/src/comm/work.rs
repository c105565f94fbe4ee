//! One operation on buffers of one format: called, and checked against what it must give.

use bedplate_comm::{CommError, Elements, Group, Number, Operation, Reduction, World};
use bedplate_kernels::{Bf16, Device, View, ViewMut};
use half::f16;

use super::question::Case;

/// A number that small whole ones become without rounding.
pub(super) trait Countable: Number {
    fn of(small: u8) -> Self;
}

macro_rules! countable {
    ($($value:ty => $convert:expr),*) => {
        $(impl Countable for $value { fn of(small: u8) -> Self { $convert(small) } })*
    };
}

countable!(
    f32 => f32::from,
    f64 => f64::from,
    f16 => |small| f16::from_f32(f32::from(small)),
    Bf16 => |small| <Bf16 as bedplate_kernels::Element>::narrow(f32::from(small)),
    i8 => |small: u8| small as i8,
    u8 => |small| small,
    i32 => i32::from,
    u32 => u32::from,
    i64 => i64::from,
    u64 => u64::from
);

/// The buffers of a rank for one case.
pub(super) struct Work<'a, E: Countable> {
    case: Case,
    group: &'a Group,
    device: &'a Device,
    /// What this rank gives; also the result of what works in place.
    given: Box<dyn Elements<E>>,
    got: Box<dyn Elements<E>>,
}

/// Elements written or compared at a time.
const CHUNK: usize = 1 << 16;

impl<'a, E: Countable> Work<'a, E> {
    pub(super) fn new(
        case: Case,
        world: &World,
        group: &'a Group,
        device: &'a Device,
        is_private: bool,
    ) -> Result<Self, CommError> {
        let (given, got) = lengths(&case, group.member());
        let make = |len| -> Result<Box<dyn Elements<E>>, CommError> {
            Ok(match is_private {
                true => Box::new(device.zeros::<E>(len)),
                false => Box::new(world.shared::<E>(device, len)?),
            })
        };
        let mut work = Self { case, group, device, given: make(given)?, got: make(got)? };
        work.clear();
        Ok(work)
    }

    /// Zeros, written so that every page exists: sums of any number of calls stay what they are.
    fn clear(&mut self) {
        for numbers in [&mut self.given, &mut self.got] {
            write(self.device, numbers.view_mut(), |_| E::of(0));
        }
    }

    pub(super) fn call(&mut self) -> Result<(), CommError> {
        let (group, device, is_root) = (self.group, self.device, self.group.member() == 0);
        let (given, got) = (&mut self.given, &mut self.got);
        match self.case.operation {
            Operation::AllReduce => group.all_reduce(device, given.view_mut(), Reduction::Sum),
            Operation::AllGather => group.all_gather(device, given.view(), got.view_mut()),
            Operation::ReduceScatter => {
                group.reduce_scatter(device, given.view(), got.view_mut(), Reduction::Sum)
            }
            Operation::AllToAll => group.all_to_all(device, given.view(), got.view_mut()),
            Operation::Broadcast => group.broadcast(device, given.view_mut(), 0),
            Operation::Reduce => {
                let into = is_root.then(|| got.view_mut());
                group.reduce(device, given.view(), into, 0, Reduction::Sum)
            }
            Operation::Gather => group.gather(device, given.view(), is_root.then(|| got.view_mut()), 0),
            Operation::Scatter => group.scatter(device, is_root.then(|| given.view()), got.view_mut(), 0),
            _ => {
                let (ranks, me) = (group.members(), group.member());
                let (next, previous) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
                group.exchange(device, (given.view(), next), (got.view_mut(), previous))
            }
        }
    }

    /// Calls once with numbers that are known, and counts those of the result that are wrong.
    pub(super) fn count_wrong(&mut self) -> Result<u64, CommError> {
        let (me, ranks) = (self.group.member() as u64, self.case.ranks);
        write(self.device, self.given.view_mut(), |at| E::of(pattern(me, at, ranks)));
        self.call()?;
        let is_in_place = matches!(self.case.operation, Operation::AllReduce | Operation::Broadcast);
        let result = if is_in_place { self.given.view() } else { self.got.view() };
        let has_result = !matches!(self.case.operation, Operation::Reduce | Operation::Gather) || me == 0;
        let case = &self.case;
        let wrong =
            if has_result { differing(self.device, result, |at| E::of(expected(case, me, at))) } else { 0 };
        Ok(wrong)
    }
}

/// Elements that member `me` gives and gets.
fn lengths(case: &Case, me: usize) -> (usize, usize) {
    let (part, ranks) = (case.count() as usize, case.ranks as usize);
    let at_root = |len| if me == 0 { len } else { 0 };
    match case.operation {
        Operation::AllReduce | Operation::Broadcast => (part, 0),
        Operation::AllGather => (part, part * ranks),
        Operation::ReduceScatter => (part * ranks, part),
        Operation::AllToAll => (part * ranks, part * ranks),
        Operation::Reduce => (part, at_root(part)),
        Operation::Gather => (part, at_root(part * ranks)),
        Operation::Scatter => (at_root(part * ranks), part),
        _ => (part, part),
    }
}

/// What a rank gives at a place: small enough for a sum over the ranks to be exact in every format.
fn pattern(rank: u64, at: u64, ranks: u32) -> u8 {
    let modulus = if ranks <= 12 { 11 } else { 2 };
    ((at * 7 + rank * 5) % modulus) as u8
}

/// What member `me` must have at a place of its result.
fn expected(case: &Case, me: u64, at: u64) -> u8 {
    let (part, ranks) = (case.count(), u64::from(case.ranks));
    let of = |rank: u64, at: u64| pattern(rank, at, case.ranks);
    let sum = |at: u64| (0..ranks).fold(0u8, |sum, rank| sum.wrapping_add(of(rank, at)));
    match case.operation {
        Operation::AllReduce | Operation::Reduce => sum(at),
        Operation::ReduceScatter => sum(me * part + at),
        Operation::AllGather | Operation::Gather => of(at / part, at % part),
        Operation::AllToAll => of(at / part, me * part + at % part),
        Operation::Broadcast => of(0, at),
        Operation::Scatter => of(0, me * part + at),
        _ => of((me + ranks - 1) % ranks, at),
    }
}

fn write<E: Countable>(device: &Device, mut to: ViewMut<'_, E>, number: impl Fn(u64) -> E) {
    for first in (0..to.len()).step_by(CHUNK) {
        let last = (first + CHUNK).min(to.len());
        let numbers: Vec<E> = (first..last).map(|at| number(at as u64)).collect();
        device.write(to.reborrow().range(first..last), &numbers);
    }
}

fn differing<E: Countable>(device: &Device, from: View<'_, E>, number: impl Fn(u64) -> E) -> u64 {
    let mut found = vec![E::default(); CHUNK.min(from.len())];
    let mut differ = 0;
    for first in (0..from.len()).step_by(CHUNK) {
        let last = (first + CHUNK).min(from.len());
        let found = &mut found[..last - first];
        device.read(from.range(first..last), found);
        let wrong = found.iter().zip(first..).filter(|(found, at)| **found != number(*at as u64));
        differ += wrong.count() as u64;
    }
    differ
}
