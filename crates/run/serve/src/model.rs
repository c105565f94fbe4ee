//! A model's folder in Hugging Face's format: its configuration, its weights and where texts end.

use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use bedplate_diag::Source;
use bedplate_host::read_regular_text;
use bedplate_network::{Architecture, CONFIG_FILE, MOST_JSON_BYTES, NetworkError};
use serde_json::Value;

use crate::{Sampling, ServeError};

const GENERATION_FILE: &str = "generation_config.json";

/// A folder whose configuration has been read.
#[derive(Debug, Clone)]
pub struct Model {
    pub folder: PathBuf,
    pub architecture: Architecture,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
    /// How its makers sample from it, as `generation_config.json` says; where that says nothing, as usual.
    pub sampling: Sampling,
    /// The format that the configuration names for the weights.
    pub dtype: Option<String>,
}

impl Model {
    pub fn open(folder: &Path) -> Result<Self, ServeError> {
        let path = folder.join(CONFIG_FILE);
        let text = read_regular_text(&path, MOST_JSON_BYTES)
            .map_err(|source| ServeError::ReadModel { path: path.clone(), source })?;
        let architecture = Architecture::from_config(Source::new(&path.display().to_string(), &text))?;
        let config: Value = serde_json::from_str(&text).unwrap_or_default();
        let generation = read_generation(folder)?;
        let mut end_tokens = ends(&generation);
        if end_tokens.is_empty() {
            end_tokens = ends(&config);
        }
        let dtype = ["dtype", "torch_dtype"].iter().find_map(|key| config[*key].as_str().map(str::to_owned));
        let sampling = sampling(&generation).map_err(|reason| ServeError::ReadModel {
            path: folder.join(GENERATION_FILE),
            source: io::Error::new(ErrorKind::InvalidData, reason),
        })?;
        Ok(Self { folder: folder.to_owned(), architecture, end_tokens, sampling, dtype })
    }

    /// Most tokens of prompt and answer for which the model was made.
    pub fn max_context(&self) -> u64 {
        self.architecture.transformer.max_context
    }
}

/// The defaults of generation, of a folder that has them.
fn read_generation(folder: &Path) -> Result<Value, ServeError> {
    let path = folder.join(GENERATION_FILE);
    match read_regular_text(&path, MOST_JSON_BYTES) {
        Ok(text) => {
            serde_json::from_str(&text).map_err(|error| ServeError::ReadModel { path, source: error.into() })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Value::Null),
        Err(source) => Err(ServeError::ReadModel { path, source }),
    }
}

/// The settings that requests may leave out. As vLLM does, `do_sample` is not looked at: a request that wants the most likely tokens says so.
fn sampling(config: &Value) -> Result<Sampling, String> {
    let number = |key: &str, range: RangeInclusive<f64>, usual: f32| match &config[key] {
        Value::Null => Ok(usual),
        value => match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(number as f32),
            None => {
                Err(format!("`{key}` is {value} and must be between {} and {}", range.start(), range.end()))
            }
        },
    };
    let usual = Sampling::default();
    let top_k = number("top_k", -1.0..=f64::from(u32::MAX), 0.0)?;
    let top_p = number("top_p", 0.0..=1.0, usual.top_p)?.max(f32::MIN_POSITIVE);
    Ok(Sampling {
        temperature: number("temperature", 0.0..=100.0, usual.temperature)?,
        top_k: top_k.max(0.0) as u32,
        top_p,
        min_p: number("min_p", 0.0..=1.0, usual.min_p)?,
        repetition_penalty: number("repetition_penalty", 1e-3..=100.0, usual.repetition_penalty)?,
        ..usual
    })
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

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// Without the check opening a FIFO waits for a writer, and `/dev/zero` has no end.
    #[test]
    fn a_folder_whose_files_are_pipes_or_devices_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join(CONFIG_FILE);
        let generation = folder.path().join("generation_config.json");
        mkfifo(&config, Mode::S_IRWXU).unwrap();
        assert!(matches!(Model::open(folder.path()), Err(ServeError::ReadModel { .. })));
        fs::remove_file(&config).unwrap();
        fs::write(
            &config,
            r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2,
                "num_hidden_layers": 1, "vocab_size": 32, "max_position_embeddings": 64, "eos_token_id": 7}"#,
        )
        .unwrap();
        assert_eq!(Model::open(folder.path()).unwrap().end_tokens, [7]);
        std::os::unix::fs::symlink("/dev/zero", &generation).unwrap();
        assert!(matches!(Model::open(folder.path()), Err(ServeError::ReadModel { .. })));
        fs::remove_file(&generation).unwrap();
        fs::write(&generation, "{").unwrap();
        assert!(matches!(Model::open(folder.path()), Err(ServeError::ReadModel { .. })));
        fs::write(&generation, r#"{"eos_token_id": [3, 4]}"#).unwrap();
        assert_eq!(Model::open(folder.path()).unwrap().end_tokens, [3, 4]);
        assert_eq!(Model::open(folder.path()).unwrap().sampling, Sampling::default());
        let qwen = r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}"#;
        fs::write(&generation, qwen).unwrap();
        let sampling = Model::open(folder.path()).unwrap().sampling;
        let expected = Sampling {
            temperature: 0.6,
            top_k: 20,
            top_p: 0.95,
            repetition_penalty: 1.05,
            ..Sampling::default()
        };
        assert_eq!(sampling, expected);
        for wrong in [r#"{"temperature": -1}"#, r#"{"top_p": "x"}"#, r#"{"repetition_penalty": 0}"#] {
            fs::write(&generation, wrong).unwrap();
            assert!(Model::open(folder.path()).unwrap_err().to_string().contains("generation_config.json"));
        }
    }
}
