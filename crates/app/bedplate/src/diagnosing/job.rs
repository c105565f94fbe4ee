//! A job of a cluster: its output, what its nodes and ranks said, what it was predicted to take.

use std::io::{self, Write};

use bedplate_catalog::{Catalog, Purchase};
use bedplate_diagnose::{
    Bill, Diagnosis, JobVerdict, Machines, NamedLog, RunScale, diagnose, levers_of_layouts, levers_of_parts,
};
use bedplate_drivers::{Capability, Driver, JobDetail, JobId, LogQuery, NodeSummary, OutputStream};
use bedplate_evidence::Gathered;
use bedplate_logs::{LogReader, Origin, Recognizer};
use bedplate_report::{Expectation, OWN_TRAINER};
use bedplate_terminal::present::now_ms;
use bedplate_terminal::{CliError, Context};
use bedplate_topology::Cluster;
use bedplate_units::UtcTime;

/// Ranks whose output is read.
const MOST_RANKS: usize = 1024;

/// Gathers what the cluster has of a job, and judges it.
pub(crate) fn judge(
    id: &JobId,
    driver: &dyn Driver,
    recognizer: &Recognizer,
    context: &Context,
) -> Result<(Diagnosis, Gathered), CliError> {
    let OfCluster { gathered, detail, notes } = gather(id, driver, recognizer)?;
    let mut diagnosis = diagnose(&gathered.case, recognizer);
    take_watched(&mut diagnosis, &detail);
    advise(&mut diagnosis, &detail, driver, context)?;
    diagnosis.notes.extend(notes);
    Ok((diagnosis, gathered))
}

/// What a cluster has of a job.
pub(crate) struct OfCluster {
    pub(crate) gathered: Gathered,
    detail: JobDetail,
    /// What could not be had.
    notes: Vec<String>,
}

pub(crate) fn gather(
    id: &JobId,
    driver: &dyn Driver,
    recognizer: &Recognizer,
) -> Result<OfCluster, CliError> {
    let detail = driver.job(id)?;
    let mut gathered = Gathered::default();
    let year = UtcTime::of(detail.summary.submitted_ms / 1000).date.year;
    let mut notes = Vec::new();
    let ranks = match driver.can(Capability::Ranks) {
        true => driver.ranks(id)?.into_iter().map(|place| place.rank).collect(),
        false => vec![0],
    };
    gathered.case.ranks = u32::try_from(ranks.len()).ok().filter(|count| *count > 1);
    if ranks.len() > MOST_RANKS {
        notes.push(format!("the output of {MOST_RANKS} of {} ranks was read", ranks.len()));
    }
    for rank in ranks.into_iter().take(MOST_RANKS) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let origin = Origin { rank: Some(rank), ..Origin::default() };
            let mut output = Output(LogReader::new(recognizer).of(origin).in_year(year));
            let query = LogQuery { rank, stream, ..LogQuery::default() };
            match driver.logs(id, &query, &mut output) {
                Ok(_) => {}
                Err(error) => {
                    notes.push(format!("{} of rank {rank} was not read: {error}", stream.name()));
                    continue;
                }
            }
            let log = output.0.finish();
            if log.bytes > 0 {
                (gathered.bytes, gathered.files) = (gathered.bytes + log.bytes, gathered.files + 1);
                gathered.case.logs.push(NamedLog { name: format!("{} of rank {rank}", stream.name()), log });
            }
        }
    }
    let is_running = detail.summary.life.started_ms.is_some() && detail.summary.life.ended_ms.is_none();
    gathered.case.now = is_running.then(|| now_ms() as f64 / 1000.0);
    gathered.case.expected = detail.expected.clone().filter(Expectation::is_prediction);
    Ok(OfCluster { gathered, detail, notes })
}

