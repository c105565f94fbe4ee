//! `bedplate data …`: from text to tokens that training reads.

mod generate;
mod meter;
mod show;
mod tokenize;
mod train_tokenizer;

use bedplate_terminal::{CliError, Console};

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate data generate --kind stories --documents 20000 --out corpus
  bedplate data show corpus --sample 0
  bedplate data tokenize pages.jsonl.gz --tokenizer tokenizer.json --out corpus
  bedplate data tokenize chats.jsonl --chat --tokenizer t.json --out chats
  bedplate data train-tokenizer texts/ --vocabulary 32000 --out tokenizer.json

The format of shards and the order of samples are described in docs/data.md.")]
pub(crate) enum Arguments {
    /// Make shards of tokens from text, JSON lines or Parquet
    Tokenize(tokenize::Arguments),
    /// Generate a corpus, with a tokenizer trained on it
    Generate(generate::Arguments),
    /// Show what is in a corpus, and any of its samples as text
    Show(show::Arguments),
    /// Train a byte-level BPE tokenizer on your own texts
    TrainTokenizer(train_tokenizer::Arguments),
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    match arguments {
        Arguments::Tokenize(arguments) => tokenize::run(arguments, console),
        Arguments::Generate(arguments) => generate::run(arguments, console),
        Arguments::Show(arguments) => show::run(arguments, console),
        Arguments::TrainTokenizer(arguments) => train_tokenizer::run(arguments, console),
    }
}
