//! Metrics of other programs, in the text format of Prometheus: read, labelled with their job and rank, and passed on.

use std::collections::BTreeMap;

use bedplate_record::Exposition;

/// Lines of one program that are passed on; a program with more is cut off.
const MOST_LINES: usize = 20_000;

/// A metric with the lines of all its series.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Family {
    kind: Option<String>,
    help: Option<String>,
    /// Name, labels without braces, and the value as it was written.
    samples: Vec<(String, String, String)>,
}

/// Metrics by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Families(BTreeMap<String, Family>);

impl Families {
    /// Reads a text and adds `labels` to every series. Lines that are not in the format are skipped.
    pub fn read(text: &str, labels: &str) -> Self {
        let mut families = Families::default();
        let mut current = String::new();
        for line in text.lines().take(MOST_LINES) {
            match comment(line) {
                Some((name, what)) => {
                    let family = families.0.entry(name.to_owned()).or_default();
                    match what {
                        Comment::Kind(kind) => family.kind = Some(kind.to_owned()),
                        Comment::Help(help) => family.help = Some(help.to_owned()),
                    }
                    current = name.to_owned();
                }
                None => families.add(&current, line, labels),
            }
        }
        families.0.retain(|_, family| !family.samples.is_empty());
        families
    }

    fn add(&mut self, current: &str, line: &str, labels: &str) {
        let Some((name, own, value)) = sample(line) else { return };
        let is_part = !current.is_empty()
            && name
                .strip_prefix(current)
                .is_some_and(|rest| ["", "_bucket", "_sum", "_count", "_total", "_created"].contains(&rest));
        let family = if is_part { current } else { name };
        let own = own.trim_end_matches(',');
        let labels = match (own.is_empty(), labels.is_empty()) {
            (true, _) => labels.to_owned(),
            (_, true) => own.to_owned(),
            _ => format!("{own},{labels}"),
        };
        let sample = (name.to_owned(), labels, value.to_owned());
        self.0.entry(family.to_owned()).or_default().samples.push(sample);
    }

    pub fn merge(&mut self, other: Families) {
        for (name, family) in other.0 {
            let known = self.0.entry(name).or_default();
            known.kind = known.kind.take().or(family.kind);
            known.help = known.help.take().or(family.help);
            known.samples.extend(family.samples);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn write(&self, text: &mut Exposition) {
        for (name, family) in &self.0 {
            let help = family.help.as_deref().unwrap_or("");
            text.head(name, family.kind.as_deref().unwrap_or("untyped"), help);
            for (name, labels, value) in &family.samples {
                match labels.is_empty() {
                    true => text.raw(&format!("{name} {value}\n")),
                    false => text.raw(&format!("{name}{{{labels}}} {value}\n")),
                }
            }
        }
    }
}

enum Comment<'a> {
    Kind(&'a str),
    Help(&'a str),
}

fn comment(line: &str) -> Option<(&str, Comment<'_>)> {
    let rest = line.strip_prefix("# ")?;
    let (keyword, rest) = rest.split_once(' ')?;
    let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
    let is_kind = ["counter", "gauge", "histogram", "summary", "untyped"].contains(&text.trim());
    match keyword {
        _ if !is_name(name) => None,
        "TYPE" if is_kind => Some((name, Comment::Kind(text.trim()))),
        "HELP" => Some((name, Comment::Help(text))),
        _ => None,
    }
}

/// Name, labels and value of a line; a timestamp at its end is left out.
fn sample(line: &str) -> Option<(&str, &str, &str)> {
    let name_end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => {
            let end = closing_brace(inner)?;
            (&inner[..end], &inner[end + 1..])
        }
        None => ("", rest),
    };
    let value = rest.split_whitespace().next()?;
    let is_number = matches!(value, "+Inf" | "-Inf" | "NaN") || value.parse::<f64>().is_ok();
    (is_name(name) && is_number && are_labels(labels)).then_some((name, labels.trim(), value))
}

/// Where the labels end: at the first brace that is not within quotation marks.
fn closing_brace(text: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '}' if !is_quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Whether a text is `key="value"` pairs.
fn are_labels(text: &str) -> bool {
    let mut rest = text.trim();
    while !rest.is_empty() {
        let Some((key, after)) = rest.split_once("=\"") else { return false };
        if !is_name(key.trim()) {
            return false;
        }
        let Some(end) = closing_quote(after) else { return false };
        rest = after[end + 1..].trim_start();
        match rest.strip_prefix(',') {
            Some(more) => rest = more.trim_start(),
            None if rest.is_empty() => {}
            None => return false,
        }
    }
    true
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some(at),
            _ => {}
        }
    }
    None
}

fn is_name(name: &str) -> bool {
    let is_in_name = |character: char| character.is_ascii_alphanumeric() || "_:".contains(character);
    !name.is_empty()
        && name.chars().all(is_in_name)
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn metrics_of_ranks_are_labelled_and_grouped() {
        let text = "# HELP vllm:num_requests_running Running.\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"a}b\"} 3.0\n# TYPE ttft histogram\nttft_bucket{le=\"0.1\"} 1\nttft_bucket{le=\"+Inf\"} 2\nttft_sum 0.5\nttft_count 2 1700000000\nup 1\n";
        let mut families = Families::read(text, "hpc_job=\"7\",rank=\"0\"");
        families.merge(Families::read(text, "hpc_job=\"7\",rank=\"1\""));
        let mut out = Exposition::default();
        families.write(&mut out);
        expect![[r#"
            # HELP ttft 
            # TYPE ttft histogram
            ttft_bucket{le="0.1",hpc_job="7",rank="0"} 1
            ttft_bucket{le="+Inf",hpc_job="7",rank="0"} 2
            ttft_sum{hpc_job="7",rank="0"} 0.5
            ttft_count{hpc_job="7",rank="0"} 2
            ttft_bucket{le="0.1",hpc_job="7",rank="1"} 1
            ttft_bucket{le="+Inf",hpc_job="7",rank="1"} 2
            ttft_sum{hpc_job="7",rank="1"} 0.5
            ttft_count{hpc_job="7",rank="1"} 2
            # HELP up 
            # TYPE up untyped
            up{hpc_job="7",rank="0"} 1
            up{hpc_job="7",rank="1"} 1
            # HELP vllm:num_requests_running Running.
            # TYPE vllm:num_requests_running gauge
            vllm:num_requests_running{model_name="a}b",hpc_job="7",rank="0"} 3.0
            vllm:num_requests_running{model_name="a}b",hpc_job="7",rank="1"} 3.0
        "#]]
        .assert_eq(&out.into_string());
    }

    #[test]
    fn lines_that_would_break_the_text_are_left_out() {
        for line in ["x{a=\"b\" 1", "x{a=b} 1", "x one", "9x 1", "x{a=\"1\"b=\"2\"} 1", "x{}", "<html>", "x"]
        {
            assert!(Families::read(line, "").is_empty(), "{line}");
        }
        assert!(!Families::read("x{a=\"1\",} NaN", "").is_empty());
    }
}
