//! What every command may need: the catalog with the user's overlays.

use bedplate_catalog::Catalog;
use bedplate_diag::Source;

use crate::cli_error::CliError;
use crate::files;

pub struct Context {
    /// Paths of overlay files, in the order given.
    pub overlays: Vec<String>,
}

impl Context {
    pub fn load_catalog(&self) -> Result<Catalog, CliError> {
        let mut texts = Vec::new();
        // An empty environment variable names no file.
        for path in self.overlays.iter().filter(|path| !path.is_empty()) {
            texts.push((path, files::read_text(path)?));
        }
        let sources: Vec<Source<'_>> = texts.iter().map(|(path, text)| Source::new(path, text)).collect();
        Ok(Catalog::with_overlays(&sources)?)
    }
}
