//! The rule file for Prometheus, and its unit tests for promtool.

use std::collections::BTreeMap;

use bedplate_document::quote;
use bedplate_health::{Profile, Rules};

use crate::alert::{Alert, Example, duration};
use crate::alerts::{AlertGroup, groups};
use crate::yaml;

/// What a rule file is made for.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleOptions {
    /// The health rules of the site, with their profile.
    pub rules: Rules,
    /// The label that carries the node's name: `Hostname`, or `hostname` as dcgm-exporter has it since 2026.
    pub hostname: String,
    /// Seconds between evaluations; Prometheus's own default where absent.
    pub interval_s: Option<u64>,
}

impl Default for RuleOptions {
    fn default() -> Self {
        Self { rules: Rules::built_in(Profile::default()), hostname: "Hostname".to_owned(), interval_s: None }
    }
}

/// A series that Prometheus computes and keeps.
pub struct Recording {
    pub name: &'static str,
    pub expression: &'static str,
}

/// Named `level:metric:operation`, as Prometheus's documentation advises. Long ranges of these are cheap.
pub const RECORDINGS: &[Recording] = &[
    Recording { name: "host:gpu_utilization:avg", expression: "avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL)" },
    Recording { name: "host:sm_active:avg", expression: "avg by (Hostname) (DCGM_FI_PROF_SM_ACTIVE)" },
    Recording {
        name: "host:tensor_active:avg",
        expression: "avg by (Hostname) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE)",
    },
    Recording { name: "host:gpu_power_watts:sum", expression: "sum by (Hostname) (DCGM_FI_DEV_POWER_USAGE)" },
    Recording {
        name: "host:thermal_slowdown:ratio_rate5m",
        expression: "max by (Hostname) (rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m])) / 1e9",
    },
    Recording {
        name: "host:efa_transmit_bytes:rate5m",
        expression: "sum by (Hostname) (rate(node_amazonefa_tx_bytes[5m]))",
    },
    Recording {
        name: "host:efa_retransmit:ratio_rate5m",
        expression: "sum by (Hostname) (rate(node_amazonefa_retrans_bytes[5m])) / (sum by (Hostname) (rate(node_amazonefa_tx_bytes[5m])) > 0)",
    },
    Recording {
        name: "host:lustre_read_bytes:rate5m",
        expression: "sum by (Hostname) (rate(lustre_read_bytes_total[5m]))",
    },
    Recording {
        name: "host:lustre_write_bytes:rate5m",
        expression: "sum by (Hostname) (rate(lustre_write_bytes_total[5m]))",
    },
    Recording {
        name: "job:gpu_power_watts:sum",
        expression: "sum by (hpc_job) (DCGM_FI_DEV_POWER_USAGE{hpc_job!=\"\"})",
    },
    Recording {
        name: "job:sm_active:avg",
        expression: "avg by (hpc_job) (DCGM_FI_PROF_SM_ACTIVE{hpc_job!=\"\"})",
    },
    Recording {
        name: "instance:train_step_over_predicted:ratio",
        expression: "bedplate_train_step_seconds / on (instance, job) sum by (instance, job) (bedplate_train_predicted_seconds)",
    },
];

/// The rule file: recording rules, then alerts, for Prometheus 2.42 and later.
pub fn rules_file(options: &RuleOptions) -> String {
    let mut text =
        String::from("# Made by `bedplate rules`; make it again instead of editing it.\ngroups:\n");
    text += &head("bedplate-recording", options);
    for recording in RECORDINGS {
        text += &format!(
            "      - record: {}\n        expr: {}\n",
            recording.name,
            quote::yaml(recording.expression)
        );
    }
    for AlertGroup { name, alerts } in groups(&options.rules) {
        text += &head(name, options);
        alerts.iter().for_each(|alert| text += &rule(alert));
    }
    spelled(&text, options)
}

fn head(name: &str, options: &RuleOptions) -> String {
    let interval =
        options.interval_s.map_or_else(String::new, |it| format!("    interval: {}\n", duration(it)));
    format!("  - name: {name}\n{interval}    rules:\n")
}

fn rule(alert: &Alert) -> String {
    let mut text =
        format!("      - alert: {}\n        expr: {}\n", alert.name, quote::yaml(&alert.expression));
    if alert.lasts_s > 0 {
        text += &format!("        for: {}\n", duration(alert.lasts_s));
    }
    text += "        labels:\n";
    text += &yaml::map(10, alert.own_labels());
    text += "        annotations:\n";
    text += &yaml::map(10, alert.annotations());
    text
}

