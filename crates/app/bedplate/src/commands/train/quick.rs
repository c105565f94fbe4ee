//! `bedplate train --quick`: from nothing to a trained model in one line.
//!
//! A corpus that the program makes up, a small model and its settings are put into a folder, and are then ordinary files: the next run may
//! change them.

use std::fs;
use std::path::{Path, PathBuf};

use bedplate_diag::Source;
use bedplate_terminal::{CliError, Console, Context, ProgramError, files};
use bedplate_train::TrainConfig;
use clap::Parser;

use crate::cli::Cli;

/// A Llama of three million parameters.
const MODEL: &str = r#"{
  "model_type": "llama",
  "hidden_size": 192,
  "intermediate_size": 512,
  "num_hidden_layers": 6,
  "num_attention_heads": 6,
  "num_key_value_heads": 3,
  "vocab_size": 1024,
  "max_position_embeddings": 512
}
"#;

const SETTINGS: &str = r#"
[model]
config = "config.json"
[data]
corpora = ["corpus"]
sequence = 128
[training]
steps = 200
batch = 8
micro_batch = 4
[optimizer]
learning_rate = 4e-3
warmup = 20
[evaluation]
every = 50
corpus = "corpus/validation"
batches = 2
prompt = "One day"
sample_tokens = 40
temperature = 0.6
[checkpoint]
every = 50
[output]
folder = "run"
"#;

const DOCUMENTS: &str = "3000";

/// The settings in the folder.
pub(super) fn configuration(folder: &Path) -> PathBuf {
    folder.join("train.toml")
}

/// Fills the folder, which must be new or empty.
pub(super) fn prepare(folder: &Path, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let shown = folder.display();
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        let message = format!(
            "`{shown}` holds something already; go on with `bedplate train --resume {shown}/run`, or name another folder: `--quick FOLDER`"
        );
        return Err(ProgramError::Usage { message }.into());
    }
    console.say(&format!(
        "a corpus of {DOCUMENTS} made-up stories and sums, a tokenizer, a model and settings in {shown}"
    ));
    let corpus = folder.join("corpus").display().to_string();
    let generate =
        ["bedplate", "data", "generate", "--documents", DOCUMENTS, "--vocabulary", "1024", "--out", &corpus];
    let cli = Cli::try_parse_from(generate).map_err(CliError::from_clap)?;
    crate::commands::run(cli.command, context, &mut Console::recorder())?;
    files::write_own(&folder.join("config.json"), MODEL)?;
    files::write_own(&configuration(folder), &settings(folder)?.to_toml())?;
    Ok(())
}

/// With paths that hold from here.
fn settings(folder: &Path) -> Result<TrainConfig, CliError> {
    let mut config = TrainConfig::from_toml(Source::new("the quick start's settings", SETTINGS))?;
    config.model.config = folder.join(&config.model.config).display().to_string();
    config.data.corpora.iter_mut().for_each(|corpus| corpus.path = folder.join(&corpus.path));
    config.evaluation.corpus = config.evaluation.corpus.map(|corpus| folder.join(corpus));
    config.output.folder = folder.join(&config.output.folder);
    Ok(config)
}

pub(super) fn say_what_next(folder: &Path, console: &Console) {
    let run = folder.join("run");
    let run = run.display();
    console.say(&format!(
        "next:\n  bedplate train show {run} --plot\n  bedplate generate {run} 'One day'\n  bedplate serve {run}\n  \
         bedplate train {} --set output.folder=again --set training.steps=400",
        configuration(folder).display()
    ));
}
