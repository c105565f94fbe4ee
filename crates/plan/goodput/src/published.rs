//! Published facts about failures, each with its source: `data/failures/failures.toml`.
//!
//! A file of the same form replaces all of them; single figures are overridden where they are used.

use bedplate_diag::{Source, shown};
use bedplate_document::{DocumentError, Table};
use bedplate_units::{Bandwidth, Seconds};

use crate::GoodputError;

/// How well a published figure was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checked {
    /// The document itself was read.
    Source,
    /// A page that restates it was read.
    Secondary,
    /// From memory.
    Recalled,
}

impl Checked {
    const ALL: [(&'static str, Checked); 3] =
        [("source", Checked::Source), ("secondary", Checked::Secondary), ("recalled", Checked::Recalled)];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Where a figure comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    pub source: String,
    pub checked: Checked,
    pub note: Option<String>,
}

/// How often runs on one cluster were interrupted.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedRate {
    pub key: String,
    pub cluster: String,
    /// Name of the accelerator in the catalog.
    pub accelerator: String,
    pub nodes: u32,
    /// Unplanned interruptions of a job per participating node and day.
    pub per_node_day: f64,
    /// Planned interruptions per node and day, which come on top.
    pub planned_per_node_day: f64,
    /// Key of the downtime that the same operator published.
    pub downtime: Option<String>,
    /// What the run's storage sustained, where that is published.
    pub store: Option<Bandwidth>,
    pub provenance: Provenance,
}

impl PublishedRate {
    /// The same per GPU: all clusters of the table have eight GPUs per node.
    pub fn per_gpu_day(&self) -> f64 {
        self.per_node_day / 8.0
    }
}

/// A cause of the interruptions of Llama 3's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptionCause {
    pub name: String,
    pub count: u64,
    /// The machine and its disks survive.
    pub keeps_node: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    pub key: String,
    pub value: f64,
    pub provenance: Provenance,
}

/// How long a recovery takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Downtime {
    pub key: String,
    pub time: Seconds,
    /// Whether the checkpoint is read within this time; else that comes on top.
    pub includes_reading: bool,
    pub provenance: Provenance,
}

/// The whole table.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    pub rates: Vec<PublishedRate>,
    pub causes: Vec<InterruptionCause>,
    pub downtimes: Vec<Downtime>,
    pub figures: Vec<Figure>,
}

impl Published {
    /// The built-in facts.
    pub fn builtin() -> Self {
        let text = include_str!("../../../../data/failures/failures.toml");
        Self::read(Source::new("data/failures/failures.toml", text))
            .expect("the embedded failure facts are valid: checked by a test")
    }

    pub fn read(source: Source<'_>) -> Result<Self, DocumentError> {
        let document = Table::parse(source)?.titled("the failure facts");
        let published = Self {
            rates: read_all(&document, "rate", read_rate)?,
            causes: read_all(&document, "cause", read_cause)?,
            downtimes: read_all(&document, "downtime", read_downtime)?,
            figures: read_all(&document, "figure", read_figure)?,
        };
        document.finish()?;
        Ok(published)
    }

    pub fn rate(&self, key: &str) -> Result<&PublishedRate, GoodputError> {
        self.rates.iter().find(|rate| rate.key == key).ok_or_else(|| GoodputError::UnknownRate {
            key: shown(key),
            known: self.rates.iter().map(|rate| rate.key.clone()).collect(),
        })
    }

    /// The default rate: that of the largest run whose count was checked.
    pub fn usual_rate(&self) -> Option<&PublishedRate> {
        let checked = self.rates.iter().filter(|rate| rate.provenance.checked != Checked::Recalled);
        checked.max_by_key(|rate| rate.nodes)
    }

    pub fn downtime(&self, key: &str) -> Option<Seconds> {
        self.find_downtime(key).map(|downtime| downtime.time)
    }

    fn find_downtime(&self, key: &str) -> Option<&Downtime> {
        self.downtimes.iter().find(|downtime| downtime.key == key)
    }

    /// How long a restart takes where a run failed at this rate: as its operator published, else the usual one.
    pub fn restart_of(&self, rate: &PublishedRate) -> Option<&Downtime> {
        let own = rate.downtime.as_deref().and_then(|key| self.find_downtime(key));
        own.or_else(|| self.find_downtime("restart"))
    }

