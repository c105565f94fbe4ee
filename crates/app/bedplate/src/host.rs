//! This host as the catalog describes it, once `bedplate bench machine` has measured it.

use std::path::{Path, PathBuf};

use bedplate_catalog::{Accelerator, Catalog};
use bedplate_diag::Source;
use bedplate_terminal::{Context, files};

use crate::connection::{state_directory, variable};

/// The name of its accelerator and of its instance.
pub(crate) const NAME: &str = "host";

/// The same for a GPU of this host.
pub(crate) const GPU_NAME: &str = "gpu";

/// Where `bedplate bench machine` keeps what it measured, by default: next to the state of a cluster.
pub(crate) fn overlay_path() -> PathBuf {
    state_directory(variable("BEDPLATE_STATE").map(PathBuf::from)).path().join("host.toml")
}

/// The same for a GPU.
pub(crate) fn gpu_overlay_path() -> PathBuf {
    overlay_path().with_file_name("gpu.toml")
}

/// The output folders of training runs on this host, one a line, the newest last; `plan calibrate --recent` reads them.
fn runs_path() -> PathBuf {
    overlay_path().with_file_name("runs")
}

/// Folders that are remembered.
const MOST_RUNS: usize = 50;

/// Remembers the output folder of a run that ended on this host, unless it is one for temporary files. A run does not
/// fail for it.
pub(crate) fn remember_run(folder: &Path) {
    let Ok(folder) = std::path::absolute(folder) else { return };
    if folder.starts_with(std::env::temp_dir()) {
        return;
    }
    let mut folders = recent_runs();
    folders.retain(|known| *known != folder);
    folders.push(folder);
    let newest = &folders[folders.len().saturating_sub(MOST_RUNS)..];
    let lines: String = newest.iter().map(|folder| format!("{}\n", folder.display())).collect();
    let _ = files::write_own(&runs_path(), &lines);
}

/// The remembered folders that are still there, the newest last.
pub(crate) fn recent_runs() -> Vec<PathBuf> {
    let text = files::read_text(&runs_path().display().to_string()).unwrap_or_default();
    text.lines().map(PathBuf::from).filter(|folder| folder.is_dir()).collect()
}

/// What is known of this host: from an overlay that the user names, or from the default place. `None` if it has not been
/// measured, or if the file there is from another version of this program.
pub(crate) fn host_entry(context: &Context) -> Option<Accelerator> {
    let named = context.load_catalog().ok();
    named.as_ref().and_then(measured_host).or_else(|| {
        let path = overlay_path().display().to_string();
        let text = files::read_text(&path).ok()?;
        measured_host(&Catalog::with_overlays(&[Source::new(&path, &text)]).ok()?)
    })
}

fn measured_host(catalog: &Catalog) -> Option<Accelerator> {
    catalog.accelerator(NAME).ok().filter(|host| host.measured.is_some()).cloned()
}
