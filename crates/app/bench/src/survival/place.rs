//! A folder with models, a corpus and configurations, and the weights that runs leave in it.

use std::fs;
use std::path::{Path, PathBuf};

use bedplate_data::{CorpusKind, CorpusOptions, CorpusWriter, TrainingOptions, generate, train_tokenizer};
use bedplate_terminal::CliError;
use serde_json::Value;

use super::NotMeasured;

const SMALL: &str = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}"#;
const LARGE: &str = r#"{"model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "vocab_size": 20000, "max_position_embeddings": 512, "tie_word_embeddings": true}"#;

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Model {
    Small,
    /// Of 100 million parameters.
    Large,
}

/// A run's settings beyond its layout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) model: Model,
    pub(super) steps: u64,
    pub(super) batch: u64,
    pub(super) sequence: u64,
    pub(super) checkpoint_every: u64,
}

/// A folder that goes away.
pub(super) struct Place(pub(super) PathBuf);

impl Place {
    pub(super) fn new(parent: &Path) -> Result<Self, CliError> {
        let path = parent.join(format!("bedplate-bench-survival-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| cannot(&path, &error))?;
        let place = Self(path.canonicalize().unwrap_or(path));
        place.write("small.json", SMALL)?;
        place.write("large.json", LARGE)?;
        place.write_corpus()?;
        Ok(place)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), NotMeasured> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|error| cannot(&path, &error))
    }

    fn write_corpus(&self) -> Result<(), CliError> {
        let texts: Vec<String> = (0..300).map(|number| generate(CorpusKind::Stories, 1, number)).collect();
        let options = TrainingOptions { vocabulary: 512, ..TrainingOptions::default() };
        let tokenizer = train_tokenizer(texts.iter().map(String::as_str), &options)?;
        let mut writer =
            CorpusWriter::create(&self.0.join("corpus"), &tokenizer, CorpusOptions::text(&tokenizer))?;
        for text in &texts {
            writer.push_text(&tokenizer.encode(text)?, text.len() as u64)?;
        }
        writer.finish()?;
        Ok(())
    }

    /// Writes the configuration of a run with an output folder of that name, and gives its path.
    pub(super) fn configure(&self, output: &str, settings: &Settings) -> Result<PathBuf, NotMeasured> {
        let Settings { model, steps, batch, sequence, checkpoint_every } = settings;
        let model = if *model == Model::Small { "small.json" } else { "large.json" };
        let text = format!(
            "[model]\nconfig = \"{model}\"\n[data]\ncorpora = [\"corpus\"]\nsequence = {sequence}\n\
             [training]\nsteps = {steps}\nbatch = {batch}\nmicro_batch = 1\nthreads = 1\n\
             [evaluation]\nevery = 0\n[checkpoint]\nevery = {checkpoint_every}\n\
             [output]\nfolder = \"{output}\"\ntensorboard = false\n"
        );
        let name = format!("{output}.toml");
        self.write(&name, &text)?;
        Ok(self.0.join(name))
    }

    pub(super) fn remove(&self, output: &str) {
        let _ = fs::remove_dir_all(self.0.join(output));
    }

    /// The finished weights of a run, tensor after tensor in the order of their names.
    pub(super) fn weights(&self, output: &str) -> Result<Vec<f32>, NotMeasured> {
        let path = self.0.join(output).join("model/model.safetensors");
        let bytes = fs::read(&path).map_err(|error| cannot(&path, &error))?;
        numbers(&bytes).ok_or_else(|| NotMeasured(format!("{} is not as it was written", path.display())))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn cannot(path: &Path, error: &std::io::Error) -> NotMeasured {
    NotMeasured(format!("{}: {error}", path.display()))
}

/// The numbers of a file of safetensors in f32.
fn numbers(bytes: &[u8]) -> Option<Vec<f32>> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let header: Value = serde_json::from_slice(rest.get(..length)?).ok()?;
    let data = rest.get(length..)?;
    let mut found = Vec::with_capacity(data.len() / 4);
    for (name, tensor) in header.as_object()? {
        if name == "__metadata__" {
            continue;
        }
        let offset = |index: usize| tensor["data_offsets"][index].as_u64().map(|offset| offset as usize);
        let own = data.get(offset(0)?..offset(1)?)?;
        found.extend(own.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)));
    }
    Some(found)
}

/// The largest difference between two sets of weights; infinite where they are not of one shape.
pub(super) fn difference(one: &[f32], other: &[f32]) -> f64 {
    if one.len() != other.len() || one.is_empty() {
        return f64::INFINITY;
    }
    one.iter().zip(other).map(|(one, other)| f64::from((one - other).abs())).fold(0.0, f64::max)
}
