//! How fast the operators pass over memory, beside a copy of as many bytes by the same threads.
//!
//! `cargo run --release -p bedplate-kernels --example streams [THREADS] [NAME] [ROWSxCOLUMNS]` measures operators whose
//! name contains NAME, in several shapes or in the given one.

use std::env;
use std::time::Instant;

use bedplate_kernels::{
    AdamW, Bf16, Buffer, Device, Element, Gelu, Heads, IGNORED, Matrix, MatrixMut, Put, Rotary, Turn,
};

/// Every measurement is the best of the runs in this time.
const SECONDS: f64 = 0.5;

struct Bench {
    device: Device,
    name: String,
}

fn main() {
    let mut arguments = env::args().skip(1);
    let threads = arguments.next().map_or(2, |threads| threads.parse().expect("a number of threads"));
    let bench = Bench { device: Device::cpu(threads), name: arguments.next().unwrap_or_default() };
    bench.say_header();
    let given = arguments.next().map(|shape| shape_of(&shape));
    let shapes = given.map_or_else(|| vec![(2048, 512), (2048, 1408), (8192, 4096)], |shape| vec![shape]);
    for (rows, columns) in shapes {
        bench.operators::<f32>(rows, columns);
        bench.operators::<Bf16>(rows, columns);
    }
    if given.is_none() {
        bench.losses(512, 32_000);
        bench.losses(256, 151_936);
        bench.optimizer(1_000_000);
        bench.optimizer(100_000_000);
    }
}

fn shape_of(text: &str) -> (usize, usize) {
    let number = |text: &str| text.parse().expect("a number");
    let (rows, columns) = text.split_once('x').expect("ROWSxCOLUMNS");
    (number(rows), number(columns))
}

#[expect(clippy::print_stdout, reason = "prints measurements")]
impl Bench {
    fn say_header(&self) {
        println!("{} threads, {}", self.device.threads(), self.device.instructions());
        println!(
            "{:<24} {:<5} {:>13} {:>9} {:>8} {:>8} {:>6}",
            "operator", "", "shape", "ms", "GB/s", "copy", "share"
        );
    }

    /// `bytes` is what the operator must read and write at least.
    fn measure(&self, name: &str, format: &str, shape: (usize, usize), bytes: usize, mut run: impl FnMut()) {
        if !name.contains(&self.name) {
            return;
        }
        let (seconds, copy) = self.best_beside_copies(&mut run, bytes / 8);
        let (rate, copy) = (bytes as f64 / seconds / 1e9, bytes as f64 / copy / 1e9);
        let shape = format!("{}x{}", shape.0, shape.1);
        println!(
            "{name:<24} {format:<5} {shape:>13} {:>9.3} {rate:>8.1} {copy:>8.1} {:>5.0}%",
            seconds * 1e3,
            100.0 * rate / copy
        );
    }

    /// Seconds of the fastest run, and of the fastest copy of so many numbers by either of two ways. They take turns, so that all
    /// meet the same neighbours on a machine that is shared.
    fn best_beside_copies(&self, run: &mut impl FnMut(), len: usize) -> (f64, f64) {
        let (from, mut to) = (vec![1.0f32; len], vec![2.0f32; len]);
        let (mut source, mut target) = (self.device.zeros(len), self.device.zeros(len));
        self.device.write(source.view_mut(), &from);
        self.device.write(target.view_mut(), &to);
        let (mut best, mut best_copy, mut runs) = (f64::INFINITY, f64::INFINITY, 0);
        let began = Instant::now();
        while runs < 4 || began.elapsed().as_secs_f64() < SECONDS {
            best = best.min(seconds(&mut *run));
            best_copy = best_copy.min(seconds(|| self.device.copy(source.view(), target.view_mut())));
            best_copy = best_copy.min(seconds(|| self.copy_in_large_pieces(&from, &mut to)));
            runs += 1;
        }
        (best, best_copy)
    }

