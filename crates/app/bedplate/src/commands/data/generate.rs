//! `bedplate data generate`

use std::path::PathBuf;

use bedplate_data::{
    Content, CorpusKind, GenerateOptions, Generated, Tokenizer, generate, generate_conversation,
    generate_corpus,
};
use bedplate_terminal::present::Facts;
use bedplate_terminal::{CliError, Console};
use bedplate_units::grouped;
use serde_json::json;

use super::meter::Meter;
use super::tokenize::{holds, index_json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate data generate --documents 20000 --out corpus
  bedplate data generate --kind arithmetic --documents 3 --print
  bedplate data generate --chat --tokenizer corpus/tokenizer.json --out chats
  bedplate data generate --kind stories --tokenizer t.json --out corpus

Stories are about people with new names who move around and take, give and
leave things; at the end are questions whose answers follow from the story.
Arithmetic has sums, differences and comparisons with their working. The same
kind, seed and number always give the same document.")]
pub(crate) struct Arguments {
    /// stories, arithmetic, or a mixture of both
    #[arg(long, default_value = "mixture")]
    kind: CorpusKind,
    /// Conversations: a question from each document and its answer
    #[arg(long)]
    chat: bool,
    /// Documents in the corpus
    #[arg(long, value_name = "COUNT", default_value_t = GenerateOptions::default().documents)]
    documents: u64,
    /// Further documents for validation, in FOLDER/validation
    #[arg(long, value_name = "COUNT", default_value_t = GenerateOptions::default().validation)]
    validation: u64,
    /// The seed; each gives a different corpus
    #[arg(long, value_name = "NUMBER", default_value_t = GenerateOptions::default().seed)]
    seed: u64,
    /// The folder for shards and tokenizer
    #[arg(long, value_name = "FOLDER", required_unless_present = "print")]
    out: Option<PathBuf>,
    /// Print the documents as JSON lines instead
    #[arg(long, conflicts_with = "out")]
    print: bool,
    /// Vocabulary size of the trained tokenizer
    #[arg(long, value_name = "COUNT", default_value_t = GenerateOptions::default().vocabulary)]
    vocabulary: u32,
    /// Use this tokenizer instead of training one
    #[arg(long, value_name = "FILE", conflicts_with = "vocabulary")]
    tokenizer: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let Some(folder) = &arguments.out else { return print(arguments, console) };
    let options = GenerateOptions {
        kind: arguments.kind,
        content: if arguments.chat { Content::Chat } else { Content::Text },
        seed: arguments.seed,
        documents: arguments.documents,
        validation: arguments.validation,
        vocabulary: arguments.vocabulary,
    };
    let tokenizer = arguments.tokenizer.as_deref().map(Tokenizer::load).transpose()?;
    let mut meter = Meter::new(console);
    let in_all = options.documents + options.validation;
    let done = generate_corpus(folder, &options, tokenizer, &mut |documents| {
        let part = documents as f64 / in_all.max(1) as f64;
        meter.show(part, || format!("{} documents", grouped(documents)));
    })?;
    drop(meter);
    report(folder, &done, console)
}

fn print(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    for number in 0..arguments.documents {
        let record = match arguments.chat {
            true => json!({ "messages": generate_conversation(arguments.kind, arguments.seed, number) }),
            false => json!({ "text": generate(arguments.kind, arguments.seed, number) }),
        };
        console.line(&record.to_string())?;
    }
    Ok(())
}

fn report(folder: &std::path::Path, done: &Generated, console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        return console.json(&json!({
            "folder": folder,
            "corpus": index_json(&done.index),
            "validation": done.validation.as_ref().map(index_json),
            "tokenizer": { "vocabulary": done.tokenizer.vocabulary(), "digest": done.tokenizer.digest() },
        }));
    }
    let mut facts = Facts::default();
    facts.add("corpus", folder.display().to_string()).add("holds", holds(&done.index));
    facts.add_known("validation", done.validation.as_ref().map(holds));
    facts.add("tokenizer", format!("{} ids", grouped(u64::from(done.tokenizer.vocabulary()))));
    console.text(&facts.render(console.width()))?;
    console.say(&format!("see `bedplate data show {} --sample 0`", folder.display()));
    Ok(())
}
