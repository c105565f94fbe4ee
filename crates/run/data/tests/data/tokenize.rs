//! From files to corpora: every format, any number of threads, clear errors.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_data::{
    Content, Corpus, CorpusKind, CorpusOptions, DataError, Packing, Sample, SampleOrder, Stream,
    StreamOptions, TextUnit, TokenizeOptions, Tokenized, Tokenizer, generate, tokenize,
};
use bedplate_diag::{Diagnostic, render_text};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json};

use crate::fixture::{Folder, byte_tokenizer};

fn options(tokenizer: &Tokenizer) -> TokenizeOptions {
    TokenizeOptions {
        corpus: CorpusOptions::text(tokenizer),
        field: "text".to_owned(),
        unit: TextUnit::File,
        threads: 2,
        held_out: 0.0,
    }
}

fn run(input: &Path, out: &Path, change: impl FnOnce(&mut TokenizeOptions)) -> Result<Tokenized, DataError> {
    let tokenizer = byte_tokenizer();
    let mut options = options(&tokenizer);
    change(&mut options);
    tokenize(&[input.to_owned()], &tokenizer, out, &options, &mut |_| {})
}

/// The documents of a corpus as text, marks spelled out.
fn documents(folder: &Path) -> Vec<String> {
    let corpus = Corpus::open(folder).unwrap();
    let tokenizer = corpus.load_tokenizer().unwrap();
    let sequence = corpus.tokens() as usize - 1;
    let options =
        StreamOptions { sequence, seed: 0, packing: Packing::Windows, order: SampleOrder::Sequential };
    let mut sample = Sample::default();
    Stream::of(corpus, options).unwrap().fill(0, &mut sample).unwrap();
    let ends = sample.starts()[1..].iter().map(|start| *start as usize).chain([sample.tokens().len()]);
    let ranges = sample.starts().iter().map(|start| *start as usize).zip(ends);
    ranges.map(|(from, to)| tokenizer.decode(&sample.tokens()[from..to]).unwrap()).collect()
}