    /// Each thread copies one piece at one go, which lets the system's library pass by the caches.
    fn copy_in_large_pieces(&self, from: &[f32], to: &mut [f32]) {
        let piece = from.len().div_ceil(self.device.threads()).max(1);
        std::thread::scope(|scope| {
            for (from, to) in from.chunks(piece).zip(to.chunks_mut(piece)) {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
    }

    fn operators<E: Element>(&self, rows: usize, columns: usize) {
        let (device, shape) = (&self.device, (rows, columns));
        let numbers = rows * columns;
        let size = numbers * size_of::<E>();
        let at =
            |name: &str, bytes: usize, run: &mut dyn FnMut()| self.measure(name, E::NAME, shape, bytes, run);

        let x = random::<E>(device, 2 * numbers, 1);
        let d = random::<E>(device, numbers, 2);
        let weight = random::<E>(device, columns, 3);
        let mut out = device.zeros::<E>(2 * numbers);
        let mut kept = device.zeros::<f32>(2 * rows);
        let mut sums = device.zeros::<f32>(columns);
        let mut more_sums = device.zeros::<f32>(columns);
        let x_all = || x.range(0..numbers).matrix(rows, columns);
        let pairs = || x.view().matrix(rows, 2 * columns);
        let d_all = || d.view().matrix(rows, columns);

        at("add", 3 * size, &mut || device.add(x.range(0..numbers), out.range_mut(0..numbers)));
        at("first_non_finite", size, &mut || assert!(device.first_non_finite(d.view()).is_none()));
        at("sum_of_squares", size, &mut || assert!(device.sum_of_squares(d.view()) > 0.0));
        at("rms_norm", 2 * size, &mut || {
            let kept = kept.range_mut(0..rows);
            device.rms_norm(x_all(), weight.view(), 1e-5, half(&mut out, rows, columns), kept);
        });
        for (name, into, passes) in
            [("rms_norm_backward", Put::Replace, 3), ("rms_norm_backward add", Put::Add, 4)]
        {
            at(name, passes * size, &mut || {
                let (kept, out) = (kept.range(0..rows), half(&mut out, rows, columns));
                device.rms_norm_backward(
                    d_all(),
                    x_all(),
                    weight.view(),
                    kept,
                    into,
                    out,
                    Some(sums.view_mut()),
                );
            });
        }
        at("layer_norm", 2 * size, &mut || {
            let (weight, out) = (weight.view(), half(&mut out, rows, columns));
            device.layer_norm(x_all(), weight, Some(weight), 1e-5, out, kept.view_mut());
        });
        at("layer_norm_backward", 3 * size, &mut || {
            let (sums, more) = (sums.view_mut(), Some(more_sums.view_mut()));
            let out = half(&mut out, rows, columns);
            device.layer_norm_backward(
                d_all(),
                x_all(),
                weight.view(),
                kept.view(),
                Put::Replace,
                out,
                Some(sums),
                more,
            );
        });
        at("swiglu", 3 * size, &mut || device.swiglu(pairs(), half(&mut out, rows, columns)));
        at("swiglu_backward", 5 * size, &mut || {
            device.swiglu_backward(pairs(), d_all(), out.view_mut().matrix(rows, 2 * columns));
        });
        for (name, kind) in [("gelu tanh", Gelu::Tanh), ("gelu exact", Gelu::Exact)] {
            at(name, 2 * size, &mut || device.gelu(kind, x_all(), half(&mut out, rows, columns)));
        }
        at("gelu_backward tanh", 3 * size, &mut || {
            device.gelu_backward(Gelu::Tanh, x_all(), d_all(), half(&mut out, rows, columns));
        });
        at("gelu_backward exact", 3 * size, &mut || {
            device.gelu_backward(Gelu::Exact, x_all(), d_all(), half(&mut out, rows, columns));
        });
        self.heads::<E>(rows, columns, x_all(), &mut out);
        self.lookups::<E>(rows, columns, x_all(), &mut out);
        self.experts::<E>(rows, columns, x_all(), d_all(), &mut out);
    }

    fn heads<E: Element>(&self, rows: usize, columns: usize, x: Matrix<'_, E>, out: &mut Buffer<E>) {
        let (device, dim) = (&self.device, 64);
        let heads = Heads { first: 0, count: columns / dim, dim };
        let size = rows * columns * size_of::<E>();
        let frequencies: Vec<f64> =
            (0..dim / 2).map(|pair| 1e4f64.powf(-2.0 * pair as f64 / dim as f64)).collect();
        let rotary = Rotary::new(device, dim, &frequencies, rows, 1.0);
        let positions: Vec<u32> = (0..rows as u32).collect();
        let mut on_device = device.zeros::<u32>(rows);
        device.write(on_device.view_mut(), &positions);
        let weight = random::<E>(device, dim, 4);
        let mut inverses = device.zeros::<f32>(rows * heads.count);
        let mut sums = device.zeros::<f32>(dim);
        self.measure("rotate", E::NAME, (rows, columns), 2 * size, || {
            device.rotate(&heads, on_device.view(), &rotary, Turn::Forward, half(out, rows, columns));
        });
        self.measure("head_norm", E::NAME, (rows, columns), 2 * size, || {
            device.head_norm(&heads, x, weight.view(), 1e-5, half(out, rows, columns), inverses.view_mut());
        });
        self.measure("head_norm_backward", E::NAME, (rows, columns), 3 * size, || {
            let d = half(out, rows, columns);
            device.head_norm_backward(&heads, d, x, weight.view(), inverses.view(), Some(sums.view_mut()));
        });
    }

    fn lookups<E: Element>(&self, rows: usize, columns: usize, x: Matrix<'_, E>, out: &mut Buffer<E>) {
        let (device, entries) = (&self.device, 32_000);
        let numbers = rows * columns;
        let table = device.zeros::<E>(entries * columns);
        let mut d_table = device.zeros::<f32>(entries * columns);
        let tokens = random_numbers(device, rows, entries);
        self.measure("embedding", E::NAME, (rows, columns), 2 * numbers * size_of::<E>(), || {
            let table = table.view().matrix(entries, columns);
            device.embedding(tokens.view(), table, Put::Replace, half(out, rows, columns));
        });
        self.measure("embedding_backward", E::NAME, (rows, columns), numbers * (8 + size_of::<E>()), || {
            device.embedding_backward(tokens.view(), x, d_table.view_mut().matrix(entries, columns));
        });
    }

    fn experts<E: Element>(
        &self,
        rows: usize,
        columns: usize,
        x: Matrix<'_, E>,
        d: Matrix<'_, E>,
        out: &mut Buffer<E>,
    ) {
        let (device, per_token, count) = (&self.device, 2, 64);
        let (shape, choices) = ((rows, columns), rows * per_token);
        let size = rows * columns * size_of::<E>();
        let logits = random::<f32>(device, rows * count, 5);
        let (mut probabilities, mut d_logits) =
            (device.zeros::<f32>(rows * count), device.zeros::<f32>(rows * count));
        let (mut chosen, mut order, mut slots) =
            (device.zeros::<u32>(choices), device.zeros::<u32>(choices), device.zeros::<u32>(choices));
        let (mut weights, mut d_weights) = (device.zeros::<f32>(choices), device.zeros::<f32>(choices));
        let mut offsets = device.zeros::<u32>(count + 1);
        let y = random::<E>(device, choices * columns, 6);
        self.measure("route", "f32", (rows, count), 8 * rows * count, || {
            let probabilities = probabilities.view_mut().matrix(rows, count);
            let logits = logits.view().matrix(rows, count);
            device.route(logits, per_token, true, probabilities, chosen.view_mut(), weights.view_mut());
        });
        self.measure("route_backward", "f32", (rows, count), 8 * rows * count, || {
            let probabilities = probabilities.view().matrix(rows, count);
            let d_logits = d_logits.view_mut().matrix(rows, count);
            let weights = weights.view();
            device.route_backward(
                probabilities,
                chosen.view(),
                weights,
                per_token,
                true,
                weights,
                None,
                d_logits,
            );
        });
        let chosen = random_numbers(device, choices, count);
        self.measure("dispatch", "u32", (choices, count), 12 * choices, || {
            device.dispatch(chosen.view(), count, order.view_mut(), slots.view_mut(), offsets.view_mut());
        });
        device.dispatch(chosen.view(), count, order.view_mut(), slots.view_mut(), offsets.view_mut());
        self.measure("gather_rows", E::NAME, shape, 3 * size, || {
            device.gather_rows(x, order.view(), per_token, out.view_mut().matrix(choices, columns));
        });
        self.measure("combine", E::NAME, shape, 3 * size, || {
            let y = y.view().matrix(choices, columns);
            device.combine(
                y,
                slots.view(),
                weights.view(),
                per_token,
                Put::Replace,
                half(out, rows, columns),
            );
        });
        self.measure("combine_backward", E::NAME, shape, 5 * size, || {
            let (y, d_y) = (y.view().matrix(choices, columns), out.view_mut().matrix(choices, columns));
            device.combine_backward(d, y, slots.view(), weights.view(), per_token, d_y, d_weights.view_mut());
        });
        self.measure("gate_rows", E::NAME, shape, 2 * size, || {
            device.gate_rows(x, weights.range(0..rows), Put::Replace, half(out, rows, columns));
        });
        self.measure("gate_rows_backward", E::NAME, shape, 3 * size, || {
            let d_logits = d_weights.range_mut(0..rows);
            device.gate_rows_backward(d, x, weights.range(0..rows), half(out, rows, columns), d_logits);
        });
    }

    fn losses(&self, rows: usize, vocabulary: usize) {
        let mut logits = random::<f32>(&self.device, rows * vocabulary, 7);
        let targets = random_numbers(&self.device, rows, vocabulary);
        assert!((vocabulary as u32) < IGNORED, "targets are tokens");
        let mut losses = self.device.zeros::<f32>(rows);
        self.measure("cross_entropy", "f32", (rows, vocabulary), 8 * rows * vocabulary, || {
            let logits = logits.view_mut().matrix(rows, vocabulary);
            self.device.cross_entropy(logits, targets.view(), Some(1.0), losses.view_mut());
        });
    }

    fn optimizer(&self, len: usize) {
        let device = &self.device;
        let gradient = random::<f32>(device, len, 8);
        let mut weights = random::<f32>(device, len, 9);
        let (mut first, mut second) = (device.zeros::<f32>(len), device.zeros::<f32>(len));
        let mut copy = device.zeros::<Bf16>(len);
        let step = AdamW {
            learning_rate: 1e-4,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            step: 10,
            gradient_scale: 0.5,
        };
        self.measure("adamw", "f32", (1, len), 28 * len, || {
            let (first, second) = (first.view_mut(), second.view_mut());
            device.adamw(&step, weights.view_mut(), gradient.view(), first, second, None);
        });
        self.measure("adamw with copy", "bf16", (1, len), 30 * len, || {
            let (first, second) = (first.view_mut(), second.view_mut());
            device.adamw(&step, weights.view_mut(), gradient.view(), first, second, Some(copy.view_mut()));
        });
    }
}

/// The first half of a buffer of two matrices.
fn half<E: Element>(buffer: &mut Buffer<E>, rows: usize, columns: usize) -> MatrixMut<'_, E> {
    buffer.range_mut(0..rows * columns).matrix(rows, columns)
}

fn seconds(run: impl FnOnce()) -> f64 {
    let began = Instant::now();
    run();
    began.elapsed().as_secs_f64()
}

fn random<E: Element>(device: &Device, len: usize, seed: u32) -> Buffer<E> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        E::narrow(state as f32 / 2f32.powi(31) - 1.0)
    };
    let numbers: Vec<E> = (0..len).map(|_| next()).collect();
    let mut buffer = device.zeros(len);
    device.write(buffer.view_mut(), &numbers);
    buffer
}

fn random_numbers(device: &Device, len: usize, limit: usize) -> Buffer<u32> {
    let numbers: Vec<u32> =
        (0..len).map(|index| (index as u32).wrapping_mul(0x9e37_79b9) % limit as u32).collect();
    let mut buffer = device.zeros(len);
    device.write(buffer.view_mut(), &numbers);
    buffer
}
