//! Lengths of sequences as people write them: `8192`, `8k`, `128K`, `1M`.
//!
//! A model's context of `8k` is 8,192 tokens, so the suffixes count in 1,024s here; amounts of training data
//! (`--batch-tokens 4M`) are decimal, as papers print them.

use std::str::FromStr;

/// A number of tokens from 1 to `most`.
pub fn sequence_length<T: TryFrom<u64>>(text: &str, most: u64) -> Result<T, String> {
    let tokens = text.parse().map(|Length(tokens)| tokens).ok().filter(|tokens| (1..=most).contains(tokens));
    let tokens = tokens.and_then(|tokens| T::try_from(tokens).ok());
    tokens.ok_or_else(|| {
        format!("`{text}` is not a number of tokens from 1 to {most}, such as 4096 or 8k (8,192)")
    })
}

struct Length(u64);

impl FromStr for Length {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.trim();
        let (digits, factor) = match text.strip_suffix(['k', 'K']) {
            Some(digits) => (digits, 1 << 10),
            None => text.strip_suffix(['m', 'M']).map_or((text, 1), |digits| (digits, 1 << 20)),
        };
        // `+8` is a number to the standard library, but not to people.
        if !digits.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(());
        }
        let count: u64 = digits.parse().map_err(|_| ())?;
        count.checked_mul(factor).map(Self).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::sequence_length;

    #[test]
    fn lengths_are_read_as_people_write_them() {
        for (text, tokens) in [("1", 1), ("8192", 8192), ("8k", 8192), ("128K", 131_072), ("1M", 1_048_576)] {
            assert_eq!(sequence_length::<u64>(text, 1 << 30), Ok(tokens), "{text}");
        }
        for text in
            ["", "k", "0", "0k", "-1", "+8", "8.5k", "8kk", "8 k", "2M", "99999999999999999999k", "eight"]
        {
            let refusal = sequence_length::<u32>(text, 1 << 20).expect_err(text);
            assert!(refusal.contains("such as 4096 or 8k"), "{refusal}");
        }
    }
}
