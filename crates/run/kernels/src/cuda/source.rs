//! The sources of kernels, and which formats and sizes each is compiled for.

/// A source file behind those it builds on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Source {
    Stream,
    Sampling,
    Norm,
    Pointwise,
    Experts,
    Gemm,
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
pub(super) enum Format {
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
    pub(super) source: Source,
    pub(super) formats: [Format; 3],
    pub(super) dim: usize,
    pub(super) group: usize,
}

macro_rules! parts {
    ($($file:literal),*) => { concat!(include_str!("kernels/prelude.cu"), $(include_str!(concat!("kernels/", $file, ".cu"))),*) };
}

impl Source {
    pub(super) fn name(self) -> &'static str {
        match self {
            Source::Stream => "stream",
            Source::Sampling => "sampling",
            Source::Norm => "norm",
            Source::Pointwise => "pointwise",
            Source::Experts => "experts",
            Source::Gemm => "gemm",
            Source::Packed => "packed",
            Source::Vector => "vector",
            Source::Round => "round",
            Source::Attention => "attention",
            Source::Paged => "paged",
            Source::Decode => "decode",
            Source::FlashForward => "flash_forward",
            Source::FlashBackward => "flash_backward",
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Source::Stream => parts!("stream"),
            Source::Sampling => parts!("sampling"),
            Source::Norm => parts!("norm"),
            Source::Pointwise => parts!("pointwise"),
            Source::Experts => parts!("experts"),
            Source::Gemm => parts!("gemm"),
            Source::Packed => parts!("packed"),
            Source::Vector => parts!("vector"),
            Source::Round => parts!("round"),
            Source::Attention => parts!("attention"),
            Source::Paged => parts!("attention", "paged"),
            Source::Decode => parts!("attention", "paged", "decode"),
            Source::FlashForward => parts!("hopper", "flash_forward"),
            Source::FlashBackward => parts!("hopper", "flash_backward"),
        }
    }

    /// Whether it uses instructions that only Hopper has.
    #[cfg(test)]
    pub(super) fn is_hopper(self) -> bool {
        matches!(self, Source::FlashForward | Source::FlashBackward)
    }
}

impl Format {
    /// The type in a kernel.
    fn name(self) -> &'static str {
        match self {
            Format::F32 => "float",
            Format::Bf16 => "bf16",
            Format::F16 => "f16",
            Format::Fp8 => "fp8",
            Format::Int8 => "int8",
            Format::Int4 => "int4q",
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
    use Format::{Bf16, F16, F32, Fp8, Int4, Int8};
    use Source::{
        Attention, Decode, Experts, FlashBackward, FlashForward, Gemm, Norm, Packed, Paged, Pointwise, Round,
        Sampling, Stream, Vector,
    };
    let plain = [Stream, Experts, Attention, Gemm, Norm, Pointwise, Round, Paged, Vector];
    let variant = |source, formats| Variant { source, formats, dim: 0, group: 0 };
    let mut all: Vec<Variant> = plain.map(|source| variant(source, [Bf16; 3])).into();
    all.push(variant(Sampling, [F32; 3]));
    all.extend([Bf16, F16, Fp8, Int8, Int4].map(|weight| variant(Packed, [Bf16, Bf16, weight])));
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
