//! The exporter alone: processor time, memory, and the time of a scrape.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_exporter::{Exporter, ExporterOptions};
use bedplate_host::host_name;
use bedplate_local::machine;
use bedplate_record::{Exposure, MetricsServer};
use bedplate_terminal::{CliError, Console, ProgramError};
use bedplate_units::Seconds;

use super::Figure;

/// The project's aim: one per cent of a core at an interval of a second, which is ten milliseconds a sample.
const MOST_PERCENT: f64 = 1.0;
/// What an allocator keeps more or less from one moment to the next.
const MOST_GROWTH_MIB: f64 = 1.0;
/// One scrape so often, as Prometheus would.
const SCRAPE_EVERY: Duration = Duration::from_secs(2);

pub(super) fn measure(
    lasts: Seconds,
    nvml: Option<PathBuf>,
    console: &Console,
) -> Result<Vec<Figure>, CliError> {
    let lasts = Duration::from_secs_f64(lasts.get());
    let mut options = ExporterOptions::new(&host_name());
    options.nvml = nvml.map(|path| std::fs::canonicalize(&path).unwrap_or(path));
    let exporter = Exporter::start(options)?;
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = MetricsServer::start(address, Exposure::Loopback, exporter.reader())
        .map_err(bedplate_exporter::ExportError::from)?;
    // Libraries are loaded and labels made once; that is no cost of an hour.
    thread::sleep(Duration::from_secs(3));
    console.say(&format!("the exporter runs for {:.0} s", lasts.as_secs_f64()));
    let (cpu, memory, began) = (process_seconds(), resident(), Instant::now());
    let mut scrapes = Vec::new();
    let (mut bytes, mut gpus, mut scraping) = (0, 0.0, 0.0);
    let mut half_way = None;
    while began.elapsed() < lasts {
        thread::sleep(SCRAPE_EVERY.min(lasts.saturating_sub(began.elapsed())));
        let before = thread_seconds();
        let (took, text) = scrape(server.address())
            .map_err(|error| ProgramError::Bug { what: format!("cannot scrape the exporter: {error}") })?;
        scraping += thread_seconds() - before;
        scrapes.push(took);
        bytes = text.len();
        gpus = answering(&text);
        if began.elapsed() >= lasts / 2 {
            half_way.get_or_insert_with(resident);
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    // Reading the answer is the work of whoever asks.
    let used = process_seconds() - cpu - scraping;
    let end = resident();
    scrapes.sort_by(f64::total_cmp);
    Ok(vec![
        Figure::new("gpus", gpus, "", None),
        Figure::new("seconds", seconds, "s", None),
        Figure::new("processor_percent_of_a_core", 100.0 * used / seconds, "%", Some(MOST_PERCENT)),
        Figure::new("processor_ms_per_sample", 1000.0 * used / seconds, "ms", Some(10.0 * MOST_PERCENT)),
        Figure::new("memory_mib", end, "MiB", None),
        Figure::new("memory_growth_mib", end - memory, "MiB", Some(MOST_GROWTH_MIB)),
        // Windows of rules fill up at first; what grows for ever grows in the second half too.
        Figure::new(
            "memory_growth_second_half_mib",
            end - half_way.unwrap_or(end),
            "MiB",
            Some(MOST_GROWTH_MIB),
        ),
        Figure::new("scrape_median_ms", 1000.0 * scrapes[scrapes.len() / 2], "ms", Some(5.0)),
        Figure::new("scrape_worst_ms", 1000.0 * scrapes[scrapes.len() - 1], "ms", None),
        Figure::new("scrape_kib", bytes as f64 / 1024.0, "KiB", None),
    ])
}

fn answering(text: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix("bedplate_gpus_answering{"));
    line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).unwrap_or(0.0)
}

fn scrape(address: SocketAddr) -> std::io::Result<(f64, String)> {
    let began = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok((began.elapsed().as_secs_f64(), text))
}

fn resident() -> f64 {
    machine::resident_mib(std::process::id()).unwrap_or(0.0)
}

fn process_seconds() -> f64 {
    clock(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

fn thread_seconds() -> f64 {
    clock(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(id: nix::time::ClockId) -> f64 {
    nix::time::clock_gettime(id).map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}
