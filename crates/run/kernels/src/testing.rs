//! What tests of operators share: random matrices with gaps between their rows, comparison, finite differences.

use crate::cpu::{Cpu, Level, has_tiles};
use crate::{Buffer, BufferValue, Device, Element, Matrix, MatrixMut, View, ViewMut};

/// Numbers that look random and are the same in every run.
pub(crate) struct TestRandom(bedplate_random::Random);

impl TestRandom {
    pub(crate) fn new(seed: u64) -> Self {
        Self(bedplate_random::Random::new(seed.wrapping_mul(bedplate_random::STEP) | 1))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.number()
    }

    /// Between -1 and 1, and the same in all formats.
    pub(crate) fn number(&mut self) -> f32 {
        self.below(257) as f32 / 128.0 - 1.0
    }

    /// Numbers between -1 and 1 in format `E`.
    pub(crate) fn numbers<E: Element>(&mut self, len: usize) -> Vec<E> {
        (0..len).map(|_| E::narrow(self.number())).collect()
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    pub(crate) fn tokens(&mut self, len: usize, limit: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(limit) as u32).collect()
    }
}

/// A matrix whose rows lie apart. The gaps hold NaN: an operator that reads one spoils its result, and one that
/// writes to one is found out by [`Spaced::elements`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spaced<E> {
    values: Vec<E>,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    gap: usize,
}

impl<E: Element> Spaced<E> {
    pub(crate) fn new(rows: usize, columns: usize, gap: usize, mut value: impl FnMut() -> f32) -> Self {
        let mut values = vec![E::narrow(f32::NAN); rows * (columns + gap)];
        for row in values.chunks_mut((columns + gap).max(1)) {
            row[..columns].iter_mut().for_each(|number| *number = E::narrow(value()));
        }
        Self { values, rows, columns, gap }
    }

    pub(crate) fn random(rows: usize, columns: usize, gap: usize, random: &mut TestRandom) -> Self {
        Self::new(rows, columns, gap, || random.number())
    }

    pub(crate) fn zeros(rows: usize, columns: usize, gap: usize) -> Self {
        Self::new(rows, columns, gap, || 0.0)
    }

    /// Given elements, without gaps.
    pub(crate) fn of(rows: usize, columns: usize, elements: &[f32]) -> Self {
        assert_eq!(elements.len(), rows * columns, "elements of a matrix");
        let mut elements = elements.iter();
        Self::new(rows, columns, 0, || *elements.next().expect("as many as asserted"))
    }

    /// On a device, to be read.
    pub(crate) fn on<'a>(&self, device: &'a Device) -> Lent<'a, E> {
        lend(device, &self.values).by_rows(self.rows, self.gap)
    }

    /// On a device, to be changed.
    pub(crate) fn on_mut<'a>(&'a mut self, device: &'a Device) -> Lent<'a, E> {
        let (rows, gap) = (self.rows, self.gap);
        lend_mut(device, &mut self.values).by_rows(rows, gap)
    }

    /// The elements without the gaps. Panics when a gap was written to.
    pub(crate) fn elements(&self) -> Vec<f32> {
        let mut elements = Vec::with_capacity(self.rows * self.columns);
        for row in self.values.chunks((self.columns + self.gap).max(1)) {
            elements.extend(row[..self.columns].iter().map(|number| number.widen()));
            assert!(row[self.columns..].iter().all(|gap| gap.widen().is_nan()), "a gap was written to");
        }
        elements
    }

    pub(crate) fn wide(&self) -> Vec<f64> {
        self.elements().into_iter().map(f64::from).collect()
    }
}

/// Elements that lie on a device for a while; what was lent to be changed comes back at the end.
pub(crate) struct Lent<'a, E: BufferValue> {
    device: &'a Device,
    buffer: Buffer<E>,
    rows: usize,
    gap: usize,
    /// Where the elements go back to.
    back: Option<&'a mut [E]>,
}