fn write_parquet(path: &Path, texts: &[Option<&str>], compression: Compression) {
    let schema =
        parse_message_type("message pages { required int32 id; optional binary text (UTF8); }").unwrap();
    let properties = WriterProperties::builder().set_compression(compression).build();
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut ids = group.next_column().unwrap().unwrap();
    let numbers: Vec<i32> = (0..texts.len() as i32).collect();
    ids.typed::<parquet::data_type::Int32Type>().write_batch(&numbers, None, None).unwrap();
    ids.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values: Vec<ByteArray> = texts.iter().flatten().map(|text| ByteArray::from(*text)).collect();
    let levels: Vec<i16> = texts.iter().map(|text| i16::from(text.is_some())).collect();
    column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn every_format_gives_the_same_documents() {
    let folder = Folder::new();
    let lines =
        "{\"text\": \"one\", \"id\": 1}\n\n{\"text\": \"zwölf\"}\n{\"text\": \"\"}\n{\"text\": \"three\"}\n";
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(lines.as_bytes()).unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("a.jsonl"), lines).unwrap();
    fs::write(path("b.jsonl.gz"), packed.finish().unwrap()).unwrap();
    fs::write(path("c.ndjson.zst"), zstd::encode_all(lines.as_bytes(), 1).unwrap()).unwrap();
    fs::write(path("d.txt"), "one\n\nzwölf\n\nthree").unwrap();
    let rows = [Some("one"), None, Some("zwölf"), Some(""), Some("three")];
    write_parquet(&path("e.parquet"), &rows, Compression::UNCOMPRESSED);
    write_parquet(&path("f.parquet"), &rows, Compression::SNAPPY);
    write_parquet(&path("g.parquet"), &rows, Compression::ZSTD(Default::default()));
    write_parquet(&path("h.parquet"), &rows, Compression::GZIP(Default::default()));
    write_parquet(&path("i.parquet"), &rows, Compression::LZ4_RAW);
    write_parquet(&path("j.parquet"), &rows, Compression::LZ4);
    write_parquet(&path("k.parquet"), &rows, Compression::BROTLI(Default::default()));
    let expected = ["<|endoftext|>one", "<|endoftext|>zwölf", "<|endoftext|>three"];
    let parquet = ["e", "f", "g", "h", "i", "j", "k"].map(|name| format!("{name}.parquet"));
    let others = ["a.jsonl", "b.jsonl.gz", "c.ndjson.zst", "d.txt"].map(str::to_owned);
    for name in others.iter().chain(&parquet) {
        let out = path(&format!("out-{name}"));
        run(&path(name), &out, |options| options.unit = TextUnit::Paragraph).unwrap();
        let found: Vec<String> = documents(&out).iter().map(|text| text.trim_end().to_owned()).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_text_file_is_one_document_and_folders_are_read_in_order() {
    let folder = Folder::new();
    let texts = folder.path().join("texts");
    fs::create_dir_all(texts.join("inner")).unwrap();
    fs::write(texts.join("b.txt"), "b\n\nb").unwrap();
    fs::write(texts.join("a.md"), "a").unwrap();
    fs::write(texts.join("inner/c.txt"), "c").unwrap();
    fs::write(texts.join("picture.png"), [0, 1, 2]).unwrap();
    let out = folder.path().join("out");
    run(&texts, &out, |options| options.corpus.end = Some(0)).unwrap();
    let end = "<|endoftext|>";
    assert_eq!(documents(&out), ["a", "b\n\nb", "c"].map(|text| format!("{end}{text}{end}")));
}

fn generated(folder: &Folder, count: u64) -> PathBuf {
    let path = folder.path().join("generated.jsonl");
    let lines: Vec<String> = (0..count)
        .map(|number| json!({ "text": generate(CorpusKind::Mixture, 4, number) }).to_string())
        .collect();
    fs::write(&path, lines.join("\n")).unwrap();
    path
}

#[test]
fn the_corpus_is_the_same_for_any_number_of_threads() {
    let folder = Folder::new();
    let input = generated(&folder, 4000);
    let mut digests = Vec::new();
    for threads in [1, 2, 5] {
        let out = folder.path().join(format!("out-{threads}"));
        let done = run(&input, &out, |options| {
            options.threads = threads;
            options.held_out = 0.05;
            options.corpus.shard_tokens = 300_000;
        });
        let done = done.unwrap();
        assert!(done.index.shards.len() > 3);
        let validation = done.validation.unwrap();
        assert!((100..300).contains(&validation.documents), "{}", validation.documents);
        assert_eq!(validation.documents + done.index.documents, 4000);
        let digest = |path: &Path| Corpus::open(path).unwrap().digest();
        digests.push((digest(&out), digest(&out.join("validation"))));
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]));
}

#[test]
fn conversations_carry_a_mask() {
    let folder = Folder::new();
    let input = folder.path().join("chat.jsonl");
    let messages = json!([{ "role": "user", "content": "2 + 2?" }, { "role": "assistant", "content": "4" }]);
    let lines = [json!({ "messages": messages }), json!({ "prompt": "5?", "response": "yes" })];
    fs::write(&input, lines.map(|line| line.to_string()).join("\n")).unwrap();
    let out = folder.path().join("out");
    let done = run(&input, &out, |options| options.corpus = CorpusOptions::chat()).unwrap();
    assert_eq!((done.index.content, done.index.documents), (Content::Chat, 2));
    let corpus = Corpus::open(&out).unwrap();
    let tokenizer = corpus.load_tokenizer().unwrap();
    let options =
        StreamOptions { sequence: 199, seed: 0, packing: Packing::Whole, order: SampleOrder::Sequential };
    let mut sample = Sample::default();
    Stream::of(corpus, options).unwrap().fill(0, &mut sample).unwrap();
    let counted: Vec<u32> = (sample.tokens().iter().zip(sample.counts()))
        .filter_map(|(token, counts)| counts.then_some(*token))
        .collect();
    assert_eq!(tokenizer.decode(&counted).unwrap(), "4<|im_end|>yes<|im_end|>");
}

/// What counts in the loss of a corpus of conversations.
fn learned(folder: &Path) -> String {
    let corpus = Corpus::open(folder).unwrap();
    let tokenizer = corpus.load_tokenizer().unwrap();
    let options =
        StreamOptions { sequence: 999, seed: 0, packing: Packing::Whole, order: SampleOrder::Sequential };
    let mut sample = Sample::default();
    Stream::of(corpus, options).unwrap().fill(0, &mut sample).unwrap();
    let counted: Vec<u32> = (sample.tokens().iter().zip(sample.counts()))
        .filter_map(|(token, counts)| counts.then_some(*token))
        .collect();
    tokenizer.decode(&counted).unwrap()
}

