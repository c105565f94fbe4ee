//! The processor's backend: its memory, its threads, and the operators in its instructions.
//!
//! Shapes have been checked before an operator gets here. Results do not depend on the number of threads: work is cut by
//! shape alone, and each piece is summed in one order.

/// Passes a closure that is always inlined: only what is inlined into [`Level::vectorized`] gets the wide instructions.
macro_rules! inlined {
    ($($of:ident).+(|| $work:expr)) => { $($of).+(#[inline(always)] || $work) };
    ($($of:ident).+($a:expr, |$($p:pat_param),+| $work:expr)) => {
        $($of).+($a, #[inline(always)] |$($p),+| $work)
    };
    ($($of:ident).+($a:expr, $b:expr, |$($p:pat_param),+| $work:expr)) => {
        $($of).+($a, $b, #[inline(always)] |$($p),+| $work)
    };
    ($($of:ident).+($a:expr, $b:expr, $c:expr, |$($p:pat_param),+| $work:expr)) => {
        $($of).+($a, $b, $c, #[inline(always)] |$($p),+| $work)
    };
}

mod activation;
mod adamw;
mod attention;
mod cross_entropy;
mod elementary;
mod embedding;
mod expert_linear;
mod experts;
mod fp8;
#[cfg(test)]
mod interleavings;
mod latent;
mod layer_norm;
mod level;
mod limit;
mod linear;
mod memory;
mod meter;
mod multiply;
mod packed;
mod paged;
mod rms_norm;
mod rotary;
mod route;
mod sampling;
mod scratch;
mod share;
mod sinks;
mod stream;
mod sum;
mod sync;
mod thread_pool;
#[cfg(test)]
mod thread_pool_tests;

use std::cell::RefCell;

use bedplate_breakdown::{Breakdown, Measured, Part};

pub(crate) use level::{Level, has_tiles};
use memory::Addresses;
pub(crate) use memory::CpuMemory;
pub(crate) use memory::DeviceTraffic;
use meter::Meter;
use multiply::Scratch;
pub(crate) use packed::PackedBody;
use scratch::Grown;
use thread_pool::ThreadPool;

pub(crate) struct Cpu {
    level: Level,
    has_tiles: bool,
    addresses: Addresses,
    pool: ThreadPool,
    meter: Meter,
    scratch: RefCell<Scratch>,
    partial_sums: RefCell<Grown>,
}

impl Cpu {
    pub(crate) fn new(threads: usize) -> Self {
        Self::at(Level::detect(), has_tiles(), threads)
    }

    /// The processor as if it could do no more than this, which must not be more than it can.
    pub(crate) fn at(level: Level, has_tiles: bool, threads: usize) -> Self {
        Self {
            level,
            has_tiles,
            addresses: Addresses::HOST,
            pool: ThreadPool::new(threads),
            meter: Meter::default(),
            scratch: RefCell::default(),
            partial_sums: RefCell::default(),
        }
    }

    /// The processor with an address space of its own.
    pub(crate) fn apart(threads: usize) -> Self {
        Self { addresses: Addresses::apart(), ..Self::new(threads) }
    }

    pub(crate) fn threads(&self) -> usize {
        self.pool.size()
    }

    pub(crate) fn has_tiles(&self) -> bool {
        self.has_tiles
    }

    pub(crate) fn instructions(&self) -> String {
        format!("{}{}", self.level.name(), if self.has_tiles { " with AMX" } else { "" })
    }

    pub(crate) fn take_measured(&self) -> Breakdown<Measured> {
        self.meter.take()
    }

    /// Books what an operator takes under a part.
    pub(crate) fn time<R>(&self, part: Part, operator: impl FnOnce() -> R) -> R {
        self.meter.time(part, operator)
    }
}
