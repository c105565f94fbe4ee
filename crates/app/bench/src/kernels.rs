//! `bedplate bench kernels`: each operator, the Llama block and whole models, against the machine's limit and PyTorch.

mod cases;
pub(super) mod models;
mod peer;

use std::time::{Duration, Instant};

use bedplate_kernels::{Bf16, Device, DeviceChoice, Element};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, ProgramError};
use serde_json::{Value, json};

use self::cases::{Case, Pass, Work};
use self::peer::Torch;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench kernels
  bedplate bench kernels --peer torch --peer-python ~/venv/bin/python
  bedplate bench kernels --only block --precision bf16 --threads 2 --json
  bedplate bench kernels --device cuda:0 --precision bf16

Times are the best of several rounds; with a peer, the two programs take turns
on the same operator, with the same number of threads. The limit of operators
that compute is the rate of multiply-adds in registers (on AMX tiles 16 times
that for bf16, and a sixth of this for f32, which takes six products of bf16).
The limit of operators that stream is a copy of 256 MB; working sets that fit
into the cache exceed it. On a GPU the limit is a product of 8192 (in f32:
4096), and a time is that of one of twenty calls in a row; these sizes are
small for it.")]
pub(super) struct Arguments {
    /// Also measure another program
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// The Python that has the peer
    #[arg(long, value_name = "PATH", default_value = "python3", requires = "peer")]
    peer_python: String,
    /// Also compile the block and the models with torch.compile, which takes minutes
    #[arg(long, requires = "peer")]
    compile: bool,
    /// What computes: `cpu` or a GPU such as `cuda:0`
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    device: DeviceChoice,
    /// Threads; all processors by default
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// One number format only
    #[arg(long, value_enum)]
    precision: Option<Format>,
    /// Only operators whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Rounds per operator, of which the best counts
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    /// PyTorch on the same processor
    Torch,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    F32,
    Bf16,
}

impl Format {
    fn name(self) -> &'static str {
        if self == Format::F32 { "f32" } else { "bf16" }
    }
}

/// What one operator took.
struct Row {
    operator: &'static str,
    precision: Format,
    forward: f64,
    both: f64,
    work: Work,
    peer: Option<PeerTimes>,
    compiled: Option<PeerTimes>,
}

#[derive(Clone, Copy)]
struct PeerTimes {
    forward: f64,
    both: f64,
}

/// What the machine can do, measured in the same run.
struct Limits {
    f32_flops: f64,
    bf16_flops: f64,
    copy_bytes: f64,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let available = std::thread::available_parallelism().map_or(1, |count| count.get());
    let open = || arguments.device.open(arguments.threads.unwrap_or(available));
    let device = open()?;
    if !device.is_cpu() && arguments.peer.is_some() {
        let message = "the peer computes on the processor: compare with it by --device cpu".to_owned();
        return Err(ProgramError::Usage { message }.into());
    }
    let mut torch = match arguments.peer {
        Some(Peer::Torch) => Some(Torch::start(&arguments.peer_python, device.threads(), arguments.compile)?),
        None => None,
    };
    let limits = Limits::measure(&device);
    let mut rows = Vec::new();
    for precision in [Format::F32, Format::Bf16] {
        if arguments.precision.is_some_and(|only| only != precision) {
            continue;
        }
        let cases = match precision {
            Format::F32 => cases::all::<f32>(&device, &open)?,
            Format::Bf16 => cases::all::<Bf16>(&device, &open)?,
        };
        for case in cases {
            if arguments.only.as_ref().is_some_and(|only| !case.name.contains(only.as_str())) {
                continue;
            }
            console.say(&format!("{} in {}", case.name, precision.name()));
            rows.push(measure(case, precision, &device, torch.as_mut(), arguments.rounds)?);
        }
    }
    if console.is_json() {
        return console.json(&report(&rows, &limits, &device));
    }
    show(&rows, &limits, &device, console)
}

/// Ours and the peer's take turns, so that both see the same neighbours.
fn measure(
    mut case: Case<'_>,
    precision: Format,
    device: &Device,
    mut torch: Option<&mut Torch>,
    rounds: usize,
) -> Result<Row, CliError> {
    let mut row = Row {
        operator: case.name,
        precision,
        forward: f64::INFINITY,
        both: f64::INFINITY,
        work: case.work,
        peer: None,
        compiled: None,
    };
    for _ in 0..rounds.max(1) {
        row.forward = row.forward.min(best(device, &mut || (case.run)(device, Pass::Forward)));
        row.both = row.both.min(best(device, &mut || (case.run)(device, Pass::Both)));
        if let Some(torch) = &mut torch {
            let [eager, compiled] = torch.measure(case.name, precision.name())?;
            row.peer = faster(row.peer, eager);
            row.compiled = faster(row.compiled, compiled);
        }
    }
    Ok(row)
}

fn faster(so_far: Option<PeerTimes>, now: Option<PeerTimes>) -> Option<PeerTimes> {
    match (so_far, now) {
        (Some(a), Some(b)) => Some(PeerTimes { forward: a.forward.min(b.forward), both: a.both.min(b.both) }),
        (a, b) => a.or(b),
    }
}

/// Seconds of the fastest of as many calls as fit in a quarter of a second, at least two; of a GPU, several in a row.
fn best(device: &Device, work: &mut dyn FnMut()) -> f64 {
    let in_a_row = if device.is_cpu() { 1 } else { 20 };
    let (began, mut least, mut calls) = (Instant::now(), f64::INFINITY, 0);
    while calls < 2 || began.elapsed() < Duration::from_millis(250) {
        let start = Instant::now();
        (0..in_a_row).for_each(|_| work());
        device.synchronize();
        least = least.min(start.elapsed().as_secs_f64() / f64::from(in_a_row));
        calls += 1;
    }
    least
}

