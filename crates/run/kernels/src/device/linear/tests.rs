//! Linear layers against their definition, at every level.

use proptest::prelude::*;

use crate::reference::{self, Grid, devices, random};
use crate::testing::{Lent, lend, lend_mut};
use crate::{Accumulate, Bf16, Device, Element};

/// A linear layer whose matrices lie with some room between their rows.
struct Layer<E> {
    rows: usize,
    inputs: usize,
    outputs: usize,
    gap: usize,
    x: Vec<E>,
    weight: Vec<E>,
    bias: Vec<E>,
    d_out: Vec<E>,
}

impl<E: Element> Layer<E> {
    fn new((rows, inputs, outputs): (usize, usize, usize), gap: usize) -> Self {
        Self {
            rows,
            inputs,
            outputs,
            gap,
            x: random(1, rows * (inputs + gap)),
            weight: random(2, outputs * inputs),
            bias: random(3, outputs),
            d_out: random(4, rows * (outputs + gap)),
        }
    }

    fn shape(&self) -> (usize, usize, usize) {
        (self.rows, self.inputs, self.outputs)
    }

    fn x<'a>(&self, device: &'a Device) -> Lent<'a, E> {
        lend(device, &self.x).by_rows(self.rows, self.gap)
    }

    fn d_out<'a>(&self, device: &'a Device) -> Lent<'a, E> {
        lend(device, &self.d_out).by_rows(self.rows, self.gap)
    }

    fn x_grid(&self) -> Grid<'_, E> {
        Grid { values: &self.x, stride: self.inputs + self.gap }
    }

    fn d_out_grid(&self) -> Grid<'_, E> {
        Grid { values: &self.d_out, stride: self.outputs + self.gap }
    }

    fn weight_grid(&self) -> Grid<'_, E> {
        Grid { values: &self.weight, stride: self.inputs }
    }

    /// `x W^T + b` with a residual.
    fn forward(&self, device: &Device) -> Vec<f32> {
        let mut out = vec![E::default(); self.rows * (self.outputs + self.gap)];
        device.linear(
            self.x(device).matrix(),
            lend(device, &self.weight).view(),
            Some(lend(device, &self.bias).view()),
            Some(self.d_out(device).matrix()),
            lend_mut(device, &mut out).by_rows(self.rows, self.gap).matrix_mut(),
        );
        narrow(&out, self.rows, self.outputs, self.gap)
    }

    fn backward_input(&self, device: &Device, mode: Accumulate) -> Vec<f32> {
        let mut d_x = self.x(device);
        let (d_out, weight) = (self.d_out(device), lend(device, &self.weight));
        device.linear_backward_input(d_out.matrix(), weight.view(), mode, d_x.matrix_mut());
        narrow(&d_x.elements(), self.rows, self.inputs, self.gap)
    }

    fn backward_weight(&self, device: &Device) -> (Vec<f32>, Vec<f32>) {
        let mut d_weight = lend(device, &vec![0.5; self.outputs * self.inputs]);
        let mut d_bias = lend(device, &vec![0.25; self.outputs]);
        let (d_out, x) = (self.d_out(device), self.x(device));
        let to = (d_weight.view_mut(), Some(d_bias.view_mut()));
        device.linear_backward_weight(d_out.matrix(), x.matrix(), to.0, to.1);
        (d_weight.elements(), d_bias.elements())
    }

    fn check(&self, device: &Device) {
        let name = format!("{} {:?} {}", device.instructions(), self.shape(), E::NAME);
        let mut forward = reference::linear(self.x_grid(), self.weight_grid(), self.shape());
        for (index, sum) in forward.iter_mut().enumerate() {
            let (row, output) = (index / self.outputs, index % self.outputs);
            *sum += f64::from(self.bias[output].widen()) + self.d_out_grid().at(row, output);
        }
        assert_close::<E>(&self.forward(device), &forward, self.inputs, &format!("forward {name}"));

        let d_x = reference::linear_backward_input(self.d_out_grid(), self.weight_grid(), self.shape());
        let more: Vec<f64> = d_x
            .iter()
            .enumerate()
            .map(|(index, d)| d + self.x_grid().at(index / self.inputs, index % self.inputs))
            .collect();
        let replaced = self.backward_input(device, Accumulate::Replace);
        assert_close::<E>(&replaced, &d_x, self.outputs, &format!("input gradient {name}"));
        let added = self.backward_input(device, Accumulate::Add);
        assert_close::<E>(&added, &more, self.outputs, &format!("added input gradient {name}"));

        let (d_weight, d_bias) = self.backward_weight(device);
        let mut expected = reference::linear_backward_weight(self.d_out_grid(), self.x_grid(), self.shape());
        expected.iter_mut().for_each(|sum| *sum += 0.5);
        assert_close::<f32>(&d_weight, &expected, self.rows, &format!("weight gradient {name}"));
        let sum = |output| (0..self.rows).map(|row| self.d_out_grid().at(row, output)).sum::<f64>();
        let expected: Vec<f64> = (0..self.outputs).map(|output| 0.25 + sum(output)).collect();
        assert_close::<f32>(&d_bias, &expected, self.rows, &format!("bias gradient {name}"));
    }
}

