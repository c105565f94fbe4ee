//! What collectors hand over: values of metrics with their labels.

use std::sync::Arc;

use bedplate_health::{Reading, ReadingPlace};
use bedplate_record::Exposition;

use crate::metrics::Metric;

/// One value of one metric.
#[derive(Debug, Clone)]
pub(crate) struct MetricSeries {
    pub(crate) metric: &'static Metric,
    /// `key="value"` pairs, escaped.
    pub(crate) labels: Arc<str>,
    pub(crate) spot: Spot,
    pub(crate) value: f64,
}

/// The part of the node that a value is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spot {
    Node,
    Gpu(u32),
    Card(Arc<str>),
    Mount(Arc<str>),
}

impl MetricSeries {
    pub(crate) fn reading(&self) -> Reading<'_> {
        let place = match &self.spot {
            Spot::Node => ReadingPlace::Node,
            Spot::Gpu(index) => ReadingPlace::Gpu(*index),
            Spot::Card(card) => ReadingPlace::Card(card),
            Spot::Mount(mount) => ReadingPlace::Mount(mount),
        };
        Reading { metric: self.metric.name, place, value: self.value }
    }
}

/// How the host is called in labels. dcgm-exporter spells it `Hostname`, and since May 2026 `hostname`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HostnameLabel {
    #[default]
    Capital,
    Small,
    Both,
}

/// Makes labels of a node.
#[derive(Debug, Clone)]
pub(crate) struct Naming {
    host: String,
}

impl Naming {
    pub(crate) fn new(host: &str, style: HostnameLabel) -> Self {
        let host = Exposition::escape(host);
        let host = match style {
            HostnameLabel::Capital => format!("Hostname=\"{host}\""),
            HostnameLabel::Small => format!("hostname=\"{host}\""),
            HostnameLabel::Both => format!("Hostname=\"{host}\",hostname=\"{host}\""),
        };
        Self { host }
    }

    /// Labels with that of the host at the end.
    pub(crate) fn labels(&self, pairs: &[(&str, &str)]) -> Arc<str> {
        let mut text = String::with_capacity(160);
        for (key, value) in pairs {
            text += key;
            text += "=\"";
            text += &Exposition::escape(value);
            text += "\",";
        }
        text += &self.host;
        text.into()
    }
}

/// A list that a collector fills.
#[derive(Debug, Default)]
pub(crate) struct SeriesBatch(pub(crate) Vec<MetricSeries>);

impl SeriesBatch {
    /// A value; one that is not a number is left out.
    pub(crate) fn put(&mut self, metric: &'static Metric, labels: &Arc<str>, spot: &Spot, value: f64) {
        if value.is_finite() {
            let (labels, spot) = (Arc::clone(labels), spot.clone());
            self.0.push(MetricSeries { metric, labels, spot, value });
        }
    }

    /// A value of something that may be there twice under one name: it joins the one that is known.
    pub(crate) fn join(
        &mut self,
        metric: &'static Metric,
        labels: &Arc<str>,
        spot: &Spot,
        value: f64,
        join: fn(f64, f64) -> f64,
    ) {
        let known = self.0.iter_mut().find(|one| std::ptr::eq(one.metric, metric) && one.labels == *labels);
        match known {
            Some(known) if value.is_finite() => known.value = join(known.value, value),
            Some(_) => {}
            None => self.put(metric, labels, spot, value),
        }
    }
}
