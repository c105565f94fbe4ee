//! Transformer blocks from operators: forward, backward, recomputation; weights by their Hugging Face names.
//!
//! An [`Architecture`] comes from a `config.json`; a [`Network`] is its table of [`Block`]s and the functions that compute
//! them. It holds no numbers: [`Weights`] are one flat buffer per block, and a [`Workspace`] holds everything a step needs
//! beside them, allocated once. The block is the unit of everything: its forward and backward pass are given its own weights, its own
//! gradient and a [`Room`], so a caller can gather a block's weights before it runs and free them after. Consecutive blocks with a workspace
//! of their own are a pipeline stage; a [`ShardSpec`] says which part of every block a rank has, and [`Peers`] are how it reaches the others.
//!
//! This crate does not know optimizers, requests, transports or where tokens come from.

mod attention;
mod dense;
mod error;
mod experts;
mod family;
mod head;
mod initialise;
mod latent;
mod layer;
mod mixture;
mod names;
mod network;
mod norm;
mod numerics;
mod quantised;
mod region;
mod ring;
mod rotary;
mod safetensors;
mod sample;
mod serving;
mod shard;
mod table;
mod weight_files;
mod weights;
mod workspace;

pub use bedplate_transformer::workspace::{LogitsAtOnce, Recompute};
pub use error::{NetworkError, PAGES};
pub use head::HeadWeights;
pub use network::{Network, Products};
pub use numerics::{Activation, Architecture, AttentionScale, Numerics};
pub use region::Region;
pub use rotary::{RotaryPlan, RotaryScheme};
pub use safetensors::{
    CONFIG_FILE, INDEX_FILE, LoadedWeights, MOST_JSON_BYTES, SafetensorsFile, StoredTensor, TensorFormat,
    TensorLayout, WEIGHTS_FILE, config_with_dtype, load, save, write_tensors,
};
pub use sample::Sampler;
pub use serving::{Adapter, KvPool, PackedWeights, RowAdapters, ServingRoom, ServingShape, StepRows};
pub use shard::{Among, Peers, RankShare, ShardSpec, cut_rows};
pub use table::{Block, Section, Storage, Tensor, TensorKind, tables};
pub use weight_files::WeightFiles;
pub use weights::{HeldBlock, Weights};
pub use workspace::{BatchTokens, Room, Workspace, WorkspaceShape, logits_on};
