//! Checkpoints as ranks write and read them: any layout, any instant of death, any damage, a full disk, real object stores.

mod bucket;
mod damage;
mod full_disk;
mod killed;
mod layouts;
mod place;
