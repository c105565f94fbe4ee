//! Samples read per second, compared with a plain copy of the same size.
//!
//! `cargo run --release -p bedplate-data --example reading -- FOLDER [SEQUENCE]`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use bedplate_data::{
    Batch, Corpus, DataError, DocumentMask, Packing, Sample, SampleOrder, Stream, StreamOptions,
};

const FOR: Duration = Duration::from_secs(2);

fn main() -> Result<(), DataError> {
    let arguments: Vec<String> = std::env::args().collect();
    let folder = arguments.get(1).map_or("corpus", String::as_str);
    let sequence = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(2048);
    let options =
        StreamOptions { sequence, seed: 1, packing: Packing::Windows, order: SampleOrder::Shuffled };
    let stream = Stream::of(Corpus::open(Path::new(folder))?, options)?;

    let mut sample = Sample::default();
    let samples = rate(|number| {
        stream.fill(number, &mut sample).map(|()| {
            black_box(&sample);
        })
    })?;
    let mut batch = Batch::default();
    let batches = rate(|number| {
        batch.fill(&stream, number, 1, DocumentMask::Own, &mut sample).map(|()| {
            black_box(&batch);
        })
    })?;
    let from = vec![1u32; sequence + 1];
    let mut to = vec![0u32; sequence + 1];
    let copies = rate(|_| {
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        Ok(())
    })?;
    let tokens = sequence as f64 / 1e6;
    println!("samples        {:8.0} million tokens/s", samples * tokens);
    println!("batches        {:8.0} million tokens/s", batches * tokens);
    println!("copy of memory {:8.0} million tokens/s", copies * tokens);
    Ok(())
}

/// Calls per second.
fn rate(mut act: impl FnMut(u64) -> Result<(), DataError>) -> Result<f64, DataError> {
    let began = Instant::now();
    let mut number = 0;
    while began.elapsed() < FOR {
        for _ in 0..64 {
            act(number)?;
            number += 1;
        }
    }
    Ok(number as f64 / began.elapsed().as_secs_f64())
}
