//! Gangs of pods on an API server that is played: by hand, and in storms.

mod by_hand;
mod healing;
mod server;
mod storm;
