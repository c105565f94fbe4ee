//! The file of a site's rules, as users name it.

use bedplate_daemon::Site;
use bedplate_diag::Source;
use bedplate_terminal::{CliError, files};
use bedplate_topology::Cluster;

pub(crate) fn read_site(path: &str, cluster: &Cluster) -> Result<Site, CliError> {
    Ok(Site::read(Source::new(path, &files::read_text(path)?), cluster)?)
}
