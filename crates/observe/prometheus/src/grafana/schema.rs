//! What a dashboard must be, so that Grafana takes it and draws it.
//!
//! This is a reduced form, written by us, of Grafana's published schema of dashboards (the CUE kinds behind
//! `@grafana/schema`, versions 10 to 13): the fields that we use, their types and their legal values, and the rules of
//! Grafana's dashboard-linter that matter here. It does not check what we do not use, and it is not Grafana.

use std::collections::BTreeSet;

use serde_json::Value;

const PANEL_TYPES: [&str; 8] =
    ["row", "text", "timeseries", "stat", "gauge", "bargauge", "state-timeline", "table"];
/// Units that our panels use, of Grafana's list of value formats.
const UNITS: [&str; 19] = [
    "none",
    "short",
    "percent",
    "percentunit",
    "celsius",
    "watt",
    "joule",
    "bytes",
    "mbytes",
    "Bps",
    "s",
    "ns",
    "ops",
    "reqps",
    "rotmhz",
    "bool",
    "locale",
    "cps",
    "string",
];
const MODES: [&str; 3] = ["palette-classic", "thresholds", "fixed"];

/// Everything that is wrong with a dashboard, as sentences with the place.
pub fn flaws(dashboard: &Value) -> Vec<String> {
    let mut found = Flaws(Vec::new());
    found.top(dashboard);
    found.variables(&dashboard["templating"]["list"]);
    let mut ids = BTreeSet::new();
    for (at, panel) in array(&dashboard["panels"]).iter().enumerate() {
        found.panel(panel, &format!("panels[{at}]"), &mut ids);
    }
    found.overlaps(array(&dashboard["panels"]));
    found.0
}

struct Flaws(Vec<String>);

impl Flaws {
    fn say(&mut self, place: &str, what: &str) {
        self.0.push(format!("{place}: {what}"));
    }

    fn must(&mut self, is_so: bool, place: &str, what: &str) {
        if !is_so {
            self.say(place, what);
        }
    }

    fn text(&mut self, value: &Value, place: &str) {
        self.must(
            value.as_str().is_some_and(|text| !text.is_empty()),
            place,
            "must be a text that is not empty",
        );
    }

    fn top(&mut self, dashboard: &Value) {
        self.text(&dashboard["title"], "title");
        self.text(&dashboard["uid"], "uid");
        let uid = dashboard["uid"].as_str().unwrap_or_default();
        let is_uid =
            uid.len() <= 40 && uid.chars().all(|it| it.is_ascii_alphanumeric() || it == '-' || it == '_');
        self.must(is_uid, "uid", "has at most 40 letters, digits, `-` and `_`");
        self.must(
            dashboard["schemaVersion"].as_u64().is_some_and(|it| it >= 36),
            "schemaVersion",
            "must be 36 or more",
        );
        self.must(dashboard["panels"].is_array(), "panels", "must be a list");
        self.must(
            dashboard["tags"].as_array().is_some_and(|tags| tags.iter().all(Value::is_string)),
            "tags",
            "must be texts",
        );
        for end in ["from", "to"] {
            self.text(&dashboard["time"][end], &format!("time.{end}"));
        }
        self.must(
            dashboard.get("id").is_none_or(Value::is_null),
            "id",
            "belongs to one installation and must be absent",
        );
        let tooltip = dashboard["graphTooltip"].as_u64();
        self.must(tooltip.is_some_and(|it| it <= 2), "graphTooltip", "must be 0, 1 or 2");
    }

    fn variables(&mut self, list: &Value) {
        let mut names = BTreeSet::new();
        for (at, variable) in array(list).iter().enumerate() {
            let place = format!("templating.list[{at}]");
            self.text(&variable["name"], &format!("{place}.name"));
            let name = variable["name"].as_str().unwrap_or_default().to_owned();
            self.must(names.insert(name), &place, "has a name that another variable has");
            let kind = variable["type"].as_str().unwrap_or_default();
            self.must(
                ["query", "datasource", "custom", "interval"].contains(&kind),
                &place,
                "has a type that Grafana does not know",
            );
            if kind == "query" {
                self.source(&variable["datasource"], &place);
                self.text(&variable["query"]["query"], &format!("{place}.query.query"));
            }
            self.must(
                variable["refresh"].as_u64().is_some_and(|it| it <= 2),
                &place,
                "must refresh never, on load or on time",
            );
        }
        let has_source =
            array(list).iter().any(|it| it["name"] == "datasource" && it["type"] == "datasource");
        self.must(has_source, "templating", "must have the variable `datasource`");
    }

