//! Names of metrics: which ones an expression uses, and which ones exist.

use std::collections::BTreeSet;

use bedplate_exporter::metrics;

use crate::rules::RECORDINGS;

/// Words of PromQL that are not metrics.
const WORDS: [&str; 20] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "and",
    "or",
    "unless",
    "bool",
    "offset",
    "sum",
    "avg",
    "min",
    "max",
    "count",
    "rate",
    "inf",
    "nan",
    "start",
];

/// The names of metrics in an expression. Labels, functions, keywords and texts are not.
pub fn metrics_in(expression: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut braces = 0usize;
    let mut rest = expression;
    let mut is_list = false;
    while let Some(first) = rest.chars().next() {
        let length = word(rest).max(first.len_utf8());
        let text = &rest[..length];
        rest = &rest[length..];
        match first {
            '"' => rest = rest.split_once('"').map_or("", |(_, after)| after),
            '{' | '[' => braces += 1,
            '}' | ']' => braces = braces.saturating_sub(1),
            ')' => is_list = false,
            _ if !is_start(first) || braces > 0 => {}
            _ => {
                let opens = rest.trim_start().starts_with('(');
                let is_list_word = ["by", "without", "on", "ignoring"].contains(&text) && opens;
                let is_word = WORDS.contains(&text.to_lowercase().as_str());
                if is_list_word {
                    is_list = true;
                } else if !opens && !is_list && !is_word {
                    found.insert(text.to_owned());
                }
            }
        }
    }
    found
}

fn is_start(character: char) -> bool {
    character.is_ascii_alphabetic() || character == '_' || character == ':'
}

/// How many bytes the word or number at the beginning has; `5m` and `1e9` are numbers.
fn word(text: &str) -> usize {
    text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b':').count()
}

/// What the exporter writes, what rules record, what Prometheus itself adds.
pub fn known() -> BTreeSet<String> {
    let mut names: BTreeSet<String> = metrics::all().map(|metric| metric.name.to_owned()).collect();
    names.extend(RECORDINGS.iter().map(|recording| recording.name.to_owned()));
    names.extend(["up", "ALERTS"].map(str::to_owned));
    names
}

/// Metrics of other programs that our queries use: `bedplate daemon`, `bedplate train`, vLLM.
pub fn is_of_others(name: &str) -> bool {
    name.starts_with("vllm:") || name.starts_with("bedplate_train_") || DAEMON.contains(&name)
}

/// What the daemon writes at `/metrics`, histograms by the names of their series.
pub const DAEMON: [&str; 17] = [
    "bedplate_job_problem",
    "bedplate_jobs",
    "bedplate_nodes",
    "bedplate_gpus",
    "bedplate_gpus_free",
    "bedplate_links",
    "bedplate_submissions_total",
    "bedplate_submissions_refused_total",
    "bedplate_run_restarts_total",
    "bedplate_control_turn_seconds_bucket",
    "bedplate_scheduler_tick_seconds_bucket",
    "bedplate_journal_commit_seconds_bucket",
    "bedplate_journal_healthy",
    "bedplate_http_request_seconds_bucket",
    "bedplate_http_requests_total",
    "bedplate_resident_memory_bytes",
    "bedplate_event_watchers",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_are_taken_from_an_expression() {
        let names = |text| metrics_in(text).into_iter().collect::<Vec<_>>();
        assert_eq!(
            names("sum by (Hostname, gpu) (rate(a_total{x=~\"b|c\"}[5m])) / on (job) group_left b > 1e9"),
            ["a_total", "b"]
        );
        assert_eq!(
            names("up == 0 and vllm:x offset 15m > 0.5 * count(y) or abs(z) == Inf"),
            ["up", "vllm:x", "y", "z"]
        );
        assert_eq!(names("max_over_time(g{h!=\"\"}[1d]) - g"), ["g"]);
    }
}
