//! The disk: a file written, brought to the disk, read back and compared.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use super::Outcome;
use crate::CheckVerdict;

const PIECE: usize = 1 << 20;

pub(super) fn check(folder: &Path, mib: u64) -> Vec<Outcome> {
    let path = folder.join(format!(".bedplate-check-{}", std::process::id()));
    let outcome = write_and_read(&path, mib.max(1));
    let _ = fs::remove_file(&path);
    let name = |what: &str| format!("disk {what}");
    match outcome {
        Ok(Rates { written, read, wrong: 0 }) => [("write", written), ("read", read)]
            .map(|(what, rate)| Outcome {
                name: name(what),
                verdict: Some(CheckVerdict::Pass),
                rate: Some(format!("{:.2} GB/s", rate / 1e9)),
                remark: format!("{mib} MiB in {}", folder.display()),
            })
            .into(),
        Ok(Rates { wrong, .. }) => {
            let remark = format!("{wrong} MiB came back changed");
            vec![Outcome { name: name("read"), verdict: Some(CheckVerdict::Fail), rate: None, remark }]
        }
        Err(error) => {
            let remark = format!("{}: {error}", folder.display());
            vec![Outcome { name: name("write"), verdict: Some(CheckVerdict::Fail), rate: None, remark }]
        }
    }
}

struct Rates {
    written: f64,
    read: f64,
    /// Pieces that differ.
    wrong: u64,
}

fn write_and_read(path: &Path, mib: u64) -> io::Result<Rates> {
    let bytes = (mib * PIECE as u64) as f64;
    let mut piece = pattern();
    let began = Instant::now();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    for number in 0..mib {
        stamp(&mut piece, number);
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    let written = bytes / began.elapsed().as_secs_f64();
    forget_cached(&file, bytes as i64);
    drop(file);
    let began = Instant::now();
    let mut file = File::open(path)?;
    let (mut wrong, mut read) = (0, vec![0; PIECE]);
    for number in 0..mib {
        file.read_exact(&mut read)?;
        stamp(&mut piece, number);
        wrong += u64::from(read != piece);
    }
    Ok(Rates { written, read: bytes / began.elapsed().as_secs_f64(), wrong })
}

/// So that it is read from the disk and not from memory.
fn forget_cached(file: &File, bytes: i64) {
    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
    let _ = posix_fadvise(file, 0, bytes, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}

/// Bytes that look random.
fn pattern() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(PIECE);
    while bytes.len() < PIECE {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

/// Makes a piece unlike all others: its number is in each of its pages.
fn stamp(piece: &mut [u8], number: u64) {
    const PAGE: usize = 4096;
    piece.chunks_mut(PAGE).for_each(|page| page[..8].copy_from_slice(&number.to_le_bytes()));
}
