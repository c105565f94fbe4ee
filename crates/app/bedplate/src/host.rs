//! This host as the catalog describes it, once `bedplate bench machine` has measured it.

use std::path::PathBuf;

use bedplate_catalog::{Accelerator, Catalog};
use bedplate_diag::Source;

use crate::connection::{state_directory, variable};
use crate::context::Context;
use crate::files;

/// The name of its accelerator and of its instance.
pub(crate) const NAME: &str = "host";

/// Where `bedplate bench machine` keeps what it measured, by default: next to the state of a cluster.
pub(crate) fn overlay_path() -> PathBuf {
    state_directory(variable("BEDPLATE_STATE").map(PathBuf::from)).path().join("host.toml")
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
