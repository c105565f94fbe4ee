//! `bedplate data train-tokenizer`

use std::path::PathBuf;

use bedplate_data::{TextUnit, TrainingOptions, read_texts, train_tokenizer};
use bedplate_terminal::present::Facts;
use bedplate_terminal::{CliError, Console, files};
use bedplate_units::{Bytes, grouped};
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate data train-tokenizer texts/ --vocabulary 32000 --out tokenizer.json
  bedplate data train-tokenizer pages.jsonl --field body --out tokenizer.json

The result is a tokenizer.json that Hugging Face's libraries read too. The same
texts give the same tokenizer in any order.")]
pub(crate) struct Arguments {
    /// Files or folders of text, as for `data tokenize`
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The file for the tokenizer
    #[arg(long, value_name = "FILE")]
    out: String,
    /// Vocabulary size: special tokens, 256 bytes, and merges
    #[arg(long, value_name = "COUNT", default_value_t = 4096)]
    vocabulary: u32,
    /// A special token, in the order of their ids; the first is the end of text
    #[arg(long, value_name = "TOKEN", default_values_t = TrainingOptions::default().special)]
    special: Vec<String>,
    /// The key or column that holds the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    /// How much of the inputs to read
    #[arg(long, value_name = "SIZE", default_value = "200MB")]
    most: Bytes,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let texts =
        read_texts(&arguments.inputs, &arguments.field, TextUnit::File, arguments.most.get() as usize)?;
    let options = TrainingOptions {
        vocabulary: arguments.vocabulary,
        special: arguments.special.clone(),
        ..TrainingOptions::default()
    };
    let tokenizer = train_tokenizer(texts.iter().map(String::as_str), &options)?;
    files::write_text(&arguments.out, tokenizer.json())?;
    let bytes: usize = texts.iter().map(String::len).sum();
    if console.is_json() {
        return console.json(&json!({
            "file": arguments.out,
            "vocabulary": tokenizer.vocabulary(),
            "digest": tokenizer.digest(),
            "documents": texts.len(),
            "bytes": bytes,
        }));
    }
    let mut facts = Facts::default();
    facts.add("tokenizer", &arguments.out);
    facts.add("vocabulary", format!("{} ids", grouped(u64::from(tokenizer.vocabulary()))));
    facts.add(
        "trained on",
        format!("{} documents, {:.3}", grouped(texts.len() as u64), Bytes::new(bytes as f64)),
    );
    console.text(&facts.render(console.width()))
}
