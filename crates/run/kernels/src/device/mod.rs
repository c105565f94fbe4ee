//! What every device offers: memory, and the operators with their documentation, their checks of shapes and the part
//! that their time is booked under.
//!
//! A [`Device`] stands in front of one *room*, the implementation for one kind of hardware, which is the only one to look
//! at the numbers. A room has a method for each operator, takes the same arguments and relies on the checks made here.

/// Has an operator done by the device's room, its time booked under a part. Another kind of device is another arm.
macro_rules! in_room {
    ($device:ident, $part:ident, $operator:ident $arguments:tt) => {
        match &$device.room {
            crate::device::Room::Cpu(cpu) => {
                cpu.time(bedplate_breakdown::Part::$part, || cpu.$operator $arguments)
            }
        }
    };
}

mod activation;
mod adamw;
mod attention;
mod cross_entropy;
mod element;
mod embedding;
mod expert_linear;
mod experts;
mod heads;
mod linear;
mod memory;
mod norm;
mod packed;
mod paged;
mod rotary;
mod route;
mod stream;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use bedplate_breakdown::{Breakdown, Measured};

use crate::cpu::{Cpu, Traffic};
pub use activation::Gelu;
pub use adamw::AdamW;
pub use attention::{AttentionShape, Qkv, Seen};
pub use cross_entropy::{HeadGradients, IGNORED};
pub(crate) use element::Numbers;
pub use element::{Bf16, Element, Value};
pub use heads::Heads;
pub use linear::Put;
pub use memory::{Buffer, MappedFile, Matrix, MatrixMut, Rows, View, ViewMut};
pub(crate) use memory::{Owner, Place};
pub(crate) use packed::Body;
pub use packed::{Packed, WeightFormat};
pub use paged::{PagedRows, PagedShape, Sight};
pub use rotary::{Rotary, Turn};
pub use route::Balance;

/// Something that operators run on. One thread calls them; they share the work out.
pub struct Device {
    room: Room,
}

enum Room {
    Cpu(Cpu),
}

impl Device {
    /// The processor with `threads` threads, at least one.
    pub fn cpu(threads: usize) -> Self {
        Self { room: Room::Cpu(Cpu::new(threads)) }
    }

    /// A device for tests: the processor with memory that only it can find, so that a caller who takes a shortcut past the
    /// device is found out. It refuses views of other devices, counts what goes in and out and poisons what is released.
    #[doc(hidden)]
    pub fn apart(threads: usize) -> Self {
        Self { room: Room::Cpu(Cpu::apart(threads)) }
    }

    #[cfg(test)]
    pub(crate) fn of(cpu: Cpu) -> Self {
        Self { room: Room::Cpu(cpu) }
    }

    fn processor(&self) -> &Cpu {
        let Room::Cpu(cpu) = &self.room;
        cpu
    }

    /// What a device for tests has counted.
    #[doc(hidden)]
    pub fn traffic(&self) -> Traffic {
        self.processor().traffic()
    }

    pub fn threads(&self) -> usize {
        self.processor().threads()
    }

    /// Whether bf16 products use the processor's tile unit (AMX).
    pub fn has_tiles(&self) -> bool {
        self.processor().has_tiles()
    }

    /// What the operators are compiled for, as people say it.
    pub fn instructions(&self) -> String {
        self.processor().instructions()
    }

    /// FLOP/s of multiply-adds on f32 that stay in registers, all threads at work. Takes some tenths of a second.
    pub fn arithmetic_limit(&self) -> f64 {
        self.processor().arithmetic_limit()
    }

    /// The same for products of bf16: more where there is a tile unit, as many where they are made in f32.
    pub fn arithmetic_limit_bf16(&self, of_f32: f64) -> f64 {
        self.processor().arithmetic_limit_bf16(of_f32)
    }

    /// The time of operators by part since this was last asked.
    pub fn take_measured(&self) -> Breakdown<Measured> {
        match &self.room {
            Room::Cpu(cpu) => cpu.take_measured(),
        }
    }

    /// Private memory; all numbers are zero.
    pub fn zeros<E: Value>(&self, len: usize) -> Buffer<E> {
        match &self.room {
            Room::Cpu(cpu) => cpu.zeros(len),
        }
    }

    /// Private memory that is taken from the system where it is written for the first time; all numbers are zero. For what may be
    /// large and is rarely full.
    pub fn reserve<E: Value>(&self, len: usize) -> io::Result<Buffer<E>> {
        match &self.room {
            Room::Cpu(cpu) => cpu.reserve(len),
        }
    }

    /// Memory that other processes can map by its [descriptor](Buffer::descriptor); all numbers are zero.
    pub fn shareable<E: Value>(&self, len: usize) -> io::Result<Buffer<E>> {
        match &self.room {
            Room::Cpu(cpu) => cpu.shareable(len),
        }
    }

    /// Maps what a peer process made with [`Device::shareable`] and sent the descriptor of.
    ///
    /// # Safety
    ///
    /// No process may write to numbers while another reads or writes them: processes agree on whose turn it is. No process
    /// may shorten the memory.
    #[expect(unsafe_code, reason = "the borrow checker does not see other processes")]
    pub unsafe fn map_shared<E: Value>(&self, descriptor: OwnedFd, len: usize) -> io::Result<Buffer<E>> {
        match &self.room {
            // SAFETY: as the caller upholds.
            Room::Cpu(cpu) => unsafe { cpu.map_shared(descriptor, len) },
        }
    }

    /// Maps a file read-only; what of it is never looked at is never loaded.
    ///
    /// # Safety
    ///
    /// The file must not be changed or shortened while it is mapped.
    #[expect(unsafe_code, reason = "the borrow checker does not see other processes")]
    pub unsafe fn map_file(&self, file: &File) -> io::Result<MappedFile> {
        match &self.room {
            // SAFETY: as the caller upholds.
            Room::Cpu(cpu) => unsafe { cpu.map_file(file) },
        }
    }

    /// The numbers themselves, for a transport that moves them; absent where only the device reaches its memory.
    pub fn lend<'a, E: Value>(&self, view: View<'a, E>) -> Option<&'a [E]> {
        match &self.room {
            Room::Cpu(cpu) => Some(cpu.slice(view)),
        }
    }

    /// As [`lend`](Self::lend), to be written.
    pub fn lend_mut<'a, E: Value>(&self, view: ViewMut<'a, E>) -> Option<&'a mut [E]> {
        match &self.room {
            Room::Cpu(cpu) => Some(cpu.slice_mut(view)),
        }
    }

    /// Copies numbers to the device. Panics when the lengths differ.
    pub fn write<E: Value>(&self, to: ViewMut<'_, E>, from: &[E]) {
        match &self.room {
            Room::Cpu(cpu) => cpu.write(to, from),
        }
    }

    /// Copies numbers from the device. Panics when the lengths differ.
    pub fn read<E: Value>(&self, from: View<'_, E>, to: &mut [E]) {
        match &self.room {
            Room::Cpu(cpu) => cpu.read(from, to),
        }
    }
}

#[cfg(test)]
mod tests;
