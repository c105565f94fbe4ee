//! Bytes into lines as a person would see them.

use std::borrow::Cow;

/// Longer lines are cut here: a log may be one line of gigabytes.
pub(crate) const LONGEST_LINE: usize = 64 << 10;

/// The line without colours and other escape sequences of terminals.
pub fn plain(line: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr::memchr(0x1b, line) else { return Cow::Borrowed(line) };
    let mut out = line[..first].to_vec();
    let mut rest = &line[first..];
    while let Some((&byte, after)) = rest.split_first() {
        if byte != 0x1b {
            let next = memchr::memchr(0x1b, rest).unwrap_or(rest.len());
            out.extend_from_slice(&rest[..next]);
            rest = &rest[next..];
            continue;
        }
        rest = behind_escape(after);
    }
    Cow::Owned(out)
}

/// What follows an escape sequence, without its first byte.
fn behind_escape(after: &[u8]) -> &[u8] {
    match after.first() {
        // Control sequences: parameters, then one final byte.
        Some(b'[') => {
            let end = after[1..].iter().position(|byte| (0x40..=0x7e).contains(byte));
            end.map_or(&[], |end| &after[end + 2..])
        }
        // Titles and hyperlinks, up to a bell or to ESC \.
        Some(b']') => match memchr::memchr2(0x07, 0x1b, after) {
            Some(at) if after[at] == 0x07 => &after[at + 1..],
            Some(at) => after.get(at + 2..).unwrap_or(&[]),
            None => &[],
        },
        Some(_) => &after[1..],
        None => &[],
    }
}

/// Where the line around a position begins and ends; progress bars end theirs with a carriage return.
pub(crate) fn line_around(text: &[u8], at: usize, earliest: usize) -> (usize, usize) {
    let start =
        memchr::memrchr2(b'\n', b'\r', &text[earliest..at]).map_or(earliest, |end| earliest + end + 1);
    let end = memchr::memchr2(b'\n', b'\r', &text[at..]).map_or(text.len(), |end| at + end);
    (start, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_dropped_and_nothing_else() {
        let cases: [(&[u8], &[u8]); 6] = [
            (b"plain", b"plain"),
            (b"\x1b[36mstep:  4\x1b[0m  \x1b[1;32mloss: 7\x1b[39m", b"step:  4  loss: 7"),
            (b"a\x1b]0;title\x07b", b"ab"),
            (b"a\x1b]8;;http://x\x1b\\link", b"alink"),
            (b"cut \x1b[3", b"cut "),
            (b"\x1b", b""),
        ];
        for (line, expected) in cases {
            assert_eq!(plain(line).as_ref(), expected);
        }
    }
}
