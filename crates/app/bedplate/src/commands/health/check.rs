//! `bedplate health check`: works this machine hard for a while and compares every result.

use std::path::PathBuf;
use std::time::Duration;

use bedplate_doctor::deep::{DeepCheck, GpuBurnIn, Outcome, judge_outcomes};
use bedplate_kernels::BurnInPart;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::{Bytes, Seconds};
use serde_json::{Value, json};

use bedplate_host::host_name;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate health check
  bedplate health check --for 60s --folder /scratch --json
  bedplate node drain n3 --reason check && bedplate submit --nodes 1 -- bedplate health check

Exit code 1 when a check fails. The machine should be idle: other work makes rates lower.")]
pub(crate) struct Arguments {
    /// How long each part works
    #[arg(long = "for", value_name = "TIME", default_value = "5s")]
    lasts: Seconds,
    /// The folder whose disk is written to and read [default: the system's temporary one]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// How much is written to the disk
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    disk_mib: u64,
    /// How much of each GPU's memory is tried [default: all that is free]
    #[arg(long, value_name = "SIZE")]
    gpu_memory: Option<Bytes>,
    /// Makes a result of the first GPU wrong, to see that the check finds it
    #[arg(long, value_name = "PART", hide = true)]
    plant: Option<Planted>,
    /// Only what no job on the machine can bring about, as agents check their nodes
    #[arg(long, hide = true)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Planted {
    Product,
    Memory,
    Copy,
}

impl Planted {
    fn part(self) -> BurnInPart {
        match self {
            Planted::Product => BurnInPart::ProductBf16,
            Planted::Memory => BurnInPart::Memory,
            Planted::Copy => BurnInPart::Copies,
        }
    }
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let check = DeepCheck {
        node: host_name(),
        lasts: Duration::from_secs_f64(arguments.lasts.get().clamp(0.05, 86_400.0)),
        folder: arguments.folder.clone().unwrap_or_else(std::env::temp_dir),
        disk_mib: arguments.disk_mib,
        gpus: GpuBurnIn {
            memory: arguments.gpu_memory.map(|size| size.get() as usize),
            planted: arguments.plant.map(Planted::part),
        },
    };
    let outcomes = match arguments.quick {
        true => check.run_quick(|part| console.say(part)),
        false => check.run(|part| console.say(part)),
    };
    show(&outcomes, console)?;
    Ok(judge_outcomes(&outcomes)?)
}

fn show(outcomes: &[Outcome], console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        let json = |outcome: &Outcome| {
            json!({
                "check": outcome.name,
                "verdict": verdict_name(outcome),
                "rate": outcome.rate,
                "remark": outcome.remark,
            })
        };
        return console.json(&Value::Array(outcomes.iter().map(json).collect()));
    }
    let mut table = Table::new(vec![
        Column::left("CHECK", 0),
        Column::left("VERDICT", 0),
        Column::right("RATE", 0),
        Column::left("REMARK", 1),
    ]);
    for outcome in outcomes {
        table.row(vec![
            outcome.name.clone(),
            verdict_name(outcome),
            outcome.rate.clone().unwrap_or_else(|| "-".to_owned()),
            outcome.remark.clone(),
        ]);
    }
    console.table(&table)
}

fn verdict_name(outcome: &Outcome) -> String {
    outcome.verdict.map_or("absent".to_owned(), |verdict| verdict.to_string())
}
