//! Printing a number with the scale that keeps it short: `3.35 TB/s`, not `3350000000000`.

use std::fmt;

/// A unit prefix and the factor it stands for; ladders are ordered from small to large.
pub(crate) struct Step {
    pub(crate) factor: f64,
    pub(crate) symbol: &'static str,
}

const fn step(factor: f64, symbol: &'static str) -> Step {
    Step { factor, symbol }
}

/// Decimal prefixes, as vendors use them for sizes and rates.
pub(crate) const DECIMAL: &[Step] = &[
    step(1.0, ""),
    step(1e3, "k"),
    step(1e6, "M"),
    step(1e9, "G"),
    step(1e12, "T"),
    step(1e15, "P"),
    step(1e18, "E"),
    step(1e21, "Z"),
    step(1e24, "Y"),
];

/// Binary prefixes, as operating systems use them for memory.
pub(crate) const BINARY: &[Step] = &[
    step(1.0, ""),
    step(1024.0, "Ki"),
    step(1_048_576.0, "Mi"),
    step(1_073_741_824.0, "Gi"),
    step(1_099_511_627_776.0, "Ti"),
    step(1_125_899_906_842_624.0, "Pi"),
];

/// Counts of parameters and tokens, as papers write them.
pub(crate) const COUNT: &[Step] =
    &[step(1.0, ""), step(1e3, "K"), step(1e6, "M"), step(1e9, "B"), step(1e12, "T")];

/// Significant digits when the caller gives no precision: enough for any data sheet figure.
const DEFAULT_DIGITS: usize = 4;

/// Writes `value` on the ladder as `<number><gap><symbol><unit>`; a precision means significant digits.
pub(crate) fn write_scaled(
    f: &mut fmt::Formatter<'_>,
    value: f64,
    ladder: &[Step],
    gap: &str,
    unit: &str,
) -> fmt::Result {
    let digits = f.precision().unwrap_or(DEFAULT_DIGITS).max(1);
    let (number, symbol) = scale(value, ladder, digits);
    let gap = if symbol.is_empty() && unit.is_empty() { "" } else { gap };
    f.pad_integral(true, "", &format!("{number}{gap}{symbol}{unit}"))
}

fn scale(value: f64, ladder: &[Step], digits: usize) -> (String, &'static str) {
    let mut rung = ladder.iter().rposition(|step| value.abs() >= step.factor).unwrap_or(0);
    // 999.96 rounds up to 1000, which belongs one rung higher.
    if let Some(next) = ladder.get(rung + 1)
        && round(value / ladder[rung].factor, digits).abs() >= next.factor / ladder[rung].factor
    {
        rung += 1;
    }
    (significant(value / ladder[rung].factor, digits), ladder[rung].symbol)
}

fn round(value: f64, digits: usize) -> f64 {
    significant(value, digits).parse().unwrap_or(value)
}

/// `value` with at most `digits` significant digits, no trailing zeros, no exponent.
pub(crate) fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { value.to_string() };
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (digits as i32 - 1 - magnitude).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}