impl Limits {
    fn measure(device: &Device) -> Self {
        if !device.is_cpu() {
            return Self {
                f32_flops: product_rate::<f32>(device, 4096),
                bf16_flops: product_rate::<Bf16>(device, 8192),
                copy_bytes: copy_rate(device),
            };
        }
        let f32_flops = device.arithmetic_limit();
        Self { f32_flops, bf16_flops: device.arithmetic_limit_bf16(f32_flops), copy_bytes: copy_rate(device) }
    }

    /// What the machine could do of this work, per second.
    fn of(&self, work: Work, precision: Format) -> f64 {
        match (work, precision) {
            (Work::Flops { .. }, Format::F32) => self.f32_flops,
            (Work::Flops { .. }, Format::Bf16) => self.bf16_flops,
            (Work::Bytes { .. }, _) => self.copy_bytes,
        }
    }
}

/// FLOP/s of a product of square matrices.
fn product_rate<E: Element>(device: &Device, side: usize) -> f64 {
    let [x, weight] = [1, 2].map(|seed| cases::random::<E>(device, side * side, seed));
    let mut out = device.zeros::<E>(side * side);
    let x = x.view().matrix(side, side);
    let mut product = || device.linear(x, weight.view(), None, None, out.view_mut().matrix(side, side));
    2.0 * (side as f64).powi(3) / best(device, &mut product)
}

/// Bytes read and written per second by a copy of 256 MB.
pub(super) fn copy_rate(device: &Device) -> f64 {
    const NUMBERS: usize = 64 << 20;
    let (from, mut to) = (device.zeros::<f32>(NUMBERS), device.zeros::<f32>(NUMBERS));
    // Pages that were never written to are all the same one.
    device.fill(to.view_mut(), 1.0);
    let mut source = from;
    device.fill(source.view_mut(), 2.0);
    let seconds = best(device, &mut || device.copy(source.view(), to.view_mut()));
    8.0 * NUMBERS as f64 / seconds
}

impl Row {
    /// Work per second of a forward and backward pass.
    fn rate(&self) -> f64 {
        match self.work {
            Work::Flops { both, .. } | Work::Bytes { both, .. } => both / self.both,
        }
    }

    fn ratio(&self) -> Option<f64> {
        self.peer.map(|peer| peer.both / self.both)
    }
}

fn show(rows: &[Row], limits: &Limits, device: &Device, console: &mut Console) -> Result<(), CliError> {
    console.line(&format!(
        "{} threads, {}; limits: {:.0} GFLOP/s in f32, {:.0} in bf16, copy {:.1} GB/s\n",
        device.threads(),
        device.instructions(),
        limits.f32_flops / 1e9,
        limits.bf16_flops / 1e9,
        limits.copy_bytes / 1e9,
    ))?;
    let has_peer = rows.iter().any(|row| row.peer.is_some());
    let has_compiled = rows.iter().any(|row| row.compiled.is_some());
    let mut columns = vec![
        Column::left("OPERATOR", 0),
        Column::left("IN", 0),
        Column::right("FORWARD", 1),
        Column::right("WITH BACKWARD", 0),
        Column::right("RATE", 1),
        Column::right("OF LIMIT", 0),
    ];
    if has_peer {
        columns.extend([Column::right("TORCH", 0), Column::right("TIMES AS FAST", 0)]);
    }
    if has_compiled {
        columns.push(Column::right("COMPILED", 0));
    }
    let mut table = Table::new(columns);
    for row in rows {
        let unit = if matches!(row.work, Work::Flops { .. }) { "GFLOP/s" } else { "GB/s" };
        let mut cells = vec![
            row.operator.to_owned(),
            row.precision.name().to_owned(),
            milliseconds(row.forward),
            milliseconds(row.both),
            format!("{:.0} {unit}", row.rate() / 1e9),
            format!("{:.0} %", 100.0 * row.rate() / limits.of(row.work, row.precision)),
        ];
        if has_peer {
            cells.push(row.peer.map_or("-".into(), |peer| milliseconds(peer.both)));
            cells.push(row.ratio().map_or("-".into(), |ratio| format!("{ratio:.2}")));
        }
        if has_compiled {
            cells.push(row.compiled.map_or("-".into(), |peer| milliseconds(peer.both)));
        }
        table.row(cells);
    }
    console.table(&table)
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", 1e3 * seconds)
}

fn report(rows: &[Row], limits: &Limits, device: &Device) -> Value {
    let ms = |seconds: f64| 1e3 * seconds;
    let row = |row: &Row| {
        json!({
            "operator": row.operator,
            "precision": row.precision.name(),
            "threads": device.threads(),
            "forward_ms": ms(row.forward),
            "forward_backward_ms": ms(row.both),
            "rate": row.rate(),
            "rate_unit": if matches!(row.work, Work::Flops { .. }) { "FLOP/s" } else { "B/s" },
            "share_of_limit": row.rate() / limits.of(row.work, row.precision),
            "peer": row.peer.map(|_| "torch"),
            "peer_forward_ms": row.peer.map(|peer| ms(peer.forward)),
            "peer_forward_backward_ms": row.peer.map(|peer| ms(peer.both)),
            "ratio_to_peer": row.ratio(),
            "compiled_forward_backward_ms": row.compiled.map(|peer| ms(peer.both)),
            "ratio_to_compiled": row.compiled.map(|peer| peer.both / row.both),
        })
    };
    json!({
        "instructions": device.instructions(),
        "limits": {
            "f32_arithmetic": limits.f32_flops,
            "bf16_arithmetic": limits.bf16_flops,
            "copy": limits.copy_bytes,
        },
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
