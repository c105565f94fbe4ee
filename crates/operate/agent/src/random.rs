//! Random numbers from the kernel, for what must not be guessed or met twice.

use std::fs::File;
use std::io::Read;

/// Any number.
pub(crate) fn number() -> u64 {
    u64::from_le_bytes(bytes())
}

/// 128 bits in hexadecimal.
pub(crate) fn secret() -> String {
    bytes::<16>().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .expect("a Linux host has /dev/urandom");
    bytes
}
