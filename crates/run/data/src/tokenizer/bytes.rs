//! The alphabet of byte-level tokenizers: a printable character for each of the 256 bytes.
//!
//! GPT-2 introduced it and others follow: printable bytes of Latin-1 map to themselves, and the others, in
//! ascending order, to the characters from U+0100 on.

use std::sync::LazyLock;

static CHARACTERS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).expect("the next 256 code points are all characters")
    })
});

pub(super) fn character(byte: u8) -> char {
    CHARACTERS[usize::from(byte)]
}

/// The bytes that a token spells; `None` if a character maps to no byte.
pub(super) fn bytes_of(token: &str) -> Option<Vec<u8>> {
    let byte = |wanted: char| CHARACTERS.iter().position(|character| *character == wanted);
    token.chars().map(|character| byte(character).map(|byte| byte as u8)).collect()
}
