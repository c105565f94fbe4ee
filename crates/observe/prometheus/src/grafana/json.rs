//! The JSON model of Grafana's dashboards, schema version 39 (Grafana 10.4 and later).

use serde_json::{Map, Value, json};

use super::{Dashboard, Panel, PanelKind, Query, Row, Variable};

const SCHEMA_VERSION: u32 = 39;
/// Every panel uses the data source that is chosen at the top.
const SOURCE: &str = "${datasource}";

pub(super) fn dashboard(dashboard: &Dashboard, hostname: &str) -> Value {
    let mut layout = Layout::default();
    for row in &dashboard.rows {
        layout.row(row, hostname);
    }
    let mut variables = vec![source_variable()];
    variables.extend(dashboard.variables.iter().map(|it| variable(it, hostname)));
    json!({
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["bedplate"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": { "from": "now-6h", "to": "now" },
        "timezone": "browser",
        "templating": { "list": variables },
        "annotations": { "list": [alerts()] },
        "panels": layout.panels,
    })
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": SOURCE })
}

fn source_variable() -> Value {
    json!({
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
        "hide": 0, "includeAll": false, "multi": false, "refresh": 1, "options": [], "current": {},
    })
}

fn variable(variable: &Variable, hostname: &str) -> Value {
    let query = spelled(&variable.query, hostname);
    json!({
        "name": variable.name, "label": variable.label, "type": "query", "datasource": source(),
        "definition": query, "query": { "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery" },
        "hide": 0, "includeAll": true, "allValue": ".*", "multi": true, "refresh": 2, "sort": 7,
        "options": [], "current": { "selected": true, "text": ["All"], "value": ["$__all"] },
    })
}

/// Alerts of ours as marks on every graph.
fn alerts() -> Value {
    json!({
        "name": "Alerts", "datasource": source(), "enable": true, "iconColor": "red",
        "expr": "ALERTS{alertstate=\"firing\",rule!=\"\"}", "titleFormat": "{{alertname}}", "step": "60s",
    })
}

/// Panels from left to right, rows below each other, on a grid of 24 columns.
#[derive(Default)]
struct Layout {
    panels: Vec<Value>,
    y: u32,
}

impl Layout {
    fn row(&mut self, row: &Row, hostname: &str) {
        let id = self.panels.len() + 1;
        self.panels.push(json!({
            "id": id, "type": "row", "title": row.title, "collapsed": false, "panels": [],
            "gridPos": { "h": 1, "w": 24, "x": 0, "y": self.y },
        }));
        self.y += 1;
        let (mut x, mut tallest) = (0, 0);
        for panel in &row.panels {
            if x + panel.width > 24 {
                (x, self.y, tallest) = (0, self.y + tallest, 0);
            }
            let id = self.panels.len() + 1;
            let place = json!({ "h": panel.height, "w": panel.width, "x": x, "y": self.y });
            self.panels.push(self::panel(panel, id, &place, hostname));
            x += panel.width;
            tallest = tallest.max(panel.height);
        }
        self.y += tallest;
    }
}

fn panel(panel: &Panel, id: usize, place: &Value, hostname: &str) -> Value {
    let mut found = json!({
        "id": id, "type": name(panel.kind), "title": panel.title, "description": panel.description, "gridPos": place,
    });
    let Some(map) = found.as_object_mut() else { return found };
    if panel.kind == PanelKind::Text {
        map.insert("options".into(), json!({ "mode": "markdown", "content": panel.description }));
        map.insert("description".into(), json!(""));
        return found;
    }
    let targets: Vec<Value> =
        panel.queries.iter().enumerate().map(|(at, query)| target(query, at, panel.kind, hostname)).collect();
    map.insert("datasource".into(), source());
    map.insert("targets".into(), json!(targets));
    map.insert("fieldConfig".into(), json!({ "defaults": defaults(panel), "overrides": [] }));
    map.insert("options".into(), options(panel.kind));
    found
}

fn name(kind: PanelKind) -> &'static str {
    match kind {
        PanelKind::TimeSeries => "timeseries",
        PanelKind::Stat => "stat",
        PanelKind::Gauge => "gauge",
        PanelKind::StateTimeline => "state-timeline",
        PanelKind::BarGauge => "bargauge",
        PanelKind::Table => "table",
        PanelKind::Text => "text",
    }
}

fn target(query: &Query, at: usize, kind: PanelKind, hostname: &str) -> Value {
    let is_instant =
        matches!(kind, PanelKind::Stat | PanelKind::Gauge | PanelKind::BarGauge | PanelKind::Table);
    let letter = char::from(b'A' + (at % 26) as u8);
    json!({
        "refId": letter.to_string(),
        "datasource": source(),
        "expr": spelled(&query.expression, hostname),
        "legendFormat": spelled(query.legend, hostname),
        "instant": is_instant,
        "range": !is_instant,
        "format": if kind == PanelKind::Table { "table" } else { "time_series" },
    })
}

fn defaults(panel: &Panel) -> Value {
    let mut steps = vec![json!({ "color": "green", "value": null })];
    if let Some((orange, red)) = panel.limits {
        steps.push(json!({ "color": "orange", "value": orange }));
        steps.push(json!({ "color": "red", "value": red }));
    }
    let mode = if panel.limits.is_some() && panel.kind != PanelKind::TimeSeries {
        "thresholds"
    } else {
        "palette-classic"
    };
    let mut custom = Map::new();
    if panel.kind == PanelKind::TimeSeries {
        custom.insert("lineWidth".into(), json!(1));
        custom.insert("fillOpacity".into(), json!(5));
        custom.insert("spanNulls".into(), json!(false));
    }
    json!({
        "unit": panel.unit,
        "color": { "mode": mode },
        "thresholds": { "mode": "absolute", "steps": steps },
        "custom": custom,
        "mappings": [],
    })
}

fn options(kind: PanelKind) -> Value {
    let reduce = json!({ "calcs": ["lastNotNull"], "fields": "", "values": false });
    match kind {
        PanelKind::TimeSeries => json!({
            "legend": { "displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": [] },
            "tooltip": { "mode": "multi", "sort": "desc" },
        }),
        PanelKind::Stat => {
            json!({ "reduceOptions": reduce, "colorMode": "background", "graphMode": "none", "textMode": "auto" })
        }
        PanelKind::Gauge => {
            json!({ "reduceOptions": reduce, "showThresholdLabels": false, "showThresholdMarkers": true })
        }
        PanelKind::BarGauge => {
            json!({ "reduceOptions": reduce, "displayMode": "gradient", "orientation": "horizontal" })
        }
        PanelKind::StateTimeline => json!({ "mergeValues": true, "showValue": "auto", "rowHeight": 0.9 }),
        PanelKind::Table => json!({ "showHeader": true, "cellHeight": "sm" }),
        PanelKind::Text => json!({}),
    }
}

/// The node's label, as the site spells it. The variable keeps its name.
fn spelled(text: &str, hostname: &str) -> String {
    text.replace("$Hostname", "\u{0}").replace("Hostname", hostname).replace('\u{0}', "$Hostname")
}
