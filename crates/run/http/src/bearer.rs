//! Secrets that clients show.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;

use hyper::header::{AUTHORIZATION, HeaderMap};

/// The secret of `Authorization: Bearer SECRET`.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, secret) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// A secret that nobody can guess: 192 bits in hexadecimal.
///
/// # Panics
///
/// Where the kernel gives no random numbers, which a Linux host always does.
pub fn new_secret() -> String {
    let mut bytes = [0; 24];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.expect("a Linux host has /dev/urandom");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether two secrets are equal, in a time that depends on the length of the one shown and nothing else.
pub fn is_same_secret(shown: &[u8], kept: &[u8]) -> bool {
    let mut difference = u8::from(shown.len() != kept.len());
    for (at, byte) in shown.iter().enumerate() {
        let other = kept.get(at).copied().unwrap_or(0);
        difference = black_box(difference | (byte ^ other));
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn only_a_bearer_secret_is_found() {
        for (header, secret) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("abc", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(header))]);
            assert_eq!(bearer(&headers), secret, "{header}");
        }
    }

    #[test]
    fn secrets_are_the_same_only_where_all_of_them_is() {
        assert!(is_same_secret(b"abc", b"abc"));
        for (shown, kept) in [("abc", "abd"), ("ab", "abc"), ("abc", "ab"), ("", "a"), ("a\0", "a")] {
            assert!(!is_same_secret(shown.as_bytes(), kept.as_bytes()), "{shown:?} {kept:?}");
        }
    }
}
