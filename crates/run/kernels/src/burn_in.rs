//! Burn-in: works a device hard for a while and compares every result with the first one.
//!
//! The same product must have the same bits in every round, memory must give back what was put there, and so must copies to the host and
//! back. All bits are compared: of products by a digest that the device makes, which is also the same on every device of one kind, so that callers compare devices
//! with each other. Nothing is said about what else hardware tells of itself, such as clocks and temperatures.

use std::io;
use std::time::{Duration, Instant};

use crate::{Bf16, Buffer, CudaError, Device, Element, Pattern, WeightFormat, WrongWords};

/// How a device is worked.
#[derive(Debug, Clone, PartialEq)]
pub struct BurnIn {
    /// How long each part works, at least two rounds.
    pub lasts: Duration,
    /// The most bytes of memory that are tried; all that is free where there is no limit.
    pub memory: Option<usize>,
    /// A part whose second result gets one wrong number, to see that it is found.
    pub planted: Option<BurnInPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BurnInPart {
    ProductF32,
    ProductBf16,
    ProductFp8,
    Memory,
    Copies,
}

/// What a part of the burn-in found.
#[derive(Debug, Clone)]
pub struct BurnInReport {
    pub part: BurnInPart,
    pub rounds: u64,
    /// Of the first result of a product.
    pub digest: Option<u64>,
    /// Bytes of memory or of one copy.
    pub bytes: Option<usize>,
    /// FLOP/s or bytes per second of each round.
    pub rates: Vec<f64>,
    /// Nothing is tried any more after a fault of its part.
    pub fault: Option<BurnInFault>,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum BurnInFault {
    #[error("round {round} gave other bits than the first")]
    OtherBits { round: u64 },
    #[error("{} words of eight bytes were wrong in round {round}, the first at byte {}", wrong.count, 8 * wrong.first)]
    WrongWords { round: u64, wrong: WrongWords },
    #[error("there is no memory to work with: {0}")]
    NoMemory(String),
    #[error(transparent)]
    Device(#[from] CudaError),
}

impl BurnInPart {
    pub const ALL: [Self; 5] =
        [Self::ProductF32, Self::ProductBf16, Self::ProductFp8, Self::Memory, Self::Copies];

    pub fn name(self) -> &'static str {
        match self {
            BurnInPart::ProductF32 => "products of f32",
            BurnInPart::ProductBf16 => "products of bf16",
            BurnInPart::ProductFp8 => "products of fp8",
            BurnInPart::Memory => "memory",
            BurnInPart::Copies => "copies",
        }
    }

    /// Whether its rates are FLOP/s; else bytes per second.
    pub fn is_product(self) -> bool {
        !matches!(self, BurnInPart::Memory | BurnInPart::Copies)
    }
}

impl BurnIn {
    /// Works on one part after the other; a fault of the device ends it.
    pub fn run(&self, device: &Device, mut begins: impl FnMut(BurnInPart)) -> Vec<BurnInReport> {
        let mut reports = Vec::new();
        for part in BurnInPart::ALL {
            begins(part);
            let report = match part {
                BurnInPart::ProductF32 => self.products::<f32>(device, part, WeightFormat::F32),
                BurnInPart::ProductBf16 => self.products::<Bf16>(device, part, WeightFormat::Bf16),
                BurnInPart::ProductFp8 => self.products::<Bf16>(device, part, WeightFormat::Fp8),
                BurnInPart::Memory => self.memory(device),
                BurnInPart::Copies => self.copies(device),
            };
            let is_over = matches!(report.fault, Some(BurnInFault::Device(_)));
            reports.push(report);
            if is_over {
                break;
            }
        }
        reports
    }

