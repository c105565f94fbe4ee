//! `bedplate selftest`: whether a GPU, or the processor, computes rightly and as fast as its kind should.

use bedplate_doctor::{MeasuredRate, SelfTest};
use bedplate_kernels::{Device, DeviceChoice, OperatorFinding, RateOf};
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

It computes every operator on the device in f32 and bf16 and compares it with
the processor in f32; then it times products, copies and attention and compares
them with the catalog's figures for the chip. A GPU is slow if products reach
less than half of its peak, or a copy less than two thirds of its bandwidth: it
is in use by others, throttled or degraded. Exits with 1 if an operator is
wrong or the chip is slow.")]
pub(crate) struct Arguments {
    /// What is tested: `cpu`, a GPU such as `cuda:0`, or `auto`: the first GPU, or the processor if there is none
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: DeviceChoice,
    /// Skip the rates
    #[arg(long)]
    no_rates: bool,
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let catalog = context.load_catalog()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let device = arguments.device.open(threads)?;
    let test = SelfTest::run(&device, &catalog, !arguments.no_rates);
    if console.is_json() {
        console.json(&report(&device, &test))?;
    } else {
        show(&device, &test, console)?;
    }
    if test.is_good() { Ok(()) } else { Err(CliError::Refused) }
}

fn text(of: RateOf, rate: f64) -> String {
    match of {
        RateOf::Copy => format!("{:.3}", Bandwidth::new(rate)),
        _ => format!("{:.3}", FlopRate::new(rate)),
    }
}

fn show(device: &Device, test: &SelfTest<'_>, console: &mut Console) -> Result<(), CliError> {
    console.line(&device.instructions())?;
    let wrong: Vec<&OperatorFinding> = test.wrong().collect();
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
        test.findings.len() - wrong.len(),
        test.findings.len(),
        test.largest_distance("f32"),
        test.largest_distance("bf16")
    ))?;
    if !test.rates.is_empty() {
        let columns = [
            Column::left("RATE", 0),
            Column::right("MEASURED", 0),
            Column::right("CATALOG", 0),
            Column::right("SHARE", 0),
        ];
        let mut table = Table::new(columns.into());
        for rate in &test.rates {
            table.row(vec![
                rate.of.name().to_owned(),
                text(rate.of, rate.rate),
                rate.peak.map_or_else(|| "-".to_owned(), |peak| text(rate.of, peak)),
                rate.share().map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
            ]);
        }
        console.line("")?;
        console.table(&table)?;
    }
    console.line("")?;
    console.line(&test.verdict())
}

fn report(device: &Device, test: &SelfTest<'_>) -> Value {
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
    let rate = |rate: &MeasuredRate| {
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
        "chip": test.chip.map(|chip| &chip.name),
        "is_good": test.is_good(),
        "checks": test.findings.iter().map(finding).collect::<Vec<_>>(),
        "rates": test.rates.iter().map(rate).collect::<Vec<_>>(),
    })
}
