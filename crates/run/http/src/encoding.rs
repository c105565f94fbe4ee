//! Percent-encoding in paths and queries.

/// The text without its percent signs; nothing where it is badly encoded, longer than `longest` bytes, or has control characters.
pub fn decoded(text: &str, longest: usize) -> Option<String> {
    if text.len() > longest.saturating_mul(3) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        let digit = |digit: u8| char::from(digit).to_digit(16);
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = after;
    }
    let decoded = String::from_utf8(bytes).ok()?;
    (decoded.len() <= longest && !decoded.chars().any(char::is_control)).then_some(decoded)
}
