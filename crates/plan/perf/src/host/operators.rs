//! The operators of `run/kernels`, timed by measured rates.
//!
//! A product of `m x k` by `k x n` takes `2mnk / rate (1 + h/m + h/n + h/k)`: the terms besides 1 stand for packing both
//! sides and writing the result, and `h` is the size at which one of them costs as much as the arithmetic. Streams move
//! their bytes at the rate of the cache or of memory.

use std::ops::{Add, AddAssign, Mul};

use bedplate_catalog::{FormatRates, MeasuredRates};

/// Seconds by the part that the runtime books them under.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Work {
    pub(super) compute: f64,
    pub(super) memory: f64,
}

impl Work {
    pub(super) fn compute(seconds: f64) -> Self {
        Self { compute: seconds, memory: 0.0 }
    }

    pub(super) fn memory(seconds: f64) -> Self {
        Self { compute: 0.0, memory: seconds }
    }

    pub(super) fn total(self) -> f64 {
        self.compute + self.memory
    }
}

impl Add for Work {
    type Output = Work;
    fn add(self, other: Work) -> Work {
        Work { compute: self.compute + other.compute, memory: self.memory + other.memory }
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        *self = *self + other;
    }
}

impl Mul<f64> for Work {
    type Output = Work;
    fn mul(self, factor: f64) -> Work {
        Work { compute: self.compute * factor, memory: self.memory * factor }
    }
}

/// `rows` rows times a weight matrix of `outputs x inputs`, `groups` times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Linear {
    pub(super) rows: f64,
    pub(super) outputs: f64,
    pub(super) inputs: f64,
    pub(super) groups: f64,
}

impl Linear {
    pub(super) fn new(rows: f64, outputs: f64, inputs: f64) -> Self {
        Self { rows, outputs, inputs, groups: 1.0 }
    }
}

/// Bytes that an operator reads and writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct OperatorBytes {
    /// Just written, or being written.
    pub(super) fresh: f64,
    /// Kept since the forward pass.
    pub(super) kept: f64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Operators {
    rates: FormatRates,
    /// Bytes of an element.
    pub(super) element: f64,
    cache: f64,
    losses: f64,
    optimizer: f64,
    operator: f64,
}

impl Operators {
    pub(super) fn new(host: &MeasuredRates, rates: &FormatRates, element: f64) -> Self {
        Self {
            rates: *rates,
            element,
            cache: host.cache.get(),
            losses: host.losses.get(),
            optimizer: host.optimizer.get(),
            operator: host.operator.get(),
        }
    }

    pub(super) fn product(&self, linear: Linear) -> Work {
        self.multiply(linear, self.rates.products.get())
    }

    pub(super) fn input_gradient(&self, linear: Linear) -> Work {
        self.multiply(linear, self.rates.input_gradients.get())
    }

    pub(super) fn weight_gradient(&self, linear: Linear) -> Work {
        self.multiply(linear, self.rates.weight_gradients.get())
    }

    fn multiply(&self, linear: Linear, rate: f64) -> Work {
        let Linear { rows, outputs, inputs, groups } = linear;
        let flops = 2.0 * groups * rows * outputs * inputs;
        let thin = 1.0 + self.rates.half_size * (1.0 / rows + 1.0 / outputs + 1.0 / inputs);
        Work::compute(self.operator + flops / rate * thin)
    }

    /// Attention of queries with `numbers` elements, over all rows and heads, to `keys` keys on average.
    pub(super) fn attention(&self, numbers: f64, keys: f64) -> Work {
        let flops = 4.0 * numbers * keys;
        Work::compute(self.operator + flops / self.rates.attention.get() * self.few_keys(keys))
    }

    /// Recomputes the scores and does four products with them: 2.5 times the forward pass.
    pub(super) fn attention_backward(&self, numbers: f64, keys: f64) -> Work {
        let flops = 10.0 * numbers * keys;
        Work::compute(self.operator + flops / self.rates.attention_backward.get() * self.few_keys(keys))
    }

    fn few_keys(&self, keys: f64) -> f64 {
        1.0 + self.rates.half_keys / keys
    }