#[test]
fn conversations_of_every_shape_are_read_from_lists_and_lines() {
    let folder = Folder::new();
    let records = [
        json!({ "messages": [{ "role": "user", "content": "2 + 2?" }, { "role": "assistant", "content": "4" }] }),
        json!({ "conversations": [{ "from": "human", "value": "1?" }, { "from": "gpt", "value": "one" }] }),
        json!({ "instruction": "Add.", "input": "1, 2", "output": "3" }),
    ];
    let lines = records.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    let list = serde_json::to_string_pretty(&records).unwrap();
    for (name, content) in [("a.jsonl", &lines), ("b.json", &list), ("c.json", &lines)] {
        let input = folder.path().join(name);
        fs::write(&input, content).unwrap();
        let out = folder.path().join(format!("out-{name}"));
        let done = run(&input, &out, |options| options.corpus = CorpusOptions::chat()).unwrap();
        assert_eq!((done.index.documents, done.answers.learned, done.skipped.count), (3, 3, 0), "{name}");
        assert_eq!(learned(&out), "4<|im_end|>one<|im_end|>3<|im_end|>", "{name}");
    }
}

/// Three conversations that pyarrow wrote with lz4, in two groups of rows: a list of structures, of which every row has every key.
const CONVERSATIONS: &[u8] = include_bytes!("conversations.parquet");

#[test]
fn conversations_in_parquet_are_those_in_json() {
    let folder = Folder::new();
    let call = json!({ "function": { "name": "f", "arguments": "{\"a\": 1}" } });
    let records = [
        json!({ "messages": [{ "role": "user", "content": "2 + 2?" }, { "role": "assistant", "content": "4" }] }),
        json!({ "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "zwölf?" },
                             { "role": "assistant", "content": "12" }] }),
        json!({ "messages": [{ "role": "user", "content": "Rain?" },
                             { "role": "assistant", "content": "No.", "tool_calls": [call] }] }),
    ];
    let lines = records.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (name, content) in [("a.parquet", CONVERSATIONS), ("a.jsonl", lines.as_bytes())] {
        let (input, out) = (folder.path().join(name), folder.path().join(format!("out-{name}")));
        fs::write(&input, content).unwrap();
        let done = run(&input, &out, |options| options.corpus = CorpusOptions::chat()).unwrap();
        assert_eq!((done.index.documents, done.answers.learned, done.skipped.count), (3, 3, 0), "{name}");
        found.push((learned(&out), documents(&out)));
    }
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0].0, "4<|im_end|>12<|im_end|>No.<|im_end|>");
}

