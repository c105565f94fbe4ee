//! Scores and sums of values by the tile unit (AMX), for blocks in its order.
//!
//! A register of queries has a row for each lane and 32 dimensions; sixteen tokens fill a register of the right side for as many dimensions.
//! Weights are rounded to bf16; a register of them has sixteen tokens. Sums are `f32`, and lanes do not meet.

use std::arch::asm;
use std::arch::x86_64::{__m512, __m512bh, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_storeu_ps};
use std::mem::transmute;
use std::ops::Range;

use super::attend::{PIECE, TILE};
use super::blocks::GROUP;
use crate::cpu::multiply::{Configuration, EACH, set_up_tiles};
use crate::device::Elements;
use crate::{Bf16, Element, PagedShape};

/// Groups of tokens of a piece.
const GROUPS: usize = PIECE / GROUP;

/// Registers 0 to 3 are sums, 4 is a left and 5 a right side of 32 elements; 6 and 7 are the same with 16.
static CONFIGURATIONS: [Configuration; TILE] = Configuration::for_rows({
    let sums = (EACH, 64);
    [sums, sums, sums, sums, (EACH, 64), (16, 64), (EACH, 32), (8, 64)]
});

/// The elements of a format that is bf16.
fn narrow<E: Element>(elements: &[E]) -> &[Bf16] {
    match E::elements(elements) {
        Elements::Bf16(elements) => elements,
        Elements::F32(_) => unreachable!("blocks in this order are bf16"),
    }
}

/// A cell of the tile unit.
#[inline(always)]
fn join(low: Bf16, high: Bf16) -> f32 {
    f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16)
}

/// A lane's query among those of its tile: 32 dimensions at a time, in these lane by lane.
pub(super) fn pack_query<E: Element>(query: &[E], (index, lanes): (usize, usize), to: &mut [f32]) {
    let cells = to.as_chunks_mut::<16>().0.iter_mut().skip(index).step_by(lanes);
    for (to, from) in cells.zip(narrow(query).as_chunks::<32>().0) {
        *to = std::array::from_fn(|cell| join(from[2 * cell], from[2 * cell + 1]));
    }
}

/// The groups of some tokens that begin with one: where each begins in its half of a block.
fn groups<'a, E: Element>(
    shape: &PagedShape,
    tokens: &Range<usize>,
    half: impl Fn(usize) -> &'a [E],
) -> ([&'a [Bf16]; GROUPS], usize) {
    let (mut groups, cells): ([&[Bf16]; GROUPS], _) = ([&[]; GROUPS], GROUP * shape.head_dim);
    let count = tokens.len().div_ceil(GROUP);
    for (index, group) in groups.iter_mut().enumerate().take(count) {
        let token = tokens.start + index * GROUP;
        let elements = narrow(half(token / shape.block_tokens));
        *group = &elements[token % shape.block_tokens * shape.head_dim..][..cells];
    }
    (groups, count)
}

/// The scores of `count` queries, a row of [`PIECE`] for each.
pub(super) fn score<'a, E: Element>(
    shape: &PagedShape,
    tokens: &Range<usize>,
    block: &dyn Fn(usize) -> (&'a [E], &'a [E]),
    (count, queries): (usize, &[f32]),
    scores: &mut [f32],
) {
    let (keys, groups) = groups(shape, tokens, |index| block(index).0);
    let steps = shape.head_dim / 32;
    assert!(queries.len() >= steps * count * 16 && scores.len() >= TILE * PIECE);
    let start = scores.as_mut_ptr();
    for first in (0..groups).step_by(4) {
        // What lacks is replaced by the last one, whose scores are then written twice to where they belong.
        let at = |index: usize| (first + index).min(groups - 1);
        let keys = [0, 1, 2, 3].map(|index| keys[at(index)].as_ptr());
        let to = [0, 1, 2, 3].map(|index| start.wrapping_add(at(index) * GROUP));
        score_four(count, steps, queries, keys, to);
    }
}

