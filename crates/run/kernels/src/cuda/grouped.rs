//! Products with few rows, and products of experts: a weight is read once, in its own format, and of experts those that have rows.

use super::Cuda;
use super::driver::Argument::Words;
use super::driver::KernelLaunch;
use super::kernel::blocks_of;
use super::linear::{Extras, Side};
use super::source::KernelFormat;
use super::source::KernelSource::{Grouped, GroupedHopper};

/// Shared memory of the kernel for many rows: four stages of rows and lines, and what aligns them.
const STAGES: usize = 4 * 3 * (16 << 10) + 1024;

/// Matrices of one size and format.
#[derive(Clone, Copy)]
pub(super) struct GroupedWeight {
    pub(super) format: KernelFormat,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    /// Where the addresses of the experts' matrices are; zero where they lie one behind the other.
    pub(super) table: u64,
    pub(super) first: u64,
    /// Bytes from one to the next, and from the beginning of one to its scales.
    pub(super) each: usize,
    pub(super) scales: usize,
}

/// Rows by expert: where the ends are, and how many experts there are.
#[derive(Clone, Copy)]
pub(super) struct RowsOfExperts {
    pub(super) offsets: u64,
    pub(super) experts: usize,
    /// Where the choices in the slots are, and how many a token has; without it `x` has the slots' rows.
    pub(super) order: Option<(u64, usize)>,
}

/// A kernel by how many rows of a matrix it multiplies at once.
#[derive(Clone, Copy)]
enum RowsAtOnce {
    Eight,
    Sixteen,
    ThirtyTwo,
    /// Hopper's warpgroups.
    Many,
}

impl RowsAtOnce {
    /// The fastest for a number of rows shared out among experts; none where tiles of 128 rows are. Measured on an H200 with 128 experts in bf16: with even shares of
    /// 4 rows eight at once read 4.1 TB/s and warpgroups 3.4. But shares are uneven, and a weight is read again for rows beyond those at once.
    fn of(rows: usize, experts: usize, has_many: bool) -> Option<Self> {
        match rows as f64 / experts as f64 {
            each if each <= 3.0 => Some(Self::Eight),
            _ if has_many => Some(Self::Many),
            each if each <= 10.0 => Some(Self::Sixteen),
            each if each <= 20.0 => Some(Self::ThirtyTwo),
            _ => None,
        }
    }

    fn kernel(self, is_gated: bool) -> &'static str {
        match (self, is_gated) {
            (Self::Eight, false) => "few_1",
            (Self::Eight, true) => "few_1_gated",
            (Self::Sixteen, false) => "few_2",
            (Self::Sixteen, true) => "few_2_gated",
            (Self::ThirtyTwo, false) => "few_4",
            (Self::ThirtyTwo, true) => "few_4_gated",
            (Self::Many, false) => "many_rows",
            (Self::Many, true) => "many_gated",
        }
    }
}

impl KernelFormat {
    /// Elements of a line that four lanes take at once, where there is a kernel for few rows.
    fn piece(self) -> Option<usize> {
        match self {
            KernelFormat::Bf16 => Some(32),
            KernelFormat::Fp8 | KernelFormat::Int8 => Some(64),
            KernelFormat::Int4 => Some(128),
            KernelFormat::F32 | KernelFormat::F16 => None,
        }
    }
}

impl Cuda {
    /// Whether a kernel multiplied at most 64 rows, or the rows of experts.
    pub(super) fn multiply_grouped(
        &self,
        x: Side,
        rows: Option<RowsOfExperts>,
        weight: GroupedWeight,
        extras: Extras,
        out: Side,
    ) -> bool {
        self.launch_grouped(x, rows, weight, extras, false, out)
    }

    /// The same, and of each output of the first half the SiLU times that of the second half.
    pub(super) fn multiply_gated(
        &self,
        x: Side,
        rows: RowsOfExperts,
        weight: GroupedWeight,
        out: Side,
    ) -> bool {
        self.launch_grouped(x, Some(rows), weight, Extras::default(), true, out)
    }

    fn launch_grouped(
        &self,
        x: Side,
        rows: Option<RowsOfExperts>,
        weight: GroupedWeight,
        extras: Extras,
        is_gated: bool,
        out: Side,
    ) -> bool {
        let experts = rows.map_or(1, |rows| rows.experts);
        // The kernel for many rows copies bf16, 64 deep.
        let has_many = weight.format == KernelFormat::Bf16
            && weight.inputs.is_multiple_of(64)
            && self.is_hopper()
            && rows.is_some();
        let at_once = match rows {
            Some(_) => RowsAtOnce::of(out.rows, experts, has_many),
            None if out.rows <= 8 => Some(RowsAtOnce::Eight),
            None if out.rows <= 16 => Some(RowsAtOnce::Sixteen),
            None if out.rows <= 64 => Some(RowsAtOnce::ThirtyTwo),
            None => None,
        };
        let is_narrow = x.format == KernelFormat::Bf16 && x.lines.is_aligned();
        let is_whole = weight.format.piece().is_some_and(|piece| weight.inputs.is_multiple_of(piece));
        let is_like = extras.bias.is_none_or(|(_, format)| format == x.format) && !extras.add;
        let Some(at_once) = at_once.filter(|_| is_narrow && is_whole && is_like) else { return false };
        let (order, per_token) = rows.and_then(|rows| rows.order).unwrap_or((0, 1));
        let (residual, distance) = extras.residual.map_or((0, 0), |lines| (lines.address, lines.stride));
        let words = [
            weight.table,
            weight.first,
            weight.each as u64,
            weight.scales as u64,
            x.lines.address,
            x.lines.stride as u64,
            order,
            per_token as u64,
            rows.map_or(0, |rows| rows.offsets),
            experts as u64,
            out.lines.address,
            out.lines.stride as u64,
            out.rows as u64,
            weight.outputs as u64,
            weight.inputs as u64,
            extras.bias.map_or(0, |(bias, _)| bias),
            residual,
            distance as u64,
        ];
        let visited = experts.min(out.rows);
        let (source, launch) = match at_once {
            RowsAtOnce::Many => {
                let grid = [weight.outputs.div_ceil(256), out.rows / 128 + visited, 1];
                (GroupedHopper, KernelLaunch { grid, shared: STAGES, ..blocks_of(1, 256) })
            }
            _ => {
                let grid = [weight.outputs.div_ceil(16), visited, 1];
                // Few blocks have the depth of their lines read by twice as many warps.
                let is_small = grid[0] * grid[1] <= 4 * self.context.processors;
                (Grouped, KernelLaunch { grid, ..blocks_of(1, if is_small { 256 } else { 128 }) })
            }
        };
        let formats = [x.format, out.format, weight.format];
        self.kernel(source, formats, at_once.kernel(is_gated)).launch(launch, &[Words(&words)]);
        true
    }
}
