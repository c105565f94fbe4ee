//! `bedplate data show`

use std::path::PathBuf;

use bedplate_data::{
    Content, Corpus, DocumentLengths, Packing, Sample, SampleOrder, Stream, StreamOptions, Tokenizer,
    VALIDATION_FOLDER,
};
use bedplate_terminal::present::{Column, Facts, Table, bar, wrap};
use bedplate_terminal::{CliError, Console, length};
use bedplate_units::{Bytes, grouped};
use serde_json::{Value, json};

use super::tokenize::{holds, index_json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate data show corpus
  bedplate data show corpus --sample 0 --sequence 512 --seed 7
  bedplate data show corpus --verify

A sample is what a run with this sequence and seed would see; conversations are
packed whole.")]
pub(crate) struct Arguments {
    /// A folder of shards
    folder: PathBuf,
    /// Show the sample with this number as text
    #[arg(long, value_name = "NUMBER")]
    sample: Option<u64>,
    /// Tokens per sample
    #[arg(long, value_name = "TOKENS", default_value_t = 256, requires = "sample", value_parser = length::<usize>(1 << 30))]
    sequence: usize,
    /// The seed of the order
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "sample")]
    seed: u64,
    /// Read every shard to its end and check it
    #[arg(long)]
    verify: bool,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let corpus = Corpus::open(&arguments.folder)?;
    let tokenizer = corpus.load_tokenizer()?;
    let beneath = arguments.folder.join(VALIDATION_FOLDER);
    let validation = beneath.join("index.json").exists().then(|| Corpus::open(&beneath)).transpose()?;
    if arguments.verify {
        corpus.verify()?;
        validation.as_ref().map(Corpus::verify).transpose()?;
    }
    let summary = summary(&corpus, validation.as_ref(), &tokenizer)?;
    let (facts, lengths, as_json) =
        (summary, lengths(&corpus.index().lengths), summary_json(&corpus, validation.as_ref()));
    let sample =
        arguments.sample.map(|number| Shown::fetch(arguments, corpus, &tokenizer, number)).transpose()?;
    if console.is_json() {
        let mut object = as_json;
        object["verified"] = json!(arguments.verify);
        object["sample"] = sample.map_or(Value::Null, |sample| sample.json());
        return console.json(&object);
    }
    console.text(&facts.render(console.width()))?;
    console.line("")?;
    console.table(&lengths)?;
    if let Some(sample) = sample {
        console.line("")?;
        console.text(&sample.text(console.width()))?;
    }
    if arguments.verify {
        console.say("every block of every shard is intact");
    }
    Ok(())
}

fn summary(corpus: &Corpus, validation: Option<&Corpus>, tokenizer: &Tokenizer) -> Result<Facts, CliError> {
    let index = corpus.index();
    let mut facts = Facts::default();
    facts.add("corpus", corpus.folder().display().to_string()).add("holds", holds(index));
    let shards = if index.shards.len() == 1 { "shard" } else { "shards" };
    facts.add(
        "on disk",
        format!("{:.3} in {} {shards}", Bytes::new(corpus.disk_bytes() as f64), index.shards.len()),
    );
    if index.tokens > 0 {
        let per_token = index.bytes as f64 / index.tokens as f64;
        facts.add("text", format!("{:.3}, {per_token:.2} bytes per token", Bytes::new(index.bytes as f64)));
    }
    let entry = &index.tokenizer;
    facts.add("tokenizer", format!("{} ids, digest {}", grouped(u64::from(entry.vocabulary)), entry.digest));
    for (label, id) in [("begins with", entry.begin), ("ends with", entry.end)] {
        facts.add_known(
            label,
            id.map(|id| tokenizer.decode(&[id]).map(|text| format!("{text} ({id})"))).transpose()?,
        );
    }
    facts.add_known("validation", validation.map(|corpus| holds(corpus.index())));
    facts.add("digest", corpus.digest().to_string());
    Ok(facts)
}

fn summary_json(corpus: &Corpus, validation: Option<&Corpus>) -> Value {
    let index = corpus.index();
    json!({
        "folder": corpus.folder(),
        "digest": corpus.digest(),
        "corpus": index_json(index),
        "disk_bytes": corpus.disk_bytes(),
        "tokenizer": index.tokenizer,
        "lengths": rungs(&index.lengths).map(|rung| json!({ "from": rung.from, "to": rung.to, "documents": rung.documents })).collect::<Vec<_>>(),
        "validation": validation.map(|corpus| index_json(corpus.index())),
    })
}

/// Documents of `from` to `to` tokens.
struct Rung {
    from: u64,
    to: u64,
    documents: u64,
}

fn rungs(lengths: &DocumentLengths) -> impl Iterator<Item = Rung> {
    let all = lengths.0.iter().enumerate();
    let rungs =
        all.map(|(power, documents)| Rung { from: 1 << power, to: (2 << power) - 1, documents: *documents });
    rungs.skip_while(|rung| rung.documents == 0)
}

fn lengths(lengths: &DocumentLengths) -> Table {
    let mut table =
        Table::new(vec![Column::right("TOKENS", 0), Column::right("DOCUMENTS", 0), Column::left("", 0)]);
    let most = rungs(lengths).map(|rung| rung.documents).max().unwrap_or(1).max(1);
    for rung in rungs(lengths) {
        let part = rung.documents as f64 / most as f64;
        table.row(vec![format!("{}-{}", rung.from, rung.to), grouped(rung.documents), bar(part, 30)]);
    }
    table
}

/// A sample, split into its documents.
struct Shown {
    number: u64,
    sample: Sample,
    /// The text of each document in it.
    texts: Vec<String>,
}

impl Shown {
    fn fetch(
        arguments: &Arguments,
        corpus: Corpus,
        tokenizer: &Tokenizer,
        number: u64,
    ) -> Result<Self, CliError> {
        let packing = match corpus.index().content {
            Content::Text => Packing::Windows,
            Content::Chat => Packing::Whole,
        };
        let options = StreamOptions {
            sequence: arguments.sequence,
            seed: arguments.seed,
            packing,
            order: SampleOrder::Shuffled,
        };
        let mut sample = Sample::default();
        Stream::of(corpus, options)?.fill(number, &mut sample)?;
        let end = sample.tokens().len() - sample.padding;
        let starts = sample.starts().iter().map(|start| *start as usize).filter(|start| *start < end);
        let mut texts = Vec::new();
        let mut from = 0;
        for end in starts.filter(|start| *start > 0).chain([end]) {
            texts.push(tokenizer.decode(&sample.tokens()[from..end])?);
            from = end;
        }
        Ok(Self { number, sample, texts })
    }

    fn text(&self, width: Option<usize>) -> String {
        let (tokens, counted) =
            (self.sample.tokens().len(), self.sample.counts().iter().filter(|counts| **counts).count());
        let padding = match self.sample.padding {
            0 => String::new(),
            padding => format!(", {padding} of padding"),
        };
        let mut text = format!(
            "sample {}, epoch {}: {tokens} tokens of {} documents, {counted} count in the loss{padding}\n",
            self.number,
            self.sample.epoch,
            self.texts.len()
        );
        for (number, document) in self.texts.iter().enumerate() {
            text += &format!("--- document {}\n", number + 1);
            for line in document.lines() {
                wrap(line, width.unwrap_or(usize::MAX)).iter().for_each(|line| text += &format!("{line}\n"));
            }
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "number": self.number,
            "epoch": self.sample.epoch,
            "tokens": self.sample.tokens(),
            "starts": self.sample.starts(),
            "padding": self.sample.padding,
            "counts": self.sample.counts(),
            "documents": self.texts,
        })
    }
}
