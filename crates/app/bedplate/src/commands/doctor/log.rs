//! `bedplate doctor --nccl-log FILE…`: what NCCL really used, and what it fell back from.

use bedplate_catalog::Catalog;
use bedplate_doctor::nccl::{LogReader, NcclLog, judge_log};
use bedplate_doctor::{FlawPricing, worst};
use bedplate_terminal::present::{Column, Facts, Table};
use bedplate_terminal::{CliError, Console, files};
use bedplate_units::grouped;
use serde_json::json;

use super::{end, page};

pub(super) fn run(
    paths: &[String],
    like: Option<&str>,
    catalog: &Catalog,
    console: &mut Console,
) -> Result<(), CliError> {
    let mut reader = LogReader::default();
    for path in paths {
        files::read_lines(path, |line| reader.line(line))?;
    }
    let log = reader.finish();
    let price = like.and_then(|like| FlawPricing::new(like, catalog));
    let checks = judge_log(&log, price.as_ref());
    if console.is_json() {
        console.json(&json!({ "verdict": worst(&checks), "checks": checks, "log": log }))?;
    } else {
        console.line(&format!("NCCL log: {}", page::count(&checks)))?;
        console.text(&used(&log).render(console.width()))?;
        if !log.algorithms.is_empty() {
            console.line("")?;
            console.table(&algorithms(&log))?;
        }
        console.text(&page::checks(&checks, console.width()))?;
    }
    end(&checks)
}

fn used(log: &NcclLog) -> Facts {
    let mut facts = Facts::default();
    if log.lines == 0 {
        return facts;
    }
    facts.add("ranks", format!("{} on {} nodes", log.ranks, log.nodes));
    facts.add("version", log.versions.iter().cloned().collect::<Vec<_>>().join(", "));
    let transport = &log.transport;
    let within = [("GPU to GPU", transport.peer_to_peer), ("through the host", transport.shared_memory)];
    facts.add("within a node", shares(&within));
    let between = [
        ("GPUDirect RDMA", transport.network_gpu_direct),
        ("copied through the host", transport.network_staged),
        ("by switches (CollNet)", transport.collnet),
    ];
    facts.add("between nodes", shares(&between));
    facts.add("network", log.networks.iter().cloned().collect::<Vec<_>>().join(", "));
    facts.add_known("channels", log.collective_channels);
    facts.add_known("NVLS channels", log.nvls_channels.filter(|count| *count > 0));
    facts.add_known("libfabric provider", log.ofi.provider.as_ref());
    facts
}

/// `8 GPU to GPU, 2 through the host` connections.
fn shares(counts: &[(&str, u64)]) -> String {
    let told: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!("{} {what}", grouped(*count)))
        .collect();
    if told.is_empty() { "no connections".to_owned() } else { told.join(", ") }
}

fn algorithms(log: &NcclLog) -> Table {
    let mut table = Table::new(vec![
        Column::left("COLLECTIVE", 0),
        Column::left("ALGORITHM", 0),
        Column::left("PROTOCOL", 0),
        Column::right("CALLS", 1),
        Column::right("SMALLEST", 1),
        Column::right("LARGEST", 1),
    ]);
    for it in &log.algorithms {
        table.row(vec![
            it.function.clone(),
            it.algorithm.clone(),
            it.protocol.clone(),
            grouped(it.collectives),
            grouped(it.smallest_bytes),
            grouped(it.largest_bytes),
        ]);
    }
    table
}
