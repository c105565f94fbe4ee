//! The shape of a transformer language model, and what follows from it: parameters, FLOPs, bytes.
//!
//! A [`Transformer`] comes from a Hugging Face `config.json` ([`from_config`]), from a built-in name
//! ([`builtin`]), or from a [`Shape`] that [`Transformer::new`] has checked. It describes the
//! architecture and not the family: runs of identical layers, each with its attention and its MLP. One
//! list of weight matrices ([`Layer::matrices`]) gives both the exact parameter counts and the FLOPs.
//! [`workspace`] describes the buffers in which this program computes a model.
//! Parameters and FLOPs are those of the language model; [`Shape::left_out`] names what else a file holds, and
//! [`Configuration::vision`] describes vision encoders of some families.
//!
//! This crate does no I/O and does not know hardware or parallel layouts.
//!
//! ```
//! use bedplate_transformer::{FlopsConvention, Precision, builtin};
//!
//! let model = builtin("meta-llama/Llama-3.1-8B")?;
//! assert_eq!(model.hidden, 4096);
//! assert_eq!(model.parameters().total, 8_030_261_248);
//! assert_eq!(model.weights_bytes(Precision::Bf16).to_string(), "16.06 GB");
//! assert_eq!(model.kv_bytes_per_token(Precision::Bf16).get(), 131_072.0);
//!
//! let training = model.flops_per_token(8192, FlopsConvention::default()).training();
//! assert_eq!(training.to_string(), "51.47 GFLOP");
//! # Ok::<(), bedplate_transformer::ModelError>(())
//! ```

mod attention;
mod builtin;
mod bytes;
mod check;
mod config;
mod error;
mod family;
mod flops;
mod matrix;
mod mlp;
mod parameters;
mod precision;
mod shape;
mod transformer;
mod vision;
pub mod workspace;

pub use attention::{Attention, GroupedQuery, Indexer, Latent, QkNorm, Reach, Recurrent, StateRule};
pub use builtin::{builtin, builtin_names, published_as};
pub use bytes::{Optimizer, StateBytes, TrainingState};
pub use check::Flaw;
pub use config::{Configuration, Fate, Keys, Remark, RemarkReason, fate_of_key, from_config, to_config_json};
pub use error::{ModelError, PAGES};
pub use family::Family;
pub use flops::{AttentionFlops, FlopsByPart, FlopsConvention, FlopsPerToken, Prediction, RecomputeFlops};
pub use matrix::{Matrix, MatrixRole};
pub use mlp::{Dense, Mixture, Mlp};
pub use parameters::{ParameterPart, Parameters};
pub use precision::Precision;
pub use shape::{Layer, LayerRun, LeftOut, Norm, NormPlacement, Positions, Shape};
pub use transformer::Transformer;
pub use vision::{Image, Sizing, Vision, Windows};