/// What the cluster itself sees of the job, which knows ranks and nodes that its output does not name, comes first.
fn take_watched(diagnosis: &mut Diagnosis, detail: &JobDetail) {
    let is_told = |verdict: &JobVerdict| detail.diagnosis.iter().any(|watched| watched.kind == verdict.kind);
    diagnosis.verdicts.retain(|verdict| !is_told(verdict));
    diagnosis.verdicts.splice(0..0, detail.diagnosis.iter().cloned());
    let past = detail.notes.iter().filter_map(|note| note.text.strip_prefix("diagnosis: "));
    for past in past.filter(|_| detail.diagnosis.is_empty()) {
        diagnosis.notes.push(format!("while it ran: {past}"));
    }
    if let Some(steps) = detail.steps.as_ref().filter(|steps| steps.steps > 0) {
        diagnosis.notes.push(format!(
            "it reported {} steps of {} on average",
            bedplate_units::grouped(steps.steps),
            bedplate_units::Seconds::new(steps.mean_s)
        ));
    }
}

/// What the first verdict costs, and what would make a healthy job faster.
fn advise(
    diagnosis: &mut Diagnosis,
    detail: &JobDetail,
    driver: &dyn Driver,
    context: &Context,
) -> Result<(), CliError> {
    let Some(steps) = detail.steps.as_ref().filter(|steps| steps.steps > 0) else { return Ok(()) };
    let catalog = context.load_catalog()?;
    let nodes: Vec<NodeSummary> = match detail.summary.nodes.is_empty() {
        true => Vec::new(),
        false => {
            driver.nodes()?.into_iter().filter(|node| detail.summary.nodes.contains(&node.name)).collect()
        }
    };
    let is_real = nodes.iter().all(|node| node.host.gpus >= node.gpus);
    let arguments = steps.arguments.as_deref();
    if let Some(verdict) = diagnosis.verdicts.first() {
        let scale = RunScale {
            tokens_per_step: arguments.map(|arguments| (arguments.sequence * arguments.global_batch) as f64),
            step_s: steps.recent_s(),
            steps_left: arguments
                .and_then(|arguments| arguments.steps?.checked_sub(steps.latest.last()?.step)),
            dollars_per_hour: Some(&nodes)
                .filter(|nodes| is_real && !nodes.is_empty())
                .and_then(|nodes| dollars(nodes, &catalog)),
        };
        diagnosis.bill = Bill::of(verdict, &scale);
    }
    if diagnosis.verdicts.iter().any(|verdict| verdict.is_firm) {
        return Ok(());
    }
    let Some(measured) = &steps.mean else { return Ok(()) };
    let predicted = detail.expected.as_ref().filter(|expected| expected.is_prediction());
    diagnosis.levers = levers_of_parts(measured, predicted.and_then(|expected| expected.breakdown).as_ref());
    let machines = machines(&nodes, &catalog).filter(|_| is_real);
    let layouts = arguments.filter(|arguments| arguments.trainer != OWN_TRAINER).zip(machines);
    if let Some((arguments, machines)) = layouts {
        match levers_of_layouts(arguments, &machines, measured, &catalog) {
            Ok(levers) => diagnosis.levers.extend(levers),
            Err(why) => diagnosis.notes.push(format!("other layouts were not priced: {why}")),
        }
        diagnosis.levers.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    }
    Ok(())
}

/// What all nodes cost for an hour on demand, where each has a price.
fn dollars(nodes: &[NodeSummary], catalog: &Catalog) -> Option<f64> {
    let price = |node: &NodeSummary| {
        let instance = catalog.instance(&node.kind).ok()?;
        Some(instance.prices.newest(Purchase::OnDemand, None)?.per_hour.hourly().get())
    };
    nodes.iter().map(price).sum()
}

/// Nodes of one kind.
fn machines(nodes: &[NodeSummary], catalog: &Catalog) -> Option<Machines> {
    let kind = &nodes.first()?.kind;
    if nodes.iter().any(|node| node.kind != *kind) {
        return None;
    }
    let cluster = Cluster::from_spec(&format!("{kind}:1"), catalog).ok()?;
    Some(Machines { kind: cluster.kinds().first()?.clone(), nodes: nodes.len() as u32 })
}

/// A log that comes over the network.
struct Output<'a>(LogReader<'a>);

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.feed(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
