//! Speculating on the next tokens from the text itself: what followed the last time that the same tokens came.

/// The longest and the shortest run of tokens that is looked for.
const LONGEST: usize = 4;
const SHORTEST: usize = 2;

/// Up to `most` tokens that followed an earlier occurrence of the last tokens, the longest match and then the latest one first.
pub(crate) fn speculate(tokens: &[u32], most: usize) -> Vec<u32> {
    if most == 0 {
        return Vec::new();
    }
    for len in (SHORTEST..=LONGEST).rev() {
        if tokens.len() <= len {
            continue;
        }
        let (before, end) = (&tokens[..tokens.len() - 1], &tokens[tokens.len() - len..]);
        if let Some(at) = before.windows(len).rposition(|run| run == end) {
            let from = at + len;
            return tokens[from..tokens.len().min(from + most)].to_vec();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_latest_match_is_continued() {
        assert_eq!(speculate(&[1, 2, 3, 9, 1, 2, 3, 8, 5, 2, 3], 3), [8, 5, 2]);
        assert_eq!(speculate(&[1, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3], 2), [9, 5]);
        assert_eq!(speculate(&[7, 7, 7, 7, 7], 3), [7]);
        assert_eq!(speculate(&[1, 2, 3], 3), [0; 0]);
        assert_eq!(speculate(&[], 3), [0; 0]);
    }
}
