//! What `bedplate bench machine` measured on a host, in place of a vendor's peaks.

use bedplate_units::{Bandwidth, Bytes, FlopRate, Seconds};

/// Rates of a processor under this program's own operators, on all threads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredRates {
    pub threads: u32,
    pub fp32: Option<FormatRates>,
    pub bf16: Option<FormatRates>,
    /// Bytes read and written by a large copy.
    pub copy: Bandwidth,
    /// The largest working set that streams at cache speed.
    pub cache: Bytes,
    /// Bytes of fp32 logits turned into losses and gradients.
    pub losses: Bandwidth,
    /// Bytes of weights, gradients and moments read and written by AdamW.
    pub optimizer: Bandwidth,
    /// Overhead of the smallest operator: distributing it and waiting for all threads.
    pub operator: Seconds,
}

/// Rates of operators on numbers of one format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FormatRates {
    /// A linear layer, large in every dimension.
    pub products: FlopRate,
    /// The gradient of its input.
    pub input_gradients: FlopRate,
    /// The gradient of its weights, added in fp32.
    pub weight_gradients: FlopRate,
    /// A product runs at half its rate when one dimension has this size and the other two are large.
    pub half_size: f64,
    /// Causal attention over many keys; only unmasked keys count.
    pub attention: FlopRate,
    /// Its backward pass, which computes 2.5 times as much.
    pub attention_backward: FlopRate,
    /// Attention runs at half its rate at this average number of keys.
    pub half_keys: f64,
    /// Bytes read and written by norms, activations and rotations, from memory.
    pub stream: Bandwidth,
    /// The same where the cache holds them.
    pub stream_in_cache: Bandwidth,
}

impl MeasuredRates {
    /// What one of several ranks reaches when all of them work: this share of every rate and of the cache.
    pub fn for_share(self, share: f64) -> Self {
        let format = |rates: FormatRates| FormatRates {
            products: rates.products * share,
            input_gradients: rates.input_gradients * share,
            weight_gradients: rates.weight_gradients * share,
            attention: rates.attention * share,
            attention_backward: rates.attention_backward * share,
            stream: rates.stream * share,
            stream_in_cache: rates.stream_in_cache * share,
            ..rates
        };
        Self {
            fp32: self.fp32.map(format),
            bf16: self.bf16.map(format),
            copy: self.copy * share,
            cache: self.cache * share,
            losses: self.losses * share,
            optimizer: self.optimizer * share,
            ..self
        }
    }

    /// Every format with its rates, widest format first.
    pub fn by_format(&self) -> [(&'static str, Option<FormatRates>); 2] {
        [("fp32", self.fp32), ("bf16", self.bf16)]
    }
}

impl FormatRates {
    /// Every rate of arithmetic with its key.
    pub fn flop_rates(&self) -> [(&'static str, FlopRate); 5] {
        [
            ("products", self.products),
            ("input_gradients", self.input_gradients),
            ("weight_gradients", self.weight_gradients),
            ("attention", self.attention),
            ("attention_backward", self.attention_backward),
        ]
    }

    /// Every rate of streaming with its key.
    pub fn bandwidths(&self) -> [(&'static str, Bandwidth); 2] {
        [("stream", self.stream), ("stream_in_cache", self.stream_in_cache)]
    }
}