/// Scores of four groups of tokens.
#[expect(unsafe_code, reason = "tile instructions have no stable intrinsics")]
fn score_four(count: usize, steps: usize, queries: &[f32], keys: [*const Bf16; 4], to: [*mut f32; 4]) {
    let wanted = &CONFIGURATIONS[count - 1];
    let mut found = Configuration::NONE;
    // SAFETY: reads `steps` registers of `count` rows of queries and of sixteen rows of each group's keys, and writes `count` rows of 64
    // bytes of scores that lie a piece apart. All are that long, by the checks of the caller. The process has been allowed to use tiles.
    unsafe {
        asm!(
            set_up_tiles!("found", "wanted"),
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "mov {stride}, 64",
            "xor {offset:e}, {offset:e}",
            "3:",
            "tileloadd tmm4, [{queries} + {stride}]",
            "lea {at}, [{keys0} + {offset}]",
            "tileloadd tmm5, [{at} + {stride}]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "lea {at}, [{keys1} + {offset}]",
            "tileloadd tmm5, [{at} + {stride}]",
            "tdpbf16ps tmm1, tmm4, tmm5",
            "lea {at}, [{keys2} + {offset}]",
            "tileloadd tmm5, [{at} + {stride}]",
            "tdpbf16ps tmm2, tmm4, tmm5",
            "lea {at}, [{keys3} + {offset}]",
            "tileloadd tmm5, [{at} + {stride}]",
            "tdpbf16ps tmm3, tmm4, tmm5",
            "add {queries}, {step}",
            "add {offset}, 1024",
            "dec {steps}",
            "jnz 3b",
            "mov {stride}, {apart}",
            "mov {at}, [{to}]",
            "tilestored [{at} + {stride}], tmm0",
            "mov {at}, [{to} + 8]",
            "tilestored [{at} + {stride}], tmm1",
            "mov {at}, [{to} + 16]",
            "tilestored [{at} + {stride}], tmm2",
            "mov {at}, [{to} + 24]",
            "tilestored [{at} + {stride}], tmm3",
            apart = const PIECE * size_of::<f32>(),
            found = inout(reg) found.0.as_mut_ptr() => _,
            wanted = in(reg) wanted.0.as_ptr(),
            stride = out(reg) _,
            offset = out(reg) _,
            at = out(reg) _,
            queries = inout(reg) queries.as_ptr() => _,
            keys0 = in(reg) keys[0],
            keys1 = in(reg) keys[1],
            keys2 = in(reg) keys[2],
            keys3 = in(reg) keys[3],
            step = in(reg) 64 * count,
            steps = inout(reg) steps => _,
            to = in(reg) to.as_ptr(),
            out("zmm16") _,
            out("k1") _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Adds the values of tokens, weighed by the scores, to the sums of `count` lanes.
pub(super) fn add_values<'a, E: Element>(
    shape: &PagedShape,
    tokens: &Range<usize>,
    block: &dyn Fn(usize) -> (&'a [E], &'a [E]),
    (count, weights): (usize, &[f32]),
    buffer: &mut [f32],
    out: &mut [f32],
) {
    let (values, groups) = groups(shape, tokens, |index| block(index).1);
    let (narrow, last) = buffer.split_at_mut(TILE * PIECE / 2);
    for (weights, to) in weights.chunks_exact(PIECE).zip(narrow.chunks_exact_mut(PIECE / 2)).take(count) {
        #[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
        // SAFETY: blocks have this order only where the processor has tiles, and then it has these instructions.
        unsafe {
            round(&weights[..(groups * GROUP).next_multiple_of(32)], to);
        }
    }
    let mut at = values.map(|group| group.as_ptr());
    if !tokens.len().is_multiple_of(GROUP) {
        hide(values[groups - 1], tokens.len() % GROUP, last);
        at[groups - 1] = last.as_ptr().cast();
    }
    assert!(out.len() >= count * shape.head_dim && last.len() >= shape.head_dim * GROUP / 2);
    for first in (0..shape.head_dim).step_by(2 * GROUP) {
        add_two(count, (first, shape.head_dim), &at[..groups], narrow, out);
    }
}

/// Elements rounded to bf16, two in a cell; whole multiples of 32.
#[expect(unsafe_code, reason = "vector registers are read and written")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn round(wide: &[f32], to: &mut [f32]) {
    for (wide, to) in wide.as_chunks::<32>().0.iter().zip(to.as_chunks_mut::<16>().0) {
        // SAFETY: 32 elements are read and sixteen cells are written, as their types say.
        unsafe {
            let [low, high] = [0, 16].map(|at| _mm512_loadu_ps(wide.as_ptr().add(at)));
            _mm512_storeu_ps(to.as_mut_ptr(), transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low)));
        }
    }
}

