//! Quantities as Kubernetes writes them: `500m`, `2`, `1.5Gi`, `12e6`.

/// Thousandths, rounded up.
pub(crate) fn milli(quantity: &str) -> Option<i64> {
    scaled(quantity, 1000.0)
}

/// Whole units, rounded up.
pub(crate) fn whole(quantity: &str) -> Option<i64> {
    scaled(quantity, 1.0)
}

fn scaled(quantity: &str, unit: f64) -> Option<i64> {
    let (number, factor) = split(quantity.trim());
    let value = number.parse::<f64>().ok()? * factor * unit;
    // Products of decimal fractions are off by less than this.
    let up = (value - 1e-6).ceil();
    (up.abs() < 9e18).then_some(up as i64)
}

fn split(quantity: &str) -> (&str, f64) {
    const SUFFIXES: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let found = SUFFIXES.iter().find_map(|(suffix, factor)| Some((quantity.strip_suffix(suffix)?, *factor)));
    found.unwrap_or((quantity, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, thousandths) in [
            ("2", 2000),
            ("500m", 500),
            ("0.1", 100),
            ("1500u", 2),
            ("1k", 1_000_000),
            ("12e3", 12_000_000),
            ("0", 0),
        ] {
            assert_eq!(milli(text), Some(thousandths), "{text}");
        }
        assert_eq!(whole("1.5Gi"), Some(1_610_612_736));
        assert_eq!(whole("128974848"), Some(128_974_848));
        assert_eq!(whole("1E"), Some(1_000_000_000_000_000_000));
        assert_eq!(whole("much"), None);
        assert_eq!(whole(""), None);
    }
}
