//! How fast a device multiplies, copies and attends, at sizes that fill it.

use std::time::Instant;

use crate::{AttentionShape, Bf16, Buffer, Device, Qkv, VisibleKeys, WeightFormat};

/// What a rate is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateOf {
    /// A product of two square matrices of bf16, in FLOP/s.
    Product,
    /// The same with weights of fp8; rows are rounded before.
    ProductFp8,
    /// Bytes read and written per second.
    Copy,
    /// Causal attention of bf16 over heads of 128, four sharing a key, in FLOP/s of the half that is seen.
    Attention,
    /// The same forward and backward.
    AttentionBothWays,
}

impl RateOf {
    pub const ALL: [Self; 5] =
        [Self::Product, Self::ProductFp8, Self::Copy, Self::Attention, Self::AttentionBothWays];

    pub fn name(self) -> &'static str {
        match self {
            RateOf::Product => "product of bf16",
            RateOf::ProductFp8 => "product of fp8",
            RateOf::Copy => "copy",
            RateOf::Attention => "attention forward",
            RateOf::AttentionBothWays => "attention forward and backward",
        }
    }
}

/// FLOP/s or bytes per second.
pub fn rate(device: &Device, of: RateOf) -> f64 {
    match of {
        RateOf::Product => product(device),
        RateOf::ProductFp8 => product_fp8(device),
        RateOf::Copy => copy(device),
        RateOf::Attention => Attention::new(device).rate(device, false),
        RateOf::AttentionBothWays => Attention::new(device).rate(device, true),
    }
}

/// Seconds of one time: the fastest of some rounds, of which a GPU's have several times in a row.
fn seconds(device: &Device, mut work: impl FnMut()) -> f64 {
    let in_a_row = if device.is_cpu() { 1 } else { 10 };
    work();
    device.synchronize();
    let round = |_| {
        let began = Instant::now();
        (0..in_a_row).for_each(|_| work());
        device.synchronize();
        began.elapsed().as_secs_f64() / f64::from(in_a_row)
    };
    (0..5).map(round).fold(f64::INFINITY, f64::min)
}

fn normal(device: &Device, len: usize, key: u64) -> Buffer<Bf16> {
    let mut buffer = device.zeros(len);
    device.fill_normal(buffer.view_mut(), key, 0, 1.0);
    buffer
}

fn product(device: &Device) -> f64 {
    let side = if device.is_cpu() { 1024 } else { 8192 };
    let [x, weight] = [1, 2].map(|key| normal(device, side * side, key));
    let mut out = device.zeros::<Bf16>(side * side);
    let taken = seconds(device, || {
        let out = out.view_mut().matrix(side, side);
        device.linear(x.view().matrix(side, side), weight.view(), None, None, out);
    });
    2.0 * (side as f64).powi(3) / taken
}

fn product_fp8(device: &Device) -> f64 {
    let side = if device.is_cpu() { 1024 } else { 8192 };
    let [x, weight] = [1, 2].map(|key| normal(device, side * side, key));
    let weight = device.pack(weight.view(), side, WeightFormat::Fp8);
    let mut out = device.zeros::<Bf16>(side * side);
    let taken = seconds(device, || {
        let out = out.view_mut().matrix(side, side);
        device.linear_packed(x.view().matrix(side, side), &weight, None, None, out);
    });
    2.0 * (side as f64).powi(3) / taken
}

fn copy(device: &Device) -> f64 {
    let len = if device.is_cpu() { 64 << 20 } else { 1 << 30 };
    let (mut from, mut to) = (device.zeros::<f32>(len), device.zeros::<f32>(len));
    // Pages of the processor that were never written to are all the same one.
    device.fill(from.view_mut(), 1.0);
    device.fill(to.view_mut(), 2.0);
    8.0 * len as f64 / seconds(device, || device.copy(from.view(), to.view_mut()))
}

struct Attention {
    shape: AttentionShape,
    rows: usize,
    qkv: Buffer<Bf16>,
    d_qkv: Buffer<Bf16>,
    out: Buffer<Bf16>,
    d_out: Buffer<Bf16>,
    log_sums: Buffer<f32>,
    first_keys: Buffer<u32>,
}

impl Attention {
    fn new(device: &Device) -> Self {
        let (sequences, tokens, heads) = if device.is_cpu() { (1, 512, 4) } else { (8, 2048, 32) };
        let (kv_heads, head_dim) = (heads / 4, 128);
        let shape = AttentionShape {
            queries: tokens,
            keys: tokens,
            heads,
            kv_heads,
            head_dim,
            scale: 0.088_388,
            cap: 0.0,
        };
        let rows = sequences * tokens;
        Self {
            shape,
            rows,
            qkv: normal(device, rows * shape.columns(), 3),
            d_qkv: device.zeros(rows * shape.columns()),
            out: device.zeros(rows * shape.attended()),
            d_out: normal(device, rows * shape.attended(), 4),
            log_sums: device.zeros(rows * heads),
            first_keys: device.zeros(rows),
        }
    }

    fn rate(&mut self, device: &Device, is_both: bool) -> f64 {
        let Self { shape, rows, .. } = *self;
        // Two products forward and five backward, of which half is seen.
        let flops = 2.0 * (rows * shape.keys * shape.attended()) as f64 * if is_both { 3.5 } else { 1.0 };
        let Self { qkv, d_qkv, out, d_out, log_sums, first_keys, .. } = self;
        let qkv = Qkv::columns(&shape, qkv.view().matrix(rows, shape.columns()));
        let seen = VisibleKeys { first_keys: first_keys.view(), positions: None };
        let taken = seconds(device, || {
            let to = out.view_mut().matrix(rows, shape.attended());
            device.attention(&shape, qkv, seen, to, log_sums.view_mut());
            if is_both {
                let out = out.view().matrix(rows, shape.attended());
                let d_out = d_out.view().matrix(rows, shape.attended());
                let d_qkv = Qkv::columns_mut(&shape, d_qkv.view_mut().matrix(rows, shape.columns()));
                device.attention_backward(&shape, qkv, seen, out, log_sums.view(), d_out, d_qkv);
            }
        });
        flops / taken
    }
}
