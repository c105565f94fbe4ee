//! Notations of Kubernetes: quantities such as `500m` and `64Gi`, and what names and labels may hold.

use bedplate_units::Bytes;

/// Nothing that a pod or node has is more; the server itself counts in signed 64-bit integers.
const MOST: f64 = 9e18;

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

/// A quantity that is zero or more: `8`, `500m`, `1.5Gi`, `12e6`.
pub fn quantity(text: &str) -> Option<f64> {
    let text = text.trim();
    let suffix = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (digits, factor) = suffix.unwrap_or((text, 1.0));
    // Without this check the parser would also take `inf`, `nan` and signs.
    let is_number = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let number = digits.parse::<f64>().ok().filter(|_| is_number)?;
    Some(number * factor).filter(|number| *number <= MOST)
}

/// A quantity in thousandths of its unit, rounded up.
pub fn thousandths(text: &str) -> Option<i64> {
    quantity(text).and_then(|number| rounded_up(number * 1000.0))
}

/// A quantity in whole units, rounded up.
pub fn whole(text: &str) -> Option<i64> {
    quantity(text).and_then(rounded_up)
}

fn rounded_up(number: f64) -> Option<i64> {
    // Products of decimal fractions are off by less than this.
    Some((number - 1e-6).ceil()).filter(|number| *number <= MOST).map(|number| number as i64)
}

/// Memory as a quantity: whole bytes, in the largest unit that divides them.
pub fn memory_quantity(size: Bytes) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let bytes = size.get().ceil().max(1.0) as u64;
    match UNITS.into_iter().find(|(unit, _)| bytes.is_multiple_of(*unit)) {
        Some((unit, letters)) => format!("{}{letters}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// Whether a text may name a namespace: at most 63 lower-case letters, digits and hyphens, with a letter or digit at both ends.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_dns_part(text)
}

/// Whether an object may have this name: parts with dots between them, at most 253 letters.
pub fn is_object_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_part)
}

fn is_dns_part(text: &str) -> bool {
    let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| is_end(byte) || *byte == b'-')
        && bytes.first().is_some_and(is_end)
        && bytes.last().is_some_and(is_end)
}

/// The nearest text that a label may have as its value: at most 63 letters, digits, dots, hyphens and underscores.
pub fn label_value(text: &str) -> String {
    let is_fit = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let fit: String = text.chars().map(|letter| if is_fit(letter) { letter } else { '-' }).take(63).collect();
    fit.trim_matches(|letter: char| !letter.is_ascii_alphanumeric()).to_owned()
}

pub fn is_label_value(text: &str) -> bool {
    label_value(text) == text
}

/// Whether a text may be a label's key: `name` or `domain/name`.
pub fn is_label_key(text: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && is_label_value(name);
    match text.split_once('/') {
        Some((domain, name)) => is_object_name(domain) && is_name(name),
        None => is_name(text),
    }
}

/// The name of an object for a text: lower case letters, digits and hyphens, of at most so many bytes.
pub fn object_name(text: &str, longest: usize) -> String {
    let mut name = String::new();
    for letter in text.chars() {
        match letter.to_ascii_lowercase() {
            letter if letter.is_ascii_lowercase() || letter.is_ascii_digit() => name.push(letter),
            _ if name.is_empty() || name.ends_with('-') => {}
            _ => name.push('-'),
        }
    }
    // Names of services begin with a letter, and pods of a gang find each other by one.
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        name.insert_str(0, "job-");
    }
    name.truncate(longest);
    name.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("2", 2000),
            ("500m", 500),
            ("0.1", 100),
            ("1500u", 2),
            ("1k", 1_000_000),
            ("12e3", 12_000_000),
            ("0", 0),
        ] {
            assert_eq!(thousandths(text), Some(expected), "{text}");
        }
        assert_eq!(whole("1.5Gi"), Some(1_610_612_736));
        assert_eq!(whole("128974848"), Some(128_974_848));
        assert_eq!(whole("1E"), Some(1_000_000_000_000_000_000));
        for text in ["much", "", "-1", "+1", "inf", "nan", "1e300", "Gi", "1 Gi", "20E"] {
            assert_eq!(whole(text), None, "{text}");
        }
    }

    #[test]
    fn memory_is_written_as_it_is_read() {
        for (size, text) in [(Bytes::gib(64.0), "64Gi"), (Bytes::new(1536.0), "1536"), (Bytes::new(0.5), "1")]
        {
            assert_eq!(memory_quantity(size), text);
        }
        assert_eq!(quantity(&memory_quantity(Bytes::gib(1.5))), Some(1.5 * 1_073_741_824.0));
    }

    #[test]
    fn names_and_labels_are_those_that_the_server_takes() {
        for (text, is_one) in
            [("a-1", true), ("1", true), ("", false), ("-a", false), ("a-", false), ("A", false)]
        {
            assert_eq!(is_dns_label(text), is_one, "{text}");
        }
        assert!(!is_dns_label(&"a".repeat(64)) && is_object_name(&format!("n1.{}", "a".repeat(64))));
        assert!(!is_object_name("a..b") && !is_object_name(""));
        assert_eq!(object_name("2nd Job!!(of mine)", 12), "job-2nd-job");
        assert_eq!(label_value("_a job (of mine)."), "a-job--of-mine");
        assert!(is_label_key("bedplate.dev/job") && is_label_key("job") && !is_label_key("a/b/c"));
        assert!(!is_label_key("Bedplate.dev/job") && !is_label_key("bedplate.dev/"));
    }
}
