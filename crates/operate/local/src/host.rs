//! This host as the catalog describes it, once `bedplate bench machine` has measured it.

use std::fs;
use std::path::{Path, PathBuf};

use bedplate_catalog::{Accelerator, Catalog};
use bedplate_diag::Source;

use crate::{state_directory, variable};

/// The name of its accelerator and of its instance.
pub const NAME: &str = "host";

/// The same for a GPU of this host.
pub const GPU_NAME: &str = "gpu";

/// Where `bedplate bench machine` keeps what it measured, by default: next to the state of a cluster.
pub fn overlay_path() -> PathBuf {
    state_directory(variable("BEDPLATE_STATE").map(PathBuf::from)).path().join("host.toml")
}

/// The same for a GPU.
pub fn gpu_overlay_path() -> PathBuf {
    overlay_path().with_file_name("gpu.toml")
}

pub use bedplate_train::SETTINGS_FILE as RUN_SETTINGS;

/// The output folders of training runs on this host, one a line, the newest last; `plan calibrate --recent` reads them.
fn runs_path() -> PathBuf {
    overlay_path().with_file_name("runs")
}

/// Folders that are remembered.
const MOST_RUNS: usize = 50;

/// Remembers the output folder of a run that ended on this host, unless it is one for temporary files. A run does not
/// fail for it.
pub fn remember_run(folder: &Path) {
    let Ok(folder) = std::path::absolute(folder) else { return };
    if folder.starts_with(std::env::temp_dir()) {
        return;
    }
    let mut folders = recent_runs();
    folders.retain(|known| *known != folder);
    folders.push(folder);
    let newest = &folders[folders.len().saturating_sub(MOST_RUNS)..];
    let lines: String = newest.iter().map(|folder| format!("{}\n", folder.display())).collect();
    let path = runs_path();
    let _ = path.parent().map(fs::create_dir_all);
    let _ = fs::write(path, lines);
}

/// The remembered folders that are still there, the newest last.
pub fn recent_runs() -> Vec<PathBuf> {
    let text = fs::read_to_string(runs_path()).unwrap_or_default();
    text.lines().map(PathBuf::from).filter(|folder| folder.is_dir()).collect()
}

/// What is known of this host: from the catalog with the user's overlays, or from the default place. `None` if it has not
/// been measured, or if the file there is from another version of this program.
pub fn host_entry(catalog: Option<&Catalog>) -> Option<Accelerator> {
    catalog.and_then(measured_host).or_else(|| {
        let path = overlay_path();
        let text = fs::read_to_string(&path).ok()?;
        let name = path.display().to_string();
        measured_host(&Catalog::with_overlays(&[Source::new(&name, &text)]).ok()?)
    })
}

fn measured_host(catalog: &Catalog) -> Option<Accelerator> {
    catalog.accelerator(NAME).ok().filter(|host| host.measured.is_some()).cloned()
}
