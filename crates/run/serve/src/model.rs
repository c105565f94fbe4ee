//! A model's folder in Hugging Face's format: its configuration, its weights and where texts end.

use std::fs;
use std::path::{Path, PathBuf};

use bedplate_diag::Source;
use bedplate_network::{Architecture, CONFIG_FILE, NetworkError};
use serde_json::Value;

use crate::ServeError;

/// A folder whose configuration has been read.
#[derive(Debug, Clone)]
pub struct Model {
    pub folder: PathBuf,
    pub architecture: Architecture,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
    /// The format that the configuration names for the weights.
    pub dtype: Option<String>,
}

impl Model {
    pub fn open(folder: &Path) -> Result<Self, ServeError> {
        let path = folder.join(CONFIG_FILE);
        let text = fs::read_to_string(&path)
            .map_err(|source| ServeError::ReadModel { path: path.clone(), source })?;
        let architecture = Architecture::from_config(Source::new(&path.display().to_string(), &text))?;
        let config: Value = serde_json::from_str(&text).unwrap_or_default();
        let generation = fs::read_to_string(folder.join("generation_config.json")).unwrap_or_default();
        let generation: Value = serde_json::from_str(&generation).unwrap_or_default();
        let mut end_tokens = ends(&generation);
        if end_tokens.is_empty() {
            end_tokens = ends(&config);
        }
        let dtype = ["dtype", "torch_dtype"].iter().find_map(|key| config[*key].as_str().map(str::to_owned));
        Ok(Self { folder: folder.to_owned(), architecture, end_tokens, dtype })
    }

    /// Most tokens of prompt and answer for which the model was made.
    pub fn max_context(&self) -> u64 {
        self.architecture.transformer.max_context
    }
}

/// `eos_token_id`: a number or a list of them.
fn ends(config: &Value) -> Vec<u32> {
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match &config["eos_token_id"] {
        Value::Array(list) => list.iter().filter_map(number).collect(),
        value => number(value).into_iter().collect(),
    }
}

impl From<NetworkError> for ServeError {
    fn from(error: NetworkError) -> Self {
        ServeError::Network(Box::new(error))
    }
}
