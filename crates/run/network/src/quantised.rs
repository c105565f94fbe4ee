//! Weights that files hold in 8 or 4 bits with scales beside them, read as what they stand for.
//!
//! Published fp8 checkpoints keep a matrix as `F8_E4M3` and what to multiply it by in a tensor of its own: one number for the matrix, one for
//! each output, or one for each block of 128 by 128 (DeepSeek, Qwen). Which of them it is follows from the shape of the scales. The activations,
//! which some engines round as well, are not rounded here.
//!
//! gpt-oss keeps the matrices of its experts in MXFP4: two numbers of e2m1 in a byte, and for every 32 inputs of an output an exponent of two.

use bedplate_transformer::{Keys, ModelError};

use crate::SafetensorsFile;

/// How files call a number of 8 bits.
pub(crate) const E4M3: &str = "F8_E4M3";
/// What the names of scales have in place of `weight`, and those of what activations were multiplied by.
pub(crate) const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];
pub(crate) const ACTIVATION_SCALES: [&str; 2] = ["input_scale", "activation_scale"];
/// Rows and columns that share a scale.
const BLOCK: usize = 128;

/// How files call bytes.
pub(crate) const BYTES: &str = "U8";
/// Inputs that share an exponent in MXFP4.
pub(crate) const GROUP: usize = 32;
/// The sizes that three bits stand for in e2m1.
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The names of the blocks and of the exponents that stand for a tensor in MXFP4.
pub(crate) fn packed_names(name: &str) -> [String; 2] {
    ["blocks", "scales"].map(|part| format!("{name}_{part}"))
}

/// Numbers of MXFP4, the low half of each byte first.
pub(crate) fn widen_packed(blocks: &[u8], scales: &[u8]) -> Vec<f32> {
    let groups = blocks.as_chunks::<{ GROUP / 2 }>().0.iter().zip(scales);
    // The largest exponent is beyond f32, what it gives for small numbers is not.
    let number = |half: u8, scale: f64| {
        let size = (E2M1[usize::from(half & 7)] * scale) as f32;
        if half & 8 == 0 { size } else { -size }
    };
    let of_byte = |byte: u8, scale: f64| [number(byte & 0xf, scale), number(byte >> 4, scale)];
    groups
        .flat_map(|(group, scale)| {
            let scale = 2f64.powi(i32::from(*scale) - 127);
            group.iter().flat_map(move |byte| of_byte(*byte, scale))
        })
        .collect()
}

/// Whether the weights that `quantization_config` describes are among those that are read.
pub(crate) fn is_read(section: &Keys<'_>) -> Result<bool, ModelError> {
    Ok(match section.word("quant_method")? {
        Some("fp8" | "mxfp4") => true,
        Some("compressed-tensors") => section.word("format")? == Some("float-quantized"),
        Some("modelopt") => section.word("quant_algo")? == Some("FP8"),
        _ => false,
    })
}

/// The name of a tensor that belongs to the weight `name`.
pub(crate) fn beside(name: &str, part: &str) -> Option<String> {
    name.strip_suffix("weight").map(|stem| format!("{stem}{part}"))
}

/// What a number of 8 bits is: a sign, four bits of exponent, three of mantissa; no infinity.
pub(crate) fn widen(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 0xf), f32::from(bits & 7));
    let size = match (exponent, bits & 7) {
        (0xf, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { size } else { -size }
}

/// Multiplies the numbers of a matrix by their scales.
pub(crate) fn scale(
    values: &mut [f32],
    shape: &[usize],
    (scales, of): (&[f32], &[usize]),
) -> Result<(), String> {
    let [rows, columns] = *shape else {
        return Err(format!("it has 8 bits and the shape {shape:?}, which is no matrix"));
    };
    let [row, column] = match *of {
        [] | [1] | [1, 1] => [rows, columns],
        [count] | [count, 1] if count == rows => [1, columns],
        [down, along] if [down, along] == [rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)] => [BLOCK; 2],
        _ => {
            return Err(format!(
                "its scales have the shape {of:?}, which is neither one for all, nor one for each of {rows} outputs, nor one for each block of {BLOCK} by {BLOCK}"
            ));
        }
    };
    let along = columns.div_ceil(column.max(1));
    for (at, line) in values.chunks_exact_mut(columns.max(1)).enumerate() {
        for (part, scale) in line.chunks_mut(column.max(1)).zip(&scales[at / row.max(1) * along..]) {
            part.iter_mut().for_each(|value| *value *= scale);
        }
    }
    Ok(())
}

/// The scales of a weight among some files: their name, and the file that has them.
pub(crate) fn scales_of<'a>(
    name: &str,
    find: impl Fn(&str) -> Option<&'a SafetensorsFile>,
) -> Option<(&'a SafetensorsFile, String)> {
    SCALES.iter().filter_map(|part| beside(name, part)).find_map(|name| Some((find(&name)?, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_eight_bits_are_those_of_the_format() {
        let known = [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xb9, -1.125),
        ];
        for (bits, value) in known {
            assert_eq!(widen(bits), value, "{bits:#x}");
        }
        assert!(widen(0x7f).is_nan() && widen(0xff).is_nan());
    }

    #[test]
    fn scales_are_for_all_for_outputs_or_for_blocks() {
        let scaled = |shape: [usize; 2], scales: &[f32], of: &[usize]| {
            let mut values = vec![1.0; shape[0] * shape[1]];
            scale(&mut values, &shape, (scales, of)).map(|()| values)
        };
        assert_eq!(scaled([2, 2], &[3.0], &[]).unwrap(), [3.0; 4]);
        assert_eq!(scaled([2, 2], &[3.0, 4.0], &[2, 1]).unwrap(), [3.0, 3.0, 4.0, 4.0]);
        let blocks = scaled([130, 129], &[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
        assert_eq!([blocks[0], blocks[128], blocks[128 * 129], blocks[130 * 129 - 1]], [1.0, 2.0, 3.0, 4.0]);
        assert!(scaled([4, 4], &[1.0; 3], &[3]).unwrap_err().contains("[3]"));
    }
}
