//! What the tour trains: a small model on a generated corpus, and its results.

use std::fs;
use std::path::{Path, PathBuf};

use bedplate_diag::Source;
use bedplate_terminal::present::draw_curve;
use bedplate_terminal::{CliError, ProgramError};
use bedplate_train::TrainConfig;
use serde_json::Value;

/// A Llama of a million parameters.
const MODEL: &str = r#"{
  "model_type": "llama",
  "hidden_size": 128,
  "intermediate_size": 352,
  "num_hidden_layers": 4,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "vocab_size": 1024,
  "max_position_embeddings": 128
}
"#;

/// How it is trained; everything else has its default.
const SETTINGS: &str = r#"
[model]
config = "config.json"
[data]
corpora = ["corpus"]
sequence = 128
[training]
steps = 300
batch = 8
micro_batch = 2
threads = 1
[optimizer]
learning_rate = 4e-3
warmup = 20
[evaluation]
every = 100
corpus = "corpus/validation"
batches = 2
prompt = "One day"
sample_tokens = 40
temperature = 0.6
[checkpoint]
every = 100
[output]
folder = "run"
"#;

pub(super) const DOCUMENTS: &str = "3000";

/// Writes model and configuration into a folder; returns the configuration's path.
pub(super) fn write_configuration(folder: &Path) -> Result<PathBuf, CliError> {
    let settings = TrainConfig::from_toml(Source::new("the tour's settings", SETTINGS))?;
    let write = |name: &str, text: &str| -> Result<PathBuf, CliError> {
        let path = folder.join(name);
        let failed = |error| ProgramError::Bug { what: format!("cannot write {}: {error}", path.display()) };
        fs::create_dir_all(folder).and_then(|()| fs::write(&path, text)).map_err(failed)?;
        Ok(path)
    };
    write("config.json", MODEL)?;
    write("train.toml", &settings.to_toml())
}

/// The records of a run.
pub(super) struct Learned {
    pub(super) losses: Vec<f64>,
    /// How many ranks made each step.
    pub(super) ranks: Vec<u64>,
    /// Samples of the evaluations, from first to last.
    samples: Vec<String>,
}

impl Learned {
    pub(super) fn read(folder: &Path) -> Self {
        let text = fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap_or_default();
        let records: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of_kind = |kind: &'static str| records.iter().filter(move |record| record["kind"] == kind);
        Self {
            losses: of_kind("step").filter_map(|record| record["loss"].as_f64()).collect(),
            ranks: of_kind("step").filter_map(|record| record["ranks"]["count"].as_u64()).collect(),
            samples: of_kind("evaluation")
                .filter_map(|record| Some(record["sample"].as_str()?.to_owned()))
                .collect(),
        }
    }

    pub(super) fn curve(&self, width: usize) -> String {
        draw_curve(&self.losses, width.min(76), 9).join("\n")
    }

    /// Its samples before training and at the end.
    pub(super) fn before_and_after(&self) -> Option<[String; 2]> {
        let tidy = |text: &String| {
            let printable =
                text.chars().map(|each| if each.is_control() || each == '\u{fffd}' { ' ' } else { each });
            printable.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        Some([tidy(self.samples.first()?), tidy(self.samples.last()?)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_are_a_configuration() {
        let config = TrainConfig::from_toml(Source::new("the tour's settings", SETTINGS)).unwrap();
        assert_eq!(
            config.training.batch % (4 * config.training.micro_batch),
            0,
            "four ranks share it evenly"
        );
    }
}
