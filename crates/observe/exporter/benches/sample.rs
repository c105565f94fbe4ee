//! What a reading of this host's GPUs costs: `cargo bench -p bedplate-exporter [-- --nvml LIBRARY] [--seconds N] [--text]`.
//!
//! Prints processor time of a sample, the time of a scrape and, with `--text`, what Prometheus would get.

use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_exporter::{Exporter, ExporterOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let value =
        |flag: &str| arguments.iter().position(|each| each == flag).and_then(|at| arguments.get(at + 1));
    let seconds: u64 = value("--seconds").map_or(Ok(10), |text| text.parse())?;
    let mut options = ExporterOptions::new("bench");
    options.nvml = value("--nvml").map(PathBuf::from);
    let exporter = Exporter::start(options)?;
    thread::sleep(Duration::from_secs(3));
    let before = processor_seconds()?;
    thread::sleep(Duration::from_secs(seconds));
    let used = processor_seconds()? - before;
    let began = Instant::now();
    let text = exporter.text();
    let scrape = began.elapsed();
    let gpus = text.lines().filter(|line| line.starts_with("bedplate_gpu_lost{")).count();
    let mut out = std::io::stdout();
    if arguments.iter().any(|each| each == "--text") {
        out.write_all(text.as_bytes())?;
    }
    writeln!(
        out,
        "{gpus} GPUs: {:.3} ms of a processor for each sample, {:.3} ms for {} KiB of text",
        1000.0 * used / seconds as f64,
        scrape.as_secs_f64() * 1e3,
        text.len() / 1024
    )?;
    Ok(())
}

fn processor_seconds() -> Result<f64, nix::Error> {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}
