//! What ranks do together, on every transport: shared memory, TCP, and hosts with several ranks.

mod calls;
mod fixture;
mod reference;