fn spelled(text: &str, options: &RuleOptions) -> String {
    text.replace("Hostname", &options.hostname)
}

/// Unit tests for promtool: `promtool test rules FILE`, beside the rule file that it names.
pub fn tests_file(options: &RuleOptions, rule_file: &str) -> String {
    let mut text = format!(
        "# Made by `bedplate rules --tests`: every alert fires and keeps silent as it should.\nrule_files:\n  - {}\nevaluation_interval: 1m\ntests:\n",
        quote::yaml(rule_file)
    );
    let groups = groups(&options.rules);
    for test in merged(&groups) {
        text += &test.to_yaml();
    }
    spelled(&text, options)
}

/// Examples that share one run of promtool, which evaluates every rule at every moment.
#[derive(Default)]
struct Test<'a> {
    interval_s: u64,
    series: BTreeMap<&'a str, &'a str>,
    asked: Vec<(&'a Alert, &'a Example)>,
}

/// As few tests as possible: examples share one unless they would disturb each other.
fn merged(groups: &[AlertGroup]) -> Vec<Test<'_>> {
    let mut tests: Vec<Test<'_>> = Vec::new();
    for alert in groups.iter().flat_map(|group| &group.alerts) {
        for example in &alert.examples {
            let room = tests.iter().position(|test| test.has_room_for(alert, example));
            let at = room.unwrap_or_else(|| {
                tests.push(Test { interval_s: example.interval_s, ..Test::default() });
                tests.len() - 1
            });
            tests[at].add(alert, example);
        }
    }
    tests
}

impl<'a> Test<'a> {
    /// Codes of XIDs are told apart by a label; otherwise examples must use different metrics.
    fn has_room_for(&self, alert: &Alert, example: &Example) -> bool {
        let is_other =
            |(asked, of): &(&Alert, &Example)| asked.name == alert.name && of.series != example.series;
        if self.asked.iter().any(is_other) {
            return false;
        }
        let is_xid = |series: &str| series.starts_with("DCGM_EXP_XID_ERRORS_COUNT");
        let fits = |(series, values): &(String, String)| {
            let disturbs = |(known, has): (&&str, &&str)| match is_xid(series) {
                true => *known == series.as_str() && *has != values.as_str(),
                false => {
                    metric(known) == metric(series) && (*known != series.as_str() || *has != values.as_str())
                }
            };
            !self.series.iter().any(disturbs)
        };
        self.interval_s == example.interval_s && example.series.iter().all(fits)
    }

    fn add(&mut self, alert: &'a Alert, example: &'a Example) {
        self.series.extend(example.series.iter().map(|(series, values)| (series.as_str(), values.as_str())));
        self.asked.push((alert, example));
    }

    fn to_yaml(&self) -> String {
        let mut text = format!("  - interval: {}\n    input_series:\n", duration(self.interval_s));
        for (series, values) in &self.series {
            text += &format!(
                "      - series: {}\n        values: {}\n",
                quote::yaml(series),
                quote::yaml(values)
            );
        }
        text += "    alert_rule_test:\n";
        self.asked.iter().for_each(|(alert, example)| text += &expectation(alert, example));
        text
    }
}

fn metric(series: &str) -> &str {
    series.split('{').next().unwrap_or(series)
}

fn expectation(alert: &Alert, example: &Example) -> String {
    let at = duration(example.at_s);
    let mut text = format!("      - eval_time: {at}\n        alertname: {}\n", alert.name);
    if example.fires.is_empty() {
        return text + "        exp_alerts: []\n";
    }
    text += "        exp_alerts:\n";
    for labels in &example.fires {
        // An alert's own labels win over those of the series.
        let own = alert.own_labels().map(|(name, value)| (name.to_owned(), value));
        let kept = labels.iter().filter(|(name, _)| own.iter().all(|(known, _)| known != name));
        let all: Vec<(String, String)> = kept.cloned().chain(own.clone()).collect();
        text += "          - exp_labels:\n";
        text += &yaml::map(14, all);
        text += "            exp_annotations:\n";
        text += &yaml::map(14, alert.annotations().map(|(name, told)| (name, Alert::filled(&told, labels))));
    }
    text
}
