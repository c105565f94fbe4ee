//! Which real parts a run of the tests has used, so that coverage cannot vanish unnoticed.

use std::fs;
use std::path::PathBuf;

/// Notes that a real part (`slurm`, `kubernetes`, `prometheus`, `s3`, `browser`, `nvrtc`, `torch`, `gpu`) is used, in the folder that `BEDPLATE_PARTS`
/// names; `./test` fails where one is missing at its end. Nothing happens elsewhere.
pub fn uses(part: &str) {
    if let Some(folder) = std::env::var_os("BEDPLATE_PARTS") {
        // A note that cannot be written shows as a missing part.
        let _ = fs::write(PathBuf::from(folder).join(part), "");
    }
}