fn narrow<E: Element>(values: &[E], rows: usize, columns: usize, gap: usize) -> Vec<f32> {
    let row = |row: usize| values[row * (columns + gap)..][..columns].iter().map(|value| value.widen());
    (0..rows).flat_map(row).collect()
}

/// Sums of `terms` products of numbers below one, rounded to `E` at the end.
fn assert_close<E: Element>(got: &[f32], expected: &[f64], terms: usize, what: &str) {
    assert_eq!(got.len(), expected.len());
    let rounding = if E::NAME == "bf16" { 1.0 / 256.0 } else { 1e-6 };
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        let allowed = rounding * expected.abs() + 2e-6 * (terms as f64).sqrt() + 1e-6;
        assert!(error <= allowed, "{what}: {got} instead of {expected} at {index}");
    }
}

#[test]
fn every_level_agrees_with_the_definition_at_the_edges_of_tiles_and_blocks() {
    let shapes = [(1, 1, 1), (31, 33, 32), (130, 520, 65), (64, 600, 270), (257, 31, 40), (9, 1030, 3)];
    for device in devices() {
        for shape in shapes {
            Layer::<f32>::new(shape, 0).check(&device);
            Layer::<Bf16>::new(shape, 8).check(&device);
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let (one, three) = (Device::cpu(1), Device::cpu(3));
    let wide = Layer::<f32>::new((300, 700, 290), 3);
    assert_eq!(wide.forward(&one), wide.forward(&three));
    assert_eq!(wide.backward_weight(&one), wide.backward_weight(&three));
    let narrow = Layer::<Bf16>::new((300, 700, 290), 3);
    assert_eq!(
        narrow.backward_input(&one, Accumulate::Replace),
        narrow.backward_input(&three, Accumulate::Replace)
    );
    assert_eq!(narrow.backward_weight(&one), narrow.backward_weight(&three));
}

#[test]
fn formats_may_be_mixed() {
    let (rows, inputs, outputs) = (20, 50, 30);
    let (x, weight) = (random::<f32>(1, rows * inputs), random::<f32>(2, outputs * inputs));
    let narrow: Vec<Bf16> = weight.iter().map(|value| Bf16::from_f32(*value)).collect();
    let grid = Grid { values: &x, stride: inputs };
    let expected = reference::linear(grid, Grid { values: &narrow, stride: inputs }, (rows, inputs, outputs));
    for device in &devices() {
        let mut out = lend(device, &vec![0.0f32; rows * outputs]);
        let (x, narrow) = (lend(device, &x), lend(device, &narrow));
        let to = out.view_mut().matrix(rows, outputs);
        device.linear(x.view().matrix(rows, inputs), narrow.view(), None, None, to);
        let out = out.elements();
        // Tiles round the wide operand to bf16 first.
        let error = out.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(error < 0.05, "{}: {error}", device.instructions());
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let layer = Layer::<f32>::new((7, 11, 5), 0);
    let device = &Device::cpu(2);
    // The loss is the sum of the products of outputs and `d_out`; it is linear, so any step is exact but for rounding.
    let loss = |x: &[f32], weight: &[f32]| -> f64 {
        let mut out = lend(device, &[0.0f32; 7 * 5]);
        let (x, weight, to) = (lend(device, x), lend(device, weight), out.view_mut().matrix(7, 5));
        device.linear(x.view().matrix(7, 11), weight.view(), None, None, to);
        let out = out.elements();
        out.iter().zip(&layer.d_out).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let slope = |values: &[f32], index: usize, at: &dyn Fn(&[f32]) -> f64| {
        let (mut more, mut less) = (values.to_vec(), values.to_vec());
        more[index] += 0.5;
        less[index] -= 0.5;
        at(&more) - at(&less)
    };
    let d_x = layer.backward_input(device, Accumulate::Replace);
    for (index, d) in d_x.iter().enumerate() {
        let expected = slope(&layer.x, index, &|x| loss(x, &layer.weight));
        assert!((f64::from(*d) - expected).abs() < 1e-4);
    }
    let (d_weight, _) = layer.backward_weight(device);
    for (index, d) in d_weight.iter().enumerate() {
        let expected = slope(&layer.weight, index, &|weight| loss(&layer.x, weight));
        assert!((f64::from(*d) - 0.5 - expected).abs() < 1e-4);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_shape_and_stride_agrees_with_the_definition(
        shape in (1usize..150, 1usize..300, 1usize..150),
        gap in 0usize..5,
    ) {
        for device in devices() {
            Layer::<f32>::new(shape, gap).check(&device);
            Layer::<Bf16>::new(shape, gap).check(&device);
        }
    }
}