/// The values of a group of which only some tokens exist; the others become zero, whatever their slots hold.
fn hide(values: &[Bf16], tokens: usize, to: &mut [f32]) {
    let pairs = values.as_chunks::<2>().0.as_chunks::<GROUP>().0;
    for (index, (pairs, to)) in pairs.iter().zip(to.as_chunks_mut::<GROUP>().0).enumerate() {
        let token = index % (GROUP / 2) * 2;
        let or_zero = |token: usize, number: Bf16| if token < tokens { number } else { Bf16::default() };
        *to = pairs.map(|[low, high]| join(or_zero(token, low), or_zero(token + 1, high)));
    }
}

/// Adds the values of 32 dimensions from `first` on.
#[expect(unsafe_code, reason = "tile instructions have no stable intrinsics")]
fn add_two(
    count: usize,
    (first, head_dim): (usize, usize),
    values: &[*const Bf16],
    weights: &[f32],
    out: &mut [f32],
) {
    let wanted = &CONFIGURATIONS[count - 1];
    let mut found = Configuration::NONE;
    // SAFETY: reads `values.len()` registers of `count` rows of weights and two of eight rows of each group's values; reads and writes
    // `count` rows of 128 bytes of sums that lie `head_dim` apart. All are that long, by the checks of the caller. The process has
    // been allowed to use tiles.
    unsafe {
        asm!(
            set_up_tiles!("found", "wanted"),
            "tileloadd tmm0, [{out} + {apart}]",
            "tileloadd tmm1, [{out} + {apart} + 64]",
            "3:",
            "mov {stride}, {weights_apart}",
            "tileloadd tmm6, [{weights} + {stride}]",
            "mov {at}, [{values}]",
            "add {at}, {offset}",
            "mov {stride}, 64",
            "tileloadd tmm7, [{at} + {stride}]",
            "tdpbf16ps tmm0, tmm6, tmm7",
            "tileloadd tmm7, [{at} + {stride} + 512]",
            "tdpbf16ps tmm1, tmm6, tmm7",
            "add {values}, 8",
            "add {weights}, 32",
            "dec {groups}",
            "jnz 3b",
            "tilestored [{out} + {apart}], tmm0",
            "tilestored [{out} + {apart} + 64], tmm1",
            weights_apart = const PIECE * size_of::<Bf16>(),
            found = inout(reg) found.0.as_mut_ptr() => _,
            wanted = in(reg) wanted.0.as_ptr(),
            stride = out(reg) _,
            at = out(reg) _,
            apart = in(reg) 4 * head_dim,
            offset = in(reg) first * GROUP * size_of::<Bf16>(),
            out = in(reg) out[first..].as_mut_ptr(),
            values = inout(reg) values.as_ptr() => _,
            weights = inout(reg) weights.as_ptr() => _,
            groups = inout(reg) values.len() => _,
            out("zmm16") _,
            out("k1") _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
