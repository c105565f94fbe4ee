//! `bedplate data tokenize`

use std::path::PathBuf;
use std::time::Instant;

use bedplate_data::{
    Content, CorpusOptions, DataError, Index, Skip, Skipped, TextUnit, TokenizeOptions, Tokenized, Tokenizer,
    tokenize,
};
use bedplate_terminal::present::Facts;
use bedplate_terminal::{CliError, Console};
use bedplate_units::{Bytes, Seconds, Tokens, grouped};
use serde_json::{Value, json};

use super::meter::Meter;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate data tokenize pages.parquet --tokenizer tokenizer.json --out corpus
  bedplate data tokenize dump/ --field body --tokenizer t.json --out corpus
  bedplate data tokenize book.txt --paragraphs --tokenizer t.json --out corpus
  bedplate data tokenize chats.jsonl --chat --tokenizer t.json --out chats

Inputs are .txt and .md, .jsonl, .ndjson and .json (one list of objects),
optionally followed by .gz or .zst, .parquet, or folders of them. The corpus
is the same for any number of threads.

Each document begins with the tokenizer's begin-of-text mark and ends with its
end-of-text mark; a tokenizer with only one mark has it at the beginning.
--begin and --end name other tokens.

With --chat each record has `messages` (with role and content), `conversations`
(ShareGPT's, with from and value), `prompt` and `response`, or `instruction`,
`input` and `output` (Alpaca's). They are rendered by the tokenizer's chat
template, and only the assistant's tokens count in the loss. Other records are
left out; the first ones are named.")]
pub(crate) struct Arguments {
    /// Files or folders of text
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The tokenizer, in Hugging Face's format
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,
    /// The folder for the shards
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// The key or column that holds the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    /// Blank lines separate documents in a text file, instead of one document per file
    #[arg(long)]
    paragraphs: bool,
    /// The inputs are conversations
    #[arg(long, conflicts_with_all = ["begin", "end", "paragraphs"])]
    chat: bool,
    /// The token before each document; `none` for none
    #[arg(long, value_name = "TOKEN")]
    begin: Option<String>,
    /// The token after each document; `none` for none
    #[arg(long, value_name = "TOKEN")]
    end: Option<String>,
    /// The share of documents to hold out for validation, in FOLDER/validation
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    held_out: f64,
    /// Tokens per shard
    #[arg(long, value_name = "TOKENS", default_value = "100M")]
    shard_tokens: Tokens,
    /// Threads that encode [default: all cores]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let tokenizer = Tokenizer::load(&arguments.tokenizer)?;
    let options = options(arguments, &tokenizer)?;
    let began = Instant::now();
    let mut meter = Meter::new(console);
    let done = tokenize(&arguments.inputs, &tokenizer, &arguments.out, &options, &mut |progress| {
        let part = progress.bytes_read as f64 / progress.bytes_in_all.max(1) as f64;
        let rate =
            Bytes::new(progress.bytes_read as f64) / Seconds::new(began.elapsed().as_secs_f64().max(1e-3));
        meter.show(part, || {
            let (documents, tokens) = (grouped(progress.documents), Tokens::new(progress.tokens as f64));
            format!("{documents} documents, {tokens:.3}, {rate:.3}")
        });
    })?;
    drop(meter);
    report(arguments, &done, options.threads, began.elapsed().as_secs_f64(), console)
}

fn options(arguments: &Arguments, tokenizer: &Tokenizer) -> Result<TokenizeOptions, DataError> {
    let mut corpus = if arguments.chat { CorpusOptions::chat() } else { CorpusOptions::text(tokenizer) };
    if let Some(token) = &arguments.begin {
        corpus.begin = mark(tokenizer, token)?;
    }
    if let Some(token) = &arguments.end {
        corpus.end = mark(tokenizer, token)?;
    }
    corpus.shard_tokens = (arguments.shard_tokens.get() as u64).max(1);
    Ok(TokenizeOptions {
        corpus,
        field: arguments.field.clone(),
        unit: if arguments.paragraphs { TextUnit::Paragraph } else { TextUnit::File },
        threads: arguments
            .threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        held_out: arguments.held_out,
    })
}

fn mark(tokenizer: &Tokenizer, token: &str) -> Result<Option<u32>, DataError> {
    if token == "none" {
        return Ok(None);
    }
    tokenizer.id(token).map(Some).ok_or_else(|| DataError::BadChoice {
        what: format!("the tokenizer has no token `{token}`"),
        remedy: "name a token as it is spelled in tokenizer.json, or `none`",
    })
}

fn report(
    arguments: &Arguments,
    done: &Tokenized,
    threads: usize,
    seconds: f64,
    console: &mut Console,
) -> Result<(), CliError> {
    let all: Vec<&Index> = [Some(&done.index), done.validation.as_ref()].into_iter().flatten().collect();
    let sum = |count: fn(&Index) -> u64| all.iter().map(|index| count(index)).sum::<u64>() as f64;
    let (documents, tokens, bytes) =
        (sum(|index| index.documents), sum(|index| index.tokens), sum(|index| index.bytes));
    let per_second = |amount: f64| amount / seconds.max(1e-9);
    if console.is_json() {
        return console.json(&json!({
            "folder": arguments.out,
            "corpus": index_json(&done.index),
            "validation": done.validation.as_ref().map(index_json),
            "input_bytes": done.input_bytes,
            "answers": { "learned": done.answers.learned, "left_out": done.answers.left_out },
            "skipped": {
                "count": done.skipped.count,
                "first": done.skipped.first.iter().map(skip_text).collect::<Vec<_>>(),
            },
            "threads": threads,
            "seconds": seconds,
            "documents_per_s": per_second(documents),
            "mb_per_s": per_second(bytes) / 1e6,
            "tokens_per_s": per_second(tokens),
        }));
    }
    let mut facts = Facts::default();
    facts.add("corpus", arguments.out.display().to_string()).add("holds", holds(&done.index));
    facts.add_known("validation", done.validation.as_ref().map(holds));
    facts.add(
        "speed",
        format!(
            "{:.3}/s, {:.3}/s, {:.0} documents/s on {threads} threads",
            Bytes::new(per_second(bytes)),
            Tokens::new(per_second(tokens)),
            per_second(documents)
        ),
    );
    if done.index.content == Content::Chat {
        facts.add("answers", format!("{} to learn from", grouped(done.answers.learned)));
    }
    console.text(&facts.render(console.width()))?;
    remarks(done, console);
    console.say(&format!("see `bedplate data show {}`", arguments.out.display()));
    Ok(())
}

/// What a user would not expect: conversations that were left out, answers that are not learned.
fn remarks(done: &Tokenized, console: &mut Console) {
    let Skipped { count, first } = &done.skipped;
    if *count > 0 {
        let named: Vec<String> = first.iter().map(|skip| format!("\n  {}", skip_text(skip))).collect();
        let more = *count - first.len() as u64;
        let more = if more > 0 { format!("\n  and {} more", grouped(more)) } else { String::new() };
        console.say(&format!(
            "note: {} conversations are left out:{}{more}",
            grouped(*count),
            named.concat()
        ));
    }
    if done.answers.left_out > 0 {
        console.say(&format!(
            "note: {} answers are shown and not learned: the chat template writes them differently once further turns \
             follow; to learn them, give a record for each answer that ends with it",
            grouped(done.answers.left_out)
        ));
    }
}

fn skip_text(skip: &Skip) -> String {
    let line = skip.place.line.map_or(String::new(), |line| format!(":{line}"));
    format!("{}{line}: {}", skip.place.file, skip.reason)
}

/// One line about a corpus.
pub(super) fn holds(index: &Index) -> String {
    let what = match index.content {
        Content::Text => "documents",
        Content::Chat => "conversations",
    };
    format!("{} {what}, {} tokens", grouped(index.documents), grouped(index.tokens))
}

pub(super) fn index_json(index: &Index) -> Value {
    json!({
        "content": index.content,
        "documents": index.documents,
        "tokens": index.tokens,
        "bytes": index.bytes,
        "shards": index.shards.len(),
    })
}
