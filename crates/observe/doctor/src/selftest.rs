//! Whether a GPU, or the processor, computes rightly and as fast as its kind should.

use bedplate_catalog::{Accelerator, Catalog};
use bedplate_kernels::{Device, OperatorFinding, RateOf, rate, selftest};
use bedplate_units::{Bandwidth, FlopRate};

/// The shares of a chip's peaks below which it is called slow.
const LEAST_PRODUCT: f64 = 0.5;
const LEAST_COPY: f64 = 2.0 / 3.0;

/// What the test of a device found.
#[derive(Debug)]
pub struct SelfTest<'a> {
    /// Of the catalog, where it knows the chip.
    pub chip: Option<&'a Accelerator>,
    pub findings: Vec<OperatorFinding>,
    pub rates: Vec<MeasuredRate>,
    is_cpu: bool,
}

/// A rate of a device beside the peak of its kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredRate {
    pub of: RateOf,
    pub rate: f64,
    /// Of the catalog, where it knows the chip.
    pub peak: Option<f64>,
}

impl<'a> SelfTest<'a> {
    /// Computes with every operator and, where asked to, measures every rate.
    pub fn run(device: &Device, catalog: &'a Catalog, wants_rates: bool) -> Self {
        let chip = device.gpu_name().and_then(|name| catalog.accelerator(name).ok());
        let measured = |of| MeasuredRate { of, rate: rate(device, of), peak: peak(chip, of) };
        Self {
            chip,
            findings: selftest(device, |_| {}),
            rates: if wants_rates { RateOf::ALL.map(measured).into() } else { Vec::new() },
            is_cpu: device.is_cpu(),
        }
    }

    pub fn is_good(&self) -> bool {
        self.wrong().next().is_none() && !self.rates.iter().any(MeasuredRate::is_slow)
    }

    /// Operators whose results are too far from the processor's.
    pub fn wrong(&self) -> impl Iterator<Item = &OperatorFinding> {
        self.findings.iter().filter(|finding| !finding.is_right())
    }

    /// The largest distance from the processor's results in a number format.
    pub fn largest_distance(&self, format: &str) -> f64 {
        let of_format = self.findings.iter().filter(|finding| finding.format == format);
        of_format.map(|finding| finding.distance).fold(0.0, f64::max)
    }

    /// In words.
    pub fn verdict(&self) -> String {
        let what = if self.is_cpu { "this processor" } else { "this GPU" };
        let slow = self.rates.iter().filter(|rate| rate.is_slow()).map(|rate| rate.of.name());
        let slow: Vec<&str> = slow.collect();
        if self.wrong().next().is_some() {
            return format!("{what} computes wrongly: take it out of service");
        }
        if !slow.is_empty() {
            return format!(
                "{what} computes rightly but slowly ({}): see what else runs on it, its clocks and its temperature, with `nvidia-smi -q`",
                slow.join(", ")
            );
        }
        match (self.chip, self.rates.is_empty()) {
            (Some(chip), false) => format!("{what} computes rightly, as fast as a {} should", chip.title),
            (None, false) => {
                format!("{what} computes rightly; the catalog has no rates to hold its own against")
            }
            (_, true) => format!("{what} computes rightly"),
        }
    }
}

fn peak(chip: Option<&Accelerator>, of: RateOf) -> Option<f64> {
    let chip = chip?;
    match of {
        RateOf::Copy => chip.memory_bandwidth.map(Bandwidth::get),
        RateOf::ProductFp8 => chip.peaks.fp8.map(FlopRate::get),
        _ => chip.peaks.bf16.map(FlopRate::get),
    }
}

impl MeasuredRate {
    pub fn share(&self) -> Option<f64> {
        self.peak.map(|peak| self.rate / peak)
    }

    /// How fast attention and fp8 are depends on the kernels that a chip has, and tells little of its health.
    pub fn is_slow(&self) -> bool {
        let least = match self.of {
            RateOf::Product => LEAST_PRODUCT,
            RateOf::Copy => LEAST_COPY,
            RateOf::ProductFp8 | RateOf::Attention | RateOf::AttentionBothWays => return false,
        };
        self.share().is_some_and(|share| share < least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_slow(of: RateOf, share: f64) -> bool {
        MeasuredRate { of, rate: share, peak: Some(1.0) }.is_slow()
    }

    #[test]
    fn a_chip_is_slow_by_its_products_and_copies_alone() {
        assert!(is_slow(RateOf::Product, 0.49) && !is_slow(RateOf::Product, 0.51));
        assert!(is_slow(RateOf::Copy, 0.6) && !is_slow(RateOf::Copy, 0.7));
        assert!(!is_slow(RateOf::Attention, 0.01));
        assert!(!MeasuredRate { of: RateOf::Product, rate: 1.0, peak: None }.is_slow());
    }
}
