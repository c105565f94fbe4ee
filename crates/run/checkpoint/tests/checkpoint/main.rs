//! Checkpoints as ranks write and read them: any layout, any instant of death, any damage, a full disk, real object stores.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod bucket;
mod convert;
mod damage;
mod full_disk;
mod killed;
mod layouts;
mod place;
mod relay;
mod servers;
mod troubled;
