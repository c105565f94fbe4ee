//! The processor's implementation of the operators.

mod activation;
mod adamw;
mod attention;
mod cross_entropy;
mod elementary;
mod embedding;
mod expert_linear;
mod experts;
mod layer_norm;
pub(crate) mod level;
mod limit;
mod linear;
pub(crate) mod multiply;
mod rms_norm;
mod rotary;
mod route;
mod rows;
pub(crate) mod scratch;
mod stream;
mod sum;
pub(crate) mod team;

pub use activation::Gelu;
pub use adamw::AdamW;
pub use attention::AttentionShape;
pub use cross_entropy::{HeadGradients, IGNORED};
pub use linear::Into;
pub use rotary::{Rotary, Turn};
pub use route::Balance;
