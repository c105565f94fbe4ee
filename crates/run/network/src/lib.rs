//! Transformer blocks from operators: forward, backward, recomputation; weights by their Hugging Face names.
//!
//! An [`Architecture`] comes from a `config.json`; a [`Network`] is its table of [`Block`]s and the functions that compute
//! them. It holds no numbers: [`Weights`] are one flat buffer per block, and a [`Workspace`] holds everything a step needs
//! beside them, allocated once. The block is the unit of everything: whoever trains may gather a block's weights before it
//! runs and free them after, because nothing else is touched meanwhile.
//!
//! This crate does not know optimizers, requests or where tokens come from.

mod error;
mod head;
mod initialise;
mod layer;
mod mixture;
mod names;
mod network;
mod norm;
mod numerics;
mod safetensors;
mod sample;
mod table;
mod weights;
mod workspace;

pub use error::{NetworkError, PAGES};
pub use network::{Network, NonFinite};
pub use numerics::{Activation, Architecture, Numerics, RotaryScheme};
pub use safetensors::{
    CONFIG_FILE, Format, Loaded, SafetensorsFile, StoredTensor, WEIGHTS_FILE, load, save, write_tensors,
};
pub use sample::Sampler;
pub use table::{Block, Kind, Tensor};
pub use weights::Weights;
pub use workspace::{Recompute, Tokens, Workspace, WorkspaceShape};