    /// Since Grafana 9 a data source is an object with type and uid.
    fn source(&mut self, source: &Value, place: &str) {
        let is_it = source["type"] == "prometheus" && source["uid"] == "${datasource}";
        self.must(is_it, place, "must use the data source that is chosen at the top");
    }

    fn panel(&mut self, panel: &Value, place: &str, ids: &mut BTreeSet<u64>) {
        let kind = panel["type"].as_str().unwrap_or_default();
        self.must(PANEL_TYPES.contains(&kind), place, "has a type that Grafana does not know");
        self.must(panel["id"].as_u64().is_some_and(|id| ids.insert(id)), place, "needs an id of its own");
        self.text(&panel["title"], &format!("{place}.title"));
        let grid = |key: &str| panel["gridPos"][key].as_u64();
        let is_placed = match (grid("x"), grid("y"), grid("w"), grid("h")) {
            (Some(x), Some(_), Some(w), Some(h)) => w > 0 && h > 0 && x + w <= 24,
            _ => false,
        };
        self.must(is_placed, place, "must lie within 24 columns");
        match kind {
            "row" => self.must(
                panel["collapsed"].is_boolean() && panel["panels"].is_array(),
                place,
                "must say whether it is collapsed",
            ),
            "text" => self.text(&panel["options"]["content"], &format!("{place}.options.content")),
            _ => self.drawn(panel, place),
        }
    }

    fn drawn(&mut self, panel: &Value, place: &str) {
        self.source(&panel["datasource"], place);
        let targets = array(&panel["targets"]);
        self.must(!targets.is_empty(), place, "must have a query");
        let mut letters = BTreeSet::new();
        for (at, target) in targets.iter().enumerate() {
            let place = format!("{place}.targets[{at}]");
            self.text(&target["expr"], &format!("{place}.expr"));
            self.source(&target["datasource"], &place);
            let letter = target["refId"].as_str().unwrap_or_default().to_owned();
            self.must(!letter.is_empty() && letters.insert(letter), &place, "needs a refId of its own");
            self.must(target["legendFormat"].is_string(), &place, "must say what its series are called");
            let (instant, range) = (target["instant"].as_bool(), target["range"].as_bool());
            self.must(
                instant.is_some() && range == instant.map(|it| !it),
                &place,
                "must be instant or a range",
            );
            self.rate(target["expr"].as_str().unwrap_or_default(), &place);
        }
        let defaults = &panel["fieldConfig"]["defaults"];
        self.must(
            defaults["unit"].as_str().is_some_and(|unit| UNITS.contains(&unit)),
            place,
            "has a unit that Grafana does not know",
        );
        self.must(
            defaults["color"]["mode"].as_str().is_some_and(|mode| MODES.contains(&mode)),
            place,
            "has an unknown colour mode",
        );
        self.steps(&defaults["thresholds"], place);
        self.must(panel["fieldConfig"]["overrides"].is_array(), place, "must have a list of overrides");
        self.must(panel["options"].is_object(), place, "must have options");
    }

    /// Thresholds begin with the one that has no value and rise.
    fn steps(&mut self, thresholds: &Value, place: &str) {
        let steps = array(&thresholds["steps"]);
        let values: Vec<Option<f64>> = steps.iter().map(|step| step["value"].as_f64()).collect();
        let rises =
            values.iter().skip(1).flatten().collect::<Vec<_>>().windows(2).all(|pair| pair[0] < pair[1]);
        let is_whole = values.first() == Some(&None) && values.iter().skip(1).all(Option::is_some);
        self.must(
            thresholds["mode"] == "absolute" && is_whole && rises,
            place,
            "has thresholds that do not rise",
        );
        self.must(
            steps.iter().all(|step| step["color"].is_string()),
            place,
            "has a threshold without a colour",
        );
    }

    /// A graph's rates must follow the scrape interval and the zoom, or they show gaps.
    fn rate(&mut self, expression: &str, place: &str) {
        for function in ["rate(", "irate("] {
            for part in expression.split(function).skip(1) {
                let window =
                    part.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(window, _)| window);
                self.must(window == Some("$__rate_interval"), place, "must take rates over $__rate_interval");
            }
        }
    }

    fn overlaps(&mut self, panels: &[Value]) {
        let place = |panel: &Value| {
            let grid = |key: &str| panel["gridPos"][key].as_u64().unwrap_or(0);
            (grid("x"), grid("y"), grid("x") + grid("w"), grid("y") + grid("h"))
        };
        for (at, panel) in panels.iter().enumerate() {
            let (left, top, right, bottom) = place(panel);
            let is_over = |other: &Value| {
                let (l, t, r, b) = place(other);
                left < r && l < right && top < b && t < bottom
            };
            if panels[..at].iter().any(is_over) {
                self.say(&format!("panels[{at}]"), "lies over another panel");
            }
        }
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
