//! TFRecord: the sequence of events in a file, each with checksums.
//!
//! A record is its length (eight bytes, little-endian), a checksum of the length, the bytes, and a checksum of them. The
//! checksum is CRC-32C, rotated and shifted so that checksums of data that contain checksums stay useful.

/// The polynomial of Castagnoli, its bits in reverse.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            let is_odd = remainder & 1 == 1;
            remainder >>= 1;
            if is_odd {
                remainder ^= POLYNOMIAL;
            }
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ (crc >> 8))
}

fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Appends `record` to `to`.
pub(crate) fn frame(record: &[u8], to: &mut Vec<u8>) {
    let length = (record.len() as u64).to_le_bytes();
    to.extend(length);
    to.extend(masked(crc32c(&length)).to_le_bytes());
    to.extend(record);
    to.extend(masked(crc32c(record)).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 3720, appendix B.4.
    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&std::array::from_fn::<u8, 32, _>(|index| index as u8)), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
