//! Images in prompts: the time to encode them, and the memory of the encoder.
//!
//! The encoder computes in bf16 while the prompt of its image is computed. Tensor ranks split it; with pipeline stages the first has all of it.
//! Decoding and resizing on the host are left out.

use bedplate_transformer::Image;

use super::{Deployment, ServingConstants};

/// Images that come with prompts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Images {
    pub image: Image,
    /// Images for each prompt token that is computed.
    pub per_prompt_token: f64,
}

/// Bytes of the encoder on one GPU.
pub(super) fn encoder_bytes_per_gpu(deployment: &Deployment) -> f64 {
    let parameters = deployment.model.vision.as_ref().map_or(0, |vision| vision.parameters);
    2.0 * parameters as f64 / f64::from(deployment.parallel.tensor)
}

/// Seconds of encoding for each prompt token that is computed, as if one data rank computed all; rates are in FLOP per second.
pub(super) fn seconds_per_token(
    deployment: &Deployment,
    constants: &ServingConstants,
    products: f64,
    attention: f64,
) -> f64 {
    let (Some(vision), Some(images)) = (&deployment.model.vision, &deployment.images) else { return 0.0 };
    let flops = vision.product_flops(&images.image) / products;
    let pairs = vision.attention_flops(&images.image) / attention;
    let latency = vision.layers as f64 * constants.layer_latency;
    images.per_prompt_token * ((flops + pairs) / f64::from(deployment.parallel.tensor) + latency)
}
