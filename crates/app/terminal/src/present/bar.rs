//! Bars of a line of text.

/// A bar of `width` characters, filled by this part of it.
pub fn bar(part: f64, width: usize) -> String {
    let filled = (part.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("{}{}", "█".repeat(filled), "░".repeat(width - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_full_as_its_part() {
        assert_eq!(bar(0.5, 4), "██░░");
        assert_eq!(bar(7.0, 3), "███");
        assert_eq!(bar(f64::NAN, 2), "░░");
    }
}
