//! `bedplate bench machine`: this host measured with the program's own operators, as a catalog file.

mod findings;
mod fit;
mod measure;
mod overlay;

use std::io::IsTerminal;
use std::path::PathBuf;

use bedplate_catalog::{Accelerator, Peaks};
use bedplate_kernels::{Device, DeviceChoice};
use bedplate_local::host;
use bedplate_local::{Machine, machine as system};
use bedplate_terminal::files;
use bedplate_terminal::present::{Column, Table, moment, now_ms};
use bedplate_terminal::{CliError, Console, Context};
use bedplate_units::{Bandwidth, Bytes, FlopRate, Seconds};
use serde_json::{Value, json};

use super::host_file;
use super::peer::{PeerFailed, Script};
use findings::Findings;
use measure::{Amount, Sample, Size, Sizes};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench machine
  bedplate bench machine --threads 8 --out host.toml
  bedplate bench machine --peer torch --peer-python ~/venv/bin/python
  bedplate bench machine --device cuda:0
  bedplate --catalog host.toml plan train --model config.json --cluster host:1 --precision fp32

Takes about half a minute on an otherwise idle machine. Products are
those of linear layers (rows x outputs x inputs), attention is causal over
eight heads of 64 (on a GPU 32 of 128), a stream is a mix of norms and
activations. Rates of arithmetic are relative to multiply-adds in registers, on a
GPU to the catalog's peak, rates of memory to a large copy. Without --out the file
goes next to the state of clusters, where `bedplate train` finds it; a GPU's is
planned with by `--cluster gpu:1`.")]
pub(super) struct Arguments {
    /// Where the catalog file goes [default: ~/.local/state/bedplate/host.toml, of a GPU gpu.toml]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// What to measure: `cpu`, or a GPU such as `cuda:0`
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu, conflicts_with = "peer")]
    device: DeviceChoice,
    /// Threads to use [default: all]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Also measure another program's matrix products
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// A Python that has the peer
    #[arg(long, value_name = "PATH", default_value = "python3", requires = "peer")]
    peer_python: String,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Peer {
    /// PyTorch, eager, on the processor
    Torch,
}

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let machine = Machine::this();
    let device = arguments.device.open(arguments.threads.unwrap_or(machine.cores) as usize)?;
    let catalog = context.load_catalog()?;
    let chip = device.gpu_name().and_then(|name| catalog.accelerator(name).ok());
    let mut findings = findings::measure(&device, &|what, done| progress(what, done, console));
    if !device.is_cpu() {
        let peak =
            |of: fn(&Peaks) -> Option<FlopRate>| chip.and_then(|chip| of(&chip.peaks)).map(FlopRate::get);
        findings.set_limits(peak(|peaks| peaks.fp32), peak(|peaks| peaks.bf16));
    }
    let peer = match arguments.peer {
        Some(Peer::Torch) => {
            progress("PyTorch", 1.0, console);
            Some(torch(&arguments.peer_python, device.threads())?)
        }
        None => None,
    };
    clear(console);
    let usual = if device.is_cpu() { host::overlay_path() } else { host::gpu_overlay_path() };
    let path = arguments.out.clone().unwrap_or(usual);
    let facts = facts(&device, chip, &findings, machine);
    let measured_before = files::read_text(&path.display().to_string()).unwrap_or_default();
    let collectives = host_file::collectives_of(&measured_before);
    files::write_own(&path, &format!("{}{collectives}", overlay::text(&facts, &findings.rates)))?;
    if console.is_json() {
        console.json(&report(&findings, &facts, peer.as_deref(), &path.display().to_string()))?;
    } else {
        let device = match device.is_cpu() {
            true => format!("{}, {} threads, {}", facts.title, device.threads(), facts.instructions),
            false => facts.instructions.clone(),
        };
        console.line(&device)?;
        console.table(&table(&findings, peer.as_deref()))?;
    }
    let shown = path.display();
    console.say(&format!(
        "wrote {shown}; plan with it: bedplate --catalog {shown} plan train --cluster {}:1 …",
        facts.name
    ));
    Ok(())
}

fn facts(
    device: &Device,
    chip: Option<&Accelerator>,
    findings: &Findings,
    machine: Machine,
) -> overlay::Facts {
    let host_memory_mib = system::memory_for_programs_mib();
    let (name, (title, vendor)) = match device.gpu_name() {
        Some(title) => (host::GPU_NAME, (title.to_owned(), "nvidia".to_owned())),
        None => (host::NAME, system::processor()),
    };
    overlay::Facts {
        name,
        title,
        vendor,
        memory_mib: device.memory().map_or(host_memory_mib, |bytes| bytes as u64 >> 20),
        units: chip.and_then(|chip| chip.multiprocessors).unwrap_or(machine.cores),
        host_memory_mib,
        cores: machine.cores,
        date: moment(now_ms()).chars().take(10).collect(),
        instructions: device.instructions(),
        limit_fp32: FlopRate::new(findings.limit_fp32),
        limit_bf16: FlopRate::new(findings.limit_bf16),
    }
}

/// A terminal line that the next one overwrites.
fn progress(what: &str, done: f64, console: &Console) {
    if std::io::stderr().is_terminal() {
        console.say_raw(&format!("\r\x1b[K{:3.0}%  {what}", done * 100.0));
    }
}

fn clear(console: &Console) {
    if std::io::stderr().is_terminal() {
        console.say_raw("\r\x1b[K");
    }
}

