//! Models by name, or by the config.json that a user names.

use std::path::Path;

use bedplate_diag::Source;
use bedplate_network::MOST_JSON_BYTES;
use bedplate_terminal::{CliError, files};
use bedplate_transformer::{Configuration, Remark, Transformer, Vision, builtin};

/// A built-in name, or the path of a config.json or of the folder that holds one; `-` is standard input.
///
/// Hugging Face names such as `Qwen/Qwen2.5-7B` look like paths: if such a path exists, it wins.
/// A bare word is a built-in name first.
pub(crate) fn load(name_or_path: &str) -> Result<Transformer, CliError> {
    Ok(load_with_remarks(name_or_path)?.0)
}

/// The model, and what its configuration asks for that nothing here honours.
pub(crate) fn load_with_remarks(name_or_path: &str) -> Result<(Transformer, Vec<Remark>), CliError> {
    match builtin(name_or_path) {
        found if !is_path(name_or_path, found.is_ok()) => Ok((found?, Vec::new())),
        _ => read(name_or_path),
    }
}

pub(crate) fn is_path(name_or_path: &str, is_name: bool) -> bool {
    name_or_path == "-"
        || name_or_path.ends_with(".json")
        || name_or_path.starts_with(['/', '.'])
        || (Path::new(name_or_path).exists() && (name_or_path.contains('/') || !is_name))
}

/// A config.json, or the one in a folder: the language model, and the vision encoder in front of it.
pub(crate) fn with_vision(path: &str) -> Result<(Transformer, Option<Vision>), CliError> {
    let (file, text) = text(path)?;
    let configuration = Configuration::parse(Source::new(&file, &text))?;
    Ok((configuration.transformer()?, configuration.vision()?))
}

fn read(path: &str) -> Result<(Transformer, Vec<Remark>), CliError> {
    let (file, text) = text(path)?;
    let configuration = Configuration::parse(Source::new(&file, &text))?;
    Ok((configuration.transformer()?, configuration.remarks()?))
}

/// The name and the text of a config.json, or of the one in a folder.
fn text(path: &str) -> Result<(String, String), CliError> {
    let file = match Path::new(path).is_dir() {
        true => format!("{}/config.json", path.trim_end_matches('/')),
        false => path.to_owned(),
    };
    let text = files::read_small_text(&file, MOST_JSON_BYTES)?;
    Ok((file, text))
}
