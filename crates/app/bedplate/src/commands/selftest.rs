//! `bedplate selftest`: whether a GPU, or the processor, computes rightly and as fast as its kind should.

use bedplate_catalog::{Accelerator, Catalog};
use bedplate_kernels::{Device, DeviceChoice, OperatorFinding, RateOf, rate, selftest};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, Context};
use bedplate_units::{Bandwidth, FlopRate};
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate selftest
  bedplate selftest --device cuda:1
  bedplate selftest --device cpu --json

Every operator is computed on the device in f32 and bf16 and compared with the processor in f32; then products, copies and attention
are timed beside what the catalog says of the chip. A GPU is called slow where products reach less than half of
its peak, or a copy less than two thirds of its bandwidth: a part in use by others, throttled or degraded. Exits with 1 when an operator is
wrong or the chip slow.")]
pub(crate) struct Arguments {
    /// What is tested: `cpu`, a GPU such as `cuda:0`, or `auto`, which takes the first GPU that there is
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: DeviceChoice,
    /// Leave the rates out
    #[arg(long)]
    no_rates: bool,
}

/// The shares of a chip's peaks below which it is called slow.
const LEAST_PRODUCT: f64 = 0.5;
const LEAST_COPY: f64 = 2.0 / 3.0;

struct Measured {
    of: RateOf,
    rate: f64,
    /// Of the catalog, where it knows the chip.
    peak: Option<f64>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let catalog = context.load_catalog()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let device = arguments.device.open(threads)?;
    let findings = selftest(&device, |_| {});
    let chip = chip(&device, &catalog);
    let rates = match arguments.no_rates {
        true => Vec::new(),
        false => RateOf::ALL.map(|of| measure(&device, chip, of)).into(),
    };
    let is_good = findings.iter().all(OperatorFinding::is_right) && !rates.iter().any(Measured::is_slow);
    if console.is_json() {
        console.json(&report(&device, chip, &findings, &rates, is_good))?;
    } else {
        show(&device, chip, &findings, &rates, console)?;
    }
    if is_good { Ok(()) } else { Err(CliError::Refused) }
}

fn chip<'a>(device: &Device, catalog: &'a Catalog) -> Option<&'a Accelerator> {
    catalog.accelerator(device.gpu_name()?).ok()
}

fn measure(device: &Device, chip: Option<&Accelerator>, of: RateOf) -> Measured {
    let peak = chip.and_then(|chip| match of {
        RateOf::Copy => chip.memory_bandwidth.map(Bandwidth::get),
        RateOf::ProductFp8 => chip.peaks.fp8.map(FlopRate::get),
        _ => chip.peaks.bf16.map(FlopRate::get),
    });
    Measured { of, rate: rate(device, of), peak }
}

impl Measured {
    fn share(&self) -> Option<f64> {
        self.peak.map(|peak| self.rate / peak)
    }

    /// How fast attention and fp8 are depends on the kernels that a chip has, and tells little of its health.
    fn is_slow(&self) -> bool {
        let least = match self.of {
            RateOf::Product => LEAST_PRODUCT,
            RateOf::Copy => LEAST_COPY,
            RateOf::ProductFp8 | RateOf::Attention | RateOf::AttentionBothWays => return false,
        };
        self.share().is_some_and(|share| share < least)
    }

    fn text(&self, rate: f64) -> String {
        match self.of {
            RateOf::Copy => format!("{:.3}", Bandwidth::new(rate)),
            _ => format!("{:.3}", FlopRate::new(rate)),
        }
    }
}

fn show(
    device: &Device,
    chip: Option<&Accelerator>,
    findings: &[OperatorFinding],
    rates: &[Measured],
    console: &mut Console,
) -> Result<(), CliError> {
    console.line(&device.instructions())?;
    let wrong: Vec<&OperatorFinding> = findings.iter().filter(|finding| !finding.is_right()).collect();
    if !wrong.is_empty() {
        let columns = ["OPERATOR", "IN", "BETWEEN ROWS", "DISTANCE", "ALLOWED"];
        let mut table = Table::new(columns.into_iter().map(|name| Column::left(name, 0)).collect());
        for finding in &wrong {
            table.row(vec![
                finding.operator.to_owned(),
                finding.format.to_owned(),
                finding.gap.to_string(),
                format!("{:.1e}", finding.distance),
                format!("{:.1e}", finding.tolerance),
            ]);
        }
        console.table(&table)?;
    }
    console.line(&format!(
        "{} of {} checks agree with the processor; largest distance {:.0e} in f32, {:.0e} in bf16",
        findings.len() - wrong.len(),
        findings.len(),
        largest(findings, "f32"),
        largest(findings, "bf16")
    ))?;
    if !rates.is_empty() {
        let columns = [
            Column::left("RATE", 0),
            Column::right("MEASURED", 0),
            Column::right("CATALOG", 0),
            Column::right("SHARE", 0),
        ];
        let mut table = Table::new(columns.into());
        for rate in rates {
            table.row(vec![
                rate.of.name().to_owned(),
                rate.text(rate.rate),
                rate.peak.map_or_else(|| "-".to_owned(), |peak| rate.text(peak)),
                rate.share().map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
            ]);
        }
        console.line("")?;
        console.table(&table)?;
    }
    console.line("")?;
    console.line(&verdict(device, chip, wrong.len(), rates))
}

fn largest(findings: &[OperatorFinding], format: &str) -> f64 {
    let of_format = findings.iter().filter(|finding| finding.format == format);
    of_format.map(|finding| finding.distance).fold(0.0, f64::max)
}

/// In words.
fn verdict(device: &Device, chip: Option<&Accelerator>, wrong: usize, rates: &[Measured]) -> String {
    let what = if device.is_cpu() { "this processor" } else { "this GPU" };
    let slow: Vec<&str> = rates.iter().filter(|rate| rate.is_slow()).map(|rate| rate.of.name()).collect();
    if wrong > 0 {
        return format!("{what} computes wrongly: take it out of service");
    }
    if !slow.is_empty() {
        return format!(
            "{what} computes rightly but slowly ({}): see what else runs on it, its clocks and its temperature, with `nvidia-smi -q`",
            slow.join(", ")
        );
    }
    match (chip, rates.is_empty()) {
        (Some(chip), false) => format!("{what} computes rightly, as fast as a {} should", chip.title),
        (None, false) => format!("{what} computes rightly; the catalog has no rates to hold its own against"),
        (_, true) => format!("{what} computes rightly"),
    }
}

fn report(
    device: &Device,
    chip: Option<&Accelerator>,
    findings: &[OperatorFinding],
    rates: &[Measured],
    is_good: bool,
) -> Value {
    let finding = |finding: &OperatorFinding| {
        json!({
            "operator": finding.operator,
            "format": finding.format,
            "gap": finding.gap,
            "distance": finding.distance,
            "tolerance": finding.tolerance,
            "is_right": finding.is_right(),
        })
    };
    let rate = |rate: &Measured| {
        json!({
            "what": rate.of.name(),
            "rate": rate.rate,
            "unit": if rate.of == RateOf::Copy { "B/s" } else { "FLOP/s" },
            "catalog": rate.peak,
            "share": rate.share(),
            "is_slow": rate.is_slow(),
        })
    };
    json!({
        "device": device.instructions(),
        "chip": chip.map(|chip| &chip.name),
        "is_good": is_good,
        "checks": findings.iter().map(finding).collect::<Vec<_>>(),
        "rates": rates.iter().map(rate).collect::<Vec<_>>(),
    })
}