/// A product that the peer was timed with.
struct PeerSample {
    operator: String,
    precision: String,
    shape: [usize; 3],
    seconds: f64,
}

fn torch(python: &str, threads: usize) -> Result<Vec<PeerSample>, PeerFailed> {
    let shapes = ["fp32", "bf16"].into_iter().flat_map(|format| {
        Sizes::OF_PROCESSOR
            .linears
            .map(|[rows, outputs, inputs]| format!("{format}:{rows}:{outputs}:{inputs}"))
    });
    let script = Script {
        python,
        text: include_str!("machine/torch.py"),
        arguments: std::iter::once(threads.to_string()).chain(shapes).collect(),
        directory: ".",
    };
    script.run(|text| text.lines().filter(|line| !line.starts_with("done")).map(peer_sample).collect())
}

/// `products fp32 2048 1536 512 0.0123`.
fn peer_sample(line: &str) -> Option<PeerSample> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [operator, precision, rows, outputs, inputs, seconds] = words[..] else { return None };
    Some(PeerSample {
        operator: operator.to_owned(),
        precision: precision.to_owned(),
        shape: [rows.parse().ok()?, outputs.parse().ok()?, inputs.parse().ok()?],
        seconds: seconds.parse().ok()?,
    })
}

/// The peer's seconds for the same work.
fn beside(sample: &Sample, peer: &[PeerSample]) -> Option<f64> {
    let is_same = |it: &&PeerSample| {
        it.operator == sample.operator
            && it.precision == sample.precision
            && sample.size == Size::Linear(it.shape)
    };
    peer.iter().find(is_same).map(|it| it.seconds)
}

impl Findings {
    /// The limit of a sample's rate: arithmetic in registers, or a copy where memory is the bottleneck.
    fn limit(&self, sample: &Sample) -> Option<f64> {
        match (sample.amount, sample.size) {
            (Amount::Flops(_), _) if sample.precision == "bf16" => Some(self.limit_bf16),
            (Amount::Flops(_), _) => Some(self.limit_fp32),
            (Amount::Bytes(_), Size::Set(set)) if set > self.rates.cache.get() => Some(self.rates.copy.get()),
            _ => None,
        }
    }
}

fn table(findings: &Findings, peer: Option<&[PeerSample]>) -> Table {
    let mut columns = vec![
        Column::left("OPERATOR", 0),
        Column::left("FORMAT", 0),
        Column::left("SIZE", 0),
        Column::right("TIME", 0),
        Column::right("RATE", 0),
        Column::right("OF LIMIT", 0),
    ];
    if peer.is_some() {
        columns.extend([Column::right("TORCH", 1), Column::right("OURS TO TORCH", 0)]);
    }
    let mut table = Table::new(columns);
    for sample in &findings.samples {
        let mut row = vec![
            sample.operator.replace('_', " "),
            sample.precision.to_owned(),
            size_text(sample.size),
            Seconds::new(sample.seconds).to_string(),
            rate_text(sample, sample.rate()),
            findings.limit(sample).map_or_else(String::new, |limit| percent(sample.rate() / limit)),
        ];
        if let Some(peer) = peer {
            let seconds = beside(sample, peer);
            row.push(seconds.map_or_else(String::new, |seconds| Seconds::new(seconds).to_string()));
            row.push(seconds.map_or_else(String::new, |seconds| format!("{:.2}x", seconds / sample.seconds)));
        }
        table.row(row);
    }
    table
}

fn size_text(size: Size) -> String {
    match size {
        Size::Linear([rows, outputs, inputs]) => format!("{rows} x {outputs} x {inputs}"),
        Size::Sequence(tokens) => format!("sequences of {tokens}"),
        Size::Set(bytes) => format!("{:.3}", Bytes::new(bytes)),
    }
}

fn rate_text(sample: &Sample, rate: f64) -> String {
    match sample.amount {
        Amount::Flops(_) => format!("{:.3}", FlopRate::new(rate)),
        Amount::Bytes(_) => format!("{:.3}", Bandwidth::new(rate)),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

fn report(findings: &Findings, facts: &overlay::Facts, peer: Option<&[PeerSample]>, path: &str) -> Value {
    let rows = findings.samples.iter().map(|sample| {
        let peer_seconds = peer.and_then(|peer| beside(sample, peer));
        let (key, shape) = match sample.size {
            Size::Linear(shape) => ("shape", json!(shape)),
            Size::Sequence(tokens) => ("sequence", json!(tokens)),
            Size::Set(bytes) => ("set_bytes", json!(bytes)),
        };
        let rate = match sample.amount {
            Amount::Flops(_) => "flops",
            Amount::Bytes(_) => "bytes_per_s",
        };
        json!({
            "operator": sample.operator,
            "precision": sample.precision,
            "threads": findings.rates.threads,
            key: shape,
            "seconds": sample.seconds,
            rate: sample.rate(),
            "share_of_limit": findings.limit(sample).map(|limit| sample.rate() / limit),
            "peer_seconds": peer_seconds,
            "ratio_to_peer": peer_seconds.map(|seconds| seconds / sample.seconds),
        })
    });
    json!({
        "host": facts.title,
        "instructions": facts.instructions,
        "threads": findings.rates.threads,
        "limit_flops": { "fp32": findings.limit_fp32, "bf16": findings.limit_bf16 },
        "cache_bytes": findings.rates.cache.get(),
        "operator_s": findings.rates.operator.get(),
        "samples": rows.collect::<Vec<_>>(),
        "peer": peer.map(|_| "torch"),
        "overlay": path,
    })
}
