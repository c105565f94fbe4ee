//! Real logs, scored by what is known of them.

use std::path::{Path, PathBuf};

use bedplate_diagnose::{Cause, Diagnosis, diagnose};
use bedplate_document::csv;
use bedplate_evidence::gather;
use bedplate_logs::Recognizer;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, files};
use serde_json::{Value, json};

use super::DiagnoseError;
use super::score::{Answer, Confusion, name};

/// A log and what is known of it.
struct Labelled {
    file: String,
    truth: Answer,
    /// Whether its text can tell at all.
    can_tell: bool,
}

struct Scored {
    labelled: Labelled,
    answer: Answer,
    summary: String,
}

pub(super) fn run(
    folder: &Path,
    labels: &Path,
    recognizer: &Recognizer,
    console: &mut Console,
) -> Result<(), CliError> {
    let path = labels.display().to_string();
    let text = files::read_text(&path)?;
    let all = read(&path, &text)?;
    let mut scored = Vec::new();
    for labelled in all {
        let inputs = [PathBuf::from(folder).join(&labelled.file)];
        let gathered = gather(&inputs, recognizer, &mut |_| {})?;
        let diagnosis = diagnose(&gathered.case, recognizer);
        let (answer, summary) = answer(&diagnosis);
        scored.push(Scored { labelled, answer, summary });
    }
    show(&scored, console)
}

/// What a diagnosis comes to; a suspicion is no answer.
fn answer(diagnosis: &Diagnosis) -> (Answer, String) {
    match diagnosis.verdicts.iter().find(|verdict| verdict.is_firm) {
        Some(verdict) => (Some(verdict.cause), verdict.to_string()),
        None => (None, String::new()),
    }
}

fn read(path: &str, text: &str) -> Result<Vec<Labelled>, DiagnoseError> {
    let failed = |line: usize, why: String| DiagnoseError::Input { path: format!("{path}:{line}"), why };
    let rows = csv::columns(text, [&["file"], &["label"], &["in_log"]]);
    let mut all = Vec::new();
    for row in rows.map_err(|error| failed(error.line(), error.to_string()))? {
        let (line, [file, label, in_log]) = row.map_err(|error| failed(error.line(), error.to_string()))?;
        let truth = match &*label {
            "healthy" => None,
            "unknown" => Some(Cause::Unknown),
            class => match Cause::of_class(class) {
                Cause::Unknown => return Err(failed(line, format!("`{class}` is no label"))),
                cause => Some(cause),
            },
        };
        all.push(Labelled { file: file.into_owned(), truth, can_tell: in_log != "no" });
    }
    Ok(all)
}

impl Scored {
    /// Where the text cannot tell, `unknown` is right.
    fn truth(&self) -> Answer {
        match self.labelled.truth {
            Some(_) if !self.labelled.can_tell => Some(Cause::Unknown),
            truth => truth,
        }
    }

    /// Saying nothing of a log that has a fault is as good as `unknown`.
    fn is_unknown(&self) -> bool {
        self.answer.is_none_or(|cause| cause == Cause::Unknown)
    }

    fn verdict(&self) -> &'static str {
        match (self.truth(), self.answer) {
            (truth, answer) if truth == answer => "right",
            (Some(Cause::Unknown), None) => "right",
            // The true class of a log that was thought not to tell.
            (Some(Cause::Unknown), answer) if answer == self.labelled.truth => "right",
            (Some(_), _) if self.is_unknown() => "unknown",
            _ => "wrong",
        }
    }
}

fn show(scored: &[Scored], console: &mut Console) -> Result<(), CliError> {
    let mut confusion = Confusion::default();
    for each in scored {
        confusion.add(each.truth(), each.answer.or(each.truth().and(Some(Cause::Unknown))));
    }
    let count = |verdict: &str| scored.iter().filter(|each| each.verdict() == verdict).count();
    let telling: Vec<&Scored> = scored.iter().filter(|each| each.labelled.can_tell).collect();
    let right = telling.iter().filter(|each| each.verdict() == "right").count();
    if console.is_json() {
        let each = |each: &Scored| json!({ "file": each.labelled.file, "label": name(each.labelled.truth), "answer": name(each.answer), "verdict": each.verdict(), "summary": each.summary });
        return console.json(&json!({
            "right": count("right"), "unknown": count("unknown"), "wrong": count("wrong"),
            "can_tell": telling.len(), "right_of_those": right,
            "confusion": confusion.json(), "logs": scored.iter().map(each).collect::<Vec<Value>>(),
        }));
    }
    let mut table = Table::new(vec![
        Column::left("LOG", 0),
        Column::left("LABEL", 0),
        Column::left("ANSWER", 0),
        Column::left("", 0),
        Column::left("DIAGNOSIS", 2),
    ]);
    for each in scored {
        table.row(vec![
            each.labelled.file.clone(),
            name(each.labelled.truth).to_owned(),
            name(each.answer).to_owned(),
            each.verdict().to_owned(),
            each.summary.clone(),
        ]);
    }
    console.table(&table)?;
    console.line("")?;
    console.table(&confusion.table())?;
    console.line(&format!(
        "\nof {} logs that can tell {right} are right ({:.0} %); of all {}: {} right, {} unknown, {} wrong",
        telling.len(),
        100.0 * right as f64 / telling.len().max(1) as f64,
        scored.len(),
        count("right"),
        count("unknown"),
        count("wrong"),
    ))
}