impl<E: BufferValue> Lent<'_, E> {
    /// As a matrix whose rows lie apart.
    pub(crate) fn by_rows(mut self, rows: usize, gap: usize) -> Self {
        (self.rows, self.gap) = (rows, gap);
        self
    }

    pub(crate) fn view(&self) -> View<'_, E> {
        self.buffer.view()
    }

    pub(crate) fn view_mut(&mut self) -> ViewMut<'_, E> {
        self.buffer.view_mut()
    }

    pub(crate) fn elements(&self) -> Vec<E> {
        let mut elements = vec![E::default(); self.buffer.len()];
        self.device.read(self.view(), &mut elements);
        elements
    }

    /// Without the gaps.
    pub(crate) fn matrix(&self) -> Matrix<'_, E> {
        let columns = self.buffer.len() / self.rows.max(1);
        self.view().matrix(self.rows, columns).columns(0..columns - self.gap)
    }

    pub(crate) fn matrix_mut(&mut self) -> MatrixMut<'_, E> {
        let (rows, columns, gap) = (self.rows, self.buffer.len() / self.rows.max(1), self.gap);
        self.view_mut().matrix(rows, columns).columns(0..columns - gap)
    }
}

impl<E: BufferValue> Drop for Lent<'_, E> {
    fn drop(&mut self) {
        if let Some(back) = &mut self.back {
            self.device.read(self.buffer.view(), back);
        }
    }
}

pub(crate) fn lend<'a, E: BufferValue>(device: &'a Device, values: &[E]) -> Lent<'a, E> {
    let mut buffer = device.zeros(values.len());
    device.write(buffer.view_mut(), values);
    Lent { device, buffer, rows: 1, gap: 0, back: None }
}

pub(crate) fn lend_mut<'a, E: BufferValue>(device: &'a Device, values: &'a mut [E]) -> Lent<'a, E> {
    let mut lent = lend(device, values);
    lent.back = Some(values);
    lent
}

pub(crate) fn wide<E: Element>(elements: &[E]) -> Vec<f64> {
    elements.iter().map(|number| f64::from(number.widen())).collect()
}

/// How far a result in format `E` may be from the exact one, for numbers around 1 that go through few roundings.
pub(crate) fn tolerance<E: Element>() -> f64 {
    if E::NAME == "f32" { 2e-6 } else { 1.0 / 128.0 }
}

/// Fails where two numbers differ by more than `tolerance`, relative to the larger of 1 and the expected number.
#[track_caller]
pub(crate) fn assert_close<E: Element>(found: &[E], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "elements to compare");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let found = f64::from(found.widen());
        let distance = (found - expected).abs() / expected.abs().max(1.0);
        let is_same = found == *expected || (found.is_nan() && expected.is_nan());
        assert!(is_same || distance <= tolerance, "number {index} is {found}, expected {expected}");
    }
}

/// The gradient of `f` by central differences.
pub(crate) fn gradient(f: impl Fn(&[f64]) -> f64, at: &[f64]) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut place = at.to_vec();
    (0..at.len())
        .map(|index| {
            place[index] = at[index] + STEP;
            let above = f(&place);
            place[index] = at[index] - STEP;
            let below = f(&place);
            place[index] = at[index];
            (above - below) / (2.0 * STEP)
        })
        .collect()
}

/// The sum of products: what a gradient `d` says about outputs `y`.
pub(crate) fn dot(d: &[f64], y: &[f64]) -> f64 {
    d.iter().zip(y).map(|(d, y)| d * y).sum()
}

/// Runs on one thread and on three, and where memory lies apart, which must not make a difference.
#[track_caller]
pub(crate) fn on_any_threads<R: PartialEq + std::fmt::Debug>(run: impl Fn(&Device) -> R) -> R {
    thread_local! {
        static DEVICES: [Device; 3] = [Device::cpu(1), Device::cpu(3), Device::apart(2)];
    }
    let [one, three, apart] = DEVICES.with(|devices| devices.each_ref().map(&run));
    assert!(one == three, "the result depends on the number of threads");
    assert!(one == apart, "the result depends on where memory lies");
    one
}

/// Runs also compiled for lesser processors, which must not make a difference either.
#[track_caller]
pub(crate) fn on_any_processor<R: PartialEq + std::fmt::Debug>(run: impl Fn(&Device) -> R) -> R {
    thread_local! {
        static DEVICES: [Device; 2] = [Level::Portable, Level::Avx2]
            .map(|level| Device::of(Cpu::at(level.min(Level::detect()), has_tiles(), 1)));
    }
    let here = on_any_threads(&run);
    let is_same = DEVICES.with(|devices| devices.iter().all(|device| run(device) == here));
    assert!(is_same, "the result depends on the processor's instructions");
    here
}