#[test]
fn broken_parquet_is_refused_or_read_and_breaks_nothing() {
    let folder = Folder::new();
    let mut mutator = bedplate_testkit::Mutator::new(0x5eed);
    let (mut read, mut refused) = (0, 0);
    for round in 0..150 {
        let input = folder.path().join(format!("{round}.parquet"));
        fs::write(&input, mutator.mutate(CONVERSATIONS)).unwrap();
        let out = folder.path().join(format!("out-{round}"));
        match run(&input, &out, |options| options.corpus = CorpusOptions::chat()) {
            Ok(_) => read += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0, "{read} read, {refused} refused");
}

#[test]
fn odd_conversations_are_left_out_and_named() {
    let folder = Folder::new();
    let good = json!({ "prompt": "5?", "response": "yes" }).to_string();
    let odd = ["{\"messages\": 3}", "not json", "{\"text\": \"x\"}", "{\"prompt\": \"x\"}", "[]", "{}"];
    let lines: Vec<&str> = odd.iter().flat_map(|odd| [good.as_str(), *odd]).collect();
    let input = folder.path().join("chat.jsonl");
    fs::write(&input, lines.join("\n")).unwrap();
    let out = folder.path().join("out");
    let done = run(&input, &out, |options| options.corpus = CorpusOptions::chat()).unwrap();
    assert_eq!((done.index.documents, done.skipped.count), (6, 6));
    let named: Vec<Option<usize>> = done.skipped.first.iter().map(|skip| skip.place.line).collect();
    assert_eq!(named, [2, 4, 6, 8, 10].map(Some));
    assert!(done.skipped.first[1].reason.contains("it is not JSON"), "{:?}", done.skipped.first[1]);
    assert_eq!(learned(&out), "yes<|im_end|>".repeat(6));
}

#[test]
fn nothing_makes_no_corpus() {
    let folder = Folder::new();
    let empty = folder.path().join("empty");
    fs::create_dir_all(&empty).unwrap();
    for (name, content) in
        [("a.txt", ""), ("b.jsonl", "\n\n"), ("c.json", "[]"), ("d.jsonl", "{\"text\": \"\"}")]
    {
        fs::write(folder.path().join(name), content).unwrap();
    }
    for name in ["empty", "a.txt", "b.jsonl", "c.json", "d.jsonl"] {
        let out = folder.path().join(format!("out-{name}"));
        let error = run(&folder.path().join(name), &out, |_| {}).unwrap_err();
        assert_eq!(error.page().code, "data/no-documents", "{name}: {error}");
        assert!(!out.join("index.json").exists(), "{name}: no corpus is left");
    }
}

/// The code and the message for an input of this name and content.
fn complaint(
    name: &str,
    content: &[u8],
    change: impl FnOnce(&mut TokenizeOptions),
) -> (&'static str, String) {
    let folder = Folder::new();
    let input = folder.path().join(name);
    fs::write(&input, content).unwrap();
    let error = run(&input, &folder.path().join("out"), change).unwrap_err();
    assert!(!folder.path().join("out/index.json").exists(), "no corpus is left");
    let text = render_text(&error).replace(&format!("{}/", folder.path().display()), "");
    (error.page().code, text)
}

#[test]
fn complaints_name_the_file_and_the_line() {
    let chat = |options: &mut TokenizeOptions| options.corpus = CorpusOptions::chat();
    let plain = |_: &mut TokenizeOptions| {};
    let (code, text) = complaint("a.jsonl", b"{\"text\": \"x\"}\n\n{\"text\": 3}\n", plain);
    assert_eq!(code, "data/bad-record");
    assert!(text.contains("its `text` is not a text") && text.contains("a.jsonl:3: {\"text\": 3}"), "{text}");
    let (code, text) = complaint("a.jsonl", b"{\"body\": \"x\"}\n", plain);
    assert!(code == "data/bad-record" && text.contains("no key `text`, but body"), "{text}");
    let (code, text) = complaint("a.jsonl", b"{\"text\": \"x\"\n", plain);
    assert!(
        code == "data/bad-record" && text.contains("it is not JSON") && text.contains("a.jsonl:1"),
        "{text}"
    );
    let (code, text) =
        complaint("a.jsonl", b"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n", chat);
    assert!(code == "data/bad-record" && text.contains("no assistant answer"), "{text}");
    let (code, text) = complaint("a.jsonl", b"{\"messages\": [{\"role\": \"user\"}]}\n", chat);
    assert!(code == "data/bad-record" && text.contains("neither `content` nor `value`"), "{text}");
    let (code, _) = complaint("a.txt", b"x", chat);
    assert_eq!(code, "data/bad-choice");
    let (code, text) = complaint("a.txt", b"good \xff bad", plain);
    assert!(code == "data/bad-input" && text.contains("not UTF-8, after `good`"), "{text}");
    let (code, text) = complaint("a.parquet", b"PAR1 and more PAR1", plain);
    assert!(code == "data/bad-input" && text.contains("a.parquet cannot be read as Parquet"), "{text}");
    let (code, _) = complaint("a.jsonl.gz", b"not packed", plain);
    assert_eq!(code, "data/read");
    let (code, _) = complaint("a.csv", b"x", plain);
    assert_eq!(code, "data/unknown-input");
    let (code, _) = complaint("a.txt", b"x", |options| options.held_out = 1.5);
    assert_eq!(code, "data/bad-choice");
}

#[test]
fn a_missing_parquet_column_is_named_with_those_there_are() {
    let folder = Folder::new();
    let path = folder.path().join("pages.parquet");
    write_parquet(&path, &[Some("x")], Compression::UNCOMPRESSED);
    let error =
        run(&path, &folder.path().join("out"), |options| options.field = "body".to_owned()).unwrap_err();
    assert!(error.to_string().contains("no column `body`, but id, text"), "{error}");
    let error =
        run(&path, &folder.path().join("out"), |options| options.field = "id".to_owned()).unwrap_err();
    assert!(error.to_string().contains("does not hold texts"), "{error}");
}