    /// A pass over memory. Kept data is part of a working set of `held` bytes, fresh data of the operator's own.
    pub(super) fn stream(&self, stream: OperatorBytes, held: f64) -> Work {
        let OperatorBytes { fresh, kept } = stream;
        let seconds = fresh * self.per_byte(fresh + kept) + kept * self.per_byte(held);
        Work::memory(self.operator + seconds)
    }

    /// Seconds per byte for a working set: cache speed up to the cache's size, memory speed from twice its size.
    fn per_byte(&self, set: f64) -> f64 {
        let (near, far) = (1.0 / self.rates.stream_in_cache.get(), 1.0 / self.rates.stream.get());
        let missed = if self.cache > 0.0 { (set / self.cache - 1.0).clamp(0.0, 1.0) } else { 1.0 };
        near + (far - near) * missed
    }

    /// Losses and gradients of the logits.
    pub(super) fn losses(&self, logits: f64) -> Work {
        Work::memory(self.operator + logits * super::WIDE / self.losses)
    }

    /// Seconds of AdamW over `bytes` of state.
    pub(super) fn optimizer(&self, bytes: f64) -> f64 {
        self.operator + bytes / self.optimizer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_units::{Bandwidth, Bytes, FlopRate, Seconds};

    fn operators() -> Operators {
        let rates = FormatRates {
            products: FlopRate::new(300e9),
            input_gradients: FlopRate::new(200e9),
            weight_gradients: FlopRate::new(100e9),
            half_size: 16.0,
            attention: FlopRate::new(150e9),
            attention_backward: FlopRate::new(75e9),
            half_keys: 32.0,
            stream: Bandwidth::gb_per_s(20.0),
            stream_in_cache: Bandwidth::gb_per_s(80.0),
        };
        let host = MeasuredRates {
            threads: 2,
            fp32: Some(rates),
            bf16: None,
            copy: Bandwidth::gb_per_s(30.0),
            cache: Bytes::mb(10.0),
            losses: Bandwidth::gb_per_s(4.0),
            optimizer: Bandwidth::gb_per_s(25.0),
            operator: Seconds::us(5.0),
        };
        Operators::new(&host, &rates, 4.0)
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-12, "{found} against {expected}");
    }

    #[test]
    fn a_product_of_the_half_size_in_one_dimension_takes_twice_its_arithmetic() {
        let (large, thin) = (1e12, Linear::new(16.0, 1e12, 1e12));
        let whole = Linear::new(large, large, large);
        let operator = 5e-6;
        near(operators().product(whole).compute - operator, 2.0 * 1e36 / 300e9 * (1.0 + 48.0 / 1e12));
        near(operators().product(thin).compute - operator, 2.0 * 16.0 * 1e24 / 300e9 * (2.0 + 32.0 / 1e12));
        let linear = Linear::new(64.0, 64.0, 64.0);
        near(operators().input_gradient(linear).compute, operator + 2.0 * 262_144.0 / 200e9 * 1.75);
        near(operators().weight_gradient(linear).compute, operator + 2.0 * 262_144.0 / 100e9 * 1.75);
    }

    #[test]
    fn attention_counts_seen_keys_and_two_and_a_half_times_backward() {
        near(operators().attention(1e6, 32.0).compute, 5e-6 + 4.0 * 32e6 / 150e9 * 2.0);
        near(operators().attention_backward(1e6, 64.0).compute, 5e-6 + 10.0 * 64e6 / 75e9 * 1.5);
    }

    #[test]
    fn streams_run_at_the_pace_of_the_cache_until_their_set_outgrows_it() {
        let seconds =
            |fresh, kept, held| operators().stream(OperatorBytes { fresh, kept }, held).memory - 5e-6;
        near(seconds(8e6, 0.0, 0.0), 8e6 / 80e9);
        near(seconds(20e6, 0.0, 0.0), 20e6 / 20e9);
        near(seconds(15e6, 0.0, 0.0), 15e6 * (0.5 / 80e9 + 0.5 / 20e9));
        near(seconds(4e6, 4e6, 1e9), 4e6 / 80e9 + 4e6 / 20e9);
        near(seconds(4e6, 4e6, 5e6), 8e6 / 80e9);
    }
}
