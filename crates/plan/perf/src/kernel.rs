//! Kernels: matrix products, fused attention and streaming work, each by a roofline with losses.
//!
//! A product `m x k` by `k x n` takes `t = (tc^4 + tm^4)^(1/4)`, where `tc = 2mnk / (peak e) (1 + k0/k) q`
//! is arithmetic and `tm = bytes / bandwidth` is traffic; the fourth power rounds the roofline's corner.
//! `q` prices tiles: the last wave of 256 x 128 tiles fills the multiprocessors only in part, tiles that stick out of the
//! matrix work for nothing, and shapes that are not multiples of 64 miss the fast kernels. Form and `k0`, `wave_weight` come
//! from the GEMM tables of aiconfigurator-core 0.12.0 (4,000 shapes per chip, 4 to 6 % median error in bf16).
//!
//! Fused attention takes its products and, beside them, one exponential per score in each pass. Units for exponentials grew
//! slower than those for products, so narrow heads, with less arithmetic per score, gain less from newer chips.

use bedplate_layout::ComputePrecision;

use crate::{Constants, Generation, Hardware};

/// The rates of one chip under one software stack, fixed once per problem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernels {
    /// Effective rates of large products, in FLOP/s.
    rate_bf16: f64,
    rate_fp8: f64,
    rate_fp4: f64,
    /// Inner dimension at half rate.
    half_reduction: f64,
    multiprocessors: f64,
    wave_weight: f64,
    misalignment: f64,
    pub(crate) bandwidth: f64,
    attention_rate: f64,
    attention_ramp: f64,
    /// Exponentials per second.
    exponentials: f64,
    head_misalignment: f64,
    grouped: f64,
    /// Bytes of a weight's gradient that its product reads and writes.
    gradient_write: f64,
}

/// A product of `m x k` by `k x n`, `groups` times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    pub(crate) m: f64,
    pub(crate) n: f64,
    pub(crate) k: f64,
    pub(crate) groups: f64,
}

impl Product {
    pub(crate) fn new(m: f64, n: f64, k: f64) -> Self {
        Self { m, n, k, groups: 1.0 }
    }

    /// The gradient of the inputs.
    fn of_inputs(self) -> Self {
        Self { n: self.k, k: self.n, ..self }
    }

    /// The gradient of the weights.
    fn of_weights(self) -> Self {
        Self { m: self.n, n: self.k, k: self.m, ..self }
    }
}

/// How attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttentionKernel {
    /// Scores written to memory, as before FlashAttention.
    Unfused,
    /// FlashAttention-2: built for Ampere, runs on Hopper.
    Portable,
    /// Built for the chip.
    Native,
}

/// Seconds of a forward and a backward pass.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Passes {
    pub(crate) forward: f64,
    pub(crate) backward: f64,
}

impl std::ops::Add for Passes {
    type Output = Passes;
    fn add(self, other: Passes) -> Passes {
        Passes { forward: self.forward + other.forward, backward: self.backward + other.backward }
    }
}

impl std::ops::Mul<f64> for Passes {
    type Output = Passes;
    fn mul(self, factor: f64) -> Passes {
        Passes { forward: self.forward * factor, backward: self.backward * factor }
    }
}

impl Passes {
    pub(crate) fn both(self) -> f64 {
        self.forward + self.backward
    }
}

impl Kernels {
    pub(crate) fn new(
        hardware: &Hardware,
        constants: &Constants,
        stack_rate: f64,
        attention: AttentionKernel,
        gradient_write: f64,
    ) -> Self {
        let c = constants;
        let (bf16, fp8, fp4, reduction, attention_share) = match hardware.generation {
            Generation::Ampere => {
                (c.gemm_ampere, c.gemm_ampere, c.gemm_ampere, c.reduction_ampere, c.attention_ampere)
            }
            Generation::Hopper => {
                (c.gemm_hopper, c.fp8_hopper, c.fp8_hopper, c.reduction_hopper, c.attention_hopper)
            }
            Generation::Blackwell => (
                c.gemm_blackwell,
                c.fp8_blackwell,
                c.fp4_blackwell,
                c.reduction_blackwell,
                c.attention_blackwell,
            ),
            Generation::BlackwellUltra => (
                c.gemm_blackwell * c.gemm_ultra,
                c.fp8_ultra,
                c.fp4_ultra,
                c.reduction_blackwell,
                c.attention_blackwell,
            ),
            // Hosts are priced by `host` instead.
            Generation::Host | Generation::Other => {
                (c.gemm_other, c.gemm_other, c.gemm_other, c.reduction_hopper, c.attention_hopper)
            }
        };
        let portable = match (attention, hardware.generation) {
            (AttentionKernel::Portable, Generation::Hopper) => c.attention_portable,
            _ => 1.0,
        };
        Self {
            rate_bf16: hardware.peak_bf16 * bf16 * stack_rate,
            rate_fp8: hardware.peak_fp8 * fp8 * stack_rate,
            rate_fp4: hardware.peak_fp4 * fp4 * stack_rate,
            half_reduction: reduction,
            multiprocessors: hardware.multiprocessors,
            wave_weight: c.wave_weight,
            misalignment: c.misalignment,
            bandwidth: hardware.memory_bandwidth * c.memory_reach,
            attention_rate: hardware.peak_bf16 * attention_share * portable,
            attention_ramp: c.attention_ramp,
            exponentials: hardware.peak_bf16 / flops_per_exponential(hardware.generation),
            head_misalignment: c.head_misalignment,
            grouped: c.grouped,
            gradient_write,
        }
    }

