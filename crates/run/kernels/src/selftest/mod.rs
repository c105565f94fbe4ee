//! Every operator of a device against the processor in f32: what tells a user whether a GPU computes rightly.
//!
//! Inputs are numbers that all formats hold exactly; sizes are odd on purpose, and rows lie apart. The distance of a result is the size of the
//! difference over the size of what the processor gives.

mod attention;
mod layers;
mod linear;
mod mixture;
mod rates;
mod sample;
mod stream;

use crate::{Bf16, Device};
pub use rates::{RateOf, rate};
use sample::CheckInputs;

/// What an operator gave, compared.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorFinding {
    pub operator: &'static str,
    /// The format of activations and weights.
    pub format: &'static str,
    /// Numbers between two rows.
    pub gap: usize,
    /// `|found - expected| / |expected|`; infinite where a number is missing or not finite.
    pub distance: f64,
    pub tolerance: f64,
}

impl OperatorFinding {
    pub fn is_right(&self) -> bool {
        self.distance <= self.tolerance
    }
}

/// An operator with inputs that a seed decides, and what it gives.
pub(crate) struct Check {
    name: &'static str,
    in_f32: fn(&CheckInputs<'_>) -> Vec<f32>,
    /// None for operators that exist in f32 only.
    in_bf16: Option<fn(&CheckInputs<'_>) -> Vec<f32>>,
}

/// Lists functions as checks: generic ones, and those of operators that exist `in f32` only.
macro_rules! checks {
    ($($name:ident $(in $format:ident)?),* $(,)?) => {
        &[$(crate::selftest::check!($name $(in $format)?)),*]
    };
}
macro_rules! check {
    ($name:ident) => {
        crate::selftest::Check {
            name: stringify!($name),
            in_f32: $name::<f32>,
            in_bf16: Some($name::<crate::Bf16>),
        }
    };
    ($name:ident in f32) => {
        crate::selftest::Check { name: stringify!($name), in_f32: $name, in_bf16: None }
    };
}
pub(crate) use {check, checks};

/// Tries every operator in both formats, with rows that lie apart in two ways, against the processor. `tell` gets each finding as it is made.
pub fn selftest(device: &Device, mut tell: impl FnMut(&OperatorFinding)) -> Vec<OperatorFinding> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let processor = Device::cpu(threads.min(8));
    let all = [stream::CHECKS, layers::CHECKS, linear::CHECKS, mixture::CHECKS, attention::CHECKS];
    let mut findings = Vec::new();
    let mut note = |finding: OperatorFinding| {
        tell(&finding);
        findings.push(finding);
    };
    for check in all.into_iter().flatten() {
        for gap in [0, 3, 8] {
            let expected = (check.in_f32)(&CheckInputs::new(&processor, gap));
            let found = (check.in_f32)(&CheckInputs::new(device, gap));
            note(finding(check.name, "f32", gap, distance(&found, &expected), 2e-5));
            if let Some(in_bf16) = check.in_bf16 {
                let distance = distance(&in_bf16(&CheckInputs::new(device, gap)), &expected);
                note(finding(check.name, <Bf16 as crate::Element>::NAME, gap, distance, 1.5e-2));
            }
        }
    }
    findings
}

fn finding(
    operator: &'static str,
    format: &'static str,
    gap: usize,
    distance: f64,
    tolerance: f64,
) -> OperatorFinding {
    OperatorFinding { operator, format, gap, distance, tolerance }
}

fn distance(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let square = |number: f64| number * number;
    let apart: f64 = found.iter().zip(expected).map(|(a, b)| square(f64::from(a - b))).sum();
    let size: f64 = expected.iter().map(|number| square(f64::from(*number))).sum();
    let distance = (apart / size.max(f64::MIN_POSITIVE)).sqrt();
    if distance.is_nan() { f64::INFINITY } else { distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_agrees_with_itself_wherever_its_memory_lies() {
        for device in [Device::cpu(2), Device::apart(1)] {
            let wrong: Vec<OperatorFinding> =
                selftest(&device, |_| {}).into_iter().filter(|finding| !finding.is_right()).collect();
            assert_eq!(wrong, []);
        }
    }

    #[test]
    fn every_operator_of_a_gpu_agrees_with_the_processor() {
        let device = match Device::cuda(0) {
            Ok(device) => device,
            Err(error) => return println!("SKIPPED: no GPU to test: {error}"),
        };
        bedplate_peers::uses("gpu");
        let wrong: Vec<OperatorFinding> =
            selftest(&device, |_| {}).into_iter().filter(|finding| !finding.is_right()).collect();
        assert_eq!(wrong, []);
    }
}
