//! The formats that training can compute in.

use bedplate_comm::Number;
use bedplate_kernels::{Bf16, Buffer, Element, ViewMut};

/// A format that training can compute in. The weights that are trained are f32: the same numbers, or beside a rounded copy.
pub trait Trained: Element + Number {
    /// Whether weights to compute with are a rounded copy.
    fn has_copy() -> bool;

    /// The weights to be trained and their copy, from the numbers that are computed with and the master weights beside them.
    fn apart<'a>(
        numbers: ViewMut<'a, Self>,
        master: Option<ViewMut<'a, f32>>,
    ) -> (ViewMut<'a, f32>, Option<ViewMut<'a, Bf16>>);

    /// Numbers to compute with as the weights that are trained, which they are where there is no [copy](Self::has_copy).
    fn into_f32(numbers: Buffer<Self>) -> Buffer<f32>;

    /// The other way round.
    fn from_f32(numbers: Buffer<f32>) -> Buffer<Self>;
}

const MASTER: &str = "bf16 weights have master weights beside them";

impl Trained for f32 {
    fn has_copy() -> bool {
        false
    }

    fn apart<'a>(
        numbers: ViewMut<'a, Self>,
        _: Option<ViewMut<'a, f32>>,
    ) -> (ViewMut<'a, f32>, Option<ViewMut<'a, Bf16>>) {
        (numbers, None)
    }

    fn into_f32(numbers: Buffer<Self>) -> Buffer<f32> {
        numbers
    }

    fn from_f32(numbers: Buffer<f32>) -> Buffer<Self> {
        numbers
    }
}

impl Trained for Bf16 {
    fn has_copy() -> bool {
        true
    }

    fn apart<'a>(
        numbers: ViewMut<'a, Self>,
        master: Option<ViewMut<'a, f32>>,
    ) -> (ViewMut<'a, f32>, Option<ViewMut<'a, Bf16>>) {
        (master.expect(MASTER), Some(numbers))
    }

    fn into_f32(_: Buffer<Self>) -> Buffer<f32> {
        unreachable!("{MASTER}")
    }

    fn from_f32(_: Buffer<f32>) -> Buffer<Self> {
        unreachable!("{MASTER}")
    }
}