    /// Forward and backward of a weight matrix; frozen weights need no weight gradient.
    pub(crate) fn matrix(&self, product: Product, precision: ComputePrecision, is_frozen: bool) -> Passes {
        let of_weights = || self.product_writing(product.of_weights(), precision, self.gradient_write);
        let weights = if is_frozen { 0.0 } else { of_weights() };
        Passes {
            forward: self.product(product, precision),
            backward: self.product(product.of_inputs(), precision) + weights,
        }
    }

    /// Seconds of one product.
    pub(crate) fn product(&self, product: Product, precision: ComputePrecision) -> f64 {
        self.product_writing(product, precision, 2.0)
    }

    /// The same with this many bytes per number that comes out, read ones included.
    fn product_writing(&self, product: Product, precision: ComputePrecision, written: f64) -> f64 {
        let Product { m, n, k, groups } = product;
        if m <= 0.0 || n <= 0.0 || k <= 0.0 {
            return 0.0;
        }
        let (rate, bytes) = match precision {
            ComputePrecision::Fp32 => (self.rate_bf16 * 0.5, 4.0),
            ComputePrecision::Bf16 | ComputePrecision::Fp16 => (self.rate_bf16, 2.0),
            ComputePrecision::Fp8 => (self.rate_fp8, 1.0),
            ComputePrecision::Fp4 => (self.rate_fp4, 0.5625),
        };
        let rate = if groups > 1.0 { rate * self.grouped } else { rate };
        let arithmetic =
            groups * 2.0 * m * n * k / rate * (1.0 + self.half_reduction / k) * self.quantisation(product);
        let traffic = groups * (bytes * (m * k + n * k) + written * m * n) / self.bandwidth;
        rounded_max(arithmetic, traffic)
    }

    /// Time relative to ideal tiles: idle multiprocessors in the last wave, padding, and misaligned widths.
    fn quantisation(&self, product: Product) -> f64 {
        let Product { m, n, k, groups } = product;
        let waves = groups * (m / 256.0).ceil() * (n / 128.0).ceil() / self.multiprocessors;
        let idle = (waves.ceil() / waves).min(8.0);
        let missed = if is_misaligned(n) || is_misaligned(k) { 1.0 + self.misalignment } else { 1.0 };
        (1.0 + self.wave_weight * (idle - 1.0)) * missed * padding(m) * padding(n)
    }

    /// Fused causal attention: `tokens` queries of `heads` heads against `keys` keys on average.
    ///
    /// Forward FLOPs are `2 tokens heads (dqk + dv) keys`; backward needs 2.5 times as many, and the exponentials again.
    /// `at_once` of the keys are seen by one launch: fewer than all with ring attention.
    pub(crate) fn attention(&self, tokens: f64, heads: f64, widths: f64, keys: f64, at_once: f64) -> Passes {
        if keys <= 0.0 {
            return Passes::default();
        }
        let scores = tokens * heads * keys * (1.0 + self.attention_ramp / (2.0 * at_once));
        let products = 2.0 * widths * scores / self.attention_rate;
        let softmax = scores / self.exponentials;
        Passes { forward: products + softmax, backward: 2.5 * products + softmax }
    }

    /// Attention that writes its scores: twice the causal FLOPs, as nothing is masked away, and ten bytes
    /// per score forward, twelve backward.
    pub(crate) fn attention_unfused(&self, tokens: f64, heads: f64, head_dim: f64, sequence: f64) -> Passes {
        let flops = 4.0 * tokens * heads * head_dim * sequence;
        let missed = if head_dim % 8.0 == 0.0 { 1.0 } else { self.head_misalignment };
        let arithmetic = flops / (0.6 * self.rate_bf16) * missed;
        let scores = tokens * heads * sequence / self.bandwidth;
        Passes { forward: arithmetic + 10.0 * scores, backward: 2.0 * arithmetic + 12.0 * scores }
    }

    /// Seconds to stream bytes through memory.
    pub(crate) fn stream(&self, bytes: f64) -> f64 {
        bytes / self.bandwidth
    }
}

/// `(a^4 + b^4)^(1/4)`: a smooth maximum.
pub(crate) fn rounded_max(a: f64, b: f64) -> f64 {
    let (a2, b2) = (a * a, b * b);
    (a2 * a2 + b2 * b2).sqrt().sqrt()
}

/// FLOPs in bf16 that a multiprocessor does in the time of one exponential: it does 16 exponentials per clock beside 2,048
/// FLOPs on Ampere, 4,096 on Hopper and 8,192 on Blackwell; Blackwell Ultra has twice the units for exponentials.
fn flops_per_exponential(generation: Generation) -> f64 {
    match generation {
        Generation::Ampere => 128.0,
        Generation::Blackwell => 512.0,
        Generation::Hopper | Generation::BlackwellUltra | Generation::Host | Generation::Other => 256.0,
    }
}

/// Work of whole tiles over that of the matrix along one side. Short sides get tiles of 64, long ones of 256.
fn padding(side: f64) -> f64 {
    let tile = if side < 512.0 { 64.0 } else { 256.0 };
    (side / tile).ceil() * tile / side
}

fn is_misaligned(width: f64) -> bool {
    width > 256.0 && width % 64.0 != 0.0
}
