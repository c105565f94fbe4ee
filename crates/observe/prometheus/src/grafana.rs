//! Dashboards as data, and as the JSON that Grafana imports.

mod json;
mod schema;

pub use schema::flaws;

use serde_json::Value;

/// A dashboard: variables to choose by, rows of panels.
#[derive(Debug, Clone, PartialEq)]
pub struct Dashboard {
    /// Stays the same over releases, so that links and an import over the old one work.
    pub uid: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub variables: Vec<Variable>,
    pub rows: Vec<Row>,
}

/// A list to choose from at the top of a dashboard; its values are those of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    pub name: &'static str,
    pub label: &'static str,
    /// `label_values(metric, label)`
    pub query: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub title: &'static str,
    pub panels: Vec<Panel>,
}

/// How a panel draws its series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PanelKind {
    TimeSeries,
    Stat,
    Gauge,
    StateTimeline,
    BarGauge,
    Table,
    Text,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    pub title: &'static str,
    pub description: &'static str,
    pub kind: PanelKind,
    /// Grafana's name of a unit: `celsius`, `Bps`, `percentunit`.
    pub unit: &'static str,
    pub queries: Vec<Query>,
    /// Values from which it is orange and red.
    pub limits: Option<(f64, f64)>,
    /// Columns of 24.
    pub width: u32,
    pub height: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    pub expression: String,
    /// `{{Hostname}} gpu {{gpu}}`
    pub legend: &'static str,
}

impl Panel {
    pub(crate) fn new(title: &'static str, kind: PanelKind, unit: &'static str) -> Self {
        let (width, height) = match kind {
            PanelKind::Stat | PanelKind::Gauge => (6, 6),
            PanelKind::Text => (24, 4),
            _ => (12, 8),
        };
        Self { title, description: "", kind, unit, queries: Vec::new(), limits: None, width, height }
    }

    pub(crate) fn query(mut self, expression: impl Into<String>, legend: &'static str) -> Self {
        self.queries.push(Query { expression: expression.into(), legend });
        self
    }

    pub(crate) fn says(mut self, description: &'static str) -> Self {
        self.description = description;
        self
    }

    pub(crate) fn limits(mut self, orange: f64, red: f64) -> Self {
        self.limits = Some((orange, red));
        self
    }

    pub(crate) fn wide(mut self, width: u32) -> Self {
        self.width = width;
        self
    }
}

impl Dashboard {
    /// What Grafana imports, with `hostname` as the label of the node's name.
    pub fn to_json(&self, hostname: &str) -> Value {
        json::dashboard(self, hostname)
    }

    pub fn panels(&self) -> impl Iterator<Item = &Panel> {
        self.rows.iter().flat_map(|row| &row.panels)
    }

    pub fn queries(&self) -> impl Iterator<Item = &Query> {
        self.panels().flat_map(|panel| &panel.queries)
    }
}