    fn products<E: Element>(&self, device: &Device, part: BurnInPart, format: WeightFormat) -> BurnInReport {
        let side = if device.is_cpu() { 256 } else { 8192 };
        let [x, weight] = [1, 2].map(|key| {
            let mut numbers = device.zeros::<E>(side * side);
            device.fill_normal(numbers.view_mut(), key, 0, 1.0);
            numbers
        });
        let weight = device.pack(weight.view(), side, format);
        let mut out = device.zeros::<E>(side * side);
        let mut first = None;
        let mut report = self.rounds(device, part, 2.0 * (side as f64).powi(3), |round| {
            let to = out.view_mut().matrix(side, side);
            device.linear_packed(x.view().matrix(side, side), &weight, None, None, to);
            if self.plants(part, round) {
                plant(device, &mut out);
            }
            let digest = device.digest(out.view());
            match *first.get_or_insert(digest) == digest {
                true => Ok(()),
                false => Err(BurnInFault::OtherBits { round }),
            }
        });
        report.digest = first;
        report
    }

    fn memory(&self, device: &Device) -> BurnInReport {
        let part = BurnInPart::Memory;
        let mut chunks = match take_memory(device, self.memory) {
            Ok(chunks) => chunks,
            Err(error) => return BurnInReport::failed(part, BurnInFault::NoMemory(error.to_string())),
        };
        let bytes = chunks.iter().map(Buffer::bytes).sum();
        let mut report = self.rounds(device, part, 2.0 * bytes as f64, |round| {
            // Each pattern in both ways before the next.
            let pattern = |chunk: usize| Pattern {
                seed: round / 2 * chunks_most() + chunk as u64,
                is_inverted: round % 2 == 1,
            };
            for (index, chunk) in chunks.iter_mut().enumerate() {
                device.fill_pattern(chunk.view_mut(), pattern(index));
            }
            if self.plants(part, round) {
                let mut word = [0];
                device.read(chunks[0].range(5..6), &mut word);
                device.write(chunks[0].range_mut(5..6), &[word[0] ^ 1]);
            }
            let mut before = 0;
            for (index, chunk) in chunks.iter().enumerate() {
                if let Some(wrong) = device.find_wrong_words(chunk.view(), pattern(index)) {
                    let wrong = WrongWords { first: before + wrong.first, ..wrong };
                    return Err(BurnInFault::WrongWords { round, wrong });
                }
                before += chunk.len() as u64;
            }
            Ok(())
        });
        report.bytes = Some(bytes);
        report
    }

    fn copies(&self, device: &Device) -> BurnInReport {
        let part = BurnInPart::Copies;
        let len = if device.is_cpu() { 1 << 18 } else { 32 << 20 };
        let [mut here, mut there] = [(); 2].map(|()| device.zeros::<u64>(len));
        let mut host = vec![0; len];
        // To the device, from one place to another, and back.
        let mut report = self.rounds(device, part, 3.0 * (8 * len) as f64, |round| {
            let pattern = Pattern { seed: round / 2, is_inverted: round % 2 == 1 };
            for (place, word) in (0..).zip(&mut host) {
                *word = pattern.word(place);
            }
            device.write(here.view_mut(), &host);
            device.copy(here.view(), there.view_mut());
            if self.plants(part, round) {
                device.write(there.range_mut(5..6), &[!host[5]]);
            }
            device.read(there.view(), &mut host);
            let wrong = (0..).zip(&host).filter(|(place, word)| **word != pattern.word(*place));
            let places: Vec<u64> = wrong.map(|(place, _)| place).collect();
            match places.first() {
                None => Ok(()),
                Some(first) => {
                    let wrong = WrongWords { count: places.len() as u64, first: *first };
                    Err(BurnInFault::WrongWords { round, wrong })
                }
            }
        });
        report.bytes = Some(8 * len);
        report
    }

