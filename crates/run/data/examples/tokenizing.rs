//! Text encoded per second and thread count, without writing it anywhere.
//!
//! `cargo run --release -p bedplate-data --example tokenizing -- tokenizer.json texts.jsonl`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use bedplate_data::{DataError, TextUnit, Tokenizer, read_texts};

fn main() -> Result<(), DataError> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, tokenizer, input] = arguments.as_slice() else {
        println!("usage: tokenizing TOKENIZER INPUT");
        return Ok(());
    };
    let tokenizer = Tokenizer::load(Path::new(tokenizer))?;
    let texts = read_texts(&[PathBuf::from(input)], "text", TextUnit::File, usize::MAX)?;
    let bytes: usize = texts.iter().map(String::len).sum();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in [1, cores] {
        let began = Instant::now();
        let tokens: usize = std::thread::scope(|scope| {
            let share = texts.len().div_ceil(threads).max(1);
            let workers: Vec<_> =
                texts.chunks(share).map(|own| scope.spawn(|| count(&tokenizer, own))).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a worker does not panic"))
                .sum::<Result<_, _>>()
        })?;
        let seconds = began.elapsed().as_secs_f64();
        println!("{threads} threads: {:.1} MB/s, {tokens} tokens", bytes as f64 / seconds / 1e6);
    }
    Ok(())
}

fn count(tokenizer: &Tokenizer, texts: &[String]) -> Result<usize, DataError> {
    let mut encoder = tokenizer.encoder();
    let mut ids = Vec::new();
    for text in texts {
        encoder.encode(text, &mut ids)?;
    }
    Ok(ids.len())
}
