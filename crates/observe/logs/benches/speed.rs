//! How fast a log is read, beside `grep -c` and `wc -l` on the same file, and how much memory that takes.
//!
//! `cargo bench -p bedplate-logs --bench speed [-- MEGABYTES]`; the default is 1,000. The log has the lines of a job of
//! sixteen ranks: every eighth is a step, a few are errors, the rest is talk.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use bedplate_logs::{LogReader, Recognizer};

const PIECE: usize = 1 << 20;

#[expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
fn main() -> std::io::Result<()> {
    let megabytes = std::env::args().filter_map(|word| word.parse().ok()).next().unwrap_or(1000);
    let path = std::env::temp_dir().join(format!("bedplate-speed-{}.log", std::process::id()));
    let bytes = write(&path, megabytes)?;
    let recognizer = Recognizer::built_in();
    let before = resident();
    let began = Instant::now();
    let mut reader = LogReader::new(&recognizer);
    let mut file = File::open(&path)?;
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            count => reader.feed(&piece[..count]),
        }
    }
    let log = reader.finish();
    let seconds = began.elapsed().as_secs_f64();
    let rate = |seconds: f64| bytes as f64 / 1e6 / seconds;
    println!(
        "{:.0} MB, {} lines: {seconds:.1} s, {:.0} MB/s, {} steps, {} errors, {:.0} MiB more in memory",
        bytes as f64 / 1e6,
        log.lines,
        rate(seconds),
        log.steps.len(),
        log.signs.len(),
        resident() - before
    );
    for (program, arguments) in [("grep", vec!["-c", "iteration"]), ("wc", vec!["-l"])] {
        let began = Instant::now();
        let output = Command::new(program).args(&arguments).arg(&path).output()?;
        let seconds = began.elapsed().as_secs_f64();
        assert!(!output.stdout.is_empty(), "{program} counts");
        println!("{program} {}: {seconds:.1} s, {:.0} MB/s", arguments.join(" "), rate(seconds));
    }
    fs::remove_file(&path)
}

fn write(path: &Path, megabytes: u64) -> std::io::Result<u64> {
    let mut file = BufWriter::new(File::create(path)?);
    let (mut bytes, mut step) = (0, 0_u64);
    while bytes < megabytes * 1_000_000 {
        step += 1;
        let mut text = String::new();
        let rank = step % 16;
        let _ = writeln!(
            text,
            "[default{rank}]: [2025-12-19 10:49:15] iteration {step:8}/ 9000000 | consumed samples: {:12} | elapsed time per iteration (ms): {}.{} | learning rate: 1.0E-04 | global batch size: 128 | lm loss: 2.1{}E+00 | loss scale: 1.0 | grad norm: 0.135 | number of skipped iterations: 0 |",
            step * 128,
            400 + step % 7,
            step % 10,
            step % 97
        );
        for line in 0..7 {
            let _ = writeln!(
                text,
                "[default{rank}]: 2025-12-19 10:49:15,{:03} INFO trainer.data: shard {} of epoch {} opened, {} records, cache at {} %",
                step % 1000,
                step * 7 + line,
                step / 1000,
                4096 + line,
                step % 100
            );
        }
        if step.is_multiple_of(50_000) {
            text.push_str("[default3]: OSError: [Errno 5] Input/output error: '/data/shard'\n");
        }
        bytes += text.len() as u64;
        file.write_all(text.as_bytes())?;
    }
    file.flush()?;
    Ok(bytes)
}

fn resident() -> f64 {
    bedplate_host::memory::own_resident_bytes().map_or(0.0, |bytes| bytes as f64 / f64::from(1 << 20))
}