    /// Rounds until time is over or one fails; at least two, as one result has nothing to be compared with.
    fn rounds(
        &self,
        device: &Device,
        part: BurnInPart,
        work: f64,
        mut round: impl FnMut(u64) -> Result<(), BurnInFault>,
    ) -> BurnInReport {
        let mut report =
            BurnInReport { part, rounds: 0, digest: None, bytes: None, rates: Vec::new(), fault: None };
        device.synchronize();
        let began = Instant::now();
        while report.fault.is_none() && (report.rounds < 2 || began.elapsed() < self.lasts) {
            let this = Instant::now();
            let result = round(report.rounds);
            // What a device gives after a fault of its own means nothing.
            report.fault = device.check().map_err(BurnInFault::Device).and(result).err();
            report.rounds += 1;
            report.rates.push(work / this.elapsed().as_secs_f64());
        }
        report
    }

    fn plants(&self, part: BurnInPart, round: u64) -> bool {
        round == 1 && self.planted == Some(part)
    }
}

impl BurnInReport {
    fn failed(part: BurnInPart, fault: BurnInFault) -> Self {
        Self { part, rounds: 0, digest: None, bytes: None, rates: Vec::new(), fault: Some(fault) }
    }
}

/// Seeds of chunks do not meet those of the next round.
const fn chunks_most() -> u64 {
    1 << 20
}

/// Takes the free memory in pieces, but for what kernels and other programs may need meanwhile.
fn take_memory(device: &Device, most: Option<usize>) -> io::Result<Vec<Buffer<u64>>> {
    const PIECE: usize = 1 << 30;
    const KEPT: usize = 1 << 30;
    let free =
        device.free_memory().unwrap_or(16 << 20).saturating_sub(if device.is_cpu() { 0 } else { KEPT });
    let mut left = most.map_or(free, |most| most.min(free));
    let mut pieces = Vec::new();
    while left >= 8 {
        let bytes = left.min(PIECE);
        match device.reserve(bytes / 8) {
            Ok(piece) => pieces.push(piece),
            Err(error) if pieces.is_empty() => return Err(error),
            // Another program was faster.
            Err(_) => break,
        }
        left -= bytes;
    }
    match pieces.is_empty() {
        true => Err(io::ErrorKind::OutOfMemory.into()),
        false => Ok(pieces),
    }
}

/// Makes one number of a result wrong.
fn plant<E: Element>(device: &Device, result: &mut Buffer<E>) {
    let mut number = [E::default()];
    device.read(result.range(5..6), &mut number);
    device.write(result.range_mut(5..6), &[E::narrow(-number[0].widen() - 1.0)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burn(device: &Device, planted: Option<BurnInPart>) -> Vec<BurnInReport> {
        let burn_in = BurnIn { lasts: Duration::ZERO, memory: Some(1 << 20), planted };
        burn_in.run(device, |_| {})
    }

    #[test]
    fn what_is_right_passes_and_is_the_same_on_every_device() {
        let reports = [Device::cpu(2), Device::apart(1)].map(|device| burn(&device, None));
        for report in reports.iter().flatten() {
            assert!(report.rounds == 2 && report.fault.is_none(), "{report:?}");
            assert_eq!(report.digest.is_some(), report.part.is_product());
        }
        let digests = reports.map(|reports| reports.iter().map(|report| report.digest).collect::<Vec<_>>());
        assert_eq!(digests[0], digests[1]);
        let [f32, bf16, fp8] = [digests[0][0], digests[0][1], digests[0][2]];
        assert!(f32 != bf16 && bf16 != fp8);
    }

    #[test]
    fn one_wrong_number_is_found_by_its_part_alone() {
        let device = Device::cpu(2);
        for part in BurnInPart::ALL {
            for report in burn(&device, Some(part)) {
                assert_eq!(report.fault.is_some(), report.part == part, "{part:?} in {report:?}");
            }
        }
        let memory = burn(&device, Some(BurnInPart::Memory)).remove(3);
        let told = memory.fault.unwrap().to_string();
        assert_eq!(told, "1 words of eight bytes were wrong in round 1, the first at byte 40");
    }
}
