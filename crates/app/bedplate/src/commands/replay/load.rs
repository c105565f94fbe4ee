//! Where the jobs of a replay come from, and the cluster they run on.

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_drivers::Slurm;
use bedplate_gangs::Span;
use bedplate_goodput::Published;
use bedplate_replay::jobs::{
    Failures, Generator, LoadMixture, Lublin, Trace, TraceFormat, openb_cluster, read,
};
use bedplate_terminal::present::now_ms;
use bedplate_terminal::{CliError, ProgramError, choice, files};
use bedplate_topology::{Cluster, ImportOptions, import_detected};
use bedplate_units::Seconds;

use crate::clusters;
use crate::connection::Connection;

#[derive(clap::Args)]
pub(super) struct Load {
    /// A trace: SWF, the Philly CSV, the Alibaba GPU pod list, sacct's table, or JSON lines; `-` reads standard input
    #[arg(value_name = "TRACE", required_unless_present_any = ["generate", "from_slurm"])]
    trace: Option<String>,
    /// Take the history that a Slurm keeps in its accounting (sacct)
    #[arg(long, conflicts_with_all = ["trace", "generate"])]
    from_slurm: bool,
    /// With --from-slurm: how far back, as 12h or 90d [default: 30d]
    #[arg(long, value_name = "TIME", requires = "from_slurm")]
    since: Option<Seconds>,
    /// The format of the trace; detected from its content by default
    #[arg(long, value_parser = choice(&TraceFormat::ALL))]
    format: Option<TraceFormat>,
    /// INSTANCE:COUNT, several joined by `+`, a cluster file, or the Alibaba node list [default with --from-slurm: its own]
    #[arg(long, value_name = "CLUSTER", required_unless_present = "from_slurm")]
    cluster: Option<String>,
    /// Generate a load instead of reading one
    #[arg(long, value_enum, conflicts_with = "trace")]
    generate: Option<Kind>,
    /// How many jobs to generate
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=20_000_000))]
    jobs: u64,
    /// Days of generated submissions [default: as many as the jobs need at the load]
    #[arg(long, value_parser = positive, requires = "generate")]
    days: Option<f64>,
    /// Work over capacity while jobs arrive [default: 0.85 for generated jobs, unchanged for traces]
    #[arg(long, value_parser = positive)]
    load: Option<f64>,
    #[arg(long, value_name = "KEY", help = failures_help())]
    failures: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// Pre-training, fine-tuning, evaluation and debugging, fitted to AcmeTrace
    Llm,
    /// The pre-training and fine-tuning of it alone, all of it elastic
    LlmTraining,
    /// Parallel jobs of all sizes without users, after Lublin and Feitelson (2003)
    Lublin,
}

/// Other names of published failure rates.
const ALIASES: [(&str, &str); 1] = [("meta-h100", "llama3")];
/// The catalog has none of the GPUs of the Alibaba trace; this one stands in for all of them.
const STAND_IN: &str = "a100-40gb";
const USUAL_LOAD: f64 = 0.85;
/// How far back a history is read.
const USUAL_PAST_S: u64 = 30 * 86_400;

/// Names the published rates, other names last.
fn failures_help() -> String {
    let mut keys: Vec<String> = Published::builtin().rates.into_iter().map(|rate| rate.key).collect();
    keys.extend(ALIASES.iter().map(|(alias, key)| format!("{alias} (the same as {key})")));
    format!("Nodes fail at a published rate: {}", keys.join(", "))
}

fn positive(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|number| number.is_finite() && *number > 0.0 && *number <= 100_000.0)
        .ok_or_else(|| "it is not a number above 0".to_owned())
}

impl Load {
    pub(super) fn cluster(&self, catalog: &Catalog) -> Result<Cluster, CliError> {
        let Some(name) = &self.cluster else {
            return clusters::slurm::load(&self.slurm()?, &[], ImportOptions::default(), catalog);
        };
        if !name.ends_with(".csv") {
            return clusters::load(name, catalog);
        }
        let text = files::read_text(name)?;
        let toml = openb_cluster(Source::new(name, &text), STAND_IN)?;
        Ok(import_detected(&[Source::new(name, &toml)], &ImportOptions::default(), catalog)?)
    }

    fn slurm(&self) -> Result<Slurm, CliError> {
        let message = "--from-slurm needs a context of the kind slurm: name one with --context".to_owned();
        self.connection.slurm()?.ok_or_else(|| ProgramError::Usage { message }.into())
    }

    /// Reads the text of the trace, once for all seeds.
    pub(super) fn text(&self) -> Result<String, CliError> {
        if self.from_slurm {
            let seconds = self.since.map_or(USUAL_PAST_S, |since| since.get() as u64);
            return Ok(self.slurm()?.trace((now_ms() / 1000).saturating_sub(seconds))?);
        }
        Ok(self.trace.as_ref().map(|path| files::read_text(path)).transpose()?.unwrap_or_default())
    }

    /// The jobs; a seed changes only generated ones.
    pub(super) fn trace(&self, text: &str, cluster: &Cluster, seed: u64) -> Result<Trace, CliError> {
        let slurm = "the history of Slurm".to_owned();
        if let Some(path) = self.trace.as_ref().or(self.from_slurm.then_some(&slurm)) {
            let trace = read(Source::new(path, text), self.format)?;
            return Ok(match self.load {
                Some(load) => trace.scaled_to_load_of(load, cluster),
                None => trace,
            });
        }
        let (jobs, load) = (self.jobs as usize, self.load.unwrap_or(USUAL_LOAD));
        if let Some(Kind::Lublin) = self.generate {
            if self.days.is_some() {
                let message = "--days goes with --generate llm only: the window of the other follows from --jobs and --load".to_owned();
                return Err(ProgramError::Usage { message }.into());
            }
            return Ok(Lublin { jobs, processors: cluster.gpu_count(), load, seed }.generate());
        }
        let per_node = cluster.kinds().iter().map(|kind| kind.accelerators).max().unwrap_or(1);
        let generator = Generator {
            mixture: match self.generate {
                Some(Kind::LlmTraining) => LoadMixture::TRAINING,
                _ => LoadMixture::SEREN,
            },
            jobs,
            days: self.days,
            load,
            gpus: cluster.gpu_count(),
            gpus_per_node: per_node.min(64) as u16,
            seed,
        };
        Ok(generator.generate())
    }

    /// Whether every seed has different jobs.
    pub(super) fn is_generated(&self) -> bool {
        self.trace.is_none() && !self.from_slurm
    }

    pub(super) fn failures(&self) -> Result<Option<Failures>, CliError> {
        let Some(key) = &self.failures else {
            return Ok(None);
        };
        let known = ALIASES.iter().find(|(alias, _)| alias == key).map_or(key.as_str(), |(_, key)| key);
        let published = Published::builtin();
        let rate = published.rate(known)?;
        Ok(Some(Failures::published(rate.per_node_day, published.node_loss_share())))
    }

    pub(super) fn failures_key(&self) -> Option<&str> {
        self.failures.as_deref()
    }

    /// What a restart costs, as published.
    pub(super) fn restart(&self) -> Option<Span> {
        Published::builtin().downtime("restart").map(Span::from)
    }

    pub(super) fn title(&self) -> String {
        let untold = if self.from_slurm { "the history of Slurm" } else { "a generated load" };
        let name = self.trace.as_deref().unwrap_or(untold);
        name.rsplit('/').next().unwrap_or(name).to_owned()
    }
}
