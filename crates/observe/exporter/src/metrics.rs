//! Every metric that the exporter can write, as data: name, kind, help and labels.
//!
//! Names, labels and units of existing exporters are kept where one exists, so that dashboards work unchanged; only what
//! nobody has a name for begins with `bedplate_`. The rules, the dashboards and the documentation are checked against
//! this table, and a collector cannot write anything that is not in it.

pub mod gpu;
pub mod host;
pub mod network;
pub mod own;
pub mod storage;

/// Of the node as a whole.
pub const NODE_LABELS: &[&str] = &["Hostname"];

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows, until its source restarts.
    Counter,
    Gauge,
}

impl MetricKind {
    pub const fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub help: &'static str,
    /// Labels that its series may have.
    pub labels: &'static [&'static str],
}

/// All metrics, by area.
pub static ALL: &[&[&Metric]] = &[gpu::GPU, network::NETWORK, storage::STORAGE, host::HOST, own::OWN];

pub fn all() -> impl Iterator<Item = &'static Metric> {
    ALL.iter().flat_map(|area| area.iter().copied())
}

/// Metrics as named constants, and the list of an area.
macro_rules! table {
    ($area:ident: $($constant:ident $name:literal $kind:ident $labels:ident $help:literal)+) => {
        $(
            #[doc = $help]
            pub static $constant: $crate::metrics::Metric = $crate::metrics::Metric {
                name: $name,
                kind: $crate::metrics::MetricKind::$kind,
                help: $help,
                labels: $labels,
            };
        )+
        /// The metrics of this area, in the order in which they are written.
        pub static $area: &[&$crate::metrics::Metric] = &[$(&$constant),+];
    };
}
pub(crate) use table;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_one_metric() {
        let mut names: Vec<&str> = all().map(|metric| metric.name).collect();
        names.sort_unstable();
        let twice: Vec<&[&str]> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }

    #[test]
    fn names_and_help_are_legal_in_the_text_format() {
        let is_name = |name: &str| name.chars().all(|each| each.is_ascii_alphanumeric() || each == '_');
        for metric in all() {
            assert!(is_name(metric.name) && metric.labels.iter().all(|label| is_name(label)), "{metric:?}");
            assert!(!metric.help.contains(['\n', '\\']), "{metric:?}");
        }
    }
}
