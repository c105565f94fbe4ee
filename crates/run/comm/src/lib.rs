//! Collectives between ranks, without any toolkit; NCCL is found when a GPU's elements are exchanged.
//!
//! Ranks meet ([`Rendezvous`], [`World::join`]) and form [`Group`]s, whose members exchange elements of a device's buffers:
//! through shared memory on a host, over TCP between hosts, through both in layers; between GPUs by NCCL. Memory that is [shared](World::shared)
//! is read and written in place by the ranks of a host; other memory goes through small slots.
//!
//! A group's calls are carried out in order. A call that is *started* gives its buffers to the group and a [`Pending`] back, so
//! that a rank computes meanwhile. Sums are made in an order that follows from the members alone: the same call gives the same
//! bits.
//!
//! A rank that ends, falls silent or makes another call than its peers is a [`Fault`] on every rank, with the rank that is to
//! blame; no call waits for ever. After a fault the ranks that are left [rebuild](World::rebuild) the world at a new epoch.
//!
//! This crate does not know what the elements mean, who starts ranks, or how a layout is chosen.
//!
//! ```
//! use bedplate_comm::{WorldOptions, Reduction, Rendezvous, World};
//! use bedplate_kernels::Device;
//!
//! let device = Device::cpu(1);
//! let alone = Rendezvous::on_this_machine(0, 1, 0, b"a secret of all ranks");
//! let world = World::join(&alone, &WorldOptions::default())?;
//! let group = world.everyone()?;
//! let mut elements = world.shared::<f32>(&device, 2)?;
//! device.write(elements.view_mut(), &[1.0, 2.0]);
//! group.all_reduce(&device, elements.view_mut(), Reduction::Sum)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arithmetic;
mod channels;
mod choice;
mod connect;
mod core;
mod engine;
mod error;
mod flight;
mod gpu;
mod group;
mod handshake;
mod layered;
mod links;
mod listener;
mod local_rendezvous;
mod meeting;
mod monitor;
mod number;
mod operation;
mod pending;
mod recorder;
mod rendezvous;
mod sealed;
mod shared;
mod span;
mod turns;
mod waiting;
mod watch;
mod wire;
mod world;

pub use choice::{Algorithm, AlgorithmTable, TableRule};
pub use error::{CommError, Fault, JoinError, PAGES};
pub use flight::{LastCall, Standstill, compare};
pub use group::{Elements, Group};
pub use handshake::{Secret, random_text};
pub use local_rendezvous::LocalRendezvous;
pub use number::{ElementFormat, Number, Reduction};
pub use operation::{Call, Operation};
pub use pending::Pending;
pub use recorder::{FlightRecord, Recorded};
pub use rendezvous::{Encryption, Rendezvous, Transport, WorldOptions};
pub use world::{Gap, MeetingPoint, Numbering, Registered, World};
