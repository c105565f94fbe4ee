//! The sources of kernels, and which formats and sizes each is compiled for.

/// A source file behind those it builds on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum KernelSource {
    Stream,
    Sampling,
    Norm,
    Pointwise,
    Experts,
    Gemm,
    Grouped,
    GroupedHopper,
    Packed,
    Vector,
    Round,
    Attention,
    Paged,
    Decode,
    FlashForward,
    FlashBackward,
}

/// The format of a kernel's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum KernelFormat {
    F32,
    Bf16,
    F16,
    Fp8,
    Int8,
    Int4,
}

/// A source with its formats (A, B, C) and sizes (DIM, GROUP; 0 where it has none).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Variant {
    pub(super) source: KernelSource,
    pub(super) formats: [KernelFormat; 3],
    pub(super) dim: usize,
    pub(super) group: usize,
}

macro_rules! parts {
    ($($file:literal),*) => { concat!(include_str!("kernels/prelude.cu"), $(include_str!(concat!("kernels/", $file, ".cu"))),*) };
}

impl KernelSource {
    pub(super) fn name(self) -> &'static str {
        match self {
            KernelSource::Stream => "stream",
            KernelSource::Sampling => "sampling",
            KernelSource::Norm => "norm",
            KernelSource::Pointwise => "pointwise",
            KernelSource::Experts => "experts",
            KernelSource::Gemm => "gemm",
            KernelSource::Grouped => "grouped",
            KernelSource::GroupedHopper => "grouped_hopper",
            KernelSource::Packed => "packed",
            KernelSource::Vector => "vector",
            KernelSource::Round => "round",
            KernelSource::Attention => "attention",
            KernelSource::Paged => "paged",
            KernelSource::Decode => "decode",
            KernelSource::FlashForward => "flash_forward",
            KernelSource::FlashBackward => "flash_backward",
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            KernelSource::Stream => parts!("stream"),
            KernelSource::Sampling => parts!("sampling"),
            KernelSource::Norm => parts!("norm"),
            KernelSource::Pointwise => parts!("pointwise"),
            KernelSource::Experts => parts!("experts"),
            KernelSource::Gemm => parts!("tensor", "gemm"),
            KernelSource::Grouped => parts!("tensor", "grouped"),
            KernelSource::GroupedHopper => parts!("tensor", "grouped", "hopper", "grouped_hopper"),
            KernelSource::Packed => parts!("packed"),
            KernelSource::Vector => parts!("vector"),
            KernelSource::Round => parts!("round"),
            KernelSource::Attention => parts!("attention"),
            KernelSource::Paged => parts!("attention", "paged"),
            KernelSource::Decode => parts!("attention", "paged", "decode"),
            KernelSource::FlashForward => parts!("hopper", "flash_forward"),
            KernelSource::FlashBackward => parts!("hopper", "flash_backward"),
        }
    }

    /// Whether it uses instructions that only Hopper has.
    #[cfg(test)]
    pub(super) fn is_hopper(self) -> bool {
        matches!(self, KernelSource::FlashForward | KernelSource::FlashBackward | KernelSource::GroupedHopper)
    }
}

impl KernelFormat {
    /// The type in a kernel.
    fn name(self) -> &'static str {
        match self {
            KernelFormat::F32 => "float",
            KernelFormat::Bf16 => "bf16",
            KernelFormat::F16 => "f16",
            KernelFormat::Fp8 => "fp8",
            KernelFormat::Int8 => "int8",
            KernelFormat::Int4 => "int4q",
        }
    }
}

impl Variant {
    pub(super) fn options(&self) -> Vec<String> {
        let formats = ["A", "B", "C"].iter().zip(self.formats);
        let mut options: Vec<String> =
            formats.map(|(name, format)| format!("-D{name}={}", format.name())).collect();
        let sizes = [("DIM", self.dim), ("GROUP", self.group)].into_iter().filter(|(_, size)| *size > 0);
        options.extend(sizes.map(|(name, size)| format!("-D{name}={size}")));
        options
    }
}

/// What architecture a chip's kernels are compiled for.
pub(super) fn architecture(major: i32, minor: i32) -> String {
    if (major, minor) == (9, 0) { "sm_90a".to_owned() } else { format!("sm_{major}{minor}") }
}

/// Variants that show every kernel, for a test that compiles them: those of a bf16 model, and of f32 where `with_f32` says so.
#[cfg(test)]
pub(super) fn variants(with_f32: bool) -> Vec<Variant> {
    use KernelFormat::{Bf16, F16, F32, Fp8, Int4, Int8};
    use KernelSource::{
        Attention, Decode, Experts, FlashBackward, FlashForward, Gemm, Grouped, GroupedHopper, Norm, Packed,
        Paged, Pointwise, Round, Sampling, Stream, Vector,
    };
    let plain =
        [Stream, Experts, Attention, Gemm, Norm, Pointwise, Round, Paged, Vector, Grouped, GroupedHopper];
    let variant = |source, formats| Variant { source, formats, dim: 0, group: 0 };
    let mut all: Vec<Variant> = plain.map(|source| variant(source, [Bf16; 3])).into();
    all.push(variant(Sampling, [F32; 3]));
    all.extend([Bf16, F16, Fp8, Int8, Int4].map(|weight| variant(Packed, [Bf16, Bf16, weight])));
    all.extend([Fp8, Int8, Int4].map(|weight| variant(Grouped, [Bf16, Bf16, weight])));
    let sizes = [(64, 4), (128, 4), (128, 8)];
    for formats in [[Bf16; 3], [Bf16, Bf16, Fp8]] {
        all.extend(sizes.map(|(dim, group)| Variant { source: Decode, formats, dim, group }));
    }
    for source in [FlashForward, FlashBackward] {
        all.extend([64, 128].map(|dim| Variant { source, formats: [Bf16; 3], dim, group: 0 }));
    }
    if with_f32 {
        all.extend(plain[..8].iter().map(|source| variant(*source, [F32; 3])));
        all.push(Variant { source: Decode, formats: [F32; 3], dim: 256, group: 8 });
        all.push(variant(Packed, [F32, F32, Int4]));
    }
    all
}