    pub fn figure(&self, key: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.key == key)
    }

    /// Share of interruptions that lose a machine and its local disks.
    pub fn node_loss_share(&self) -> f64 {
        let count = |causes: &mut dyn Iterator<Item = &InterruptionCause>| {
            causes.map(|cause| cause.count).sum::<u64>() as f64
        };
        let all = count(&mut self.causes.iter());
        let lost = count(&mut self.causes.iter().filter(|cause| !cause.keeps_node));
        if all > 0.0 { lost / all } else { 1.0 }
    }
}

fn read_all<T>(
    document: &Table,
    key: &str,
    read: impl Fn(&Table) -> Result<T, DocumentError>,
) -> Result<Vec<T>, DocumentError> {
    let mut entries = Vec::new();
    for table in document.tables(key)? {
        entries.push(read(&table)?);
        table.finish()?;
    }
    Ok(entries)
}

fn read_rate(table: &Table) -> Result<PublishedRate, DocumentError> {
    let nodes: u32 = table.required("nodes")?;
    let per_node_day = match table.optional::<f64>("per_1000_node_days")? {
        Some(printed) => printed / 1000.0,
        None => table.required::<f64>("failures")? / (table.required::<f64>("days")? * f64::from(nodes)),
    };
    if !per_node_day.is_finite() || per_node_day < 0.0 {
        return Err(table.bad_value("nodes", "nodes and days must be positive and failures not negative"));
    }
    let planned = table.optional::<f64>("planned")?.unwrap_or(0.0);
    let days = table.optional::<f64>("days")?.unwrap_or(1.0);
    Ok(PublishedRate {
        key: table.required("key")?,
        cluster: table.required("cluster")?,
        accelerator: table.required("accelerator")?,
        nodes,
        per_node_day,
        planned_per_node_day: planned / (days * f64::from(nodes)),
        downtime: table.optional("downtime")?,
        store: table.optional::<f64>("store_bytes_per_second")?.map(Bandwidth::new),
        provenance: read_provenance(table)?,
    })
}

fn read_cause(table: &Table) -> Result<InterruptionCause, DocumentError> {
    Ok(InterruptionCause {
        name: table.required("name")?,
        count: table.required("count")?,
        keeps_node: table.required("keeps_node")?,
    })
}

fn read_downtime(table: &Table) -> Result<Downtime, DocumentError> {
    Ok(Downtime {
        key: table.required("key")?,
        time: Seconds::new(table.required("seconds")?),
        includes_reading: table.optional("includes_reading")?.unwrap_or(false),
        provenance: read_provenance(table)?,
    })
}

fn read_figure(table: &Table) -> Result<Figure, DocumentError> {
    Ok(Figure {
        key: table.required("key")?,
        value: table.required("value")?,
        provenance: read_provenance(table)?,
    })
}

fn read_provenance(table: &Table) -> Result<Provenance, DocumentError> {
    Ok(Provenance {
        source: table.required("source")?,
        checked: table.choice("checked", &Checked::ALL)?,
        note: table.optional("note")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_facts_are_valid_and_add_up() {
        let published = Published::builtin();
        let usual = published.usual_rate().unwrap();
        assert_eq!(usual.key, "llama3");
        assert!((usual.per_node_day * 1000.0 - 3.79).abs() < 0.01, "{}", usual.per_node_day);
        assert_eq!(published.causes.iter().map(|cause| cause.count).sum::<u64>(), 419);
        assert!((published.node_loss_share() - 321.0 / 419.0).abs() < 1e-12);
        assert!(published.downtime("peers").unwrap() < published.downtime("restart").unwrap());
        for key in published.rates.iter().filter_map(|rate| rate.downtime.as_deref()) {
            assert!(published.downtime(key).is_some(), "{key}");
        }
    }

    #[test]
    fn a_run_restarts_as_its_operator_published_else_as_usual() {
        let published = Published::builtin();
        let restart = |key| published.restart_of(published.rate(key).unwrap()).unwrap();
        assert_eq!(restart("llama3").key, "meta");
        assert_eq!(restart("crusoe").key, "restart");
    }

    #[test]
    fn an_unknown_rate_lists_the_known_ones() {
        use bedplate_diag::Diagnostic;
        let error = Published::builtin().rate("llama4").unwrap_err();
        assert_eq!(error.page().code, "plan/unknown-failure-rate");
        assert!(error.help().unwrap().contains("llama3"));
    }
}
