//! A full disk, for a while.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use bedplate_terminal::{CliError, Console};

use super::ChaosError;

const BLOCK: usize = 1 << 20;

/// Fills the disk of a directory, waits, and makes room again.
pub(super) fn fill(
    state: &Path,
    for_ms: u64,
    leave: u64,
    really: bool,
    console: &Console,
) -> Result<String, CliError> {
    let failed = |source| ChaosError::Fill { path: state.to_owned(), source };
    let device = fs::metadata(state).map_err(failed)?.dev();
    if !really && fs::metadata("/").map_err(failed)?.dev() == device {
        return Err(ChaosError::SharedDisk { path: state.to_owned() }.into());
    }
    let ballast = state.join(format!("ballast.{}", std::process::id()));
    let _removed = Removed(&ballast);
    let written = write_until_full(&ballast).map_err(failed)?;
    if leave > 0 {
        let file = File::options().write(true).open(&ballast);
        file.and_then(|file| file.set_len(written.saturating_sub(leave))).map_err(failed)?;
    }
    console.say(&format!("the disk of {} is full: {} MiB written", state.display(), written >> 20));
    thread::sleep(Duration::from_millis(for_ms));
    Ok(format!("the disk of {} has room again", state.display()))
}

/// Removes the file however the function ends.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

fn write_until_full(path: &Path) -> std::io::Result<u64> {
    let mut file = File::create(path)?;
    let block = vec![0u8; BLOCK];
    let mut size = BLOCK;
    let mut written = 0;
    while size > 0 {
        match file.write(&block[..size]) {
            Ok(count) => written += count as u64,
            // Smaller and smaller, down to the last byte.
            Err(_) => size /= 2,
        }
    }
    let _ = file.sync_all();
    Ok(written)
}
